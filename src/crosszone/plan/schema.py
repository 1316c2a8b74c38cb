"""Versioned JSON Schemas of everything: the inputs', those of Prediction and Trace, and that of Plans.

`python -m crosszone.plan.schema docs` writes them all, and the table of every key of a scenario.
"""

from __future__ import annotations

import sys
from pathlib import Path

from crosszone.inputs.schema import ROOTS as INPUTS
from crosszone.inputs.schema import write_schemas
from crosszone.inputs.value import Value
from crosszone.plan.plan import Plans
from crosszone.predict.prediction import Prediction
from crosszone.schedule.trace import Trace

ROOTS: dict[str, type[Value]] = {**INPUTS, "prediction": Prediction, "trace": Trace, "plans": Plans}


if __name__ == "__main__":
    for path in write_schemas(Path(sys.argv[1]), ROOTS):
        print(path)
