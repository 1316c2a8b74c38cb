"""Chance: how likely a plan that is predicted to be faster really is."""

from __future__ import annotations

import math
from statistics import NormalDist

from crosszone.cost.coefficients import pair_spread
from crosszone.predict.prediction import Prediction

TENTH = NormalDist().inv_cdf(0.9)
"""Standard deviations from the middle of a band to its end, which one run in ten lies beyond: 1.2816."""


def chance_faster(a: Prediction, b: Prediction) -> float:
    """Chance that the real step of plan a is shorter than that of plan b, both on one cluster. [W2]

    Phi(ln(t_b / t_a) / sigma). Plans of one set-up share most of their error, so sigma^2 is the spread of the
    difference of two such errors, squared, and the links' own band of each plan.
    """
    spread = math.sqrt(_shared(a, b) ** 2 + _links(a) ** 2 + _links(b) ** 2)
    return chance_of(math.log(b.step_time_s.expected / a.step_time_s.expected), spread)


def chance_of(log_ratio: float, spread: float) -> float:
    """Chance that the first of two is shorter, when the second is predicted exp(log_ratio) times as long. [W2]"""
    return NormalDist().cdf(log_ratio / spread)


def _shared(a: Prediction, b: Prediction) -> float:
    """Spread of the difference of the two profile errors: `pair` where stack and GPUs are the same.

    Other software or other GPUs have errors of their own, so then both bands count, and never less than `pair`.
    """
    same = a.basis.stack == b.basis.stack and a.basis.gpu_profiles == b.basis.gpu_profiles
    return pair_spread() if same else max(pair_spread(), math.hypot(_profile(a), _profile(b)))


def _profile(p: Prediction) -> float:
    """Standard deviation of the logarithm that the profile's band stands for."""
    return math.log(p.basis.high / p.basis.low) / 2.0 / TENTH


def _links(p: Prediction) -> float:
    """The same of what round-trip times between zones add to the band; 0 where they are known or not used."""
    whole = math.log(p.step_time_s.high / p.step_time_s.low) / 2.0 / TENTH
    return max(0.0, whole - _profile(p))
