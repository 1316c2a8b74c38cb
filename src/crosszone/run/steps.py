"""Steps: which steps of a run count, and what is typical of them.

steady, warm = split(rows)                       # without those in which a start warms up
typical(averaged(steady, period_of(prediction)))["communication"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from crosszone.predict.prediction import Prediction
from crosszone.run.measured_parts import NAMES

WARM_UP = 3
"""First steps of every start that are left out: memory is taken, kernels are chosen, buckets are arranged."""
Row = Mapping[str, Any]
"""A step as `run/metrics.py` gives it."""


def split(rows: Sequence[Row]) -> tuple[list[Row], set[int]]:
    """The steps that count, and the numbers of those in which a start warmed up."""
    warm: set[int] = set()
    counts: dict[Any, int] = {}
    steady = []
    whole = not rows or rows[0]["step"] <= 1 or rows[0].get("start", 0) > 0
    for row in rows:
        start = row.get("start", 0)
        counts[start] = counts.get(start, 0) + 1
        begun = whole or start != rows[0].get("start", 0)  # else its first steps are not among these rows
        if begun and counts[start] <= WARM_UP:
            warm.add(row["step"])
        else:
            steady.append(row)
    return steady, warm


def averaged(rows: Sequence[Row], every: int) -> list[Row]:
    """Rows of `every` steps each, mean of them; only where all of those steps are there."""
    if every == 1:
        return list(rows)
    blocks: dict[int, list[Row]] = {}
    for row in rows:
        blocks.setdefault((row["step"] - 1) // every, []).append(row)
    return [_mean(block) for block in blocks.values() if len(block) == every]


def typical(rows: Sequence[Row]) -> dict[str, float]:
    """Step and parts: the mean of the middle half of the steps by length, so that the parts add up."""
    if not rows:
        return {}
    ordered = sorted(rows, key=lambda row: row["step_s"])
    edge = len(ordered) // 4
    middle = ordered[edge : len(ordered) - edge]
    found = {name: fmean(row["parts"][f"{name}_s"] for row in middle) for name in NAMES}
    return {"step": fmean(row["step_s"] for row in middle), **found}


def _mean(rows: Sequence[Row]) -> Row:
    parts = {f"{name}_s": fmean(row["parts"][f"{name}_s"] for row in rows) for name in NAMES}
    step_s = fmean(row["step_s"] for row in rows)
    tokens = [row["tokens"] for row in rows if row.get("tokens")]
    rate = {"tokens_per_s": fmean(tokens) / step_s if tokens and step_s > 0 else None}
    return {**rows[0], **rate, "step_s": step_s, "parts": parts}


def period_of(prediction: Prediction) -> int:
    """Steps from one exchange between zones to the next: 1, but for local updates."""
    local = prediction.strategy.get("local_update")
    return max(1, local["steps"] // local["fragments"]) if local else 1
