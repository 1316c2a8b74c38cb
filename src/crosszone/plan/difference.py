"""Difference: what makes the step of one plan longer or shorter than that of another."""

from __future__ import annotations

import math
from collections import defaultdict

from crosszone.inputs.value import Value
from crosszone.predict.prediction import Prediction, Triple
from crosszone.predict.traffic import tier_of

"""Kind of every link from one zone to another."""


class Part(Value):
    """One bar of the waterfall."""

    name: str
    """Key of `breakdown_s`."""
    seconds: float
    """What the second plan spends on it beyond the first; below zero: what it saves."""


class Difference(Value):
    """From one prediction to another, always second less first.

    difference(slow, fast).parts[0].name, difference(slow, fast).parts[0].seconds   # ("gradients", -3.2)
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


def difference(a: Prediction, b: Prediction) -> Difference:
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
        usd=_less(b.run.usd, a.run.usd),
        kwh=_less(b.run.kwh, a.run.kwh),
        bytes_per_step=_traffic(a, b),
    )


def _less(one: Triple | None, other: Triple | None) -> float | None:
    return None if one is None or other is None else one.expected - other.expected


def _traffic(a: Prediction, b: Prediction) -> dict[str, float]:
    """Bytes a step by kind of link; a plan that does not use a kind sends nothing over it."""
    found: dict[str, float] = defaultdict(float)
    for prediction, sign in ((a, -1.0), (b, 1.0)):
        for kind, size in link_bytes(prediction).items():
            found[kind] += sign * size
    return {kind: size for kind, size in sorted(found.items()) if size}


def link_bytes(prediction: Prediction) -> dict[str, float]:
    """Bytes of one step over all links of a kind."""
    found: dict[str, float] = defaultdict(float)
    for row in prediction.communication:
        found[tier_of(row.link)] += row.bytes_per_step
    return dict(found)
