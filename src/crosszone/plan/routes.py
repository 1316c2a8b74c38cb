"""Routes: which node groups a layout uses, and in which order the pipeline goes through them.

A route is a set of paths; each path is a list of node groups that one chain of replicas goes through. Two paths of one
group each put data parallelism across these groups, one path of two groups the pipeline, and so on. Small clusters:
every route. Others: the best connected or strongest sets of node groups, each in its shortest order (`refine` tries
others). Routes that are the same up to a swap of equal zones are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise, permutations

import numpy as np
import numpy.typing as npt

from crosszone.inputs.cluster import Cluster
from crosszone.inputs.links import ZoneLink

Path = tuple[int, ...]
Route = tuple[Path, ...]

EVERY_GROUPS, EVERY_GPUS = 4, 16
"""Node groups and GPUs up to which every route is taken."""
SETS = 3
"""Node groups up to which every set of them is taken, in its best order."""
BEST = 2
"""Of more node groups: sets of each size that are taken."""
EVERY_SIZE = 16
"""Node groups up to which sets and paths of each size are tried; among more, of sizes about a third apart."""
MOST_SWAPS = 6
"""Zones up to which equal ones are looked for."""


@dataclass(frozen=True, kw_only=True)
class Ground:
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

    def length(self, path: Path) -> tuple[float, float]:
        """Longest step of a path, and all of it."""
        steps = [self.between(a, b) for a, b in pairwise(path)]
        return max(steps, default=0.0), sum(steps)

    def spread(self, groups: Path) -> float:
        """Distance of the two node groups farthest apart."""
        return max((self.between(a, b) for a, b in combinations(groups, 2)), default=0.0)


def ground_of(cluster: Cluster, links: Mapping[tuple[int, int], ZoneLink], path: str) -> Ground:
    """The ground of a cluster for a compute precision."""
    zones = [z for z, zone in enumerate(cluster.zones) for _ in zone.nodes]
    peaks = [group.total_gpus * (group.gpu.peak(path) or 0.0) for _, group in cluster.groups()]
    size = len(cluster.zones)
    distance = np.zeros((size, size))
    for (a, b), link in links.items():
        late = link.rtt_ms.expected * 1e-3
        distance[a, b] = late + 8.0 / link.gbps
        distance[b, a] = late + 8.0 / link.gbps_back
    return Ground(
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


def routes(ground: Ground) -> list[Route]:
    """The routes worth trying, each once."""
    found: dict[Route, None] = {}
    for route in _every(ground) if ground.every else _best(ground):
        same = [tuple(sorted(tuple(swap[g] for g in path) for path in route)) for swap in ground.swaps]
        found.setdefault(min([tuple(sorted(route)), *same]))
    return list(found)


def _every(ground: Ground) -> Iterator[Route]:
    """All sets of paths over all sets of node groups."""
    for size in range(1, len(ground.groups) + 1):
        for some in combinations(ground.groups, size):
            for parts in _partitions(some):
                yield from _orders(parts)


def _partitions(items: Path) -> Iterator[list[Path]]:
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


def _orders(parts: list[Path]) -> Iterator[Route]:
    """All orders inside each set."""
    if not parts:
        yield ()
        return
    for path in permutations(parts[0]):
        for others in _orders(parts[1:]):
            yield (path, *others)


def _best(ground: Ground) -> Iterator[Route]:
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


def _gathered(ground: Ground) -> list[int]:
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


def _shortest(ground: Ground, some: Path) -> Path:
    """The order whose longest step is shortest."""
    if len(some) <= 6:
        return min(permutations(some), key=lambda path: (*ground.length(path), path))
    return next(_cut(ground, some, len(some)))


def _cut(ground: Ground, some: Path, length: int) -> Iterator[Path]:
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
