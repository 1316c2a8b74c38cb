"""Refine: small changes to a good plan that the search leaves out: layers moved, stages and zones shifted, shares.

Each change is simulated; the best one is kept as long as there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from crosszone.errors import InputError
from crosszone.inputs.placement import tp_capacity
from crosszone.inputs.rules import framework_has_schedule, shards_work_equally
from crosszone.plan.candidate import Candidate
from crosszone.plan.layout import Chain, Layout
from crosszone.plan.objectives import value_of
from crosszone.plan.plan import Objective
from crosszone.predict.batch import chunk_layers

ROUNDS = 6
"""Changes made to one plan at most."""
LEAST_GAIN = 1e-4
"""Share of the value that a change must save."""


def refined(one: Candidate, objective: Objective, spent: Callable[[], bool]) -> tuple[Candidate, float, int]:
    """The plan after the changes that help, its value, and how many were tried."""
    best, value, tried = one, value_of(one, objective), 0
    for _ in range(ROUNDS):
        found: tuple[float, Candidate] | None = None
        for other in (*_options(best), *_layers(best), *_layouts(best), *_shares(best)):
            if spent():
                return best, value, tried
            tried += 1
            beat = value * (1 - LEAST_GAIN) if found is None else found[0]
            rated = _rated(other, objective, beat)
            if rated is not None and rated < beat:
                found = (rated, other)
        if found is None:
            break
        value, best = found
    return best, value, tried


def _rated(one: Candidate, objective: Objective, beat: float) -> float | None:
    """Its value; None where it is not legal, does not fit or cannot be below what it must beat."""
    case = one.problem.case(one.strategy)
    if any(True for rule in (shards_work_equally, framework_has_schedule) for _ in rule(case, one.framework)):
        return None
    try:
        one.predictor.site.check()
        share = one.scores.setting.memory_share
        fits = all(stage.total <= share * stage.limit for stage in one.predictor.memory().stages)
        if not fits or (objective == "time" and not one.may_beat(beat)):
            return None
        return value_of(one, objective)
    except InputError:
        return None


def _options(one: Candidate) -> Iterator[Candidate]:
    """Less offload, less recomputation: a search that ended early may have missed them."""
    for name, values in (("offload", ("none",)), ("recompute", ("none", "selective"))):
        now = getattr(one.strategy, name)
        able = getattr(one.framework, name)
        for value in values:
            if now != value and value in able and not one.problem.is_pinned(name):
                yield replace(one, options=one.options | {name: value})


def _layers(one: Candidate) -> Iterator[Candidate]:
    """A layer moved from the slowest stage to the quickest, or to a neighbour."""
    if one.shape.pp == 1 or one.pipe.chunks > 1 or one.problem.is_pinned("layers_per_stage"):
        return
    counts = chunk_layers(one.predictor.case)
    times = one.predictor.step.times
    work = (times.forward + times.backward).max(axis=0)
    slow = int(np.argmax(work))
    if counts[slow] < 2:
        return
    takers = {int(np.argmin(work)), slow - 1, slow + 1} & set(range(len(counts))) - {slow}
    for taker in sorted(takers):
        moved = list(counts)
        moved[slow] -= 1
        moved[taker] += 1
        yield replace(one, layers_per_stage=tuple(moved))


def _layouts(one: Candidate) -> Iterator[Candidate]:
    """A stage shifted to the next node group, the way through the groups turned round or two of them swapped."""
    layout = one.shape.layout
    for number, chain in enumerate(layout.chains):
        path = chain.path
        if len(path) == 1:
            continue
        ways = [path[::-1]]
        for at in range(len(path) - 1):
            (a, x), (b, y) = path[at], path[at + 1]
            ways.append((*path[:at], (b, y), (a, x), *path[at + 2 :]))
            ways += [(*path[:at], (a, x - 1), (b, y + 1), *path[at + 2 :])] * (x > 1)
            ways += [(*path[:at], (a, x + 1), (b, y - 1), *path[at + 2 :])] * (y > 1)
        for way in ways:
            chains = (*layout.chains[:number], Chain(chain.replicas, way), *layout.chains[number + 1 :])
            yield from _fitting(one, Layout(chains))


def _fitting(one: Candidate, layout: Layout) -> Iterator[Candidate]:
    """The plan in another layout, if the node groups have room for it."""
    shape, groups = one.shape, one.problem.groups
    room = all(n <= tp_capacity(groups[g], shape.tp) // (shape.tp * shape.cp) for g, n in layout.cells.items())
    if room and layout != shape.layout:
        yield replace(one, shape=replace(shape, layout=layout))


def _shares(one: Candidate) -> Iterator[Candidate]:
    """Micro-batches moved from the replicas of the slowest chain to those of others."""
    layout = one.shape.layout
    if len(layout.chains) < 2 or not one.framework.uneven_micro_batches:
        return
    each = one.chain_micro_batches
    times = one.chain_s
    slow = int(np.argmax(times))
    shares = layout.shares
    for taker in range(len(shares)):
        for give in range(1, 5):
            moved = give * shares[slow]
            if taker != slow and moved % shares[taker] == 0 and each[slow] > give:
                counts = list(each)
                counts[slow] -= give
                counts[taker] += moved // shares[taker]
                yield one.with_shares(tuple(counts))
                break
