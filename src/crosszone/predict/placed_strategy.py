"""A placed strategy: node group and zone of every stage of every replica, what crosses zones, and their links.

Crossings: what ranks get of the links between zones: a pipeline's boundary, and the ring of zones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.collectives import CollectiveCost
from crosszone.cost.columns import GpuColumns, LinkColumns, select_columns
from crosszone.cost.record import as_array, with_entries
from crosszone.cost.tiers import FREE, Tier
from crosszone.cost.wan import (
    Limits,
    Paths,
    WanTransport,
    build_ring_tier,
    build_wan_tier,
    build_zone_paths,
    estimate_zone_exchange,
    find_best_ring_order,
    window_bytes,
)
from crosszone.errors import IllegalError, Notice
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.job import find_compute_path
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.placement import Placement
from crosszone.inputs.rules import Case, build_uneven_shards_notice
from crosszone.inputs.strategy import Communication, Strategy
from crosszone.predict.batch import build_group_columns
from crosszone.predict.parts import cached_part, select_parts
from crosszone.schedule.orders import V_SHAPED

# Suffixes of arrays: K replica classes, S stages. Rows are bands of round-trip time, K rows each.
Floats = npt.NDArray[np.float64]
Zones = tuple[int, ...]


def select_transport(c: Communication, cluster: Cluster) -> WanTransport:
    """How ranks with these options talk across zones: by NCCL, or by Gloo where CPUs compute.

    Gloo has one connection between two ranks, whatever the options for NCCL's say.
    """
    if any(gpu.is_cpu for gpu in cluster.gpu_kinds):
        return WanTransport(library="gloo", congestion=c.congestion)
    buffer = c.socket_buffer_mb
    window = None if buffer is None else window_bytes(buffer * 1e6)
    return WanTransport(flows=c.flows, congestion=c.congestion, window_bytes=window)


@dataclass(frozen=True)
class Crossings:
    """Links between the zones, for one way of talking over them; figures are low, expected, high RTT."""

    cluster: Cluster
    links: Mapping[tuple[int, int], ZoneLink]
    transport: WanTransport
    _boundaries: dict[tuple[int, int, int], tuple[Floats, Floats]] = field(default_factory=dict, repr=False)
    _rings: dict[tuple[Zones, int], Zones] = field(default_factory=dict, repr=False)
    _ring_links: dict[tuple[Zones, int], Tier] = field(default_factory=dict, repr=False)
    _exchanges: dict[tuple[float, Zones, int], CollectiveCost] = field(default_factory=dict, repr=False)

    @cached_property
    def paths(self) -> Paths:
        """Every path between the zones."""
        return build_zone_paths(self.cluster, self.transport, self.links)

    @cached_property
    def _nic(self) -> float:
        """Network rate of the slowest GPU."""
        return min(
            float(build_group_columns(group, "bf16", 1).nic_bytes_per_s) for _, group in self.cluster.zone_groups
        )

    def get_boundary(self, a: int, b: int, ranks: int) -> tuple[Floats, Floats]:
        """Rate of one rank and latency from zone to zone, where so many ranks share the pair, both ways counted."""
        if (a, b, ranks) not in self._boundaries:
            self._boundaries[a, b, ranks] = self._estimate_boundary(a, b, ranks)
        return self._boundaries[a, b, ranks]

    def _estimate_boundary(self, a: int, b: int, ranks: int) -> tuple[Floats, Floats]:
        limits = self.paths.limits
        cap = min(limits.egress[a], limits.ingress[b])
        tier = build_wan_tier(
            self.links[min(a, b), max(a, b)], self.transport, groups=ranks, back=a > b, cap_bytes_per_s=cap
        )
        return as_array(tier.bytes_per_s), as_array(tier.latency_s)

    def get_ring(self, zones: Zones, ranks: int) -> Zones:
        """Order in which zones exchange gradients, the smallest of them with so many ranks."""
        if (zones, ranks) not in self._rings:
            # for a gigabyte, where rates count for more than latencies: one order for whatever is exchanged
            order = find_best_ring_order(1e9, self._select_paths(zones), self.transport, groups=ranks)
            self._rings[zones, ranks] = tuple(zones[i] for i in order)
        return self._rings[zones, ranks]

    def get_ring_link(self, ring: Zones, ranks: int) -> Tier:
        """A zone's link to the next in the ring."""
        if (ring, ranks) not in self._ring_links:
            self._ring_links[ring, ranks] = build_ring_tier(
                self._select_paths(ring), self.transport, **self._list_ring_options(ring, ranks)
            )
        return self._ring_links[ring, ranks]

    def estimate_exchange(self, size_bytes: float, ring: Zones, ranks: int) -> CollectiveCost:
        """What it takes until all zones of the ring hold the sum of so many bytes."""
        key = (size_bytes, ring, ranks)
        if key not in self._exchanges:
            paths, use = self._select_paths(ring), self._list_ring_options(ring, ranks)
            self._exchanges[key] = estimate_zone_exchange(size_bytes, paths, self.transport, **use)
        return self._exchanges[key]

    def _list_ring_options(self, ring: Zones, ranks: int) -> dict[str, Any]:
        """How the zones of the ring, taken in order, are used: all their ranks, each with its NIC."""
        return {"order": range(len(ring)), "groups": ranks, "nic_bytes_per_s": self._nic}

    def _select_paths(self, zones: Zones) -> Paths:
        """The paths among some of the zones."""
        paths, at = self.paths, np.array(zones)
        pick = np.ix_(at, at)
        limits = Limits(paths.limits.egress[at], paths.limits.ingress[at], paths.limits.pair[pick])
        return Paths(limits, paths.group_bytes_per_s[:, at[:, None], at], paths.rtt_s[:, at[:, None], at])


Ints = npt.NDArray[np.int64]
# Kinds of links: between GPUs of a fast-link domain, of a node, of a zone, and of several zones.
FAST, HOST, NETWORK, BETWEEN_ZONES = "fast link", "PCIe", "network", "between zones"
BANDS, EXPECTED = 3, 1  # Low, expected, high round-trip time; place of the expected one
OF_LINKS = ("crossings", "ring")  # Parts that follow from the links between the zones


@dataclass(frozen=True, kw_only=True)
class PlacedStrategy:
    """A placed strategy. Arrays of ranks are [pp, dp, cp, tp]."""

    case: Case
    placement: Placement
    links: dict[tuple[int, int], ZoneLink]
    banded: bool = True
    """False: only the expected RTT is looked at (a search)."""
    shared_crossings: Crossings | None = None
    """The links between the zones, where somebody has looked them up already."""
    parts: dict[str, Any] = field(init=False, default_factory=dict, compare=False, repr=False)
    """What has been computed of it so far, by name; a changed copy begins anew."""

    def with_links(
        self, cluster: Cluster, links: dict[tuple[int, int], ZoneLink], crossings: Crossings
    ) -> PlacedStrategy:
        """The same placement with other links between the zones."""
        other = replace(self, case=replace(self.case, cluster=cluster), links=links, shared_crossings=crossings)
        other.parts.update(select_parts(self.parts, without=OF_LINKS))
        return other

    @property
    def cluster(self) -> Cluster:
        """The cluster it lies in."""
        return self.case.cluster

    @property
    def strategy(self) -> Strategy:
        """The strategy, dp settled."""
        return self.case.strategy

    @cached_part
    def _located_ranks(self) -> dict[str, Ints]:
        s = self.strategy
        at, where = self.placement.compute_coordinates(s), self.placement.locate_ranks(self.cluster)
        shape = (s.pp, s.dp or 1, s.cp, s.tp)
        flat = np.ravel_multi_index((at["pp"], at["dp"], at["cp"], at["tp"]), shape)
        rank_at = np.empty(len(flat), dtype=np.int64)
        rank_at[flat] = np.arange(len(flat))
        return {key: values[rank_at].reshape(shape) for key, values in where.items()}

    @cached_part
    def groups(self) -> tuple[NodeGroup, ...]:
        """Node groups of all zones, in order."""
        return tuple(group for _, group in self.cluster.zone_groups)

    @cached_part
    def groups_in_use(self) -> list[int]:
        """Numbers of the node groups that hold ranks."""
        numbers: list[int] = np.unique(self.group).tolist()
        return numbers

    @property
    def group(self) -> Ints:
        """Node group of each rank."""
        return self._located_ranks["group"]

    @property
    def zone(self) -> Ints:
        """Zone of each rank."""
        return self._located_ranks["zone"]

    @property
    def node(self) -> Ints:
        """Number of the node of each rank, over all node groups."""
        # one number for each node: no group has as many nodes or GPUs (`cluster.MAX_GPUS` is 10^6)
        return np.asarray(self._located_ranks["group"] * 10_000_000 + self._located_ranks["node"])

    @cached_part
    def nodes(self) -> int:
        """Nodes in use."""
        return len(set(self.node.ravel().tolist()))

    @cached_part
    def domain(self) -> Ints:
        """Number of the domain of each rank: GPUs that reach each other without the network."""
        return self._number_domains([group.local_gpus for group in self.groups])

    @cached_part
    def _fast_domain(self) -> Ints:
        """Number of the fast-link domain of each rank; a GPU without one is its own."""
        return self._number_domains([group.domain for group in self.groups])

    def _number_domains(self, sizes: list[int]) -> Ints:
        """Number of the part of its node group that each rank lies in, parts of so many GPUs in a row."""
        located = self._located_ranks
        per_node = np.array([group.gpus for group in self.groups])
        gpu = located["node"] * per_node[located["group"]] + located["gpu"]
        return np.asarray(located["group"] * 100_000_000 + gpu // np.array(sizes)[located["group"]])

    @cached_part
    def micro_batches(self) -> Ints:
        """Micro-batches of each replica in a step. [R2]"""
        s = self.strategy
        counts = s.replica_micro_batches or s.micro_batches(self.case.job.global_batch)
        return np.broadcast_to(np.asarray(counts, dtype=np.int64), (s.dp or 1,))

    @cached_part
    def replica_classes(self) -> tuple[Ints, Ints]:
        """One replica of each class, and how many replicas each class has.

        Classes differ in where their stages lie, or in their micro-batches.
        """
        features = [self.group[:, :, 0, 0], self._fast]
        if self.strategy.uneven:
            features.append(self.micro_batches[None])
        # the usual case without np.unique over all replicas
        if all((values == values[:, :1]).all() for values in features):
            return np.zeros(1, dtype=np.int64), np.array([self.strategy.dp or 1])
        _, first, counts = np.unique(np.concatenate(features).T, axis=0, return_index=True, return_counts=True)
        # np.unique sorts by content; classes are numbered in the order of their first replica
        order = np.argsort(first)
        return first[order], counts[order]

    @cached_part
    def class_micro_batches(self) -> Ints:
        """Micro-batches of a replica of each class."""
        return self.micro_batches[self.replica_classes[0]]

    def repeat_rows(self, of_classes: Any) -> Any:
        """Figures [classes, stages] as rows: once a band, and once more for perfect links where bands are crossed."""
        return np.tile(of_classes, (self.bands + self.has_without_wan, 1))

    @cached_part
    def shard_ranks(self) -> int:
        """Replicas that share one set of states: all, or the fewest of a stage that lie in one zone or node. [M2]"""
        if self.strategy.shard_within == "all":
            return min(self.strategy.shard_ranks or self.case.dp, self.case.dp)
        return min(int(np.unique(stage, return_counts=True)[1].min()) for stage in self._shard_domains)

    @cached_part
    def _shard_domains(self) -> Ints:
        """[pp, dp] number of the zone or node inside which a replica's stage shares states with others."""
        if self.strategy.shard_within == "zone":
            return self.zone[:, :, 0, 0]
        node = self.node
        in_one_node = (node == node[:, :, :1, :1]).all(axis=(2, 3))
        # split over nodes: a number of its own, below those of nodes, so that it shares with none
        return np.where(in_one_node, node[:, :, 0, 0], -1 - np.arange(node.shape[1]))

    @cached_part
    def _fast(self) -> Ints:
        """[pp, dp] 1 where the boundary after a stage lies inside one domain; the last leads to the first."""
        return np.asarray((self.domain == np.roll(self.domain, -1, axis=0)).all(axis=(2, 3)).astype(np.int64))

    @property
    def wraps(self) -> bool:
        """Micro-batches go from the last stage on to the first, which holds a further virtual stage."""
        return self.strategy.interleave > 1 and self.strategy.pipeline_schedule not in V_SHAPED

    def boundary_link(self, stage: int, replica: int) -> str:
        """The link that activations cross after a stage of this replica, inside a zone."""
        if not self._fast[stage, replica]:
            return NETWORK
        before, after = (self._fast_domain[at % self.strategy.pp, replica] for at in (stage, stage + 1))
        return FAST if bool((before == after).all()) else HOST

    def build_gpu_columns(self) -> GpuColumns:
        """GPUs of each stage of each row; plain numbers where all are of one kind."""
        path = find_compute_path(self.case.job)
        columns = {g: build_group_columns(self.groups[g], path, self.nodes) for g in self.groups_in_use}
        group_KS = self.group[:, self.replica_classes[0], 0, 0].T
        first = next(iter(columns.values()))
        # plain numbers: the formulas of a layer then run once, not for every row and stage
        if all(column == first for column in columns.values()):
            return first
        return select_columns(columns, self.repeat_rows(group_KS))

    @cached_part
    def transport(self) -> WanTransport:
        """How ranks talk across zones."""
        return select_transport(self.strategy.communication, self.cluster)

    @cached_part
    def dp_zones(self) -> Ints:
        """Zones that the replicas of each stage lie in."""
        return np.array([len(np.unique(stage)) for stage in self.zone[:, :, 0, 0]])

    @cached_part
    def replica_zones(self) -> tuple[int, ...]:
        """Zones among which gradients cross, as places in the cluster; empty: none do."""
        crossing = self.zone[self.dp_zones > 1]
        return tuple(int(z) for z in np.unique(crossing)) if crossing.size else ()

    @cached_part
    def crossings(self) -> Crossings:
        """The links between the zones."""
        return self.shared_crossings or Crossings(self.cluster, self.links, self.transport)

    def check(self) -> None:
        """Refuse context- or expert-parallel groups, and replicas that average, that lie in several zones; and
        replicas that share states, but not the number of their micro-batches.
        """
        s = self.strategy
        if s.uneven and (s.zero or 0) >= 2 and s.shard_within != "all":
            for stage in self._shard_domains:
                for home in np.unique(stage):
                    counts_of_home = self.micro_batches[stage == home]
                    if (counts_of_home != counts_of_home[0]).any():
                        raise IllegalError(build_uneven_shards_notice(s, counts_of_home.tolist()))
        if s.shard_within == "zone" and (s.zero or 0) > 0 and self.crosses:
            counts = [np.unique(stage, return_counts=True)[1].tolist() for stage in self._shard_domains]
            if len({count for stage in counts for count in stage}) > 1:
                params = {"counts": max(counts, key=len)}
                raise IllegalError(
                    Notice(code="zones_unequal", field="strategy.shard_within", value="zone", params=params)
                )
        if s.local_update and (self.zone != self.zone[:1]).any():
            raise IllegalError(Notice(code="local_update_torn", field="strategy.local_update", value=s.pp))
        if s.local_update:
            counts_of_zone = np.unique(self.zone[0, :, 0, 0], return_counts=True)[1].tolist()
            if len(set(counts_of_zone)) > 1:
                field, params = "strategy.local_update", {"counts": counts_of_zone}
                raise IllegalError(Notice(code="zones_average_unequal", field=field, params=params))
        if s.cp > 1 and (self.zone != self.zone[:, :, :1, :]).any():
            raise IllegalError(Notice(code="cp_across_zones", field="strategy.cp", value=s.cp))
        if s.ep > 1:
            # experts fill the ranks of tp and cp first, then go on to neighbouring replicas [R1]
            inner = max(1, s.ep // (s.tp * s.cp))
            expert_groups = self.zone[:, :, 0, 0].reshape(s.pp, -1, inner)
            if (expert_groups != expert_groups[:, :, :1]).any():
                raise IllegalError(Notice(code="ep_across_zones", field="strategy.ep", value=s.ep))

    @cached_part
    def ring(self) -> tuple[int, ...]:
        """Order in which zones exchange gradients."""
        return self.crossings.get_ring(self.replica_zones, self.zone_ranks) if self.replica_zones else ()

    @cached_part
    def zone_ranks(self) -> int:
        """Ranks of the smallest of those zones that exchange gradients with other zones."""
        crossing = self.zone[self.dp_zones > 1]
        return int(min((crossing == z).sum() for z in self.replica_zones)) if self.replica_zones else 0

    @cached_part
    def ring_ranks(self) -> int:
        """Ranks of a zone that send to the next one: all that exchange shards; of a flat ring one of each group."""
        s = self.strategy
        several = (s.zero or 0) > 0 and 1 < self.shard_ranks < (s.dp or 1)
        if s.communication.reduce == "flat" and not several:
            return int((self.dp_zones > 1).sum()) * s.tp
        return self.zone_ranks

    @cached_part
    def crosses(self) -> bool:
        """Some group lies in several zones."""
        return bool((self.zone != self.zone.flat[0]).any())

    @property
    def bands(self) -> int:
        """Rows of each class of replicas: low, expected and high RTT where zones are crossed."""
        return BANDS if self.crosses and self.banded else 1

    @property
    def has_without_wan(self) -> bool:
        """There is one more row with perfect links between stages."""
        return self.bands > 1

    @property
    def expected(self) -> int:
        """Place of the expected RTT among the rows of a class."""
        return EXPECTED if self.bands > 1 else 0

    def estimate_zone_exchange(self, size_bytes: float) -> CollectiveCost:
        """What it takes until all zones of the ring hold the sum of so many bytes: low, expected, high RTT."""
        return self.crossings.estimate_exchange(size_bytes, self.ring, self.zone_ranks)

    def build_link_columns(self) -> LinkColumns:
        """Links of each class of replicas, one row a band (`bands`) and class; where zones are crossed, once more with
        perfect links between stages.
        """
        classes = self.replica_classes[0]
        fast = self._fast[:, classes].T * 1.0
        if not self.crosses:
            return LinkColumns(boundary_fast=fast)
        s = self.strategy
        # B: low, expected and high RTT; K: replica classes; S: stages
        shape = (BANDS, len(classes), s.pp)
        rates, rates_back, latencies = [], [], []
        for row, replica in enumerate(classes):
            zones = self.zone[:, replica, 0, 0].tolist()
            for stage in range(s.pp if self.wraps else s.pp - 1):
                a, b = zones[stage], zones[(stage + 1) % s.pp]
                if a != b:
                    at, (rate, late) = np.s_[:, row, stage], self._estimate_boundary_tier(a, b)
                    rates.append((at, rate))
                    rates_back.append((at, self._estimate_boundary_tier(b, a)[0]))
                    latencies.append((at, late))
        ring = self.crossings.get_ring_link(self.ring, self.ring_ranks) if self.ring else FREE

        def rows(values: Any) -> Floats:
            # [B x K, S]: bands outside, as in `repeat_rows`; the further K rows have perfect links between stages
            full = np.broadcast_to(values, shape)
            return np.concatenate([full.reshape(-1, s.pp), full[EXPECTED]]) if self.has_without_wan else full[EXPECTED]

        perfect = np.zeros((len(classes) * (self.bands + self.has_without_wan), 1))
        perfect[self.bands * len(classes) :] = 1.0
        return LinkColumns(
            dp_zones=rows(self.dp_zones * 1.0),
            synchronous=0.0 if s.local_update else 1.0,
            wan_bytes_per_s=rows(np.reshape(ring.bytes_per_s, (-1, 1, 1))),
            wan_latency_s=rows(np.reshape(ring.latency_s, (-1, 1, 1))),
            gloo=float(self.transport.library == "gloo"),
            flat=float(s.communication.reduce == "flat"),
            boundary_fast=rows(fast),
            boundary_bytes_per_s=rows(with_entries(np.full(shape, np.inf), rates)),
            boundary_back_bytes_per_s=rows(with_entries(np.full(shape, np.inf), rates_back)),
            boundary_latency_s=rows(with_entries(np.zeros(shape), latencies)) * (1.0 - perfect),
            boundary_perfect=perfect,
        )

    def _estimate_boundary_tier(self, a: int, b: int) -> tuple[Floats, Floats]:
        """Rate of one rank and latency over the pair of zones, all ranks that cross it in this direction sharing it."""
        s = self.strategy
        return self.crossings.get_boundary(a, b, self._senders[min(a, b), max(a, b)] * s.tp * s.cp)

    @cached_part
    def _senders(self) -> Counter[tuple[int, int]]:
        """Boundaries between the stages of all replicas that lie between two zones, both ways together."""
        zones = self.zone[:, :, 0, 0]
        after = np.roll(zones, -1, axis=0)
        if not self.wraps:
            zones, after = zones[:-1], after[:-1]
        ends = zip(np.minimum(zones, after).ravel().tolist(), np.maximum(zones, after).ravel().tolist(), strict=True)
        return Counter(pair for pair in ends if pair[0] != pair[1])
