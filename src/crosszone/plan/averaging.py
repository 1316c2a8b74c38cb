"""Averaging: the best plans in which zones train on their own and average now and then. They change the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.strategy import LocalUpdate
from crosszone.inputs.value import parse
from crosszone.plan.candidate import Candidate
from crosszone.plan.problem import Problem
from crosszone.plan.search import Search

MOST_SIMULATED = 16
"""Strategies simulated at most: these plans stand beside the synchronous ones and need not be the very best."""


@cache
def variants() -> dict[str, LocalUpdate]:
    """Ways to average that are tried, by name (`local_update.yaml`)."""
    document = read_shipped("crosszone.plan", "local_update.yaml")
    named = document.value["variants"]
    return {name: parse(LocalUpdate, fields, document, at=("variants", name)) for name, fields in named.items()}


def local_update_plans(
    problem: Problem, *, safe: bool, budget_s: float | None = None, cancelled: Callable[[], bool] | None = None
) -> Iterator[tuple[Candidate, Search]]:
    """The fastest strategy with each way to average, with the search it comes from, fastest first; none fits: nothing.

    Inside the zones nothing depends on how they average, so one search finds the strategy for all ways.
    """
    if len(problem.cluster.zones) < 2 or problem.pinned.local_update is not None:
        return
    ways = list(variants().values())
    averaged = problem.averaging(ways[0])
    if not averaged.frameworks:
        return
    search = Search(averaged, top=1, safe=safe, most_simulated=MOST_SIMULATED, budget_s=budget_s, cancelled=cancelled)
    search.run()
    ranked = search.best.ranked()
    if not ranked:
        return
    _, best = ranked[0]
    others = [best, *(replace(best, problem=problem.averaging(way)) for way in ways[1:])]
    for one in sorted(others, key=lambda candidate: candidate.step_s):
        yield one, search
