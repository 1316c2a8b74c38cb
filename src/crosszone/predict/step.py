"""The step in closed form, for a batch of strategies: stages, pipeline, exchange among replicas, optimizer.

The step as the schedule really runs it: the event simulation over the same stage and link times. [V3]

Arrays are [strategies, stages]; an axis of length 1 holds for all of them, and a strategy with fewer stages has zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.collectives import send_message
from crosszone.cost.columns import Column, Numbers
from crosszone.cost.layer import LayerCost
from crosszone.cost.measured_links import Group
from crosszone.cost.record import as_array, named, plain
from crosszone.cost.replicas import (
    Exchange,
    Replicas,
    StageParameters,
    count_stage_parameters,
    estimate_exchange,
    group_replicas,
    optimizer_s,
)
from crosszone.cost.stages import StageCost, StageLayers
from crosszone.cost.tiers import Tier
from crosszone.errors import Notice
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import Batch
from crosszone.schedule.closed_form import bound_makespan_s, bound_stages_s, select_largest
from crosszone.schedule.orders import SPLITS_WEIGHT_GRAD, list_stages_in_order, map_virtual_stages
from crosszone.schedule.simulation import Simulation, simulate
from crosszone.schedule.step_times import simulate_step_times


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
    """One message to the next stage, all virtual stages together: all of it."""
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

    @property
    def largest_fixed_and_jitter(self) -> tuple[Numbers, Numbers]:
        """Both, of the stage that has most: the whole step waits for it."""
        return select_largest(np.atleast_1d(self.fixed)), select_largest(np.atleast_1d(self.jitter))


@dataclass(frozen=True, kw_only=True)
class StageTimes(Passes):
    """The same with what replicas exchange: in every pass, where states are sharded so, and once a step."""

    params_per_rank: StageParameters
    group: Replicas
    sent: Exchange
    gathers: Numbers
    """Of both passes: exposed gathers and reductions of sharded weights."""
    reduce: Numbers
    """Exposed part of the gradient reduction after the last backward pass."""
    gather: Numbers
    """Exposed part of the weights' gather before the first forward pass."""
    update: Numbers


def compute_exposed_s(comm: Numbers, window: Numbers, on: Numbers, contention: Numbers, overlap: Numbers) -> Numbers:
    """What communication adds to the compute it overlaps. [V1]

    Off: all of it. On: what is longer than the window, and a share (contention) of what hides; where a coefficient x is
    given, comm - x min(comm, window): 0 hides nothing, 1 all that can hide.
    """
    # nan stands for "not given": it goes through arrays of strategies, which None does not
    has_overlap = ~np.isnan(overlap)
    saved = np.where(has_overlap, overlap, 1.0 - contention) * (as_array(on) > 0)
    return comm - saved * np.minimum(comm, window)


def build_stage_passes(batch: Batch, k: Coefficients, layer: LayerCost | None = None) -> Passes:
    """Passes of every stage of every strategy, nothing exchanged; `layer`: its layers' costs, where they are known."""
    w, g, m = batch.work, batch.gpu, batch.model
    cost = layer or LayerCost(m, w, g, batch.stack, k, batch.measured)
    layers = batch.build_stage_layers()
    per = StageCost(cost, layers)
    present = layers.present
    (send_bytes, send_back_bytes), (send, send_back), inside = _estimate_sends(batch, cost, k)
    passed, passed_back, piped, latency = _estimate_waits(batch, k, send, send_back, inside)
    out, into = _compute_send_shares(layers, w.interleave)
    sends, sends_back = out * passed, into * shift_to_next_stage(passed_back)
    both = as_array(batch.stack.p2p_both_ends)
    if np.any(both > 0):  # what arrives holds a stage too: from the one before forward, from the next one backward
        sends, sends_back = sends + both * into * shift_to_next_stage(passed), sends_back + both * out * passed_back
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
        jitter=w.micro_batches
        * select_largest(per.forward_s + per.backward_s)
        * (k.jitter * np.log2(np.maximum(g.nodes, 1.0)) + k.skew * (as_array(w.tp) > 1)),
        fixed=k.step_s,
    )


def build_stage_times(batch: Batch, k: Coefficients, layer: LayerCost | None = None) -> StageTimes:
    """Times of every stage of every strategy; `layer`: its layers' costs, where they are known already."""
    w, links = batch.work, batch.links
    p = build_stage_passes(batch, k, layer)
    cost, per, present = p.layer, p.cost, p.layers.present
    params_per_rank = count_stage_parameters(batch.model, w, p.layers)
    group = group_replicas(cost, links)
    sent = estimate_exchange(cost, params_per_rank, group, links, batch.repeats)
    # in a pipeline ZeRO 2 and 3 are charged once a step [X7]: FSDP keeps a stage gathered until its last micro-batch
    single_stage = as_array(w.pp) == 1
    gathers_per_pass = single_stage & (as_array(w.zero) >= 3)
    # replicas that share nothing reduce once a step
    shares_states = (as_array(w.shard_ranks) > 1) | (as_array(w.dp) == 1)
    reduces_per_pass = single_stage & (as_array(w.zero) >= 2) & shares_states
    gather = compute_exposed_s(
        sent.gather, w.overlap_window * per.forward_s, w.overlap_parameters, k.dp_contention, w.overlap
    )
    per_step_s = np.where(reduces_per_pass, sent.outer, sent.reduce + sent.outer)
    shard_comm_s = sent.gather * gathers_per_pass + sent.reduce * reduces_per_pass
    # sharded gradients, and weights gathered a second time, go first
    window_s = np.maximum(0.0, w.overlap_window * per.backward_s - shard_comm_s)
    window = np.minimum(window_s, per_step_s * (1.0 - sent.last_bucket))
    reduce = compute_exposed_s(per_step_s, window, w.overlap_gradients, k.dp_contention, w.overlap)
    forward, backward, gathers = p.forward, p.backward, 0.0
    if np.any(gathers_per_pass | reduces_per_pass):  # sharded gradients, and perhaps weights, go with every micro-batch
        exposed_gather_s = compute_exposed_s(
            sent.gather, per.forward_s * present, w.overlap_parameters, k.fsdp_contention, w.overlap
        )
        gather_each = exposed_gather_s * gathers_per_pass
        reduce_each = compute_exposed_s(
            shard_comm_s, per.backward_s * present, w.overlap_gradients, k.fsdp_contention, w.overlap
        )
        gathers = (gather_each + reduce_each) * present
        forward, backward = forward + gather_each * present, backward + reduce_each * present
        gather = gather * ~gathers_per_pass
    return StageTimes(
        **{f.name: getattr(p, f.name) for f in fields(Passes)}
        | {
            "params_per_rank": params_per_rank,
            "group": group,
            "sent": sent,
            "forward": forward,
            "backward": backward,
            "gathers": named("gathers_s", gathers),
            "reduce": named("reduce_s", reduce * present),
            "gather": named("gather_s", gather * present),
            "update": named("update_s", optimizer_s(cost, params_per_rank, group)),
        }
    )


def _compute_send_shares(layers: StageLayers, chunks: Numbers) -> tuple[Numbers, Numbers]:
    """Share of the sends of a stage that there are: forward all but from the last, backward all but from the first.

    With several virtual stages the last stage goes on to the first for all but its last one.
    """
    folded = layers.first * layers.last  # a V-shaped pipeline turns round inside its last stage
    present = layers.present
    out, into = (present - (end - folded) / chunks for end in (layers.last, layers.first))
    return named("sends_out", out), named("sends_back", into)


def shift_to_next_stage(values: Numbers) -> Numbers:
    """Each stage's figure of the boundary before it, which for the first is the one after the last."""
    return np.roll(values, 1, axis=-1) if np.ndim(values) and np.shape(values)[-1] > 1 else values


Pair = tuple[Numbers, Numbers]  # Of a message to the next stage, and of one back


def _estimate_sends(batch: Batch, cost: LayerCost, k: Coefficients) -> tuple[Pair, Pair, Pair]:
    """Bytes and seconds of one micro-batch's activations over a boundary, all virtual stages together. [X8]

    Last, the seconds of the same messages inside a zone.
    """
    w, links = batch.work, batch.links
    cut = np.where(batch.stack.p2p_scatter > 0, 1.0 / w.tp, cost.unsplit_share)
    size = w.interleave * w.dtype_bytes * cost.tokens * batch.model.hidden * cut
    fast = as_array(links.boundary_fast)
    inside = np.where(fast > 0, cost.link_rate, cost.nic_rate)
    inside = np.where(fast > 1, np.maximum(inside, cost.nic_rate), inside)
    inside = np.where(np.isfinite(links.boundary_bytes_per_s), cost.nic_rate, inside)
    piped = (as_array(w.pp) > 1) & (as_array(links.boundary_perfect) == 0)

    latency_s, chunk_bytes = k.p2p_message_s, size / w.interleave
    if batch.measured is not None:
        near = Group(2.0, np.where(fast > 0, 1.0, batch.gpu.node_gpus), batch.gpu)
        _, (timed, timed_latency_s) = batch.measured.find_tier(
            ("send_recv",), near, chunk_bytes, Tier(inside, latency_s)
        )
        # fast 2: the boundary may lie in a node, a bound; and between zones nothing was timed
        is_timed = (fast < 2) & ~np.isfinite(links.boundary_bytes_per_s)
        inside, latency_s = np.where(is_timed, timed, inside), np.where(is_timed, timed_latency_s, latency_s)
    masked = size
    if np.any(as_array(batch.stack.p2p_mask) > 0):
        masked = size + w.interleave * batch.stack.p2p_mask * named("mask_bytes", w.dtype_bytes * w.seq * w.seq)

    def time(bytes_sent: Numbers, rate: Numbers) -> Numbers:
        link = Tier(np.minimum(inside, rate), latency_s)
        return np.where(piped, send_message(bytes_sent, link, calls=w.interleave).seconds, 0.0)

    there_s, back_s = time(masked, links.boundary_bytes_per_s), time(size, links.boundary_back_bytes_per_s)
    sent = named("send_bytes", np.where(piped, masked, 0.0)), named("send_back_bytes", np.where(piped, size, 0.0))
    return sent, (named("send_s", there_s), named("send_back_s", back_s)), (time(masked, np.inf), time(size, np.inf))


def _estimate_waits(
    batch: Batch, k: Coefficients, send: Numbers, send_back: Numbers, inside: Pair
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """What sends forward and back add to their sender's time, the share of them that does, and the latency left. [X8]

    Between zones a send goes out of the GPU and then on beside the compute, unless the stack waits for it there too:
    until it is out, or until it has arrived, as a blocking exchange between neighbours does.
    """
    links, wait = batch.links, as_array(batch.stack.p2p_wait)
    share = np.where(as_array(batch.work.pp) > 1, k.p2p_exposed, 0.0)
    far = np.isfinite(links.boundary_bytes_per_s)
    waited_latency_s = np.where(far & (wait > 1), links.boundary_latency_s, 0.0)
    forward, back = (
        share * np.where(far & (wait > 0), s + waited_latency_s, near)
        for s, near in zip((send, send_back), inside, strict=True)
    )
    piped = np.where(far & (wait == 0), 0.0, share)
    passed = named("send_adds_s", forward), named("send_back_adds_s", back)
    return *passed, piped, links.boundary_latency_s - share * waited_latency_s


def tail_s(t: StageTimes, ready: Numbers) -> tuple[Numbers, Numbers]:
    """End of all gradient reductions, and the update after it; `ready`: when each stage's gradients are whole. [V2]

    The update waits for the gradients' norm, so for every stage.
    """
    present = t.layers.present
    reduced = select_largest((ready + t.reduce) * present)
    updated = select_largest(t.update + t.gather)
    return reduced, updated


def step_s(batch: Batch, k: Coefficients, layer: LayerCost | None = None) -> Numbers:
    """Seconds of the step of each strategy, by the quick bound of its pipeline: never above the simulated one. [V3]"""
    t = build_stage_times(batch, k, layer)
    longest, ready_bound_s = pipeline_bounds_s(batch, t)
    return sum_bound_s(t, select_largest(longest), ready_bound_s)


def passes_s(batch: Batch, k: Coefficients, layer: LayerCost | None = None) -> Numbers:
    """The same without anything that replicas exchange or update: never above `step_s`, whatever they do. [V3]"""
    p = build_stage_passes(batch, k, layer)
    longest, _ = pipeline_bounds_s(batch, p)
    fixed, jitter = p.largest_fixed_and_jitter
    return (select_largest(longest) + fixed + jitter)[..., 0]


def pipeline_bounds_s(batch: Batch, t: Passes) -> tuple[Numbers, Numbers]:
    """Through each stage, the least time of the pipeline and the least time until its gradients are whole. [S12]"""
    w = batch.work
    goes_on = (t.forward > 0) & (as_array(t.layers.last) == 0)
    forward_hop_s, backward_hop_s = (
        np.where(goes_on, (1.0 - t.piped) * send + w.interleave * t.latency, 0.0) for send in (t.send, t.send_back)
    )
    busy, busy_back = ((1.0 - t.piped) * send for send in (t.send, t.send_back))
    slowest = as_array(batch.links.slowest_bytes_per_s)
    if np.isfinite(slowest).any():  # the boundaries of stages that others stand for
        busy = np.maximum(busy, np.minimum(t.send_bytes, t.send_back_bytes) / slowest)
    return bound_stages_s(
        t.forward,
        t.backward,
        forward_hop_s,
        w.micro_batches,
        w.interleave,
        w.pp,
        back_s=backward_hop_s,
        repeats=batch.repeats,
        extra_warmup=w.extra_warmup,
        late_s=np.where(as_array(w.splits_weight_grad) > 0, t.cost.weight_s, 0.0)
        if np.any(w.splits_weight_grad)
        else 0.0,
        fills=w.fills * _has_even_chunks(batch),
        busy_s=busy,
        busy_back_s=busy_back,
        far=t.latency,
    )


def _has_even_chunks(batch: Batch) -> Numbers:
    """1 where virtual stages are alike but for the model's ends: a pipeline then fills in one's share of a stage."""
    m, w = batch.model, batch.work
    unlike = (as_array(m.moe_layers) > 0) & ((as_array(m.first_dense) > 0) | (as_array(m.moe_every) > 1))
    unlike = unlike | (as_array(m.hybrid) > 0) | (as_array(m.mtp_layers) > 0)
    if np.any(as_array(w.interleave) > 1):  # one layer less where the embedding or the head stands for it
        unlike = unlike | (plain(batch.counts) % plain(w.interleave) != 0).any(axis=-1, keepdims=True)
    return np.where((as_array(w.v_shaped) > 0) | (unlike & (as_array(w.interleave) > 1)), 0.0, 1.0)


def sum_bound_s(t: StageTimes, span: Numbers, ready_s: Numbers) -> Numbers:
    """The step where its pipeline takes at least `span`, and each stage's gradients are whole at `ready_s` or later."""
    is_loose = (as_array(t.layer.work.splits_weight_grad) > 0) | (as_array(t.layer.work.fills) == 0)
    first = as_array(t.layers.first) > 0
    ready = np.where(first & ~is_loose, span, ready_s)  # the first stage ends last, unless weights' gradients come late
    reduced, updated = tail_s(t, ready)
    # a stage's own bound may lie below the span of the pipeline, which the update waits for as well
    reduced = np.maximum(reduced, span)
    fixed, jitter = t.largest_fixed_and_jitter
    return (reduced + updated + fixed + jitter)[..., 0]


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Pipelines:
    """What the schedule is simulated with, row by row, and when its stages are done."""

    schedule: str
    size: dict[str, Any]
    micro_batches: Ints
    """Of each row."""
    columns: dict[str, Any]
    """Times, as `simulate` takes them, one row a step."""
    span_s: Floats
    """From the first forward to the last backward pass, of each row."""
    ready_s: Floats
    """When each stage's gradients are whole: [rows, stages]."""

    def simulate_row(self, row: int) -> Simulation:
        """The whole simulation of one row."""
        times = {name: values[row] for name, values in self.columns.items()}
        return simulate(self.schedule, micro_batches=int(self.micro_batches[row]), **self.size, **times)


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """A batch of simulated steps of one strategy: arrays [n]."""

    times: StageTimes
    pipelines: Pipelines
    reduced_s: Floats
    """When every stage has reduced its gradients."""
    update_s: Floats
    fixed_s: Floats
    jitter_s: Floats

    @property
    def total_s(self) -> Floats:
        """The whole step."""
        return self.reduced_s + self.update_s + self.fixed_s + self.jitter_s


def simulate_step(
    batch: Batch, chunks: Numbers, strategy: Strategy, k: Coefficients, pipelines: Pipelines | None = None
) -> SimulatedStep:
    """Simulate a batch of strategies that have schedule and (virtual) stages in common with `strategy`.

    `chunks` are the layers of each virtual stage in pipeline order: of all rows, or of each. `pipelines`: those that
    were simulated before.
    """
    t = build_stage_times(batch, k)
    pipelines = pipelines or _simulate(batch, t, chunks, strategy, k)
    reduced, updated = tail_s(t, pipelines.ready_s)
    fixed, jitter = t.largest_fixed_and_jitter
    total_s = (reduced + updated)[..., 0]
    return SimulatedStep(
        times=t,
        pipelines=pipelines,
        reduced_s=reduced[..., 0],
        update_s=np.broadcast_to(updated[..., 0], total_s.shape),
        fixed_s=np.broadcast_to(fixed[..., 0], total_s.shape),
        jitter_s=np.broadcast_to(jitter[..., 0], total_s.shape),
    )


def _simulate(batch: Batch, t: StageTimes, chunks: Numbers, strategy: Strategy, k: Coefficients) -> Pipelines:
    size, columns = build_pipeline_columns(batch, t, chunks, strategy, k)
    counts = _count_micro_batches(batch, len(t.forward))
    span, ready = _simulate_rows(strategy.pipeline_schedule, size, columns, counts)
    return Pipelines(
        schedule=strategy.pipeline_schedule,
        size=size,
        micro_batches=counts,
        columns=columns,
        span_s=span,
        ready_s=ready,
    )


def _count_micro_batches(batch: Batch, rows: int) -> Ints:
    return np.broadcast_to(np.ravel(batch.work.micro_batches), (rows,)).astype(np.int64)


def bound_step_s(batch: Batch, chunks: Numbers, strategy: Strategy, k: Coefficients) -> Floats:
    """Least time of steps as in `simulate_step`, by the tight bound of their pipelines: close to it. [V3]"""
    t = build_stage_times(batch, k)
    longest, ready_bound_s = pipeline_bounds_s(batch, t)
    span = select_largest(longest)
    if strategy.pp > 1:
        size, columns = build_pipeline_columns(batch, t, chunks, strategy, k)
        counts = _count_micro_batches(batch, len(t.forward))
        tight = bound_makespan_s(strategy.pipeline_schedule, micro_batches=counts, **size, **columns)
        span = np.maximum(span, tight[:, None])
    bound_s: Floats = sum_bound_s(t, span, ready_bound_s)
    return bound_s


def build_pipeline_columns(
    batch: Batch, t: StageTimes, chunks: Numbers, strategy: Strategy, k: Coefficients
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Size of the pipeline, and its times as `simulate` takes them, one row a step."""
    schedule, stages, parts = strategy.pipeline_schedule, strategy.pp, strategy.interleave
    forward, backward, weight = _split_into_chunks(batch, t, chunks, strategy, k)
    order = list_stages_in_order(schedule, stages, parts)
    sender, taker = order[:-1], order[1:]
    aside = 1.0 - t.piped
    forward_hop_s, backward_hop_s = (np.broadcast_to(aside * s, t.forward.shape) / parts for s in (t.send, t.send_back))
    latency_s = np.broadcast_to(t.latency, t.forward.shape)
    lower = np.minimum(sender, taker)
    # from the last stage on to the first: the boundary after the last one, crossed in its forward direction
    wraps = np.abs(sender.astype(int) - taker.astype(int)) > 1
    edge = np.where(wraps, stages - 1, lower)
    downhill = (sender < taker) ^ wraps
    sends = [
        np.where(downhill, forward_hop_s[:, edge], backward_hop_s[:, edge]),
        np.where(downhill, backward_hop_s[:, edge], forward_hop_s[:, edge]),
    ]
    size: dict[str, Any] = {"stages": stages, "chunks": parts, "extra_warmup": strategy.extra_warmup}
    columns: dict[str, Floats] = {
        "forward_s": forward,
        "backward_s": backward,
        "weight_s": weight,
        "send_forward_s": sends[0],
        "send_backward_s": sends[1],
        "latency_forward_s": latency_s[:, edge],
        "latency_backward_s": latency_s[:, edge],
    }
    rows = len(t.forward)
    full: dict[str, Any] = {name: np.broadcast_to(v, (rows, *v.shape[1:])) for name, v in columns.items()}
    return size, full


# Operations up to which a step is simulated whole; longer ones repeat their rounds (`step_times`).
SHORT = 20_000
# Operations of a step (passes of a virtual stage over a micro-batch, both ways as one) that are simulated at most.
MAX_OPERATIONS = 1_000_000
# Schedules whose rounds repeat: a long step costs no more than a few rounds.
REPEATING = ("1f1b", "interleaved", "zero-bubble")
ROUNDS_AT_MOST = 10  # Of such a step: micro-batches simulated for each stage
MAX_REMEMBERED = 16_384  # Simulated steps that are remembered
# End of the pipeline, and when each stage's gradients are whole, by schedule, size and times.
_simulated: dict[tuple[Any, ...], tuple[float, Floats]] = {}


def check_step_length(strategy: Strategy, global_batch: int) -> Notice | None:
    """That a step is too long to simulate: it would take minutes and gigabytes."""
    chunks, micro_batches = strategy.pp * strategy.interleave, strategy.micro_batches(global_batch)
    simulated_at_most = ROUNDS_AT_MOST * strategy.pp if strategy.pipeline_schedule in REPEATING else micro_batches
    lengths = set(strategy.replica_micro_batches or (micro_batches,))
    operations = chunks * sum(min(length, simulated_at_most) for length in lengths)
    if strategy.pp == 1 or operations <= MAX_OPERATIONS:
        return None
    params = {"limit": MAX_OPERATIONS, "micro_batches": micro_batches}
    return Notice(code="step_too_long", value=operations, field="strategy", params=params)


def _simulate_rows(schedule: str, size: dict[str, Any], columns: dict[str, Any], counts: Ints) -> tuple[Floats, Floats]:
    """End of every row's pipeline, and when each stage's gradients are whole; rows of one length together."""
    if size["stages"] == 1 and size["chunks"] == 1:
        span_alone = counts * sum(columns[name][:, 0, 0] for name in ("forward_s", "backward_s", "weight_s"))
        return span_alone, span_alone[:, None]
    if (counts == counts[0]).all():
        return _simulate_equal_lengths(schedule, size | {"micro_batches": int(counts[0])}, columns, len(counts))
    span, ready = np.empty(len(counts)), np.empty((len(counts), size["stages"]))
    for count in np.unique(counts).tolist():
        at = np.flatnonzero(counts == count)
        selected = {name: values[at] for name, values in columns.items()}
        span[at], ready[at] = _simulate_equal_lengths(schedule, size | {"micro_batches": count}, selected, len(at))
    return span, ready


def _simulate_equal_lengths(
    schedule: str, size: dict[str, Any], columns: dict[str, Any], rows: int
) -> tuple[Floats, Floats]:
    """The same of rows that have their micro-batches in common; equal rows are simulated once.

    So are those that were asked for before: by options that pipelines do not feel, or by cells of a sweep.
    """
    size_key = (schedule, *size.values())
    fingerprints = [
        # a digest, not the times themselves: thousands of steps are remembered
        (*size_key, blake2b(b"".join(v[row].tobytes() for v in columns.values()), digest_size=16).digest())
        for row in range(rows)
    ]
    results = {
        fingerprint: remembered
        for fingerprint in fingerprints
        if (remembered := _simulated.get(fingerprint)) is not None
    }
    new = list(dict.fromkeys(fingerprint for fingerprint in fingerprints if fingerprint not in results))
    if new:
        first = [fingerprints.index(fingerprint) for fingerprint in new]
        new_columns = {n: v[first] for n, v in columns.items()}
        short = size["stages"] * size["chunks"] * size["micro_batches"] <= SHORT and schedule != "delay-aware"
        done = (
            simulate(schedule, **size, **new_columns) if short else simulate_step_times(schedule, **size, **new_columns)
        )
        ready = done.gradients_ready_s.max(axis=-1)
        results |= {fingerprint: (float(done.makespan_s[at]), ready[at].copy()) for at, fingerprint in enumerate(new)}
        # all at once: steps of an earlier search are hardly asked for again
        if len(_simulated) > MAX_REMEMBERED:
            _simulated.clear()
        _simulated.update((fingerprint, results[fingerprint]) for fingerprint in new)
    return np.array([results[fingerprint][0] for fingerprint in fingerprints]), np.stack(
        [results[fingerprint][1] for fingerprint in fingerprints]
    )


def _split_into_chunks(
    batch: Batch, t: StageTimes, chunks: Numbers, strategy: Strategy, k: Coefficients
) -> tuple[Floats, Floats, Floats]:
    """Forward, backward and weight-gradient times of each virtual stage, [n, stages, v]."""
    stages, parts = strategy.pp, strategy.interleave
    place = map_virtual_stages(strategy.pipeline_schedule, stages, parts)
    count = len(t.forward)
    splits = strategy.pipeline_schedule in SPLITS_WEIGHT_GRAD
    if parts == 1 and not splits:
        return t.forward[:, :, None], t.backward[:, :, None], np.zeros((1, 1, 1))
    in_order = list_stages_in_order(strategy.pipeline_schedule, stages, parts)
    gpu, own_k = _reorder_columns(batch.gpu, in_order), _reorder_columns(k, in_order)
    layers = batch.build_chunk_layers(chunks)
    per = StageCost(LayerCost(batch.model, batch.work, gpu, batch.stack, own_k, batch.measured), layers)
    shape = (count, stages * parts)
    forward, backward = (np.broadcast_to(x, shape)[:, place] for x in (per.forward_s, per.backward_s))
    weight = np.broadcast_to(per.weight_s, shape)[:, place] if splits else np.zeros((count, stages, parts))
    # sends and gathers are known for a whole stage: each of its virtual stages takes an equal part
    more_forward = (t.forward - t.cost.forward_s)[:, :, None] / parts
    more_backward = (t.backward - t.cost.backward_s)[:, :, None] / parts
    return forward + more_forward, backward - weight + more_backward, weight


def _reorder_columns(columns: Column, at: npt.NDArray[np.int32]) -> Column:
    """The columns of stages as those of the model's parts in order."""

    def pick(values: Numbers) -> Numbers:
        return values[..., at] if np.ndim(values) and np.shape(values)[-1] > 1 else values

    return type(columns)(**{f.name: pick(getattr(columns, f.name)) for f in fields(columns)})  # type: ignore[arg-type]
