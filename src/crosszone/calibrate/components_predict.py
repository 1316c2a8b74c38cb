"""What the cost model says of each part of a job: layer, stage, collectives, update, and the step they make."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from crosszone.calibrate.components_links import (
    SECONDS_PER_US,
    ClusterProfile,
    RunLinks,
    cluster_profile,
    kernels,
    norm_passes,
    run_links,
)
from crosszone.calibrate.components_pipeline import rendezvous_ends_s
from crosszone.calibrate.components_read import ComponentRun
from crosszone.cost.coefficients import Coefficients
from crosszone.cost.collectives import Ring, all_gather, all_reduce, send_message
from crosszone.cost.columns import Numbers
from crosszone.cost.layer import Layer, LayerCost
from crosszone.cost.memory import HALF
from crosszone.cost.operators import traffic_s
from crosszone.cost.profile import Profiles
from crosszone.cost.replicas import optimizer_s, replicas, stage_parameters
from crosszone.cost.stages import StageCost, stage_layers
from crosszone.cost.tiers import Floats, Tier
from crosszone.inputs.frameworks import frameworks
from crosszone.predict.batch import Batch, stack_columns
from crosszone.predict.predictor import measured_predictor

STACK = "gpt-neox"
"""Files of this kind come from this stack."""


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


def predict_components(run: ComponentRun, profiles: Profiles, known: ClusterProfile | None = None) -> Components:
    """Every part of one job, and the step: pipeline, then gradients, then the update. [K2]

    `known`: what was measured of the cluster, if not what is shipped of it.

    The pipeline is walked through message by message [K6]. A stage sums its gradients when its last backward pass is
    done; all stages wait for the slowest before the update (the norm of the gradients is one number).
    """
    case, strategy = run.case, run.case.strategy
    group = case.cluster.zones[0].nodes[0]
    t, d, p = strategy.tp, case.dp, strategy.pp
    links = run_links(run.cluster, group, t, d)
    known = known or cluster_profile(run.cluster)
    batch, k = _columns(run, profiles, links, known)
    cost = LayerCost(batch.model, batch.work, batch.gpu, batch.stack, k)
    cost.dense = cost.moe = _finished(cost, run, links)
    stages = stage_layers(batch.counts, 0.0, 1.0, 0.0)
    per = StageCost(cost, stages)
    held = stage_parameters(batch.model, batch.work, stages)
    weights = HALF * _one(held.total, p)
    ring = Ring(ranks=float(d), link=links.replicas)
    reduce = all_reduce(weights, ring).seconds
    gather = all_gather(weights if strategy.zero else 0.0 * weights, ring).seconds
    update = _one(optimizer_s(cost, held, replicas(cost, batch.links)), p) + gather
    activation = HALF * float(_one(cost.tokens, 1)[0]) * case.model.hidden / t
    between = crowded(links.stages, constant(known, "send_share", 1.0))
    there = float(send_message(activation + mask_bytes(case.job.seq_len), between).seconds)
    back = float(send_message(activation, between).seconds)
    forward, backward = _one(per.forward_s, p), _one(per.backward_s, p)
    micro_batches = strategy.micro_batches(case.job.global_batch)
    ends = np.array(rendezvous_ends_s(forward.tolist(), backward.tolist(), micro_batches, there, back))
    late = replica_wait_s(float(ends.max()), d, constant(known, "replica_skew", 0.0))
    return Components(
        layer_fwd=float(_one(cost.dense.forward.total, 1)[0]),
        layer_bwd=float(_one(cost.dense.backward_s, 1)[0]),
        stage_fwd=forward,
        stage_bwd=backward,
        mp_allreduce=float(_one(cost.tp_s, 1)[0]),
        p2p_send=there if p > 1 else 0.0,
        dp_allreduce=reduce,
        dp_allgather=gather,
        update=update,
        pipeline=float(ends.max()),
        replica_wait=late,
        step=float((ends + reduce).max() + late + update.max()),
    )


def replica_wait_s(pipeline_s: float, d: int, skew: float) -> float:
    """Seconds the replicas wait for the slowest of them before gradients are summed. [K3]

    skew x pipeline x sqrt(2 ln d): `skew` is the spread of one replica's time as a share of it, and the slowest of d
    lies at most sqrt(2 ln d) spreads above the mean.
    """
    return skew * pipeline_s * float(np.sqrt(2.0 * np.log(d)))


def mask_bytes(seq_len: int) -> float:
    """Bytes of the attention mask that this stack sends along with the activations: s x s x 2. [K4]"""
    return HALF * float(seq_len) ** 2


def crowded(link: Tier, share: float) -> Tier:
    """The link between two stages while all the others of the job send too: that share of its lone rate. [K62]"""
    return Tier(link.bytes_per_s * share, link.latency_s)


def constant(known: ClusterProfile | None, name: str, unknown: float) -> float:
    """A constant of a cluster's jobs; `unknown` where nothing is known of it."""
    return known.constants[name] if known else unknown


def _columns(
    run: ComponentRun, profiles: Profiles, links: RunLinks, known: ClusterProfile | None
) -> tuple[Batch, Coefficients]:
    """The job as columns whose tensor-parallel link is the one given, and the coefficients of its cluster."""
    case, t = run.case, run.case.strategy.tp
    group = case.cluster.zones[0].nodes[0]
    settings = {**profiles.stacks[STACK]["settings"], "unfused": not run.flash}
    batch = measured_predictor(run.id, case, frameworks()["deepspeed"], profiles).batch
    batch = replace(batch, stack=stack_columns(settings, 0.0))
    batch = replace(batch, gpu=replace(batch.gpu, link_bytes_per_s=links.tensor.bytes_per_s, domain=float(t)))
    family = profiles.gpu_profile(group.gpu)[0]
    changed = {"link": 1.0, "tp_message_s": 2.0 * (t - 1) * links.tensor.latency_s}
    if known:
        forward, backward = (
            known.constants[f"host_{way}_us_per_kernel"] * SECONDS_PER_US * kernels(way, run.unfused_norm, run.flash)
            for way in ("forward", "backward")
        )
        again = 1.0 if case.strategy.recompute == "full" else 0.0
        changed |= known.coefficients
        changed |= {"host_s": forward, "host_backward": backward / forward - again, "collective_host_s": 0.0}
    return batch, replace(profiles.coefficients([family], [STACK]), **changed)


def _finished(cost: LayerCost, run: ComponentRun, links: RunLinks) -> Layer:
    """The layer with what this stack adds: norms written out, activations gathered before recomputation. [K5]"""
    (layer, _), work = cost.whole, run.case.strategy
    wide = HALF * cost.tokens * cost.model.hidden
    forward, backward, recompute = layer.forward, layer.backward, layer.recompute
    full = work.recompute == "full"
    if run.unfused_norm:
        passes = norm_passes()
        there, back = (traffic_s(passes[key] * wide, cost.memory_rate) for key in ("forward", "backward"))
        forward = replace(forward, elementwise=forward.elementwise + there)
        backward = replace(backward, elementwise=backward.elementwise + back)
        recompute = recompute + full * there
    if run.partitioned and full:
        recompute = recompute + all_gather(wide, Ring(ranks=float(work.tp), link=links.tensor)).seconds
    return replace(layer, forward=forward, backward=backward, recompute=recompute)


def _one(value: Numbers, entries: int) -> Floats:
    """A batch of one as a plain array of `entries`."""
    return np.broadcast_to(np.asarray(value, dtype=float).reshape(-1), (entries,)).copy()
