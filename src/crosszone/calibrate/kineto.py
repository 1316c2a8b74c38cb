"""Profiler traces (Kineto, of PyTorch) as a run: iterations, the phases that their time went into, and a timeline.

    imported = read_kineto(["rank0.json.gz", "rank1.json.gz"])
    imported.get_step("best").phases_s, imported.meta["messages_s"], imported.timeline

The trace of one rank is decoded first:

    rank = decode_rank(read_events(Path("rank0.json.gz")))
    rank.compute_phases_s(rank.steps[0])  # {"forward": 0.31, "backward": 0.58, "recompute": 0.2, "gap": 0.01}

Phases: forward, backward, recompute, optimizer, other computing; messages that run beside no computing, by their
parallel dimension (tensor, context, experts, pipeline, data); copies from and to the host; gaps in which nothing runs.
They add up to the iteration. A trace without a device is read from its host operators.

Iterations are those that the profiler recorded (`ProfilerStep#12`); else they end with the update; else the trace is
one. A kernel belongs to what launched it, found by its correlation id: within a function of the backward engine it is
backward; if there an operator is recorded for a backward pass to come, the forward pass is done again: recomputation.

In the timeline a rank has a lane for what it computes and one for each parallel dimension it sends messages for.
Kernels of one pass that follow each other closely are one span; the phases are of the kernels themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosszone.calibrate.imported import MOST_NAME, ImportedRun, ImportedStep
from crosszone.calibrate.kineto_events import (
    COLLECTIVE_OPERATOR,
    COPY_KERNEL,
    DIMENSIONS,
    ENGINE_OPERATOR,
    FORWARD_OPERATOR,
    MESSAGE_KERNEL,
    Events,
    Floats,
    HostAnnotation,
    Ints,
    ProcessGroup,
    find_inside_by_key,
    gather,
    infer_dimension_from_name,
    infer_dimension_from_ranks,
    infer_dimension_from_use,
    list_stretches,
    measure_covered_s,
    measure_owned_s,
)
from crosszone.calibrate.kineto_json import iterate_members
from crosszone.calibrate.stability import find_median_iteration, measure_stability, resolve_iteration
from crosszone.calibrate.user_files import build_unreadable_error, iterate_chunks
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.value import parse
from crosszone.schedule.trace import MAX_LANES, Trace

# Kinds of computing, in the order in which they own a moment when several run at once.
PASSES = ("recompute", "backward", "forward", "optimizer", "other")
# Messages by the parallel dimension they belong to; the last: not known to which.
MESSAGES = ("tensor", "context", "experts", "pipeline", "data", "messages")
# What an iteration is made of: computing, messages that run beside no computing, copies, nothing.
PHASES = (*PASSES, *MESSAGES, "copy", "gap")
# The same, as they are shown.
DISPLAY_ORDER = ("forward", "backward", "recompute", "optimizer", "other", *MESSAGES, "copy", "gap")
RECOMPUTE, BACKWARD, FORWARD, OPTIMIZER, OTHER = range(5)
FIRST_MESSAGE = len(PASSES)
COPIES = FIRST_MESSAGE + len(MESSAGES)
PHASE_COUNT = COPIES + 1


@dataclass(eq=False)
class TimedWork:
    """Kernels and copies (or host operators) with when each was launched, as columns."""

    start: Floats
    end: Floats
    phase: Ints
    """Position in `PHASES`; of a message, the pass that launched it."""
    collective: Ints
    """Position of a message's collective among `Events.kinds`; -1: no message."""
    launched: Floats
    """Time of the launch; where it is not known, the start."""
    notices: list[Notice] = field(default_factory=list)


def collect_device_work(events: Events) -> TimedWork:
    """Kernels and copies, each with the pass that launched it."""
    _, start, end, correlation, external, kernel_kind, stated_collective = events.kernels.to_arrays()
    launch_index, has_launch = _find_launches(events, correlation)
    _, thread, launched_at = events.launches.to_arrays()
    launched = np.where(has_launch, launched_at[launch_index], start) if len(launched_at) else start.copy()
    launch_thread = np.where(has_launch, thread[launch_index], -1) if len(launched_at) else np.full(len(start), -1)
    passes = _classify_passes(events, launch_thread, launched)
    passes[~has_launch] = OTHER
    passes[kernel_kind == COPY_KERNEL] = COPIES
    message = np.flatnonzero(kernel_kind == MESSAGE_KERNEL)
    collective = np.full(len(kernel_kind), -1, np.int64)
    # Older traces repeat the correlation as external id, which then identifies no host call.
    repeats_correlation = external[message] == correlation[message]
    collective[message] = _find_collectives(
        events,
        stated_collective[message],
        np.where(repeats_correlation, -1, external[message]),
        launch_thread[message],
        launched[message],
    )
    work = TimedWork(start, end, passes, collective, launched)
    if without_launch := int((~has_launch).sum()):
        params = {"count": without_launch, "of": len(has_launch)}
        work.notices.append(Notice(code="kineto_no_launch", level="warning", params=params))
    return work


def collect_host_work(events: Events) -> TimedWork:
    """Host operators and collectives, for a trace without a device."""
    thread, begin, end, operator_kind = events.operators.to_arrays()
    computes = operator_kind != COLLECTIVE_OPERATOR
    thread, begin, end = thread[computes], begin[computes], end[computes]
    passes = _classify_passes(events, thread, begin)
    _, call_start, call_end, _, collective = events.collectives.to_arrays()
    order = np.argsort(begin, kind="stable")
    operator_before = np.searchsorted(begin[order], call_start, side="right") - 1
    pass_of_call = passes[order][np.maximum(operator_before, 0)] if len(order) else np.full(len(call_start), FORWARD)
    host_updates = events.updates
    start = np.concatenate([begin, [update.start_s for update in host_updates], call_start])
    return TimedWork(
        start=start,
        end=np.concatenate([end, [update.end_s for update in host_updates], call_end]),
        phase=np.concatenate([passes, np.full(len(host_updates), OPTIMIZER), pass_of_call]).astype(np.int64),
        collective=np.concatenate([np.full(len(passes) + len(host_updates), -1), collective]).astype(np.int64),
        launched=start.copy(),
    )


def _find_launches(events: Events, correlation: Any) -> tuple[Ints, NDArray[np.bool_]]:
    """Position of the launch of each kernel, and whether it is there."""
    launches = events.launches.to_arrays()[0]
    if not len(launches):
        return np.zeros(len(correlation), np.int64), np.zeros(len(correlation), bool)
    order = np.argsort(launches, kind="stable")
    index = np.minimum(np.searchsorted(launches, correlation, sorter=order), len(order) - 1)
    launch_index = order[index]
    return launch_index, np.asarray((launches[launch_index] == correlation) & (correlation >= 0))


def _classify_passes(events: Events, thread: Any, moment: Floats) -> Ints:
    """The pass that goes on where and when something is launched. [K41]"""
    operator_thread, begin, end, operator_kind = events.operators.to_arrays()
    is_engine, is_forward_operator = operator_kind == ENGINE_OPERATOR, operator_kind == FORWARD_OPERATOR
    if is_engine.any():
        in_backward = find_inside_by_key(thread, moment, operator_thread[is_engine], begin[is_engine], end[is_engine])
    else:
        in_backward = np.isin(thread, list(events.backward_threads))
    in_recompute = in_backward & find_inside_by_key(
        thread, moment, operator_thread[is_forward_operator], begin[is_forward_operator], end[is_forward_operator]
    )
    update_thread, update_start, update_end = (
        np.array([getattr(annotation, name) for annotation in events.updates], float)
        for name in ("thread", "start_s", "end_s")
    )
    in_update = find_inside_by_key(thread, moment, update_thread, update_start, update_end)
    passes = np.full(len(moment), FORWARD, np.int64)
    passes[in_update] = OPTIMIZER
    passes[in_backward] = BACKWARD
    passes[in_recompute] = RECOMPUTE
    return passes


def _find_collectives(events: Events, stated: Any, external: Any, launch_thread: Any, launched: Floats) -> Ints:
    """The collective of each message: as its kernel says, else as the host call around its launch says."""
    collectives = np.array(stated, np.int64)
    without_group = np.flatnonzero([events.kinds[number][1] == ProcessGroup() for number in collectives.tolist()])
    thread, begin, end, ids, call_collective = events.collectives.to_arrays()
    if not len(without_group) or not len(call_collective):
        return collectives
    by_external_id = {int(i): int(k) for i, k in zip(ids, call_collective, strict=True) if i >= 0}
    order = np.argsort(begin, kind="stable")
    thread, begin, end, call_collective = thread[order], begin[order], end[order], call_collective[order]
    for call_thread in np.unique(launch_thread[without_group]):
        messages = without_group[launch_thread[without_group] == call_thread]
        calls = np.flatnonzero(thread == call_thread)
        call_before = np.searchsorted(begin[calls], launched[messages], side="right") - 1
        for index, last in zip(messages.tolist(), call_before.tolist(), strict=True):
            # calls nest a few deep (a coalesced call, its parts): the innermost that still runs counts
            enclosing_calls = [i for i in calls[max(0, last - 3) : last + 1][::-1] if end[i] >= launched[index]]
            if enclosing_calls:
                collectives[index] = call_collective[enclosing_calls[0]]
            else:
                collectives[index] = by_external_id.get(int(external[index]), collectives[index])
    return collectives


Step = tuple[int, float, float]
MIN_KERNEL_SHARE = 0.9  # An iteration with a smaller share of the others' kernels was cut off by the recording


def find_steps(events: Events, work: TimedWork) -> list[Step]:
    """Number, start and end of each iteration, one after the other. [K45]

    A device works on what the host has launched long before. An iteration begins when the host begins it, or when the
    device has done the work of the iteration before, whichever is later; the last one ends when both have.
    """
    windows = _list_profiler_steps(events) or _split_by_updates(events, work)
    steps: list[Step] = []
    counts: list[int] = []
    reached = -math.inf
    for number, low, high in windows:
        in_window = (work.launched >= low) & (work.launched < high)
        counts.append(int(in_window.sum()))
        work_end = float(work.end[in_window].max()) if in_window.any() else low
        if steps:
            before = steps[-1]
            steps[-1] = (before[0], before[1], max(before[1], low, reached))
        start = max(low, reached)
        steps.append((number, start, max(start, high, work_end)))
        reached = max(reached, work_end)
    complete = [
        step for step, is_cut in zip(steps, _find_cut_short(counts), strict=True) if not is_cut and step[2] > step[1]
    ]
    if len(complete) < len(steps):
        cut_short = [step[0] for step in steps if step not in complete]
        work.notices.append(Notice(code="kineto_steps_short", level="warning", params={"steps": cut_short}))
    return complete[-MAX_LANES:]


def _find_cut_short(counts: list[int]) -> list[bool]:
    """Whether the first or the last of at least three iterations was not recorded whole: it has far fewer kernels."""
    is_cut = [False] * len(counts)
    if len(counts) >= 3:
        for end in (0, -1):
            other_counts = counts[1:] if end == 0 else counts[:-1]
            is_cut[end] = counts[end] < MIN_KERNEL_SHARE * float(np.median(other_counts))
    return is_cut


def assign_update_tail(events: Events, work: TimedWork) -> None:
    """What the forward thread launches after the last backward pass of an iteration belongs to its update. [K41]

    Norms and clipping of gradients stand there; what comes after the update is something else.
    """
    is_forward = (work.phase == FORWARD) & (work.collective < 0)
    backward = (work.phase == BACKWARD) | (work.phase == RECOMPUTE)
    windows = _list_profiler_steps(events) or _split_by_updates(events, work)
    for _, low, high in windows:
        in_window = (work.launched >= low) & (work.launched < high)
        if not (in_window & backward).any():
            continue
        last = float(work.launched[in_window & backward].max())
        ends = [annotation.end_s for annotation in events.updates if last <= annotation.end_s <= high]
        after_backward = in_window & is_forward & (work.launched > last)
        until = max(ends, default=last)
        work.phase[after_backward & (work.launched <= until)] = OPTIMIZER
        work.phase[after_backward & (work.launched > until)] = OTHER


def _list_profiler_steps(events: Events) -> list[Step]:
    """The iterations that `profiler.step()` marked, in order; a number that comes twice counts on."""
    steps: list[Step] = []
    for number, annotation in sorted(events.steps, key=lambda pair: pair[1].start_s):
        if steps and annotation.start_s < steps[-1][2] - 1e-9:
            continue  # the same step on another thread
        steps.append(
            (number if not steps or number > steps[-1][0] else steps[-1][0] + 1, annotation.start_s, annotation.end_s)
        )
    return steps


def _split_by_updates(events: Events, work: TimedWork) -> list[Step]:
    """Iterations that end with an update; several optimizers without a backward pass between are one update."""
    updates = sorted(
        (update for update in events.updates if "zero_grad" not in update.name), key=lambda update: update.start_s
    )
    backward = np.sort(work.launched[(work.phase == BACKWARD) | (work.phase == RECOMPUTE)])
    first = float(min(work.start.min(), work.launched.min())) if len(work.start) else 0.0
    ends: list[HostAnnotation] = []
    for update in updates:
        since = np.searchsorted(backward, ends[-1].start_s) if ends else 0
        if ends and np.searchsorted(backward, update.start_s) == since:
            ends[-1] = update
        else:
            ends.append(update)
    steps: list[Step] = []
    low = first
    for number, update in enumerate(ends, 1):
        steps.append((number, low, update.end_s))
        low = update.end_s
    if not steps:
        compute = work.phase <= COPIES
        high = float(max(work.end[compute].max(), work.launched.max())) if len(work.end) else 0.0
        steps = [(0, first, np.nextafter(high, np.inf).item())]
    return steps


MOST_NS = 10**19  # A clock that is farther from 1970 than this (317 years) is none
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class DecodedRank:
    """The trace of one rank: what ran when, in which phase, and its steps."""

    start_s: Floats
    end_s: Floats
    phase: Ints
    """Position in `PHASES`."""
    carries: Ints
    """Of a message of data parallelism: 1 where it carries parameters, else 0."""
    steps: tuple[Step, ...]
    groups: tuple[dict[str, Any], ...]
    """Process groups: name, size, parallel dimension ("way"), and how it is known."""
    about: Mapping[str, Any]
    """Members of the document besides its events."""
    notices: tuple[Notice, ...]
    bad: int
    offset_s: float
    """Time of 0 s by the clock of the machine."""
    events: int

    def compute_phases_s(self, step: Step) -> dict[str, float]:
        """Seconds of a step by phase; they add up to it. [K42]"""
        members = np.flatnonzero((self.start_s < step[2]) & (self.end_s > step[1]))
        owned_s = measure_owned_s(
            self.start_s[members], self.end_s[members], self.phase[members], step[1], step[2], PHASE_COUNT
        )
        by_name = dict(zip(PHASES, owned_s.tolist(), strict=True))
        return {name: by_name[name] for name in DISPLAY_ORDER if by_name[name] > 0}

    def compute_messages_s(self, step: Step) -> dict[str, float]:
        """Seconds in which messages of each dimension run, also beside computing."""
        start, end = np.clip(self.start_s, step[1], step[2]), np.clip(self.end_s, step[1], step[2])
        is_dimension = {dimension: self.phase == FIRST_MESSAGE + index for index, dimension in enumerate(MESSAGES)}
        return {
            dimension: measure_covered_s(start[members], end[members])
            for dimension, members in is_dimension.items()
            if members.any()
        }

    @property
    def rank(self) -> int | None:
        """Its rank, where the trace says so."""
        info = self.about.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) and 0 <= rank < 10**9 else None


def read_events(path: Path, progress: Progress | None = None) -> Events:
    """The events of a file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            report_progress = None if progress is None else (lambda done: progress("trace", done, size))
            return gather(
                iterate_members(iterate_chunks(file, path.name, progress=report_progress), path.name), path.name
            )
    except OSError as error:
        raise build_unreadable_error(path, error) from None


def decode_rank(
    events: Events,
    *,
    groups: Mapping[str, str] | None = None,
    degrees: Mapping[str, int] | None = None,
    file: str = "<file>",
) -> DecodedRank:
    """The trace of one rank from its events; `groups`: dimension by group name, `degrees`: those of the strategy."""
    on_device = len(events.kernels) > 0
    work = collect_device_work(events) if on_device else collect_host_work(events)
    steps = find_steps(events, work)
    assign_update_tail(events, work)
    dimensions, group_rows = _assign_dimensions(events, work, groups or {}, degrees or {})
    is_message = work.collective >= 0
    phase = work.phase.copy()
    phase[is_message] = FIRST_MESSAGE + dimensions[work.collective[is_message], work.phase[is_message]]
    gathers = np.array([name in ("all_gather", "broadcast") for name, _ in events.kinds] or [False])
    base = events.about.get("baseTimeNanoseconds")
    base = base if isinstance(base, int | float) and abs(base) < MOST_NS else 0
    return DecodedRank(
        start_s=work.start,
        end_s=work.end,
        phase=phase,
        carries=np.where(is_message, gathers[work.collective], False).astype(np.int64),
        steps=tuple(steps),
        groups=tuple(group_rows),
        about=events.about,
        notices=tuple(_build_notices(events, work, group_rows, file)),
        bad=events.bad,
        offset_s=(events.first_us or 0.0) * 1e-6 + base * 1e-9,
        events=events.count,
    )


def _build_notices(events: Events, work: TimedWork, group_rows: Sequence[Mapping[str, Any]], file: str) -> list[Notice]:
    notices = [*events.notices, *(notice.with_place(file, None) for notice in work.notices)]
    guessed = [f"{row['group']}: {row['way']}" for row in group_rows if row["known_by"] == "use"]
    if guessed:
        params = {"groups": guessed}
        notices.append(Notice(code="kineto_groups_guessed", level="warning", params=params, file=file))
    if not len(events.kernels):
        notices.append(Notice(code="kineto_no_device", level="note", file=file))
    if not events.steps:
        notices.append(Notice(code="kineto_no_steps", level="note", file=file))
    return notices


def _assign_dimensions(
    events: Events, work: TimedWork, assignments: Mapping[str, str], degrees: Mapping[str, int]
) -> tuple[Ints, list[dict[str, Any]]]:
    """Position in `MESSAGES` by collective and pass, and what is known of each group.

    Messages without a known group are assigned one by one, by their collective.
    """
    uses: dict[ProcessGroup, dict[tuple[int, int], tuple[str, str]]] = {}
    message = work.collective >= 0
    for number, phase in np.unique(np.stack([work.collective[message], work.phase[message]]), axis=1).T.tolist():
        collective, group = events.kinds[number]
        uses.setdefault(group, {})[number, phase] = (collective, PASSES[phase] if phase < len(PASSES) else "other")
    dimensions = np.full((max(1, len(events.kinds)), PHASE_COUNT), len(DIMENSIONS) - 1, np.int64)
    group_rows = []
    for group, used in uses.items():
        dimension, known_by = _infer_dimension(group, set(used.values()), assignments, degrees)
        is_unnamed = group == ProcessGroup()
        dimension_by_use = {use: infer_dimension_from_use({use}) if is_unnamed else dimension for use in used.values()}
        for (number, phase), use in used.items():
            dimensions[number, phase] = DIMENSIONS.index(dimension_by_use[use])
        about = {"group": group.display_name, "size": group.size or len(group.ranks)}
        used_dimensions = sorted(set(dimension_by_use.values()))
        group_rows += [{**about, "way": used_dimension, "known_by": known_by} for used_dimension in used_dimensions]
    return dimensions, group_rows


def _infer_dimension(
    group: ProcessGroup, used: set[tuple[str, str]], assignments: Mapping[str, str], degrees: Mapping[str, int]
) -> tuple[str, str]:
    """The parallel dimension of a group, and how it is known: what the user says comes first, a guess last."""
    names = [name.lower() for name in (group.about, group.name) if name]
    assigned = next((assignments[name] for name in names if name in assignments), None)
    if assigned is not None:
        return assigned, "told"
    from_name = infer_dimension_from_name(group.about) or infer_dimension_from_name(group.name)
    if from_name is not None:
        return from_name, "name"
    from_ranks = infer_dimension_from_ranks(group, degrees)
    return (from_ranks, "ranks") if from_ranks is not None else (infer_dimension_from_use(used), "use")


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
