"""What data parallelism costs: gradients and sharded weights exchanged among replicas of a stage, and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crosszone.cost.collectives import TierShares, ring_tier_shares, tree_egress_bytes
from crosszone.cost.columns import LinkColumns, ModelColumns, Numbers, WorkColumns
from crosszone.cost.gloo import gloo_round_trips
from crosszone.cost.layer import LayerCost
from crosszone.cost.operators import traffic_s
from crosszone.cost.record import as_array, named
from crosszone.cost.stages import StageLayers
from crosszone.cost.tiers import figure

FAST_HOP_S, NETWORK_HOP_S = (figure(tier, "latency_us") * 1e-6 for tier in ("fast_link", "rdma"))
"""Latency of one step of a ring or tree inside a zone."""
WEIGHT_TRAFFIC = 6.0
"""Bytes the optimizer's step moves for each parameter a GPU holds: gradient read, weight written, norm."""


BETWEEN = (
    "wan_reduce",
    "wan_gather",
    "zone_reduce_bytes",
    "zone_gather_bytes",
    "wan_reduce_messages",
    "wan_gather_messages",
)
"""Figures of an exchange between zones."""


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


def stage_parameters(m: ModelColumns, w: WorkColumns, stages: StageLayers) -> StageParameters:
    """Parameters of each stage on one GPU. [M1]"""
    outer = stages.first * m.embedding_params + stages.last * m.head_params
    if np.any(m.tied):  # the last stage holds a copy of a tied head
        outer = outer + stages.last * (1.0 - stages.first) * (m.tied * m.embedding_params)
    layers = stages.dense * (m.attention_params + m.mlp_params)
    if np.ndim(stages.moe):
        layers = layers + stages.moe * (m.attention_params + m.shared_params)
    experts = stages.moe * (m.experts * m.expert_params / (w.ep * w.expert_tp)) if np.ndim(stages.moe) else 0.0
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


def replicas(cost: LayerCost, links: LinkColumns) -> Replicas:
    """The groups and their bus rates: the fast link inside a domain, else the network of all local members. [X5]"""
    w, g = cost.work, cost.gpu
    shared = named("replicas.all", w.dp * w.cp)
    zone = named("replicas.zone", np.maximum(1.0, shared / links.dp_zones))
    inner = named("replicas.set", np.minimum(zone, w.shard_ranks * w.cp))
    experts = named("replicas.experts", np.maximum(1.0, zone * w.tp / (w.ep * w.expert_tp)))

    def bus(count: Numbers, stride: Numbers) -> Numbers:
        local = np.minimum(np.maximum(np.floor(g.domain / stride), 1.0), count)
        across = np.minimum(cost.link_rate, local * cost.nic_rate)
        return np.where(count * stride <= g.domain, cost.link_rate, across)

    return Replicas(
        shared=shared,
        zone=zone,
        inner=inner,
        experts=experts,
        zone_bus=named("rate.zone_bus", bus(zone, w.dp_stride)),
        inner_bus=named("rate.set_bus", bus(inner, w.dp_stride)),
        expert_bus=named("rate.expert_bus", bus(experts, w.ep * w.expert_tp)),
    )


def ring_share(count: Numbers) -> Numbers:
    """(n - 1) / n: share of a tensor that crosses a link of the ring in a gather or a scatter. [X6]"""
    return (count - 1.0) / count


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One gather of the weights and one reduction of the gradients of each stage: seconds, unhidden, and bytes.

    `wan_*`: the share of it between zones.
    """

    held: StageParameters
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
    reduce_per_parameter: tuple[Numbers, Numbers]
    """Bytes one GPU sends inside its zone for a shared parameter and for one of an expert."""
    gather_per_parameter: tuple[Numbers, Numbers]
    outer_per_parameter: Numbers

    @property
    def reduce_bytes(self) -> Numbers:
        """Bytes one GPU of each stage sends inside its zone to reduce gradients."""
        return self.held.shared * self.reduce_per_parameter[0] + self.held.experts * self.reduce_per_parameter[1]

    @property
    def outer_bytes(self) -> Numbers:
        """Bytes one GPU of each stage sends inside its zone to reduce shards among the sets."""
        return self.held.shared * self.outer_per_parameter

    @property
    def gather_bytes(self) -> Numbers:
        """Bytes one GPU of each stage sends inside its zone to gather weights."""
        return self.held.shared * self.gather_per_parameter[0] + self.held.experts * self.gather_per_parameter[1]


def replica_rings(cost: LayerCost, group: Replicas, held: StageParameters) -> dict[str, TierShares]:
    """Rings among the replicas of a zone, and the share of each one's traffic on each kind of link. [C14] [X7]

    Of the shared weights, of the experts, and of the shards among the sets of states, where there are any.
    """
    w, g = cost.work, cost.gpu
    sharded = (as_array(w.zero) > 0) & (w.shard_ranks > 1)
    members = np.where((group.inner >= group.zone) | ~sharded, group.zone, group.inner)
    rings = {"shared": (members, w.dp_stride)}
    if np.ndim(held.experts):
        rings["experts"] = (group.experts, w.ep * w.expert_tp)
    if np.any(group.inner < group.zone):
        rings["outer"] = (group.zone / group.inner, group.inner * w.dp_stride)
    return {name: ring_tier_shares(*ring, g.fast_gpus, g.domain, ring=name) for name, ring in rings.items()}


def tier_bytes(
    rings: Mapping[str, TierShares], held: StageParameters, shared: Numbers, experts: Numbers, outer: Numbers = 0.0
) -> TierShares:
    """Bytes one GPU of each stage sends inside its zone over each kind of link, given those of a parameter. [X7]"""
    sizes = {"shared": held.shared * shared, "experts": held.experts * experts, "outer": held.shared * outer}
    return TierShares(*(sum(sizes[name] * shares[at] for name, shares in rings.items()) for at in range(3)))


def exchange(
    cost: LayerCost, held: StageParameters, group: Replicas, links: LinkColumns, repeats: Numbers = 1.0
) -> Exchange:
    """Times over the replicas: an all-reduce (ring or tree) where nothing is sharded, else a scatter and a gather. [X7]

    Each bucket of gradients pays the latency of its hops: n - 1 a pass round a ring, log2 n up and down a tree.

    Where states are shared by fewer ranks than there are replicas, gradients are scattered among these and the shards
    reduced over the others; weights are gathered inside only. Replicas in several zones reduce inside each zone first
    and exchange shards between zones (`_between_zones`), all groups of a zone over the same links; a flat ring crosses
    zones with everything. The forms are those of `collectives`, as factors of one parameter: a stage costs a product.
    """
    w, k = cost.work, cost.k
    sharded = (as_array(w.zero) > 0) & (w.shard_ranks > 1)
    one_ring = (group.inner >= group.zone) | ~sharded
    whole, scattered, apart = ring_share(group.zone), ring_share(group.inner), ring_share(group.experts)
    sets = named("replicas.sets", group.zone / group.inner)
    across = 2.0 * ring_share(sets) / group.inner
    passes = np.where(sharded, 1.0, 2.0) * w.wire_bytes
    once_bytes = np.where(one_ring, whole, scattered)
    outer = held.shared * (k.dp_traffic * w.wire_bytes * np.where(one_ring, 0.0, across / cost.nic_rate))
    once = np.where(one_ring, whole / group.zone_bus, scattered / group.inner_bus)
    back_bytes = np.where(one_ring, whole, scattered)
    back = np.where(one_ring, whole / group.zone_bus, scattered / group.inner_bus)
    together = (as_array(links.dp_zones) > 1) & (as_array(links.synchronous) > 0)
    several = sharded & (w.shard_ranks * w.cp < group.shared)
    one_after_another = (as_array(links.flat) > 0) & together & ~several & ~(~sharded & (as_array(w.tree) > 0))
    inside = np.where(one_after_another, 0.0, 1.0)  # a flat ring goes through all zones at once
    members: Numbers = np.where(one_ring, group.zone, group.inner)
    near = group.zone * w.dp_stride <= cost.gpu.domain
    hop = np.where(near, named("hop.fast_link", FAST_HOP_S), named("hop.network", NETWORK_HOP_S))
    buckets = named("buckets", np.maximum(held.shared * (w.gradient_bytes / w.bucket_bytes), held.shared > 0))
    calls = buckets * w.rounds
    reduce = held.shared * (inside * k.dp_traffic * passes * once)
    reduce = reduce + calls * (inside * np.where(sharded, 1.0, 2.0) * (members - 1.0) * hop)
    trees = ~sharded & (group.zone > 1) & (as_array(w.tree) >= 0)
    if np.any(trees):
        tree = held.shared * (inside * k.dp_traffic * 2.0 * w.wire_bytes / group.zone_bus)
        tree = tree + calls * (inside * 2.0 * np.ceil(np.log2(group.zone)) * hop)
        reduce = np.where(trees & ((as_array(w.tree) > 0) | (tree < reduce)), tree, reduce)
    gather = held.shared * (inside * sharded * k.dp_traffic * w.gathered * back)
    if np.ndim(held.experts):
        each = inside * k.dp_traffic * apart / group.expert_bus
        reduce = reduce + held.experts * (each * passes)
        gather = gather + held.experts * (each * sharded * w.gathered)
    gather = gather + (held.shared > 0) * (sharded * k.shard_message_s * (group.inner - 1.0))
    if np.any(as_array(w.offload) > 1):  # sharded weights come from host memory first
        gather = gather + np.where(as_array(w.offload) > 1, w.word / group.inner / cost.pcie_rate, 0.0) * held.shared
    between = _between_zones(cost, held, group, links, sharded, repeats)
    wan_reduce, wan_gather = between["wan_reduce"], between["wan_gather"]
    return Exchange(
        held=held,
        gather=named("exchange.gather", gather + wan_gather),
        reduce=named("exchange.reduce", reduce + np.where(several, 0.0, wan_reduce)),
        outer=named("exchange.outer", outer + np.where(several, wan_reduce, 0.0)),
        **between,
        last_bucket=named("last_bucket", 1.0 / np.maximum(buckets, 1.0)),
        several=several,
        reduce_per_parameter=(passes * once_bytes, passes * apart),
        outer_per_parameter=np.where(one_ring, 0.0, w.wire_bytes * across),
        gather_per_parameter=(sharded * w.gathered * back_bytes, sharded * w.gathered * apart),
    )


def _between_zones(
    cost: LayerCost,
    held: StageParameters,
    group: Replicas,
    links: LinkColumns,
    sharded: Numbers,
    repeats: Numbers,
) -> dict[str, Numbers]:
    """Reduction and gather between zones: seconds, bytes a zone sends (all stages together), and messages. [X7]

    Shards of all groups go round the ring of zones: 2 (Z - 1) / Z of a zone's gradients, half of it where every replica
    owns a shard of its own, which then costs a gather too. Buckets follow one another, so each pays the latency of its
    steps; stages have groups of their own, and the one with most buckets counts. In a flat ring what a rank sends goes
    round all others that hold the same, and meets the edges between zones among theirs. A tree chains the zones: as
    many steps as round their ring, the whole sum over every edge, both ways. Gloo cuts each bucket into segments and
    pays round trips for these.
    """
    zones = as_array(links.dp_zones)
    crosses = (zones > 1) & (as_array(links.synchronous) > 0)
    if not np.any(crosses):
        return dict.fromkeys(BETWEEN, 0.0)
    w = cost.work
    total, experts = (
        np.where(crosses, part * repeats, 0.0).sum(axis=-1, keepdims=True)
        for part in (held.shared * w.tp, held.experts * w.ep * w.expert_tp)
    )
    per_bucket = w.gradient_bytes / w.bucket_bytes
    buckets = sum(np.maximum(np.ceil(part * per_bucket), as_array(part) > 0) for part in (held.shared, held.experts))
    most = np.where(crosses, buckets, 0.0).max(axis=-1, keepdims=True)
    tree = ~sharded & (as_array(w.tree) > 0)
    members = ring_members(w, group, links, sharded)
    copies = np.where(members > zones, np.maximum(group.experts * zones, zones), zones)
    own = sharded & (w.shard_ranks * w.cp >= group.shared)
    passes, again = np.where(own, 1.0, 2.0) * crosses, 1.0 * (crosses & own)
    once = total * ring_share(members) + experts * ring_share(copies)
    steps = (members - 1.0) * zones / members * most  # of the edges of a flat ring, those between zones
    rate, late = links.wan_bytes_per_s, links.wan_latency_s
    if np.any(links.gloo):
        largest = np.where(crosses, held.shared, 0.0).max(axis=-1, keepdims=True)
        shards = np.where(as_array(links.flat) > 0, 1.0, group.zone)
        size = largest * w.wire_bytes / np.maximum(most, 1.0) / shards
        share = rate * np.maximum(largest, 1.0) / np.maximum(total, 1.0) / shards
        trips = most * gloo_round_trips(size, members, late, share) / 2.0  # of one of the two passes
        steps = np.where(as_array(links.gloo) > 0, trips, steps)
    sent = reduce_bytes = passes * once * w.wire_bytes
    if np.any(tree):
        whole = (total + experts) * w.wire_bytes * crosses
        reduce_bytes = np.where(tree, whole, reduce_bytes)
        sent = np.where(tree, tree_egress_bytes(whole, zones), sent)
        steps = np.where(tree, (zones - 1.0) * most, steps)
    gather_bytes = again * once * w.gathered
    reduce_messages = named("zones.reduce_messages", passes * steps * w.rounds)
    gather_messages = named("zones.gather_messages", again * steps)
    return {
        "wan_reduce": named("zones.reduce", reduce_messages * late + sent / rate),
        "wan_gather": named("zones.gather", gather_messages * late + gather_bytes / rate),
        "zone_reduce_bytes": named("zones.reduce_bytes", reduce_bytes),
        "zone_gather_bytes": named("zones.gather_bytes", gather_bytes),
        "wan_reduce_messages": reduce_messages,
        "wan_gather_messages": gather_messages,
    }


def ring_members(w: WorkColumns, group: Replicas, links: LinkColumns, sharded: Numbers) -> Numbers:
    """Members of the ring that exchanges gradients between zones: the zones, or in a flat ring all who hold the same.

    Where there are several sets of states these are one of each set. [X7]
    """
    zones = as_array(links.dp_zones)
    tree = ~sharded & (as_array(w.tree) > 0)
    several = sharded & (w.shard_ranks * w.cp < group.shared)
    sets = np.maximum(group.shared / (w.shard_ranks * w.cp), zones)
    return np.where((as_array(links.flat) > 0) & ~tree, np.where(several, sets, group.shared), zones)


def optimizer_s(cost: LayerCost, held: StageParameters, group: Replicas) -> Numbers:
    """The optimizer's step: states of the local shard read and written, weights written. [O10]

    Offloaded states are updated by the node's CPUs, which its GPUs share; gradients go there and weights come back.
    """
    w, k = cost.work, cost.k
    sharded = as_array(w.zero) > 0
    shards = named("state_shards.shared", np.where(sharded, np.minimum(w.shard_ranks * w.cp, group.shared), 1.0))
    expert_shards = named("state_shards.experts", np.where(sharded, np.minimum(group.experts, shards), 1.0))
    states = k.optimizer_traffic * (w.optimizer_bytes + w.gradient_bytes) / 16.0
    whole = as_array(w.zero) >= 3

    moved = named("weight_traffic", WEIGHT_TRAFFIC)

    def per_parameter(count: Numbers) -> Numbers:
        return (states + np.where(whole, moved, 0.0)) / count + np.where(whole, 0.0, moved)

    size = held.shared * per_parameter(shards)
    if np.ndim(held.experts):
        size = size + held.experts * per_parameter(expert_shards)
    on_gpu = traffic_s(size, cost.memory_rate)
    away = as_array(w.offload) > 0
    if not np.any(away):
        return on_gpu
    local = held.shared / shards + held.experts / expert_shards
    copies = local * (w.gradient_bytes + w.word) / cost.pcie_rate
    return np.where(away, local * cost.gpu.node_gpus / k.host_update_per_s + copies, on_gpu)
