"""Timeline: who does what when, during one optimizer step. [S10]

    timeline = timeline_of(simulate("1f1b", stages=4, micro_batches=8, forward_s=0.1, backward_s=0.2))
    lane = Lane(id="gradients-0", name="gradients of stage 0", group="gradients")
    timeline = timeline.with_spans(lane, "gradients", start_s=3.3, end_s=3.6)
    timeline.step_s, timeline.idle_s             # 3.6, array [lanes]
    timeline.to_trace("three cities")            # the one format of predicted and measured steps

Spans are columns, not objects: thousands cost little. Spans and idle time of a lane add up to the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crosszone.inputs.value import parse
from crosszone.schedule.orders import BACKWARD, KIND_NAMES, stages_in_order
from crosszone.schedule.simulation import Simulation
from crosszone.schedule.trace import Lane, SpanKind, Trace

KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
NONE = -1
"""Micro-batch or chunk of a span that belongs to none."""
STAGES = "stages"
"""Group of the lanes that compute."""

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


def timeline_of(simulation: Simulation, stage_names: tuple[str, ...] | None = None) -> Timeline:
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
    held_by = stages_in_order(made.schedule, shape.stages, shape.chunks)
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
