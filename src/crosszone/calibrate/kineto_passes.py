"""Kineto passes: what ran, and the pass of training that launched it.

    ran = ran_on_device(events)
    ran.sort          # position in PHASES of each kernel

A kernel belongs to what launched it, found by its correlation id: within a function of the backward engine it is
backward; if there an operator is recorded for a backward pass to come, the forward pass is done again: recomputation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosszone.calibrate.kineto_events import COLLECTIVE, COPY, ENGINE, FRESH, MESSAGE, Events
from crosszone.calibrate.kineto_groups import Group
from crosszone.calibrate.kineto_spans import Floats, Ints, inside_by
from crosszone.errors import Notice

PASSES = ("recompute", "backward", "forward", "optimizer", "other")
"""Sorts of computing, in the order in which they own a moment."""
MESSAGES = ("tensor", "context", "experts", "pipeline", "data", "messages")
"""Messages by the way of splitting they belong to; the last: not known to which."""
PHASES = (*PASSES, *MESSAGES, "copy", "gap")
"""What an iteration is made of: computing, messages that run beside no computing, copies, nothing."""
ORDER = ("forward", "backward", "recompute", "optimizer", "other", *MESSAGES, "copy", "gap")
"""The same, as they are shown."""
RECOMPUTE, BACKWARD, FORWARD, OPTIMIZER, OTHER = range(5)
FIRST_WAY = len(PASSES)
COPIES = FIRST_WAY + len(MESSAGES)
SORTS = COPIES + 1


@dataclass(eq=False)
class Ran:
    """What ran, with when it was launched: columns."""

    start: Floats
    end: Floats
    sort: Ints
    """Position in `PHASES`; of a message, the pass that launched it."""
    kind: Ints
    """Position of a message's collective among `Events.kinds`; -1: no message."""
    launched: Floats
    """Time of the launch; where it is not known, the start."""
    notices: list[Notice] = field(default_factory=list)


def ran_on_device(events: Events) -> Ran:
    """Kernels and copies, each with the pass that launched it."""
    _, start, end, correlation, external, sort, kind = events.kernels.arrays()
    at, known = _launches(events, correlation)
    _, thread, when = events.launches.arrays()
    launched = np.where(known, when[at], start) if len(when) else start.copy()
    by = np.where(known, thread[at], -1) if len(when) else np.full(len(start), -1)
    passes = _passes(events, by, launched)
    passes[~known] = OTHER
    passes[sort == COPY] = COPIES
    message = np.flatnonzero(sort == MESSAGE)
    whole = np.full(len(kind), -1, np.int64)
    same = external[message] == correlation[message]  # in older traces an external id is but the correlation again
    whole[message] = _called(
        events, kind[message], np.where(same, -1, external[message]), by[message], launched[message]
    )
    found = Ran(start, end, passes, whole, launched)
    if lost := int((~known).sum()):
        params = {"count": lost, "of": len(known)}
        found.notices.append(Notice(code="kineto_no_launch", level="warning", params=params))
    return found


def ran_on_host(events: Events) -> Ran:
    """Host operators and collectives, for a trace without a device."""
    thread, begin, end, sort = events.operators.arrays()
    works = sort != COLLECTIVE
    thread, begin, end = thread[works], begin[works], end[works]
    passes = _passes(events, thread, begin)
    _, called, returned, _, kind = events.collectives.arrays()
    order = np.argsort(begin, kind="stable")
    before = np.searchsorted(begin[order], called, side="right") - 1
    while_in = passes[order][np.maximum(before, 0)] if len(order) else np.full(len(called), FORWARD)
    updates = events.remarks
    start = np.concatenate([begin, [one.start_s for one in updates], called])
    return Ran(
        start=start,
        end=np.concatenate([end, [one.end_s for one in updates], returned]),
        sort=np.concatenate([passes, np.full(len(updates), OPTIMIZER), while_in]).astype(np.int64),
        kind=np.concatenate([np.full(len(passes) + len(updates), -1), kind]).astype(np.int64),
        launched=start.copy(),
    )


def _launches(events: Events, correlation: Any) -> tuple[Ints, NDArray[np.bool_]]:
    """Position of the launch of each kernel, and whether it is there."""
    launches = events.launches.arrays()[0]
    if not len(launches):
        return np.zeros(len(correlation), np.int64), np.zeros(len(correlation), bool)
    order = np.argsort(launches, kind="stable")
    place = np.minimum(np.searchsorted(launches, correlation, sorter=order), len(order) - 1)
    at = order[place]
    return at, np.asarray((launches[at] == correlation) & (correlation >= 0))


def _passes(events: Events, thread: Any, moment: Floats) -> Ints:
    """The pass that goes on where and when something is launched. [K41]"""
    own, begin, end, sort = events.operators.arrays()
    engine, fresh = sort == ENGINE, sort == FRESH
    if engine.any():
        back = inside_by(thread, moment, own[engine], begin[engine], end[engine])
    else:
        back = np.isin(thread, list(events.backward_threads))
    again = back & inside_by(thread, moment, own[fresh], begin[fresh], end[fresh])
    on, started, ended = (
        np.array([getattr(one, name) for one in events.remarks], float) for name in ("thread", "start_s", "end_s")
    )
    update = inside_by(thread, moment, on, started, ended)
    found = np.full(len(moment), FORWARD, np.int64)
    found[update] = OPTIMIZER
    found[back] = BACKWARD
    found[again] = RECOMPUTE
    return found


def _called(events: Events, kind: Any, external: Any, by: Any, launched: Floats) -> Ints:
    """The collective of each message: as its kernel says, else as the host call around its launch says."""
    made = np.array(kind, np.int64)
    bare = np.flatnonzero([events.kinds[one][1] == Group() for one in made.tolist()])
    thread, begin, end, ids, called = events.collectives.arrays()
    if not len(bare) or not len(called):
        return made
    named = {int(i): int(k) for i, k in zip(ids, called, strict=True) if i >= 0}
    order = np.argsort(begin, kind="stable")
    thread, begin, end, called = thread[order], begin[order], end[order], called[order]
    for one in np.unique(by[bare]):
        here, there = bare[by[bare] == one], np.flatnonzero(thread == one)
        place = np.searchsorted(begin[there], launched[here], side="right") - 1
        for at, last in zip(here.tolist(), place.tolist(), strict=True):
            around = [i for i in there[max(0, last - 3) : last + 1][::-1] if end[i] >= launched[at]]
            told = int(called[around[0]]) if around else named.get(int(external[at]))
            made[at] = made[at] if told is None else told
    return made
