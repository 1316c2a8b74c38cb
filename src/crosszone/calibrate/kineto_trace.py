"""Kineto traces of several ranks as one run: iterations with phases, a timeline to draw, figures to compare.

    imported = read_kineto(["rank0.json.gz", "rank1.json.gz"])
    imported.get_step("best").phases_s, imported.meta["messages_s"], imported.timeline

A rank has a lane for what it computes and one for each parallel dimension it sends messages for. Kernels of one pass
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
    DISPLAY_ORDER,
    FIRST_MESSAGE,
    MESSAGES,
    PASSES,
    PHASES,
    DecodedRank,
    Progress,
    Step,
    decode_rank,
    read_events,
)
from crosszone.calibrate.kineto_events import list_stretches
from crosszone.calibrate.stability import find_median_iteration, measure_stability, resolve_iteration
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.value import parse
from crosszone.schedule.trace import Trace

JOIN_S = 20e-6  # Pauses between kernels that are not drawn
MAX_SPANS = 40_000  # Spans that are drawn; a page shows 20,000 at once, and each costs memory
MOST_RANKS = 256
DAY_S = 86_400.0
_SPAN_KINDS = {
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
_BREAKDOWN_PARTS = {
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

    `groups` are dimensions by the name of a process group, `degrees` those of the strategy (tp, cp, dp, pp).
    """
    if len(files) > MOST_RANKS:
        raise InvalidError(Notice(code="too_long", field="files", value=len(files), params={"limit": MOST_RANKS}))
    ranks = [
        decode_rank(read_events(path, progress), groups=groups, degrees=degrees, file=path.name)
        for path in map(Path, files)
    ]
    return build_run(ranks, name=name or Path(files[0]).name, chosen_step=chosen_step)


def build_run(ranks: Sequence[DecodedRank], *, name: str, chosen_step: str | int | None = None) -> ImportedRun:
    """Several ranks together: an iteration begins with its first rank and ends with its last."""
    offsets = _compute_offsets(ranks)
    steps = _find_common_steps(ranks, offsets)
    if not steps:
        raise InvalidError(Notice(code="kineto_no_common_step", params={"files": len(ranks)}))
    phases = {step[0]: _average_phases(ranks, step) for step in steps}
    seconds = {number: end - start for number, start, end in steps}
    shown_step = find_median_iteration(seconds) if chosen_step is None else resolve_iteration(chosen_step, seconds)
    trace = _build_trace(ranks, offsets, steps, name, shown_step)
    notices = [notice for rank in ranks for notice in rank.notices]
    if len(trace.steps) < len(steps):
        params = {"count": len(steps), "shown": len(trace.steps)}
        notices.append(Notice(code="kineto_drawn_part", level="note", params=params))
    run = ImportedRun.from_trace(
        trace,
        phases=phases,
        figures=_build_figures(ranks, phases[shown_step], seconds[shown_step]),
        notices=tuple(notices),
        bad_rows=sum(rank.bad for rank in ranks),
        chosen_step=shown_step,
    )
    extra_meta = {
        "messages_s": _average([rank.compute_messages_s(_get_step(rank, shown_step)) for rank in ranks]),
        "groups": [dict(group) for rank in ranks[:1] for group in rank.groups],
        "events": sum(rank.events for rank in ranks),
    }
    imported_steps = tuple(ImportedStep(step=n, seconds=t, phases_s=phases[n]) for n, t in seconds.items())
    updates = {"steps": imported_steps, "statistics": measure_stability(seconds), "meta": {**run.meta, **extra_meta}}
    return run.model_copy(update=updates)


def _get_step(rank: DecodedRank, number: int) -> Step:
    return next(step for step in rank.steps if step[0] == number)


def _compute_offsets(ranks: Sequence[DecodedRank]) -> list[float]:
    """Seconds by which each rank's times are shifted: by the clocks of the machines, if they agree on the day."""
    clocks = [rank.offset_s for rank in ranks]
    if max(clocks) - min(clocks) < DAY_S:
        zero = min((rank.offset_s + rank.steps[0][1] for rank in ranks if rank.steps), default=0.0)
        return [clock - zero for clock in clocks]
    return [-rank.steps[0][1] if rank.steps else 0.0 for rank in ranks]


def _find_common_steps(ranks: Sequence[DecodedRank], offsets: Sequence[float]) -> list[Step]:
    """The iterations that all ranks have."""
    by_rank = [{number: (start, end) for number, start, end in rank.steps} for rank in ranks]
    common = sorted(set.intersection(*(set(steps_by_number) for steps_by_number in by_rank)))
    steps = []
    for number in common:
        spans = [(s[number][0] + offset, s[number][1] + offset) for s, offset in zip(by_rank, offsets, strict=True)]
        steps.append((number, max(0.0, min(start for start, _ in spans)), max(end for _, end in spans)))
    return steps


def _average(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in DISPLAY_ORDER if any(name in row for row in rows)]
    return {name: math.fsum(row.get(name, 0.0) for row in rows) / len(rows) for name in names}


def _average_phases(ranks: Sequence[DecodedRank], step: Step) -> dict[str, float]:
    """The mean of the ranks; what one waits for the others to begin or end is a gap, so they add up. [K42]"""
    phases_s = _average([rank.compute_phases_s(_get_step(rank, step[0])) for rank in ranks])
    waiting_s = (step[2] - step[1]) - math.fsum(phases_s.values())
    if waiting_s > 1e-12:
        phases_s["gap"] = phases_s.get("gap", 0.0) + waiting_s
    return phases_s


def _build_figures(ranks: Sequence[DecodedRank], phases: Mapping[str, float], seconds: float) -> dict[str, Any]:
    """What is known of a step, as results are compared; gaps of a pipeline are its bubble, others the host's."""
    parts: dict[str, float] = {}
    idle = "bubble" if "pipeline" in phases else "host"
    for phase, length in phases.items():
        part = _BREAKDOWN_PARTS.get(phase, idle)
        parts[part] = parts.get(part, 0.0) + length
    figures: dict[str, Any] = {"step_time_s": seconds, "breakdown_s": parts}
    info = ranks[0].about.get("distributedInfo")
    world = info.get("world_size") if isinstance(info, dict) else None
    if isinstance(world, int) and 1 <= world <= 1_000_000:
        figures["gpus"] = world
    return figures


@dataclass(frozen=True, eq=False)
class _SpanLane:
    """Spans of one lane, as columns."""

    id: str
    group: str
    names: Sequence[str]
    kinds: Sequence[str]
    start_s: Any
    end_s: Any
    owner: Any
    micro_batch: Any


def _build_trace(
    ranks: Sequence[DecodedRank], offsets: Sequence[float], steps: Sequence[Step], name: str, shown_step: int
) -> Trace:
    """What happens within the iterations; of more than a trace can hold, those up to and around the one shown."""
    drawn_steps = list(steps)
    while True:
        lanes = [
            lane
            for index, (rank, offset) in enumerate(zip(ranks, offsets, strict=True))
            for lane in _build_lanes(rank, index, offset, drawn_steps)
        ]
        count = sum(len(lane.owner) for lane in lanes)
        if count <= MAX_SPANS or len(drawn_steps) == 1:
            break
        count_that_fits = max(1, min(len(drawn_steps) - 1, int(len(drawn_steps) * 0.9 * MAX_SPANS / count)))
        shown_index = next(index for index, step in enumerate(drawn_steps) if step[0] == shown_step)
        first = max(0, min(shown_index - count_that_fits // 2, len(drawn_steps) - count_that_fits))
        drawn_steps = drawn_steps[first : first + count_that_fits]
    spans = [
        span
        for lane in lanes
        for span in _iterate_spans(lane, least_s=_find_shortest_drawn(lanes) if count > MAX_SPANS else 0.0)
    ]
    rows = [{"step": number, "start_s": start, "end_s": end} for number, start, end in drawn_steps]
    lane_rows = [{"id": lane.id, "name": lane.id.replace("-", " "), "group": lane.group} for lane in lanes]
    document = {
        "version": 1,
        "kind": "measured",
        "name": name[:MOST_NAME],
        "lanes": lane_rows,
        "spans": spans[:MAX_SPANS],
    }
    return parse(Trace, document | {"steps": rows, "meta": _build_meta(ranks)})


def _find_shortest_drawn(lanes: Sequence[_SpanLane]) -> float:
    """The length below which spans of one iteration are not drawn, so that the others fit."""
    lengths = np.sort(np.concatenate([lane.end_s - lane.start_s for lane in lanes]))
    return float(lengths[-MAX_SPANS])


def _build_lanes(rank: DecodedRank, index: int, offset: float, steps: Sequence[Step]) -> list[_SpanLane]:
    """What one rank computes, and its messages by parallel dimension."""
    number = rank.rank if rank.rank is not None else index
    first, last = steps[0][1] - offset, steps[-1][2] - offset
    in_steps = (rank.end_s > first) & (rank.start_s < last)
    start, end = np.clip(rank.start_s[in_steps], first, last), np.clip(rank.end_s[in_steps], first, last)
    phase, carries = rank.phase[in_steps], rank.carries[in_steps]
    pipelined = bool((phase == PHASES.index("pipeline")).any())
    lanes = []
    for dimension in ("", *MESSAGES, "copy"):
        in_lane = phase == PHASES.index(dimension) if dimension else phase < FIRST_MESSAGE
        if not in_lane.any():
            continue
        names, kinds, label = list(PASSES), [_SPAN_KINDS[pass_name] for pass_name in PASSES], phase[in_lane]
        if dimension:  # messages of data parallelism carry parameters or gradients: two kinds of span
            names, label = [dimension, dimension], carries[in_lane]
            kinds = ["gradients", "parameters"] if dimension == "data" else [_SPAN_KINDS[dimension]] * 2
        started, ended, owner = list_stretches(start[in_lane], end[in_lane], label, len(names), JOIN_S)
        micro_batches = None if dimension or pipelined else _label_micro_batches(owner)
        lane = f"rank-{number}-{dimension}" if dimension else f"rank-{number}"
        group = "stages" if not dimension else "host" if dimension == "copy" else "messages"
        times = np.maximum(0.0, started + offset), np.maximum(0.0, ended + offset)
        lanes.append(_SpanLane(lane, group, names, kinds, *times, owner, micro_batches))
    return lanes


def _iterate_spans(lane: _SpanLane, least_s: float) -> Iterator[dict[str, Any]]:
    """The spans of a lane as a trace has them."""
    columns = zip(lane.start_s.tolist(), lane.end_s.tolist(), lane.owner.tolist(), strict=True)
    for index, (start, end, owner) in enumerate(columns):
        if end - start < least_s:
            continue
        span: dict[str, Any] = {"lane": lane.id, "kind": lane.kinds[owner], "name": lane.names[owner]}
        span |= {"start_s": start, "end_s": end}
        if lane.micro_batch is not None and lane.kinds[owner] in ("forward", "backward"):
            span["micro_batch"] = int(lane.micro_batch[index])
        yield span


def _label_micro_batches(owner: Any) -> Any:
    """Number of the micro-batch of each span: a new one begins where a forward pass follows a backward one."""
    names = np.array(PASSES)[owner]
    passes = np.flatnonzero(np.isin(names, ("forward", "backward", "recompute", "optimizer")))
    micro_batches = np.zeros(len(owner), np.int64)
    count, previous = -1, "start"
    for index in passes.tolist():
        if names[index] == "forward" and previous != "forward":
            count = 0 if previous in ("start", "optimizer") else count + 1
        previous = names[index]
        micro_batches[index] = max(0, count)
    return micro_batches


def _build_meta(ranks: Sequence[DecodedRank]) -> dict[str, str | int | float | bool]:
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
    for dimension in ("tensor", "context", "experts", "pipeline", "data"):
        sizes = [group["size"] for group in ranks[0].groups if group["way"] == dimension and group["size"]]
        if sizes:
            meta[f"{dimension}_group"] = max(sizes)
    return meta
