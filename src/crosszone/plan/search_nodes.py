"""Cores: shape, pipe and micro-batch of every strategy, and the tracks they run on, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone.plan.layout_table import EVEN_SHARES, EqualStageRuns, LayoutTable, MicroBatchShares, ScheduleChoice

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
CHUNK = 4096  # Strategies that are scored together: their columns stay in the processor's cache
WIDTHS = (1, 2, 3, 4, 6, 9, 14, 20, 30, 45, 70, 105, 160)  # Numbers of runs that tracks are filled up to
# Strategies that are scored apart from wider ones: a call for fewer takes longer than runs that are not there.
ENOUGH = 512
PADDING_START = 1e9  # Where runs begin that are not there


class PaddedStages(NamedTuple):
    """Tracks of one width, stacked: arrays [tracks, runs]; runs that are not there have no layers."""

    mixed: bool
    """Some track has runs on different GPUs."""
    counts: Floats
    sparse: Floats
    """Of these layers, those with experts."""
    repeats: Floats
    starts: Floats
    team: Ints
    limit: Floats
    """Memory of the GPU, bytes."""
    host: Floats
    """Memory of its node for each GPU, bytes; inf: not known."""
    rate: Floats
    back: Floats
    latency: Floats
    dp_zones: Floats
    slowest: Floats
    """Rate over the slowest link of all, [tracks, 1], where those after runs are not given."""


# Of runs that are not there; other columns go on as they are: what wraps comes from the last run.
PADDING = {"counts": 0.0, "sparse": 0.0, "repeats": 1.0, "starts": PADDING_START}


@dataclass(frozen=True, kw_only=True)
class NodeBlock:
    """Shapes that may run under a pipe, and their micro-batches: one entry a core."""

    pipe: ScheduleChoice
    layouts: Ints
    layout: Ints
    micro_batch: Ints
    micro_batches: Ints
    dealt: Ints


@dataclass(frozen=True, kw_only=True)
class SearchNodes:
    """Shape, pipe and micro-batch of every core, and what follows from them: arrays [cores]."""

    layout: Ints
    pipe: Ints
    lane: Ints
    """Its first track among those of its width."""
    width: Ints
    """Of its tracks, in runs."""
    chains: Ints
    traits: Ints
    micro_batch: Ints
    micro_batches: Ints
    """Of a replica, the most of any."""
    dealt: Ints
    """How chains share them out (`Land.deals`); `EVEN`: equally."""

    def __len__(self) -> int:
        return len(self.layout)

    def taken(self, at: Ints) -> SearchNodes:
        """Some of them."""
        return SearchNodes(**{f.name: getattr(self, f.name)[at] for f in fields(self)})


# Shapes of one frame and pipe, with the runs they have in common, one after the other.
Members = list[tuple[Ints, EqualStageRuns, ScheduleChoice]]


def build_nodes(
    land: LayoutTable, blocks: Sequence[NodeBlock], traits: Ints, memory_bytes: Sequence[tuple[float, float]]
) -> tuple[dict[int, PaddedStages], SearchNodes, Ints, dict[int, Members]]:
    """Tracks by their width, the cores that run on them, every kind of layer there is, and whose tracks they are.

    A kind of layer: tp, cp, ep, nodes in use and node group.
    """
    by_width: dict[int, Members] = {}
    filled: dict[int, int] = {}
    cores = []
    for number, block in enumerate(blocks):
        where = np.zeros((2, len(land.layouts)), dtype=np.int64)  # first track and width of each shape
        for here, runs in land.group_equal_stages(block.layouts, block.pipe):
            chains = runs.groups.shape[0]
            width = next((one for one in WIDTHS if one >= len(runs)), len(runs))
            start = filled.get(width, 0)
            where[0, here], where[1, here] = start + chains * np.arange(len(here)), width
            filled[width] = start + chains * len(here)
            by_width.setdefault(width, []).append((here, runs, block.pipe))
        shape, size = block.layout, block.micro_batch
        cores.append((shape, np.full(len(shape), number), *where[:, shape], size, block.micro_batches, block.dealt))
    shape, pipe, lane, width_of, size, count, dealt = (np.concatenate(column) for column in zip(*cores, strict=True))
    found = SearchNodes(
        layout=shape,
        pipe=pipe,
        lane=lane,
        width=width_of,
        chains=land.chains[shape],
        traits=traits[shape],
        micro_batch=size,
        micro_batches=count,
        dealt=dealt,
    )
    teams = np.stack([land.tp, land.cp, land.ep, land.nodes_used], axis=1)
    used = np.unique(np.concatenate([here for members in by_width.values() for here, _, _ in members]))
    kinds, which = np.unique(teams[used], axis=0, return_inverse=True)
    kind = np.zeros(len(land.layouts), dtype=np.int64)
    kind[used] = which.ravel()
    memory, groups = np.array(memory_bytes), len(memory_bytes)
    lanes = {width: _stacked(land, members, kind * groups, memory, width) for width, members in by_width.items()}
    codes = np.unique(np.concatenate([one.team.ravel() for one in lanes.values()]))
    kinds_used = np.concatenate([kinds[codes // groups], (codes % groups)[:, None]], axis=1)
    numbered = {n: one._replace(team=np.searchsorted(codes, one.team)) for n, one in lanes.items()}
    return numbered, found, kinds_used, by_width


def _stacked(land: LayoutTable, members: Members, kind: Ints, memory: Floats, width: int) -> PaddedStages:
    """Tracks of one width, shape after shape and chain after chain; runs that are not there have no layers."""
    count = sum(len(here) * runs.groups.shape[0] for here, runs, _ in members)

    def empty(value: float) -> Floats:
        return np.full((count, width), value)

    counts, sparse, repeats, starts, dp_zones = (empty(x) for x in (0.0, 0.0, 1.0, PADDING_START, 1.0))
    groups, kinds = np.zeros((count, width), dtype=np.int64), np.zeros(count, dtype=np.int64)
    start = 0
    for here, runs, _ in members:
        n, c = len(here), runs.groups.shape[0]
        rows, real = slice(start, start + n * c), slice(len(runs))
        counts[rows, real], sparse[rows, real], repeats[rows, real] = runs.counts, runs.sparse, runs.repeats
        starts[rows, real], dp_zones[rows, real] = runs.starts, runs.dp_zones
        kinds[rows] = np.repeat(kind[here], c)
        groups[rows, real] = np.tile(runs.groups, (n, 1))
        for table in (groups, dp_zones):
            table[rows, len(runs) :] = table[rows, len(runs) - 1 : len(runs)]
        start += n * c
    team = kinds[:, None] + groups
    mixed = bool((groups != groups[:, :1]).any())
    limit, host = memory[groups, 0], memory[groups, 1]
    rate, back, late, slowest = _tied(land, members, width)
    return PaddedStages(mixed, counts, sparse, repeats, starts, team, limit, host, rate, back, late, dp_zones, slowest)


def _tied(land: LayoutTable, members: Members, width: int) -> tuple[Floats, Floats, Floats, Floats]:
    """The columns of `Lanes` that links make: rate, back, latency and slowest."""
    count = sum(len(here) * runs.groups.shape[0] for here, runs, _ in members)
    rate, back, late = (np.full((count, width), value) for value in (np.inf, np.inf, 0.0))
    slowest, start = np.full((count, 1), np.inf), 0
    for here, runs, pipe in members:
        n, c = len(here), runs.groups.shape[0]
        rows, real = slice(start, start + n * c), slice(len(runs))
        start += n * c
        links = land.find_links(here, pipe)
        if links is not None and runs.is_merged:
            slowest[rows] = np.minimum(*links[:2]).reshape(n * c, 1)
        elif links is not None:
            for table, values in zip((rate, back, late), links, strict=True):
                table[rows, real] = values.reshape(n * c, -1)
                table[rows, len(runs) :] = table[rows, len(runs) - 1 : len(runs)]
    return rate, back, late, slowest


def replace_links(
    lanes: dict[int, PaddedStages], members: dict[int, Members], land: LayoutTable
) -> dict[int, PaddedStages]:
    """The same tracks with the links of a land."""
    found = dict(lanes)
    for width, own in members.items():
        if any(runs.boundaries for _, runs, _ in own):
            rate, back, late, slowest = _tied(land, own, width)
            found[width] = lanes[width]._replace(rate=rate, back=back, latency=late, slowest=slowest)
    return found


def split_into_batches(cores: SearchNodes) -> list[Ints]:
    """Rows of cores that are scored together: of like width, and so few that they fit in the cache."""
    order = np.argsort(cores.width, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(cores.width[order])) + 1, len(order))
    found, start = [], 0
    for end in ends.tolist():
        if end - start < ENOUGH and end < len(order):
            continue
        found += [order[at : min(at + CHUNK, end)] for at in range(start, end, CHUNK)]
        start = end
    return found


class StageTable:
    """The tracks of some cores, column by column."""

    def __init__(self, lanes: dict[int, PaddedStages], cores: SearchNodes, deals: MicroBatchShares):
        self._cores, self._whole = cores, bool((cores.chains == 1).all())
        self.owner = np.arange(len(cores)) if self._whole else np.repeat(np.arange(len(cores)), cores.chains)
        """Place of the core of each track."""
        first = np.cumsum(cores.chains) - cores.chains
        chain = np.arange(len(self.owner)) - first[self.owner]
        track = cores.lane[self.owner] + chain
        self.cores = cores if self._whole else cores.taken(self.owner)
        """The core of each track, with its own micro-batches."""
        uneven = np.flatnonzero(self.cores.dealt != EVEN_SHARES)
        if len(uneven):
            own = self.cores.micro_batches.copy()
            own[uneven] = deals.list_chain_shares(self.cores.dealt[uneven], chain[uneven])
            self.cores = replace(self.cores, micro_batches=own)
        widths = np.unique(cores.width).tolist()
        self.width = max(widths)
        runs = cores.width[self.owner] if len(widths) > 1 else None
        rows = [slice(None) if runs is None else np.flatnonzero(runs == width) for width in widths]
        self._from = [(lanes[width], track[at], at) for width, at in zip(widths, rows, strict=True)]
        self.mixed = any(one.mixed for one, _, _ in self._from)

    def __call__(self, name: str) -> Any:
        """A column of `Lanes` of every track, as wide as the widest."""
        if len(self._from) == 1:
            one, track, _ = self._from[0]
            return getattr(one, name)[track]
        width = 1 if name == "slowest" else self.width
        found = np.empty((len(self.owner), width), dtype=getattr(self._from[0][0], name).dtype)
        for one, track, rows in self._from:
            values = getattr(one, name)[track]
            found[rows, : values.shape[1]] = values
            found[rows, values.shape[1] :] = PADDING.get(name, values[:, -1:])
        return found

    def worst(self, values: Floats) -> Floats:
        """The largest of each core's tracks."""
        if self._whole:
            return values
        return np.asarray(np.maximum.reduceat(values, np.cumsum(self._cores.chains) - self._cores.chains))
