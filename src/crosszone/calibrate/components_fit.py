"""Coefficients that only whole jobs show, fitted to jobs timed part by part; and each set-up predicted without itself.

    profile = fit_cluster(jobs, profiles, name="my-cluster").profile    # launches, unfused norms, optimizer, stragglers
    for job in predict_left_out_setups(runs, profiles): print(job.run.id, job.error_pct)

Rates of links and operators are not touched: they come from timings of their own (`calibrate links`, `calibrate fit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crosszone.calibrate.components import is_update_contradicted, predict_components
from crosszone.calibrate.components_read import STACK, STAGES, ComponentRun
from crosszone.cost.coefficients import Coefficient
from crosszone.cost.measured_links import CollectiveTimings
from crosszone.cost.own_profiles import OwnProfile, format_now
from crosszone.cost.profile import Profiles, Vector
from crosszone.extras import require_extra

# Coefficients of the stack that are fitted, and by how much of its logarithm each may lie off the shipped one.
FITTED_COEFFICIENTS = {
    "host_s": 0.5,
    "host_backward": 0.3,
    "elementwise": 0.3,
    "written_out": 0.5,
    "written_out_launch": 0.3,
    "optimizer_traffic": 0.5,
    "jitter": 0.6,
}
# Measured parts that are met beside the step and the sum of the gradients.
FITTED_PARTS = (*((part, stage) for part in ("stage_fwd", "stage_bwd") for stage in STAGES), ("update", "first"))
# Relative error up to which a part counts in squares: jobs of one set-up on a quiet day differ by as much.
NOISE = 0.02


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """One job predicted with coefficients of the other set-ups of its cluster."""

    run: ComponentRun
    predicted_s: float

    @property
    def error_pct(self) -> float:
        """(predicted - measured) / measured of the iteration."""
        return 100.0 * (self.predicted_s / self.run.step_s - 1.0)


def predict_left_out_setups(runs: Sequence[ComponentRun], profiles: Profiles) -> list[LeftOut]:
    """The fastest job of each set-up, predicted by a fit to the others of its cluster. [K63]

    None of a cluster with one set-up: nothing would be left to fit. `profiles`: with coefficients of kernels and links.
    """
    left_out = []
    jobs = select_fastest(runs)
    for run in jobs:
        other_jobs = [job for job in jobs if job.cluster == run.cluster and job is not run]
        if other_jobs:
            fitted = fit_stack(other_jobs, profiles)
            left_out.append(LeftOut(run=run, predicted_s=predict_components(run, fitted.profiles).step))
    return left_out


def select_fastest(runs: Sequence[ComponentRun]) -> list[ComponentRun]:
    """The fastest job of each set-up, in their order."""
    fastest_runs: dict[str, ComponentRun] = {}
    for run in runs:
        if run.setup not in fastest_runs or run.step_s < fastest_runs[run.setup].step_s:
            fastest_runs[run.setup] = run
    return list(fastest_runs.values())


@dataclass(frozen=True, kw_only=True)
class FittedStack:
    """Coefficients of the stack that jobs show, and the profiles that have them."""

    coefficients: dict[str, Coefficient]
    profiles: Profiles
    crowded: bool
    """Sends reach less in these jobs than alone, and the profiles' links say so."""


def fit_stack(jobs: Sequence[ComponentRun], profiles: Profiles) -> FittedStack:
    """The coefficients of `FITTED_COEFFICIENTS` that meet the parts of these jobs best. [K63]

    Least squares of log(predicted / measured) over stages, update, sum of the gradients with the wait before it, and
    step; errors beyond a few percent count linearly. A coefficient that no job shows stays at the shipped value.
    """
    require_extra("calibrate")
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    links = _scale_send_rates(jobs, profiles)
    shipped = Profiles.load_shipped().coefficients(["generic"], [STACK])
    start = np.log([float(np.ravel(getattr(shipped, name))[0]) for name in FITTED_COEFFICIENTS])
    prior_spread = np.array(list(FITTED_COEFFICIENTS.values()))
    with_stack = _add_stack_coefficients(profiles, dict(zip(FITTED_COEFFICIENTS, np.exp(start), strict=True)))
    positions = [with_stack.place[f"stack {STACK}", name] for name in FITTED_COEFFICIENTS]

    def build_profiles(log_values: Vector) -> Profiles:
        values = with_stack.values.copy()
        values[positions] = np.exp(log_values)
        candidate = with_stack.with_values(values)
        candidate.links = links
        return candidate

    def compute_residuals(log_values: Vector) -> Vector:
        candidate = build_profiles(log_values)
        errors = [error for job in jobs for error in _compute_log_errors(job, candidate)]
        # The last residuals are the prior: without them a coefficient that no job shows would drift. One prior spread
        # off counts as much as one part that is off by the noise.
        return np.array([*(np.array(errors) / NOISE), *((log_values - start) / prior_spread)])

    best = least_squares(compute_residuals, start, loss="soft_l1", x_scale=prior_spread, diff_step=1e-4)
    spread = np.sqrt(np.diag(np.linalg.inv(best.jac.T @ best.jac)))
    coefficients = {
        name: Coefficient(value=float(f"{np.exp(x):.4g}"), error=float(f"{min(s, b):.2g}"), origin="fitted")
        for name, x, s, b in zip(FITTED_COEFFICIENTS, best.x, spread, prior_spread, strict=True)
    }
    return FittedStack(coefficients=coefficients, profiles=build_profiles(best.x), crowded=links is not profiles.links)


@dataclass(frozen=True, kw_only=True)
class FittedCluster:
    """What jobs say of their software, as an own profile; and each set-up predicted by a fit to the others."""

    profile: OwnProfile
    left_out: tuple[LeftOut, ...]


def fit_cluster(jobs: Sequence[ComponentRun], profiles: Profiles, *, name: str, source: str = "") -> FittedCluster:
    """What the fastest job of each set-up says of its software. [K63]"""
    fitted = fit_stack(select_fastest(jobs), profiles)
    errors = [abs(predict_components(job, fitted.profiles).step / job.step_s - 1.0) for job in select_fastest(jobs)]
    left_out = tuple(predict_left_out_setups(jobs, profiles))
    left_out_pct = [abs(job.error_pct) for job in left_out]
    scores = {"setups": len(errors), "fitted_pct": round(100.0 * float(np.mean(errors)), 2)}
    if left_out_pct:
        scores["left_out_pct"] = round(float(np.mean(left_out_pct)), 2)
    profile = OwnProfile(
        name=name,
        source=source or f"{len(jobs)} jobs timed part by part",
        created=format_now(),
        stacks={STACK: fitted.coefficients},
        collectives=fitted.profiles.links.collectives if fitted.crowded and fitted.profiles.links else (),
        scores={"jobs": {STACK: scores}},
    )
    return FittedCluster(profile=profile, left_out=left_out)


def _scale_send_rates(jobs: Sequence[ComponentRun], profiles: Profiles) -> CollectiveTimings | None:
    """The timed links with the rate that sends between nodes reach while all pairs of stages send. [K62]

    The share of the lone rate is the mean over the jobs of predicted over measured, of the least of a job's sends: the
    others wait for their receiver. Where the jobs show no less than the lone rate, nothing changes.
    """
    shares = []
    for job in jobs:
        sends_s = [job.parts_s["p2p_send", stage] for stage in STAGES if ("p2p_send", stage) in job.parts_s]
        if sends_s and job.case.strategy.pp > 1:
            shares.append(predict_components(job, profiles).p2p_send / min(sends_s))
    share = float(np.mean(shares)) if shares else 1.0
    if profiles.links is None or share > 1.0 - NOISE:
        return profiles.links
    note = f"{share:.2f} of the lone rate, as in jobs whose stages all send at once"
    return CollectiveTimings(
        [
            collective.replace(gb_per_s=float(f"{collective.gb_per_s * share:.4g}"), origin="fitted", note=note)
            if collective.op == "send_recv" and collective.nodes > 1
            else collective
            for collective in profiles.links.collectives
        ]
    )


def _compute_log_errors(job: ComponentRun, profiles: Profiles) -> list[float]:
    """log(predicted / measured) of the parts that a job states, and of its step."""
    predicted_parts = predict_components(job, profiles)
    pairs = [(predicted_parts.step, job.step_s)]
    pairs += [
        (predicted_parts.get_part_s(*key), job.parts_s[key])
        for key in FITTED_PARTS
        if key in job.parts_s and not (key[0] == "update" and is_update_contradicted(job))
    ]
    gradient_sum = ("dp_allreduce", "first")
    if gradient_sum in job.parts_s and job.case.dp > 1:
        pairs.append(
            (predicted_parts.get_part_s(*gradient_sum) + predicted_parts.replica_wait, job.parts_s[gradient_sum])
        )
    return [float(np.log(predicted / measured)) for predicted, measured in pairs]


def _add_stack_coefficients(profiles: Profiles, values: dict[str, float]) -> Profiles:
    """The profiles with these coefficients laid over the stack's own, so that they have positions of their own."""
    coefficients = {name: Coefficient(value=value, error=0.0, origin="fitted") for name, value in values.items()}
    overlay = OwnProfile(name=profiles.own or "jobs", source="", created="", stacks={STACK: coefficients})
    return profiles.with_own(overlay)
