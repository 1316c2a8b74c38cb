"""A sweep in the terminal: a heat map with a letter for what crosses zones, or a table for one axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from crosszone.cli.output import build_table, get_language, join_words, label, open_console
from crosszone.text.figures import format_amount, format_digits

if TYPE_CHECKING:
    from crosszone.analyse.sweep import Sweep
    from crosszone.analyse.sweep_cells import SweepCell

# What crosses zones, one letter each.
LETTERS = {
    "one zone": "1",
    "pp": "p",
    "dp flat": "f",
    "dp hierarchical": "h",
    "pp and dp flat": "F",
    "pp and dp hierarchical": "H",
    "diloco": "D",
    "streaming diloco": "S",
    "refused": "x",
}
# Colours from fast to slow.
SCALE = ("#30123b", "#4145ab", "#4675ed", "#39a2fc", "#1bcfd4", "#24eca6", "#61fc6c", "#a4fc3c", "#d1e834", "#f3c63a",
         "#fe9b2d", "#f36315", "#d93806", "#b11901", "#7a0402")  # fmt: skip
LIGHT_TEXT = (0, 1, 2, 11, 12, 13, 14)  # Places of those that need light letters
MOST_FLIPS = 24  # Places of one axis that are told; --json has all


def print_sweep(sweep: Sweep) -> None:
    """The heat map or table, what the letters mean, and where the best choice flips."""
    terminal = open_console()
    terminal.print(sweep.name, style="bold")
    terminal.print(
        label("sweep_did", cells=format_amount(len(sweep.cells)), s=format_digits(sweep.seconds, 3)), style="dim"
    )
    terminal.print(_draw_grid(sweep) if sweep.y is not None else _build_row_table(sweep))
    kinds = list(dict.fromkeys(cell.kind for cell in sweep.cells))
    terminal.print(
        label("sweep_letters", letters=join_words(f"{LETTERS[kind]} {_label_crossing(kind)}" for kind in kinds))
    )
    times = [cell.step_time_s.expected for cell in sweep.cells if cell.step_time_s]
    if times:
        terminal.print(label("sweep_scale", low=format_digits(min(times)), high=format_digits(max(times))))
    refused = {cell.refusal.message: None for cell in sweep.cells if cell.refusal}
    for message in list(refused)[:3]:
        terminal.print(f"{LETTERS['refused']}  {message}", style="dim", soft_wrap=True)
    if sweep.y is None:
        for flip in sweep.flips[:MOST_FLIPS]:
            names = {"one": _label_crossing(flip.one), "other": _label_crossing(flip.other)}
            flip_line = label(
                "sweep_flip",
                field=sweep.x.field,
                low=format_digits(flip.start[0], 5),
                high=format_digits(flip.end[0], 5),
                **names,
            )
            terminal.print(flip_line, soft_wrap=True)
    if len(kinds) == 1:
        terminal.print(label("sweep_no_flip"))


def pick_shade(cell: SweepCell, low: float, high: float) -> int | None:
    """Place of a cell's colour, by the logarithm of its step; None: there is no plan."""
    if cell.step_time_s is None:
        return None
    if high <= low:
        return 0
    share = math.log(cell.step_time_s.expected / low) / math.log(high / low)
    return min(len(SCALE) - 1, int(share * len(SCALE)))


def _find_range(sweep: Sweep) -> tuple[float, float]:
    times = [cell.step_time_s.expected for cell in sweep.cells if cell.step_time_s]
    return (min(times), max(times)) if times else (1.0, 1.0)


def _draw_grid(sweep: Sweep) -> Any:
    """Rows of y, the largest on top; two columns of the terminal a cell."""
    from rich.text import Text

    assert sweep.y is not None
    low, high = _find_range(sweep)
    picture = Text()
    names = [str(value) if isinstance(value, str) else format_digits(float(value), 3) for value in sweep.y.values]
    indent = max(map(len, names)) + 1
    picture.append(f"{sweep.y.field}\n", style="dim")
    for row in reversed(range(len(sweep.y.values))):
        picture.append(names[row].rjust(indent - 1) + " ")
        for column in range(len(sweep.x.values)):
            cell = sweep.cell(column, row)
            shade_index = pick_shade(cell, low, high)
            style = (
                ""
                if shade_index is None
                else f"{'#ffffff' if shade_index in LIGHT_TEXT else '#000000'} on {SCALE[shade_index]}"
            )
            picture.append(f"{LETTERS[cell.kind]} ", style=style)
        picture.append("\n")
    ends = [sweep.x.values[0], sweep.x.values[-1]]
    first, last = (str(v) if isinstance(v, str) else format_digits(float(v), 3) for v in ends)
    width = 2 * len(sweep.x.values)
    picture.append(" " * indent + first + last.rjust(max(len(last) + 1, width - len(first))) + "\n")
    picture.append(" " * indent + sweep.x.field, style="dim")
    return picture


def _build_row_table(sweep: Sweep) -> Any:
    columns = [("sweep_value", "right"), ("what_if_step", "right"), ("what_if_speed", "right")]
    rows = build_table("", [*columns, ("sweep_synchronous", "right"), ("sweep_choice", "left")])
    rows.columns[0].header = sweep.x.field
    for cell in sweep.cells:
        value = str(cell.x) if isinstance(cell.x, str) else format_digits(float(cell.x), 5)
        best = cell.outcome
        if best is None:
            rows.add_row(value, "-", "-", "-", cell.refusal.message if cell.refusal else "-")
            continue
        synchronous = format_digits(cell.synchronous.step_time_s.expected) if cell.synchronous else "-"
        choice = f"{LETTERS[cell.kind]}  {best.choice.label(get_language())}"
        rows.add_row(
            value,
            format_digits(best.step_time_s.expected),
            format_digits(best.tokens_per_s.expected),
            synchronous,
            choice,
        )
    return rows


def _label_crossing(kind: str) -> str:
    """What crosses zones, in the language of this run."""
    from crosszone.analyse.sweep_cells import kind_label

    return kind_label(kind, get_language())
