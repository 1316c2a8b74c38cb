"""Scenario in, ranked Plans out.

`crosszone.plan(scenario)` is `crosszone.plan.planner.plan(scenario)`: the folder answers to its name, like `predict`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crosszone.plan.plan import Plans


class _Plan(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Plans:
        from crosszone.plan.planner import plan

        return plan(*args, **kwargs)


sys.modules[__name__].__class__ = _Plan
