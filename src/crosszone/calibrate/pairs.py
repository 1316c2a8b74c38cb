"""Pairs: two strategies of one set-up, how their times were predicted to differ and how they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.ranking import MOST_STRATEGIES, Outcome, mean_times, setup_of, strategy_of
from crosszone.calibrate.validation import CrossValidation
from crosszone.plan.comparison import chance_of

Floats = npt.NDArray[np.float64]
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Ends of the ranges of stated chances."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Every two strategies of each set-up, the one predicted faster first."""

    predicted: Floats
    """log(time of the second / time of the first), not below 0."""
    measured: Floats
    weight: Floats
    """2 / n of a pair among n strategies: they hold n - 1 independent differences, not n (n - 1) / 2."""
    setups: int


def pairs_of(one: CrossValidation) -> Pairs:
    """The pairs among rows that were predicted by fits without them; runs of the same strategy count as their mean."""
    outcomes = (
        Outcome(setup_of(run), strategy_of(run), run.step_time_s, float(said))
        for run, said in zip(one.runs, one.predicted_s, strict=True)
        if run.step_time_s
    )
    ratios, weights = [np.empty((0, 2))], [np.empty(0)]
    for means in mean_times(outcomes):
        logs = np.log(means[:MOST_STRATEGIES])
        first, second = np.triu_indices(len(logs), k=1)
        ratios.append(logs[second] - logs[first])
        weights.append(np.full(len(first), 2.0 / len(logs)))
    measured, predicted = np.concatenate(ratios).T
    turned = np.where(predicted < 0, -1.0, 1.0)
    weight = np.concatenate(weights)
    return Pairs(predicted=turned * predicted, measured=turned * measured, weight=weight, setups=len(weights) - 1)


def chance_bins(pairs: Pairs, spread: float) -> dict[str, Mapping[str, float | int | None]]:
    """Stated chances that the strategy predicted faster is faster, against how often it was, by stated chance. [W2]"""
    stated = np.array([chance_of(float(ratio), spread) for ratio in pairs.predicted])
    right = (1.0 + np.sign(pairs.predicted) * np.sign(pairs.measured)) / 2.0
    which = np.clip(np.searchsorted(BINS, stated, side="right") - 1, 0, len(BINS) - 2)
    found: dict[str, Mapping[str, float | int | None]] = {}
    for number, low in enumerate(BINS[:-1]):
        here = which == number
        some = bool(here.any())
        found[f"{100 * low:.0f}-{100 * BINS[number + 1]:.0f} %"] = {
            "pairs": int(here.sum()),
            "stated_pct": 100.0 * float(stated[here].mean()) if some else None,
            "right_pct": 100.0 * float(right[here].mean()) if some else None,
            "weighted_pct": 100.0 * float(np.average(right[here], weights=pairs.weight[here])) if some else None,
        }
    return found
