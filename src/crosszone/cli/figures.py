"""Figures in the terminal: few digits, and lines under headings."""

from __future__ import annotations

from collections.abc import Iterable

from crosszone.cli.output import console, said
from crosszone.text.figures import digits, percent, signed

Line = tuple[str, str, str]  # Heading, text and style


def print_lines(*lines: Line) -> None:
    """Lines under each other; what is too long for the terminal goes on under the text."""
    from rich.cells import cell_len
    from rich.text import Text

    terminal = console()
    indent = max(cell_len(heading) for heading, _, _ in lines) + 2
    for heading, text, style in lines:
        lead = heading + " " * (indent - cell_len(heading))
        for piece in Text(text).wrap(terminal, max(20, terminal.width - indent)):
            piece.rstrip()
            terminal.print(Text(lead) + piece, style=style, soft_wrap=True)
            lead = " " * indent


def listed(words: Iterable[str]) -> str:
    """Words with commas between them."""
    return said("comma").join(words)


__all__ = ["Line", "digits", "listed", "percent", "print_lines", "signed"]
