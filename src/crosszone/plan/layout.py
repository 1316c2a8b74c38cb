"""Layout: which node group holds which stages of which replicas.

A chain is a number of replicas whose stages lie in the same node groups. One chain in one group crosses nothing;
several chains in several zones put data parallelism across them; a chain through several zones puts the pipeline
across them; chains of both sorts put both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from crosszone.inputs.cluster import Cluster
from crosszone.inputs.placement import Axis, Placement, blocks_of

Crossing = Literal["none", "dp", "pp", "both"]
Order = tuple[Axis, Axis, Axis, Axis]
REPLICAS_NEAR: Order = ("tp", "cp", "dp", "pp")
"""Replicas of a stage are neighbours: Megatron's default."""
STAGES_NEAR: Order = ("tp", "cp", "pp", "dp")
"""Stages of a replica are neighbours."""


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
class Layout:
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


def splits(total: int, most: Sequence[int], limit: int) -> list[tuple[int, ...]]:
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
