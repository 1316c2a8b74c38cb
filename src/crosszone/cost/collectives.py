"""Seconds and bytes of collectives over a link.

Sizes are bytes of the whole tensor (what one rank holds before a reduce-scatter and after an all-gather). All
arguments may be arrays. One rank costs nothing, and so do zero bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crosszone.cost.record import as_array, named
from crosszone.cost.tiers import Floats, Numbers, Tier, figure


class HierarchicalTime(NamedTuple):
    """The three parts of an all-reduce that goes inside the zone first."""

    reduce_scatter_s: Floats
    """Inside each zone: every rank ends with the zone's sum of its shard."""
    all_reduce_s: Floats
    """Across zones, each rank its shard."""
    all_gather_s: Floats
    """Inside each zone: every rank gets all shards."""

    @property
    def total_s(self) -> Floats:
        """All three, one after the other."""
        return self.reduce_scatter_s + self.all_reduce_s + self.all_gather_s


def ring_reduce_scatter_s(size_bytes: Numbers, ranks: Numbers, link: Tier) -> Floats:
    """Seconds for a ring reduce-scatter of `size_bytes` per rank. [C1]

    n-1 steps; each moves size/n bytes and pays the link's latency once.
    """
    size, n = _numbers(size_bytes, ranks)
    return _if_any(size, n, (n - 1) * (link.latency_s + size / n / link.bytes_per_s))


def ring_all_gather_s(size_bytes: Numbers, ranks: Numbers, link: Tier) -> Floats:
    """Seconds for a ring all-gather that ends with `size_bytes` on each rank: as the reduce-scatter. [C1]"""
    return ring_reduce_scatter_s(size_bytes, ranks, link)


def ring_all_reduce_s(size_bytes: Numbers, ranks: Numbers, link: Tier) -> Floats:
    """Seconds for a ring all-reduce of `size_bytes` per rank. [C2]

    2(n-1) steps; each moves size/n bytes and pays the link's latency once.
    """
    return 2.0 * ring_reduce_scatter_s(size_bytes, ranks, link)


def tree_all_reduce_s(size_bytes: Numbers, ranks: Numbers, link: Tier) -> Floats:
    """Seconds for an all-reduce over a double binary tree. [C3]

    Up and down log2 n levels; each half of the tensor has a tree of its own, so a rank sends size bytes each way.
    """
    size, n = _numbers(size_bytes, ranks)
    levels = np.ceil(np.log2(np.maximum(n, 1)))
    return _if_any(size, n, 2 * levels * link.latency_s + 2 * size / link.bytes_per_s)


def best_all_reduce_s(size_bytes: Numbers, ranks: Numbers, link: Tier) -> Floats:
    """Seconds for an all-reduce whose library chooses: the faster of ring and tree. [C4]"""
    return np.minimum(ring_all_reduce_s(size_bytes, ranks, link), tree_all_reduce_s(size_bytes, ranks, link))


def all_to_all_s(size_bytes: Numbers, ranks: Numbers, link: Tier) -> Floats:
    """Seconds until every rank has sent 1/n of its `size_bytes` to each other rank. [C5]

    (n-1)/n of the bytes leave a rank; latency is paid once per batch of messages in flight together.
    """
    size, n = _numbers(size_bytes, ranks)
    batches = np.ceil((n - 1) / figure("collective", "messages_at_once"))
    return _if_any(size, n, batches * link.latency_s + (n - 1) / n * size / link.bytes_per_s)


def send_s(size_bytes: Numbers, link: Tier) -> Floats:
    """Seconds until a message of `size_bytes` has arrived: latency + size / rate. [C6]"""
    size = np.asarray(size_bytes, dtype=float)
    return _if_any(size, np.asarray(2.0), link.latency_s + size / link.bytes_per_s)


def hierarchical_all_reduce_s(
    size_bytes: Numbers, inner_ranks: Numbers, inner: Tier, outer_ranks: Numbers, outer: Tier
) -> HierarchicalTime:
    """Seconds for an all-reduce inside each zone first, then of shards across zones. [C7]

    Reduce-scatter over g ranks, all-reduce of size/g over the zones, all-gather. `outer` is the link as one rank
    sees it: where the g shards share one path to the other zones, give `shared(path, inner_ranks)`.
    """
    size, g = _numbers(size_bytes, inner_ranks)
    within = ring_reduce_scatter_s(size, g, inner)
    return HierarchicalTime(within, ring_all_reduce_s(size / g, outer_ranks, outer), within)


class TierShares(NamedTuple):
    """Of what the ranks of a ring send, the share over each kind of link; together 1, or 0 for a single rank."""

    fast: Any
    host: Any
    """PCIe, between GPUs of a node that no fast link joins."""
    network: Any


def ring_tier_shares(ranks: Any, stride: Any, fast_gpus: Any, local_gpus: Any, *, ring: str = "") -> TierShares:
    """Share of a ring's traffic on each kind of link, its members `stride` ranks apart. [C14]

    n ranks have n edges: one leaves each node that the ring goes through, one more each fast-link domain in a node, and
    all others stay inside a domain. `ring`: what goes round, for records.
    """
    n = as_array(ranks)
    in_domain = np.minimum(np.maximum(np.floor(fast_gpus / stride), 1.0), n)
    in_node = np.minimum(np.maximum(np.floor(local_gpus / stride), in_domain), n)
    domains, nodes = np.ceil(n / in_domain), np.ceil(n / in_node)
    network = np.where(nodes > 1, nodes, 0.0)
    host = np.where(domains > nodes, domains - network, 0.0)
    fast = np.where(in_domain > 1, n - host - network, 0.0)
    edges = TierShares(fast=fast, host=host, network=network)._asdict()
    return TierShares(**{tier: named(f"ring.{ring}.{tier}", np.where(n > 1, x / n, 0.0)) for tier, x in edges.items()})


def best_bucket_bytes(size_bytes: Numbers, link: Tier) -> Floats:
    """Bucket that exposes least of a gradient of `size_bytes` sent behind the backward pass: sqrt(S B alpha). [C13]

    n buckets pay n latencies and leave the last one exposed: n alpha + S / (n B) is least at n = sqrt(S / (B alpha)).
    """
    size = np.asarray(size_bytes, dtype=float)
    return np.asarray(np.minimum(size, np.sqrt(size * link.bytes_per_s * link.latency_s)))


def ring_all_reduce_bytes(size_bytes: Numbers, ranks: Numbers) -> Floats:
    """Bytes one rank of a ring all-reduce sends: 2 (n-1)/n x size; half of it for reduce-scatter or all-gather. [C8]"""
    size, n = _numbers(size_bytes, ranks)
    return np.asarray(2 * (n - 1) / n * size)


def flat_ring_egress_bytes(size_bytes: Numbers, ranks: Numbers, zones: Numbers, crossings: Numbers = 1) -> Floats:
    """Bytes a zone sends to others in one ring over all ranks: 2 (n-1)/n x size for each edge that leaves it. [C8]

    One edge leaves a zone whose ranks follow each other; as many as the zone has ranks when zones are interleaved.
    """
    sent = ring_all_reduce_bytes(size_bytes, ranks) * np.asarray(crossings, dtype=float)
    return np.where(np.asarray(zones) > 1, sent, 0.0)


def hierarchical_egress_bytes(size_bytes: Numbers, zones: Numbers) -> Floats:
    """Bytes a zone sends to others in a hierarchical all-reduce: 2 (z-1)/z x size, all its ranks together. [C8]

    Each of g ranks sends 2 (z-1)/z x size/g; with one leader the same bytes leave through one host.
    """
    return ring_all_reduce_bytes(size_bytes, zones)


def tree_egress_bytes(size_bytes: Numbers, zones: Numbers) -> Floats:
    """Bytes the busiest zone sends when a tree chains the zones: size to each of its one or two neighbours. [C8]"""
    size, z = _numbers(size_bytes, zones)
    return np.asarray(size * np.clip(z - 1, 0, 2))


def pipeline_egress_bytes(tokens: Numbers, hidden: Numbers, bytes_per_value: Numbers, copies: Numbers = 1) -> Floats:
    """Bytes all replicas of a stage send over one boundary in a step, each way: tokens x hidden x bytes. [C8]

    `copies`: tensor-parallel ranks that each send the whole activation (1 with sequence parallelism).
    """
    t, h, b, c = (np.asarray(x, dtype=float) for x in (tokens, hidden, bytes_per_value, copies))
    return np.asarray(t * h * b * c)


def _numbers(size_bytes: Numbers, ranks: Numbers) -> tuple[Floats, Floats]:
    return np.asarray(size_bytes, dtype=float), np.asarray(ranks, dtype=float)


def _if_any(size: Floats, ranks: Floats, seconds: Numbers) -> Floats:
    """The seconds where something moves, else 0."""
    return np.where((ranks > 1) & (size > 0), seconds, 0.0)
