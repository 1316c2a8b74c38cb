"""Answer: the plans of a scenario file with every notice on it, the same for every surface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.scenario import Loaded, Scenario, scenario_notices
from crosszone.inputs.summary import few_alike
from crosszone.plan.comparison import compare_predictions, estimate_win_probability
from crosszone.plan.crossover import Crossover, find_crossover
from crosszone.plan.plan import Comparison, Plan, Plans, apply_plan
from crosszone.plan.planner import plan
from crosszone.text import DEFAULT_LANGUAGE

PlanSelector = Callable[[Plans], Plan]  # Which plan of the answer is asked about


def plan_loaded(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    why: PlanSelector | None = None,
    crossover: bool = False,
    **how: Any,
) -> Plans:
    """Plan a scenario that was read from a file: what was assumed on the way is told with its line.

    `why` picks a plan that is then set against the best; `crossover` also looks for the rate between zones at which
    local updates begin to win; `how` goes to `plan`.
    """
    scenario, document = loaded.scenario, loaded.document
    zones = len(scenario.cluster.zones)
    if crossover and zones < 2:
        raise InvalidError(Notice(code="crossover_one_zone", field="cluster.zones", value=zones))
    known = few_alike([document.placed(one) for one in (*loaded.notices, *scenario_notices(scenario))])
    found = plan(scenario, language=language, notices=known, **how)
    flip = _find_crossover(scenario, found) if crossover else None
    against = None if why is None else compare_with_best(select_best(found), why(found))
    return found.model_copy(update={"why": against, "crossover": flip})


def select_best(found: Plans) -> Plan:
    """The plan to take: the first synchronous one, or where none fits the first with local updates."""
    return (*found.plans, *found.local_updates)[0]


def compare_with_best(best: Plan, other: Plan) -> Comparison:
    """What makes another plan differ from the best."""
    waterfall = dict(compare_predictions(best.prediction, other.prediction))
    chance = estimate_win_probability(best.prediction, other.prediction)
    return Comparison(**waterfall, rank=other.rank, kind=other.kind, chance_best_is_faster=chance)


def _find_crossover(scenario: Scenario, found: Plans) -> Crossover | None:
    """Where the best synchronous plan and the best one with local updates are equally fast; None: one is missing."""
    if not found.plans or not found.local_updates:
        return None
    return find_crossover(scenario, apply_plan(scenario, found.plans[0]), apply_plan(scenario, found.local_updates[0]))
