"""The step in closed form, for a batch of strategies: stages, pipeline, exchange among replicas, optimizer."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.collectives import send_message
from crosszone.cost.columns import Numbers
from crosszone.cost.layer import LayerCost
from crosszone.cost.measured_links import Group
from crosszone.cost.record import as_array, named
from crosszone.cost.replicas import (
    Exchange,
    Replicas,
    StageParameters,
    exchange,
    optimizer_s,
    replicas,
    stage_parameters,
)
from crosszone.cost.stages import StageCost, StageLayers, stage_layers
from crosszone.cost.tiers import Tier
from crosszone.predict.batch import Batch
from crosszone.schedule.closed_form import largest, stage_bounds_s


@dataclass(frozen=True, kw_only=True)
class Passes:
    """What the pipeline schedules: seconds of one micro-batch on each stage, and of its sends.

    Arrays [strategies, stages]; 0 where a strategy has no such stage.
    """

    layer: LayerCost
    cost: StageCost
    layers: StageLayers
    forward: Numbers
    """Compute, exposed gathers of sharded weights and exposed sends."""
    backward: Numbers
    out: Numbers
    """Share of a stage's sends that there are, forward and backward."""
    into: Numbers
    send: Numbers
    """One message to the next stage, all chunks together: all of it."""
    send_back: Numbers
    piped: Numbers
    """Share of the sends over a boundary that runs in the sender's time only; between zones all runs beside it too."""
    sends: Numbers
    """What messages add to a stage's forward time: those it sends, and those it takes where these hold it too."""
    sends_back: Numbers
    """The same of its backward time."""
    send_bytes: Numbers
    """Of one message to the next stage."""
    send_back_bytes: Numbers
    latency: Numbers
    """Of that boundary, where it crosses zones."""
    jitter: Numbers
    """Waiting for stragglers: a share of the longest stage's work, more over more nodes."""
    fixed: Numbers


@dataclass(frozen=True, kw_only=True)
class StageTimes(Passes):
    """The same with what replicas exchange: in every pass, where states are sharded so, and once a step."""

    held: StageParameters
    group: Replicas
    sent: Exchange
    gathers: Numbers
    """Of both passes: exposed gathers and reductions of sharded weights."""
    reduce: Numbers
    """Exposed part of the gradient reduction after the last backward pass."""
    gather: Numbers
    """Exposed part of the weights' gather before the first forward pass."""
    update: Numbers


def exposed_s(comm: Numbers, window: Numbers, on: Numbers, contention: Numbers, overlap: Numbers) -> Numbers:
    """What communication adds to the compute it overlaps. [V1]

    Off: all of it. On: what is longer than the window, and a share (contention) of what hides; where a coefficient x is
    given, comm - x min(comm, window): 0 hides nothing, 1 all that can hide.
    """
    given = ~np.isnan(overlap)
    saved = np.where(given, overlap, 1.0 - contention) * (as_array(on) > 0)
    return comm - saved * np.minimum(comm, window)


def stage_passes(batch: Batch, k: Coefficients, layer: LayerCost | None = None) -> Passes:
    """Passes of every stage of every strategy, nothing exchanged; `layer`: its layers' costs, where they are known."""
    w, g, m = batch.work, batch.gpu, batch.model
    cost = layer or LayerCost(m, w, g, batch.stack, k, batch.measured)
    kinds = (m.first_dense, m.moe_every, m.moe_layers)
    layers = stage_layers(batch.counts, *kinds, batch.repeats, w.folded, batch.sparse)
    per = StageCost(cost, layers)
    present = layers.layers > 0
    (send_bytes, send_back_bytes), (send, send_back), inside = _sends(batch, cost, k)
    passed, passed_back, piped, latency = _waits(batch, k, send, send_back, inside)
    out, into = _senders(layers, w.interleave)
    sends, sends_back = out * passed, into * before(passed_back)
    both = as_array(batch.stack.p2p_both_ends)
    if np.any(both > 0):  # what arrives holds a stage too: from the one before forward, from the next one backward
        sends, sends_back = sends + both * into * before(passed), sends_back + both * out * passed_back
    return Passes(
        layer=cost,
        cost=per,
        layers=layers,
        forward=named("pass.forward", per.forward_s * present + sends),
        backward=named("pass.backward", per.backward_s * present + sends_back),
        out=out,
        into=into,
        send=send,
        send_back=send_back,
        piped=piped,
        sends=sends,
        sends_back=sends_back,
        send_bytes=send_bytes,
        send_back_bytes=send_back_bytes,
        latency=latency,
        jitter=w.micro_batches * largest(per.forward_s + per.backward_s) * k.jitter * np.log2(np.maximum(g.nodes, 1.0)),
        fixed=k.step_s,
    )


def stage_times(batch: Batch, k: Coefficients, layer: LayerCost | None = None) -> StageTimes:
    """Times of every stage of every strategy; `layer`: its layers' costs, where they are known already."""
    w, links = batch.work, batch.links
    p = stage_passes(batch, k, layer)
    cost, per, present = p.layer, p.cost, p.layers.layers > 0
    held = stage_parameters(batch.model, w, p.layers)
    group = replicas(cost, links)
    sent = exchange(cost, held, group, links, batch.repeats)
    alone = as_array(w.pp) == 1
    each_gather = alone & (as_array(w.zero) >= 3)
    met = (as_array(w.shard_ranks) > 1) | (as_array(w.dp) == 1)  # replicas that share nothing reduce once a step
    each_reduce = alone & (as_array(w.zero) >= 2) & met
    gather = exposed_s(sent.gather, w.room * per.forward_s, w.overlap_parameters, k.dp_contention, w.overlap)
    once = np.where(each_reduce, sent.outer, sent.reduce + sent.outer)
    again = sent.gather * each_gather + sent.reduce * each_reduce
    room = np.maximum(0.0, w.room * per.backward_s - again)  # sharded gradients, and weights gathered again, go first
    window = np.minimum(room, once * (1.0 - sent.last_bucket))
    reduce = exposed_s(once, window, w.overlap_gradients, k.dp_contention, w.overlap)
    forward, backward, gathers = p.forward, p.backward, 0.0
    if np.any(each_gather | each_reduce):  # sharded gradients, and perhaps weights, go with every micro-batch
        each = exposed_s(sent.gather, per.forward_s * present, w.overlap_parameters, k.fsdp_contention, w.overlap)
        gather_each = each * each_gather
        reduce_each = exposed_s(again, per.backward_s * present, w.overlap_gradients, k.fsdp_contention, w.overlap)
        gathers = (gather_each + reduce_each) * present
        forward, backward = forward + gather_each * present, backward + reduce_each * present
        gather = gather * ~each_gather
    return StageTimes(
        **{f.name: getattr(p, f.name) for f in fields(Passes)}
        | {
            "held": held,
            "group": group,
            "sent": sent,
            "forward": forward,
            "backward": backward,
            "gathers": named("gathers_s", gathers),
            "reduce": named("reduce_s", reduce * present),
            "gather": named("gather_s", gather * present),
            "update": named("update_s", optimizer_s(cost, held, group)),
        }
    )


def _senders(layers: StageLayers, chunks: Numbers) -> tuple[Numbers, Numbers]:
    """Share of the sends of a stage that there are: forward all but from the last, backward all but from the first.

    With several chunks the last stage goes on to the first for all but the last chunk.
    """
    folded = layers.first * layers.last  # a folded pipeline turns round inside its last stage
    present = layers.layers > 0
    out, into = (present - (end - folded) / chunks for end in (layers.last, layers.first))
    return named("sends_out", out), named("sends_back", into)


def before(values: Numbers) -> Numbers:
    """Each stage's figure of the boundary before it, which for the first is the one after the last."""
    return np.roll(values, 1, axis=-1) if np.ndim(values) and np.shape(values)[-1] > 1 else values


Pair = tuple[Numbers, Numbers]
"""Of a message to the next stage, and of one back."""


def _sends(batch: Batch, cost: LayerCost, k: Coefficients) -> tuple[Pair, Pair, Pair]:
    """Bytes and seconds of one micro-batch's activations over a boundary, all chunks of a stage together. [X8]

    Last, the seconds of the same messages inside a zone.
    """
    w, links = batch.work, batch.links
    cut = np.where(batch.stack.p2p_scatter > 0, 1.0 / w.tp, cost.split)
    size = w.interleave * w.word * cost.tokens * batch.model.hidden * cut
    fast = as_array(links.boundary_fast)
    inside = np.where(fast > 0, cost.link_rate, cost.nic_rate)
    inside = np.where(fast > 1, np.maximum(inside, cost.nic_rate), inside)
    inside = np.where(np.isfinite(links.boundary_bytes_per_s), cost.nic_rate, inside)
    piped = (as_array(w.pp) > 1) & (as_array(links.boundary_perfect) == 0)

    latency_s, one = k.p2p_message_s, size / w.interleave
    if batch.measured is not None:
        near = Group(2.0, np.where(fast > 0, 1.0, batch.gpu.node_gpus), batch.gpu)
        _, (timed, timed_latency_s) = batch.measured.tier(("send_recv",), near, one, Tier(inside, latency_s))
        # fast 2: the boundary may lie in a node, a bound; and between zones nothing was timed
        some = (fast < 2) & ~np.isfinite(links.boundary_bytes_per_s)
        inside, latency_s = np.where(some, timed, inside), np.where(some, timed_latency_s, latency_s)
    masked = size
    if np.any(as_array(batch.stack.p2p_mask) > 0):
        masked = size + w.interleave * batch.stack.p2p_mask * named("mask_bytes", w.word * w.seq * w.seq)

    def time(bytes_sent: Numbers, rate: Numbers) -> Numbers:
        link = Tier(np.minimum(inside, rate), latency_s)
        return np.where(piped, send_message(bytes_sent, link, calls=w.interleave).seconds, 0.0)

    there_s, back_s = time(masked, links.boundary_bytes_per_s), time(size, links.boundary_back_bytes_per_s)
    sent = named("send_bytes", np.where(piped, masked, 0.0)), named("send_back_bytes", np.where(piped, size, 0.0))
    return sent, (named("send_s", there_s), named("send_back_s", back_s)), (time(masked, np.inf), time(size, np.inf))


def _waits(
    batch: Batch, k: Coefficients, send: Numbers, send_back: Numbers, inside: Pair
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """What sends forward and back add to their sender's time, the share of them that does, and the latency left. [X8]

    Between zones a send goes out of the GPU and then on beside the compute, unless the stack waits for it there too:
    until it is out, or until it has arrived, as a blocking exchange between neighbours does.
    """
    links, wait = batch.links, as_array(batch.stack.p2p_wait)
    share = np.where(as_array(batch.work.pp) > 1, k.p2p_exposed, 0.0)
    far = np.isfinite(links.boundary_bytes_per_s)
    late = np.where(far & (wait > 1), links.boundary_latency_s, 0.0)
    forward, back = (
        share * np.where(far & (wait > 0), s + late, near) for s, near in zip((send, send_back), inside, strict=True)
    )
    piped = np.where(far & (wait == 0), 0.0, share)
    passed = named("send_adds_s", forward), named("send_back_adds_s", back)
    return *passed, piped, links.boundary_latency_s - share * late


def tail_s(t: StageTimes, ready: Numbers) -> tuple[Numbers, Numbers]:
    """End of all gradient reductions, and the update after it; `ready`: when each stage's gradients are whole. [V2]

    The update waits for the gradients' norm, so for every stage.
    """
    present = t.layers.layers > 0
    reduced = largest((ready + t.reduce) * present)
    updated = largest(t.update + t.gather)
    return reduced, updated


def step_s(batch: Batch, k: Coefficients, layer: LayerCost | None = None) -> Numbers:
    """Seconds of the step of each strategy, by the quick bound of its pipeline: never above the simulated one. [V3]"""
    t = stage_times(batch, k, layer)
    longest, own = pipeline_bounds_s(batch, t)
    return bounded_s(t, largest(longest), own)


def passes_s(batch: Batch, k: Coefficients, layer: LayerCost | None = None) -> Numbers:
    """The same without anything that replicas exchange or update: never above `step_s`, whatever they do. [V3]"""
    p = stage_passes(batch, k, layer)
    longest, _ = pipeline_bounds_s(batch, p)
    fixed, jitter = (largest(np.atleast_1d(x)) for x in (p.fixed, p.jitter))
    return (largest(longest) + fixed + jitter)[..., 0]


def pipeline_bounds_s(batch: Batch, t: Passes) -> tuple[Numbers, Numbers]:
    """Through each stage, the least time of the pipeline and the least time until its gradients are whole. [S12]"""
    w = batch.work
    goes_on = (t.forward > 0) & (as_array(t.layers.last) == 0)
    there, back = (
        np.where(goes_on, (1.0 - t.piped) * send + w.interleave * t.latency, 0.0) for send in (t.send, t.send_back)
    )
    busy, busy_back = ((1.0 - t.piped) * send for send in (t.send, t.send_back))
    slowest = as_array(batch.links.slowest_bytes_per_s)
    if np.isfinite(slowest).any():  # the boundaries of stages that others stand for
        busy = np.maximum(busy, np.minimum(t.send_bytes, t.send_back_bytes) / slowest)
    return stage_bounds_s(
        t.forward,
        t.backward,
        there,
        w.micro_batches,
        w.interleave,
        w.pp,
        back_s=back,
        repeats=batch.repeats,
        extra_warmup=w.ahead,
        late_s=np.where(as_array(w.split) > 0, t.cost.weight_s, 0.0) if np.any(w.split) else 0.0,
        fills=w.fills * _even_chunks(batch),
        busy_s=busy,
        busy_back_s=busy_back,
        far=t.latency,
    )


def _even_chunks(batch: Batch) -> Numbers:
    """1 where all chunks of a stage are alike but for its ends, so that a pipeline fills in a chunk's share of them."""
    m, w = batch.model, batch.work
    unlike = (as_array(m.moe_layers) > 0) & ((as_array(m.first_dense) > 0) | (as_array(m.moe_every) > 1))
    return np.where((as_array(w.folded) > 0) | (unlike & (as_array(w.interleave) > 1)), 0.0, 1.0)


def bounded_s(t: StageTimes, span: Numbers, own: Numbers) -> Numbers:
    """The step where its pipeline takes at least `span`, and each stage's gradients are whole at `own` or later."""
    late = (as_array(t.layer.work.split) > 0) | (as_array(t.layer.work.fills) == 0)
    first = as_array(t.layers.first) > 0
    ready = np.where(first & ~late, span, own)  # the first stage ends last, unless weights' gradients come late
    reduced, updated = tail_s(t, ready)
    reduced = np.maximum(reduced, span)
    fixed, jitter = (largest(np.atleast_1d(x)) for x in (t.fixed, t.jitter))
    return (reduced + updated + fixed + jitter)[..., 0]
