"""Kineto: traces of the PyTorch profiler decoded to phases: what each iteration's time went into.

    found = read_kineto(["rank0.json.gz"])
    found.at("best").phases_s      # {"forward": 0.31, "backward": 0.58, "recompute": 0.2, "data": 0.04, "gap": 0.01}

Phases: forward, backward, recompute, optimizer, other computing; messages that run beside no computing, by their way
of splitting (tensor, context, experts, pipeline, data); copies from and to the host; gaps in which nothing runs. They
add up to the iteration. A trace without a device is read from its host operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.calibrate.kineto_events import Events, gather
from crosszone.calibrate.kineto_groups import WAYS, Group, way_of_name, way_of_ranks, way_of_use
from crosszone.calibrate.kineto_json import chunks_of, members
from crosszone.calibrate.kineto_passes import (
    FIRST_WAY,
    MESSAGES,
    ORDER,
    PASSES,
    PHASES,
    SORTS,
    Ran,
    ran_on_device,
    ran_on_host,
)
from crosszone.calibrate.kineto_spans import Floats, Ints, shares, total_s
from crosszone.calibrate.kineto_steps import Step, settle, steps_of
from crosszone.errors import FileError, Notice

MOST_NS = 10**19
"""A clock that is farther from 1970 than this (317 years) is none."""
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
            return gather(members(chunks_of(file, path.name, progress=told), path.name), path.name)
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
