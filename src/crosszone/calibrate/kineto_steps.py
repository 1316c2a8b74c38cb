"""Kineto steps: where the iterations of a profiler's trace begin and end.

    steps_of(events, ran)         # [(12, 0.0, 0.81), (13, 0.81, 1.62)]: number, start and end in seconds

Iterations are those that the profiler was told of (`ProfilerStep#12`); else they end with the update; else the trace
is one.
"""

from __future__ import annotations

import math

import numpy as np

from crosszone.calibrate.kineto_events import Events, Remark
from crosszone.calibrate.kineto_passes import BACKWARD, COPIES, FORWARD, OPTIMIZER, OTHER, RECOMPUTE, Ran
from crosszone.errors import Notice
from crosszone.schedule.trace import MAX_LANES

Step = tuple[int, float, float]
WHOLE = 0.9
"""Share of the kernels of other iterations that one has which was recorded whole."""


def steps_of(events: Events, ran: Ran) -> list[Step]:
    """Number, start and end of each iteration, one after the other. [K45]

    A device works on what the host has launched long before. An iteration begins when the host begins it, or when the
    device has done the work of the iteration before, whichever is later; the last one ends when both have.
    """
    windows = _told(events) or _by_updates(events, ran)
    found: list[Step] = []
    counts: list[int] = []
    reached = -math.inf
    for number, low, high in windows:
        mine = (ran.launched >= low) & (ran.launched < high)
        counts.append(int(mine.sum()))
        done = float(ran.end[mine].max()) if mine.any() else low
        if found:
            before = found[-1]
            found[-1] = (before[0], before[1], max(before[1], low, reached))
        start = max(low, reached)
        found.append((number, start, max(start, high, done)))
        reached = max(reached, done)
    whole = [step for step, short in zip(found, _short(counts), strict=True) if not short and step[2] > step[1]]
    if len(whole) < len(found):
        left = [step[0] for step in found if step not in whole]
        ran.notices.append(Notice(code="kineto_steps_short", level="warning", params={"steps": left}))
    return whole[-MAX_LANES:]


def _short(counts: list[int]) -> list[bool]:
    """Whether the first or the last of at least three iterations was not recorded whole: it has far fewer kernels."""
    found = [False] * len(counts)
    if len(counts) >= 3:
        for at in (0, -1):
            others = counts[1:] if at == 0 else counts[:-1]
            found[at] = counts[at] < WHOLE * float(np.median(others))
    return found


def settle(events: Events, ran: Ran) -> None:
    """What the forward thread launches after the last backward pass of an iteration belongs to its update. [K41]

    Norms and clipping of gradients stand there; what comes after the update is something else.
    """
    plain = (ran.sort == FORWARD) & (ran.kind < 0)
    backward = (ran.sort == BACKWARD) | (ran.sort == RECOMPUTE)
    windows = _told(events) or _by_updates(events, ran)
    for _, low, high in windows:
        mine = (ran.launched >= low) & (ran.launched < high)
        if not (mine & backward).any():
            continue
        last = float(ran.launched[mine & backward].max())
        ends = [one.end_s for one in events.remarks if last <= one.end_s <= high]
        late = mine & plain & (ran.launched > last)
        until = max(ends, default=last)
        ran.sort[late & (ran.launched <= until)] = OPTIMIZER
        ran.sort[late & (ran.launched > until)] = OTHER


def _told(events: Events) -> list[Step]:
    """The iterations that the profiler was told of, in order; a number that comes twice counts on."""
    found: list[Step] = []
    for number, one in sorted(events.steps, key=lambda pair: pair[1].start_s):
        if found and one.start_s < found[-1][2] - 1e-9:
            continue  # the same step on another thread
        found.append((number if not found or number > found[-1][0] else found[-1][0] + 1, one.start_s, one.end_s))
    return found


def _by_updates(events: Events, ran: Ran) -> list[Step]:
    """Iterations that end with an update; several optimizers without a backward pass between are one update."""
    updates = sorted((one for one in events.remarks if "zero_grad" not in one.name), key=lambda one: one.start_s)
    backward = np.sort(ran.launched[(ran.sort == BACKWARD) | (ran.sort == RECOMPUTE)])
    first = float(min(ran.start.min(), ran.launched.min())) if len(ran.start) else 0.0
    ends: list[Remark] = []
    for one in updates:
        since = np.searchsorted(backward, ends[-1].start_s) if ends else 0
        if ends and np.searchsorted(backward, one.start_s) == since:
            ends[-1] = one
        else:
            ends.append(one)
    found: list[Step] = []
    low = first
    for number, one in enumerate(ends, 1):
        found.append((number, low, one.end_s))
        low = one.end_s
    if not found:
        compute = ran.sort <= COPIES
        high = float(max(ran.end[compute].max(), ran.launched.max())) if len(ran.end) else 0.0
        found = [(0, first, np.nextafter(high, np.inf).item())]
    return found
