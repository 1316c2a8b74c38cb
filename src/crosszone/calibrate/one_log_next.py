"""The next short run: which other strategy on the same cluster would tell most about the order of the best plans.

runs = next_runs(alternatives, covariance)
runs[0].name, runs[0].sd_after_pct             # "tp x2": 4.1 % would become 2.2 %
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from crosszone.calibrate.one_log_estimate import MODEL, Vector, remaining
from crosszone.inputs.strategy import Strategy

BEST = 3
"""Plans whose order is to be settled."""
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another strategy on the same cluster."""

    name: str
    strategy: Strategy
    step_s: float
    """Predicted with the coefficients after the log."""
    sensitivity: Vector
    """Of the logarithm of its step, in the order of the beliefs."""


@dataclass(frozen=True, kw_only=True)
class NextRun:
    """What a run of an alternative would tell."""

    name: str
    step_s: float
    sd_before_pct: float
    sd_after_pct: float
    """Standard deviation of the difference between two of the best plans, now and after the run."""


def variations(strategy: Strategy) -> Iterator[tuple[str, dict[str, Any]]]:
    """Strategies one change away that use as many GPUs: name and changed fields."""
    dp, tp, pp = strategy.dp or 1, strategy.tp, strategy.pp
    for name, degree in (("tp", tp), ("pp", pp)):
        if dp % 2 == 0:
            yield f"{name} x2", {name: 2 * degree, "dp": dp // 2}
        if degree % 2 == 0:
            yield f"{name} / 2", {name: degree // 2, "dp": 2 * dp}
    if tp % 2 == 0:
        yield "tp / 2, pp x2", {"tp": tp // 2, "pp": 2 * pp}
    if pp % 2 == 0:
        yield "tp x2, pp / 2", {"tp": 2 * tp, "pp": pp // 2}
    yield "micro_batch x2", {"micro_batch": 2 * strategy.micro_batch}
    if strategy.micro_batch % 2 == 0:
        yield "micro_batch / 2", {"micro_batch": strategy.micro_batch // 2}
    for kind in RECOMPUTE:
        if kind != strategy.recompute:
            yield f"recompute {kind}", {"recompute": kind}


def next_runs(present: Alternative, others: Sequence[Alternative], covariance: Vector) -> list[NextRun]:
    """What each of the others would tell, the most useful first. [K36]

    Variance of the difference of two plans: (j_a - j_b)' P (j_a - j_b) with the sensitivities j of their steps and the
    covariance P of the coefficients; mean over pairs of the three fastest plans, before and after a run of a strategy c
    (P - P j_c j_c' P / (j_c' P j_c + 0.05^2)).
    """
    best = sorted([present, *others], key=lambda one: one.step_s)[:BEST]
    gaps = [a.sensitivity - b.sensitivity for a, b in combinations(best, 2)]

    def spread_pct(left: Vector) -> float:
        mean = sum(float(gap @ left @ gap) for gap in gaps) / max(1, len(gaps))
        return 100.0 * float(np.sqrt(max(0.0, mean)))

    now = spread_pct(covariance)
    found = []
    for one in others:
        after = remaining(covariance, one.sensitivity[None, :], np.array([MODEL]))
        run = NextRun(name=one.name, step_s=one.step_s, sd_before_pct=now, sd_after_pct=spread_pct(after))
        found.append(run)
    return sorted(found, key=lambda run: (run.sd_after_pct, run.step_s))
