"""Compare: any number of results beside each other, each against the first.

comparison = compare_outcomes([Compared(name="before", outcome=build_outcome(a), prediction=a), ...])
comparison.figures[0].cells[1].percent          # step time of the second against the first, %
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from crosszone.analyse.outcome import CLASSES, OTHER, PARTS, FigureRange, Kind, ResultOutcome
from crosszone.errors import Notice
from crosszone.inputs.value import Value
from crosszone.plan.comparison import estimate_win_probability
from crosszone.predict.prediction import Prediction
from crosszone.schedule.timeline import PHASES

LEAST, MOST = 2, 50  # Results of one comparison
Better = Literal["less", "more"]
# Figures in the order they are shown, and what is better.
FIGURES: dict[str, Better | None] = {
    "step_time_s": "less",
    "tokens_per_s": "more",
    "tokens_per_s_per_gpu": "more",
    "mfu": "more",
    "exposed_s": "less",
    "between_zones_gb": "less",
    "memory_gib": "less",
    "memory_limit_gib": None,
    "gpus": None,
    "days": "less",
    "gpu_hours": "less",
    "usd": "less",
    "usd_egress": "less",
    "kwh": "less",
    "co2_kg": "less",
}
NOISE = 1e-9  # Share of a figure below which a difference is rounding
SAME_WORK = 1e-6  # Share by which the tokens of two steps may differ: rounding


class Compared(NamedTuple):
    """One of the results."""

    name: str
    kind: Kind
    outcome: ResultOutcome
    prediction: Prediction | None = None
    """Where it was predicted: what the chance of being faster rests on."""
    id: str | None = None
    """Where it is saved."""


class ComparedFigure(Value):
    """A figure of one result, and how it differs from the first's."""

    value: float
    """The figure."""
    low: float | None
    """One run in ten is below; null: no range is known."""
    high: float | None
    """One run in ten is above."""
    difference: float | None
    """Less that of the first; null: the first has none."""
    percent: float | None
    """The same as a share of the first's, %; null: that is 0 or not known."""
    verdict: Literal["better", "worse", "same"] | None
    """Null where neither less nor more is better."""


class Row(Value):
    """One figure of all results."""

    name: str
    """Key of the figure, part or phase."""
    cells: tuple[ComparedFigure | None, ...]
    """In the order of the results; null: not known."""


class Side(Value):
    """One of the results as the bars show it."""

    id: str | None
    """Where it is saved; null: it is not."""
    name: str
    """What the user calls it."""
    kind: Kind
    """Where its numbers come from."""
    framework: str | None
    """Training framework."""
    degrees: dict[str, int]
    """Parallel degrees above 1."""
    fits: bool | None
    """The peak is within the GPU's memory."""
    step_s: float
    """Length of its bar."""
    chance_faster: float | None
    """That its real step is shorter than the first's; null: it is the first, or not predicted, or other work."""


class ResultComparison(Value):
    """Results beside each other."""

    sides: tuple[Side, ...]
    """In the order asked for; the first is what the others are compared with."""
    scale_s: float
    """The longest step: the end of the one scale."""
    figures: tuple[Row, ...]
    """Figures that at least one result has."""
    classes: tuple[Row, ...]
    """Seconds of the step by class; null: not told apart."""
    parts: tuple[Row, ...]
    """Seconds of the step by part; null: not told apart."""
    phases: tuple[Row, ...]
    """Seconds of the step by phase; of what has no phases, all of it is `other`."""
    notices: tuple[dict[str, object], ...]
    """What to know of the comparison: code, level, message, hint."""


def compare_outcomes(items: Sequence[Compared], language: str = "en") -> ResultComparison:
    """Every figure of every result, and its difference to the first's. [A31]"""
    outcomes = [item.outcome for item in items]
    return ResultComparison(
        sides=tuple(_build_side(item, items[0]) for item in items),
        scale_s=max(outcome.step_s for outcome in outcomes),
        figures=_build_rows(FIGURES, [outcome.figures for outcome in outcomes]),
        classes=_build_seconds_rows((*CLASSES, OTHER), [outcome.classes_s for outcome in outcomes]),
        parts=_build_seconds_rows(PARTS, [outcome.parts_s for outcome in outcomes]),
        phases=_build_seconds_rows(
            (*PHASES, OTHER), [outcome.phases_s or {OTHER: outcome.step_s} for outcome in outcomes]
        ),
        notices=tuple(notice.as_dict(language) for notice in _collect_notices(items)),
    )


def _build_rows(better: Mapping[str, Better | None], results: Sequence[Mapping[str, FigureRange]]) -> tuple[Row, ...]:
    """A row for each figure that at least one of the results has; `better`: figures in their order."""
    rows = []
    for name, direction in better.items():
        figures = [result.get(name) for result in results]
        if any(figure is not None for figure in figures):
            cells = [None if figure is None else _build_cell(figure, figures[0], direction) for figure in figures]
            rows.append(Row(name=name, cells=tuple(cells)))
    return tuple(rows)


def _build_seconds_rows(names: Sequence[str], results: Sequence[Mapping[str, float]]) -> tuple[Row, ...]:
    """Rows of seconds, of which less is better; those that are 0 in all results are left out."""
    shown = [name for name in names if any(result.get(name) for result in results)]
    figures = [{name: FigureRange(value=seconds) for name, seconds in result.items()} for result in results]
    return _build_rows(dict.fromkeys(shown, "less"), figures)


def _build_cell(figure: FigureRange, first: FigureRange | None, better: Better | None) -> ComparedFigure:
    ends = {"value": figure.value, "low": figure.low, "high": figure.high}
    if first is None:
        return ComparedFigure(**ends, difference=None, percent=None, verdict=None)
    difference = figure.value - first.value
    if abs(difference) <= NOISE * abs(first.value):
        difference = 0.0
    percent = 100.0 * difference / first.value if first.value else None
    verdict: Literal["better", "worse", "same"] | None = None
    if better is not None:
        verdict = "same" if not difference else "better" if (difference < 0) == (better == "less") else "worse"
    return ComparedFigure(**ends, difference=difference, percent=percent, verdict=verdict)


def _build_side(item: Compared, first: Compared) -> Side:
    outcome = item.outcome
    return Side(
        id=item.id,
        name=item.name,
        kind=item.kind,
        framework=outcome.framework,
        degrees=outcome.degrees,
        fits=outcome.fits,
        step_s=outcome.step_s,
        chance_faster=None if item is first else _estimate_chance(item, first),
    )


def _estimate_chance(item: Compared, first: Compared) -> float | None:
    """Chance that the step is shorter than the first's, where both are predicted and do the same work. [W2]"""
    if item.prediction is None or first.prediction is None or not _is_same_work(item, first):
        return None
    return estimate_win_probability(item.prediction, first.prediction)


def _count_tokens(item: Compared) -> float | None:
    """Tokens of a step."""
    rate = item.outcome.figures.get("tokens_per_s")
    return None if rate is None else rate.value * item.outcome.step_s


def _is_same_work(first: Compared, second: Compared) -> bool:
    a, b = _count_tokens(first), _count_tokens(second)
    return a is None or b is None or abs(a - b) <= SAME_WORK * max(a, b)


def _collect_notices(items: Sequence[Compared]) -> list[Notice]:
    """That steps do not do the same work, and that one does not fit."""
    unlike = [item.name for item in items[1:] if item.kind == "predicted" and not _is_same_work(item, items[0])]
    notices = []
    if unlike:
        params = {"names": unlike[:5], "first": items[0].name}
        notices.append(Notice(code="compare_other_work", level="warning", params=params))
    full = [item.name for item in items if item.outcome.fits is False]
    if full:
        notices.append(Notice(code="compare_not_fitting", level="warning", params={"names": full[:5]}))
    return notices
