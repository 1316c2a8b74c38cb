"""Layouts: which node groups hold which stages of which replicas, for every combination of degrees worth trying.

`ParallelLayout` is degrees, a `StageMap` and a rank order, before options are chosen:

    layout = ParallelLayout(tp=8, cp=1, ep=1, stage_map=StageMap((Chain(4, ((0, 2), (1, 2))),)), order=REPLICAS_NEAR)

A stage map is a set of chains. A chain is a number of replicas whose stages lie in the same node groups. One chain in
one group crosses nothing; several chains in several zones put data parallelism across them; a chain through several
zones puts the pipeline across them; chains of both sorts put both. Stages are counted in cells: the tp x cp GPUs that
hold one stage of one replica.

Stage maps are built along a `ZoneOrder`: which node groups are used, and in which order the pipeline goes through
them. It is a set of paths; each path is the list of node groups that one chain goes through. Two paths of one group
each put data parallelism across these groups, one path of two groups the pipeline, and so on. Small clusters: every
zone order. Others: the best connected or strongest sets of node groups, each in its shortest order (`refine_candidate`
tries others). Orders that are the same up to a swap of equal zones are one.

Functions go from the whole to its parts: `list_splits`, zone orders, then `iterate_layouts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, pairwise, permutations
from typing import Literal

import numpy as np
import numpy.typing as npt

from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.placement import Axis, Placement, build_blocks, count_group_tp_room

Crossing = Literal["none", "dp", "pp", "both"]
Order = tuple[Axis, Axis, Axis, Axis]
REPLICAS_NEAR: Order = ("tp", "cp", "dp", "pp")  # Replicas of a stage are neighbours: Megatron's default
STAGES_NEAR: Order = ("tp", "cp", "pp", "dp")  # Stages of a replica are neighbours


@dataclass(frozen=True)
class Chain:
    """Replicas that lie alike: pairs of node group and number of stages, along the pipeline."""

    replicas: int
    path: tuple[tuple[int, int], ...]

    @property
    def stages(self) -> int:
        """Stages of a replica."""
        return sum(count for _, count in self.path)


@dataclass(frozen=True)
class StageMap:
    """Where stages and replicas lie, in cells of tp x cp GPUs."""

    chains: tuple[Chain, ...]

    @cached_property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.chains[0].stages

    @cached_property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return sum(chain.replicas for chain in self.chains)

    @cached_property
    def paths(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Node groups and stages of each chain."""
        return tuple(chain.path for chain in self.chains)

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """Replicas of each chain."""
        return tuple(chain.replicas for chain in self.chains)

    @cached_property
    def groups(self) -> npt.NDArray[np.int64]:
        """Node group of each chain's stages: [chains, stages]."""
        return np.array([[g for g, count in chain.path for _ in range(count)] for chain in self.chains])

    @cached_property
    def cells(self) -> dict[int, int]:
        """Cells in use of each node group."""
        used = Counter[int]()
        for chain in self.chains:
            for group, stages in chain.path:
                used[group] += chain.replicas * stages
        return dict(used)

    def find_crossing(self, zone_of: Sequence[int]) -> Crossing:
        """Which axis crosses zones."""
        pipeline_crosses = any(len({zone_of[g] for g, _ in chain.path}) > 1 for chain in self.chains)
        replicas_cross = any(len({zone_of[int(g)] for g in stage}) > 1 for stage in self.groups.T)
        if pipeline_crosses:
            return "both" if replicas_cross else "pp"
        return "dp" if replicas_cross else "none"

    def has_equal_zones(self, zone_of: Sequence[int]) -> bool:
        """Every zone in use holds equally many whole replicas."""
        counts: Counter[int] = Counter()
        for chain in self.chains:
            counts[zone_of[chain.path[0][0]]] += chain.replicas
        return len(set(counts.values())) == 1

    def list_zones(self, zone_of: Sequence[int]) -> tuple[int, ...]:
        """Zones in use, in the order the pipeline or the replicas come to them."""
        return tuple(dict.fromkeys(zone_of[g] for chain in self.chains for g, _ in chain.path))

    def build_placement(self, cluster: Cluster, tp: int, cp: int, order: Order) -> Placement:
        """The ranks on their GPUs: each cell takes the next GPUs of its node group."""
        ranks_per_cell = tp * cp
        ranks_by_group = ((group, cells * ranks_per_cell) for group, cells in self._iterate_blocks(order))
        return Placement(order=order, blocks=build_blocks(cluster, tp, ranks_by_group))

    def _iterate_blocks(self, order: Order) -> Iterator[tuple[int, int]]:
        """Node groups and cells as the ranks come to them."""
        if order == REPLICAS_NEAR:
            for stage in range(self.stages):
                for chain, row in zip(self.chains, self.groups, strict=True):
                    yield int(row[stage]), chain.replicas
            return
        for chain in self.chains:
            if len(chain.path) == 1:
                yield chain.path[0][0], chain.replicas * chain.stages
                continue
            for _ in range(chain.replicas):
                yield from chain.path


def list_splits(total: int, capacities: Sequence[int], limit: int) -> list[tuple[int, ...]]:
    """Ways to share out `total`, at least 1 each and within the capacities: all, or at most `limit` near-even ones.

    Near-even: in proportion to the capacities, and one moved from one share to another.
    """
    if total < len(capacities) or total > sum(capacities):
        return []
    splits = list(_iterate_splits(total, tuple(capacities), limit))
    if len(splits) <= limit:
        return splits
    # Too many to try all of them: only those near the proportional one, which fills all groups alike.
    even = _split_in_proportion(total, capacities)
    near_even = [even]
    for giver in range(len(capacities)):
        for taker in range(len(capacities)):
            moved = list(even)
            moved[giver] -= 1
            moved[taker] += 1
            if giver != taker and moved[giver] >= 1 and moved[taker] <= capacities[taker]:
                near_even.append(tuple(moved))
    return list(dict.fromkeys(near_even))[: max(1, limit)]


def _iterate_splits(total: int, capacities: tuple[int, ...], limit: int) -> Iterator[tuple[int, ...]]:
    """Every way, but no more than one beyond the limit: the caller only needs to know that there are too many."""
    if len(capacities) == 1:
        if 1 <= total <= capacities[0]:
            yield (total,)
        return
    later_capacity, count = sum(capacities[1:]), 0
    for first in range(max(1, total - later_capacity), min(capacities[0], total - len(capacities) + 1) + 1):
        for later_shares in _iterate_splits(total - first, capacities[1:], limit):
            yield (first, *later_shares)
            count += 1
            if count > limit:
                return


def _split_in_proportion(total: int, capacities: Sequence[int]) -> tuple[int, ...]:
    """Shares in proportion to the capacities, at least 1, by largest remainder."""
    total_capacity = sum(capacities)
    exact_shares = [total * capacity / total_capacity for capacity in capacities]
    shares = [max(1, min(capacity, int(exact))) for capacity, exact in zip(capacities, exact_shares, strict=True)]
    while sum(shares) > total:
        at = max(range(len(shares)), key=lambda i: (shares[i] > 1, shares[i] - exact_shares[i]))
        shares[at] -= 1
    while sum(shares) < total:
        at = max(range(len(shares)), key=lambda i: (shares[i] < capacities[i], exact_shares[i] - shares[i]))
        shares[at] += 1
    return tuple(shares)


GroupPath = tuple[int, ...]
ZoneOrder = tuple[GroupPath, ...]

# Node groups and GPUs up to which every zone order is tried: their number grows factorially.
MAX_GROUPS_ALL_ORDERS, MAX_GPUS_ALL_ORDERS = 4, 16
MAX_GROUPS_ALL_SETS = 3  # Node groups up to which every set of them is taken, in its best order
SETS_PER_SIZE = 2  # Of more node groups: sets of each size that are taken
# Node groups up to which sets and paths of each size are tried; among more, of sizes about a third apart.
MAX_GROUPS_ALL_SIZES = 16
MAX_ZONES_SYMMETRIES = 6  # Zones up to which equal ones are looked for: 6! = 720 renumberings are checked


@dataclass(frozen=True, kw_only=True)
class ZoneGraph:
    """What zone orders are chosen by: the zone of each node group, and how far zones lie from each other."""

    zone_of: tuple[int, ...]
    peak_flops: tuple[float, ...]
    """Peak of each node group, all its GPUs."""
    distance: npt.NDArray[np.float64]
    """[zones, zones] Seconds for a message of 1e9 bytes from one to the other."""
    try_all_orders: bool
    """The cluster is so small that every zone order is tried."""
    symmetries: tuple[tuple[int, ...], ...]
    """Renumberings of the node groups that change nothing."""

    @property
    def groups(self) -> range:
        """Numbers of the node groups."""
        return range(len(self.zone_of))

    @cached_property
    def group_distance(self) -> npt.NDArray[np.float64]:
        """[groups, groups] Distances of node groups, the slower direction."""
        return np.maximum(self.distance, self.distance.T)[np.ix_(self.zone_of, self.zone_of)]

    def get_distance(self, a: int, b: int) -> float:
        """Distance of two node groups, the slower direction."""
        x, y = self.zone_of[a], self.zone_of[b]
        return float(max(self.distance[x, y], self.distance[y, x]))

    def measure_path(self, path: GroupPath) -> tuple[float, float]:
        """Longest step of a path, and all of it."""
        steps = [self.get_distance(a, b) for a, b in pairwise(path)]
        return max(steps, default=0.0), sum(steps)

    def measure_spread(self, groups: GroupPath) -> float:
        """Distance of the two node groups farthest apart."""
        return max((self.get_distance(a, b) for a, b in combinations(groups, 2)), default=0.0)


def build_zone_graph(cluster: Cluster, links: Mapping[tuple[int, int], ZoneLink], precision: str) -> ZoneGraph:
    """The zones of a cluster as a graph; GPUs count with their peak in a compute precision."""
    zone_of = [z for z, zone in enumerate(cluster.zones) for _ in zone.nodes]
    peaks = [group.total_gpus * (group.gpu.peak(precision) or 0.0) for _, group in cluster.zone_groups]
    size = len(cluster.zones)
    distance = np.zeros((size, size))
    for (a, b), link in links.items():
        latency_s = link.rtt_ms.expected * 1e-3
        distance[a, b] = latency_s + 8.0 / link.gbps
        distance[b, a] = latency_s + 8.0 / link.gbps_back
    return ZoneGraph(
        zone_of=tuple(zone_of),
        peak_flops=tuple(peaks),
        distance=distance,
        try_all_orders=len(zone_of) <= MAX_GROUPS_ALL_ORDERS and cluster.gpus <= MAX_GPUS_ALL_ORDERS,
        symmetries=tuple(_find_symmetries(cluster, links, zone_of)),
    )


def _find_symmetries(
    cluster: Cluster, links: Mapping[tuple[int, int], ZoneLink], zone_of: list[int]
) -> Iterator[tuple[int, ...]]:
    """Renumberings of zones that keep node groups, uplinks, prices and links, as renumberings of node groups."""
    size = len(cluster.zones)
    if not 1 < size <= MAX_ZONES_SYMMETRIES:
        return

    def describe_zone(zone: int) -> object:
        z = cluster.zones[zone]
        return (
            z.nodes,
            z.uplink_gbps,
            z.downlink_gbps,
            z.carbon_g_per_kwh,
            z.pue,
            z.region and z.region.carbon_g_per_kwh,
        )

    def describe_link(a: int, b: int) -> tuple[object, ...]:
        x = links[min(a, b), max(a, b)]
        forth, back = (x.gbps, x.usd_per_gb), (x.gbps_back, x.usd_per_gb_back)
        return (x.rtt_ms, x.jitter_ms, x.loss_pct, x.flow_gbps, *((forth, back) if a < b else (back, forth)))

    descriptions = [describe_zone(zone) for zone in range(size)]
    link_of = {(a, b): describe_link(a, b) for a in range(size) for b in range(size) if a != b}
    first_group = [zone_of.index(zone) for zone in range(size)]
    for order in permutations(range(size)):
        if order == tuple(range(size)) or any(descriptions[a] != descriptions[b] for a, b in enumerate(order)):
            continue
        if all(link_of[a, b] == link_of[order[a], order[b]] for a, b in link_of):
            yield tuple(first_group[order[zone]] + g - first_group[zone] for g, zone in enumerate(zone_of))


def list_zone_orders(graph: ZoneGraph) -> list[ZoneOrder]:
    """The zone orders worth trying, each once."""
    distinct: dict[ZoneOrder, None] = {}
    for order in _iterate_all_orders(graph) if graph.try_all_orders else _iterate_best_orders(graph):
        # Of all orders that swapping equal zones turns into each other, the smallest stands for the others.
        equivalents = [tuple(sorted(tuple(swap[g] for g in path) for path in order)) for swap in graph.symmetries]
        distinct.setdefault(min([tuple(sorted(order)), *equivalents]))
    return list(distinct)


def _iterate_all_orders(graph: ZoneGraph) -> Iterator[ZoneOrder]:
    """All sets of paths over all sets of node groups."""
    for size in range(1, len(graph.groups) + 1):
        for groups in combinations(graph.groups, size):
            for parts in _iterate_partitions(groups):
                yield from _iterate_path_orders(parts)


def _iterate_partitions(items: GroupPath) -> Iterator[list[GroupPath]]:
    """All ways to put items into sets."""
    if not items:
        yield []
        return
    first, tail = items[0], items[1:]
    for size in range(len(tail) + 1):
        for companions in combinations(tail, size):
            remaining = tuple(x for x in tail if x not in companions)
            for parts in _iterate_partitions(remaining):
                yield [(first, *companions), *parts]


def _iterate_path_orders(parts: list[GroupPath]) -> Iterator[ZoneOrder]:
    """All orders inside each set."""
    if not parts:
        yield ()
        return
    for path in permutations(parts[0]):
        for later_paths in _iterate_path_orders(parts[1:]):
            yield (path, *later_paths)


def _iterate_best_orders(graph: ZoneGraph) -> Iterator[ZoneOrder]:
    """Best connected or strongest sets of each size: side by side, as one path, and in equal paths."""
    # 2^12 sets can still be listed and sorted; of more groups each size takes the first of one greedy order.
    by_nearness = _order_by_nearness(graph) if len(graph.groups) > 12 else []
    for size in _list_sizes(1, len(graph.groups)):
        sets = [tuple(sorted(by_nearness[:size]))] if by_nearness else list(combinations(graph.groups, size))
        if len(graph.groups) > MAX_GROUPS_ALL_SETS and not by_nearness:
            nearest = sorted(sets, key=lambda s: (graph.measure_spread(s), -sum(graph.peak_flops[g] for g in s), s))[
                :SETS_PER_SIZE
            ]
            strongest = sorted(sets, key=lambda s: (-sum(graph.peak_flops[g] for g in s), graph.measure_spread(s), s))[
                :SETS_PER_SIZE
            ]
            sets = list(dict.fromkeys([*nearest, *strongest]))
        for groups in sets:
            yield tuple((g,) for g in groups)
            if size > 1:
                yield (_find_shortest_path(graph, groups),)
            for length in _list_sizes(2, size - 1):
                yield tuple(_iterate_near_paths(graph, groups, length))


def _list_sizes(smallest: int, largest: int) -> list[int]:
    """Sizes to try: every one up to a limit, then some that grow by about a third, and the largest."""
    sizes = list(range(smallest, min(largest, MAX_GROUPS_ALL_SIZES) + 1))
    while sizes and sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * 4 // 3))
    return sizes


def _order_by_nearness(graph: ZoneGraph) -> list[int]:
    """Node groups one by one, the strongest first, then always the nearest to all before it."""
    distances = graph.group_distance
    ordered = [max(graph.groups, key=lambda g: graph.peak_flops[g])]
    farthest = distances[ordered[0]].copy()
    remaining = set(graph.groups) - set(ordered)
    while remaining:
        ordered.append(min(sorted(remaining), key=lambda g: (farthest[g], -graph.peak_flops[g])))
        remaining.remove(ordered[-1])
        farthest = np.maximum(farthest, distances[ordered[-1]])
    return ordered


def _find_shortest_path(graph: ZoneGraph, groups: GroupPath) -> GroupPath:
    """The order of some groups whose longest step is shortest; of more than six groups a greedy one."""
    if len(groups) <= 6:
        return min(permutations(groups), key=lambda path: (*graph.measure_path(path), path))
    return next(_iterate_near_paths(graph, groups, len(groups)))


def _iterate_near_paths(graph: ZoneGraph, groups: GroupPath, length: int) -> Iterator[GroupPath]:
    """Paths of equal length (the last may be shorter), near ones together."""
    distances = graph.group_distance
    remaining = np.array(groups)
    while remaining.size:
        path, remaining = [int(remaining[0])], remaining[1:]
        while remaining.size and len(path) < length:
            nearest = int(np.argmin(distances[path[-1], remaining]))
            path.append(int(remaining[nearest]))
            remaining = np.delete(remaining, nearest)
        yield tuple(path)


@dataclass(frozen=True, kw_only=True)
class Breadth:
    """How many of many similar layouts are tried."""

    replicas: int
    """Numbers of replicas tried along a zone order, the largest ones."""
    splits: int
    """Ways to share out replicas among paths, or stages among the node groups of a path."""
    try_halves: bool = False
    """Also about half as many replicas, a quarter, and so on."""

    def list_replica_counts(self, legal: Sequence[int], single_group: bool) -> list[int]:
        """Numbers of replicas to try of those that are legal, ascending; `single_group`: all in one node group."""
        counts = set(legal[-self.replicas :] if single_group or self == EVERYTHING else legal[-1:])
        target = legal[-1] if legal else 0
        while self.try_halves and target > 1:
            target //= 2
            counts |= {max((d for d in legal if d <= target), default=legal[0])}
        return sorted(counts)


EVERYTHING = Breadth(replicas=1_000_000, splits=1_000)
USUAL = Breadth(replicas=4, splits=1)
WIDE = Breadth(replicas=4, splits=1, try_halves=True)


@dataclass(frozen=True)
class ParallelLayout:
    """Degrees, where their ranks lie, and how ranks are numbered."""

    tp: int
    cp: int
    ep: int
    stage_map: StageMap
    order: Order
    layers: tuple[int, ...] | None = None
    """Layers of each virtual stage in pipeline order; None: spread evenly."""
    uneven: bool = False
    """Replicas of different chains take different numbers of micro-batches, by their speed."""

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.stage_map.stages

    @property
    def dp(self) -> int:
        """Data-parallel replicas."""
        return self.stage_map.replicas

    @cached_property
    def gpus(self) -> int:
        """GPUs in use."""
        return self.tp * self.cp * sum(self.stage_map.cells.values())

    @property
    def stride(self) -> int:
        """Ranks from one replica of a stage to the next, context-parallel ranks counted as replicas."""
        return self.tp if self.order == REPLICAS_NEAR else self.tp * self.pp


@dataclass(frozen=True, kw_only=True)
class DegreeChoices:
    """Degrees to combine, each list in ascending order."""

    tp: tuple[int, ...]
    cp: tuple[int, ...]
    ep: tuple[int, ...]
    pp: tuple[int, ...]
    dp: tuple[int, ...]
    """Numbers of replicas that the batch can be shared out to."""


def iterate_layouts(
    cluster: Cluster,
    graph: ZoneGraph,
    zone_orders: Sequence[ZoneOrder],
    degrees: DegreeChoices,
    breadth: Breadth,
    list_layer_splits: Callable[[StageMap], Sequence[tuple[int, ...] | None]],
    can_hold_tp: Callable[[NodeGroup, int], bool],
    speeds: Sequence[float] | None,
) -> Iterator[ParallelLayout]:
    """Every layout that fits the cluster, as far as the breadth goes.

    `list_layer_splits`: splits of the layers to try; `can_hold_tp`: whether a node group may hold such tensor groups;
    `speeds`: of the GPUs of each node group, where replicas may take different numbers of micro-batches.
    """
    groups = [group for _, group in cluster.zone_groups]
    domain = max(group.local_gpus for group in groups)
    uneven_orders = frozenset(
        r for r in zone_orders if speeds and len({min(speeds[g] for g in path) for path in r}) > 1
    )
    for tp in degrees.tp:
        tp_groups = [count_group_tp_room(group, tp) // tp if can_hold_tp(group, tp) else 0 for group in groups]
        for cp in degrees.cp:
            cells = tuple(n // cp for n in tp_groups)
            # Rank order only matters where two cells can share a fast link; else both orders cost the same.
            shares_fast_link = 2 * tp * cp <= domain
            rank_orders = (REPLICAS_NEAR, STAGES_NEAR) if shares_fast_link else (REPLICAS_NEAR,)
            for pp in degrees.pp:
                for stage_map in _list_stage_maps(
                    cells, tuple(zone_orders), pp, tuple(degrees.dp), breadth, uneven_orders
                ):
                    for ep in degrees.ep:
                        if not _can_hold_experts(graph, stage_map, tp * cp, ep):
                            continue
                        for order in rank_orders if stage_map.replicas > 1 and pp > 1 else rank_orders[:1]:
                            for layers in list_layer_splits(stage_map):
                                if stage_map.replicas in degrees.dp:
                                    yield ParallelLayout(tp, cp, ep, stage_map, order, layers)
                                if (
                                    speeds
                                    and uneven_orders
                                    and len(set(estimate_chain_times(stage_map, layers, speeds))) > 1
                                ):
                                    yield ParallelLayout(tp, cp, ep, stage_map, order, layers, uneven=True)


def estimate_chain_times(
    stage_map: StageMap, layers: tuple[int, ...] | None, speeds: Sequence[float]
) -> tuple[float, ...]:
    """Time of a micro-batch on the slowest stage of each chain, in layers of a GPU of speed 1."""
    stages = stage_map.stages
    layers_held = [sum(layers[stage::stages]) for stage in range(stages)] if layers else [1] * stages
    return tuple(
        round(max(n / speeds[g] for n, g in zip(layers_held, row, strict=True)), 12)
        for row in stage_map.groups.tolist()
    )


def _can_hold_experts(graph: ZoneGraph, stage_map: StageMap, ranks_per_cell: int, ep: int) -> bool:
    """Every group of ranks that shares out experts lies in one zone and divides the replicas."""
    if ep == 1:
        return True
    if (stage_map.replicas * ranks_per_cell) % ep:
        return False
    replicas_per_group = max(1, ep // ranks_per_cell)
    if stage_map.replicas % replicas_per_group:
        return False
    zones = [[graph.zone_of[int(g)] for g in row] for row in stage_map.groups]
    first_replica, last_zones = 0, zones[0]
    for chain, row in zip(stage_map.chains, zones, strict=True):
        if first_replica % replicas_per_group and row != last_zones:
            return False
        first_replica, last_zones = first_replica + chain.replicas, row
    return True


@lru_cache(maxsize=4096)
def _list_stage_maps(
    cells: tuple[int, ...],
    orders: tuple[ZoneOrder, ...],
    pp: int,
    dp: tuple[int, ...],
    breadth: Breadth,
    uneven_orders: frozenset[ZoneOrder],
) -> tuple[StageMap, ...]:
    """Every way to lay `pp` stages and some number of replicas on the node groups' cells.

    `uneven_orders`: those whose replicas may take different numbers of micro-batches: then the number of replicas need
    not divide the batch.
    """
    distinct: dict[StageMap, None] = {}
    for order in orders:
        for stage_map in _iterate_order_maps(cells, order, pp, dp, breadth, order in uneven_orders):
            distinct.setdefault(stage_map)
    for stage_map in _iterate_spilling_maps(cells, orders, pp, dp, breadth):
        distinct.setdefault(stage_map)
    return tuple(distinct)


def _iterate_order_maps(
    cells: tuple[int, ...], order: ZoneOrder, pp: int, dp: tuple[int, ...], breadth: Breadth, uneven: bool
) -> Iterator[StageMap]:
    """Stage maps of one zone order: replicas shared out among its paths, stages among the groups of each path."""
    if any(len(path) > pp for path in order):
        return
    capacities = [_count_max_replicas(cells, path, pp) for path in order]
    if min(capacities) < 1:
        return
    legal = [d for d in dp if len(order) <= d <= sum(capacities)]
    counts = breadth.list_replica_counts(legal, len(order) == len(order[0]) == 1)
    if uneven:
        fewest = len(order) if breadth == EVERYTHING else sum(capacities)
        counts = sorted({*counts, *range(fewest, sum(capacities) + 1)})
    for replicas in counts:
        for shares in list_splits(replicas, capacities, breadth.splits):
            yield from (StageMap(chains) for chains in _iterate_chains(cells, order, pp, shares, breadth))


def _count_max_replicas(cells: tuple[int, ...], path: tuple[int, ...], pp: int) -> int:
    """Replicas of `pp` stages that the groups of a path can hold together, each at least one stage."""
    if len(path) == 1:
        return cells[path[0]] // pp
    high = sum(cells[g] for g in path) // pp
    return next((d for d in range(high, 0, -1) if _count_stage_room(cells, path, d) >= pp), 0)


def _count_stage_room(cells: tuple[int, ...], path: tuple[int, ...], replicas: int) -> int:
    """Stages the groups of a path can hold of each of so many replicas; 0 where one can hold none."""
    stages_by_group = [cells[g] // replicas for g in path]
    return sum(stages_by_group) if min(stages_by_group) >= 1 else 0


def _iterate_chains(
    cells: tuple[int, ...], order: ZoneOrder, pp: int, shares: tuple[int, ...], breadth: Breadth
) -> Iterator[tuple[Chain, ...]]:
    """Chains of so many replicas each, with every (or every near-even) split of their stages."""
    if not order:
        yield ()
        return
    path, replicas = order[0], shares[0]
    capacities = [min(pp, cells[g] // replicas) for g in path]
    for stages in list_splits(pp, capacities, breadth.splits):
        chain = Chain(replicas, tuple(zip(path, stages, strict=True)))
        for later_chains in _iterate_chains(cells, order[1:], pp, shares[1:], breadth):
            yield (chain, *later_chains)


def _iterate_spilling_maps(
    cells: tuple[int, ...], orders: tuple[ZoneOrder, ...], pp: int, dp: tuple[int, ...], breadth: Breadth
) -> Iterator[StageMap]:
    """Whole replicas in each group, and one more through what is left of several."""
    for order in orders:
        if len(order) != 1 or len(order[0]) < 2:
            continue
        path = order[0]
        whole_replicas = {g: cells[g] // pp for g in path}
        spare_cells = [cells[g] - whole_replicas[g] * pp for g in path]
        replicas = sum(whole_replicas.values()) + 1
        if min(spare_cells) < 1 or sum(spare_cells) < pp or not any(whole_replicas.values()) or replicas not in dp:
            continue
        for stages in list_splits(pp, spare_cells, breadth.splits):
            spill = Chain(1, tuple(zip(path, stages, strict=True)))
            yield StageMap((*(Chain(n, ((g, pp),)) for g, n in whole_replicas.items() if n), spill))
