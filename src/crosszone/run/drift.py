"""Drift: whether a series of measured seconds has left what was predicted, and since when.

    level = level_of(seconds)                     # the newest level, where it began, and the one before it
    level.now, level.start, level.before

A change of level is taken for one when all three hold (so that noise is not): the levels differ by `LEAST_RATIO`, by
`MATERIAL` of the predicted step, and by `SURE` standard errors of the difference of two medians. Levels are medians and
their noise is the median distance from them, so single steps that took long change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 20
"""Newest steps that tell the present level."""
REACH = 200
"""Steps that are searched for a change."""
COARSE = 4
"""Places between two that are tried before the best is looked for closely."""
LEAST = 5
"""Steps on each side of a change."""
LEAST_RATIO = 1.2
"""Ratio by which two levels must differ."""
MATERIAL = 0.05
"""Share of the predicted step by which a part must differ to be told."""
SURE = 6.0
"""Standard errors by which two levels must differ: many places are tried, so it is more than the usual two."""
SIGMA = 1.4826
"""Standard deviation over median distance from the median, of normal noise."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, of normal noise."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Level:
    """Where a series stands."""

    now: float
    """Median of the newest steps of the present level."""
    spread: float
    """Standard deviation of one step about it."""
    start: int
    """Place in the series where the present level begins; 0: it never changed."""
    before: float | None
    """The level before; None: it never changed."""
    count: int
    """Steps that `now` rests on."""

    @property
    def error(self) -> float:
        """Standard error of `now`."""
        return MEDIAN_ERROR * self.spread / math.sqrt(self.count)


def level_of(series: Sequence[float], *, material: float) -> Level:
    """The newest level of a series that is not empty; `material`: seconds below which nothing counts as a change."""
    values = np.asarray(series, dtype=float)
    begin = max(0, len(values) - REACH)
    start, before = begin, None
    while (found := _change(values[start:], material)) is not None:
        before = float(np.median(values[start : start + found]))
        start += found
    newest = values[max(start, len(values) - WINDOW) :]
    now = float(np.median(newest))
    return Level(
        now=now,
        spread=SIGMA * float(np.median(np.abs(newest - now))),
        start=0 if before is None else start,
        before=before,
        count=len(newest),
    )


def _change(values: Numbers, material: float) -> int | None:
    """Where two medians describe a series best, if they differ enough; None: one is enough."""
    count = len(values)
    if count < 2 * LEAST or float(np.ptp(values)) <= material:
        return None
    first_place, last_place = LEAST, count - LEAST

    def cost(at: int) -> float:
        return _distance(values[:at]) + _distance(values[at:])

    near = min(range(first_place, last_place + 1, COARSE), key=cost)
    place = min(range(max(first_place, near - COARSE), min(last_place, near + COARSE) + 1), key=cost)
    first, second = values[:place], values[place:]
    levels = float(np.median(first)), float(np.median(second))
    apart = abs(levels[1] - levels[0])
    if apart <= material or max(levels) < LEAST_RATIO * min(levels):
        return None
    left = np.concatenate([first - levels[0], second - levels[1]])
    noise = SIGMA * float(np.median(np.abs(left)))
    error = MEDIAN_ERROR * noise * math.sqrt(1 / len(first) + 1 / len(second))
    return place if apart > SURE * error else None


def _distance(values: Numbers) -> float:
    """Sum of distances from the median."""
    return float(np.abs(values - np.median(values)).sum())
