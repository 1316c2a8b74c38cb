"""Widths of the bands, from rows predicted by fits that had not seen them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.accuracy import ScoredRow
from crosszone.calibrate.pairs import Pairs
from crosszone.calibrate.validation import CrossValidation

OUTSIDE = 0.1
"""Share of rows that may lie below the band, and above it."""
ORDER = ("base", "assumed", "moe", "stack", "gpu")
"""Parts in the order in which they are found: each from rows that have it and none after it."""
ONE_SD = 0.6827
"""Share of a normal distribution within one standard deviation."""
SITE_WEIGHT = 0.5
"""Weight of a row of an unseen source whose stack is known: some runs come from a site that was seen, some do not."""
Widths = dict[str, dict[str, float]]
Floats = npt.NDArray[np.float64]


def step_widths(found: Sequence[CrossValidation]) -> Widths:
    """Log widths such that each kind of row lies below or above its band in one of ten cases. [Q6]

    Parts add in squares; each is the least that does, given those before it. Which rows tell of which part: unseen
    rows, models and sources (these half) of the first three, unseen sources of an unknown stack, unseen GPU families of
    a derived GPU.
    """
    error, weight, applies = _rows(found)
    widths: Widths = {}
    for number, part in enumerate(ORDER):
        later = ORDER[number + 1 :]
        mine = applies[part] & ~np.any([applies[name] for name in later], axis=0) if later else applies[part]
        known = ORDER[:number]
        widths[part] = {}
        for side, sign in (("low", -1.0), ("high", 1.0)):
            squares = np.zeros(int(mine.sum()))
            for name in known:
                squares += applies[name][mine] * widths[name][side] ** 2
            widths[part][side] = _solved(sign * error[mine], squares, weight[mine])
    return widths


def memory_width(rows: Sequence[ScoredRow]) -> dict[str, float]:
    """Log widths of memory over the rows that publish it."""
    error = np.array(
        [
            np.log(row.memory_gib_measured / row.memory_gib_predicted)
            for row in rows
            if row.memory_gib_measured and row.memory_gib_predicted and row.doubtful is None
        ]
    )
    none, one = np.zeros(len(error)), np.ones(len(error))
    return {"low": _solved(-error, none, one), "high": _solved(error, none, one)}


def pair_width(pairs: Pairs) -> float:
    """Standard deviation of the difference of two strategies' errors, from the size that 68 % of pairs stay below. [W2]

    The quantile and not the mean of squares: a few runs that went wrong would widen it for all.
    """
    size = np.abs(pairs.measured - pairs.predicted)
    order = np.argsort(size)
    share = np.cumsum(pairs.weight[order]) / pairs.weight.sum()
    return round(float(size[order[int(np.searchsorted(share, ONE_SD))]]), 4)


def _rows(found: Sequence[CrossValidation]) -> tuple[Floats, Floats, dict[str, npt.NDArray[np.bool_]]]:
    """log(measured / predicted) of the rows that tell of a part, their weights, and which parts they have."""
    errors, weights = [], []
    parts: dict[str, list[bool]] = {name: [] for name in ORDER}
    for one in found:
        for at, run in enumerate(one.runs):
            stack, gpu = not one.stack_known[at], not one.gpu_known[at]
            tells = gpu and not stack if one.kind == "gpu" else not gpu and (one.kind == "source" or not stack)
            if not tells:
                continue
            errors.append(float(np.log((run.step_time_s or np.nan) / one.predicted_s[at])))
            weights.append(SITE_WEIGHT if one.kind == "source" and not stack else 1.0)
            applies = {"base": True, "assumed": not run.complete, "moe": run.moe, "stack": stack, "gpu": gpu}
            for name, on in applies.items():
                parts[name].append(bool(on))
    return np.array(errors), np.array(weights), {name: np.array(on, dtype=bool) for name, on in parts.items()}


def _solved(beyond: Floats, squares: Floats, weight: Floats) -> float:
    """The least x >= 0 for which one row in ten (by weight) has beyond > sqrt(squares + x^2)."""
    if not len(beyond):
        return 0.0
    needed = np.sqrt(np.maximum(np.maximum(beyond, 0.0) ** 2 - squares, 0.0))
    order = np.argsort(needed)
    share = np.cumsum(weight[order]) / weight.sum()
    at = int(np.searchsorted(share, 1.0 - OUTSIDE))
    return round(float(needed[order[min(at, len(order) - 1)]]), 4)
