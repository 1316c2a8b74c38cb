"""Sections in the terminal.

print_sections(build_prediction_sections(answer, AnswerText("en"), width=console.width), console)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, assert_never

from crosszone.views.document import (
    Block,
    Code,
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
    """Headings and texts in two columns."""
    print_headed_lines([(fact.heading, fact.text, STYLES[fact.mark]) for fact in facts], console)


def print_headed_lines(lines: Sequence[tuple[str, str, str]], console: Console) -> None:
    """Headings and texts with a style; what is too long for the terminal goes on under the text."""
    from rich.cells import cell_len
    from rich.text import Text

    # Chinese characters take two columns each
    indent = max(cell_len(heading) for heading, _, _ in lines) + 2
    for heading, text, style in lines:
        lead = heading + " " * (indent - cell_len(heading))
        for piece in Text(text).wrap(console, max(LEAST_TEXT, console.width - indent)):
            piece.rstrip()
            console.print(Text(lead) + piece, style=style, soft_wrap=True)
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


def build_rich_table(headings: Iterable[tuple[str, str]], *, title: str = "", caption: str = "") -> RichTable:
    """An empty table in the style of all tables."""
    from rich import box
    from rich.table import Table as RichTable

    table = RichTable(
        title=title or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        caption=caption or None,
        caption_justify="left",
    )
    for heading, align in headings:
        table.add_column(
            heading, justify="right" if align == "right" else "left", overflow="fold"
        )  # a cut number would be another number
    return table


def print_table(table: Table, console: Console) -> None:
    """A table, and how many rows a terminal leaves out."""
    if table.title:
        console.print(table.title, style="bold")  # rich's own titles wrap at the width of the table
    drawn = build_rich_table(table.headings, caption=table.caption)
    for number in table.uncut:
        drawn.columns[number].no_wrap = True
    for number, row in enumerate(table.rows[: table.terminal_rows]):
        drawn.add_row(*row, style="red" if number in table.bad_rows else "")
    if table.total:
        drawn.add_section()
    for row in table.total:
        drawn.add_row(*row)
    console.print(drawn)
    if table.more:
        console.print(table.more)


def _print_picture(picture: Picture, console: Console) -> None:
    from rich.text import Text

    drawn = Text("\n").join(
        Text.assemble(
            *(
                (span.text, f"{span.color} on {span.background}" if span.background else STYLES[span.mark])
                for span in line
            )
        )
        for line in picture.lines
    )
    console.print(drawn)
