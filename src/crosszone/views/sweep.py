"""A sweep as a section: a heat map with a letter for what crosses zones, or a table for one axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from crosszone.text.figures import format_amount, format_digits
from crosszone.views.answer_text import AnswerText
from crosszone.views.document import Block, ColoredText, Paragraph, Picture, Section, Table

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
# Colours from fast to slow (turbo, whose steps stay distinguishable on dark and light terminals).
SCALE = ("#30123b", "#4145ab", "#4675ed", "#39a2fc", "#1bcfd4", "#24eca6", "#61fc6c", "#a4fc3c", "#d1e834", "#f3c63a",
         "#fe9b2d", "#f36315", "#d93806", "#b11901", "#7a0402")  # fmt: skip
LIGHT_TEXT = (0, 1, 2, 11, 12, 13, 14)  # Places of those dark enough to need light letters
LIGHT, DARK = "#ffffff", "#000000"
MOST_FLIPS = 24  # Places of one axis that are named; --json has all
MOST_REFUSALS = 3  # Reasons for cells without a plan: they mostly differ by a number


def build_sweep_section(sweep: Sweep, text: AnswerText) -> Section:
    """The heat map or table, what the letters mean, and where the best choice flips."""
    counts = {"cells": format_amount(len(sweep.cells)), "s": format_digits(sweep.seconds, 3)}
    blocks: list[Block] = [Paragraph(text=text.label("sweep_did", **counts), mark="faint", wraps=True)]
    blocks.append(_draw_grid(sweep) if sweep.y is not None else _build_row_table(sweep, text))
    kinds = list(dict.fromkeys(cell.kind for cell in sweep.cells))
    letters = text.join(f"{LETTERS[kind]} {label_crossing(kind, text)}" for kind in kinds)
    blocks.append(text.build_line("sweep_letters", letters=letters, wraps=True))
    times = _list_times(sweep)
    if times:
        scale = text.label("sweep_scale", low=format_digits(min(times)), high=format_digits(max(times)))
        blocks.append(Paragraph(text=scale, wraps=True))
    refusals = dict.fromkeys(cell.refusal.message for cell in sweep.cells if cell.refusal)
    for message in list(refusals)[:MOST_REFUSALS]:
        blocks.append(Paragraph(text=f"{LETTERS['refused']}  {message}", mark="faint"))
    for flip in sweep.flips[:MOST_FLIPS] if sweep.y is None else ():
        ends = {"low": format_digits(flip.start[0], 5), "high": format_digits(flip.end[0], 5)}
        names = {"one": label_crossing(flip.one, text), "other": label_crossing(flip.other, text)}
        blocks.append(Paragraph(text=text.label("sweep_flip", field=sweep.x.field, **ends, **names)))
    if len(kinds) == 1:
        blocks.append(text.build_line("sweep_no_flip", wraps=True))
    return Section(title=sweep.name, blocks=tuple(blocks))


def pick_shade(cell: SweepCell, low: float, high: float) -> int | None:
    """Place of a cell's colour, by the logarithm of its step; None: there is no plan."""
    if cell.step_time_s is None:
        return None
    if high <= low:
        return 0
    # by the logarithm, since a sweep of rates spans steps of seconds and of hours
    share = math.log(cell.step_time_s.expected / low) / math.log(high / low)
    return min(len(SCALE) - 1, int(share * len(SCALE)))


def _list_times(sweep: Sweep) -> list[float]:
    return [cell.step_time_s.expected for cell in sweep.cells if cell.step_time_s]


def _format_axis_value(value: float | str, digits: int) -> str:
    return value if isinstance(value, str) else format_digits(float(value), digits)


def _draw_grid(sweep: Sweep) -> Picture:
    """Rows of y, the largest on top; two columns of the terminal a cell."""
    assert sweep.y is not None
    times = _list_times(sweep) or [1.0]
    names = [_format_axis_value(value, 3) for value in sweep.y.values]
    indent = max(map(len, names)) + 1
    lines: list[tuple[ColoredText, ...]] = [(ColoredText(text=sweep.y.field, mark="faint"),)]
    for row in reversed(range(len(sweep.y.values))):
        spans = [ColoredText(text=names[row].rjust(indent - 1) + " ")]
        for column in range(len(sweep.x.values)):
            cell = sweep.cell(column, row)
            shade = pick_shade(cell, min(times), max(times))
            color = LIGHT if shade in LIGHT_TEXT else DARK
            background = "" if shade is None else SCALE[shade]
            spans.append(ColoredText(text=f"{LETTERS[cell.kind]} ", color=color, background=background))
        lines.append(tuple(spans))
    first, last = (_format_axis_value(value, 3) for value in (sweep.x.values[0], sweep.x.values[-1]))
    # the last value ends under the last column
    width = 2 * len(sweep.x.values)
    ends = " " * indent + first + last.rjust(max(len(last) + 1, width - len(first)))
    lines += [(ColoredText(text=ends),), (ColoredText(text=" " * indent + sweep.x.field, mark="faint"),)]
    return Picture(lines=tuple(lines))


def _build_row_table(sweep: Sweep, text: AnswerText) -> Table:
    rows = []
    for cell in sweep.cells:
        value, best = _format_axis_value(cell.x, 5), cell.outcome
        if best is None:
            rows.append((value, "-", "-", "-", cell.refusal.message if cell.refusal else "-"))
            continue
        synchronous = format_digits(cell.synchronous.step_time_s.expected) if cell.synchronous else "-"
        choice = f"{LETTERS[cell.kind]}  {best.choice.label(text.language)}"
        step_s, speed = format_digits(best.step_time_s.expected), format_digits(best.tokens_per_s.expected)
        rows.append((value, step_s, speed, synchronous, choice))
    headings = text.build_headings(">what_if_step >what_if_speed >sweep_synchronous sweep_choice")
    return Table(headings=((sweep.x.field, "right"), *headings), rows=tuple(rows))


def label_crossing(kind: str, text: AnswerText) -> str:
    """What crosses zones, in words."""
    from crosszone.analyse.sweep_cells import format_crossing

    return format_crossing(kind, text.language)
