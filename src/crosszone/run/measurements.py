"""Measured parts: which parts of a prediction a trainer can tell apart, so that like is set beside like.

    group_predicted_parts(prediction, framework)["communication"].seconds, .covers

A trainer sees the time between two moments, not why it passed. Where an exchange runs inside a forward or backward pass
(sharded weights, tensor parallelism) it is part of the pass; only what a trainer waits for outside of them is told as
communication. So the parts of a prediction are added up in the same way before the two are compared.

Steps: which steps of a run count, and what is typical of them.

    steady, warm = split_warm_up(rows)                       # without those in which a start warms up
    compute_typical(average_periods(steady, find_period(prediction)))["communication"]

Drift: whether a series of measured seconds has left what was predicted, and since when.

    level = find_level(seconds)                   # the newest level, where it began, and the one before it
    level.now, level.start, level.before

A change of level counts when all three hold (so that noise does not): the levels differ by `MIN_RATIO`, by
`MATERIAL_SHARE` of the predicted step, and by `MIN_STANDARD_ERRORS` standard errors of the difference of two medians.
Levels are medians and their noise is the median distance from them, so single steps that took long change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosszone.predict.breakdown import COMPUTE, ORDER
from crosszone.predict.prediction import Prediction

# Parts of a step that can be measured; those of `run/metrics.py` without their unit.
NAMES = ("compute", "communication", "input", "waiting", "other")
# Exchanges of each trainer that are waited for outside the passes.
OUTSIDE_PASSES = {
    "ddp": ("gradients", "local_update"),
    "horovod": ("gradients", "local_update"),
    "megatron": ("gradients",),
    "fsdp": ("local_update",),
    "torchft": ("local_update",),
    "deepspeed": (),
}
# The same of DeepSpeed's pipeline: its sends wait for their neighbours, so bubbles are in them.
DEEPSPEED_PIPELINE = ("pipeline", "bubble", "gradients")


@dataclass(frozen=True, kw_only=True)
class PredictedPart:
    """What is expected of a part that can be measured."""

    seconds: float
    covers: tuple[str, ...]
    """The prediction's own parts in it."""


def map_covered_parts(framework: str, *, pipelined: bool) -> dict[str, tuple[str, ...]]:
    """The prediction's parts in each part that can be measured; every one is in one of them."""
    is_deepspeed_pipeline = framework == "deepspeed" and pipelined
    outside_passes = DEEPSPEED_PIPELINE if is_deepspeed_pipeline else OUTSIDE_PASSES.get(framework, ())
    # Replicas wait for the slowest of them to exchange, so its jitter counts as communication.
    communication = (*outside_passes, "jitter") if "gradients" in outside_passes else outside_passes
    waiting = ("bubble", "pipeline") if pipelined and not is_deepspeed_pipeline else ()
    other = tuple(part for part in ("fixed", "jitter") if part not in communication)
    assigned = {*communication, *waiting, *other}
    parts = {"communication": communication, "input": (), "waiting": waiting, "other": other}
    return {"compute": tuple(part for part in ORDER if part not in assigned), **parts}


def group_predicted_parts(prediction: Prediction, framework: str) -> dict[str, PredictedPart]:
    """What is expected of each part that can be measured; they add up to the step."""
    seconds = prediction.breakdown_s
    return {
        name: PredictedPart(
            seconds=sum(seconds.get(part, 0.0) for part in parts),
            covers=tuple(part for part in parts if seconds.get(part, 0.0) > 0),
        )
        for name, parts in map_covered_parts(framework, pipelined=prediction.strategy.get("pp", 1) > 1).items()
    }


def is_pure(covers: tuple[str, ...]) -> bool:
    """The part is compute alone: no communication runs in it."""
    return all(part in (*COMPUTE, "host") for part in covers)


# First steps of every start that are left out: memory is taken, kernels are chosen, buckets are arranged.
WARM_UP = 3
Row = Mapping[str, Any]  # A step as `run/metrics.py` gives it


def split_warm_up(rows: Sequence[Row]) -> tuple[list[Row], set[int]]:
    """The steps that count, and the numbers of those in which a start warmed up."""
    warm: set[int] = set()
    counts: dict[Any, int] = {}
    steady = []
    from_start = not rows or rows[0]["step"] <= 1 or rows[0].get("start", 0) > 0
    for row in rows:
        start = row.get("start", 0)
        counts[start] = counts.get(start, 0) + 1
        # Rows that begin in the middle of a start do not have its first steps.
        has_first_steps = from_start or start != rows[0].get("start", 0)
        if has_first_steps and counts[start] <= WARM_UP:
            warm.add(row["step"])
        else:
            steady.append(row)
    return steady, warm


def average_periods(rows: Sequence[Row], every: int) -> list[Row]:
    """Rows of `every` steps each, mean of them; only where all of those steps are there."""
    if every == 1:
        return list(rows)
    blocks: dict[int, list[Row]] = {}
    for row in rows:
        blocks.setdefault((row["step"] - 1) // every, []).append(row)
    return [_average_rows(block) for block in blocks.values() if len(block) == every]


def compute_typical(rows: Sequence[Row]) -> dict[str, float]:
    """Step and parts: the mean of the middle half of the steps by length, so that the parts add up."""
    if not rows:
        return {}
    ordered = sorted(rows, key=lambda row: row["step_s"])
    edge = len(ordered) // 4
    middle = ordered[edge : len(ordered) - edge]
    average = _average_rows(middle)
    return {"step": average["step_s"], **{name: average["parts"][f"{name}_s"] for name in NAMES}}


def _average_rows(rows: Sequence[Row]) -> Row:
    parts = {f"{name}_s": fmean(row["parts"][f"{name}_s"] for row in rows) for name in NAMES}
    step_s = fmean(row["step_s"] for row in rows)
    tokens = [row["tokens"] for row in rows if row.get("tokens")]
    rate = {"tokens_per_s": fmean(tokens) / step_s if tokens and step_s > 0 else None}
    return {**rows[0], **rate, "step_s": step_s, "parts": parts}


def find_period(prediction: Prediction) -> int:
    """Steps from one exchange between zones to the next: 1, but for local updates."""
    local = prediction.strategy.get("local_update")
    return max(1, local["steps"] // local["fragments"]) if local else 1


WINDOW = 20  # Newest steps that tell the present level
SEARCHED_STEPS = 200  # Steps that are searched for a change
COARSE_STRIDE = 4  # Places between two that are tried before the best is looked for closely
MIN_STEPS = 5  # Steps on each side of a change
MIN_RATIO = 1.2  # Ratio by which two levels must differ
MATERIAL_SHARE = 0.05  # Share of the predicted step by which a part must differ to count
# Standard errors by which two levels must differ: many places are tried, so it is more than the usual two.
MIN_STANDARD_ERRORS = 6.0
SIGMA = 1.4826  # Standard deviation over median distance from the median, of normal noise
MEDIAN_ERROR = 1.2533  # Standard error of a median over that of a mean, of normal noise
Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SeriesLevel:
    """Where a series stands."""

    now: float
    """Median of the newest steps of the present level."""
    spread: float
    """Standard deviation of one step about it."""
    start: int
    """Place in the series where the present level begins; 0: it never changed."""
    before: float | None
    """The level before; None: it never changed."""
    count: int
    """Steps that `now` rests on."""

    @property
    def error(self) -> float:
        """Standard error of `now`."""
        return MEDIAN_ERROR * self.spread / math.sqrt(self.count)


def find_level(series: Sequence[float], *, material: float) -> SeriesLevel:
    """The newest level of a series that is not empty; `material`: seconds below which nothing counts as a change."""
    values = np.asarray(series, dtype=float)
    begin = max(0, len(values) - SEARCHED_STEPS)
    start, before = begin, None
    while (change := _find_change(values[start:], material)) is not None:
        before = float(np.median(values[start : start + change]))
        start += change
    newest = values[max(start, len(values) - WINDOW) :]
    present = float(np.median(newest))
    return SeriesLevel(
        now=present,
        spread=SIGMA * float(np.median(np.abs(newest - present))),
        start=0 if before is None else start,
        before=before,
        count=len(newest),
    )


def _find_change(values: Numbers, material: float) -> int | None:
    """Place where the level of a series changes; None: the two medians do not differ enough."""
    count = len(values)
    if count < 2 * MIN_STEPS or float(np.ptp(values)) <= material:
        return None
    first_place, last_place = MIN_STEPS, count - MIN_STEPS

    def compute_cost(at: int) -> float:
        return _sum_distances(values[:at]) + _sum_distances(values[at:])

    coarse_place = min(range(first_place, last_place + 1, COARSE_STRIDE), key=compute_cost)
    place = min(
        range(max(first_place, coarse_place - COARSE_STRIDE), min(last_place, coarse_place + COARSE_STRIDE) + 1),
        key=compute_cost,
    )
    first, second = values[:place], values[place:]
    levels = float(np.median(first)), float(np.median(second))
    difference = abs(levels[1] - levels[0])
    if difference <= material or max(levels) < MIN_RATIO * min(levels):
        return None
    residuals = np.concatenate([first - levels[0], second - levels[1]])
    noise = SIGMA * float(np.median(np.abs(residuals)))
    error = MEDIAN_ERROR * noise * math.sqrt(1 / len(first) + 1 / len(second))
    return place if difference > MIN_STANDARD_ERRORS * error else None


def _sum_distances(values: Numbers) -> float:
    """Sum of distances from the median."""
    return float(np.abs(values - np.median(values)).sum())
