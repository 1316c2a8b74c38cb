"""Crossings: what ranks get of the links between zones: a pipeline's boundary, and the ring of zones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.collectives import CollectiveCost
from crosszone.cost.record import as_array
from crosszone.cost.tiers import Tier
from crosszone.cost.wan import (
    Limits,
    Paths,
    Transport,
    best_zone_ring,
    wan_tier,
    window_bytes,
    zone_exchange,
    zone_paths,
)
from crosszone.cost.wan import zone_ring_tier as ring_tier
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.strategy import Communication
from crosszone.predict.batch import group_columns

Floats = npt.NDArray[np.float64]
Zones = tuple[int, ...]


def transport_of(c: Communication, cluster: Cluster) -> Transport:
    """How ranks with these options talk across zones: by NCCL, or by Gloo where CPUs compute.

    Gloo has one connection between two ranks, whatever the options for NCCL's say.
    """
    if any(gpu.is_cpu for gpu in cluster.gpu_kinds):
        return Transport(library="gloo", congestion=c.congestion)
    buffer = c.socket_buffer_mb
    window = None if buffer is None else window_bytes(buffer * 1e6)
    return Transport(flows=c.flows, congestion=c.congestion, window_bytes=window)


@dataclass(frozen=True)
class Crossings:
    """Links between the zones, for one way of talking over them; figures are low, expected, high RTT."""

    cluster: Cluster
    links: Mapping[tuple[int, int], ZoneLink]
    transport: Transport
    _boundaries: dict[tuple[int, int, int], tuple[Floats, Floats]] = field(default_factory=dict, repr=False)
    _rings: dict[tuple[Zones, int], Zones] = field(default_factory=dict, repr=False)
    _ring_links: dict[tuple[Zones, int], Tier] = field(default_factory=dict, repr=False)
    _exchanges: dict[tuple[float, Zones, int], CollectiveCost] = field(default_factory=dict, repr=False)

    @cached_property
    def paths(self) -> Paths:
        """Every path between the zones."""
        return zone_paths(self.cluster, self.transport, self.links)

    @cached_property
    def _nic(self) -> float:
        """Network rate of the slowest GPU."""
        return min(float(group_columns(group, "bf16", 1).nic_bytes_per_s) for _, group in self.cluster.groups())

    def boundary(self, a: int, b: int, ranks: int) -> tuple[Floats, Floats]:
        """Rate of one rank and latency from zone to zone, where so many ranks share the pair, both ways counted."""
        if (a, b, ranks) not in self._boundaries:
            self._boundaries[a, b, ranks] = self._boundary(a, b, ranks)
        return self._boundaries[a, b, ranks]

    def _boundary(self, a: int, b: int, ranks: int) -> tuple[Floats, Floats]:
        limits = self.paths.limits
        cap = min(limits.egress[a], limits.ingress[b])
        tier = wan_tier(self.links[min(a, b), max(a, b)], self.transport, groups=ranks, back=a > b, cap_bytes_per_s=cap)
        return as_array(tier.bytes_per_s), as_array(tier.latency_s)

    def ring(self, zones: Zones, ranks: int) -> Zones:
        """Order in which zones exchange gradients, the smallest of them with so many ranks."""
        if (zones, ranks) not in self._rings:
            order = best_zone_ring(1e9, self._among(zones), self.transport, groups=ranks)
            self._rings[zones, ranks] = tuple(zones[i] for i in order)
        return self._rings[zones, ranks]

    def ring_link(self, ring: Zones, ranks: int) -> Tier:
        """A zone's link to the next in the ring."""
        if (ring, ranks) not in self._ring_links:
            self._ring_links[ring, ranks] = ring_tier(self._among(ring), self.transport, **self._use(ring, ranks))
        return self._ring_links[ring, ranks]

    def exchange(self, size_bytes: float, ring: Zones, ranks: int) -> CollectiveCost:
        """What it takes until all zones of the ring hold the sum of so many bytes."""
        key = (size_bytes, ring, ranks)
        if key not in self._exchanges:
            paths, use = self._among(ring), self._use(ring, ranks)
            self._exchanges[key] = zone_exchange(size_bytes, paths, self.transport, **use)
        return self._exchanges[key]

    def _use(self, ring: Zones, ranks: int) -> dict[str, Any]:
        """How the zones of the ring, taken in order, are used: all their ranks, each with its NIC."""
        return {"order": range(len(ring)), "groups": ranks, "nic_bytes_per_s": self._nic}

    def _among(self, zones: Zones) -> Paths:
        """The paths among some of the zones."""
        paths, at = self.paths, np.array(zones)
        pick = np.ix_(at, at)
        limits = Limits(paths.limits.egress[at], paths.limits.ingress[at], paths.limits.pair[pick])
        return Paths(limits, paths.group_bytes_per_s[:, at[:, None], at], paths.rtt_s[:, at[:, None], at])
