"""Timeline: who does what when, during one optimizer step. [S10]

    timeline = timeline_of(simulate("1f1b", stages=4, micro_batches=8, forward_s=0.1, backward_s=0.2))
    lane = Lane(id="gradients-0", name="gradients of stage 0", group="gradients")
    timeline = timeline.with_spans(lane, "gradients", start_s=3.3, end_s=3.6)
    timeline.step_s, timeline.idle_s             # 3.6, array [lanes]
    timeline.to_trace("three cities")            # the one format of predicted and measured steps

Spans are columns, not objects: thousands cost little. Spans and idle time of a lane add up to the step.

View: a timeline as a page draws it: lanes with what they do, spans and bubbles as columns, phases, totals.

    view_of(timeline)["lanes"][0]       # {"id": "stage-0", "utilisation": 0.73, "idle_s": 9.0, "parts": {...}, ...}
    view_of(timeline)["spans"]          # {"lane": [...], "kind": [...], "start_s": [...], ...}: columns
    view_of(timeline, from_s=120)       # a step of more than 20,000 spans comes in windows

Parts and idle time of each lane add up to the step, and so do the totals and the phases. [S10] [S13]

Phases: how a step fills the pipeline, works, empties it, exchanges gradients and updates. [S13]

1F1B, 4 stages, 8 micro-batches, forward 1 s, backward 2 s:

warm_up     0 ..  4     until the first backward pass begins
steady      4 .. 25     until the last forward pass has ended
cool_down  25 .. 33     until the last pass has ended
tail       33 .. end    gradients, update and what else the step waits for

One micro-batch of a step: its way through stages and links, and how busy the GPUs are meanwhile. [S14]

found = micro_batch_view(timeline, 3)
found["usage"], found["stages"][0]    # 0.71, {"usage": 0.94, "own_s": 3.0, "other_s": 11.1, "waiting_s": 0.9, ...}

Difference: a predicted step beside a measured one, phase by phase, kind by kind, lane by lane. [S15]
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
        found = [index for index, lane in enumerate(self.lanes) if lane.group == STAGES]
        return np.array(found or range(len(self.lanes)), np.int32)

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
        known = {one.id: index for index, one in enumerate(self.lanes)}
        start, end, micro, part = np.broadcast_arrays(*map(np.atleast_1d, (start_s, end_s, micro_batch, chunk)))
        if not (np.all(start >= 0) and np.all(end >= start)):
            raise ValueError("spans start at 0 or later and do not end before they start")
        return replace(
            self,
            lanes=self.lanes if lane.id in known else (*self.lanes, lane),
            lane=_joined(self.lane, np.full(len(start), known.get(lane.id, len(self.lanes)))),
            kind=_joined(self.kind, np.full(len(start), KINDS.index(kind))),
            start_s=np.concatenate([self.start_s, start]),
            end_s=np.concatenate([self.end_s, end]),
            micro_batch=_joined(self.micro_batch, micro),
            chunk=_joined(self.chunk, part),
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
    """The timeline of one simulated step: a lane for each stage, and one for each link and direction that is used.

    Where sends block, they stand on the lane of the stage that sends.
    """
    if simulation.times.shape[1] != 1:
        raise ValueError("a timeline shows one step: simulate it alone")
    shape, made = simulation.shape, simulation.shape.orders
    names = stage_names or tuple(f"stage {stage}" for stage in range(shape.stages))
    stages = tuple(Lane(id=f"stage-{index}", name=name, group=STAGES) for index, name in enumerate(names))
    begun, left = simulation.send_start_s.ravel(), simulation.send_end_s.ravel()
    used = np.flatnonzero(left > begun)
    held_by = list_stages_in_order(made.schedule, shape.stages, shape.chunks)
    back = shape.send_kind[used] == BACKWARD
    boundary = shape.send_boundary[used]
    sender, taker = held_by[boundary + back], held_by[boundary + 1 - back]
    place = sender
    links: tuple[Lane, ...] = ()
    if not shape.blocking:
        pairs, index = np.unique(sender * shape.stages + taker, return_inverse=True)
        place = shape.stages + index
        links = tuple(_link(names, *divmod(int(pair), shape.stages)) for pair in pairs)
    stage = np.repeat(np.arange(shape.stages), made.kind.shape[1])
    kinds = np.array([KINDS.index(kind) for kind in (*KIND_NAMES, "send")])
    return Timeline(
        lanes=stages + links,
        lane=_joined(stage, place),
        kind=_joined(kinds[made.kind.ravel()], np.full(len(used), kinds[-1])),
        start_s=np.concatenate([simulation.start_s.ravel(), begun[used]]),
        end_s=np.concatenate([simulation.end_s.ravel(), left[used]]),
        micro_batch=_joined(made.micro_batch.ravel(), shape.send_micro_batch[used]),
        chunk=_joined(made.chunk.ravel(), np.full(len(used), NONE)),
    )


def _link(names: tuple[str, ...], sender: int, taker: int) -> Lane:
    return Lane(id=f"link-{sender}-{taker}", name=f"{names[sender]} > {names[taker]}", group="links")


def _joined(*columns: ArrayLike) -> Ints:
    return np.concatenate([np.asarray(column, np.int32) for column in columns])


PHASES = ("warm_up", "steady", "cool_down", "tail")
PASSES: tuple[SpanKind, ...] = ("forward", "backward", "weight")
COMPUTE: tuple[SpanKind, ...] = (*PASSES, "optimizer")  # Kinds that keep the GPU itself at work
NOISE = 1e-12  # Share of a time below which what is left of it is a rounding error
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
    backward, forward, passes = (_of_kinds(timeline, kinds) for kinds in (("backward",), ("forward",), PASSES))
    ended = float(timeline.end_s[passes].max()) if passes.any() else 0.0
    filled = float(timeline.start_s[backward].min()) if backward.any() else ended
    emptied = float(timeline.end_s[forward].max()) if forward.any() else filled
    marks = [0.0, filled, max(filled, emptied), ended, step]
    return tuple(_phase(timeline, name, *between) for name, between in zip(PHASES, pairwise(marks), strict=True))


def measure_busy_s(timeline: Timeline, start_s: ArrayLike, end_s: ArrayLike) -> NDArray[np.float64]:
    """Seconds of each span that lie between two times, the same for all spans or one pair for each."""
    inside = np.minimum(timeline.end_s, end_s) - np.maximum(timeline.start_s, start_s)
    return np.asarray(np.maximum(0.0, inside))


def measure_exposed_s(timeline: Timeline, start_s: float, end_s: float) -> float:
    """Seconds between two times in which something communicates and no stage computes. [S13]"""
    sends = _of_kinds(timeline, COMMUNICATION)
    works = _of_kinds(timeline, COMPUTE) & np.isin(timeline.lane, timeline.stages)
    used = (sends | works) & (measure_busy_s(timeline, start_s, end_s) > 0)
    begins, ends = np.maximum(timeline.start_s[used], start_s), np.minimum(timeline.end_s[used], end_s)
    at = np.concatenate([begins, ends])
    order = np.argsort(at, kind="stable")
    sending, working = (
        np.cumsum(np.concatenate([one[used] * 1, one[used] * -1])[order])[:-1] > 0 for one in (sends, works)
    )
    return float(np.diff(at[order])[sending & ~working].sum()) if len(at) else 0.0


def _phase(timeline: Timeline, name: str, start_s: float, end_s: float) -> Phase:
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


def _of_kinds(timeline: Timeline, kinds: tuple[SpanKind, ...]) -> NDArray[np.bool_]:
    return np.isin(timeline.kind, [KINDS.index(kind) for kind in kinds])


MAX_VIEW_SPANS = 20_000  # Spans drawn at once; the rest of a longer step is a window further
IDLE = "idle"


def build_view(timeline: Timeline, *, from_s: float = 0.0, most: int = MAX_VIEW_SPANS) -> dict[str, Any]:
    """The drawable document of one step; spans and bubbles from `from_s` on, at most `most` spans."""
    shown, window = _window(timeline, from_s, most)
    phases = _phases(timeline)
    return {
        "step_s": timeline.step_s,
        "summary": _summary(timeline, phases),
        "kinds": list(KINDS),
        "lanes": list_lanes(timeline),
        "spans": columns(timeline, shown),
        "bubbles": _bubbles(timeline, window["from_s"], window["to_s"]),
        "window": window,
        "phases": phases,
        "totals": list_lane_totals(timeline),
        "micro_batches": int(timeline.micro_batch.max(initial=NONE)) + 1,
    }


def list_lanes(timeline: Timeline) -> list[dict[str, Any]]:
    """Each lane with its time by kind; parts and idle time add up to the step. [S10]"""
    parts, step = _parts(timeline), timeline.step_s
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
    mean = _parts(timeline)[stages].mean(axis=0) if len(stages) else np.zeros(len(KINDS))
    found = {str(kind): float(seconds) for kind, seconds in zip(KINDS, mean, strict=True) if seconds}
    found[IDLE] = step - sum(found.values())
    return [{"kind": kind, "seconds": s, "share": s / step if step else 0.0} for kind, s in found.items()]


def columns(timeline: Timeline, which: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Some of the spans, as columns; `lane` and `kind` are positions in the lists of lanes and kinds."""
    names = ("lane", "kind", "start_s", "end_s", "micro_batch", "chunk")
    return {name: getattr(timeline, name)[which].tolist() for name in names}


def _parts(timeline: Timeline) -> NDArray[np.float64]:
    """Seconds by lane and kind."""
    shape = (len(timeline.lanes), len(KINDS))
    cell = timeline.lane.astype(np.int64) * len(KINDS) + timeline.kind
    seconds = timeline.end_s - timeline.start_s
    return np.bincount(cell, weights=seconds, minlength=shape[0] * shape[1]).reshape(shape).astype(float)


def _window(timeline: Timeline, from_s: float, most: int) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """The spans of a window, by their start, and what it leaves out."""
    order = np.argsort(timeline.start_s, kind="stable")
    first = max(0.0, min(from_s, timeline.step_s))
    here = order[timeline.end_s[order] >= first] if first else order
    to_s = float(timeline.start_s[here[most]]) if len(here) > most else timeline.step_s
    shown = here[:most]
    left_out = len(order) - len(shown)
    return shown, {"from_s": first, "to_s": to_s, "spans": len(order), "shown": len(shown), "left_out": left_out}


def _bubbles(timeline: Timeline, from_s: float, to_s: float) -> dict[str, list[Any]]:
    """Times in which a stage waits, as columns. [S10]"""
    here = np.flatnonzero(np.isin(timeline.lane, timeline.stages))
    step = np.full(len(timeline.stages), timeline.step_s)  # an empty span at the end of each lane: the last wait
    lane = np.concatenate([timeline.lane[here], timeline.stages])
    start, end = (np.concatenate([times[here], step]) for times in (timeline.start_s, timeline.end_s))
    order = np.lexsort((end, start, lane))
    lane, start, end = lane[order], start[order], end[order]
    before = np.concatenate([[0.0], end[:-1]])
    before[np.flatnonzero(np.diff(lane, prepend=-1))] = 0.0
    waits = (start - before > timeline.step_s * NOISE) & (start > from_s) & (before < to_s)
    return {"lane": lane[waits].tolist(), "start_s": before[waits].tolist(), "end_s": start[waits].tolist()}


def _summary(timeline: Timeline, phases: list[dict[str, Any]]) -> dict[str, Any]:
    """The step, and of it what the average stage works and waits, and what exposed communication takes."""
    step = timeline.step_s
    parts = {
        "step": step,
        "busy": sum(one["busy_s"] for one in phases),
        "idle": sum(one["idle_s"] for one in phases),
        "exposed": sum(one["exposed_s"] for one in phases),
    }
    shares = {name: {"seconds": s, "share": s / step if step else 0.0} for name, s in parts.items()}
    return {**shares, "utilisation": shares["busy"]["share"]}


def _phases(timeline: Timeline) -> list[dict[str, Any]]:
    step = timeline.step_s
    return [
        {
            "phase": one.phase,
            "start_s": one.start_s,
            "end_s": one.end_s,
            "seconds": one.seconds,
            "share": one.seconds / step if step else 0.0,
            "busy_s": one.busy_s,
            "idle_s": one.idle_s,
            "exposed_s": one.exposed_s,
            "utilisation": one.busy_s / one.seconds if one.seconds else None,
        }
        for one in list_phases(timeline)
    ]


def build_micro_batch_view(timeline: Timeline, number: int) -> dict[str, Any]:
    """Every span of one micro-batch in order, its stages and links, and how busy the GPUs are meanwhile. [S14]"""
    here = np.flatnonzero(timeline.micro_batch == number)
    if not len(here):
        limit = int(timeline.micro_batch.max(initial=-1))
        code = "micro_batch_unknown" if limit >= 0 else "micro_batch_none"
        raise InvalidError(Notice(code=code, field="micro_batch", value=number, params={"limit": limit}))
    here = here[np.lexsort((timeline.end_s[here], timeline.start_s[here]))]
    begun, reached = timeline.start_s[here], np.maximum.accumulate(timeline.end_s[here])
    start, end = float(begun[0]), float(reached[-1])
    waits = np.maximum(0.0, begun - np.concatenate([[start], reached[:-1]]))
    computed = _computed_s(timeline, np.full(len(timeline.lanes), start), np.full(len(timeline.lanes), end))
    return {
        "micro_batch": number,
        "start_s": start,
        "end_s": end,
        "seconds": end - start,
        "usage": _share(float(computed[timeline.stages].mean()), end - start),
        "spans": {**columns(timeline, here), "wait_s": waits.tolist()},
        "stages": _stages(timeline, here),
        "links": _links(timeline, here, end - start),
    }


def _stages(timeline: Timeline, here: NDArray[np.int64]) -> list[dict[str, Any]]:
    """From the first to the last span of the micro-batch on each stage: own compute, that of others, waiting. [S14]"""
    lane, lanes = timeline.lane[here], len(timeline.lanes)
    first, last = np.full(lanes, np.inf), np.full(lanes, -np.inf)
    np.minimum.at(first, lane, timeline.start_s[here])
    np.maximum.at(last, lane, timeline.end_s[here])
    spent = (timeline.end_s[here] - timeline.start_s[here]) * _computes(timeline)[here]
    own = np.bincount(lane, weights=spent, minlength=lanes)
    all_s = _computed_s(timeline, first, last)
    return [
        {
            "lane": int(at),
            "start_s": float(first[at]),
            "end_s": float(last[at]),
            "seconds": (seconds := float(last[at] - first[at])),
            "own_s": float(own[at]),
            "other_s": max(0.0, float(all_s[at] - own[at])),
            "waiting_s": max(0.0, seconds - float(all_s[at])),
            "usage": _share(float(all_s[at]), seconds),
            "own_share": _share(float(own[at]), seconds),
        }
        for at in np.intersect1d(lane, timeline.stages)
    ]


def _links(timeline: Timeline, here: NDArray[np.int64], seconds: float) -> list[dict[str, Any]]:
    """What the micro-batch puts on each link."""
    lane, lanes = timeline.lane[here], len(timeline.lanes)
    busy = np.bincount(lane, weights=timeline.end_s[here] - timeline.start_s[here], minlength=lanes)
    messages = np.bincount(lane, minlength=lanes)
    return [
        {
            "lane": int(at),
            "messages": int(messages[at]),
            "busy_s": float(busy[at]),
            "share": _share(float(busy[at]), seconds),
        }
        for at in np.setdiff1d(lane, timeline.stages)
    ]


def _computed_s(timeline: Timeline, first: Floats, last: Floats) -> Floats:
    """Seconds each lane computes, for any micro-batch, between two times of its own."""
    inside = measure_busy_s(timeline, first[timeline.lane], last[timeline.lane]) * _computes(timeline)
    return np.bincount(timeline.lane, weights=inside, minlength=len(timeline.lanes)).astype(float)


def _computes(timeline: Timeline) -> NDArray[np.bool_]:
    return np.isin(timeline.kind, [KINDS.index(kind) for kind in COMPUTE])


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0


def compare_timelines(predicted: Timeline, measured: Timeline) -> dict[str, Any]:
    """Seconds of both and by how many % the prediction lies above what was measured. [S15]

    Kinds are compared as the mean over the lanes that do them, so that a trace of some ranks can be compared too.
    """
    theirs = {one.phase: one.seconds for one in list_phases(measured)}
    ours, kinds = _by_kind(predicted), _by_kind(measured)
    busy = {lane.id: float(s) for lane, s in zip(measured.lanes, measured.busy_s, strict=True)}
    return {
        "step": _row("step", predicted.step_s, measured.step_s),
        "phases": [_row(one.phase, one.seconds, theirs[one.phase]) for one in list_phases(predicted)],
        "kinds": [_row(k, ours.get(k, 0.0), kinds.get(k, 0.0)) for k in (*KINDS, IDLE) if k in ours or k in kinds],
        "lanes": [
            _row(lane.id, float(seconds), busy[lane.id])
            for lane, seconds in zip(predicted.lanes, predicted.busy_s, strict=True)
            if lane.id in busy
        ],
    }


def _row(part: str, predicted_s: float, measured_s: float) -> dict[str, Any]:
    above = predicted_s - measured_s
    percent = 100 * above / measured_s if measured_s else (0.0 if not predicted_s else None)
    return {
        "part": part,
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "difference_s": above,
        "difference_pct": percent,
    }


def _by_kind(timeline: Timeline) -> dict[str, float]:
    """Seconds of each kind, mean of the lanes that do it; idle time: mean of the stages."""
    found = {}
    for index, kind in enumerate(KINDS):
        here = timeline.kind == index
        if here.any():
            total = float((timeline.end_s[here] - timeline.start_s[here]).sum())
            found[str(kind)] = total / len(np.unique(timeline.lane[here]))
    if len(timeline.stages):
        found[IDLE] = float(timeline.idle_s[timeline.stages].mean())
    return found
