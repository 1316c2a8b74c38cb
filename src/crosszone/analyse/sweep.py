"""Sweep: a scenario planned anew (or predicted) at every value of one field, or of two.

    rates, trips = read_axis("cluster.links[*].gbps=1:100:log20"), read_axis("cluster.links[*].rtt_ms=5:80:20")
    result = sweep(scenario, rates, trips)
    result.cell(0, 3).choice, result.cell(0, 3).step_time_s.expected, result.flips

Flips: where what crosses zones changes: lines between the cells of two axes, places on one axis.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any

from crosszone.analyse.sweep_cells import (
    CORES,
    REFUSED,
    Cells,
    Mode,
    SweepAxis,
    SweepCell,
    compute_cells,
    make_too_many_error,
    read_axis,
)
from crosszone.analyse.sweep_cells import MOST_VALUES as MOST_CELLS
from crosszone.errors import InvalidError, Notice, build_choice_error
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.plan.candidates import require_objective_figures
from crosszone.plan.plan import OBJECTIVES, Objective
from crosszone.plan.planner import build_problem
from crosszone.plan.search import Progress

CLOSE = 1e-3  # Share of the way between two cells of one axis to which a flip is found
MOST_HALVINGS = 40  # Re-plans between two cells: more than two flips there are not all found

Spot = tuple[float, float]


class Flip(Value):
    """A piece of the line on which the best choice changes; of one axis, a place."""

    start: tuple[float, float | None]
    """x and y of its one end; on one axis, the last value at which the first choice is best."""
    end: tuple[float, float | None]
    """The other end; on one axis, the first value at which the second choice is."""
    one: str
    """What crosses zones on the side of smaller values; `refused`: no plan."""
    other: str
    """What crosses zones on the side of larger values."""


def find_flip_lines(x: SweepAxis, y: SweepAxis, cells: Sequence[SweepCell]) -> Iterator[Flip]:
    """Pieces of line between neighbouring cells of different kind; cells row by row, x quickest. [A11]

    Between two cells it lies where the lead of one kind of plan over the other is nothing, both being known on both
    sides; else half-way. Along the other axis it reaches half-way to the next cells.
    """
    across, along = x.numbers, y.numbers
    if across is None or along is None:
        return
    wide = len(across)
    for row in range(len(along)):
        for column in range(wide):
            cell = cells[row * wide + column]
            if column + 1 < wide and (other := cells[row * wide + column + 1]).kind != cell.kind:
                at = _find_meeting(x, across[column], across[column + 1], cell, other)
                low, high = _measure_reach(y, along, row)
                yield Flip(start=(at, low), end=(at, high), one=cell.kind, other=other.kind)
            if row + 1 < len(along) and (other := cells[(row + 1) * wide + column]).kind != cell.kind:
                at = _find_meeting(y, along[row], along[row + 1], cell, other)
                low, high = _measure_reach(x, across, column)
                yield Flip(start=(low, at), end=(high, at), one=cell.kind, other=other.kind)


def find_flip_places(x: SweepAxis, cells: Sequence[SweepCell], at: Callable[[float], SweepCell]) -> Iterator[Flip]:
    """Places on one axis at which the kind changes, by halving with a plan of its own at every step. [A12]

    `at` works a cell out; whole numbers are halved until two follow each other.
    """
    numbers = x.numbers
    if numbers is None:
        return
    for low, high, cell, other in zip(numbers, numbers[1:], cells, cells[1:], strict=False):
        if REFUSED in (cell.kind, other.kind) and cell.kind != other.kind:  # whether there is a plan may change often
            yield Flip(start=(low, None), end=(high, None), one=cell.kind, other=other.kind)
        elif cell.kind != other.kind:
            yield from _find_flips_between(x, (low, cell.kind), (high, other.kind), at)


def _find_flips_between(
    x: SweepAxis, first: tuple[float, str], last: tuple[float, str], at: Callable[[float], SweepCell]
) -> Iterator[Flip]:
    pieces, halvings_left, done = [(first, last, 0.0, 1.0)], MOST_HALVINGS, []
    while pieces:
        low, high, start, end = pieces.pop()
        middle = x.interpolate(first[0], last[0], (start + end) / 2)
        place = float(round(middle)) if x.whole else middle
        if end - start <= CLOSE or not halvings_left or place in (low[0], high[0]):
            done.append(Flip(start=(low[0], None), end=(high[0], None), one=low[1], other=high[1]))
            continue
        halvings_left -= 1
        halved = (place, at(place).kind)
        share = (start + end) / 2
        if halved[1] != high[1]:
            pieces.append((halved, high, share, end))
        if halved[1] != low[1]:
            pieces.append((low, halved, start, share))
    yield from sorted(done, key=lambda flip: flip.start[0])


def _find_meeting(axis: SweepAxis, low: float, high: float, cell: SweepCell, other: SweepCell) -> float:
    """The value between two cells at which their choices are equally good. [A11]"""
    if cell.best != other.best and cell.lead is not None and other.lead is not None and cell.lead != other.lead:
        return axis.interpolate(low, high, cell.lead / (cell.lead - other.lead))
    return axis.interpolate(low, high)


def _measure_reach(axis: SweepAxis, numbers: Sequence[float], at: int) -> Spot:
    """How far a cell reaches to both sides: half-way to the next ones, at the ends as far as there are values."""
    low = axis.interpolate(numbers[at - 1], numbers[at]) if at else numbers[0]
    high = axis.interpolate(numbers[at], numbers[at + 1]) if at + 1 < len(numbers) else numbers[-1]
    return low, high


MARGIN = 0.05  # Share that another algorithm must gain to be worth changing to
MODES: tuple[Mode, ...] = ("plan", "predict")
LINKS = ("cluster.links", "cluster.default_link")  # Fields that cells share most in (`PlanCache`)
# Of a CSV file.
COLUMNS = (
    "x", "y", "best", "kind", "framework", "tp", "pp", "dp", "cp", "ep", "zones",
    "step_time_s_low", "step_time_s", "step_time_s_high", "tokens_per_s", "usd_per_hour", "run_usd", "fits",
    "synchronous_step_time_s", "local_update_step_time_s", "refusal",
)  # fmt: skip


class Sweep(Value):
    """What is best, and what it takes, at every place of one or two axes."""

    name: str
    """Name of the scenario."""
    x: SweepAxis
    """The first axis."""
    y: SweepAxis | None
    """The second axis; null: there is one."""
    objective: Objective
    """What plans are ranked by."""
    mode: Mode
    """A plan for every cell, or a prediction of the scenario's own strategy."""
    free: bool
    """The scenario's strategy was left out, so that nothing is pinned."""
    local_updates: bool
    """Plans in which zones average now and then were looked for too."""
    margin: float
    """Share by which those, another algorithm, had to be better to be taken."""
    cells: tuple[SweepCell, ...]
    """Row by row: x changes from cell to cell, y from row to row."""
    flips: tuple[Flip, ...]
    """Where what crosses zones changes."""
    seconds: float
    """Time it took."""

    def cell(self, x: int, y: int = 0) -> SweepCell:
        """The cell of two places on the axes, from 0."""
        return self.cells[y * len(self.x.values) + x]

    def to_csv(self) -> str:
        """A table with a row for each cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([self.x.field, self.y.field if self.y else "y", *COLUMNS[2:]])
        for cell in self.cells:
            row = _build_row(cell)
            writer.writerow([row.get(name, "") for name in COLUMNS])
        return text.getvalue()

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"<Sweep of {self.name}: {len(self.cells)} cells, {len(self.flips)} flips>"


def sweep(
    scenario: Scenario,
    x: SweepAxis | str,
    y: SweepAxis | str | None = None,
    *,
    objective: Objective = "time",
    mode: Mode = "plan",
    free: bool = False,
    local_updates: bool = True,
    margin: float = MARGIN,
    on: str = CORES,
    workers: int | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    language: str = "en",
) -> Sweep:
    """Every cell planned as `plan(scenario, top=1)` would plan it, or predicted; what the strategy names is pinned.

    `free` leaves the strategy out first. `on`: all cores of this machine (`workers` of them), `ray`, or the address of
    a Ray cluster. A cell without a plan says why; it is no error. Plans with local updates change the algorithm: one is
    taken for the best where it is better than the synchronous one by `margin`.
    """
    began = monotonic()
    for name, value, allowed in (("objective", objective, OBJECTIVES), ("mode", mode, MODES)):
        if value not in allowed:
            raise build_choice_error(name, value, allowed)
    # `SweepCell.lead` divides by 1 - margin
    if not 0 <= margin < 1:
        ends: dict[str, Any] = {"low": 0, "high": 1}
        raise InvalidError(Notice(code="switch_out_of_range", field="margin", value=margin, params=ends))
    # made anew: `replace(strategy=None)` would state a strategy of null
    fields_kept = {key: getattr(scenario, key) for key in scenario.model_fields_set - {"strategy", "placement"}}
    start = Scenario(**fields_kept) if free else scenario
    if mode == "predict" and start.strategy is None:
        raise InvalidError(Notice(code="strategy_missing", field="strategy"))
    across, along = (read_axis(axis) if isinstance(axis, str) else axis for axis in (x, y))
    assert across is not None
    across, along = across.fit_to(start), along.fit_to(start) if along else None
    if along is not None and along.field == across.field:
        raise InvalidError(Notice(code="axis_same", field=along.field))
    count = len(across.values) * (len(along.values) if along else 1)
    if count > MOST_CELLS:
        raise make_too_many_error(count)
    if mode == "plan" and objective != "time":
        require_objective_figures(build_problem(start), objective)
    fields = (across.field, along.field) if along else (across.field,)
    cells = Cells(
        scenario=start,
        fields=fields,
        objective=objective,
        mode=mode,
        local_updates=local_updates,
        margin=margin,
        language=language,
    )
    points = [(a, b) for b in (along.values if along else (None,)) for a in across.values]
    order = _order(across, along)
    done = compute_cells(
        cells, [points[at] for at in order], on=on, workers=workers, progress=progress, cancelled=cancelled
    )
    sorted_cells = [cell for _, cell in sorted(zip(order, done, strict=True), key=lambda pair: pair[0])]
    if along is not None:
        flips = list(find_flip_lines(across, along, sorted_cells))
    else:
        is_whole = across.whole

        def compute_at(value: float) -> SweepCell:
            return cells.compute_one((int(value) if is_whole else value, None), cancelled)

        flips = list(find_flip_places(across, sorted_cells, compute_at))
    return Sweep(
        name=scenario.name,
        x=across,
        y=along,
        objective=objective,
        mode=mode,
        free=free,
        local_updates=local_updates,
        margin=margin,
        cells=tuple(sorted_cells),
        flips=tuple(flips),
        seconds=monotonic() - began,
    )


def _order(x: SweepAxis, y: SweepAxis | None) -> list[int]:
    """Places of all cells in the order they are worked out: those that differ in links only follow each other."""
    wide, high = len(x.values), len(y.values) if y else 1
    by_column = y is not None and y.field.startswith(LINKS) and not x.field.startswith(LINKS)
    return [row * wide + at for at in range(wide) for row in range(high)] if by_column else list(range(wide * high))


def _build_row(cell: SweepCell) -> dict[str, Any]:
    """A cell as a row of the table; what is not known stays empty."""
    row: dict[str, Any] = {"x": cell.x, "y": "" if cell.y is None else cell.y, "kind": cell.kind}
    for side in ("synchronous", "local_update"):
        outcome = getattr(cell, side)
        row[f"{side}_step_time_s"] = outcome.step_time_s.expected if outcome else ""
    best = cell.outcome
    if best is None:
        return row | {"refusal": cell.refusal.code if cell.refusal else ""}
    choice, step = best.choice, best.step_time_s
    row |= {name: getattr(choice, name) for name in ("framework", "tp", "pp", "dp", "cp", "ep")}
    return row | {
        "best": cell.best,
        "zones": " ".join(choice.zones),
        "step_time_s_low": step.low,
        "step_time_s": step.expected,
        "step_time_s_high": step.high,
        "tokens_per_s": best.tokens_per_s.expected,
        "usd_per_hour": "" if best.usd_per_hour is None else best.usd_per_hour,
        "run_usd": best.run_usd.expected if best.run_usd else "",
        "fits": best.fits,
    }
