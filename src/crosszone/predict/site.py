"""Site: where the ranks of a strategy lie: node group and zone of every stage, what crosses zones, and their links."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.columns import GpuColumns, LinkColumns, taken
from crosszone.cost.tiers import FREE, Tier
from crosszone.cost.wan import (
    Limits,
    Paths,
    Transport,
    best_zone_ring,
    wan_tier,
    zone_exchange_s,
    zone_paths,
    zone_ring_tier,
)
from crosszone.errors import IllegalError, Notice
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.placement import Placement
from crosszone.inputs.rules import Case
from crosszone.inputs.states import compute_precision
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import group_columns
from crosszone.schedule.orders import V_SHAPED

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
BANDS, EXPECTED = 3, 1
"""Low, expected, high round-trip time; place of the expected one."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A placed strategy. Arrays of ranks are [pp, dp, cp, tp]."""

    case: Case
    placement: Placement
    links: dict[tuple[int, int], ZoneLink]

    @property
    def cluster(self) -> Cluster:
        """The cluster it lies in."""
        return self.case.cluster

    @property
    def strategy(self) -> Strategy:
        """The strategy, dp settled."""
        return self.case.strategy

    @cached_property
    def _located(self) -> dict[str, Ints]:
        s = self.strategy
        at, where = self.placement.coordinates(s), self.placement.located(self.cluster)
        shape = (s.pp, s.dp or 1, s.cp, s.tp)
        flat = np.ravel_multi_index((at["pp"], at["dp"], at["cp"], at["tp"]), shape)
        rank_at = np.empty(len(flat), dtype=np.int64)
        rank_at[flat] = np.arange(len(flat))
        return {key: values[rank_at].reshape(shape) for key, values in where.items()}

    @cached_property
    def groups(self) -> tuple[NodeGroup, ...]:
        """Node groups of all zones, in order."""
        return tuple(group for _, group in self.cluster.groups())

    @cached_property
    def groups_in_use(self) -> list[int]:
        """Numbers of the node groups that hold ranks."""
        found: list[int] = np.unique(self.group).tolist()
        return found

    @property
    def group(self) -> Ints:
        """Node group of each rank."""
        return self._located["group"]

    @property
    def zone(self) -> Ints:
        """Zone of each rank."""
        return self._located["zone"]

    @cached_property
    def nodes(self) -> int:
        """Nodes in use."""
        here = self._located
        return len(set((here["group"] * 10_000_000 + here["node"]).ravel().tolist()))

    @cached_property
    def domain(self) -> Ints:
        """Number of the fast-link domain of each rank."""
        here = self._located
        sizes = np.array([max(1, g.domain if g.fast_link else 1) for g in self.groups])
        per_node = np.array([g.gpus for g in self.groups])
        gpu = here["node"] * per_node[here["group"]] + here["gpu"]
        return np.asarray(here["group"] * 100_000_000 + gpu // sizes[here["group"]])

    @cached_property
    def kinds(self) -> tuple[Ints, Ints]:
        """One replica of each kind (kinds differ in where their stages lie), and how many replicas each kind has."""
        here = [self.group[:, :, 0, 0], self._fast]
        if all((values == values[:, :1]).all() for values in here):
            return np.zeros(1, dtype=np.int64), np.array([self.strategy.dp or 1])
        _, first, counts = np.unique(np.concatenate(here).T, axis=0, return_index=True, return_counts=True)
        order = np.argsort(first)
        return first[order], counts[order]

    @cached_property
    def _fast(self) -> Ints:
        """[pp, dp] 1 where the boundary after a stage lies inside one fast-link domain; the last leads to the first."""
        return np.asarray((self.domain == np.roll(self.domain, -1, axis=0)).all(axis=(2, 3)).astype(np.int64))

    @property
    def wraps(self) -> bool:
        """Micro-batches go from the last stage on to the first, which holds a further chunk."""
        return self.strategy.interleave > 1 and self.strategy.pipeline_schedule not in V_SHAPED

    def boundary_fast(self, stage: int, replica: int) -> bool:
        """The boundary after a stage lies inside one fast-link domain for this replica."""
        return bool(self._fast[stage, replica])

    def gpu_columns(self) -> GpuColumns:
        """GPUs of each stage of each row; plain numbers where all are of one kind."""
        path = compute_precision(self.case.job)
        columns = {g: group_columns(self.groups[g], path, self.nodes) for g in self.groups_in_use}
        here = self.group[:, self.kinds[0], 0, 0].T
        first = next(iter(columns.values()))
        if all(one == first for one in columns.values()):
            return first
        rows = np.tile(here, (self.bands + self.crosses, 1))
        return taken(columns, rows)

    @cached_property
    def transport(self) -> Transport:
        """How ranks talk across zones."""
        c = self.strategy.communication
        return Transport(flows=c.flows, congestion=c.congestion)

    @cached_property
    def dp_zones(self) -> Ints:
        """Zones that the replicas of each stage lie in."""
        return np.array([len(np.unique(stage)) for stage in self.zone[:, :, 0, 0]])

    @cached_property
    def replica_zones(self) -> tuple[int, ...]:
        """Zones among which gradients cross, as places in the cluster; empty: none do."""
        crossing = self.zone[self.dp_zones > 1]
        return tuple(int(z) for z in np.unique(crossing)) if crossing.size else ()

    @cached_property
    def paths(self) -> Paths:
        """Every path between the zones."""
        return zone_paths(self.cluster, self.transport, self.links)

    def check(self) -> None:
        """Refuse context- or expert-parallel groups, and replicas that average, that lie in several zones."""
        s = self.strategy
        if s.local_update and (self.zone != self.zone[:1]).any():
            raise IllegalError(Notice(code="local_update_torn", field="strategy.local_update", value=s.pp))
        if s.cp > 1 and (self.zone != self.zone[:, :, :1, :]).any():
            raise IllegalError(Notice(code="cp_across_zones", field="strategy.cp", value=s.cp))
        if s.ep > 1:
            inner = max(1, s.ep // (s.tp * s.cp))
            teams = self.zone[:, :, 0, 0].reshape(s.pp, -1, inner)
            if (teams != teams[:, :, :1]).any():
                raise IllegalError(Notice(code="ep_across_zones", field="strategy.ep", value=s.ep))

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """Order in which zones exchange gradients."""
        if not self.replica_zones:
            return ()
        inside = _subset(self.paths, self.replica_zones)
        order = best_zone_ring(1e9, inside, self.transport, groups=self.zone_ranks)
        return tuple(self.replica_zones[i] for i in order)

    @cached_property
    def zone_ranks(self) -> int:
        """Ranks of the smallest of those zones that exchange gradients with other zones."""
        crossing = self.zone[self.dp_zones > 1]
        return int(min((crossing == z).sum() for z in self.replica_zones)) if self.replica_zones else 0

    @cached_property
    def crosses(self) -> bool:
        """Some group lies in several zones."""
        return bool((self.zone != self.zone.flat[0]).any())

    @property
    def bands(self) -> int:
        """Rows of each kind of replica: low, expected and high RTT where zones are crossed."""
        return BANDS if self.crosses else 1

    @property
    def _ring_use(self) -> dict[str, Any]:
        """How the zones of the ring, taken in order, are used: all their ranks, each with its NIC."""
        nic = min(group_columns(g, "bf16", 1).nic_bytes_per_s for g in self.groups)
        return {"order": range(len(self.ring)), "groups": self.zone_ranks, "nic_bytes_per_s": nic}

    @cached_property
    def zone_ring_link(self) -> Tier:
        """A zone's link to the next in the ring: low, expected, high RTT."""
        return zone_ring_tier(_subset(self.paths, self.ring), self.transport, **self._ring_use)

    def zone_exchange_s(self, size_bytes: float) -> Floats:
        """Seconds until all zones of the ring hold the sum of so many bytes: low, expected, high RTT."""
        return zone_exchange_s(size_bytes, _subset(self.paths, self.ring), self.transport, **self._ring_use)

    def link_columns(self) -> LinkColumns:
        """Links of each kind of replica, one row a band (`bands`) and kind; where zones are crossed, once more with
        perfect links between stages.
        """
        kinds = self.kinds[0]
        fast = self._fast[:, kinds].T * 1.0
        if not self.crosses:
            return LinkColumns(boundary_fast=fast)
        s = self.strategy
        shape = (BANDS, len(kinds), s.pp)
        rate, back, latency = np.full(shape, np.inf), np.full(shape, np.inf), np.zeros(shape)
        for row, replica in enumerate(kinds):
            zones = self.zone[:, replica, 0, 0].tolist()
            for stage in range(s.pp if self.wraps else s.pp - 1):
                a, b = zones[stage], zones[(stage + 1) % s.pp]
                if a != b:
                    rate[:, row, stage], latency[:, row, stage] = self._boundary_tier(a, b)
                    back[:, row, stage], _ = self._boundary_tier(b, a)
        ring = self.zone_ring_link if self.ring else FREE

        def rows(values: Any) -> Floats:
            full = np.broadcast_to(values, shape)
            return np.concatenate([full.reshape(-1, s.pp), full[EXPECTED]])

        perfect = np.zeros((BANDS * len(kinds) + len(kinds), 1))
        perfect[-len(kinds) :] = 1.0
        return LinkColumns(
            dp_zones=rows(self.dp_zones * 1.0),
            synchronous=0.0 if s.local_update else 1.0,
            wan_bytes_per_s=rows(np.reshape(ring.bytes_per_s, (-1, 1, 1))),
            wan_latency_s=rows(np.reshape(ring.latency_s, (-1, 1, 1))),
            flat=float(s.communication.reduce == "flat"),
            boundary_fast=rows(fast),
            boundary_bytes_per_s=rows(rate),
            boundary_back_bytes_per_s=rows(back),
            boundary_latency_s=rows(latency) * (1.0 - perfect),
            boundary_perfect=perfect,
        )

    def _boundary_tier(self, a: int, b: int) -> tuple[Floats, Floats]:
        """Rate of one rank and latency over the pair of zones, all ranks that cross it in this direction sharing it."""
        s = self.strategy
        zones = self.zone[:, :, 0, 0]
        after = np.roll(zones, -1, axis=0)
        if not self.wraps:
            zones, after = zones[:-1], after[:-1]
        crossing = int(((zones == a) & (after == b)).sum() + ((zones == b) & (after == a)).sum())
        limits = self.paths.limits
        cap = min(limits.egress[a], limits.ingress[b])
        first, second = min(a, b), max(a, b)
        tier = wan_tier(
            self.links[first, second], self.transport, groups=crossing * s.tp * s.cp, back=a > b, cap_bytes_per_s=cap
        )
        return np.asarray(tier.bytes_per_s), np.asarray(tier.latency_s)


def _subset(paths: Paths, zones: tuple[int, ...]) -> Paths:
    """The paths among some of the zones."""
    at = np.array(zones)
    pick = np.ix_(at, at)
    limits = Limits(paths.limits.egress[at], paths.limits.ingress[at], paths.limits.pair[pick])
    return Paths(limits, paths.group_bytes_per_s[:, at[:, None], at], paths.rtt_s[:, at[:, None], at])
