"""A report as sections of plain text, before it takes a form: what Markdown and HTML both write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Align = Literal["left", "right"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under headings; every row has a cell for each heading."""

    headings: tuple[tuple[str, Align], ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A sentence with what to do about it."""

    text: str
    hint: str = ""
    level: str = ""
    """Word for how serious it is; empty: not serious."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a report; what is empty is not shown."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    """Headings with a line each."""
    lines: tuple[str, ...] = ()
    items: tuple[Remark, ...] = ()
    tables: tuple[Table, ...] = ()
    code: str = ""
    """Text of a file, as it is."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A scenario with its plan, in one language."""

    language: str
    title: str
    about: tuple[str, ...]
    """Lines under the title."""
    sections: tuple[Section, ...]
