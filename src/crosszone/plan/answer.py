"""Answer: the plans of a scenario file with every notice on it, the same for every surface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.scenario import Loaded, Scenario, scenario_notices
from crosszone.inputs.summary import few_alike
from crosszone.plan.comparison import chance_faster, difference
from crosszone.plan.crossover import Crossover, flip_gbps
from crosszone.plan.plan import Comparison, Plan, Plans, filled
from crosszone.plan.planner import plan
from crosszone.text import DEFAULT_LANGUAGE

Asked = Callable[[Plans], Plan]  # Which plan of the answer is asked about


def answer(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    why: Asked | None = None,
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
    flip = _flip(scenario, found) if crossover else None
    against = None if why is None else compared(best_of(found), why(found))
    return found.model_copy(update={"why": against, "crossover": flip})


def best_of(found: Plans) -> Plan:
    """The plan to take: the first synchronous one, or where none fits the first with local updates."""
    return (*found.plans, *found.local_updates)[0]


def compared(best: Plan, other: Plan) -> Comparison:
    """What makes another plan differ from the best."""
    waterfall = dict(difference(best.prediction, other.prediction))
    chance = chance_faster(best.prediction, other.prediction)
    return Comparison(**waterfall, rank=other.rank, kind=other.kind, chance_best_is_faster=chance)


def _flip(scenario: Scenario, found: Plans) -> Crossover | None:
    """Where the best synchronous plan and the best one with local updates are equally fast; None: one is missing."""
    if not found.plans or not found.local_updates:
        return None
    return flip_gbps(scenario, filled(scenario, found.plans[0]), filled(scenario, found.local_updates[0]))
