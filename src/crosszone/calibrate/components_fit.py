"""Constants that only whole jobs show, fitted to jobs timed part by part; and each set-up predicted without itself.

    constants = fitted_constants(known, jobs, profiles)     # host times, spread of replicas, share of a send
    for one in left_out(runs, profiles): print(one.run.id, one.error_pct)

Rates of links and operators are not touched: they come from timings of their own (`clusters.yaml`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from statistics import fmean

from crosszone.calibrate.components_links import ClusterProfile, cluster_profile
from crosszone.calibrate.components_predict import Components, predict_components
from crosszone.calibrate.components_read import STAGES, ComponentRun
from crosszone.cost.profile import Profiles

HOST = {"host_forward_us_per_kernel": "stage_fwd", "host_backward_us_per_kernel": "stage_bwd"}
"""Host times, and the part they are fitted to."""
LEAST_US = 1.0
"""No kernel is launched faster."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """One job predicted with constants of the other set-ups of its cluster."""

    run: ComponentRun
    predicted_s: float

    @property
    def error_pct(self) -> float:
        """(predicted - measured) / measured of the iteration."""
        return 100.0 * (self.predicted_s / self.run.step_s - 1.0)


def left_out(runs: Sequence[ComponentRun], profiles: Profiles) -> list[LeftOut]:
    """The fastest job of each set-up, predicted without it; none of a cluster with one set-up, or not known. [K63]"""
    found = []
    jobs = fastest(runs)
    for run in jobs:
        known = cluster_profile(run.cluster)
        others = [one for one in jobs if one.cluster == run.cluster and one is not run]
        if known is None or not others:
            continue
        without = replace(known, constants={**known.constants, **fitted_constants(known, others, profiles)})
        found.append(LeftOut(run=run, predicted_s=predict_components(run, profiles, without).step))
    return found


def fastest(runs: Sequence[ComponentRun]) -> list[ComponentRun]:
    """The fastest job of each set-up, in their order."""
    best: dict[str, ComponentRun] = {}
    for run in runs:
        if run.setup not in best or run.step_s < best[run.setup].step_s:
            best[run.setup] = run
    return list(best.values())


def fitted_constants(known: ClusterProfile, jobs: Sequence[ComponentRun], profiles: Profiles) -> dict[str, float]:
    """What jobs of one cluster say of its constants; one that no job shows is not in it. [K63]

    Host times are those with the least sum of squared relative errors of stages (a stage is linear in them); the
    spread of replicas is the mean of (measured sum of gradients - ring) / pipeline / sqrt(2 ln d), at least 0; the
    share of a send is the mean of lone over measured, at most 1.
    """
    found: dict[str, float] = {}
    for name, part in HOST.items():
        value = known.constants[name]
        here = _errors(jobs, part, [predict_components(run, profiles, known) for run in jobs])
        more = replace(known, constants={**known.constants, name: value + 1.0})
        there = _errors(jobs, part, [predict_components(run, profiles, more) for run in jobs])
        slopes = [after - before for before, after in zip(here, there, strict=True)]
        if any(slopes):
            best = value - sum(s * e for s, e in zip(slopes, here, strict=True)) / sum(s * s for s in slopes)
            found[name] = max(LEAST_US, best)
    lone = replace(known, constants={**known.constants, **found, "send_share": 1.0})
    found |= _send(jobs, [predict_components(run, profiles, lone) for run in jobs])
    now = replace(known, constants={**known.constants, **found})
    return found | _spread(jobs, [predict_components(run, profiles, now) for run in jobs])


def _errors(jobs: Sequence[ComponentRun], part: str, predicted: Sequence[Components]) -> list[float]:
    return [
        one.part(part, stage) / run.parts_s[part, stage] - 1.0
        for run, one in zip(jobs, predicted, strict=True)
        for stage in STAGES
        if (part, stage) in run.parts_s
    ]


def _spread(jobs: Sequence[ComponentRun], predicted: Sequence[Components]) -> dict[str, float]:
    shares = [
        (run.parts_s["dp_allreduce", "first"] - one.part("dp_allreduce", "first"))
        / one.pipeline
        / sqrt(2.0 * log(run.case.dp))
        for run, one in zip(jobs, predicted, strict=True)
        if run.case.dp > 1 and ("dp_allreduce", "first") in run.parts_s
    ]
    return {"replica_skew": max(0.0, fmean(shares))} if shares else {}


def _send(jobs: Sequence[ComponentRun], predicted: Sequence[Components]) -> dict[str, float]:
    shares = []
    for run, one in zip(jobs, predicted, strict=True):
        seen = [run.parts_s["p2p_send", stage] for stage in STAGES if ("p2p_send", stage) in run.parts_s]
        if seen and one.p2p_send > 0:
            shares.append(one.p2p_send / min(seen))
    return {"send_share": min(1.0, fmean(shares))} if shares else {}
