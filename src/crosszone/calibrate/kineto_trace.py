"""Kineto trace: decoded ranks as one run: iterations with phases, a timeline to draw, figures to compare.

    found = read_kineto(["rank0.json.gz", "rank1.json.gz"])
    found.at("best").phases_s, found.meta["messages_s"], found.timeline

A rank has a lane for what it computes and one for each way of splitting it sends messages for. Kernels of one pass
that follow each other closely are one span of the timeline; the phases are of the kernels themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.calibrate.imported import MOST_NAME, ImportedRun, ImportedStep
from crosszone.calibrate.kineto import (
    FIRST_WAY,
    MESSAGES,
    ORDER,
    PASSES,
    PHASES,
    Decoded,
    Progress,
    Step,
    decoded,
    gathered,
)
from crosszone.calibrate.kineto_events import runs
from crosszone.calibrate.stability import find_median_iteration, measure_stability, resolve_iteration
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.value import parse
from crosszone.schedule.trace import Trace

JOIN_S = 20e-6  # Pauses between kernels that are not drawn
MAX_SPANS = 40_000  # Spans that are drawn; a page shows 20,000 at once, and each costs memory
MOST_RANKS = 256
DAY_S = 86_400.0
_KIND = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "backward",
    "optimizer": "optimizer",
    "other": "other",
    "tensor": "tensor",
    "context": "tensor",
    "experts": "experts",
    "pipeline": "send",
    "messages": "other",
    "copy": "data",
}
_PARTS = {
    "forward": "compute",
    "backward": "compute",
    "other": "compute",
    "recompute": "recompute",
    "optimizer": "optimizer",
    "tensor": "tensor",
    "context": "context",
    "experts": "expert",
    "pipeline": "pipeline",
    "data": "gradients",
    "messages": "communication",
    "copy": "host",
}


def read_kineto(
    files: Sequence[str | Path],
    *,
    name: str | None = None,
    groups: Mapping[str, str] | None = None,
    degrees: Mapping[str, int] | None = None,
    chosen_step: str | int | None = None,
    progress: Progress | None = None,
) -> ImportedRun:
    """Profiler traces, one for each rank, as a run; `InputError` where one cannot be read.

    `groups` are ways by the name of a process group, `degrees` those of the strategy (tp, cp, dp, pp).
    """
    if len(files) > MOST_RANKS:
        raise InvalidError(Notice(code="too_long", field="files", value=len(files), params={"limit": MOST_RANKS}))
    ranks = [
        decoded(gathered(path, progress), groups=groups, degrees=degrees, file=path.name) for path in map(Path, files)
    ]
    return run_of(ranks, name=name or Path(files[0]).name, chosen_step=chosen_step)


def run_of(ranks: Sequence[Decoded], *, name: str, chosen_step: str | int | None = None) -> ImportedRun:
    """Several ranks together: an iteration begins with its first rank and ends with its last."""
    offsets = _offsets(ranks)
    steps = _common(ranks, offsets)
    if not steps:
        raise InvalidError(Notice(code="kineto_no_common_step", params={"files": len(ranks)}))
    phases = {step[0]: _phases(ranks, step) for step in steps}
    seconds = {number: end - start for number, start, end in steps}
    shown = find_median_iteration(seconds) if chosen_step is None else resolve_iteration(chosen_step, seconds)
    trace = _trace(ranks, offsets, steps, name, shown)
    notices = [notice for rank in ranks for notice in rank.notices]
    if len(trace.steps) < len(steps):
        params = {"count": len(steps), "shown": len(trace.steps)}
        notices.append(Notice(code="kineto_drawn_part", level="note", params=params))
    made = ImportedRun.of_trace(
        trace,
        phases=phases,
        figures=_figures(ranks, phases[shown], seconds[shown]),
        notices=tuple(notices),
        bad_rows=sum(rank.bad for rank in ranks),
        chosen_step=shown,
    )
    own = {
        "messages_s": _mean([rank.messages_s(_own(rank, shown)) for rank in ranks]),
        "groups": [dict(group) for rank in ranks[:1] for group in rank.groups],
        "events": sum(rank.events for rank in ranks),
    }
    every = tuple(ImportedStep(step=n, seconds=t, phases_s=phases[n]) for n, t in seconds.items())
    whole = {"steps": every, "statistics": measure_stability(seconds), "meta": {**made.meta, **own}}
    return made.model_copy(update=whole)


def _own(rank: Decoded, number: int) -> Step:
    return next(step for step in rank.steps if step[0] == number)


def _offsets(ranks: Sequence[Decoded]) -> list[float]:
    """Seconds by which each rank's times are shifted: by the clocks of the machines, if they agree on the day."""
    clocks = [rank.offset_s for rank in ranks]
    if max(clocks) - min(clocks) < DAY_S:
        zero = (
            min(rank.offset_s + rank.steps[0][1] for rank in ranks if rank.steps) if any(r.steps for r in ranks) else 0
        )
        return [clock - zero for clock in clocks]
    return [-rank.steps[0][1] if rank.steps else 0.0 for rank in ranks]


def _common(ranks: Sequence[Decoded], offsets: Sequence[float]) -> list[Step]:
    """The iterations that all ranks have."""
    every = [{number: (start, end) for number, start, end in rank.steps} for rank in ranks]
    common = sorted(set.intersection(*(set(one) for one in every)))
    return [
        (
            number,
            max(0.0, min(one[number][0] + at for one, at in zip(every, offsets, strict=True))),
            max(one[number][1] + at for one, at in zip(every, offsets, strict=True)),
        )
        for number in common
    ]


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in ORDER if any(name in row for row in rows)]
    return {name: math.fsum(row.get(name, 0.0) for row in rows) / len(rows) for name in names}


def _phases(ranks: Sequence[Decoded], step: Step) -> dict[str, float]:
    """The mean of the ranks; what one waits for the others to begin or end is a gap, so they add up. [K42]"""
    found = _mean([rank.phases_s(_own(rank, step[0])) for rank in ranks])
    left = (step[2] - step[1]) - math.fsum(found.values())
    if left > 1e-12:
        found["gap"] = found.get("gap", 0.0) + left
    return found


def _figures(ranks: Sequence[Decoded], phases: Mapping[str, float], seconds: float) -> dict[str, Any]:
    """What is known of a step, as results are compared; gaps of a pipeline are its bubble, others the host's."""
    parts: dict[str, float] = {}
    idle = "bubble" if "pipeline" in phases else "host"
    for phase, length in phases.items():
        part = _PARTS.get(phase, idle)
        parts[part] = parts.get(part, 0.0) + length
    found: dict[str, Any] = {"step_time_s": seconds, "breakdown_s": parts}
    info = ranks[0].about.get("distributedInfo")
    world = info.get("world_size") if isinstance(info, dict) else None
    if isinstance(world, int) and 1 <= world <= 1_000_000:
        found["gpus"] = world
    return found


@dataclass(frozen=True, eq=False)
class _Lane:
    """Spans of one lane, as columns."""

    id: str
    group: str
    names: Sequence[str]
    kinds: Sequence[str]
    start_s: Any
    end_s: Any
    owner: Any
    micro_batch: Any


def _trace(ranks: Sequence[Decoded], offsets: Sequence[float], steps: Sequence[Step], name: str, shown: int) -> Trace:
    """What happens within the iterations; of more than a trace can hold, those up to and around the one shown."""
    kept = list(steps)
    while True:
        lanes = [
            lane
            for at, (rank, offset) in enumerate(zip(ranks, offsets, strict=True))
            for lane in _lanes(rank, at, offset, kept)
        ]
        count = sum(len(lane.owner) for lane in lanes)
        if count <= MAX_SPANS or len(kept) == 1:
            break
        most = max(1, min(len(kept) - 1, int(len(kept) * 0.9 * MAX_SPANS / count)))
        place = next(at for at, step in enumerate(kept) if step[0] == shown)
        first = max(0, min(place - most // 2, len(kept) - most))
        kept = kept[first : first + most]
    spans = [span for lane in lanes for span in _spans(lane, least_s=_least(lanes) if count > MAX_SPANS else 0.0)]
    rows = [{"step": number, "start_s": start, "end_s": end} for number, start, end in kept]
    drawn = [{"id": lane.id, "name": lane.id.replace("-", " "), "group": lane.group} for lane in lanes]
    document = {"version": 1, "kind": "measured", "name": name[:MOST_NAME], "lanes": drawn, "spans": spans[:MAX_SPANS]}
    return parse(Trace, document | {"steps": rows, "meta": _meta(ranks)})


def _least(lanes: Sequence[_Lane]) -> float:
    """The length below which spans of one iteration are not drawn, so that the others fit."""
    lengths = np.sort(np.concatenate([lane.end_s - lane.start_s for lane in lanes]))
    return float(lengths[-MAX_SPANS])


def _lanes(rank: Decoded, at: int, offset: float, steps: Sequence[Step]) -> list[_Lane]:
    """What one rank computes, and its messages by way of splitting."""
    number = rank.rank if rank.rank is not None else at
    first, last = steps[0][1] - offset, steps[-1][2] - offset
    here = (rank.end_s > first) & (rank.start_s < last)
    start, end = np.clip(rank.start_s[here], first, last), np.clip(rank.end_s[here], first, last)
    sort, carries = rank.sort[here], rank.carries[here]
    pipelined = bool((sort == PHASES.index("pipeline")).any())
    found = []
    for way in ("", *MESSAGES, "copy"):
        mine = sort == PHASES.index(way) if way else sort < FIRST_WAY
        if not mine.any():
            continue
        names, kinds, label = list(PASSES), [_KIND[one] for one in PASSES], sort[mine]
        if way:  # of data parallelism, what carries parameters is told from what carries gradients
            names, label = [way, way], carries[mine]
            kinds = ["gradients", "parameters"] if way == "data" else [_KIND[way]] * 2
        begun, ended, owner = runs(start[mine], end[mine], label, len(names), JOIN_S)
        micro = None if way or pipelined else _micro_batches(owner)
        lane = f"rank-{number}-{way}" if way else f"rank-{number}"
        group = "stages" if not way else "host" if way == "copy" else "messages"
        times = np.maximum(0.0, begun + offset), np.maximum(0.0, ended + offset)
        found.append(_Lane(lane, group, names, kinds, *times, owner, micro))
    return found


def _spans(lane: _Lane, least_s: float) -> Iterator[dict[str, Any]]:
    """The spans of a lane as a trace has them."""
    columns = zip(lane.start_s.tolist(), lane.end_s.tolist(), lane.owner.tolist(), strict=True)
    for index, (start, end, one) in enumerate(columns):
        if end - start < least_s:
            continue
        span: dict[str, Any] = {"lane": lane.id, "kind": lane.kinds[one], "name": lane.names[one]}
        span |= {"start_s": start, "end_s": end}
        if lane.micro_batch is not None and lane.kinds[one] in ("forward", "backward"):
            span["micro_batch"] = int(lane.micro_batch[index])
        yield span


def _micro_batches(owner: Any) -> Any:
    """Number of the micro-batch of each span: a new one begins where a forward pass follows a backward one."""
    names = np.array(PASSES)[owner]
    passes = np.flatnonzero(np.isin(names, ("forward", "backward", "recompute", "optimizer")))
    found = np.zeros(len(owner), np.int64)
    count, before = -1, "start"
    for at in passes.tolist():
        if names[at] == "forward" and before != "forward":
            count = 0 if before in ("start", "optimizer") else count + 1
        before = names[at]
        found[at] = max(0, count)
    return found


def _meta(ranks: Sequence[Decoded]) -> dict[str, str | int | float | bool]:
    """What the traces say of the machine."""
    about = ranks[0].about
    meta: dict[str, str | int | float | bool] = {"format": "kineto", "files": len(ranks), "joined_us": JOIN_S * 1e6}
    devices = about.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict) and devices[0].get("name"):
        meta["device"] = str(devices[0]["name"])[:100]
    info = about.get("distributedInfo")
    if isinstance(info, dict):
        for key in ("backend", "world_size", "nccl_version"):
            if isinstance(info.get(key), str | int):
                meta[key] = info[key]
    for way in ("tensor", "context", "experts", "pipeline", "data"):
        sizes = [group["size"] for group in ranks[0].groups if group["way"] == way and group["size"]]
        if sizes:
            meta[f"{way}_group"] = max(sizes)
    return meta
