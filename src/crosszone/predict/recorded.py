"""Recorded: a prediction computed once more with numbers that remember their arithmetic.

    found = record_prediction(p)
    found.prediction.run.days.expected  # a Recorded number: its value, and how it came about
    found.tape.names["exchange.reduce"]  # every result that has a name, [rows, stages]

The functions are those of every prediction; only what goes in is recorded: model, job and strategy, GPUs, links, stack,
coefficients. What the event simulation found goes in as it was found.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from crosszone.cost.record import Tape, recording
from crosszone.predict.batch import chunk_layers
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.predict.simulated import simulated_step

Columns = TypeVar("Columns")
GROUPS = ("model", "work", "gpu", "stack", "links")
"""Columns of a batch; their fields are recorded as `work.tp` and the like."""
KNOWN = ("profile", "slowest")
"""Parts that are as they were: no number comes of them but through the coefficients and the row that is looked at."""


@dataclass(frozen=True, kw_only=True)
class RecordedPrediction:
    """A prediction of recorded numbers, with everything that got a name on the way."""

    tape: Tape
    predictor: Predictor
    prediction: Prediction


def record_prediction(p: Predictor, *, all_branches: bool = False) -> RecordedPrediction:
    """The prediction of a placed strategy with recorded numbers; its values are those of `p.prediction()`."""
    pipelines = p.step.pipelines
    with recording(all_branches=all_branches) as tape:
        other = replace(p)
        other.parts.update({name: getattr(p, name) for name in KNOWN})
        batch = replace(p.batch, **{group: _leaves(tape, group, getattr(p.batch, group)) for group in GROUPS})
        k = _leaves(tape, "k", p.coefficients)
        outcome: dict[str, Any] = {
            name: tape.leaf(f"pipeline.{name}", getattr(pipelines, name)) for name in ("span_s", "ready_s")
        }
        other.parts["batch"], other.parts["coefficients"] = batch, k
        other.parts["memory_coefficients"] = _leaves(tape, "km", p.memory_coefficients)
        other.parts["step"] = simulated_step(batch, chunk_layers(p.case), p.strategy, k, replace(pipelines, **outcome))
        return RecordedPrediction(tape=tape, predictor=other, prediction=other.prediction())


def _leaves(tape: Tape, group: str, columns: Columns) -> Columns:
    recorded: dict[str, Any] = {
        f.name: tape.leaf(f"{group}.{f.name}", getattr(columns, f.name))
        for f in fields(columns)  # type: ignore[arg-type]
    }
    return replace(columns, **recorded)  # type: ignore[type-var]
