"""Phases: how a step fills the pipeline, works, empties it, exchanges gradients and updates. [S13]

1F1B, 4 stages, 8 micro-batches, forward 1 s, backward 2 s:

warm_up     0 ..  4     until the first backward pass begins
steady      4 .. 25     until the last forward pass has ended
cool_down  25 .. 33     until the last pass has ended
tail       33 .. end    gradients, update and what else the step waits for
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crosszone.schedule.timeline import KINDS, Timeline
from crosszone.schedule.trace import SpanKind

PHASES = ("warm_up", "steady", "cool_down", "tail")
PASSES: tuple[SpanKind, ...] = ("forward", "backward", "weight")
COMPUTE: tuple[SpanKind, ...] = (*PASSES, "optimizer")
"""Kinds that keep the GPU itself at work."""
NOISE = 1e-12
"""Share of a time below which what is left of it is a rounding error."""
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


def phases_of(timeline: Timeline) -> tuple[Phase, ...]:
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


def within_s(timeline: Timeline, start_s: ArrayLike, end_s: ArrayLike) -> NDArray[np.float64]:
    """Seconds of each span that lie between two times, the same for all spans or one pair for each."""
    inside = np.minimum(timeline.end_s, end_s) - np.maximum(timeline.start_s, start_s)
    return np.asarray(np.maximum(0.0, inside))


def exposed_s(timeline: Timeline, start_s: float, end_s: float) -> float:
    """Seconds between two times in which something communicates and no stage computes. [S13]"""
    sends = _of_kinds(timeline, COMMUNICATION)
    works = _of_kinds(timeline, COMPUTE) & np.isin(timeline.lane, timeline.stages)
    used = (sends | works) & (within_s(timeline, start_s, end_s) > 0)
    begins, ends = np.maximum(timeline.start_s[used], start_s), np.minimum(timeline.end_s[used], end_s)
    at = np.concatenate([begins, ends])
    order = np.argsort(at, kind="stable")
    sending, working = (
        np.cumsum(np.concatenate([one[used] * 1, one[used] * -1])[order])[:-1] > 0 for one in (sends, works)
    )
    return float(np.diff(at[order])[sending & ~working].sum()) if len(at) else 0.0


def _phase(timeline: Timeline, name: str, start_s: float, end_s: float) -> Phase:
    on_stages = np.isin(timeline.lane, timeline.stages)
    busy = float(within_s(timeline, start_s, end_s)[on_stages].sum()) / max(1, len(timeline.stages))
    idle = end_s - start_s - busy
    return Phase(
        phase=name,
        start_s=start_s,
        end_s=end_s,
        busy_s=busy,
        idle_s=idle if idle > (end_s - start_s) * NOISE else 0.0,
        exposed_s=exposed_s(timeline, start_s, end_s),
    )


def _of_kinds(timeline: Timeline, kinds: tuple[SpanKind, ...]) -> NDArray[np.bool_]:
    return np.isin(timeline.kind, [KINDS.index(kind) for kind in kinds])
