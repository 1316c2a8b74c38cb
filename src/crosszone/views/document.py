"""An answer as sections of plain text, before it takes a form: what the terminal, Markdown and HTML all print.

Section(title="Bill", blocks=(Facts(...), Table(...)))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Align = Literal["left", "right"]
Mark = Literal["", "strong", "faint", "bad"]
"""How much a text matters: the terminal has styles for it, a file goes without."""


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A line of text."""

    text: str
    mark: Mark = ""
    indent: int = 0
    wraps: bool = False
    """A narrow terminal breaks it between words; else it stays one line for those who copy it."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A heading with a line of text."""

    heading: str
    text: str
    mark: Mark = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts under each other."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A sentence with what to do about it."""

    text: str
    hint: str = ""
    level: Literal["", "error", "warning", "note"] = ""
    """How serious it is; empty: not serious."""
    level_word: str = ""
    place: str = ""
    """File and line that it is about, for a terminal; a file that is handed on goes without."""


@dataclass(frozen=True, kw_only=True)
class Remarks:
    """Sentences, one below the other."""

    remarks: tuple[Remark, ...]
    bullet: str = "-"
    """What stands before each in a terminal; empty: notices, and sentences with an indent."""
    terminal_rows: int | None = None
    """Sentences that a terminal shows; None: all."""
    more: str = ""
    """What a terminal says of those it leaves out."""


@dataclass(frozen=True, kw_only=True)
class ColoredText:
    """A piece of a line, in colours; a file shows its text."""

    text: str
    color: str = ""
    background: str = ""
    mark: Mark = ""

    def __str__(self) -> str:
        return self.text


Cell = str | ColoredText


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under headings; every row has a cell for each heading."""

    headings: tuple[tuple[str, Align], ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[tuple[Cell, ...], ...] = ()
    """Rows under a rule at the end."""
    title: str = ""
    title_fits: bool = False
    """A terminal breaks the title at the width of the table; else the title has lines of its own."""
    caption: str = ""
    bad_rows: frozenset[int] = field(default_factory=frozenset)
    """Places of the rows that say what does not fit."""
    strong_rows: frozenset[int] = field(default_factory=frozenset)
    """Places of the rows that matter most."""
    uncut: frozenset[int] = field(default_factory=frozenset)
    """Places of the columns whose cells a narrow terminal leaves on one line."""
    terminal_rows: int | None = None
    """Rows that a terminal shows; None: all."""
    more: str = ""
    """What a terminal says of those it leaves out."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Lines of characters in colours: a heat map."""

    lines: tuple[tuple[ColoredText, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text of a file, as it is."""

    text: str


Block = Paragraph | Facts | Remarks | Table | Picture | Code


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of an answer, its blocks in the order in which they are read."""

    title: str = ""
    blocks: tuple[Block, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(block for block in self.blocks if isinstance(block, Table))


@dataclass(frozen=True, kw_only=True)
class Report:
    """A scenario with its plan, in one language."""

    language: str
    title: str
    about: tuple[str, ...]
    """Lines under the title."""
    sections: tuple[Section, ...]
