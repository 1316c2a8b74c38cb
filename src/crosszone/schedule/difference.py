"""Difference: a predicted step beside a measured one, phase by phase, kind by kind, lane by lane. [S15]"""

from __future__ import annotations

from typing import Any

import numpy as np

from crosszone.schedule.phases import phases_of
from crosszone.schedule.timeline import KINDS, Timeline
from crosszone.schedule.view import IDLE


def difference(predicted: Timeline, measured: Timeline) -> dict[str, Any]:
    """Seconds of both and by how many % the prediction lies above what was measured. [S15]

    Kinds are compared as the mean over the lanes that do them, so that a trace of some ranks can be compared too.
    """
    theirs = {one.phase: one.seconds for one in phases_of(measured)}
    ours, kinds = _by_kind(predicted), _by_kind(measured)
    busy = {lane.id: float(s) for lane, s in zip(measured.lanes, measured.busy_s, strict=True)}
    return {
        "step": _row("step", predicted.step_s, measured.step_s),
        "phases": [_row(one.phase, one.seconds, theirs[one.phase]) for one in phases_of(predicted)],
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
