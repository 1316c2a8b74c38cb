"""What `predict` says of each part of a job: layer, stage, collectives, update, and the step they make."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from crosszone.calibrate.components_read import ComponentRun
from crosszone.cost.own_profiles import load_cluster_profile
from crosszone.cost.profile import Profiles
from crosszone.cost.tiers import Floats
from crosszone.inputs.frameworks import frameworks
from crosszone.predict.predict import measured_predictor


@dataclass(frozen=True, kw_only=True)
class Components:
    """Predicted seconds of the parts of one job; arrays have one entry a stage."""

    layer_fwd: float
    layer_bwd: float
    stage_fwd: Floats
    stage_bwd: Floats
    mp_allreduce: float
    p2p_send: float
    dp_allreduce: Floats
    """Once all replicas take part: their waiting for each other is apart."""
    dp_allgather: Floats
    update: Floats
    """Optimizer and all-gather."""
    pipeline: float
    """From the first forward to the last backward pass."""
    replica_wait: float
    """Until the slowest replica has come to the sum of the gradients."""
    step: float

    def part(self, name: str, stage: str) -> float:
        """One part on the first, a middle or the last stage."""
        value = np.atleast_1d(getattr(self, name))
        return float(value[{"first": 0, "middle": min(1, len(value) - 1), "last": -1}[stage]])


def predict_components(run: ComponentRun, profiles: Profiles) -> Components:
    """Every part of one job, and the step: those of `predict` for the same case. [K2]

    `profiles`: what the job is predicted with; what was measured of its cluster is laid over by `profiles_of_cluster`.
    """
    p = measured_predictor(run.id, run.case, frameworks()["deepspeed"], profiles)
    times, stages = p.step.times, run.case.strategy.pp
    (layer, _), row = times.layer.whole, p.row

    def of_stages(value: Any) -> Floats:
        """A row of the batch, one entry a stage."""
        table = np.atleast_2d(np.asarray(value, dtype=float))
        return np.broadcast_to(table[row if len(table) > 1 else 0], (stages,)).copy()

    def single(value: Any) -> float:
        return float(of_stages(value)[0])

    gather = of_stages(times.gather)
    return Components(
        layer_fwd=single(layer.forward_s),
        layer_bwd=single(layer.backward_s),
        stage_fwd=of_stages(times.cost.forward_s),
        stage_bwd=of_stages(times.cost.backward_s),
        mp_allreduce=single(times.layer.tp_s),
        p2p_send=single(times.send),
        dp_allreduce=of_stages(times.reduce),
        dp_allgather=gather,
        update=of_stages(times.update) + gather,
        pipeline=float(p.step.pipelines.span_s[row]),
        replica_wait=float(p.step.jitter_s[row]),
        step=p.step_time.expected,
    )


@cache
def profiles_of_cluster(cluster: str, profiles: Profiles) -> Profiles:
    """The profiles with what was measured of a cluster over them; an own profile in use stays alone."""
    known = None if profiles.own else load_cluster_profile(cluster)
    return profiles if known is None else profiles.with_own(known)
