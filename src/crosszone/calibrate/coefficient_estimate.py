"""What one run says of the coefficients: priors of a case, and the most probable values given what was measured.

The estimate itself needs only `predict`, which gives the predicted seconds of everything that was measured (the step
first) from factors on coefficients:

    estimate = estimate_coefficients(predict, priors, measured=[2.5], sd=[0.05])
    estimate.factors["elementwise"], estimate.errors["elementwise"]

The priors say how far each coefficient of a case may lie from the profile's value at a new site. A profile's own error
says how well its runs determine a value; another site adds to it. `SITE_SPREADS` says how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crosszone.calibrate.fit import Vector, read_priors
from crosszone.cost.profile import Profiles

# Standard deviation of the logarithm among sites and software, by coefficient: what the fitted stacks differ by
# (see priors.yaml), little for what the GPU alone decides. Coefficients that are not here stay as they are.
SITE_SPREADS: dict[str, float] = {
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
SPREAD_SHARE_UNFITTED, SPREAD_SHARE_FITTED = 0.5, 0.2
DERIVED_GPU_SD = 0.25  # The same of a GPU's rates where its profile is that of a relative
DEFAULT_LIMITS = (0.05, 1.0)  # Limits of what priors.yaml does not have: shares of a rate
# Kept with the GPU; the others with the stack.
GPU_FIELDS = ("matmul", "matmul_fp8", "flash", "flash_backward", "tile", "batched", "memory")


@dataclass(frozen=True, kw_only=True)
class CoefficientPrior:
    """The prior of one coefficient of the case."""

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
    """The prior of each coefficient that a log may move. [K32]

    sd^2 = (error of the profile)^2 + (share x spread among sites)^2, the share 0.5 where the stack has no value of its
    own and 0.2 where it has. `errors` take the place of the profile's (a fit's own). Values are the first family's.
    """
    limits_by_field = read_priors()
    index = profiles.index(list(families)[:1], [stack])
    coefficient_priors = []
    for field, spread in SITE_SPREADS.items():
        index_at = int(index[field][0, 0])
        scope, value = profiles.names[index_at][0], float(profiles.values[index_at])
        if value <= 0:
            continue
        error = float(errors[index_at]) if len(errors) else float(profiles.errors[index_at])
        has_stack_value = scope.startswith("stack ")
        site_sd = (SPREAD_SHARE_FITTED if has_stack_value else SPREAD_SHARE_UNFITTED) * spread
        of_gpu = not has_stack_value and (scope.startswith("gpu ") or field in GPU_FIELDS)
        if of_gpu and not gpu_measured:
            site_sd = max(site_sd, DERIVED_GPU_SD)
        limits = limits_by_field.get(field)
        lower, upper = (limits.lower, limits.upper) if limits else DEFAULT_LIMITS
        coefficient_priors.append(
            CoefficientPrior(
                field=field,
                value=value,
                sd=math.hypot(error, site_sd),
                lower=min(lower, value),
                upper=max(upper, value),
                of_gpu=of_gpu,
            )
        )
    return coefficient_priors


PredictFunction = Callable[[Mapping[str, float]], Sequence[float]]

# How far the predicted step may stay from the measured one, and where the rounds end: a little inside it.
EXPLAINED_ERROR, TARGET_ERROR = 0.03, 0.029
# Error of a predicted step that no coefficient explains (one standard deviation of its logarithm).
MODEL_ERROR = 0.05
PART_ERROR = 0.15  # The same of a part of a step: logs draw its borders in their own ways
# Coefficients that move hold this share of the step's prior variance; a single measurement moves at first at most so
# many, and more only where these cannot explain the step.
VARIANCE_SHARE, FIRST_COEFFICIENTS = 0.8, 3
RELATIVE_STEP = 1e-3  # Change of a coefficient in finite differences
LONGEST_MOVE = 0.7  # Largest change of a logarithm in a round: the linearization does not hold farther out
ROUNDS = 40
ROUNDS_TO_SETTLE = 3  # Rounds before the measurement is trusted more, or more coefficients are let go
LEAST_NOISE = 2e-3  # The measurement is not trusted further than this; then more coefficients may move


@dataclass(frozen=True, kw_only=True)
class SingleRunEstimate:
    """What one run says of the coefficients."""

    factors: dict[str, float]
    """Of the coefficients that were moved."""
    errors: dict[str, float]
    """Standard deviation of the logarithm after the run, of every coefficient that has a prior."""
    covariance: Vector
    """The same for all pairs, in the order of the priors."""
    sensitivity: Vector
    """Change of the logarithm of the step for that of each coefficient, before the run."""
    before: tuple[float, ...]
    after: tuple[float, ...]
    """Predicted seconds of everything that was measured."""
    explained: bool
    """The predicted step is within 3 % of the measured one."""


def measure_sensitivities(
    predict: PredictFunction, priors: Sequence[CoefficientPrior], factors: Mapping[str, float]
) -> Vector:
    """D log(predicted) / d log(coefficient) by finite differences: a row for each prediction. [K33]"""
    base_log = np.log(np.asarray(predict(factors)))
    columns = []
    for prior in priors:
        factor = factors.get(prior.field, 1.0)
        change = (
            1.0 + RELATIVE_STEP if prior.value * factor * (1.0 + RELATIVE_STEP) <= prior.upper else 1.0 - RELATIVE_STEP
        )  # a share stays below 1
        changed_factors = {**factors, prior.field: factor * change}
        columns.append((np.log(np.asarray(predict(changed_factors))) - base_log) / np.log(change))
    return np.array(columns).T


def select_coefficients(sensitivity: Vector, sd: Vector, limit: int, share: float = VARIANCE_SHARE) -> list[int]:
    """The coefficients that matter: those with the largest part of the step's prior variance. [K33]

    Part of coefficient k: (sensitivity_k x sd_k)^2. They are taken, largest first, until they hold 80 % of the sum.
    """
    variance_part = (sensitivity * sd) ** 2
    order = np.argsort(-variance_part, kind="stable")
    cumulative_share = np.cumsum(variance_part[order]) / max(float(variance_part.sum()), 1e-30)
    count = min(limit, 1 + int(np.searchsorted(cumulative_share, share)))
    return [int(index) for index in order[:count] if variance_part[index] > 0]


def solve_update(jacobian: Vector, sd: Vector, noise: Vector, residual: Vector) -> Vector:
    """The most probable change of the logarithms: V J' (J V J' + R)^-1 r, V and R diagonal. [K34]

    With one measurement each coefficient moves in proportion to sd^2 x sensitivity.
    """
    spread = (jacobian * sd**2) @ jacobian.T + np.diag(noise**2)
    return np.asarray(sd**2 * (jacobian.T @ np.linalg.solve(spread, residual)))


def condition_covariance(covariance: Vector, jacobian: Vector, noise: Vector) -> Vector:
    """Covariance of the logarithms after a measurement: P - P J' (J P J' + R)^-1 J P. [K35]"""
    cross_covariance = covariance @ jacobian.T
    return np.asarray(
        covariance
        - cross_covariance @ np.linalg.solve(jacobian @ cross_covariance + np.diag(noise**2), cross_covariance.T)
    )


def estimate_coefficients(
    predict: PredictFunction,
    priors: Sequence[CoefficientPrior],
    measured: Sequence[float],
    sd: Sequence[float],
    *,
    tolerance: float = TARGET_ERROR,
) -> SingleRunEstimate:
    """Move the few coefficients that matter until the predicted step is near the measured one. [K34]

    Gauss-Newton rounds from the profile's values. The measurement is first trusted as far as the model can be; where
    the step stays farther than 3 % off, it is trusted more, and at last more coefficients may move.
    """
    target, noise = np.log(np.asarray(measured)), np.asarray(sd, dtype=float).copy()
    spread = np.array([prior.sd for prior in priors])
    lower = np.log([prior.lower / prior.value for prior in priors])
    upper = np.log([prior.upper / prior.value for prior in priors])
    before = tuple(float(x) for x in predict({}))
    first_sensitivities = measure_sensitivities(predict, priors, {})
    limit = FIRST_COEFFICIENTS + len(measured) - 1
    free = select_coefficients(first_sensitivities[0], spread, limit)
    theta, at_limit = np.zeros(len(priors)), np.zeros(len(priors), dtype=bool)
    rounds_since_change, after = 0, before
    for _ in range(ROUNDS):
        free_priors = [priors[k] for k in free]
        factors = {prior.field: float(np.exp(theta[k])) for prior, k in zip(free_priors, free, strict=True)}
        after = tuple(float(x) for x in predict(factors))
        error = abs(after[0] / measured[0] - 1.0)
        if rounds_since_change >= ROUNDS_TO_SETTLE:
            if error <= tolerance:
                break
            if noise[0] > LEAST_NOISE:
                noise[0] /= 2.0
            elif limit < len(priors):
                limit += FIRST_COEFFICIENTS
                free, rounds_since_change = select_coefficients(first_sensitivities[0], spread, limit, share=1.0), 0
                continue
            else:
                break
        jacobian = measure_sensitivities(predict, free_priors, factors)
        jacobian[:, at_limit[free]] = 0.0
        residual = target - np.log(np.asarray(after)) + jacobian @ theta[free]
        proposed = np.where(at_limit[free], theta[free], solve_update(jacobian, spread[free], noise, residual))
        stepped = theta[free] + np.clip(proposed - theta[free], -LONGEST_MOVE, LONGEST_MOVE)
        bounded = np.clip(stepped, lower[free], upper[free])
        at_limit[free] |= bounded != stepped
        theta[free], rounds_since_change = bounded, rounds_since_change + 1
    factors = {priors[k].field: float(np.exp(theta[k])) for k in free}
    covariance = condition_covariance(
        np.diag(spread**2), measure_sensitivities(predict, priors, factors), np.asarray(sd, dtype=float)
    )
    return SingleRunEstimate(
        factors=factors,
        errors={prior.field: float(np.sqrt(max(0.0, covariance[k, k]))) for k, prior in enumerate(priors)},
        covariance=covariance,
        sensitivity=first_sensitivities[0],
        before=before,
        after=after,
        explained=abs(after[0] / measured[0] - 1.0) <= EXPLAINED_ERROR,
    )
