"""Shapes: degrees with a layout and a rank order, before options are chosen.

shape = Shape(tp=8, cp=1, ep=1, layout=Layout((Chain(4, ((0, 2), (1, 2))),)), order=REPLICAS_NEAR)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.placement import tp_capacity
from crosszone.plan.layout import REPLICAS_NEAR, STAGES_NEAR, Chain, Layout, Order, splits
from crosszone.plan.routes import Ground, Route


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
class Shape:
    """Degrees, where their ranks lie, and how ranks are numbered."""

    tp: int
    cp: int
    ep: int
    layout: Layout
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


def shapes(
    cluster: Cluster,
    ground: Ground,
    routes: Sequence[Route],
    degrees: Degrees,
    breadth: Breadth,
    layers_of: Callable[[Layout], Sequence[tuple[int, ...] | None]],
    inside: Callable[[NodeGroup, int], bool],
    speeds: Sequence[float] | None,
) -> Iterator[Shape]:
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
                                    yield Shape(tp, cp, ep, layout, order, layers)
                                if speeds and unlike and len(set(chain_times(layout, layers, speeds))) > 1:
                                    yield Shape(tp, cp, ep, layout, order, layers, uneven=True)


def chain_times(layout: Layout, layers: tuple[int, ...] | None, speeds: Sequence[float]) -> tuple[float, ...]:
    """Time of a micro-batch on the slowest stage of each chain, in layers of a GPU of speed 1."""
    stages = layout.stages
    held = [sum(layers[stage::stages]) for stage in range(stages)] if layers else [1] * stages
    return tuple(
        round(max(n / speeds[g] for n, g in zip(held, row, strict=True)), 12) for row in layout.groups.tolist()
    )


def _experts_inside(ground: Ground, layout: Layout, cell: int, ep: int) -> bool:
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
    routes: tuple[Route, ...],
    pp: int,
    dp: tuple[int, ...],
    breadth: Breadth,
    unlike: frozenset[Route],
) -> tuple[Layout, ...]:
    """Every way to lay `pp` stages and some number of replicas on the node groups' cells.

    `unlike`: routes whose replicas may take different numbers of micro-batches, so that any number of them may do.
    """
    found: dict[Layout, None] = {}
    for route in routes:
        for layout in _along(cells, route, pp, dp, breadth, route in unlike):
            found.setdefault(layout)
    for layout in _spilling(cells, routes, pp, dp, breadth):
        found.setdefault(layout)
    return tuple(found)


def _along(
    cells: tuple[int, ...], route: Route, pp: int, dp: tuple[int, ...], breadth: Breadth, unlike: bool
) -> Iterator[Layout]:
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
        for shares in splits(replicas, most, breadth.splits):
            yield from (Layout(chains) for chains in _chains(cells, route, pp, shares, breadth))


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
    cells: tuple[int, ...], route: Route, pp: int, shares: tuple[int, ...], breadth: Breadth
) -> Iterator[tuple[Chain, ...]]:
    """Chains of so many replicas each, with every (or every near-even) split of their stages."""
    if not route:
        yield ()
        return
    path, replicas = route[0], shares[0]
    most = [min(pp, cells[g] // replicas) for g in path]
    for stages in splits(pp, most, breadth.splits):
        chain = Chain(replicas, tuple(zip(path, stages, strict=True)))
        for others in _chains(cells, route[1:], pp, shares[1:], breadth):
            yield (chain, *others)


def _spilling(
    cells: tuple[int, ...], routes: tuple[Route, ...], pp: int, dp: tuple[int, ...], breadth: Breadth
) -> Iterator[Layout]:
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
        for stages in splits(pp, left, breadth.splits):
            spill = Chain(1, tuple(zip(path, stages, strict=True)))
            yield Layout((*(Chain(n, ((g, pp),)) for g, n in whole.items() if n), spill))
