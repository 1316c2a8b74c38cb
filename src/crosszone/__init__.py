"""CrossZone: plan, predict and start LLM training on GPUs that do not all sit in one place.

    import crosszone

    scenario = crosszone.load_scenario("examples/three-cities.yaml")
    crosszone.predict(scenario).step_time_s        # low, expected, high
    crosszone.plan(scenario).plans[0].strategy     # the best one
    crosszone.what_if(scenario, {"cluster.links[*].gbps": 40}).gain

Names are imported when they are first used, so that `import crosszone` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from crosszone.analyse.sweep import sweep
    from crosszone.analyse.what_if import what_if
    from crosszone.errors import CrossZoneError, InputError, Notice
    from crosszone.inputs.catalogue import Catalogue, catalogue
    from crosszone.inputs.cluster import Cluster
    from crosszone.inputs.gpu import Gpu
    from crosszone.inputs.job import Job
    from crosszone.inputs.model import Model
    from crosszone.inputs.parameters import parameters
    from crosszone.inputs.placement import Placement
    from crosszone.inputs.region import Region
    from crosszone.inputs.scenario import Scenario, load_scenario
    from crosszone.inputs.strategy import Strategy
    from crosszone.plan.plan import Plan, Plans
    from crosszone.plan.planner import plan
    from crosszone.predict.predict import predict
    from crosszone.predict.prediction import Prediction

_WHERE = {
    "Catalogue": "crosszone.inputs.catalogue",
    "Cluster": "crosszone.inputs.cluster",
    "CrossZoneError": "crosszone.errors",
    "Gpu": "crosszone.inputs.gpu",
    "InputError": "crosszone.errors",
    "Job": "crosszone.inputs.job",
    "Model": "crosszone.inputs.model",
    "Notice": "crosszone.errors",
    "Placement": "crosszone.inputs.placement",
    "Plan": "crosszone.plan.plan",
    "Plans": "crosszone.plan.plan",
    "Prediction": "crosszone.predict.prediction",
    "Region": "crosszone.inputs.region",
    "Scenario": "crosszone.inputs.scenario",
    "Strategy": "crosszone.inputs.strategy",
    "catalogue": "crosszone.inputs.catalogue",
    "load_scenario": "crosszone.inputs.scenario",
    "parameters": "crosszone.inputs.parameters",
    "plan": "crosszone.plan.planner",
    "predict": "crosszone.predict.predict",
    "sweep": "crosszone.analyse.sweep",
    "what_if": "crosszone.analyse.what_if",
}

__all__ = [
    "Catalogue",
    "Cluster",
    "CrossZoneError",
    "Gpu",
    "InputError",
    "Job",
    "Model",
    "Notice",
    "Placement",
    "Plan",
    "Plans",
    "Prediction",
    "Region",
    "Scenario",
    "Strategy",
    "__version__",
    "catalogue",
    "load_scenario",
    "parameters",
    "plan",
    "predict",
    "sweep",
    "what_if",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'crosszone' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
