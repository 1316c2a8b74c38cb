"""Bands: how far a measured step or memory may lie from the predicted one (`profiles/bands.yaml`)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from crosszone.inputs.shipped import read_shipped


def band_factors(
    *,
    moe: bool = False,
    stack_measured: bool = True,
    gpu_measured: bool = True,
    stated: bool = True,
    memory: bool = False,
) -> tuple[float, float]:
    """Factors on a prediction between which four of five measured values lie: (low, high). [Q6]

    Log widths add as independent errors do: sqrt(base^2 + each that applies^2), below and above apart. Wider for
    experts, for a stack or GPU without measurements of its own, and where part of the set-up was assumed.
    """
    parts = band_parts()["memory" if memory else "step"]
    applies = {"moe": moe, "stack": not stack_measured, "gpu": not gpu_measured, "assumed": not stated}
    used = [parts["base"], *(parts[name] for name, on in applies.items() if on)]
    low, high = (math.sqrt(sum(part[side] ** 2 for part in used)) for side in ("low", "high"))
    return math.exp(-low), math.exp(high)


def pair_spread() -> float:
    """Standard deviation of the difference of log(measured / predicted) between two strategies of one set-up. [W2]"""
    return float(band_parts()["pair"]["sd"])


@cache
def band_parts() -> dict[str, Any]:
    """Log widths of `step` and `memory` by what makes them wide, and the spread of a `pair` of strategies."""
    loaded: dict[str, Any] = read_shipped("crosszone.cost", "profiles/bands.yaml").value
    return loaded
