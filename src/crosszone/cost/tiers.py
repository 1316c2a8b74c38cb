"""Links as rates: the tiers a byte may cross, in bytes/s, one direction, as one GPU sees them.

Fast link (NVLink, ...) inside a domain, PCIe inside a node, NICs between nodes, uplinks and pairs between zones.
Every field may be an array, so that many groups are looked at in one call.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.shipped import read_shipped

Numbers: TypeAlias = float | npt.ArrayLike  # A number or an array of them
Floats: TypeAlias = npt.NDArray[np.float64]

BYTES_PER_S_PER_GBPS = 1e9 / 8
BYTES_PER_S_PER_GB_PER_S = 1e9


class Tier(NamedTuple):
    """A link: payload bytes/s in one direction, and seconds a message pays on top, library included."""

    bytes_per_s: Any
    latency_s: Any


FREE = Tier(np.inf, 0.0)  # A link that costs nothing: where there is none to cross


class NodeTiers(NamedTuple):
    """The links of one node group, as one GPU sees them."""

    fast: Tier
    """To GPUs of its fast-link domain; PCIe where there is no fast link."""
    pcie: Tier
    """To GPUs of its node outside the domain, and to its host."""
    nic: Tier
    """To other nodes: its own NIC, or its part of the node's with all GPUs sending."""
    node_nic_bytes_per_s: Any
    """All NICs of the node."""
    shared_nic: Any
    """The GPUs of a node share one NIC: a group that sends alone gets all of it."""
    gpus: Any
    """GPUs of a node."""
    domain: Any
    """GPUs of a fast-link domain (1: none)."""


@cache
def link_figures() -> dict[str, Any]:
    """The figures of links.yaml with their origin and source."""
    loaded: dict[str, Any] = read_shipped("crosszone.cost", "links.yaml").value
    return loaded


def figure(*path: str) -> float:
    """One figure of links.yaml by its keys, such as "rdma", "latency_us"."""
    value: Any = link_figures()
    for key in path:
        value = value[key]
    return float(value["value"])


def collective_start_s() -> float:
    """Seconds a collective takes to start, whatever its size: launch and first handshake."""
    return figure("collective", "start_us") * 1e-6


def node_tiers(group: NodeGroup) -> NodeTiers:
    """The links of a node group; a NIC that is not given is that of the GPU's usual machine. [C9]"""
    gpu = group.gpu
    pcie_rate = gpu.pcie.gb_per_s * BYTES_PER_S_PER_GB_PER_S * figure("pcie", "efficiency")
    pcie = Tier(pcie_rate, figure("pcie", "latency_us") * 1e-6)
    fast = pcie
    if group.fast_link and gpu.link is not None:
        efficiency = link_figures()["fast_link"]["efficiency"]
        kind = gpu.link.kind if gpu.link.kind in efficiency else "other"
        rate = gpu.link.gb_per_s * BYTES_PER_S_PER_GB_PER_S * figure("fast_link", "efficiency", kind)
        fast = Tier(rate, figure("fast_link", "latency_us") * 1e-6)
    node_rate = group.network_gbps_node * BYTES_PER_S_PER_GBPS * figure(group.fabric, "efficiency")
    # what a GPU sends leaves through its own PCIe slot first
    own_rate = min(node_rate / group.gpus, pcie_rate)
    return NodeTiers(
        fast=fast,
        pcie=pcie,
        nic=Tier(own_rate, figure(group.fabric, "latency_us") * 1e-6),
        node_nic_bytes_per_s=node_rate,
        shared_nic=group.nic_gbps_per_gpu is None,
        gpus=group.gpus,
        domain=group.domain,
    )


def nic_tier(tiers: NodeTiers, members: Numbers, groups: Numbers | None = None) -> Tier:
    """The network as a group sees it that has `members` GPUs on each node. [C10]

    A GPU's own NIC serves its own group, so the members' NICs add up; a shared NIC is divided by the `groups` of the
    node that send at the same time (None: all GPUs of the node are in such groups).
    """
    k = np.asarray(members, dtype=float)
    side_by_side = np.asarray(tiers.gpus) / k if groups is None else np.asarray(groups, dtype=float)
    shared = np.minimum(np.asarray(tiers.node_nic_bytes_per_s) / side_by_side, k * tiers.pcie.bytes_per_s)
    rate = np.where(tiers.shared_nic, shared, k * np.asarray(tiers.nic.bytes_per_s))
    return Tier(rate, np.asarray(tiers.nic.latency_s, dtype=float))


def ring_over(*edges: tuple[Tier, Numbers]) -> Tier:
    """A ring whose edges are `(link, how many)`: the slowest link's rate, the mean latency of its edges. [C11]

    A message handed round n ranks meets every edge once, so a step pays the mean.
    """
    counts = [np.asarray(count, dtype=float) for _, count in edges]
    rates = [np.where(count > 0, tier.bytes_per_s, np.inf) for (tier, _), count in zip(edges, counts, strict=True)]
    weighed = [np.where(count > 0, tier.latency_s, 0.0) * count for (tier, _), count in zip(edges, counts, strict=True)]
    slowest, latency, number = rates[0], weighed[0], counts[0]
    for rate, seconds, count in zip(rates[1:], weighed[1:], counts[1:], strict=True):
        slowest, latency, number = np.minimum(slowest, rate), latency + seconds, number + count
    return Tier(slowest, latency / np.maximum(number, 1.0))


def ring_tier(
    tiers: NodeTiers,
    ranks: Numbers,
    in_domain: Numbers,
    in_node: Numbers,
    groups: Numbers | None = None,
) -> Tier:
    """The link a ring of `ranks` in one zone runs at, with so many of them in each fast-link domain and node. [C11]

    Inside a domain the fast link, inside a node PCIe, beyond it the NICs of all local members, if these are slower
    than the links inside. One rank costs nothing. A domain that reaches beyond a node counts all its members.
    """
    n = np.asarray(ranks, dtype=float)
    k = np.clip(np.asarray(in_domain, dtype=float), 1.0, n)
    node = np.clip(np.maximum(np.asarray(in_node, dtype=float), k), 1.0, n)
    domains, nodes = np.ceil(n / k), np.ceil(n / node)
    inner = np.where(k > 1, n - domains, 0.0)
    beyond = np.where(nodes > 1, nodes, 0.0)
    middle = np.where(domains > nodes, domains - beyond, 0.0)
    ring = ring_over((tiers.fast, inner), (tiers.pcie, middle), (nic_tier(tiers, node, groups), beyond))
    return Tier(np.where(n > 1, ring.bytes_per_s, np.inf), np.where(n > 1, ring.latency_s, 0.0))


def shared(tier: Tier, by: Numbers) -> Tier:
    """The link as each of `by` groups sees it that use it at the same time. [C12]"""
    return Tier(np.asarray(tier.bytes_per_s) / np.asarray(by, dtype=float), tier.latency_s)


def zone_uplinks(cluster: Cluster) -> tuple[Floats, Floats]:
    """Bytes/s of payload each zone can send out and take in; inf: only the links between zones limit it. [C9]"""
    payload = figure("tcp", "efficiency") * BYTES_PER_S_PER_GBPS
    out = [np.inf if zone.uplink_gbps is None else zone.uplink_gbps * payload for zone in cluster.zones]
    into = [
        up if zone.downlink_gbps is None else zone.downlink_gbps * payload
        for zone, up in zip(cluster.zones, out, strict=True)
    ]
    return np.array(out), np.array(into)
