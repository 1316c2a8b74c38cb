"""Timeline: who does what when, during one optimizer step. [S10]

    timeline = build_timeline(simulate("1f1b", stages=4, micro_batches=8, forward_s=0.1, backward_s=0.2))
    lane = Lane(id="gradients-0", name="gradients of stage 0", group="gradients")
    timeline = timeline.with_spans(lane, "gradients", start_s=3.3, end_s=3.6)
    timeline.step_s, timeline.idle_s             # 3.6, array [lanes]
    timeline.to_trace("three cities")            # the one format of predicted and measured steps

Spans are columns, not objects: thousands cost little. Spans and idle time of a lane add up to the step.

`build_view`: a timeline as a page draws it: lanes with what they do, spans and bubbles as columns, phases, totals.

    build_view(timeline)["lanes"][0]    # {"id": "stage-0", "utilisation": 0.73, "idle_s": 9.0, "parts": {...}, ...}
    build_view(timeline)["spans"]       # {"lane": [...], "kind": [...], "start_s": [...], ...}: columns
    build_view(timeline, from_s=120)    # a step of more than 20,000 spans comes in windows

Parts and idle time of each lane add up to the step, and so do the totals and the phases. [S10] [S13]

`list_phases`: how a step fills the pipeline, works, drains it, exchanges gradients and updates. [S13]

1F1B, 4 stages, 8 micro-batches, forward 1 s, backward 2 s:

warm_up     0 ..  4     until the first backward pass begins
steady      4 .. 25     until the last forward pass has ended
cool_down  25 .. 33     until the last pass has ended
tail       33 .. end    gradients, update and what else the step waits for

`build_micro_batch_view`: one micro-batch on its way through stages and links, and how busy the GPUs are. [S14]

    view = build_micro_batch_view(timeline, 3)
    view["usage"], view["stages"][0]    # 0.71, {"usage": 0.94, "own_s": 3.0, "other_s": 11.1, "waiting_s": 0.9, ...}

`compare_timelines`: a predicted step beside a measured one, phase by phase, kind by kind, lane by lane. [S15]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.value import parse
from crosszone.schedule.orders import BACKWARD, KIND_NAMES, list_stages_in_order
from crosszone.schedule.simulation import Simulation
from crosszone.schedule.trace import Lane, SpanKind, Trace

KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
NONE = -1  # Micro-batch or chunk of a span that belongs to none
STAGES = "stages"  # Group of the lanes that compute

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Lanes, and spans as columns: spans of one lane do not overlap."""

    lanes: tuple[Lane, ...]
    lane: Ints
    """Position of each span's lane in `lanes`."""
    kind: Ints
    """Position of each span's kind in `KINDS`."""
    start_s: Floats
    end_s: Floats
    micro_batch: Ints
    chunk: Ints
    stated_s: float = 0.0
    """How long the step took, where that was measured: it may go on after the last span."""

    @cached_property
    def step_s(self) -> float:
        """End of the last span: the time of the step."""
        return max(self.stated_s, float(self.end_s.max())) if len(self.end_s) else self.stated_s

    @cached_property
    def busy_s(self) -> Floats:
        """Time each lane is at work: array [lanes]."""
        return np.bincount(self.lane, weights=self.end_s - self.start_s, minlength=len(self.lanes)).astype(float)

    @cached_property
    def idle_s(self) -> Floats:
        """Time each lane waits, of the whole step: array [lanes]. [S10]"""
        return np.asarray(self.step_s - self.busy_s)

    @cached_property
    def stages(self) -> Ints:
        """Positions of the lanes that compute: those of stages, or all where no lane is called one."""
        stage_lanes = [index for index, lane in enumerate(self.lanes) if lane.group == STAGES]
        return np.array(stage_lanes or range(len(self.lanes)), np.int32)

    def with_spans(
        self,
        lane: Lane,
        kind: SpanKind,
        start_s: ArrayLike,
        end_s: ArrayLike,
        micro_batch: ArrayLike = NONE,
        chunk: ArrayLike = NONE,
    ) -> Timeline:
        """The same with spans of one kind on a lane, which is added if it is not there yet."""
        lane_numbers = {existing.id: index for index, existing in enumerate(self.lanes)}
        start, end, micro, part = np.broadcast_arrays(*map(np.atleast_1d, (start_s, end_s, micro_batch, chunk)))
        if not (np.all(start >= 0) and np.all(end >= start)):
            raise ValueError("spans start at 0 or later and do not end before they start")
        return replace(
            self,
            lanes=self.lanes if lane.id in lane_numbers else (*self.lanes, lane),
            lane=_concatenate(self.lane, np.full(len(start), lane_numbers.get(lane.id, len(self.lanes)))),
            kind=_concatenate(self.kind, np.full(len(start), KINDS.index(kind))),
            start_s=np.concatenate([self.start_s, start]),
            end_s=np.concatenate([self.end_s, end]),
            micro_batch=_concatenate(self.micro_batch, micro),
            chunk=_concatenate(self.chunk, part),
        )

    def to_trace(self, name: str, **meta: str | int | float | bool) -> Trace:
        """The timeline as a trace of one predicted step."""
        lane_ids = [lane.id for lane in self.lanes]
        columns = (self.lane, self.kind, self.start_s, self.end_s, self.micro_batch, self.chunk)
        spans = []
        for lane, kind, start, end, micro, chunk in zip(*(column.tolist() for column in columns), strict=True):
            span = {"lane": lane_ids[lane], "kind": KINDS[kind], "start_s": start, "end_s": end}
            if micro != NONE:
                span["micro_batch"] = micro
            if chunk != NONE:
                span["chunk"] = chunk
            spans.append(span)
        steps = [{"step": 0, "start_s": 0.0, "end_s": self.step_s}]
        lanes = [lane.to_plain() for lane in self.lanes]
        document = {"version": 1, "kind": "predicted", "name": name, "unit": "s", "lanes": lanes}
        return parse(Trace, document | {"spans": spans, "steps": steps, "meta": meta})


def build_timeline(simulation: Simulation, stage_names: tuple[str, ...] | None = None) -> Timeline:
    """The timeline of one simulated step: a lane for each stage, and one for each link and direction that is used."""
    if simulation.times.shape[1] != 1:
        raise ValueError("a timeline shows one step: simulate it alone")
    graph, orders = simulation.shape, simulation.shape.orders
    names = stage_names or tuple(f"stage {stage}" for stage in range(graph.stages))
    stages = tuple(Lane(id=f"stage-{index}", name=name, group=STAGES) for index, name in enumerate(names))
    send_start_s, sent_s = simulation.send_start_s.ravel(), simulation.send_end_s.ravel()
    used = np.flatnonzero(sent_s > send_start_s)
    stage_of_part = list_stages_in_order(orders.schedule, graph.stages, graph.chunks)
    back = graph.send_kind[used] == BACKWARD
    boundary = graph.send_boundary[used]
    sender, receiver = stage_of_part[boundary + back], stage_of_part[boundary + 1 - back]
    pairs, link_of_send = np.unique(sender * graph.stages + receiver, return_inverse=True)
    links = tuple(_build_link_lane(names, *divmod(int(pair), graph.stages)) for pair in pairs)
    stage = np.repeat(np.arange(graph.stages), orders.kind.shape[1])
    kinds = np.array([KINDS.index(kind) for kind in (*KIND_NAMES, "send")])
    return Timeline(
        lanes=stages + links,
        lane=_concatenate(stage, graph.stages + link_of_send),
        kind=_concatenate(kinds[orders.kind.ravel()], np.full(len(used), kinds[-1])),
        start_s=np.concatenate([simulation.start_s.ravel(), send_start_s[used]]),
        end_s=np.concatenate([simulation.end_s.ravel(), sent_s[used]]),
        micro_batch=_concatenate(orders.micro_batch.ravel(), graph.send_micro_batch[used]),
        chunk=_concatenate(orders.chunk.ravel(), np.full(len(used), NONE)),
    )


def _build_link_lane(names: tuple[str, ...], sender: int, receiver: int) -> Lane:
    return Lane(id=f"link-{sender}-{receiver}", name=f"{names[sender]} > {names[receiver]}", group="links")


def _concatenate(*columns: ArrayLike) -> Ints:
    return np.concatenate([np.asarray(column, np.int32) for column in columns])


PHASES = ("warm_up", "steady", "cool_down", "tail")
PASSES: tuple[SpanKind, ...] = ("forward", "backward", "weight")
COMPUTE: tuple[SpanKind, ...] = (*PASSES, "optimizer")  # Kinds that keep the GPU itself at work
NOISE = 1e-12  # Share of a time below which a difference is rounding: else a full lane would show hairline bubbles
COMMUNICATION: tuple[SpanKind, ...] = ("send", "tensor", "experts", "gradients", "parameters")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of a step, and what the average stage does in it."""

    phase: str
    start_s: float
    end_s: float
    busy_s: float
    """Time the average stage's lane is at work."""
    idle_s: float
    """Time it waits: bubbles."""
    exposed_s: float
    """Time in which something communicates and no stage computes."""

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.end_s - self.start_s


def list_phases(timeline: Timeline) -> tuple[Phase, ...]:
    """The four phases, which add up to the step; one that a schedule does not have is 0 s long. [S13]

    GPipe has no steady phase: its first backward pass begins when the last forward pass has ended.
    """
    step = timeline.step_s
    backward, forward, passes = (_select_kinds(timeline, kinds) for kinds in (("backward",), ("forward",), PASSES))
    ended = float(timeline.end_s[passes].max()) if passes.any() else 0.0
    filled = float(timeline.start_s[backward].min()) if backward.any() else ended
    emptied = float(timeline.end_s[forward].max()) if forward.any() else filled
    marks = [0.0, filled, max(filled, emptied), ended, step]
    return tuple(_build_phase(timeline, name, *between) for name, between in zip(PHASES, pairwise(marks), strict=True))


def measure_busy_s(timeline: Timeline, start_s: ArrayLike, end_s: ArrayLike) -> NDArray[np.float64]:
    """Seconds of each span that lie between two times, the same for all spans or one pair for each."""
    inside = np.minimum(timeline.end_s, end_s) - np.maximum(timeline.start_s, start_s)
    return np.asarray(np.maximum(0.0, inside))


def measure_exposed_s(timeline: Timeline, start_s: float, end_s: float) -> float:
    """Seconds between two times in which something communicates and no stage computes. [S13]"""
    sends = _select_kinds(timeline, COMMUNICATION)
    works = _select_kinds(timeline, COMPUTE) & np.isin(timeline.lane, timeline.stages)
    used = (sends | works) & (measure_busy_s(timeline, start_s, end_s) > 0)
    begins, ends = np.maximum(timeline.start_s[used], start_s), np.minimum(timeline.end_s[used], end_s)
    at = np.concatenate([begins, ends])
    order = np.argsort(at, kind="stable")
    sending, working = (
        np.cumsum(np.concatenate([selection[used] * 1, selection[used] * -1])[order])[:-1] > 0
        for selection in (sends, works)
    )
    return float(np.diff(at[order])[sending & ~working].sum()) if len(at) else 0.0


def _build_phase(timeline: Timeline, name: str, start_s: float, end_s: float) -> Phase:
    on_stages = np.isin(timeline.lane, timeline.stages)
    busy = float(measure_busy_s(timeline, start_s, end_s)[on_stages].sum()) / max(1, len(timeline.stages))
    idle = end_s - start_s - busy
    return Phase(
        phase=name,
        start_s=start_s,
        end_s=end_s,
        busy_s=busy,
        idle_s=idle if idle > (end_s - start_s) * NOISE else 0.0,
        exposed_s=measure_exposed_s(timeline, start_s, end_s),
    )


def _select_kinds(timeline: Timeline, kinds: tuple[SpanKind, ...]) -> NDArray[np.bool_]:
    return np.isin(timeline.kind, [KINDS.index(kind) for kind in kinds])


MAX_VIEW_SPANS = 20_000  # Spans drawn at once; the rest of a longer step is a window further
IDLE = "idle"


def build_view(timeline: Timeline, *, from_s: float = 0.0, max_spans: int = MAX_VIEW_SPANS) -> dict[str, Any]:
    """The drawable document of one step; spans and bubbles from `from_s` on, at most `max_spans` spans."""
    window_spans, window = _select_window(timeline, from_s, max_spans)
    phases = _list_phase_rows(timeline)
    return {
        "step_s": timeline.step_s,
        "summary": _summarize(timeline, phases),
        "kinds": list(KINDS),
        "lanes": list_lanes(timeline),
        "spans": list_span_columns(timeline, window_spans),
        "bubbles": _list_bubbles(timeline, window["from_s"], window["to_s"]),
        "window": window,
        "phases": phases,
        "totals": list_lane_totals(timeline),
        "micro_batches": int(timeline.micro_batch.max(initial=NONE)) + 1,
    }


def list_lanes(timeline: Timeline) -> list[dict[str, Any]]:
    """Each lane with its time by kind; parts and idle time add up to the step. [S10]"""
    parts, step = _sum_parts(timeline), timeline.step_s
    return [
        {
            "id": lane.id,
            "name": lane.name,
            "group": lane.group,
            "busy_s": float(busy),
            "idle_s": float(idle),
            "utilisation": float(busy) / step if step else 0.0,
            "parts": {kind: float(seconds) for kind, seconds in zip(KINDS, row, strict=True) if seconds},
        }
        for lane, busy, idle, row in zip(timeline.lanes, timeline.busy_s, timeline.idle_s, parts, strict=True)
    ]


def list_lane_totals(timeline: Timeline) -> list[dict[str, Any]]:
    """What the average stage does, by kind, and how long it waits; they add up to the step. [S10]"""
    step, stages = timeline.step_s, timeline.stages
    mean = _sum_parts(timeline)[stages].mean(axis=0) if len(stages) else np.zeros(len(KINDS))
    seconds_by_kind = {str(kind): float(seconds) for kind, seconds in zip(KINDS, mean, strict=True) if seconds}
    seconds_by_kind[IDLE] = step - sum(seconds_by_kind.values())
    return [{"kind": kind, "seconds": s, "share": s / step if step else 0.0} for kind, s in seconds_by_kind.items()]


def list_span_columns(timeline: Timeline, which: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Some of the spans, as columns; `lane` and `kind` are positions in the lists of lanes and kinds."""
    names = ("lane", "kind", "start_s", "end_s", "micro_batch", "chunk")
    return {name: getattr(timeline, name)[which].tolist() for name in names}


def _sum_parts(timeline: Timeline) -> NDArray[np.float64]:
    """Seconds by lane and kind."""
    shape = (len(timeline.lanes), len(KINDS))
    cell = timeline.lane.astype(np.int64) * len(KINDS) + timeline.kind
    seconds = timeline.end_s - timeline.start_s
    return np.bincount(cell, weights=seconds, minlength=shape[0] * shape[1]).reshape(shape).astype(float)


def _select_window(timeline: Timeline, from_s: float, max_spans: int) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """The spans of a window, by their start, and what it leaves out."""
    order = np.argsort(timeline.start_s, kind="stable")
    first = max(0.0, min(from_s, timeline.step_s))
    candidates = order[timeline.end_s[order] >= first] if first else order
    to_s = float(timeline.start_s[candidates[max_spans]]) if len(candidates) > max_spans else timeline.step_s
    selected = candidates[:max_spans]
    left_out = len(order) - len(selected)
    return selected, {"from_s": first, "to_s": to_s, "spans": len(order), "shown": len(selected), "left_out": left_out}


def _list_bubbles(timeline: Timeline, from_s: float, to_s: float) -> dict[str, list[Any]]:
    """Times in which a stage waits, as columns. [S10]"""
    on_stages = np.flatnonzero(np.isin(timeline.lane, timeline.stages))
    step = np.full(len(timeline.stages), timeline.step_s)  # an empty span at the end of each lane: the last wait
    lane = np.concatenate([timeline.lane[on_stages], timeline.stages])
    start, end = (np.concatenate([times[on_stages], step]) for times in (timeline.start_s, timeline.end_s))
    order = np.lexsort((end, start, lane))
    lane, start, end = lane[order], start[order], end[order]
    before = np.concatenate([[0.0], end[:-1]])
    before[np.flatnonzero(np.diff(lane, prepend=-1))] = 0.0
    waits = (start - before > timeline.step_s * NOISE) & (start > from_s) & (before < to_s)
    return {"lane": lane[waits].tolist(), "start_s": before[waits].tolist(), "end_s": start[waits].tolist()}


def _summarize(timeline: Timeline, phases: list[dict[str, Any]]) -> dict[str, Any]:
    """The step, and of it what the average stage works and waits, and what exposed communication takes."""
    step = timeline.step_s
    parts = {
        "step": step,
        "busy": sum(phase["busy_s"] for phase in phases),
        "idle": sum(phase["idle_s"] for phase in phases),
        "exposed": sum(phase["exposed_s"] for phase in phases),
    }
    shares = {name: {"seconds": s, "share": s / step if step else 0.0} for name, s in parts.items()}
    return {**shares, "utilisation": shares["busy"]["share"]}


def _list_phase_rows(timeline: Timeline) -> list[dict[str, Any]]:
    step = timeline.step_s
    return [
        {
            "phase": phase.phase,
            "start_s": phase.start_s,
            "end_s": phase.end_s,
            "seconds": phase.seconds,
            "share": phase.seconds / step if step else 0.0,
            "busy_s": phase.busy_s,
            "idle_s": phase.idle_s,
            "exposed_s": phase.exposed_s,
            "utilisation": phase.busy_s / phase.seconds if phase.seconds else None,
        }
        for phase in list_phases(timeline)
    ]


def build_micro_batch_view(timeline: Timeline, number: int) -> dict[str, Any]:
    """Every span of one micro-batch in order, its stages and links, and how busy the GPUs are meanwhile. [S14]"""
    spans = np.flatnonzero(timeline.micro_batch == number)
    if not len(spans):
        limit = int(timeline.micro_batch.max(initial=-1))
        code = "micro_batch_unknown" if limit >= 0 else "micro_batch_none"
        raise InvalidError(Notice(code=code, field="micro_batch", value=number, params={"limit": limit}))
    spans = spans[np.lexsort((timeline.end_s[spans], timeline.start_s[spans]))]
    started_s, ended_s = timeline.start_s[spans], np.maximum.accumulate(timeline.end_s[spans])
    start, end = float(started_s[0]), float(ended_s[-1])
    waits = np.maximum(0.0, started_s - np.concatenate([[start], ended_s[:-1]]))
    computed = _measure_computed_s(timeline, np.full(len(timeline.lanes), start), np.full(len(timeline.lanes), end))
    return {
        "micro_batch": number,
        "start_s": start,
        "end_s": end,
        "seconds": end - start,
        "usage": _compute_share(float(computed[timeline.stages].mean()), end - start),
        "spans": {**list_span_columns(timeline, spans), "wait_s": waits.tolist()},
        "stages": _list_stage_usage(timeline, spans),
        "links": _list_link_usage(timeline, spans, end - start),
    }


def _list_stage_usage(timeline: Timeline, spans: NDArray[np.int64]) -> list[dict[str, Any]]:
    """From the first to the last span of the micro-batch on each stage: own compute, that of others, waiting. [S14]"""
    lane, lanes = timeline.lane[spans], len(timeline.lanes)
    first, last = np.full(lanes, np.inf), np.full(lanes, -np.inf)
    np.minimum.at(first, lane, timeline.start_s[spans])
    np.maximum.at(last, lane, timeline.end_s[spans])
    compute_s = (timeline.end_s[spans] - timeline.start_s[spans]) * _is_compute(timeline)[spans]
    own_s = np.bincount(lane, weights=compute_s, minlength=lanes)
    all_s = _measure_computed_s(timeline, first, last)
    return [
        {
            "lane": int(at),
            "start_s": float(first[at]),
            "end_s": float(last[at]),
            "seconds": (seconds := float(last[at] - first[at])),
            "own_s": float(own_s[at]),
            "other_s": max(0.0, float(all_s[at] - own_s[at])),
            "waiting_s": max(0.0, seconds - float(all_s[at])),
            "usage": _compute_share(float(all_s[at]), seconds),
            "own_share": _compute_share(float(own_s[at]), seconds),
        }
        for at in np.intersect1d(lane, timeline.stages)
    ]


def _list_link_usage(timeline: Timeline, spans: NDArray[np.int64], seconds: float) -> list[dict[str, Any]]:
    """What the micro-batch puts on each link."""
    lane, lanes = timeline.lane[spans], len(timeline.lanes)
    busy = np.bincount(lane, weights=timeline.end_s[spans] - timeline.start_s[spans], minlength=lanes)
    messages = np.bincount(lane, minlength=lanes)
    return [
        {
            "lane": int(at),
            "messages": int(messages[at]),
            "busy_s": float(busy[at]),
            "share": _compute_share(float(busy[at]), seconds),
        }
        for at in np.setdiff1d(lane, timeline.stages)
    ]


def _measure_computed_s(timeline: Timeline, first: Floats, last: Floats) -> Floats:
    """Seconds each lane computes, for any micro-batch, between two times of its own."""
    inside = measure_busy_s(timeline, first[timeline.lane], last[timeline.lane]) * _is_compute(timeline)
    return np.bincount(timeline.lane, weights=inside, minlength=len(timeline.lanes)).astype(float)


def _is_compute(timeline: Timeline) -> NDArray[np.bool_]:
    return np.isin(timeline.kind, [KINDS.index(kind) for kind in COMPUTE])


def _compute_share(part: float, total: float) -> float:
    return min(1.0, part / total) if total else 0.0


def compare_timelines(predicted: Timeline, measured: Timeline) -> dict[str, Any]:
    """Seconds of both and by how many % the prediction lies above what was measured. [S15]

    Kinds are compared as the mean over the lanes that do them, so that a trace of some ranks can be compared too.
    """
    measured_phases = {phase.phase: phase.seconds for phase in list_phases(measured)}
    predicted_kinds, measured_kinds = _sum_by_kind(predicted), _sum_by_kind(measured)
    busy = {lane.id: float(s) for lane, s in zip(measured.lanes, measured.busy_s, strict=True)}
    return {
        "step": _build_difference("step", predicted.step_s, measured.step_s),
        "phases": [
            _build_difference(phase.phase, phase.seconds, measured_phases[phase.phase])
            for phase in list_phases(predicted)
        ],
        "kinds": [
            _build_difference(k, predicted_kinds.get(k, 0.0), measured_kinds.get(k, 0.0))
            for k in (*KINDS, IDLE)
            if k in predicted_kinds or k in measured_kinds
        ],
        "lanes": [
            _build_difference(lane.id, float(seconds), busy[lane.id])
            for lane, seconds in zip(predicted.lanes, predicted.busy_s, strict=True)
            if lane.id in busy
        ],
    }


def _build_difference(part: str, predicted_s: float, measured_s: float) -> dict[str, Any]:
    above = predicted_s - measured_s
    percent = 100 * above / measured_s if measured_s else (0.0 if not predicted_s else None)
    return {
        "part": part,
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "difference_s": above,
        "difference_pct": percent,
    }


def _sum_by_kind(timeline: Timeline) -> dict[str, float]:
    """Seconds of each kind, mean of the lanes that do it; idle time: mean of the stages."""
    seconds_by_kind = {}
    for index, kind in enumerate(KINDS):
        of_kind = timeline.kind == index
        if of_kind.any():
            total = float((timeline.end_s[of_kind] - timeline.start_s[of_kind]).sum())
            seconds_by_kind[str(kind)] = total / len(np.unique(timeline.lane[of_kind]))
    if len(timeline.stages):
        seconds_by_kind[IDLE] = float(timeline.idle_s[timeline.stages].mean())
    return seconds_by_kind
