"""Cores: shape, pipe and micro-batch of every strategy, and the tracks they run on, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone.plan.land import Land
from crosszone.plan.tracks import Pipe, Runs

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
CHUNK = 4096
"""Strategies that are scored together: their columns stay in the processor's cache."""


class Lanes(NamedTuple):
    """Tracks of one number of runs, stacked: arrays [tracks, runs]."""

    mixed: bool
    """Some track has runs on different GPUs."""
    counts: Floats
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


@dataclass(frozen=True, kw_only=True)
class Block:
    """Shapes that may run under a pipe, and their micro-batches: one entry a core."""

    pipe: Pipe
    shapes: Ints
    shape: Ints
    micro_batch: Ints
    micro_batches: Ints


@dataclass(frozen=True, kw_only=True)
class Cores:
    """Shape, pipe and micro-batch of every core, and what follows from them: arrays [cores]."""

    shape: Ints
    pipe: Ints
    lane: Ints
    """Its first track among those of its number of runs."""
    runs: Ints
    chains: Ints
    traits: Ints
    micro_batch: Ints
    micro_batches: Ints

    def __len__(self) -> int:
        return len(self.shape)

    def taken(self, at: Ints) -> Cores:
        """Some of them."""
        return Cores(**{f.name: getattr(self, f.name)[at] for f in fields(self)})


def laid(
    land: Land, blocks: Sequence[Block], traits: Ints, memory_bytes: Sequence[tuple[float, float]]
) -> tuple[dict[int, Lanes], Cores, Ints]:
    """Tracks by their number of runs, the cores that run on them, and every kind of layer there is.

    A kind of layer: tp, cp, ep, nodes in use and node group.
    """
    by_runs: dict[int, list[tuple[Ints, Runs, Any]]] = {}
    filled: dict[int, int] = {}
    cores = []
    for number, block in enumerate(blocks):
        where = np.zeros((2, len(land.shapes)), dtype=np.int64)  # first track and number of runs of each shape
        for here, runs, links in land.runs(block.shapes, block.pipe):
            chains = runs.groups.shape[0]
            start = filled.get(len(runs), 0)
            where[0, here], where[1, here] = start + chains * np.arange(len(here)), len(runs)
            filled[len(runs)] = start + chains * len(here)
            by_runs.setdefault(len(runs), []).append((here, runs, links))
        shape, size = block.shape, block.micro_batch
        cores.append((shape, np.full(len(shape), number), *where[:, shape], size, block.micro_batches))
    shape, pipe, lane, runs_of, size, count = (np.concatenate(column) for column in zip(*cores, strict=True))
    found = Cores(
        shape=shape,
        pipe=pipe,
        lane=lane,
        runs=runs_of,
        chains=land.chains[shape],
        traits=traits[shape],
        micro_batch=size,
        micro_batches=count,
    )
    teams = np.stack([land.tp, land.cp, land.ep, land.nodes], axis=1)
    used = np.unique(np.concatenate([here for members in by_runs.values() for here, _, _ in members]))
    kinds, which = np.unique(teams[used], axis=0, return_inverse=True)
    kind = np.zeros(len(land.shapes), dtype=np.int64)
    kind[used] = which.ravel()
    memory, groups = np.array(memory_bytes), len(memory_bytes)
    lanes = {runs: _stacked(members, kind * groups, memory) for runs, members in by_runs.items()}
    codes = np.unique(np.concatenate([one.team.ravel() for one in lanes.values()]))
    kinds_used = np.concatenate([kinds[codes // groups], (codes % groups)[:, None]], axis=1)
    return {n: one._replace(team=np.searchsorted(codes, one.team)) for n, one in lanes.items()}, found, kinds_used


def _stacked(members: list[tuple[Ints, Runs, Any]], kind: Ints, memory: Floats) -> Lanes:
    """Tracks with one number of runs, shape after shape and chain after chain."""

    def tiled(values: Any, count: int, chains: int) -> Any:
        return np.broadcast_to(values, (count, chains, np.shape(values)[-1])).reshape(count * chains, -1)

    rows = []
    for here, runs, links in members:
        n, c = len(here), runs.groups.shape[0]
        team = (kind[here][:, None, None] + runs.groups).reshape(n * c, -1)
        own = [tiled(x, n, c) for x in (runs.counts, runs.repeats, runs.starts)]
        ways = [x.reshape(n * c, -1) for x in links]
        rows.append(
            (
                *own,
                team,
                *(tiled(memory[runs.groups, kind_of], n, c) for kind_of in (0, 1)),
                *ways,
                tiled(runs.dp_zones, n, c),
            )
        )
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    return Lanes(bool((columns[3] != columns[3][:, :1]).any()), *columns)


def by_runs(cores: Cores) -> list[tuple[int, Ints]]:
    """Rows of each number of runs."""
    return [(int(runs), np.flatnonzero(cores.runs == runs)) for runs in np.unique(cores.runs)]


def chunks(rows: Ints) -> list[Ints]:
    """Rows in parts that fit in the cache."""
    return [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]


def tracks(cores: Cores) -> tuple[Ints, Ints]:
    """Every track of every core, and whose it is."""
    if (cores.chains == 1).all():
        return cores.lane, np.arange(len(cores))
    owner = np.repeat(np.arange(len(cores)), cores.chains)
    first = np.cumsum(cores.chains) - cores.chains
    return cores.lane[owner] + np.arange(len(owner)) - first[owner], owner


def worst(values: Floats, cores: Cores, track: Ints) -> Floats:
    """The largest of each core's tracks."""
    if len(track) == len(cores):
        return values
    first = np.cumsum(cores.chains) - cores.chains
    return np.asarray(np.maximum.reduceat(values, first))
