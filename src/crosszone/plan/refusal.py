"""Refusal: why there is no plan: the rule that rules everything out, or the bytes that do not fit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crosszone.errors import Notice
from crosszone.inputs.rules import broken_rules, refusals
from crosszone.plan.search import Search


def no_plan(search: Search) -> list[Notice]:
    """Every reason that leaves nothing, the nearest to a plan first."""
    return [*_too_big(search), *_illegal(search)] or [Notice(code="no_plan", field="strategy")]


def _too_big(search: Search) -> Iterator[Notice]:
    """The strategy that comes nearest to fitting, with its byte budget."""
    nearest: tuple[float, int, int] | None = None
    for number, lacks in search.lacks:
        if len(lacks) and np.isfinite(lacks).any():
            at = int(np.argmin(lacks))
            if nearest is None or lacks[at] < nearest[0]:
                nearest = (float(lacks[at]), number, at)
    if nearest is None or nearest[0] <= 0:
        return
    _, number, shape = nearest
    one = search.leanest(number, shape)
    memory = one.predictor.memory()
    worst = memory.stages[memory.worst_stage]
    s = one.strategy
    parts = sorted(((name, value) for name, value in worst.parts.items() if value > 0.05), key=lambda part: -part[1])
    budget = " + ".join(f"{name} {value:.1f}" for name, value in parts)
    params = {
        "framework": one.framework.title,
        "gpu": worst.gpu,
        "needed": round(worst.total, 1),
        "limit": round(worst.limit, 1),
        "budget": budget,
        "degrees": f"tp {s.tp}, pp {s.pp}, dp {s.dp}, zero {s.zero}, micro_batch {s.micro_batch}",
        "means": f"recompute {s.recompute}, offload {s.offload}",
        "states_gib": round(sum(worst.parts[n] for n in ("weights", "gradients", "optimizer")), 1),
        "lacks": round((worst.total - worst.limit), 1),
    }
    yield Notice(code="nothing_fits", field="strategy", params=params)


def _illegal(search: Search) -> Iterator[Notice]:
    """Rules that the pinned strategy breaks, or that leave no value of a degree."""
    pinned, problem = search.problem.pinned, search.problem
    if any(np.isfinite(lacks).any() for _, lacks in search.lacks):
        return
    case = problem.case(pinned.settled(problem.cluster.gpus, problem.job.global_batch))
    broken = broken_rules(case) or [one for framework in problem.frameworks for one in refusals(case, framework)[:1]]
    told = [one for one in broken if one.field.split(".")[-1] in pinned.pinned or not pinned.pinned]
    yield from told or broken
