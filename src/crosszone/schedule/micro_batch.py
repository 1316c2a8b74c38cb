"""One micro-batch of a step: its way through stages and links, and how busy the GPUs are meanwhile. [S14]

found = micro_batch_view(timeline, 3)
found["usage"], found["stages"][0]    # 0.71, {"usage": 0.94, "own_s": 3.0, "other_s": 11.1, "waiting_s": 0.9, ...}
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosszone.errors import InvalidError, Notice
from crosszone.schedule.phases import COMPUTE, within_s
from crosszone.schedule.timeline import KINDS, Timeline
from crosszone.schedule.view import columns

Floats = NDArray[np.float64]


def micro_batch_view(timeline: Timeline, number: int) -> dict[str, Any]:
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
    inside = within_s(timeline, first[timeline.lane], last[timeline.lane]) * _computes(timeline)
    return np.bincount(timeline.lane, weights=inside, minlength=len(timeline.lanes)).astype(float)


def _computes(timeline: Timeline) -> NDArray[np.bool_]:
    return np.isin(timeline.kind, [KINDS.index(kind) for kind in COMPUTE])


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0
