"""Sections in the terminal.

print_sections(build_prediction_sections(answer, AnswerText("en"), width=console.width), console)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, assert_never

from crosszone.views.document import (
    Block,
    Cell,
    Code,
    ColoredText,
    Fact,
    Facts,
    Mark,
    Paragraph,
    Picture,
    Remark,
    Remarks,
    Section,
    Table,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

STYLES: dict[Mark, str] = {"": "", "strong": "bold", "faint": "dim", "bad": "bold red"}
LEVEL_STYLES = {"": "", "error": "bold red", "warning": "yellow", "note": "dim"}
LEAST_TEXT = 20  # Columns that a text beside a heading has at least, however narrow the terminal


def print_sections(sections: Iterable[Section], console: Console) -> None:
    """All sections, one below the other."""
    for section in sections:
        if section.title:
            console.print(section.title, style="bold")
        for block in section.blocks:
            _print_block(block, console)


def _print_block(block: Block, console: Console) -> None:
    match block:
        case Paragraph():
            console.print(" " * block.indent + block.text, style=STYLES[block.mark], soft_wrap=not block.wraps)
        case Facts():
            print_facts(block.facts, console)
        case Remarks():
            print_remarks(block, console)
        case Table():
            print_table(block, console)
        case Code():
            console.print(block.text, soft_wrap=True)
        case Picture():
            _print_picture(block, console)
        case _:
            assert_never(block)


def print_facts(facts: Sequence[Fact], console: Console) -> None:
    """Headings and texts in two columns; what is too long for the terminal goes on under the text.

    A heading that leaves too few columns for its text has a line of its own.
    """
    from rich.cells import cell_len
    from rich.text import Text

    # Chinese characters take two columns each
    indent = max(cell_len(fact.heading) for fact in facts) + 2
    indent = min(indent, max(2, console.width - LEAST_TEXT))
    for fact in facts:
        lead = fact.heading + " " * (indent - cell_len(fact.heading))
        if cell_len(fact.heading) >= indent:
            console.print(Text(fact.heading), style=STYLES[fact.mark], soft_wrap=True)
            lead = " " * indent
        for piece in Text(fact.text).wrap(console, max(LEAST_TEXT, console.width - indent)):
            piece.rstrip()
            console.print(Text(lead) + piece, style=STYLES[fact.mark], soft_wrap=True)
            lead = " " * indent


def print_remarks(block: Remarks, console: Console) -> None:
    """Sentences with their remedies; those of a list are followed by an empty line."""
    for remark in block.remarks[: block.terminal_rows]:
        if block.bullet:
            hint = [Fact(heading="", text=remark.hint, mark="faint")] if remark.hint else []
            print_facts([Fact(heading=block.bullet, text=remark.text), *hint], console)
        else:
            print_remark(remark, console)
    if block.more:
        console.print(block.more)
    if block.bullet:
        console.print()


def print_remark(remark: Remark, console: Console) -> None:
    """A notice with its place, level and remedy, or a sentence of no level with an indent."""
    from rich.text import Text

    line = Text(remark.place if remark.level else " ")
    line.append(remark.level_word, style=LEVEL_STYLES[remark.level])
    line.append(f" {remark.text}")
    console.print(line, soft_wrap=True)
    if remark.hint:
        console.print(Text(f"    {remark.hint}", style="dim"), soft_wrap=True)


def print_table(table: Table, console: Console) -> None:
    """A table, and how many rows a terminal leaves out."""
    if table.title and not table.title_fits:
        console.print(table.title, style="bold")
    console.print(draw_table(table))
    if table.more:
        console.print(table.more)


def draw_table(table: Table) -> RichTable:
    """The table as rich draws it, without what is written above and below it."""
    from rich import box
    from rich.table import Table as RichTable

    drawn = RichTable(
        title=table.title if table.title and table.title_fits else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        caption=table.caption or None,
        caption_justify="left",
    )
    for place, (heading, align) in enumerate(table.headings):
        # a number that is cut would be another number, so cells are folded
        drawn.add_column(heading, justify=align, overflow="fold", no_wrap=place in table.uncut)
    for number, row in enumerate(table.rows[: table.terminal_rows]):
        style = "red" if number in table.bad_rows else "bold" if number in table.strong_rows else ""
        drawn.add_row(*map(draw_cell, row), style=style)
    if table.total:
        drawn.add_section()
    for row in table.total:
        drawn.add_row(*map(draw_cell, row))
    return drawn


def draw_cell(cell: Cell) -> str | Text:
    """A cell as rich draws it."""
    from rich.text import Text

    return cell if isinstance(cell, str) else Text(cell.text, style=_get_style(cell))


def _get_style(span: ColoredText) -> str:
    """What rich calls the colours and the mark of a piece of text."""
    return f"{span.color} on {span.background}" if span.background else f"{STYLES[span.mark]} {span.color}".strip()


def _print_picture(picture: Picture, console: Console) -> None:
    from rich.text import Text

    drawn = Text("\n").join(Text.assemble(*((span.text, _get_style(span)) for span in line)) for line in picture.lines)
    console.print(drawn)
