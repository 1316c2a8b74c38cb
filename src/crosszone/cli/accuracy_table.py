"""Tables of accuracy in the terminal: rows of mappings under labelled columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosszone.cli.output import build_table, label, open_console
from crosszone.text.figures import format_amount

Columns = Sequence[tuple[str, str]]  # Key of a row, which is the column's label too, and its alignment
# Of transfers between emulated zones.
RIG: Columns = (
    ("experiment", "left"),
    ("op", "left"),
    ("rows", "right"),
    ("predicted", "right"),
    ("median_best_pct", "right"),
    ("p90_best_pct", "right"),
    ("median_median_pct", "right"),
)


def print_table(title: str, columns: Columns, lines: Sequence[Mapping[str, Any]], most: int | None = None) -> None:
    """Print a table, if there are rows: `most` of them, and how many more there are."""
    shown = lines[:most]
    made = build_table(title, columns)
    for line in shown:
        made.add_row(*(cell(line.get(key)) for key, _ in columns))
    if shown:
        open_console().print(made)
    if len(lines) > len(shown):
        open_console().print(label("rows_more", count=format_amount(len(lines) - len(shown))))


def cell(value: Any) -> str:
    """A value as a cell shows it: one decimal, or as it is."""
    if isinstance(value, str):
        return value
    return f"{value:.1f}" if isinstance(value, float) else format_amount(value)
