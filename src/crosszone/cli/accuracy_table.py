"""Tables of accuracy in the terminal: rows of mappings under labelled columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosszone.cli.output import build_table, label, open_console
from crosszone.text.figures import format_amount

Columns = Sequence[tuple[str, str]]  # Key of a row, which is the column's label too, and its alignment
# Of transfers between emulated zones.
TESTBED: Columns = (
    ("experiment", "left"),
    ("op", "left"),
    ("rows", "right"),
    ("predicted", "right"),
    ("median_best_pct", "right"),
    ("p90_best_pct", "right"),
    ("median_median_pct", "right"),
)


def print_table(title: str, columns: Columns, lines: Sequence[Mapping[str, Any]], limit: int | None = None) -> None:
    """Print a table, if there are rows: `most` of them, and how many more there are."""
    visible = lines[:limit]
    table = build_table(title, columns)
    for line in visible:
        table.add_row(*(format_cell(line.get(key)) for key, _ in columns))
    if visible:
        open_console().print(table)
    if len(lines) > len(visible):
        open_console().print(label("rows_more", count=format_amount(len(lines) - len(visible))))


def format_cell(value: Any) -> str:
    """A value as a cell shows it: one decimal, or as it is."""
    if isinstance(value, str):
        return value
    return f"{value:.1f}" if isinstance(value, float) else format_amount(value)
