"""Front: plans of which no other is both faster and cheaper."""

from __future__ import annotations

from collections.abc import Callable

from crosszone.plan.best import Front
from crosszone.plan.objectives import per_step
from crosszone.plan.plan import Point
from crosszone.plan.problem import Problem
from crosszone.plan.search import Search
from crosszone.plan.shapes import WIDE


def front_of(
    problem: Problem, *, safe: bool, budget_s: float | None = None, cancelled: Callable[[], bool] | None = None
) -> list[Point]:
    """Time against cost, fastest first; empty where a price is not known."""
    best = Front(top=1)
    search = Search(problem, top=1, best=best, safe=safe, breadth=WIDE, budget_s=budget_s, cancelled=cancelled)
    search.run()
    points = []
    for step, one in best.ranked():
        usd, _ = per_step(one.predictor)
        if usd is None:
            return []
        points.append(
            Point(
                framework=one.framework.name,
                strategy=one.predictor.strategy,
                placement=one.placement,
                gpus=one.shape.gpus,
                step_s=step,
                usd_per_step=usd,
            )
        )
    kept: list[Point] = []
    for point in points:  # fastest first: each further one must be cheaper
        if not kept or point.usd_per_step < kept[-1].usd_per_step:
            kept.append(point)
    return kept
