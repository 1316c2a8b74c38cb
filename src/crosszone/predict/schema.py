"""Versioned JSON Schemas of the inputs, of Prediction and of Trace; `plan.schema` adds that of Plans and writes all."""

from __future__ import annotations

from crosszone.inputs.schema import ROOTS as INPUTS
from crosszone.inputs.value import Value
from crosszone.predict.prediction import Prediction
from crosszone.schedule.trace import Trace

ROOTS: dict[str, type[Value]] = {**INPUTS, "prediction": Prediction, "trace": Trace}
