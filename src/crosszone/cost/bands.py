"""Bands: how far a measured step or memory may lie from the predicted one (`profiles/bands.yaml`)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from crosszone.cost.record import named
from crosszone.inputs.shipped import read_shipped


def band_factors(
    *,
    moe: bool = False,
    stack_measured: bool = True,
    gpu_measured: bool = True,
    stated: bool = True,
    memory: bool = False,
) -> tuple[Any, Any]:
    """Factors on a prediction between which four of five measured values lie: (low, high). [Q6]

    Log widths add as independent errors do: sqrt(base^2 + each that applies^2), below and above apart. Wider for
    experts, for a stack or GPU without measurements of its own, and where part of the set-up was assumed.
    """
    of = "memory" if memory else "step"
    parts = band_parts()[of]
    applies = {"base": True, "moe": moe, "stack": not stack_measured, "gpu": not gpu_measured, "assumed": not stated}
    used = [name for name, on in applies.items() if on]
    low, high = (
        np.sqrt(sum(named(f"width.{of}.{name}.{side}", float(parts[name][side])) ** 2 for name in used))
        for side in ("low", "high")
    )
    return np.exp(-low), np.exp(high)


def pair_spread() -> float:
    """Standard deviation of the difference of log(measured / predicted) between two strategies of one set-up. [W2]"""
    return float(band_parts()["pair"]["sd"])


@cache
def band_parts() -> dict[str, Any]:
    """Log widths of `step` and `memory` by what makes them wide, and the spread of a `pair` of strategies."""
    loaded: dict[str, Any] = read_shipped("crosszone.cost", "profiles/bands.yaml").value
    return loaded
