"""Uncertainty of predictions, from rows predicted by fits that had not seen them.

Widths of the bands by kind of row, the spread between two strategies of one set-up, and how often the stated chance
that one is faster came true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.accuracy import (
    MOST_STRATEGIES,
    RankedRun,
    average_times,
    build_setup_key,
    build_strategy_key,
)
from crosszone.calibrate.fit import CrossValidation
from crosszone.plan.comparison import compute_win_probability

Floats = npt.NDArray[np.float64]
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # Ends of the ranges of stated chances


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Every two strategies of each set-up, the one predicted faster first."""

    predicted: Floats
    """log(time of the second / time of the first), not below 0."""
    measured: Floats
    weight: Floats
    """2 / n of a pair among n strategies: they hold n - 1 independent differences, not n (n - 1) / 2."""
    setups: int


def pair_strategies(validation: CrossValidation) -> Pairs:
    """The pairs among rows that were predicted by fits without them; runs of the same strategy count as their mean."""
    outcomes = (
        RankedRun(build_setup_key(run), build_strategy_key(run), run.step_time_s, float(seconds))
        for run, seconds in zip(validation.runs, validation.predicted_s, strict=True)
        if run.step_time_s
    )
    ratios, weights = [np.empty((0, 2))], [np.empty(0)]
    for means in average_times(outcomes):
        logs = np.log(means[:MOST_STRATEGIES])
        first, second = np.triu_indices(len(logs), k=1)
        ratios.append(logs[second] - logs[first])
        weights.append(np.full(len(first), 2.0 / len(logs)))
    measured, predicted = np.concatenate(ratios).T
    sign = np.where(predicted < 0, -1.0, 1.0)
    weight = np.concatenate(weights)
    return Pairs(predicted=sign * predicted, measured=sign * measured, weight=weight, setups=len(weights) - 1)


def score_chances(pairs: Pairs, spread: float) -> dict[str, Mapping[str, float | int | None]]:
    """Stated chances that the strategy predicted faster is faster, against how often it was, by stated chance. [W2]"""
    stated = np.array([compute_win_probability(float(ratio), spread) for ratio in pairs.predicted])
    right = (1.0 + np.sign(pairs.predicted) * np.sign(pairs.measured)) / 2.0
    which = np.clip(np.searchsorted(BINS, stated, side="right") - 1, 0, len(BINS) - 2)
    bins: dict[str, Mapping[str, float | int | None]] = {}
    for number, low in enumerate(BINS[:-1]):
        in_bin = which == number
        has_pairs = bool(in_bin.any())
        bins[f"{100 * low:.0f}-{100 * BINS[number + 1]:.0f} %"] = {
            "pairs": int(in_bin.sum()),
            "stated_pct": 100.0 * float(stated[in_bin].mean()) if has_pairs else None,
            "right_pct": 100.0 * float(right[in_bin].mean()) if has_pairs else None,
            "weighted_pct": 100.0 * float(np.average(right[in_bin], weights=pairs.weight[in_bin]))
            if has_pairs
            else None,
        }
    return bins


OUTSIDE = 0.1  # Share of rows that may lie below the band, and above it
# Parts in the order in which they are found: each from rows that have it and none after it.
ORDER = ("base", "assumed", "moe", "stack", "gpu")
ONE_SD = 0.6827  # Share of a normal distribution within one standard deviation
# Weight of a row of an unseen source whose stack is known: some runs come from a site that was seen, some do not.
SITE_WEIGHT = 0.5
Widths = dict[str, dict[str, float]]


def fit_step_widths(validations: Sequence[CrossValidation]) -> Widths:
    """Log widths such that each kind of row lies below or above its band in one of ten cases. [Q6]

    Parts add in squares; each is the least that does, given those before it. Which rows tell of which part: unseen
    rows, models and sources (these half) of the first three, unseen sources of an unknown stack, unseen GPU families of
    a derived GPU.
    """
    error, weight, applies = _list_errors(validations)
    widths: Widths = {}
    for number, part in enumerate(ORDER):
        later = ORDER[number + 1 :]
        is_own = applies[part] & ~np.any([applies[name] for name in later], axis=0) if later else applies[part]
        earlier = ORDER[:number]
        widths[part] = {}
        for side, sign in (("low", -1.0), ("high", 1.0)):
            squares = np.zeros(int(is_own.sum()))
            for name in earlier:
                squares += applies[name][is_own] * widths[name][side] ** 2
            widths[part][side] = _solve_width(sign * error[is_own], squares, weight[is_own])
    return widths


def fit_software_widths(left_out: CrossValidation, fitted_s: Floats, widths: Widths) -> Widths:
    """What the parts `software` and `software_moe` add for runs entered as a user would write them. [Q6]

    `left_out`: each run predicted without its source; `fitted_s`: by the fit that has seen it. Both count alike: some
    who ask have a site or recipe that was seen, some have not.
    """
    measured = np.array([run.step_time_s for run in left_out.runs], dtype=float)
    error = np.concatenate([np.log(measured / left_out.predicted_s), np.log(measured / fitted_s)])
    moe = np.tile([run.moe for run in left_out.runs], 2)
    gpu = np.concatenate([~left_out.gpu_known, np.zeros(len(measured), dtype=bool)])
    added: Widths = {}
    for part, own in (("software", ~moe), ("software_moe", moe)):
        added[part] = {}
        for side, sign in (("low", -1.0), ("high", 1.0)):
            squares = widths["base"][side] ** 2 + gpu[own] * widths["gpu"][side] ** 2
            squares = squares + (widths["moe"][side] ** 2 if part == "software_moe" else 0.0)
            added[part][side] = _solve_width(sign * error[own], squares, np.ones(int(own.sum())))
    return added


def fit_pair_spread(pairs: Pairs) -> float:
    """Standard deviation of the difference of two strategies' errors, from the size that 68 % of pairs stay below. [W2]

    The quantile and not the mean of squares: a few runs that went wrong would widen it for all.
    """
    size = np.abs(pairs.measured - pairs.predicted)
    order = np.argsort(size)
    share = np.cumsum(pairs.weight[order]) / pairs.weight.sum()
    return round(float(size[order[int(np.searchsorted(share, ONE_SD))]]), 4)


def _list_errors(validations: Sequence[CrossValidation]) -> tuple[Floats, Floats, dict[str, npt.NDArray[np.bool_]]]:
    """log(measured / predicted) of the rows that tell of a part, their weights, and which parts they have."""
    errors, weights = [], []
    parts: dict[str, list[bool]] = {name: [] for name in ORDER}
    for validation in validations:
        for at, run in enumerate(validation.runs):
            stack, gpu = not validation.stack_known[at], not validation.gpu_known[at]
            is_informative = (
                gpu and not stack
                if validation.kind == "gpu"
                else not gpu and (validation.kind == "source" or not stack)
            )
            if not is_informative:
                continue
            errors.append(float(np.log((run.step_time_s or np.nan) / validation.predicted_s[at])))
            weights.append(SITE_WEIGHT if validation.kind == "source" and not stack else 1.0)
            applies = {"base": True, "assumed": not run.complete, "moe": run.moe, "stack": stack, "gpu": gpu}
            for name, is_set in applies.items():
                parts[name].append(bool(is_set))
    return np.array(errors), np.array(weights), {name: np.array(flags, dtype=bool) for name, flags in parts.items()}


def _solve_width(beyond: Floats, squares: Floats, weight: Floats) -> float:
    """The least x >= 0 for which one row in ten (by weight) has beyond > sqrt(squares + x^2)."""
    if not len(beyond):
        return 0.0
    needed = np.sqrt(np.maximum(np.maximum(beyond, 0.0) ** 2 - squares, 0.0))
    order = np.argsort(needed)
    share = np.cumsum(weight[order]) / weight.sum()
    place = int(np.searchsorted(share, 1.0 - OUTSIDE))
    return round(float(needed[order[min(place, len(order) - 1)]]), 4)
