"""Breakdown: what a step's time is made of, and which class of work takes most of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from crosszone.cost.record import named
from crosszone.predict.batch import get_cell, get_scalar, place_of_largest, select_row
from crosszone.predict.placed_strategy import EXPECTED
from crosszone.predict.prediction import Bottleneck

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


def build_breakdown(p: Predictor) -> dict[str, float]:
    """Parts of the expected step in seconds; they add up to it. [V3]

    The stage that works longest for a micro-batch sets the pace: its parts times the micro-batches, what the pipeline
    waits (bubble; across zones: with perfect links), what sends between stages add (pipeline), then the step's tail.
    """
    t, row, without_wan = p.step.times, p.row, p.without_wan_row
    stage = find_slowest_stage(p)
    m = named("micro_batches_of_replica", p.row_micro_batches)
    parts: dict[str, Any] = defaultdict(float)
    for name, values in [*t.cost.forward.items(), *t.cost.backward.items()]:
        parts[_NAMES.get(name, name)] += m * get_cell(values, row, stage)
    parts["sharding"] = m * get_cell(t.gathers, row, stage)
    parts = {name: named(f"breakdown_s.{name}", seconds) for name, seconds in parts.items()}
    sum_of_parts = sum(parts.values())
    spans = p.step.pipelines.span_s
    span = get_scalar(spans[row])
    # across zones the row with perfect links tells bubble from sends; inside a zone sends are the sender's time
    pipeline = (
        m * get_cell(t.sends + t.sends_back, row, stage)
        if without_wan is None
        else span - get_scalar(spans[without_wan])
    )
    pipeline = named("breakdown_s.pipeline", pipeline)
    waits = span - sum_of_parts - pipeline
    last = find_last_updated_stage(p)
    tail = {
        "bubble": waits if waits > ROUNDING * span else 0.0,
        "gradients": get_scalar(p.step.reduced_s[row]) - span,
        "optimizer": get_cell(t.update, row, last),
        "weights": get_cell(t.gather, row, last),
        "fixed": get_scalar(p.step.fixed_s[row]),
        "jitter": get_scalar(p.step.jitter_s[row]),
        "local_update": get_scalar(p.local_update_s[EXPECTED]),
    }
    parts |= {"pipeline": pipeline} | {name: named(f"breakdown_s.{name}", seconds) for name, seconds in tail.items()}
    return {name: parts[name] for name in ORDER}


def find_slowest_stage(p: Predictor) -> Any:
    """The stage that works longest for a micro-batch."""
    return place_of_largest(select_row(p.step.times.forward + p.step.times.backward, p.row))


def find_last_updated_stage(p: Predictor) -> Any:
    """The stage whose update and gather of the weights end last."""
    return place_of_largest(select_row(p.step.times.update + p.step.times.gather, p.row))


def find_bottleneck(breakdown: dict[str, float]) -> tuple[Bottleneck, dict[str, float]]:
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
