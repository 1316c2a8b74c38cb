"""Scenario and strategy in, Prediction out.

`crosszone.predict(scenario)` is `crosszone.predict.predict.predict(scenario)`: the folder answers to its name, for
Python puts a folder that was imported in the place of a function of the same name.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crosszone.predict.prediction import Prediction


class _Predict(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Prediction:
        # only when it is called: `import crosszone` must not load NumPy and the whole cost model
        from crosszone.predict.predict import predict

        return predict(*arguments, **options)


sys.modules[__name__].__class__ = _Predict
