"""Comparison of two plans: how likely the one that is predicted to be faster really is, and what makes the difference.

`estimate_win_probability` is the chance; `compare_predictions` the difference, part by part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import NormalDist

from crosszone.cost.coefficients import read_pair_spread
from crosszone.inputs.value import Value
from crosszone.predict.prediction import Prediction, Triple
from crosszone.predict.traffic import get_tier

# Standard deviations from the middle of a band to its end, which one run in ten lies beyond: 1.2816.
SIGMAS_TO_P90 = NormalDist().inv_cdf(0.9)


def estimate_win_probability(a: Prediction, b: Prediction) -> float:
    """Chance that the real step of plan a is shorter than that of plan b, both on one cluster. [W2]

    Phi(ln(t_b / t_a) / sigma). Plans of one set-up share most of their error, so sigma^2 is the spread of the
    difference of two such errors, squared, and the links' own band of each plan.
    """
    spread = math.sqrt(
        _estimate_shared_spread(a, b) ** 2 + _estimate_link_spread(a) ** 2 + _estimate_link_spread(b) ** 2
    )
    return compute_win_probability(math.log(b.step_time_s.expected / a.step_time_s.expected), spread)


def compute_win_probability(log_ratio: float, spread: float) -> float:
    """Chance that the first of two is shorter, when the second is predicted exp(log_ratio) times as long. [W2]"""
    return NormalDist().cdf(log_ratio / spread)


def _estimate_shared_spread(a: Prediction, b: Prediction) -> float:
    """Spread of the difference of the two profile errors: `pair` where stack and GPUs are the same.

    Other software or other GPUs have errors of their own, so then both bands count, and never less than `pair`.
    """
    same = a.basis.stack == b.basis.stack and a.basis.gpu_profiles == b.basis.gpu_profiles
    return (
        read_pair_spread()
        if same
        else max(read_pair_spread(), math.hypot(_estimate_profile_spread(a), _estimate_profile_spread(b)))
    )


def _estimate_profile_spread(p: Prediction) -> float:
    """Standard deviation of the logarithm that the profile's band stands for."""
    return math.log(p.basis.high / p.basis.low) / 2.0 / SIGMAS_TO_P90


def _estimate_link_spread(p: Prediction) -> float:
    """The same of what round-trip times between zones add to the band; 0 where they are known or not used."""
    total_spread = math.log(p.step_time_s.high / p.step_time_s.low) / 2.0 / SIGMAS_TO_P90
    return max(0.0, total_spread - _estimate_profile_spread(p))


class Part(Value):
    """One bar of the waterfall."""

    name: str
    """Key of `breakdown_s`."""
    seconds: float
    """What the second plan spends on it beyond the first; below zero: what it saves."""


class Difference(Value):
    """From one prediction to another, always second less first.

    compare_predictions(slow, fast).parts[0].name   # "gradients", the part that differs most
    """

    step_s: float
    """Of the expected step, s: the sum of the parts."""
    parts: tuple[Part, ...]
    """Every part of the step that differs, the largest first."""
    memory_gib: float
    """Of the expected peak of the fullest GPU."""
    usd: float | None
    """Of the whole run; null: one of them has no price."""
    kwh: float | None
    """Of the whole run; null: the energy of one of them is not known."""
    bytes_per_step: dict[str, float]
    """Of what crosses links of a kind (fast link, network, between zones) in a step; equal kinds are left out."""


def compare_predictions(a: Prediction, b: Prediction) -> Difference:
    """The waterfall from a's step to b's, and what else differs. [W1]

    Both breakdowns add up to their step, so what each part differs by adds up to the difference of the steps.
    """
    names = sorted(a.breakdown_s.keys() | b.breakdown_s.keys())
    seconds = {name: b.breakdown_s.get(name, 0.0) - a.breakdown_s.get(name, 0.0) for name in names}
    parts = [Part(name=name, seconds=value) for name, value in seconds.items() if value]
    return Difference(
        step_s=math.fsum(seconds.values()),
        parts=tuple(sorted(parts, key=lambda part: (-abs(part.seconds), part.name))),
        memory_gib=b.memory_gib.peak.expected - a.memory_gib.peak.expected,
        usd=_subtract(b.run.usd, a.run.usd),
        kwh=_subtract(b.run.kwh, a.run.kwh),
        bytes_per_step=_compare_traffic(a, b),
    )


def _subtract(minuend: Triple | None, subtrahend: Triple | None) -> float | None:
    return None if minuend is None or subtrahend is None else minuend.expected - subtrahend.expected


def _compare_traffic(a: Prediction, b: Prediction) -> dict[str, float]:
    """Bytes a step by kind of link; a plan that does not use a kind sends nothing over it."""
    difference: dict[str, float] = defaultdict(float)
    for prediction, sign in ((a, -1.0), (b, 1.0)):
        for kind, size in sum_link_bytes(prediction).items():
            difference[kind] += sign * size
    return {kind: size for kind, size in sorted(difference.items()) if size}


def sum_link_bytes(prediction: Prediction) -> dict[str, float]:
    """Bytes of one step over all links of a kind."""
    bytes_by_kind: dict[str, float] = defaultdict(float)
    for row in prediction.communication:
        bytes_by_kind[get_tier(row.link)] += row.bytes_per_step
    return dict(bytes_by_kind)
