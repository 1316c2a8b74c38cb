"""Estimate the few coefficients that explain one measured run.

    found = estimate_coefficients(predict, beliefs, measured=[2.5], sd=[0.05])
    found.factors["elementwise"], found.errors["elementwise"]

`predict` gives the predicted seconds of everything that was measured (the step first) from factors on coefficients.

Beliefs before one log: how far each coefficient of a case may lie from the profile's value at a new site.

    believed = build_priors(Profiles.load(), ["a100"], "megatron-core")
    believed[0].field, believed[0].sd

A profile's own error says how well its runs determine a value; another site adds to it. `SITES` says how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crosszone.calibrate.fit import Vector, priors
from crosszone.cost.profile import Profiles

# Standard deviation of the logarithm among sites and software, by coefficient: what the fitted stacks differ by
# (see priors.yaml), little for what the GPU alone decides. Coefficients that are not here stay as they are.
SITES: dict[str, float] = {
    "matmul": 0.03,
    "matmul_fp8": 0.05,
    "flash": 0.1,
    "flash_backward": 0.05,
    "tile": 0.05,
    "batched": 0.1,
    "memory": 0.05,
    "score_traffic": 0.2,
    "elementwise": 0.6,
    "head_traffic": 0.05,
    "optimizer_traffic": 0.05,
    "host_s": 0.6,
    "tp_exposed": 0.6,
    "tp_message_s": 0.3,
    "link": 0.1,
    "nic": 0.15,
    "p2p_exposed": 0.3,
    "p2p_message_s": 0.3,
    "dp_traffic": 0.5,
    "shard_message_s": 1.0,
    "dp_contention": 0.3,
    "fsdp_contention": 0.4,
    "permute": 0.05,
    "moe_s": 0.3,
    "a2a_exposed": 0.05,
    "step_s": 0.05,
    "selective_share": 0.3,
}
# Share of it that adds to the profile's error: where the stack has no value of its own, and where it has.
UNSEEN, SEEN = 0.5, 0.2
DERIVED = 0.25  # The same of a GPU's rates where its profile is that of a relative
SHARES = (0.05, 1.0)  # Limits of what priors.yaml does not have: shares of a rate
# Kept with the GPU; the others with the stack.
GPU = ("matmul", "matmul_fp8", "flash", "flash_backward", "tile", "batched", "memory")


@dataclass(frozen=True, kw_only=True)
class CoefficientPrior:
    """What is believed of one coefficient of the case."""

    field: str
    value: float
    sd: float
    """Standard deviation of its logarithm."""
    lower: float
    upper: float
    of_gpu: bool
    """Kept with the GPU kind."""


def build_priors(
    profiles: Profiles,
    families: Sequence[str],
    stack: str,
    *,
    gpu_measured: bool = True,
    errors: Sequence[float] | Vector = (),
) -> list[CoefficientPrior]:
    """What is believed of each coefficient that a log may move. [K32]

    sd^2 = (error of the profile)^2 + (share x spread among sites)^2, the share 0.5 where the stack has no value of its
    own and 0.2 where it has. `errors` take the place of the profile's (a fit's own). Values are the first family's.
    """
    known = priors()
    index = profiles.index(list(families)[:1], [stack])
    found = []
    for field, spread in SITES.items():
        at = int(index[field][0, 0])
        home, value = profiles.names[at][0], float(profiles.values[at])
        if value <= 0:
            continue
        error = float(errors[at]) if len(errors) else float(profiles.errors[at])
        own = home.startswith("stack ")
        site = (SEEN if own else UNSEEN) * spread
        of_gpu = not own and (home.startswith("gpu ") or field in GPU)
        if of_gpu and not gpu_measured:
            site = max(site, DERIVED)
        limits = known.get(field)
        lower, upper = (limits.lower, limits.upper) if limits else SHARES
        found.append(
            CoefficientPrior(
                field=field,
                value=value,
                sd=math.hypot(error, site),
                lower=min(lower, value),
                upper=max(upper, value),
                of_gpu=of_gpu,
            )
        )
    return found


Predict = Callable[[Mapping[str, float]], Sequence[float]]

PROMISE, NEAR = 0.03, 0.029  # How far the predicted step may stay from the measured one; where the rounds end
# Error of a predicted step that no coefficient explains (one standard deviation of its logarithm).
MODEL = 0.05
PART = 0.15  # The same of a part of a step: logs draw its borders in their own ways
# Coefficients that move hold this share of the believed variance of the step, and are at most so many.
SHARE, FEWEST = 0.8, 3
STEP = 1e-3
LONGEST_MOVE = 0.7  # Largest change of a logarithm in a round
ROUNDS = 40
SETTLED = 3  # Rounds before the measurement is trusted more, or more coefficients are let go
LEAST_NOISE = 2e-3


@dataclass(frozen=True, kw_only=True)
class SingleRunEstimate:
    """What one run says of the coefficients."""

    factors: dict[str, float]
    """Of the coefficients that were moved."""
    errors: dict[str, float]
    """Standard deviation of the logarithm after the run, of every coefficient that was believed in."""
    covariance: Vector
    """The same for all pairs, in the order of the beliefs."""
    sensitivity: Vector
    """Change of the logarithm of the step for that of each coefficient, before the run."""
    before: tuple[float, ...]
    after: tuple[float, ...]
    """Predicted seconds of everything that was measured."""
    explained: bool
    """The predicted step is within 3 % of the measured one."""


def measure_sensitivities(
    predict: Predict, beliefs: Sequence[CoefficientPrior], factors: Mapping[str, float]
) -> Vector:
    """D log(predicted) / d log(coefficient) by finite differences: a row for each prediction. [K33]"""
    base = np.log(np.asarray(predict(factors)))
    columns = []
    for one in beliefs:
        here = factors.get(one.field, 1.0)
        change = 1.0 + STEP if one.value * here * (1.0 + STEP) <= one.upper else 1.0 - STEP  # a share stays below 1
        moved = {**factors, one.field: here * change}
        columns.append((np.log(np.asarray(predict(moved))) - base) / np.log(change))
    return np.array(columns).T


def select_coefficients(sensitivity: Vector, sd: Vector, most: int, share: float = SHARE) -> list[int]:
    """The coefficients that matter: those with the largest part of the step's believed variance. [K33]

    Part of coefficient k: (sensitivity_k x sd_k)^2. They are taken, largest first, until they hold 80 % of the sum.
    """
    part = (sensitivity * sd) ** 2
    order = np.argsort(-part, kind="stable")
    held = np.cumsum(part[order]) / max(float(part.sum()), 1e-30)
    count = min(most, 1 + int(np.searchsorted(held, share)))
    return [int(at) for at in order[:count] if part[at] > 0]


def solve_update(jacobian: Vector, sd: Vector, noise: Vector, residual: Vector) -> Vector:
    """The most probable change of the logarithms: V J' (J V J' + R)^-1 r, V and R diagonal. [K34]

    With one measurement each coefficient moves in proportion to sd^2 x sensitivity.
    """
    spread = (jacobian * sd**2) @ jacobian.T + np.diag(noise**2)
    return np.asarray(sd**2 * (jacobian.T @ np.linalg.solve(spread, residual)))


def condition_covariance(covariance: Vector, jacobian: Vector, noise: Vector) -> Vector:
    """Covariance of the logarithms after a measurement: P - P J' (J P J' + R)^-1 J P. [K35]"""
    seen = covariance @ jacobian.T
    return np.asarray(covariance - seen @ np.linalg.solve(jacobian @ seen + np.diag(noise**2), seen.T))


def estimate_coefficients(
    predict: Predict,
    beliefs: Sequence[CoefficientPrior],
    measured: Sequence[float],
    sd: Sequence[float],
    *,
    near: float = NEAR,
) -> SingleRunEstimate:
    """Move the few coefficients that matter until the predicted step is near the measured one. [K34]

    Gauss-Newton rounds from the profile's values. The measurement is first trusted as far as the model can be; where
    the step stays farther than 3 % off, it is trusted more, and at last more coefficients may move.
    """
    target, noise = np.log(np.asarray(measured)), np.asarray(sd, dtype=float).copy()
    spread = np.array([one.sd for one in beliefs])
    lower = np.log([one.lower / one.value for one in beliefs])
    upper = np.log([one.upper / one.value for one in beliefs])
    before = tuple(float(x) for x in predict({}))
    first = measure_sensitivities(predict, beliefs, {})
    most = FEWEST + len(measured) - 1
    free = select_coefficients(first[0], spread, most)
    theta, held = np.zeros(len(beliefs)), np.zeros(len(beliefs), dtype=bool)
    quiet, after = 0, before
    for _ in range(ROUNDS):
        some = [beliefs[k] for k in free]
        factors = {one.field: float(np.exp(theta[k])) for one, k in zip(some, free, strict=True)}
        after = tuple(float(x) for x in predict(factors))
        off = abs(after[0] / measured[0] - 1.0)
        if quiet >= SETTLED:
            if off <= near:
                break
            if noise[0] > LEAST_NOISE:
                noise[0] /= 2.0
            elif most < len(beliefs):
                most += FEWEST
                free, quiet = select_coefficients(first[0], spread, most, share=1.0), 0
                continue
            else:
                break
        jacobian = measure_sensitivities(predict, some, factors)
        jacobian[:, held[free]] = 0.0
        residual = target - np.log(np.asarray(after)) + jacobian @ theta[free]
        new = np.where(held[free], theta[free], solve_update(jacobian, spread[free], noise, residual))
        moved = theta[free] + np.clip(new - theta[free], -LONGEST_MOVE, LONGEST_MOVE)
        kept = np.clip(moved, lower[free], upper[free])
        held[free] |= kept != moved
        theta[free], quiet = kept, quiet + 1
    factors = {beliefs[k].field: float(np.exp(theta[k])) for k in free}
    left = condition_covariance(
        np.diag(spread**2), measure_sensitivities(predict, beliefs, factors), np.asarray(sd, dtype=float)
    )
    return SingleRunEstimate(
        factors=factors,
        errors={one.field: float(np.sqrt(max(0.0, left[k, k]))) for k, one in enumerate(beliefs)},
        covariance=left,
        sensitivity=first[0],
        before=before,
        after=after,
        explained=abs(after[0] / measured[0] - 1.0) <= PROMISE,
    )
