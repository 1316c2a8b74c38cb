"""Does it fit? The probability that a job's peak stays within a GPU's memory, and the verdict from it.

    probability = estimate_fits_probability(72.0, 80.0, "nanotron")
    choose_verdict(probability)        # "yes", "tight" or "no"

The distribution is that of measured peaks about predicted ones, and of configurations that ran or crashed; it stands in
`cost/profiles/fits.yaml`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np

from crosszone.cost.record import named
from crosszone.inputs.shipped import read_shipped

Verdict = Literal["yes", "tight", "no"]

RATIOS = (1e-3, 1e3)
TAIL_ODDS = 9.0  # A range of eight in ten leaves one in ten on each side: odds of nine to one


@cache
def read_fits_profile() -> dict[str, Any]:
    """`fits.yaml`: usable share of a GPU's memory, spreads by stack, probabilities of the verdicts."""
    loaded: dict[str, Any] = read_shipped("crosszone.cost", "profiles/fits.yaml").value
    return loaded


def get_spread(stack: str) -> float:
    """Scale of the distribution of log(needed / predicted); a stack without measured peaks has the common one."""
    profile = read_fits_profile()
    return float(profile["stacks"].get(stack, profile["spread"])["value"])


def estimate_fits_probability(peak_gib: Any, limit_gib: Any, stack: str) -> Any:
    """Probability that the memory a job needs stays within what it can use of the limit. [M12]

    1 / (1 + (peak / (usable x limit))^(1 / spread)): a logistic distribution, whose tails are those of the errors.
    """
    usable = named("fits.usable", float(read_fits_profile()["usable"]["value"]))
    spread = named("fits.spread", get_spread(stack), stack=stack)
    # beyond these ratios the probability is 0 or 1 to every digit, and the power would overflow
    ratio = np.clip(peak_gib / (usable * limit_gib), *RATIOS)
    return 1.0 / (1.0 + ratio ** (1.0 / spread))


def compute_peak_factors(stack: str) -> tuple[float, float]:
    """Factors on a predicted peak between which eight of ten measured ones lie: (low, high). [M12]"""
    factor = float(TAIL_ODDS ** named("fits.spread", get_spread(stack), stack=stack))
    return 1.0 / factor, factor


def compute_safe_share(stack: str) -> float:
    """Share of a GPU's memory up to which a peak has the verdict yes. [M12]"""
    profile = read_fits_profile()
    likely = profile["verdicts"]["yes_from"]
    return float(profile["usable"]["value"] * ((1.0 - likely) / likely) ** get_spread(stack))


def choose_verdict(probability: float) -> Verdict:
    """Yes or no where one is likely enough, else tight. [M12]"""
    verdicts = read_fits_profile()["verdicts"]
    if probability >= verdicts["yes_from"]:
        return "yes"
    return "no" if probability < verdicts["no_below"] else "tight"
