"""Outcome: what a result says of a step and a run, in one shape for what was predicted, taken from a sheet or measured.

build_outcome(prediction).figures["step_time_s"].value
compute_trace_figures(read_measured(text))[0].breakdown_s  # {"compute": 3.1, "communication": 0.4, "bubble": 0.9}
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from crosszone.analyse.what_if import sum_bytes_between_zones, sum_exposed_s
from crosszone.inputs.value import Count, Name, NotNegative, Positive, Value, find_nearest_names, refuse
from crosszone.predict.breakdown import COMMUNICATION, COMPUTE, HOST, ORDER
from crosszone.predict.prediction import Prediction
from crosszone.schedule.measured import MeasuredTimelines
from crosszone.schedule.timeline import COMPUTE as WORK
from crosszone.schedule.timeline import PHASES, Phase, Timeline, list_lane_totals, list_phases
from crosszone.schedule.timeline import measure_exposed_s as exposed_between

Kind = Literal["predicted", "sheet", "measured"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# What any step can be divided into, however little is known of it.
CLASSES = ("compute", "communication", "pipeline", "host")
OTHER = "other"  # What the parts leave open
# Parts of a step and the class of each: those of a prediction, and coarse ones for what was only measured.
CLASS_OF = {
    **dict.fromkeys(("compute", *COMPUTE), "compute"),
    **dict.fromkeys(("communication", *COMMUNICATION), "communication"),
    "bubble": "pipeline",
    **dict.fromkeys(HOST, "host"),
    OTHER: OTHER,
}
PARTS = ("compute", "communication", *ORDER, OTHER)
TOLERANCE = 0.01  # Share of a step by which its parts may exceed it: digits of a sheet
Share = Annotated[float, Field(strict=True, gt=0, le=1)]


class FigureRange(Value):
    """A figure, with its range where it is a prediction."""

    value: float
    """The figure."""
    low: float | None = None
    """One run in ten is below; null: it was measured or given."""
    high: float | None = None
    """One run in ten is above."""


class Figures(Value):
    """What is known of a run that was measured, or of a row of a sheet."""

    step_time_s: Positive
    """Time of one optimizer step, s."""
    tokens_per_s: Positive | None = None
    """Tokens of a step over its time."""
    mfu: Share | None = None
    """Model FLOPs over the dense peak."""
    memory_gib: Positive | None = None
    """Peak of the fullest GPU."""
    gpus: Count | None = None
    """GPUs in use."""
    framework: Name | None = None
    """Training framework."""
    days: Positive | None = None
    """Of the whole run."""
    usd: NotNegative | None = None
    """Of the whole run."""
    kwh: NotNegative | None = None
    """Of the whole run."""
    breakdown_s: Annotated[dict[str, NotNegative], Field(max_length=50)] = Field(default_factory=dict)
    """Parts of the step by name; what they leave of it is `other`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for part in self.breakdown_s:
            if part not in PARTS:
                suggestion = find_nearest_names(part, PARTS)[:1]
                raise refuse("not_one_of", part, at=("breakdown_s",), allowed=list(PARTS), nearest=suggestion)
        total = math.fsum(self.breakdown_s.values())
        if total > self.step_time_s * (1 + TOLERANCE):
            raise refuse("parts_over_step", total, at=("breakdown_s",), step_s=self.step_time_s)
        return self


class ResultOutcome(Value):
    """What a result says."""

    framework: str | None
    """Training framework; null: not known."""
    degrees: dict[str, int]
    """Parallel degrees above 1, of tp, pp, dp, cp, ep."""
    figures: dict[str, FigureRange]
    """By name; what is not known is left out."""
    fits: bool | None
    """The peak is within the GPU's memory; null: not known."""
    classes_s: dict[str, float]
    """Seconds of the step by class; they add up to it. What is not told apart is left out."""
    parts_s: dict[str, float]
    """Seconds of the step by part; they add up to it. What is not told apart is left out."""
    phases_s: dict[str, float]
    """Seconds from filling the pipeline to the end of the step; empty: not known."""

    @property
    def step_s(self) -> float:
        """The step."""
        return self.figures["step_time_s"].value


def build_outcome(prediction: Prediction, phases: Mapping[str, float] | None = None) -> ResultOutcome:
    """What a prediction says; `phases` are those of its timeline."""
    p, run = prediction, prediction.run
    ranges = {
        "step_time_s": p.step_time_s,
        "tokens_per_s": p.tokens_per_s,
        "tokens_per_s_per_gpu": p.tokens_per_s_per_gpu,
        "mfu": p.mfu,
        "memory_gib": p.memory_gib.peak,
        "days": run.days,
        "gpu_hours": run.gpu_hours,
        "usd": run.usd,
        "kwh": run.kwh,
        "co2_kg": run.co2_kg,
    }
    plain = {
        "gpus": float(p.gpus),
        "exposed_s": sum_exposed_s(p),
        "between_zones_gb": sum_bytes_between_zones(p) / 1e9,
        "memory_limit_gib": p.memory_gib.limit,
        "usd_egress": run.usd_egress,
    }
    degrees = {key: p.strategy.get(key) for key in ("tp", "pp", "dp", "cp", "ep")}
    return ResultOutcome(
        framework=p.framework,
        degrees={key: value for key, value in degrees.items() if isinstance(value, int) and value > 1},
        figures={
            key: FigureRange(value=triple.expected, low=triple.low, high=triple.high)
            for key, triple in ranges.items()
            if triple is not None
        }
        | {key: FigureRange(value=value) for key, value in plain.items() if value is not None},
        fits=p.memory_gib.fits,
        classes_s=_sum_classes(p.breakdown_s),
        parts_s=dict(p.breakdown_s),
        phases_s=dict(phases or {}),
    )


def build_measured_outcome(figures: Figures, phases: Mapping[str, float] | None = None) -> ResultOutcome:
    """What a measured run or a row of a sheet says. [A31]

    What the parts leave of the step is `other`, so that the bars of all results add up to their steps.
    """
    names = ("step_time_s", "tokens_per_s", "mfu", "memory_gib", "gpus", "days", "usd", "kwh")
    stated = {name: getattr(figures, name) for name in names}
    if figures.tokens_per_s is not None and figures.gpus is not None:
        stated["tokens_per_s_per_gpu"] = figures.tokens_per_s / figures.gpus
    remainder = max(0.0, figures.step_time_s - math.fsum(figures.breakdown_s.values()))
    parts = dict(figures.breakdown_s)
    if remainder:
        parts[OTHER] = parts.get(OTHER, 0.0) + remainder
    return ResultOutcome(
        framework=figures.framework,
        degrees={},
        figures={key: FigureRange(value=float(value)) for key, value in stated.items() if value is not None},
        fits=None,
        classes_s=_sum_classes(parts),
        parts_s=parts,
        phases_s=dict(phases or {}),
    )


def compute_trace_figures(measured: MeasuredTimelines) -> tuple[Figures, tuple[Phase, ...]]:
    """The figures of a trace, and the phases of its step: of all steps, the one of median length. [A30]

    The average stage computes; of the rest, what passes while something communicates and no stage computes is
    communication, and what is left is waiting: the three add up to the step.
    """
    steps = sorted(measured.steps, key=lambda step: step.end_s - step.start_s)
    # of an even number the shorter of the two in the middle: one that was measured, no mean [A30]
    timeline, _ = measured.timeline(steps[(len(steps) - 1) // 2].step)
    step = timeline.step_s
    compute = math.fsum(row["seconds"] for row in list_lane_totals(timeline) if row["kind"] in WORK)
    communication = exposed_between(timeline, 0.0, step)
    waiting = max(0.0, step - compute - communication)
    parts = {"compute": compute, "communication": communication, "bubble": waiting}
    return Figures(step_time_s=step, breakdown_s=parts), list_phases(timeline)


def measure_phases(timeline: Timeline) -> dict[str, float]:
    """Seconds of each phase of a step."""
    return map_phase_seconds(list_phases(timeline))


def map_phase_seconds(phases: Sequence[Phase]) -> dict[str, float]:
    """Phases by name, in their order."""
    lasting = {phase.phase: phase.seconds for phase in phases}
    return {name: lasting.get(name, 0.0) for name in PHASES}


def build_headline(outcome: ResultOutcome) -> dict[str, Any]:
    """What a list shows of a result."""
    names = ("step_time_s", "tokens_per_s", "mfu", "memory_gib", "memory_limit_gib", "gpus", "days", "usd")
    figures = {key: outcome.figures[key].model_dump() if key in outcome.figures else None for key in names}
    return {**figures, "fits": outcome.fits, "framework": outcome.framework, "degrees": outcome.degrees}


def _sum_classes(parts: Mapping[str, float]) -> dict[str, float]:
    """Seconds by class, as `shares` of a prediction divides them. [V7]"""
    classes: dict[str, float] = defaultdict(float)
    for part, seconds in parts.items():
        classes[CLASS_OF.get(part, OTHER)] += seconds
    return {name: classes[name] for name in (*CLASSES, OTHER) if name in classes}
