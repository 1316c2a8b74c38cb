"""Priors: what is believed of each fitted coefficient before a run is seen (`priors.yaml`)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from crosszone.calibrate.fit import Beliefs, Vector
from crosszone.cost.coefficients import COMMON
from crosszone.cost.profile import Profiles
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Positive, Value, parse

SPREAD = 0.3
"""How much the homes of a coefficient differ where priors.yaml does not say."""


class Prior(Value):
    """One prior, as priors.yaml explains it."""

    value: Positive
    sd: Positive | None = None
    spread: Positive = SPREAD
    lower: Positive
    upper: Positive
    why: str


@cache
def priors() -> dict[str, Prior]:
    """Prior by field."""
    document = read_shipped("crosszone.calibrate", "priors.yaml")
    found: dict[str, Any] = document.value["fields"]
    return {name: parse(Prior, entry, document, at=("fields", name)) for name, entry in found.items()}


def beliefs(profiles: Profiles) -> Beliefs:
    """The priors of every fitted value of the profiles; a family's or stack's value lies about the common one. [Q4]

    log own ~ N(log common, spread), log common ~ N(log prior, sd): homes with few rows stay near what the others say,
    and one without rows is the common value.
    """
    known = priors()
    free = ~profiles.fixed
    centre, sd = np.ones(len(free)), np.ones(len(free))
    lower, upper = np.full(len(free), 1e-12), np.full(len(free), 1e12)
    anchor = np.full(len(free), -1)
    for at, (home, field) in enumerate(profiles.names):
        if not free[at]:
            continue
        prior = known[field]
        common = profiles.place[COMMON, field]
        own = home != COMMON
        centre[at], lower[at], upper[at] = prior.value, prior.lower, prior.upper
        sd[at] = prior.spread if own or prior.sd is None else prior.sd
        if own and free[common]:
            anchor[at] = common
    return Beliefs(free=free, centre=centre, sd=sd, anchor=anchor, lower=lower, upper=upper)


def start(profiles: Profiles, beliefs: Beliefs, spread: float = 0.0, seed: int = 0) -> Vector:
    """Where a fit starts: the priors, or values strewn about them by `spread` (of the logarithm)."""
    strewn = np.random.default_rng(seed).normal(0.0, 1.0, len(profiles.values)) * spread * beliefs.sd
    return np.where(
        beliefs.free, np.clip(beliefs.centre * np.exp(strewn), beliefs.lower, beliefs.upper), profiles.values
    )
