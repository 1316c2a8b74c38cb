"""Collectives: seconds, bytes by kind of link and messages of every exchange that training makes, each from one call.

    ring = Ring(ranks=8.0, link=Tier(bytes_per_s=2e11, latency_s=2e-6), layout=Layout(8.0, 1.0, 8.0, 8.0, "tensor"))
    cost = all_reduce(64e6, ring)
    cost.seconds, cost.bytes.network, cost.messages

Sizes are bytes of the whole tensor: what one rank holds before a reduce-scatter and after an all-gather. Every argument
may be an array; all of them broadcast. One rank costs nothing, and so do zero bytes. Bytes are those one rank sends;
between zones, those a zone sends. They are worked out only when asked for: a search asks for seconds alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from crosszone.cost.gloo import count_gloo_round_trips
from crosszone.cost.record import as_array, as_floats, named
from crosszone.cost.tiers import Floats, Numbers, Tier, read_figure

# Latency of one step of a ring or tree inside a zone, by the kind of link it goes over.
FAST_HOP_S, NETWORK_HOP_S = (read_figure(tier, "latency_us") * 1e-6 for tier in ("fast_link", "rdma"))
HOST_HOP_S = FAST_HOP_S  # PCIe: NCCL's tuning has the same step through shared memory


class TierBytes(NamedTuple):
    """A figure of each kind of link: bytes, or shares of them."""

    fast: Any = 0.0
    host: Any = 0.0
    """PCIe, between GPUs of a node that no fast link joins."""
    network: Any = 0.0
    zones: Any = 0.0
    """From one zone to the next."""


@dataclass(frozen=True)
class Layout:
    """Where the ranks of a ring lie: `stride` ranks apart, in fast-link domains and nodes of so many GPUs."""

    ranks: Any
    stride: Any
    fast_gpus: Any
    """GPUs of a fast-link domain; 1: there is none."""
    local_gpus: Any
    """GPUs that reach each other without the network."""
    name: str = ""
    """What goes round, for records."""

    @cached_property
    def shares(self) -> TierBytes:
        """Share of the ring's traffic on each kind of link; together 1, or 0 for a single rank. [C14]

        n ranks have n edges: one leaves each node that the ring goes through, one more each fast-link domain in a node,
        and all others stay inside a domain.
        """
        n = as_array(self.ranks)
        in_domain = np.minimum(np.maximum(np.floor(self.fast_gpus / self.stride), 1.0), n)
        in_node = np.minimum(np.maximum(np.floor(self.local_gpus / self.stride), in_domain), n)
        domains, nodes = np.ceil(n / in_domain), np.ceil(n / in_node)
        network = np.where(nodes > 1, nodes, 0.0)
        host = np.where(domains > nodes, domains - network, 0.0)
        fast = np.where(in_domain > 1, n - host - network, 0.0)
        edges = {"fast": fast, "host": host, "network": network}
        return TierBytes(
            **{tier: named(f"ring.{self.name}.{tier}", np.where(n > 1, x / n, 0.0)) for tier, x in edges.items()}
        )

    @property
    def hop_s(self) -> Any:
        """Latency of one step round the ring, the mean of its edges: buckets follow each other through them. [C11]"""
        return self.shares.fast * FAST_HOP_S + self.shares.host * HOST_HOP_S + self.shares.network * NETWORK_HOP_S


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Ranks that exchange something, and the link their ring runs at."""

    ranks: Any
    link: Tier
    """Rate of the slowest edge as one rank sees it, and seconds of one step."""
    layout: Layout | None = None
    """Where they lie; None: bytes by kind of link are not wanted."""
    slowdown: Any | None = None
    """Seconds of the transfer over those of an ideal ring; None: 1."""
    start_s: Any = 0.0
    """Seconds of a call whatever its size: launch, ranks that come late."""
    single: bool = False
    """One ring through one NIC of a node, so that the rank at a node's edge sends all it has over the network; a
    library's own rings leave a node by all its NICs in turn."""


@dataclass(frozen=True, kw_only=True)
class CollectiveCost:
    """What an exchange costs: seconds, bytes by kind of link, messages."""

    seconds: Any
    item_bytes: Any
    """Bytes one rank sends for each thing exchanged."""
    items: Any = None
    """Things exchanged; None: one."""
    calls: Any = 1.0
    steps: Any = 1.0
    """Messages of a rank that follow one another in each call."""
    ring: Ring | None = None
    parts: TierBytes | None = None
    """Bytes by kind of link, where no ring says them."""

    @property
    def sent_bytes(self) -> Any:
        """Bytes one rank sends, over whatever link."""
        return self.item_bytes if self.items is None else self.items * self.item_bytes

    @property
    def messages(self) -> Any:
        """Messages one rank sends, one after the other."""
        return self.calls * self.steps

    @property
    def bytes(self) -> TierBytes:
        """Bytes one rank sends over each kind of link, the mean of all ranks; together `sent_bytes`. [C14]"""
        if self.parts is not None:
            return self.parts
        shares = self.ring.layout.shares if self.ring and self.ring.layout else TierBytes()
        return TierBytes(*(self.sent_bytes * share for share in shares))

    def least_s(self, rates: TierBytes) -> TierBytes:
        """Seconds that each kind of link is busy at least, given bytes/s of one GPU over each. [C14]"""
        if self.ring is not None and self.ring.single:
            return TierBytes(*(self.sent_bytes / rate for rate in rates[:3]))
        return TierBytes(*(size / rate for size, rate in zip(self.bytes[:3], rates[:3], strict=True)))


def ring_share(ranks: Numbers) -> Any:
    """(n - 1) / n: share of a tensor that each rank sends in one pass round the ring. [X6]"""
    return (ranks - 1.0) / ranks  # type: ignore[operator]


def ring_rate(ranks: Any, stride: Any, local_gpus: Any, link_rate: Any, nic_rate: Any) -> Any:
    """Bytes/s of a ring: the fast link where no network is crossed, else the NICs of all local members. [C10] [X5]"""
    local = np.minimum(np.maximum(np.floor(local_gpus / stride), 1.0), ranks)
    # the least of both: every byte also passes the links inside the node on its way round
    return np.where(ranks * stride <= local_gpus, link_rate, np.minimum(link_rate, local * nic_rate))


def ring_pass(
    item_bytes: Any, ring: Ring, *, passes: Any = 1.0, items: Any = None, calls: Any = None
) -> CollectiveCost:
    """`passes` times round a ring: 1 for a reduce-scatter or an all-gather, 2 for an all-reduce. [C1] [C2]

    n-1 steps a pass; each moves 1/n of the bytes and pays the link's latency once. `items` of `item_bytes` each are
    exchanged in `calls` (None: one, if there is anything): what all items have in common is worked out once, so an
    array of stages costs one product.
    """
    n = as_array(ring.ranks)
    sent, steps = passes * ring_share(n) * item_bytes, passes * (n - 1.0)
    calls = _count_calls(item_bytes, items) if calls is None else calls
    return CollectiveCost(
        seconds=_sum_seconds(sent, ring, items, calls, steps),
        item_bytes=sent,
        items=items,
        calls=calls,
        steps=steps,
        ring=ring,
    )


def reduce_scatter(size_bytes: Any, ring: Ring) -> CollectiveCost:
    """A ring reduce-scatter of `size_bytes` per rank. [C1]"""
    return ring_pass(as_array(size_bytes), ring)


def all_gather(size_bytes: Any, ring: Ring) -> CollectiveCost:
    """A ring all-gather that ends with `size_bytes` on each rank: as the reduce-scatter. [C1]"""
    return ring_pass(as_array(size_bytes), ring)


def all_reduce(size_bytes: Any, ring: Ring, *, items: Any = None, calls: Any = None) -> CollectiveCost:
    """A ring all-reduce of `size_bytes` per rank: a reduce-scatter and an all-gather. [C2]"""
    return ring_pass(as_array(size_bytes), ring, passes=2.0, items=items, calls=calls)


def tree_all_reduce(size_bytes: Any, ring: Ring, *, items: Any = None, calls: Any = None) -> CollectiveCost:
    """An all-reduce over a double binary tree of the ranks of `ring`. [C3]

    Up and down log2 n levels; each half of the tensor has a tree of its own, so the busiest rank sends size bytes each
    way. All ranks together send what a ring does: n - 1 edges up and as many down.
    """
    n, size = as_array(ring.ranks), as_array(size_bytes)
    calls = _count_calls(size, items) if calls is None else calls
    steps = 2.0 * np.ceil(np.log2(np.maximum(n, 1.0)))
    return CollectiveCost(
        seconds=_sum_seconds((n > 1) * (2.0 * size), ring, items, calls, steps),
        item_bytes=2.0 * ring_share(n) * size,
        items=items,
        calls=calls,
        steps=steps,
        ring=ring,
    )


def choose_faster_s(first: CollectiveCost, second: CollectiveCost, *, allowed: Any = True, forced: Any = False) -> Any:
    """Seconds of what a library that chooses would take: the second where it is faster (or forced) and allowed. [C4]"""
    chosen = allowed & (forced | (second.seconds < first.seconds))
    return np.where(chosen, second.seconds, first.seconds)


def ring_exchange(block_bytes: Any, ring: Ring) -> CollectiveCost:
    """Every rank's block handed on round the ring until all have seen it: n-1 blocks sent. [X4]"""
    name = ring.layout.name if ring.layout else "ring"
    steps = as_array(ring.ranks) - 1.0
    sent = named(f"{name}_bytes", block_bytes * steps)
    seconds = named(f"{name}_exchange_s", sent / ring.link.bytes_per_s)
    return CollectiveCost(seconds=seconds, item_bytes=sent, steps=steps, ring=ring)


def all_to_all(size_bytes: Any, ring: Ring) -> CollectiveCost:
    """Every rank sends 1/n of its `size_bytes` to each other rank. [C5]

    (n-1)/n of the bytes leave a rank; latency is paid once per batch of messages in flight together.
    """
    n, size = as_array(ring.ranks), as_array(size_bytes)
    # NCCL works on eight messages of a channel at a time (links.yaml: nccl-device)
    batches = np.ceil((n - 1.0) / read_figure("collective", "messages_at_once"))
    calls, sent = _count_calls(size), ring_share(n) * size
    seconds = _sum_seconds(sent, ring, None, calls, batches)
    return CollectiveCost(seconds=seconds, item_bytes=sent, calls=calls, steps=batches, ring=ring)


def expert_all_to_all(
    size_bytes: Any,
    *,
    top_k: Any,
    ranks: Any,
    ranks_per_domain: Any,
    fast_gpus: Any,
    rates: TierBytes,
    timed: tuple[Any, Tier] | None = None,
) -> CollectiveCost:
    """Dispatch and combine of tokens: to experts inside the domain, and once to each other domain. [X3]

    `size_bytes`: of one rank's tokens. A token goes to `top_k` experts; those of one other domain get it once, over the
    network, and share it out there. `timed`: where an all-to-all of such ranks was timed, and the link it showed; it
    sent every copy to its rank, so that all copies run at its rate. [C15]
    """
    domains = named("expert_domains", ranks / ranks_per_domain)
    # share of the other domains that hold one of a token's experts, these drawn evenly and apart from each other
    remote = (domains - 1.0) * (1.0 - (1.0 - 1.0 / domains) ** np.maximum(top_k, 1.0))
    # 2: out to the experts and back
    near_bytes = named("all_to_all.near_bytes", 2.0 * size_bytes * top_k * (1.0 - 1.0 / ranks))
    far_bytes = named("all_to_all.far_bytes", 2.0 * size_bytes * remote)
    joined = as_array(fast_gpus) > 1  # without a fast link the same bytes go over PCIe
    parts = TierBytes(np.where(joined, near_bytes, 0.0), np.where(joined, 0.0, near_bytes), far_bytes)
    seconds = near_bytes / rates.fast + far_bytes / rates.network
    if timed is not None and np.any(timed[0]):
        is_measured, link = timed
        seconds = np.where(
            is_measured, 2.0 * all_to_all(size_bytes * top_k, Ring(ranks=ranks, link=link)).seconds, seconds
        )
    seconds = named("all_to_all_s", seconds)
    return CollectiveCost(seconds=seconds, item_bytes=near_bytes + far_bytes, steps=2.0, parts=parts)


def send_message(size_bytes: Any, link: Tier, *, calls: Any = None) -> CollectiveCost:
    """`size_bytes` to one other rank, in `calls` messages (None: one), each of which pays the latency. [C6]"""
    size = as_array(size_bytes)
    calls = _count_calls(size) if calls is None else calls
    return CollectiveCost(
        seconds=size / link.bytes_per_s + calls * link.latency_s, item_bytes=size, calls=calls, steps=1.0
    )


def _count_calls(item_bytes: Any, items: Any = None) -> Any:
    """One call where there is anything to exchange, else none."""
    return 1.0 * (as_array(item_bytes if items is None else items * item_bytes) > 0)


def _sum_seconds(item_bytes: Any, ring: Ring, items: Any, calls: Any, steps: Any) -> Any:
    """All items on the ring's link, and what every call pays on top."""
    rate, latency_s = ring.link
    item_s = item_bytes / rate if ring.slowdown is None else ring.slowdown * item_bytes / rate
    seconds = item_s if items is None else items * item_s
    # tensor and expert rings have none: a search is spared two operations on whole arrays of zeros
    if np.any(latency_s):
        seconds = seconds + calls * (steps * latency_s)
    if np.any(ring.start_s):
        seconds = seconds + calls * np.where(as_array(ring.ranks) > 1, ring.start_s, 0.0)
    return seconds


# Between zones


@dataclass(frozen=True, kw_only=True)
class ZoneRing:
    """How zones exchange what their replicas share: the ring of zones, a flat ring of all replicas, or a chain."""

    zones: Any
    members: Any
    """Of the ring: the zones, or in a flat ring all that hold the same."""
    link: Tier
    """From a zone to the next, all its ranks together, and one step."""
    tree: Any = False
    """A tree chains the zones: as many steps as round their ring, the whole sum over every edge, both ways."""


@dataclass(frozen=True, kw_only=True)
class GlooBuckets:
    """Buckets that Gloo exchanges: it cuts each into segments and waits for round trips. [T8]"""

    size_bytes: Any
    """Of one bucket of one rank."""
    bytes_per_s: Any
    """That such a rank gets of the link."""
    used: Any
    """Where ranks talk over Gloo."""


def zone_ring_pass(
    parts: tuple[tuple[Any, Any], ...],
    item_bytes: Any,
    ring: ZoneRing,
    *,
    passes: Any = 1.0,
    buckets: Any = 1.0,
    rounds: Any = 1.0,
    gloo: GlooBuckets | None = None,
    name: str = "",
) -> CollectiveCost:
    """`passes` times round the zones: what a zone sends to the next, and how long it takes. [C7] [C8] [X7]

    `parts`: how many items of `item_bytes`, and members of their ring (experts have fewer copies than the rest).
    Buckets follow one another, so each pays the latency of its steps. In a flat ring what a rank sends goes round all
    others that hold the same, and meets the edges between zones among theirs. `name`: for records.
    """
    sent = passes * sum(items * ring_share(members) for items, members in parts) * item_bytes
    steps = (ring.members - 1.0) * ring.zones / ring.members * buckets  # those of its edges that lie between zones
    if gloo is not None:
        trips = count_gloo_round_trips(gloo.size_bytes, ring.members, ring.link.latency_s, gloo.bytes_per_s)
        steps = np.where(gloo.used, buckets * trips / 2.0, steps)  # of one of the two passes of its all-reduce
    carried = sent
    if np.any(ring.tree):
        total = (as_array(passes) > 0) * sum(items for items, _ in parts) * item_bytes
        sent = np.where(ring.tree, total, sent)
        # the busiest zone, in the middle of the chain, sends to both of its neighbours
        carried = np.where(ring.tree, total * np.clip(ring.zones - 1.0, 0.0, 2.0), carried)
        steps = np.where(ring.tree, (ring.zones - 1.0) * buckets, steps)
    messages = named(f"zones.{name}_messages", passes * steps * rounds)
    seconds = named(f"zones.{name}", messages * ring.link.latency_s + carried / ring.link.bytes_per_s)
    parts_bytes = TierBytes(zones=named(f"zones.{name}_bytes", sent))
    return CollectiveCost(seconds=seconds, item_bytes=parts_bytes.zones, calls=messages, parts=parts_bytes)


def best_bucket_bytes(size_bytes: Numbers, link: Tier) -> Floats:
    """Bucket that exposes least of a gradient of `size_bytes` sent behind the backward pass: sqrt(S B alpha). [C13]

    n buckets pay n latencies and leave the last one exposed: n alpha + S / (n B) is least at n = sqrt(S / (B alpha)).
    """
    size = as_floats(size_bytes)
    return as_floats(np.minimum(size, np.sqrt(size * link.bytes_per_s * link.latency_s)))
