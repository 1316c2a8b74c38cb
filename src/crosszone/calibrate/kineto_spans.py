"""Kineto spans: intervals of a trace as arrays: what lies within what, and who owns each moment.

inside(starts, intervals)                 # which moments lie in any of the intervals
shares(start, end, sort, 0.0, 1.0, 3)     # seconds that each sort owns of a second; they add up with the gap
runs(start, end, sort, 3, join_s=1e-5)    # the same as stretches of time, one after the other
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NOBODY = -1


def merged(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The union of intervals: those that touch become one, in the order of their start."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]


def inside(moments: Floats, intervals: tuple[Floats, Floats]) -> NDArray[np.bool_]:
    """Whether each moment lies in one of the intervals, which do not overlap and are in order."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(moments), bool)
    at = np.searchsorted(start, moments, side="right") - 1
    return np.asarray((at >= 0) & (moments <= end[np.maximum(at, 0)]))


def inside_by(key: Any, moments: Floats, of: Any, start: Floats, end: Floats) -> NDArray[np.bool_]:
    """Whether each moment lies in an interval of the same key: of its own thread."""
    found = np.zeros(len(moments), bool)
    for one in np.unique(of):
        here, there = key == one, of == one
        found[here] = inside(moments[here], merged(start[there], end[there]))
    return found


def total_s(start: Floats, end: Floats) -> float:
    """Seconds that any of the intervals covers."""
    begun, ended = merged(start, end)
    return float((ended - begun).sum())


def shares(start: Floats, end: Floats, sort: Ints, low: float, high: float, sorts: int) -> Floats:
    """Seconds between two times that each sort owns, and last those that nobody owns; they add up. [K42]

    Where several run at once the moment belongs to the sort with the smallest number.
    """
    found = np.zeros(sorts + 1)
    at, owner = _owners(np.clip(start, low, high), np.clip(end, low, high), sort, sorts)
    if len(at):
        length = np.diff(at)
        for one in range(sorts):
            found[one] = length[owner == one].sum()
    found[sorts] = max(0.0, (high - low) - found[:sorts].sum())
    return found


def runs(start: Floats, end: Floats, sort: Ints, sorts: int, join_s: float = 0.0) -> tuple[Floats, Floats, Ints]:
    """Stretches of time with one owner, in order; pauses of at most `join_s` within a stretch belong to it."""
    at, owner = _owners(start, end, sort, sorts)
    if not len(at):
        return np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
    begin, close = at[:-1], at[1:]
    owned = (owner != NOBODY) & (close > begin)
    begin, close, owner = begin[owned], close[owned], owner[owned]
    if not len(begin):
        return begin, close, owner
    first = np.concatenate([[True], (owner[1:] != owner[:-1]) | (begin[1:] - close[:-1] > join_s)])
    last = np.concatenate([first[1:], [True]])
    return begin[first], close[last], owner[first]


def _owners(start: Floats, end: Floats, sort: Ints, sorts: int) -> tuple[Floats, Ints]:
    """Times at which something begins or ends, and who owns the time from each to the next."""
    lasting = end > start
    start, end, sort = start[lasting], end[lasting], sort[lasting]
    if not len(start):
        return np.zeros(0), np.zeros(0, np.int64)
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    step = np.concatenate([np.ones(len(start), np.int8), np.full(len(end), -1, np.int8)])[order]
    kind = np.concatenate([sort, sort])[order]
    owner = np.full(len(at) - 1, NOBODY, np.int64)
    for one in range(sorts - 1, -1, -1):
        if (kind == one).any():
            running = np.cumsum(np.where(kind == one, step, 0), dtype=np.int32)[:-1] > 0
            owner[running] = one
    return at[order], owner
