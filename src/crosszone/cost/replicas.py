"""What data parallelism costs: gradients and sharded weights exchanged among replicas of a stage, and the optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crosszone.cost.collectives import (
    CollectiveCost,
    GlooBuckets,
    Layout,
    Ring,
    ZoneRing,
    all_reduce,
    choose_faster_s,
    ring_pass,
    ring_rate,
    tree_all_reduce,
    zone_ring_pass,
)
from crosszone.cost.columns import LinkColumns, ModelColumns, Numbers, WorkColumns, is_used
from crosszone.cost.layer import LayerCost, traffic_s
from crosszone.cost.record import as_array, named
from crosszone.cost.stages import StageLayers, add_mtp_layers
from crosszone.cost.tiers import Tier

# Arrays are [strategies, stages]; an axis of length 1 holds for all of them.

# Bytes the optimizer's step moves for each parameter a GPU holds: gradient read, weight written, norm.
WEIGHT_TRAFFIC = 6.0


# Figures of an exchange between zones.
BETWEEN = (
    "wan_reduce",
    "wan_gather",
    "zone_reduce_bytes",
    "zone_gather_bytes",
    "wan_reduce_messages",
    "wan_gather_messages",
)


@dataclass(frozen=True, kw_only=True)
class StageParameters:
    """Parameters one GPU of each stage holds before sharding; experts apart, for they have fewer copies."""

    shared: Numbers
    experts: Numbers
    embedding: Numbers
    """Of the shared ones: embedding and head."""

    @property
    def total(self) -> Numbers:
        """All of them."""
        return self.shared + self.experts


def count_stage_parameters(m: ModelColumns, w: WorkColumns, stages: StageLayers) -> StageParameters:
    """Parameters of each stage on one GPU. [M1]"""
    if is_used(m.mtp_layers):
        # layers that are passed through several times have their weights once
        stages = add_mtp_layers(stages, replace(m, mtp_layers=m.mtp_distinct))
    outer = stages.first * m.embedding_params + stages.last * m.head_params
    if np.any(m.tied):  # the last stage holds a copy of a tied head
        outer = outer + stages.last * (1.0 - stages.first) * (m.tied * m.embedding_params)
    layers = stages.dense * (m.attention_params + m.mlp_params)
    if np.ndim(stages.moe):
        layers = layers + stages.moe * (m.attention_params + m.shared_params)
    if stages.blocks:
        layers = layers + stages.attention * m.attention_block_params + stages.mamba * m.mamba_params
    experts = stages.moe * (m.experts * m.expert_params / (w.ep * w.expert_tp)) if np.ndim(stages.moe) else 0.0
    if is_used(m.mtp_layers):
        layers = layers + stages.last * m.mtp_distinct * m.mtp_params
    return StageParameters(
        shared=named("parameters.shared", (layers + outer) / w.tp),
        experts=named("parameters.experts", experts),
        embedding=named("parameters.embedding", outer / w.tp),
    )


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Groups that hold the same part of the model."""

    shared: Numbers
    """Replicas of the shared weights in all zones."""
    zone: Numbers
    """Of them, those of one zone."""
    inner: Numbers
    """Of those, the ones that share one set of states."""
    experts: Numbers
    """Replicas of the experts in one zone."""
    zone_bus: Numbers
    """Bytes/s of a ring through the replicas of a zone."""
    inner_bus: Numbers
    expert_bus: Numbers


def group_replicas(cost: LayerCost, links: LinkColumns) -> Replicas:
    """The groups and their bus rates: the fast link inside a domain, else the network of all local members. [X5]"""
    w, g = cost.work, cost.gpu
    # context-parallel ranks hold the same weights: gradients are summed over them, and states may be shared with them
    shared = named("replicas.all", w.dp * w.cp)
    zone = named("replicas.zone", np.maximum(1.0, shared / links.dp_zones))
    inner = named("replicas.set", np.minimum(zone, w.shard_ranks * w.cp))
    experts = named("replicas.experts", np.maximum(1.0, zone * w.tp / (w.ep * w.expert_tp)))

    def bus(count: Numbers, stride: Numbers) -> Numbers:
        return ring_rate(count, stride, g.domain, cost.link_rate, cost.nic_rate)

    return Replicas(
        shared=shared,
        zone=zone,
        inner=inner,
        experts=experts,
        zone_bus=named("rate.zone_bus", bus(zone, w.dp_stride)),
        inner_bus=named("rate.set_bus", bus(inner, w.dp_stride)),
        expert_bus=named("rate.expert_bus", bus(experts, w.ep * w.expert_tp)),
    )


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One gather of the weights and one reduction of the gradients of each stage: seconds, unhidden, and bytes.

    `wan_*`: the share of it between zones.
    """

    params_per_rank: StageParameters
    gather: Numbers
    reduce: Numbers
    """Among the replicas that share one set of states (all of them, unless states are shared by fewer)."""
    outer: Numbers
    """Of the shards among the sets, where there are several: once a step, however often gradients are scattered."""
    wan_gather: Numbers
    wan_reduce: Numbers
    zone_gather_bytes: Numbers
    """Bytes a zone sends to the next."""
    zone_reduce_bytes: Numbers
    wan_reduce_messages: Numbers
    """Messages that go one after the other between two zones for it: those of all buckets."""
    wan_gather_messages: Numbers
    last_bucket: Numbers
    """Share of the reduction that is its last bucket, which nothing can hide."""
    several: Numbers
    """There are several sets of states: zones, or nodes, hold copies of each other's."""
    reduced: tuple[CollectiveCost, ...]
    """What one GPU of each stage exchanges inside its zone to reduce gradients: shared ones, and those of experts."""
    gathered: tuple[CollectiveCost, ...]
    outer_reduced: tuple[CollectiveCost, ...]


def estimate_exchange(
    cost: LayerCost, params_per_rank: StageParameters, group: Replicas, links: LinkColumns, repeats: Numbers = 1.0
) -> Exchange:
    """Times over the replicas: an all-reduce (ring or tree) where nothing is sharded, else a scatter and a gather. [X7]

    Each bucket of gradients pays the latency of its hops: n - 1 a pass round a ring, log2 n up and down a tree.

    Where states are shared by fewer ranks than there are replicas, gradients are scattered among these and the shards
    reduced over the others; weights are gathered inside only. Replicas in several zones reduce inside each zone first
    and exchange shards between zones (`_exchange_between_zones`), all groups of a zone over the same links; a flat ring
    crosses zones with everything.
    """
    w, k, g = cost.work, cost.k, cost.gpu
    sharded = (as_array(w.zero) > 0) & (w.shard_ranks > 1)
    one_ring = (group.inner >= group.zone) | ~sharded
    members: Numbers = np.where(one_ring, group.zone, group.inner)
    reduces_across_zones = (as_array(links.dp_zones) > 1) & (as_array(links.synchronous) > 0)
    several = sharded & (w.shard_ranks * w.cp < group.shared)
    is_flat = (as_array(links.flat) > 0) & reduces_across_zones & ~several & ~(~sharded & (as_array(w.tree) > 0))
    inside = np.where(is_flat, 0.0, 1.0)  # a flat ring goes through all zones at once
    # only some of a ring's edges leave a node: each bucket pays the latency of the edges it really passes
    hop = named("hop", Layout(members, w.dp_stride, g.fast_gpus, g.domain, "hops").hop_s)
    buckets = named(
        "buckets", np.maximum(params_per_rank.shared * (w.gradient_bytes / w.bucket_bytes), params_per_rank.shared > 0)
    )
    bus = np.where(one_ring, group.zone_bus, group.inner_bus)
    bucket = params_per_rank.shared * w.grad_comm_bytes / np.maximum(buckets, 1.0)
    # asked for the size of one bucket: that is the message the library sees
    timed, ring = _select_ring(cost, "shared", members, w.dp_stride, bucket, Tier(bus, inside * hop), inside)
    all_reduced = (as_array(cost.stack.zero1_all_reduce) > 0) & (as_array(w.zero) == 1)
    passes = np.where(sharded & ~all_reduced, 1.0, 2.0)  # scattered where sharded, and the weights gathered later
    buckets_sent: dict[str, Numbers] = {"items": params_per_rank.shared, "calls": buckets * w.rounds}
    reduced = [ring_pass(w.grad_comm_bytes, ring, passes=passes, **buckets_sent)]
    reduce = reduced[0].seconds
    # a timed all-reduce is what the library chose, trees included
    trees = ~sharded & (group.zone > 1) & (as_array(w.tree) >= 0) & ~as_array(timed)
    if np.any(trees):
        tree = tree_all_reduce(w.grad_comm_bytes, ring, **buckets_sent)
        reduce = choose_faster_s(reduced[0], tree, allowed=trees, forced=as_array(w.tree) > 0)
    gathered_bytes, usual = sharded * w.param_comm_bytes, Tier(bus, sharded * k.shard_message_s)
    size = params_per_rank.shared * gathered_bytes
    _, gather_ring = _select_ring(cost, "shared", members, w.dp_stride, size, usual, inside, "all_gather")
    gathered = [ring_pass(gathered_bytes, gather_ring, items=params_per_rank.shared, calls=params_per_rank.shared > 0)]
    gather = gathered[0].seconds
    if np.ndim(params_per_rank.experts):
        usual, size = Tier(group.expert_bus, 0.0), params_per_rank.experts * w.grad_comm_bytes
        _, experts = _select_ring(cost, "experts", group.experts, w.ep * w.expert_tp, size, usual, inside)
        reduced.append(ring_pass(w.grad_comm_bytes, experts, passes=passes, items=params_per_rank.experts))
        gathered.append(ring_pass(gathered_bytes, experts, items=params_per_rank.experts))
        reduce, gather = reduce + reduced[1].seconds, gather + gathered[1].seconds
    sets = np.where(one_ring, 1.0, named("replicas.sets", group.zone / group.inner))
    shard_bytes, usual = w.grad_comm_bytes / group.inner, Tier(cost.nic_rate, 0.0)
    _, sets_ring = _select_ring(
        cost, "outer", sets, group.inner * w.dp_stride, params_per_rank.shared * shard_bytes, usual
    )
    outer = all_reduce(shard_bytes, sets_ring, items=params_per_rank.shared)
    if np.any(as_array(w.offload) > 1):  # sharded weights come from host memory first
        gather = (
            gather
            + np.where(as_array(w.offload) > 1, w.dtype_bytes / group.inner / cost.pcie_rate, 0.0)
            * params_per_rank.shared
        )
    between = _exchange_between_zones(cost, params_per_rank, group, links, sharded, all_reduced, repeats)
    wan_reduce, wan_gather = between["wan_reduce"], between["wan_gather"]
    return Exchange(
        params_per_rank=params_per_rank,
        gather=named("exchange.gather", gather + wan_gather),
        reduce=named("exchange.reduce", reduce + np.where(several, 0.0, wan_reduce)),
        outer=named("exchange.outer", outer.seconds + np.where(several, wan_reduce, 0.0)),
        **between,
        last_bucket=named("last_bucket", 1.0 / np.maximum(buckets, 1.0)),
        several=several,
        reduced=tuple(reduced),
        gathered=tuple(gathered),
        outer_reduced=(outer,) if np.any(sets > 1) else (),
    )


def _select_ring(
    cost: LayerCost,
    name: str,
    ranks: Numbers,
    stride: Numbers,
    size_bytes: Numbers,
    usual: Tier,
    inside: Numbers = 1.0,
    op: str = "all_reduce",
) -> tuple[Any, Ring]:
    """Whether such a ring was timed, and the ring: at its timed link, else at `usual` and the stack's slowdown. [C15]

    `inside`: 0 where it goes through all zones at once, and takes its time there.
    """
    g, slowdown = cost.gpu, cost.k.dp_traffic
    timed, link = cost.find_ring_link(op, ranks, stride, size_bytes, usual)
    if np.any(timed):  # what was timed is no ideal ring any more
        slowdown = np.where(timed, 1.0, slowdown)
        link = Tier(link.bytes_per_s, np.where(timed, inside * link.latency_s, link.latency_s))
    layout = Layout(ranks, stride, g.fast_gpus, g.domain, name)
    return timed, Ring(ranks=ranks, link=link, layout=layout, slowdown=inside * slowdown)


def _exchange_between_zones(
    cost: LayerCost,
    params_per_rank: StageParameters,
    group: Replicas,
    links: LinkColumns,
    sharded: Numbers,
    all_reduced: Numbers,
    repeats: Numbers,
) -> dict[str, Numbers]:
    """Reduction and gather between zones: seconds, bytes a zone sends (all stages together), and messages. [X7]

    Shards of all groups go round the ring of zones: 2 (Z - 1) / Z of a zone's gradients, half of it where every replica
    owns a shard of its own, which then costs a gather too. Stages have groups of their own, and the one with most
    buckets counts. The forms (ring of zones, flat ring, tree, Gloo) are those of `zone_ring_pass`.
    """
    zones = as_array(links.dp_zones)
    crosses = (zones > 1) & (as_array(links.synchronous) > 0)
    if not np.any(crosses):
        return dict.fromkeys(BETWEEN, 0.0)
    w = cost.work
    total, experts = (
        np.where(crosses, part * repeats, 0.0).sum(axis=-1, keepdims=True)
        for part in (params_per_rank.shared * w.tp, params_per_rank.experts * w.ep * w.expert_tp)
    )
    per_bucket = w.gradient_bytes / w.bucket_bytes
    buckets = sum(
        np.maximum(np.ceil(part * per_bucket), as_array(part) > 0)
        for part in (params_per_rank.shared, params_per_rank.experts)
    )
    most_buckets = np.where(crosses, buckets, 0.0).max(axis=-1, keepdims=True)
    members = count_ring_members(w, group, links, sharded)
    copies = np.where(members > zones, np.maximum(group.experts * zones, zones), zones)
    is_sharded_by_zone = sharded & (w.shard_ranks * w.cp >= group.shared)
    reduce_passes, gather_passes = (
        np.where(is_sharded_by_zone & ~all_reduced, 1.0, 2.0) * crosses,
        1.0 * (crosses & is_sharded_by_zone),
    )
    rate, latency_s = links.wan_bytes_per_s, links.wan_latency_s
    tree = ~sharded & (as_array(w.tree) > 0)
    ring = ZoneRing(zones=zones, members=members, link=Tier(rate, latency_s), tree=tree)
    trips = None
    if np.any(links.gloo):
        largest = np.where(crosses, params_per_rank.shared, 0.0).max(axis=-1, keepdims=True)
        shards = np.where(as_array(links.flat) > 0, 1.0, group.zone)
        size = largest * w.grad_comm_bytes / np.maximum(most_buckets, 1.0) / shards
        # stages and shards use the link at the same time: each gets its part of the bytes
        share = rate * np.maximum(largest, 1.0) / np.maximum(total, 1.0) / shards
        trips = GlooBuckets(size_bytes=size, bytes_per_s=share, used=as_array(links.gloo) > 0)
    parts = (total, members), (experts, copies)
    calls: dict[str, Any] = {"buckets": most_buckets, "gloo": trips}
    reduced = zone_ring_pass(
        parts, w.grad_comm_bytes, ring, passes=reduce_passes, rounds=w.rounds, name="reduce", **calls
    )
    gathered = zone_ring_pass(parts, w.param_comm_bytes, ring, passes=gather_passes, name="gather", **calls)
    return {
        "wan_reduce": reduced.seconds,
        "wan_gather": gathered.seconds,
        "zone_reduce_bytes": reduced.bytes.zones,
        "zone_gather_bytes": gathered.bytes.zones,
        "wan_reduce_messages": reduced.messages,
        "wan_gather_messages": gathered.messages,
    }


def count_ring_members(w: WorkColumns, group: Replicas, links: LinkColumns, sharded: Numbers) -> Numbers:
    """Members of the ring that exchanges gradients between zones: the zones, or in a flat ring all who hold the same.

    Where there are several sets of states these are one of each set. [X7]
    """
    zones = as_array(links.dp_zones)
    tree = ~sharded & (as_array(w.tree) > 0)
    several = sharded & (w.shard_ranks * w.cp < group.shared)
    sets = np.maximum(group.shared / (w.shard_ranks * w.cp), zones)
    return np.where((as_array(links.flat) > 0) & ~tree, np.where(several, sets, group.shared), zones)


def optimizer_s(cost: LayerCost, params_per_rank: StageParameters, group: Replicas) -> Numbers:
    """The optimizer's step: states of the local shard read and written, weights written. [O10]

    Offloaded states are updated by the node's CPUs, which its GPUs share; gradients go there and weights come back.
    """
    w, k = cost.work, cost.k
    sharded = as_array(w.zero) > 0
    shards = named("state_shards.shared", np.where(sharded, np.minimum(w.shard_ranks * w.cp, group.shared), 1.0))
    expert_shards = named("state_shards.experts", np.where(sharded, np.minimum(group.experts, shards), 1.0))
    # the coefficient is for Adam with fp32 gradients: 12 + 4 bytes a parameter
    states = k.optimizer_traffic * (w.optimizer_bytes + w.gradient_bytes) / 16.0
    shards_weights = as_array(w.zero) >= 3

    moved = named("weight_traffic", WEIGHT_TRAFFIC)

    def per_parameter(count: Numbers) -> Numbers:
        return (states + np.where(shards_weights, moved, 0.0)) / count + np.where(shards_weights, 0.0, moved)

    size = params_per_rank.shared * per_parameter(shards)
    if np.ndim(params_per_rank.experts):
        size = size + params_per_rank.experts * per_parameter(expert_shards)
    on_gpu = traffic_s(size, cost.memory_rate)
    away = as_array(w.offload) > 0
    if not np.any(away):
        return on_gpu
    local = params_per_rank.shared / shards + params_per_rank.experts / expert_shards
    copies = local * (w.gradient_bytes + w.dtype_bytes) / cost.pcie_rate
    return np.where(away, local * cost.gpu.node_gpus / k.host_update_per_s + copies, on_gpu)
