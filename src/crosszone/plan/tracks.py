"""Tracks: the stages of each chain as runs of equal ones, with their GPUs and links, in arrays.

A pipeline of 64 stages in one zone has three or four different ones: the first with the embedding, those between, the
last with the head. Stages before a boundary between zones differ too. The cost formulas take such runs as they take
stages, so that a strategy costs a handful of numbers whatever its depth.

Layouts whose chains take the same way differ only in their replicas: they have a frame in common, and all that follows
from the frame is worked out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.wan import EXPECTED, Transport
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.model import Model
from crosszone.predict.batch import layer_counts, sparse_layers
from crosszone.predict.site import Crossings
from crosszone.schedule.orders import V_SHAPED, stages_in_order

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Pipe:
    """A schedule and the chunks of a stage."""

    schedule: str
    chunks: int

    @property
    def wraps(self) -> bool:
        """Micro-batches go from the last stage on to the first."""
        return self.chunks > 1 and self.schedule not in V_SHAPED and not self.bare

    @property
    def folded(self) -> bool:
        """The first stage holds the head too."""
        return self.schedule in V_SHAPED or self.schedule == "any folded"

    @property
    def bare(self) -> bool:
        """It is no schedule, but stands for many."""
        return self.schedule.startswith("any")


ANY = Pipe("any", 1)
"""No schedule: what every schedule must take at least."""
ANY_FOLDED = Pipe("any folded", 1)
"""The same for schedules that put the embedding and the head on one stage."""


def any_of(chunks: int) -> Pipe:
    """No schedule, but so many chunks a stage."""
    return Pipe(ANY.schedule, chunks)


@lru_cache(maxsize=8192)
def stage_layers_of(
    model: Model, stages: int, pipe: Pipe, given: tuple[int, ...] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Layers of each stage, its chunks added up, and those with experts: dealt out evenly, or as given for every chunk.

    Without a schedule a folded pipeline has two chunks a stage where the layers share out so.
    """
    schedule, chunks = pipe.schedule, len(given) // stages if given else pipe.chunks
    if pipe == ANY_FOLDED and not given and model.layers % (2 * stages) == 0:
        schedule, chunks = "zbv", 2
    dealt = given or tuple(layer_counts(model.layers, stages * chunks))
    held_by = stages_in_order(schedule, stages, chunks)
    counts = np.bincount(held_by, weights=dealt, minlength=stages)
    sparse = np.bincount(held_by, weights=sparse_layers(model, dealt), minlength=stages)
    return tuple(counts.astype(int).tolist()), tuple(sparse.astype(int).tolist())


@dataclass(frozen=True, kw_only=True)
class Ways:
    """Links between the zones as a number of ranks sees them, looked up once."""

    cluster: Cluster
    links: dict[tuple[int, int], ZoneLink]
    transport: Transport
    _seen: dict[Any, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def crossings(self) -> Crossings:
        """The paths between the zones."""
        return Crossings(self.cluster, self.links, self.transport)

    def boundary(self, a: int, b: int, ranks: int) -> tuple[float, float]:
        """Rate of one rank from zone to zone, and latency, at the expected RTT."""
        key = (a, b, ranks)
        if key not in self._seen:
            rate, late = self.crossings.boundary(a, b, ranks)
            self._seen[key] = float(rate[EXPECTED]), float(late[EXPECTED])
        return self._seen[key]

    def ring(self, zones: tuple[int, ...], ranks: int) -> tuple[float, float]:
        """Rate and latency of the ring through zones, of which the smallest has so many ranks."""
        key = (zones, ranks)
        if key not in self._seen:
            tier = self.crossings.ring_link(self.crossings.ring(zones, ranks), ranks)
            self._seen[key] = float(np.asarray(tier.bytes_per_s)[EXPECTED]), float(np.asarray(tier.latency_s)[EXPECTED])
        return self._seen[key]

    def flat(self, zones: tuple[int, ...], ranks: int, groups: int) -> float:
        """Rate of that ring where only one rank of each of so many groups sends to the next zone."""
        key = ("flat", zones, ranks, groups)
        if key not in self._seen:
            tier = self.crossings.ring_link(self.crossings.ring(zones, ranks), groups)
            self._seen[key] = float(np.asarray(tier.bytes_per_s)[EXPECTED]), 0.0
        return self._seen[key][0]

    def rings(self, zones: tuple[int, ...], ranks: Ints, groups: Ints) -> Floats:
        """Rate and latency for many numbers of ranks, and the rate of flat rings of so many groups: [n, 3]."""
        pairs = zip(ranks.tolist(), groups.tolist(), strict=True)
        return np.array([(*self.ring(zones, n), self.flat(zones, n, several)) for n, several in pairs])

    def boundaries(self, a: int, b: int, ranks: Ints) -> Floats:
        """The same of a boundary: [n, 2]."""
        return np.array([self.boundary(a, b, n) for n in ranks.tolist()])


class Runs:
    """The runs of equal stages of a frame under a pipe: arrays [chains, runs]."""

    def __init__(self, frame: Frame, pipe: Pipe, counts: tuple[int, ...], sparse: tuple[int, ...]):
        """Without a schedule, stages between the first and the last that cost the same are one run, wherever they lie.

        `counts`: layers of each stage; `sparse`: those with experts among them.
        """
        self.stages = stages = frame.stages
        inner = range(1, stages - 1)
        if pipe.bare:
            cost = np.stack([counts, sparse, frame.dp_zones, *frame.kinds[frame.kept]], axis=1).tolist()
            alike: dict[tuple[int, ...], list[int]] = {}
            for stage in inner:
                alike.setdefault(tuple(cost[stage]), []).append(stage)
            runs = [0, *(members[0] for members in alike.values()), *([stages - 1] if stages > 1 else [])]
            repeats = [1, *map(len, alike.values()), *([1] if stages > 1 else [])]
        else:
            starts = {0, min(1, stages - 1), stages - 1} | frame.breaks
            starts |= {s for s in range(1, stages) if (counts[s], sparse[s]) != (counts[s - 1], sparse[s - 1])}
            runs = sorted(starts)
            repeats = np.diff(runs, append=stages).tolist()
        first = np.array(runs)
        self.starts = first.astype(float)
        self.repeats = np.array(repeats, dtype=float)
        self.counts, self.sparse = (np.array(x, dtype=float)[first] for x in (counts, sparse))
        self.groups = frame.kinds[frame.kept][:, first]
        self.dp_zones = frame.dp_zones[first].astype(float)
        self.wraps, self.merged = pipe.wraps, pipe.bare
        last = np.arange(stages) if pipe.bare else first + self.repeats.astype(int) - 1
        self.boundaries: list[tuple[int, int, int, int]] = []
        """Chain of those kept, run (or stage), and the two zones, where the boundary after it crosses them."""
        if frame.crosses:
            for chain, row in enumerate(frame.zones[frame.kept].tolist()):
                for run, stage in enumerate(last.tolist()):
                    a, b = row[stage], row[(stage + 1) % stages]
                    if a != b and (pipe.wraps or stage < stages - 1):
                        self.boundaries.append((chain, run, a, b))

    def __len__(self) -> int:
        return len(self.starts)


class Frame:
    """The ways of a layout's chains: node group and zone of every stage, and what crosses zones."""

    def __init__(self, paths: tuple[tuple[tuple[int, int], ...], ...], zone_of: Sequence[int], kind_of: Sequence[int]):
        self.groups: Ints = np.array([[g for g, count in path for _ in range(count)] for path in paths])
        self.zones: Ints = np.array(zone_of)[self.groups]
        self.kinds: Ints = np.array(kind_of)[self.groups]
        """First node group that is like that of each stage."""
        self.chains, self.stages = self.groups.shape
        self.crosses = bool((self.zones != self.zones[:, :1]).any())
        """Some chain goes through several zones."""
        rows = zip(map(tuple, self.kinds.tolist()), map(tuple, self.zones.tolist()), strict=True)
        told = [(kinds, zones if self.crosses else ()) for kinds, zones in rows]
        self.kept: Ints = np.array([at for at, one in enumerate(told) if told.index(one) == at])
        """Chains that differ: the others take as long."""
        columns = list(map(tuple, self.zones.T.tolist()))
        self._patterns = list(dict.fromkeys(columns))
        self.dp_zones: Ints = np.array([len(set(one)) for one in columns])
        lengths = {count for path in paths for _, count in path}
        self.stages_beside = lengths.pop() if len(lengths) == 1 else 0
        """Stages of a replica in each node group it lies in; 0: not always as many."""
        ends = {at for path in paths for at in np.cumsum([count for _, count in path])[:-1].tolist()}
        changes = set((np.flatnonzero(np.diff(self.dp_zones)) + 1).tolist())
        self.breaks: set[int] = {s for at in ends for s in (at - 1, at, min(at + 1, self.stages - 1))} | changes
        """Stages that differ from the one before by where they lie or send."""
        self._runs: dict[tuple[Pipe, tuple[int, ...], tuple[int, ...]], Runs] = {}

    def tears(self, chain_class: Sequence[int]) -> bool:
        """Some zone holds chains of different classes at one stage."""
        told = [set(zip(column, chain_class, strict=True)) for column in self._patterns]
        return any(len({zone for zone, _ in pairs}) < len(pairs) for pairs in told)

    def stages_in(self, groups: int) -> Ints:
        """Stages of each chain in each node group: [chains, groups]."""
        return np.stack([np.bincount(row, minlength=groups) for row in self.groups])

    def runs(self, pipe: Pipe, counts: tuple[int, ...], sparse: tuple[int, ...]) -> Runs:
        """Runs of equal stages where stages have so many layers, and so many with experts."""
        key = (pipe, counts, sparse)
        if key not in self._runs:
            self._runs[key] = Runs(self, pipe, counts, sparse)
        return self._runs[key]

    def least_in_zone(self, replicas: Ints) -> Ints:
        """Fewest replicas of a stage that lie in one zone; `replicas` is [n, chains]."""
        found: Ints = np.min(
            [
                replicas[:, [c for c, z in enumerate(one) if z == zone]].sum(axis=1)
                for one in self._patterns
                for zone in set(one)
            ],
            axis=0,
        )
        return found

    def ring(self, replicas: Ints, cell: Ints, tp: Ints, ways: Ways) -> Floats:
        """Rate and latency of the ring of zones among which gradients cross, and the rate of a flat one: [n, 3]."""
        crossing = self.zones[:, self.dp_zones > 1]
        zones = tuple(np.unique(crossing).tolist())
        if not zones:
            return np.tile([np.inf, 0.0, np.inf], (len(replicas), 1))
        ranks = np.min([(replicas @ (crossing == zone).sum(axis=1)) * cell for zone in zones], axis=0)
        return ways.rings(zones, ranks, int((self.dp_zones > 1).sum()) * tp)

    @cached_property
    def _sends(self) -> tuple[dict[Pair, Ints], dict[Pair, Ints]]:
        """Boundaries of each chain between two zones, either way: without and with the one back to its start."""
        plain: dict[Pair, Ints] = {}
        whole: dict[Pair, Ints] = {}
        for chain, row in enumerate(self.zones.tolist()):
            steps = [(a, b, (plain, whole)) for a, b in pairwise(row)] + [(row[-1], row[0], (whole,))]
            for a, b, into in steps:
                if a != b:
                    for counts in into:
                        counts.setdefault((min(a, b), max(a, b)), np.zeros(self.chains, dtype=np.int64))[chain] += 1
        return plain, whole

    def ranks(self, a: int, b: int, wraps: bool, replicas: Ints, cell: Ints) -> Ints:
        """Ranks that send between two zones at once, [n]."""
        found: Ints = (replicas @ self._sends[wraps][min(a, b), max(a, b)]) * cell
        return found


@lru_cache(maxsize=16_384)
def frame_of(
    paths: tuple[tuple[tuple[int, int], ...], ...], zone_of: tuple[int, ...], kind_of: tuple[int, ...]
) -> Frame:
    """The frame of these ways, made once."""
    return Frame(paths, zone_of, kind_of)
