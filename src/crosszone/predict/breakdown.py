"""Breakdown: what a step's time is made of, and which class of work takes most of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from crosszone.predict.cells import cell, row_of
from crosszone.predict.prediction import Bottleneck
from crosszone.predict.site import EXPECTED
from crosszone.predict.step import before

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor

COMPUTE = ("matmul", "attention", "elementwise", "routing", "embedding", "head", "recompute", "optimizer")
COMMUNICATION = ("tensor", "context", "expert", "sharding", "pipeline", "gradients", "weights", "local_update")
HOST = ("host", "fixed", "jitter")
ORDER = (
    *COMPUTE[:-1],
    "host",
    *COMMUNICATION[:5],
    "bubble",
    "gradients",
    "weights",
    "optimizer",
    "local_update",
    "fixed",
    "jitter",
)
_NAMES = {"tp": "tensor", "cp": "context", "ep": "expert"}
ROUNDING = 1e-12
"""A wait of a smaller share of the pipeline's span is what sums in another order differ by."""


def breakdown_of(p: Predictor) -> dict[str, float]:
    """Parts of the expected step in seconds; they add up to it. [V3]

    The stage that works longest for a micro-batch sets the pace: its parts times the micro-batches, what the pipeline
    waits (bubble; across zones: with perfect links), what sends between stages add (pipeline), then the step's tail.
    """
    t, row, bare = p.step.times, p.row, p.bare_row
    stage = int(np.argmax(row_of(t.forward + t.backward, row)))
    m = p.row_micro_batches
    parts: dict[str, float] = defaultdict(float)
    for name, values in [*t.cost.forward.items(), *t.cost.backward.items()]:
        parts[_NAMES.get(name, name)] += m * cell(values, row, stage)
    parts["sharding"] = m * cell(t.gathers, row, stage)
    own = sum(parts.values())
    spans = p.step.pipelines.span_s
    if bare is None:
        sends = t.out * t.passed + t.into * before(t.passed_back)
        parts["pipeline"] = m * cell(sends, row, stage)
    else:
        parts["pipeline"] = float(spans[row] - spans[bare])
    waits = float(spans[row]) - own - parts["pipeline"]
    parts["bubble"] = waits if waits > ROUNDING * float(spans[row]) else 0.0
    parts["gradients"] = float(p.step.reduced_s[row] - spans[row])
    last = int(np.argmax(row_of(t.update + t.gather, row)))
    parts["optimizer"] = cell(t.update, row, last)
    parts["weights"] = cell(t.gather, row, last)
    parts["fixed"] = float(p.step.fixed_s[row])
    parts["jitter"] = float(p.step.jitter_s[row])
    parts["local_update"] = float(p.local_update_s[EXPECTED])
    return {name: parts[name] for name in ORDER}


def bottleneck_of(breakdown: dict[str, float]) -> tuple[Bottleneck, dict[str, float]]:
    """The class that takes most of the step, and the share of each. [V7]"""
    total = sum(breakdown.values())
    classes: dict[Bottleneck, float] = {
        "compute": sum(breakdown[name] for name in COMPUTE) / total,
        "communication": sum(breakdown[name] for name in COMMUNICATION) / total,
        "pipeline": breakdown["bubble"] / total,
        "host": sum(breakdown[name] for name in HOST) / total,
    }
    return max(classes, key=lambda name: classes[name]), {str(name): share for name, share in classes.items()}
