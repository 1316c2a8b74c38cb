"""Figures in the terminal: few digits, ranges with their unit, and lines under headings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from crosszone.cli.output import console, said

if TYPE_CHECKING:
    from crosszone.predict.prediction import Triple

Line = tuple[str, str, str]
"""Heading, text and style."""


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


def digits(value: float, most: int = 4) -> str:
    """A number to so many significant digits, with commas and no exponent where it is large."""
    if abs(value) >= 10 ** (most - 1):
        return f"{float(f'{value:.{most}g}'):,.0f}"
    return f"{value:.{most}g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.2g}"


def signed(value: float, most: int = 4) -> str:
    """A difference, with its sign."""
    return ("+" if value > 0 else "") + digits(value, most)


def percent(share: float) -> str:
    """A share in percent, without the sign."""
    return f"{100 * share:.1f}"


def with_range(triple: Triple, unit: str, factor: float = 1.0) -> str:
    """Expected value with its unit, and the range."""
    value, low, high = (digits(x * factor, n) for x, n in ((triple.expected, 4), (triple.low, 3), (triple.high, 3)))
    return said("value_range", value=said(f"unit_{unit}", value=value), low=low, high=high)
