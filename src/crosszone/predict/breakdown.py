"""Breakdown: what a step's time is made of, and which class of work takes most of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from crosszone.cost.record import named
from crosszone.predict.batch import cell, place_of_largest, row_of, scalar
from crosszone.predict.prediction import Bottleneck
from crosszone.predict.site import EXPECTED

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
ROUNDING = 1e-12  # A wait of a smaller share of the pipeline's span is what sums in another order differ by


def breakdown_of(p: Predictor) -> dict[str, float]:
    """Parts of the expected step in seconds; they add up to it. [V3]

    The stage that works longest for a micro-batch sets the pace: its parts times the micro-batches, what the pipeline
    waits (bubble; across zones: with perfect links), what sends between stages add (pipeline), then the step's tail.
    """
    t, row, bare = p.step.times, p.row, p.bare_row
    stage = pace_setter(p)
    m = named("micro_batches_of_replica", p.row_micro_batches)
    parts: dict[str, Any] = defaultdict(float)
    for name, values in [*t.cost.forward.items(), *t.cost.backward.items()]:
        parts[_NAMES.get(name, name)] += m * cell(values, row, stage)
    parts["sharding"] = m * cell(t.gathers, row, stage)
    parts = {name: named(f"breakdown_s.{name}", seconds) for name, seconds in parts.items()}
    sum_of_parts = sum(parts.values())
    spans = p.step.pipelines.span_s
    span = scalar(spans[row])
    pipeline = m * cell(t.sends + t.sends_back, row, stage) if bare is None else span - scalar(spans[bare])
    pipeline = named("breakdown_s.pipeline", pipeline)
    waits = span - sum_of_parts - pipeline
    last = last_updated(p)
    tail = {
        "bubble": waits if waits > ROUNDING * span else 0.0,
        "gradients": scalar(p.step.reduced_s[row]) - span,
        "optimizer": cell(t.update, row, last),
        "weights": cell(t.gather, row, last),
        "fixed": scalar(p.step.fixed_s[row]),
        "jitter": scalar(p.step.jitter_s[row]),
        "local_update": scalar(p.local_update_s[EXPECTED]),
    }
    parts |= {"pipeline": pipeline} | {name: named(f"breakdown_s.{name}", seconds) for name, seconds in tail.items()}
    return {name: parts[name] for name in ORDER}


def pace_setter(p: Predictor) -> Any:
    """The stage that works longest for a micro-batch."""
    return place_of_largest(row_of(p.step.times.forward + p.step.times.backward, p.row))


def last_updated(p: Predictor) -> Any:
    """The stage whose update and gather of the weights end last."""
    return place_of_largest(row_of(p.step.times.update + p.step.times.gather, p.row))


def bottleneck_of(breakdown: dict[str, float]) -> tuple[Bottleneck, dict[str, float]]:
    """The class that takes most of the step, and the share of each. [V7]"""
    total = named("step_time_s", sum(breakdown.values()))
    parts: dict[Bottleneck, tuple[str, ...]] = {
        "compute": COMPUTE,
        "communication": COMMUNICATION,
        "pipeline": ("bubble",),
        "host": HOST,
    }
    shares = {
        str(kind): named(f"shares.{kind}", sum(breakdown[name] for name in names) / total)
        for kind, names in parts.items()
    }
    return max(parts, key=lambda kind: float(shares[kind])), shares
