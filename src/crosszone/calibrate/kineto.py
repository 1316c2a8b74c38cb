"""Kineto: traces of the PyTorch profiler decoded to phases: what each iteration's time went into.

    found = read_kineto(["rank0.json.gz"])
    found.at("best").phases_s      # {"forward": 0.31, "backward": 0.58, "recompute": 0.2, "data": 0.04, "gap": 0.01}

Phases: forward, backward, recompute, optimizer, other computing; messages that run beside no computing, by their way
of splitting (tensor, context, experts, pipeline, data); copies from and to the host; gaps in which nothing runs. They
add up to the iteration. A trace without a device is read from its host operators.

Kineto steps: where the iterations of a profiler's trace begin and end.

    steps_of(events, ran)         # [(12, 0.0, 0.81), (13, 0.81, 1.62)]: number, start and end in seconds

Iterations are those that the profiler was told of (`ProfilerStep#12`); else they end with the update; else the trace
is one.

Kineto passes: what ran, and the pass of training that launched it.

    ran = ran_on_device(events)
    ran.sort          # position in PHASES of each kernel

A kernel belongs to what launched it, found by its correlation id: within a function of the backward engine it is
backward; if there an operator is recorded for a backward pass to come, the forward pass is done again: recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosszone.calibrate.kineto_events import (
    COLLECTIVE,
    COPY,
    ENGINE,
    FRESH,
    MESSAGE,
    WAYS,
    Events,
    Floats,
    Group,
    Ints,
    Remark,
    gather,
    inside_by,
    shares,
    total_s,
    way_of_name,
    way_of_ranks,
    way_of_use,
)
from crosszone.calibrate.kineto_json import iterate_members
from crosszone.calibrate.user_files import iterate_chunks
from crosszone.errors import FileError, Notice
from crosszone.schedule.trace import MAX_LANES

# Sorts of computing, in the order in which they own a moment.
PASSES = ("recompute", "backward", "forward", "optimizer", "other")
# Messages by the way of splitting they belong to; the last: not known to which.
MESSAGES = ("tensor", "context", "experts", "pipeline", "data", "messages")
# What an iteration is made of: computing, messages that run beside no computing, copies, nothing.
PHASES = (*PASSES, *MESSAGES, "copy", "gap")
# The same, as they are shown.
ORDER = ("forward", "backward", "recompute", "optimizer", "other", *MESSAGES, "copy", "gap")
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


Step = tuple[int, float, float]
WHOLE = 0.9  # Share of the kernels of other iterations that one has which was recorded whole


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


MOST_NS = 10**19  # A clock that is farther from 1970 than this (317 years) is none
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Decoded:
    """The trace of one rank: what ran when, by sort, and its steps."""

    start_s: Floats
    end_s: Floats
    sort: Ints
    """Position in `PHASES`."""
    carries: Ints
    """Of a message of data parallelism: 1 where it carries parameters, else 0."""
    steps: tuple[Step, ...]
    groups: tuple[dict[str, Any], ...]
    """Process groups: name, size, way, and how it is known."""
    about: Mapping[str, Any]
    """Members of the document besides its events."""
    notices: tuple[Notice, ...]
    bad: int
    offset_s: float
    """Time of 0 s by the clock of the machine."""
    events: int

    def phases_s(self, step: Step) -> dict[str, float]:
        """Seconds of a step by phase; they add up to it. [K42]"""
        here = np.flatnonzero((self.start_s < step[2]) & (self.end_s > step[1]))
        found = shares(self.start_s[here], self.end_s[here], self.sort[here], step[1], step[2], SORTS)
        by_name = dict(zip(PHASES, found.tolist(), strict=True))
        return {name: by_name[name] for name in ORDER if by_name[name] > 0}

    def messages_s(self, step: Step) -> dict[str, float]:
        """Seconds in which messages of each way run, also beside computing."""
        start, end = np.clip(self.start_s, step[1], step[2]), np.clip(self.end_s, step[1], step[2])
        of = {way: self.sort == FIRST_WAY + at for at, way in enumerate(MESSAGES)}
        return {way: total_s(start[here], end[here]) for way, here in of.items() if here.any()}

    @property
    def rank(self) -> int | None:
        """Its rank, where the trace says so."""
        info = self.about.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) and 0 <= rank < 10**9 else None


def gathered(path: Path, progress: Progress | None = None) -> Events:
    """The events of a file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            told = None if progress is None else (lambda done: progress("trace", done, size))
            return gather(iterate_members(iterate_chunks(file, path.name, progress=told), path.name), path.name)
    except OSError as error:
        params = {"reason": error.strerror or str(error)}
        raise FileError(Notice(code="file_unreadable", value=str(path), params=params, file=str(path))) from None


def decoded(
    events: Events,
    *,
    groups: Mapping[str, str] | None = None,
    degrees: Mapping[str, int] | None = None,
    file: str = "<file>",
) -> Decoded:
    """The trace of one rank from its events; `groups` are ways by group name, `degrees` those of the strategy."""
    on_device = len(events.kernels) > 0
    ran = ran_on_device(events) if on_device else ran_on_host(events)
    steps = steps_of(events, ran)
    settle(events, ran)
    ways, told = _ways(events, ran, groups or {}, degrees or {})
    message = ran.kind >= 0
    sort = ran.sort.copy()
    sort[message] = FIRST_WAY + ways[ran.kind[message], ran.sort[message]]
    gathers = np.array([name in ("all_gather", "broadcast") for name, _ in events.kinds] or [False])
    base = events.about.get("baseTimeNanoseconds")
    base = base if isinstance(base, int | float) and abs(base) < MOST_NS else 0
    return Decoded(
        start_s=ran.start,
        end_s=ran.end,
        sort=sort,
        carries=np.where(message, gathers[ran.kind], False).astype(np.int64),
        steps=tuple(steps),
        groups=tuple(told),
        about=events.about,
        notices=tuple(_notices(events, ran, told, file)),
        bad=events.bad,
        offset_s=(events.first_us or 0.0) * 1e-6 + base * 1e-9,
        events=events.count,
    )


def _notices(events: Events, ran: Ran, told: Sequence[Mapping[str, Any]], file: str) -> list[Notice]:
    found = [*events.notices, *(notice.at(file, None) for notice in ran.notices)]
    guessed = [f"{one['group']}: {one['way']}" for one in told if one["known_by"] == "use"]
    if guessed:
        params = {"groups": guessed}
        found.append(Notice(code="kineto_groups_guessed", level="warning", params=params, file=file))
    if not len(events.kernels):
        found.append(Notice(code="kineto_no_device", level="note", file=file))
    if not events.steps:
        found.append(Notice(code="kineto_no_steps", level="note", file=file))
    return found


def _ways(
    events: Events, ran: Ran, told: Mapping[str, str], degrees: Mapping[str, int]
) -> tuple[Ints, list[dict[str, Any]]]:
    """Position in `MESSAGES` by collective and pass, and what is known of each group.

    Messages of which no group is known are told apart by what they are, one by one.
    """
    uses: dict[Group, dict[tuple[int, int], tuple[str, str]]] = {}
    message = ran.kind >= 0
    for kind, sort in np.unique(np.stack([ran.kind[message], ran.sort[message]]), axis=1).T.tolist():
        collective, group = events.kinds[kind]
        uses.setdefault(group, {})[kind, sort] = (collective, PASSES[sort] if sort < len(PASSES) else "other")
    ways = np.full((max(1, len(events.kinds)), SORTS), len(WAYS) - 1, np.int64)
    shown = []
    for group, used in uses.items():
        way, by = _way(group, set(used.values()), told, degrees)
        for (kind, sort), use in used.items():
            ways[kind, sort] = WAYS.index(way_of_use({use}) if group == Group() else way)
        if group != Group():
            shown.append({"group": group.shown, "size": group.size or len(group.ranks), "way": way, "known_by": by})
        else:
            own = sorted({way_of_use({use}) for use in used.values()})
            shown += [{"group": group.shown, "size": 0, "way": one, "known_by": by} for one in own]
    return ways, shown


def _way(
    group: Group, used: set[tuple[str, str]], told: Mapping[str, str], degrees: Mapping[str, int]
) -> tuple[str, str]:
    """The way of splitting of a group, and how it is known."""
    names = [name.lower() for name in (group.about, group.name) if name]
    said = next((told[name] for name in names if name in told), None)
    if said is not None:
        return said, "told"
    named = way_of_name(group.about) or way_of_name(group.name)
    if named is not None:
        return named, "name"
    ranked = way_of_ranks(group, degrees)
    return (ranked, "ranks") if ranked is not None else (way_of_use(used), "use")
