"""Layout: which node group holds which stages of which replicas.

A chain is a number of replicas whose stages lie in the same node groups. One chain in one group crosses nothing;
several chains in several zones put data parallelism across them; a chain through several zones puts the pipeline
across them; chains of both sorts put both.

Routes: which node groups a layout uses, and in which order the pipeline goes through them.

A route is a set of paths; each path is a list of node groups that one chain of replicas goes through. Two paths of one
group each put data parallelism across these groups, one path of two groups the pipeline, and so on. Small clusters:
every route. Others: the best connected or strongest sets of node groups, each in its shortest order (`refine` tries
others). Routes that are the same up to a swap of equal zones are one.

Shapes: degrees with a layout and a rank order, before options are chosen.

shape = Shape(tp=8, cp=1, ep=1, layout=Layout((Chain(4, ((0, 2), (1, 2))),)), order=REPLICAS_NEAR)
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
from crosszone.inputs.placement import Axis, Placement, blocks_of, tp_capacity

Crossing = Literal["none", "dp", "pp", "both"]
Order = tuple[Axis, Axis, Axis, Axis]
REPLICAS_NEAR: Order = ("tp", "cp", "dp", "pp")  # Replicas of a stage are neighbours: Megatron's default
STAGES_NEAR: Order = ("tp", "cp", "pp", "dp")  # Stages of a replica are neighbours


@dataclass(frozen=True)
class Chain:
    """Replicas that lie alike: node group and number of stages, along the pipeline."""

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
        """The way of each chain."""
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

    def crossing(self, zone_of: Sequence[int]) -> Crossing:
        """Which axis crosses zones."""
        along = any(len({zone_of[g] for g, _ in chain.path}) > 1 for chain in self.chains)
        beside = any(len({zone_of[int(g)] for g in stage}) > 1 for stage in self.groups.T)
        if along:
            return "both" if beside else "pp"
        return "dp" if beside else "none"

    def level(self, zone_of: Sequence[int]) -> bool:
        """Every zone in use holds equally many whole replicas."""
        counts: Counter[int] = Counter()
        for chain in self.chains:
            counts[zone_of[chain.path[0][0]]] += chain.replicas
        return len(set(counts.values())) == 1

    def zones(self, zone_of: Sequence[int]) -> tuple[int, ...]:
        """Zones in use, in the order the pipeline or the replicas come to them."""
        return tuple(dict.fromkeys(zone_of[g] for chain in self.chains for g, _ in chain.path))

    def placement(self, cluster: Cluster, tp: int, cp: int, order: Order) -> Placement:
        """The ranks on their GPUs: each cell takes the next GPUs of its node group."""
        cell = tp * cp
        takes = ((group, cells * cell) for group, cells in self._in_rank_order(order))
        return Placement(order=order, blocks=blocks_of(cluster, tp, takes))

    def _in_rank_order(self, order: Order) -> Iterator[tuple[int, int]]:
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


def list_splits(total: int, most: Sequence[int], limit: int) -> list[tuple[int, ...]]:
    """Ways to share out `total`, at least 1 and at most `most` to each: all of them, or at most `limit` even ones.

    Even: in proportion to `most`, and one more or less than that.
    """
    if total < len(most) or total > sum(most):
        return []
    found = list(_all_splits(total, tuple(most), limit))
    if len(found) <= limit:
        return found
    even = _proportional(total, most)
    near = [even]
    for giver in range(len(most)):
        for taker in range(len(most)):
            moved = list(even)
            moved[giver] -= 1
            moved[taker] += 1
            if giver != taker and moved[giver] >= 1 and moved[taker] <= most[taker]:
                near.append(tuple(moved))
    return list(dict.fromkeys(near))[: max(1, limit)]


def _all_splits(total: int, most: tuple[int, ...], limit: int) -> Iterator[tuple[int, ...]]:
    """Every way, but no more than one beyond the limit."""
    if len(most) == 1:
        if 1 <= total <= most[0]:
            yield (total,)
        return
    rest, count = sum(most[1:]), 0
    for first in range(max(1, total - rest), min(most[0], total - len(most) + 1) + 1):
        for others in _all_splits(total - first, most[1:], limit):
            yield (first, *others)
            count += 1
            if count > limit:
                return


def _proportional(total: int, most: Sequence[int]) -> tuple[int, ...]:
    """Shares in proportion to `most`, at least 1, by largest remainder."""
    whole = sum(most)
    exact = [total * one / whole for one in most]
    share = [max(1, min(one, int(x))) for one, x in zip(most, exact, strict=True)]
    while sum(share) > total:
        at = max(range(len(share)), key=lambda i: (share[i] > 1, share[i] - exact[i]))
        share[at] -= 1
    while sum(share) < total:
        at = max(range(len(share)), key=lambda i: (share[i] < most[i], exact[i] - share[i]))
        share[at] += 1
    return tuple(share)


GroupPath = tuple[int, ...]
ZoneOrder = tuple[GroupPath, ...]

EVERY_GROUPS, EVERY_GPUS = 4, 16  # Node groups and GPUs up to which every route is taken
SETS = 3  # Node groups up to which every set of them is taken, in its best order
BEST = 2  # Of more node groups: sets of each size that are taken
# Node groups up to which sets and paths of each size are tried; among more, of sizes about a third apart.
EVERY_SIZE = 16
MOST_SWAPS = 6  # Zones up to which equal ones are looked for


@dataclass(frozen=True, kw_only=True)
class ZoneGraph:
    """What routes are chosen on: the zone of each node group, and how far zones lie from each other."""

    zone_of: tuple[int, ...]
    power: tuple[float, ...]
    """Peak of each node group, all its GPUs."""
    distance: npt.NDArray[np.float64]
    """[zones, zones] Seconds for a message of 1e9 bytes from one to the other."""
    every: bool
    swaps: tuple[tuple[int, ...], ...]
    """Renumberings of the node groups that change nothing."""

    @property
    def groups(self) -> range:
        """Numbers of the node groups."""
        return range(len(self.zone_of))

    @cached_property
    def apart(self) -> npt.NDArray[np.float64]:
        """[groups, groups] Distances of node groups, the slower direction."""
        return np.maximum(self.distance, self.distance.T)[np.ix_(self.zone_of, self.zone_of)]

    def between(self, a: int, b: int) -> float:
        """Distance of two node groups, the slower direction."""
        x, y = self.zone_of[a], self.zone_of[b]
        return float(max(self.distance[x, y], self.distance[y, x]))

    def length(self, path: GroupPath) -> tuple[float, float]:
        """Longest step of a path, and all of it."""
        steps = [self.between(a, b) for a, b in pairwise(path)]
        return max(steps, default=0.0), sum(steps)

    def spread(self, groups: GroupPath) -> float:
        """Distance of the two node groups farthest apart."""
        return max((self.between(a, b) for a, b in combinations(groups, 2)), default=0.0)


def build_zone_graph(cluster: Cluster, links: Mapping[tuple[int, int], ZoneLink], path: str) -> ZoneGraph:
    """The ground of a cluster for a compute precision."""
    zones = [z for z, zone in enumerate(cluster.zones) for _ in zone.nodes]
    peaks = [group.total_gpus * (group.gpu.peak(path) or 0.0) for _, group in cluster.groups()]
    size = len(cluster.zones)
    distance = np.zeros((size, size))
    for (a, b), link in links.items():
        late = link.rtt_ms.expected * 1e-3
        distance[a, b] = late + 8.0 / link.gbps
        distance[b, a] = late + 8.0 / link.gbps_back
    return ZoneGraph(
        zone_of=tuple(zones),
        power=tuple(peaks),
        distance=distance,
        every=len(zones) <= EVERY_GROUPS and cluster.gpus <= EVERY_GPUS,
        swaps=tuple(_swaps(cluster, links, zones)),
    )


def _swaps(
    cluster: Cluster, links: Mapping[tuple[int, int], ZoneLink], zone_of: list[int]
) -> Iterator[tuple[int, ...]]:
    """Renumberings of zones that keep node groups, uplinks, prices and links, as renumberings of node groups."""
    size = len(cluster.zones)
    if not 1 < size <= MOST_SWAPS:
        return

    def own(zone: int) -> object:
        z = cluster.zones[zone]
        return (
            z.nodes,
            z.uplink_gbps,
            z.downlink_gbps,
            z.carbon_g_per_kwh,
            z.pue,
            z.region and z.region.carbon_g_per_kwh,
        )

    def link(a: int, b: int) -> tuple[object, ...]:
        x = links[min(a, b), max(a, b)]
        forth, back = (x.gbps, x.usd_per_gb), (x.gbps_back, x.usd_per_gb_back)
        return (x.rtt_ms, x.jitter_ms, x.loss_pct, x.flow_gbps, *((forth, back) if a < b else (back, forth)))

    owns = [own(zone) for zone in range(size)]
    known = {(a, b): link(a, b) for a in range(size) for b in range(size) if a != b}
    start = [zone_of.index(zone) for zone in range(size)]
    for order in permutations(range(size)):
        if order == tuple(range(size)) or any(owns[a] != owns[b] for a, b in enumerate(order)):
            continue
        if all(known[a, b] == known[order[a], order[b]] for a, b in known):
            yield tuple(start[order[zone]] + g - start[zone] for g, zone in enumerate(zone_of))


def list_zone_orders(ground: ZoneGraph) -> list[ZoneOrder]:
    """The routes worth trying, each once."""
    found: dict[ZoneOrder, None] = {}
    for route in _every(ground) if ground.every else _best(ground):
        same = [tuple(sorted(tuple(swap[g] for g in path) for path in route)) for swap in ground.swaps]
        found.setdefault(min([tuple(sorted(route)), *same]))
    return list(found)


def _every(ground: ZoneGraph) -> Iterator[ZoneOrder]:
    """All sets of paths over all sets of node groups."""
    for size in range(1, len(ground.groups) + 1):
        for some in combinations(ground.groups, size):
            for parts in _partitions(some):
                yield from _orders(parts)


def _partitions(items: GroupPath) -> Iterator[list[GroupPath]]:
    """All ways to put items into sets."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            left = tuple(x for x in rest if x not in others)
            for parts in _partitions(left):
                yield [(first, *others), *parts]


def _orders(parts: list[GroupPath]) -> Iterator[ZoneOrder]:
    """All orders inside each set."""
    if not parts:
        yield ()
        return
    for path in permutations(parts[0]):
        for others in _orders(parts[1:]):
            yield (path, *others)


def _best(ground: ZoneGraph) -> Iterator[ZoneOrder]:
    """Best connected or strongest sets of each size: side by side, as one path, and in equal paths."""
    gathered = _gathered(ground) if len(ground.groups) > 12 else []
    for size in _sizes(1, len(ground.groups)):
        sets = [tuple(sorted(gathered[:size]))] if gathered else list(combinations(ground.groups, size))
        if len(ground.groups) > SETS and not gathered:
            near = sorted(sets, key=lambda s: (ground.spread(s), -sum(ground.power[g] for g in s), s))[:BEST]
            strong = sorted(sets, key=lambda s: (-sum(ground.power[g] for g in s), ground.spread(s), s))[:BEST]
            sets = list(dict.fromkeys([*near, *strong]))
        for some in sets:
            yield tuple((g,) for g in some)
            if size > 1:
                yield (_shortest(ground, some),)
            for length in _sizes(2, size - 1):
                yield tuple(_cut(ground, some, length))


def _sizes(least: int, most: int) -> list[int]:
    """Sizes to try: all of few, of many some that grow by about a third, and the largest."""
    sizes = list(range(least, min(most, EVERY_SIZE) + 1))
    while sizes and sizes[-1] < most:
        sizes.append(min(most, sizes[-1] * 4 // 3))
    return sizes


def _gathered(ground: ZoneGraph) -> list[int]:
    """Node groups one by one, the strongest first, then always the nearest to all before it."""
    apart = ground.apart
    some = [max(ground.groups, key=lambda g: ground.power[g])]
    farthest = apart[some[0]].copy()
    left = set(ground.groups) - set(some)
    while left:
        some.append(min(sorted(left), key=lambda g: (farthest[g], -ground.power[g])))
        left.remove(some[-1])
        farthest = np.maximum(farthest, apart[some[-1]])
    return some


def _shortest(ground: ZoneGraph, some: GroupPath) -> GroupPath:
    """The order whose longest step is shortest."""
    if len(some) <= 6:
        return min(permutations(some), key=lambda path: (*ground.length(path), path))
    return next(_cut(ground, some, len(some)))


def _cut(ground: ZoneGraph, some: GroupPath, length: int) -> Iterator[GroupPath]:
    """Paths of equal length (the last may be shorter), near ones together."""
    apart = ground.apart
    left = np.array(some)
    while left.size:
        path, left = [int(left[0])], left[1:]
        while left.size and len(path) < length:
            nearest = int(np.argmin(apart[path[-1], left]))
            path.append(int(left[nearest]))
            left = np.delete(left, nearest)
        yield tuple(path)


@dataclass(frozen=True, kw_only=True)
class Breadth:
    """How many of many like shapes are tried."""

    replicas: int
    """Numbers of replicas of a route, the largest ones."""
    splits: int
    """Ways to share out replicas among paths, or stages among the node groups of a path."""
    halves: bool = False
    """Also about half as many replicas, a quarter, and so on."""

    def numbers(self, legal: Sequence[int], single: bool) -> list[int]:
        """Numbers of replicas to try of those that are legal, ascending; `single`: in one node group only."""
        kept = set(legal[-self.replicas :] if single or self == EVERYTHING else legal[-1:])
        most = legal[-1] if legal else 0
        while self.halves and most > 1:
            most //= 2
            kept |= {max((d for d in legal if d <= most), default=legal[0])}
        return sorted(kept)


EVERYTHING = Breadth(replicas=1_000_000, splits=1_000)
USUAL = Breadth(replicas=4, splits=1)
WIDE = Breadth(replicas=4, splits=1, halves=True)


@dataclass(frozen=True)
class ParallelLayout:
    """Degrees, where their ranks lie, and how ranks are numbered."""

    tp: int
    cp: int
    ep: int
    layout: StageMap
    order: Order
    layers: tuple[int, ...] | None = None
    """Layers of each stage and chunk in pipeline order; None: dealt out evenly."""
    uneven: bool = False
    """Replicas of different chains take different numbers of micro-batches, by their speed."""

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.layout.stages

    @property
    def dp(self) -> int:
        """Data-parallel replicas."""
        return self.layout.replicas

    @cached_property
    def gpus(self) -> int:
        """GPUs in use."""
        return self.tp * self.cp * sum(self.layout.cells.values())

    @property
    def stride(self) -> int:
        """Ranks from one replica of a stage to the next, context-parallel ranks counted as replicas."""
        return self.tp if self.order == REPLICAS_NEAR else self.tp * self.pp


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Degrees to combine, each list in ascending order."""

    tp: tuple[int, ...]
    cp: tuple[int, ...]
    ep: tuple[int, ...]
    pp: tuple[int, ...]
    dp: tuple[int, ...]
    """Numbers of replicas that the batch can be shared out to."""


def iterate_layouts(
    cluster: Cluster,
    ground: ZoneGraph,
    routes: Sequence[ZoneOrder],
    degrees: Degrees,
    breadth: Breadth,
    layers_of: Callable[[StageMap], Sequence[tuple[int, ...] | None]],
    inside: Callable[[NodeGroup, int], bool],
    speeds: Sequence[float] | None,
) -> Iterator[ParallelLayout]:
    """Every shape that fits the cluster, as far as the breadth goes.

    `layers_of`: splits of the layers to try; `inside`: whether a node group may hold tensor-parallel groups so large;
    `speeds`: of the GPUs of each node group, where replicas may take different numbers of micro-batches.
    """
    groups = [group for _, group in cluster.groups()]
    domain = max(group.local_gpus for group in groups)
    unlike = frozenset(r for r in routes if speeds and len({min(speeds[g] for g in path) for path in r}) > 1)
    for tp in degrees.tp:
        room = [tp_capacity(group, tp) // tp if inside(group, tp) else 0 for group in groups]
        for cp in degrees.cp:
            cells = tuple(n // cp for n in room)
            near = 2 * tp * cp <= domain  # else no two cells share a fast link, whatever their order
            orders = (REPLICAS_NEAR, STAGES_NEAR) if near else (REPLICAS_NEAR,)
            for pp in degrees.pp:
                for layout in _layouts(cells, tuple(routes), pp, tuple(degrees.dp), breadth, unlike):
                    for ep in degrees.ep:
                        if not _experts_inside(ground, layout, tp * cp, ep):
                            continue
                        for order in orders if layout.replicas > 1 and pp > 1 else orders[:1]:
                            for layers in layers_of(layout):
                                if layout.replicas in degrees.dp:
                                    yield ParallelLayout(tp, cp, ep, layout, order, layers)
                                if speeds and unlike and len(set(estimate_chain_times(layout, layers, speeds))) > 1:
                                    yield ParallelLayout(tp, cp, ep, layout, order, layers, uneven=True)


def estimate_chain_times(
    layout: StageMap, layers: tuple[int, ...] | None, speeds: Sequence[float]
) -> tuple[float, ...]:
    """Time of a micro-batch on the slowest stage of each chain, in layers of a GPU of speed 1."""
    stages = layout.stages
    held = [sum(layers[stage::stages]) for stage in range(stages)] if layers else [1] * stages
    return tuple(
        round(max(n / speeds[g] for n, g in zip(held, row, strict=True)), 12) for row in layout.groups.tolist()
    )


def _experts_inside(ground: ZoneGraph, layout: StageMap, cell: int, ep: int) -> bool:
    """Every group of ranks that shares out experts lies in one zone and divides the replicas."""
    if ep == 1:
        return True
    if (layout.replicas * cell) % ep:
        return False
    inner = max(1, ep // cell)
    if layout.replicas % inner:
        return False
    zones = [[ground.zone_of[int(g)] for g in row] for row in layout.groups]
    start, last = 0, zones[0]
    for chain, row in zip(layout.chains, zones, strict=True):
        if start % inner and row != last:
            return False
        start, last = start + chain.replicas, row
    return True


@lru_cache(maxsize=4096)
def _layouts(
    cells: tuple[int, ...],
    routes: tuple[ZoneOrder, ...],
    pp: int,
    dp: tuple[int, ...],
    breadth: Breadth,
    unlike: frozenset[ZoneOrder],
) -> tuple[StageMap, ...]:
    """Every way to lay `pp` stages and some number of replicas on the node groups' cells.

    `unlike`: routes whose replicas may take different numbers of micro-batches, so that any number of them may do.
    """
    found: dict[StageMap, None] = {}
    for route in routes:
        for layout in _along(cells, route, pp, dp, breadth, route in unlike):
            found.setdefault(layout)
    for layout in _spilling(cells, routes, pp, dp, breadth):
        found.setdefault(layout)
    return tuple(found)


def _along(
    cells: tuple[int, ...], route: ZoneOrder, pp: int, dp: tuple[int, ...], breadth: Breadth, unlike: bool
) -> Iterator[StageMap]:
    """Layouts of one route: replicas shared out among its paths, stages among the groups of each path."""
    if any(len(path) > pp for path in route):
        return
    most = [_most_replicas(cells, path, pp) for path in route]
    if min(most) < 1:
        return
    legal = [d for d in dp if len(route) <= d <= sum(most)]
    numbers = breadth.numbers(legal, len(route) == len(route[0]) == 1)
    if unlike:
        least = len(route) if breadth == EVERYTHING else sum(most)
        numbers = sorted({*numbers, *range(least, sum(most) + 1)})
    for replicas in numbers:
        for shares in list_splits(replicas, most, breadth.splits):
            yield from (StageMap(chains) for chains in _chains(cells, route, pp, shares, breadth))


def _most_replicas(cells: tuple[int, ...], path: tuple[int, ...], pp: int) -> int:
    """Replicas of `pp` stages that the groups of a path can hold together, each at least one stage."""
    if len(path) == 1:
        return cells[path[0]] // pp
    high = sum(cells[g] for g in path) // pp
    return next((d for d in range(high, 0, -1) if _room(cells, path, d) >= pp), 0)


def _room(cells: tuple[int, ...], path: tuple[int, ...], replicas: int) -> int:
    """Stages the groups of a path can hold of each of so many replicas; 0 where one can hold none."""
    each = [cells[g] // replicas for g in path]
    return sum(each) if min(each) >= 1 else 0


def _chains(
    cells: tuple[int, ...], route: ZoneOrder, pp: int, shares: tuple[int, ...], breadth: Breadth
) -> Iterator[tuple[Chain, ...]]:
    """Chains of so many replicas each, with every (or every near-even) split of their stages."""
    if not route:
        yield ()
        return
    path, replicas = route[0], shares[0]
    most = [min(pp, cells[g] // replicas) for g in path]
    for stages in list_splits(pp, most, breadth.splits):
        chain = Chain(replicas, tuple(zip(path, stages, strict=True)))
        for others in _chains(cells, route[1:], pp, shares[1:], breadth):
            yield (chain, *others)


def _spilling(
    cells: tuple[int, ...], routes: tuple[ZoneOrder, ...], pp: int, dp: tuple[int, ...], breadth: Breadth
) -> Iterator[StageMap]:
    """Whole replicas in each group, and one more through what is left of several."""
    for route in routes:
        if len(route) != 1 or len(route[0]) < 2:
            continue
        path = route[0]
        whole = {g: cells[g] // pp for g in path}
        left = [cells[g] - whole[g] * pp for g in path]
        replicas = sum(whole.values()) + 1
        if min(left) < 1 or sum(left) < pp or not any(whole.values()) or replicas not in dp:
            continue
        for stages in list_splits(pp, left, breadth.splits):
            spill = Chain(1, tuple(zip(path, stages, strict=True)))
            yield StageMap((*(Chain(n, ((g, pp),)) for g, n in whole.items() if n), spill))
