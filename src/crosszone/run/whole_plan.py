"""Whole plan: the best plan in which every process of a scenario takes part.

whole_plan(scenario, ranks=4)       -> Plan; `IllegalError` says why there is none
"""

from __future__ import annotations

from collections.abc import Iterator

from crosszone.errors import IllegalError, InvalidError, Notice
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.plan.plan import Plan
from crosszone.plan.planner import plan

TOP = 20
"""Plans of a free search among which one that uses every process is looked for first."""


def whole_plan(scenario: Scenario, ranks: int, language: str = "en") -> Plan:
    """The fastest plan of so many ranks; what the scenario's strategy names is kept.

    A free search may leave machines idle where that is faster; whoever chose them wants them all. So degrees whose
    product is the number of processes are tried one after the other where none of its plans uses all.
    """
    found = plan(scenario, top=TOP, local_updates=False, language=language)
    whole = [one for one in found.plans if not one.idle]
    if whole:
        return whole[0]
    reason = found.plans[0].idle[0].reason["message"]
    for degrees in _degrees(scenario, ranks):
        pinned = (scenario.strategy or Strategy()).replace(**degrees)
        try:
            best = plan(scenario.replace(strategy=pinned), top=1, local_updates=False, language=language).plans
        except (IllegalError, InvalidError) as error:
            reason = error.notices[0].message(language)
            continue
        whole += [one for one in best if not one.idle]
    if not whole:
        params = {"ranks": ranks, "reason": reason}
        raise IllegalError(Notice(code="task_environments_idle", field="distributedConfig.nodeIds", params=params))
    return min(whole, key=lambda one: one.prediction.step_time_s.expected)


def _degrees(scenario: Scenario, ranks: int) -> Iterator[dict[str, int]]:
    """Data, pipeline and tensor degrees that make up the ranks and could be legal; those that are given stay."""
    given = scenario.strategy.pinned if scenario.strategy else ()
    widest = min(group.gpus for _, group in scenario.cluster.groups())
    for tp in _divisors(ranks, widest):
        for pp in _divisors(ranks // tp, scenario.model.layers):
            found = {"tp": tp, "pp": pp, "dp": ranks // tp // pp}
            if all(getattr(scenario.strategy, name) == value for name, value in found.items() if name in given):
                yield found


def _divisors(number: int, most: int) -> list[int]:
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]
