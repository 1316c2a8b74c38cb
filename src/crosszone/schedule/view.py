"""View: a timeline as a page draws it: lanes with what they do, spans and bubbles as columns, phases, totals.

    view_of(timeline)["lanes"][0]       # {"id": "stage-0", "utilisation": 0.73, "idle_s": 9.0, "parts": {...}, ...}
    view_of(timeline)["spans"]          # {"lane": [...], "kind": [...], "start_s": [...], ...}: columns
    view_of(timeline, from_s=120)       # a step of more than 20,000 spans comes in windows

Parts and idle time of each lane add up to the step, and so do the totals and the phases. [S10] [S13]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosszone.schedule.phases import NOISE, phases_of
from crosszone.schedule.timeline import KINDS, NONE, Timeline

MOST_SPANS = 20_000
"""Spans drawn at once; the rest of a longer step is a window further."""
IDLE = "idle"


def view_of(timeline: Timeline, *, from_s: float = 0.0, most: int = MOST_SPANS) -> dict[str, Any]:
    """The drawable document of one step; spans and bubbles from `from_s` on, at most `most` spans."""
    shown, window = _window(timeline, from_s, most)
    phases = _phases(timeline)
    return {
        "step_s": timeline.step_s,
        "summary": _summary(timeline, phases),
        "kinds": list(KINDS),
        "lanes": lanes_of(timeline),
        "spans": columns(timeline, shown),
        "bubbles": _bubbles(timeline, window["from_s"], window["to_s"]),
        "window": window,
        "phases": phases,
        "totals": totals_of(timeline),
        "micro_batches": int(timeline.micro_batch.max(initial=NONE)) + 1,
    }


def lanes_of(timeline: Timeline) -> list[dict[str, Any]]:
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


def totals_of(timeline: Timeline) -> list[dict[str, Any]]:
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
        for one in phases_of(timeline)
    ]
