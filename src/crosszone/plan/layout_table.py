"""Land: the shapes of a search in arrays, with what follows from where they lie.

Tracks: the stages of each chain as runs of equal ones, with their GPUs and links, in arrays.

A pipeline of 64 stages in one zone has three or four different ones: the first with the embedding, those between, the
last with the head. Stages before a boundary between zones differ too. The cost formulas take such runs as they take
stages, so that a strategy costs a handful of numbers whatever its depth.

Layouts whose chains take the same way differ only in their replicas: they have a frame in common, and all that follows
from the frame is worked out once.

Deals: how the chains of a shape share out the micro-batches of a step by their speed. [W5]

Balance: layers shared out so that the slowest stage is as fast as it can be. [W4]
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone.cost.wan import EXPECTED, Transport
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.flops import forward_flops_per_token
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.model import Model
from crosszone.plan.layouts import REPLICAS_NEAR, ParallelLayout, estimate_chain_times
from crosszone.predict.batch import layer_counts, sparse_layers
from crosszone.predict.parts import kept, part
from crosszone.predict.site import Crossings
from crosszone.schedule.orders import V_SHAPED, list_stages_in_order

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Pair = tuple[int, int]


@dataclass(frozen=True)
class ScheduleChoice:
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


ANY_SCHEDULE = ScheduleChoice("any", 1)  # No schedule: what every schedule must take at least
ANY_V_SHAPED = ScheduleChoice(
    "any folded", 1
)  # The same for schedules that put the embedding and the head on one stage


def build_any_schedule(chunks: int) -> ScheduleChoice:
    """No schedule, but so many chunks a stage."""
    return ScheduleChoice(ANY_SCHEDULE.schedule, chunks)


@lru_cache(maxsize=8192)
def count_stage_layers(
    model: Model, stages: int, pipe: ScheduleChoice, given: tuple[int, ...] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Layers of each stage, its chunks added up, and those with experts: dealt out evenly, or as given for every chunk.

    Without a schedule a folded pipeline has two chunks a stage where the layers share out so.
    """
    schedule, chunks = pipe.schedule, len(given) // stages if given else pipe.chunks
    if pipe == ANY_V_SHAPED and not given and model.layers % (2 * stages) == 0:
        schedule, chunks = "zbv", 2
    dealt = given or tuple(layer_counts(model.layers, stages * chunks))
    held_by = list_stages_in_order(schedule, stages, chunks)
    counts = np.bincount(held_by, weights=dealt, minlength=stages)
    sparse = np.bincount(held_by, weights=sparse_layers(model, dealt), minlength=stages)
    return tuple(counts.astype(int).tolist()), tuple(sparse.astype(int).tolist())


@dataclass(frozen=True, kw_only=True)
class WanLinks:
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


class EqualStageRuns:
    """The runs of equal stages of a frame under a pipe: arrays [chains, runs]."""

    def __init__(self, frame: LayoutPattern, pipe: ScheduleChoice, counts: tuple[int, ...], sparse: tuple[int, ...]):
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


class LayoutPattern:
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
        self._runs: dict[tuple[ScheduleChoice, tuple[int, ...], tuple[int, ...]], EqualStageRuns] = {}

    def tears(self, chain_class: Sequence[int]) -> bool:
        """Some zone holds chains of different classes at one stage."""
        told = [set(zip(column, chain_class, strict=True)) for column in self._patterns]
        return any(len({zone for zone, _ in pairs}) < len(pairs) for pairs in told)

    def stages_in(self, groups: int) -> Ints:
        """Stages of each chain in each node group: [chains, groups]."""
        return np.stack([np.bincount(row, minlength=groups) for row in self.groups])

    def runs(self, pipe: ScheduleChoice, counts: tuple[int, ...], sparse: tuple[int, ...]) -> EqualStageRuns:
        """Runs of equal stages where stages have so many layers, and so many with experts."""
        key = (pipe, counts, sparse)
        if key not in self._runs:
            self._runs[key] = EqualStageRuns(self, pipe, counts, sparse)
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

    def ring(self, replicas: Ints, cell: Ints, tp: Ints, ways: WanLinks) -> Floats:
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
def build_pattern(
    paths: tuple[tuple[tuple[int, int], ...], ...], zone_of: tuple[int, ...], kind_of: tuple[int, ...]
) -> LayoutPattern:
    """The frame of these ways, made once."""
    return LayoutPattern(paths, zone_of, kind_of)


def balance_layers(layers: int, layer_s: Sequence[float], other_s: Sequence[float]) -> tuple[int, ...]:
    """Layers of each stage, at least one, so that the slowest stage is as fast as it can be. [W4]

    A stage takes `other_s` (embedding, head) and `layer_s` for each of its layers. Each layer goes to the stage that is
    soonest done with it: no other way to share them out has a faster slowest stage. Ties go to later stages, whose
    activations are fewer.
    """
    counts = [1] * len(layer_s)
    ends = [(other + 2 * each, -stage) for stage, (each, other) in enumerate(zip(layer_s, other_s, strict=True))]
    heapq.heapify(ends)
    for _ in range(layers - len(counts)):
        end, at = heapq.heappop(ends)
        counts[-at] += 1
        heapq.heappush(ends, (end + layer_s[-at], at))
    return tuple(counts)


def balance_micro_batches(
    total: int, replicas: Sequence[int], micro_batch_s: Sequence[float]
) -> tuple[int, ...] | None:
    """Micro-batches of a replica of each class, `total` in all, so that the slowest is done as soon as it can be. [W5]

    Class k has `replicas[k]` replicas that take `micro_batch_s[k]` for a micro-batch. None: there is no such way, or
    all have equally many. Of more than two classes only numbers next to the shares in proportion to speed are tried.
    """
    if len(replicas) < 2:
        return None
    found = _dealt(total, list(zip(replicas, micro_batch_s, strict=True)))
    return None if found is None or len(set(found)) == 1 else found


def _dealt(total: int, classes: list[tuple[int, float]]) -> tuple[int, ...] | None:
    """The best way to share out `total` among classes of so many replicas and seconds."""
    (count, seconds), *others = classes
    if not others:
        return (total // count,) if total % count == 0 and total >= count else None
    most = (total - sum(n for n, _ in others)) // count
    share = total / sum(n / s for n, s in classes) / seconds
    near = range(1, most + 1) if len(others) == 1 else range(max(1, int(share) - 1), min(most, int(share) + 2) + 1)
    best: tuple[float, tuple[int, ...]] | None = None
    for own in sorted(near, key=lambda own: abs(own - share)):
        if best is not None and own * seconds >= best[0] and own > share:
            continue
        rest = _dealt(total - own * count, others)
        if rest is not None:
            slowest = max(own * seconds, *(m * s for m, (_, s) in zip(rest, others, strict=True)))
            best = min(best or (slowest, (own, *rest)), (slowest, (own, *rest)))
    return best and best[1]


def estimate_head_layers(model: Model, seq_len: int = 2048) -> float:
    """Layers that the head stands for, by its FLOPs."""
    forward = forward_flops_per_token(model, seq_len)
    return forward.head * model.layers / (forward.total - forward.head)


def balance_layers_by_speed(model: Model, speeds: Sequence[float]) -> tuple[int, ...]:
    """Layers of stages on GPUs of these speeds, the head counted on the last."""
    layer_s = [1.0 / speed if speed else 1.0 for speed in speeds]
    other_s = [0.0] * len(layer_s)
    other_s[-1] = estimate_head_layers(model) * layer_s[-1]
    return balance_layers(model.layers, layer_s, other_s)


EVEN_SHARES = -1  # In place of a deal: all chains take equally many, or there is no other way


class Classes(NamedTuple):
    """Chains of a shape by the time they take for a micro-batch."""

    of_chain: list[int]
    replicas: list[int]
    micro_batch_s: list[float]


class MicroBatchShares:
    """The deals of shapes whose chains take different numbers of micro-batches, numbered as they are asked for."""

    def __init__(self, shapes: Sequence[ParallelLayout], frames: Sequence[LayoutPattern], speeds: Sequence[float]):
        """`frames`: that of each shape."""
        self._shapes, self._frames = shapes, frames
        uneven = [number for number, shape in enumerate(shapes) if shape.uneven]
        self._classes = {number: _classes_of(shapes[number], speeds) for number in uneven}
        self._known: dict[tuple[int, int], int] = {}
        self.kept: list[tuple[int, ...]] = []
        """Of each deal, the micro-batches of a replica of each chain that is kept."""
        self.uneven = np.zeros(len(shapes), dtype=bool)
        """Chains take different numbers of micro-batches."""
        self.uneven[uneven] = True
        self.torn = np.zeros(len(shapes), dtype=bool)
        """Of these: replicas of a stage in one zone take different numbers of them."""
        for number, classes in self._classes.items():
            self.torn[number] = frames[number].tears(classes.of_chain)

    def number(self, shape: int, total: int) -> int:
        """Number of the deal of so many micro-batches among the chains of a shape; `EVEN`: there is none."""
        if (shape, total) not in self._known:
            found = self._balanced(shape, total)
            self._known[shape, total] = EVEN_SHARES if found is None else len(self.kept)
            if found is not None:
                self.kept.append(tuple(found[chain] for chain in self._frames[shape].kept.tolist()))
        return self._known[shape, total]

    def of_replicas(self, shape: int, total: int) -> tuple[int, ...]:
        """Micro-batches of each replica of a shape whose chains share out so many."""
        found = self._balanced(shape, total)
        assert found is not None
        return tuple(m for m, n in zip(found, self._shapes[shape].layout.shares, strict=True) for _ in range(n))

    def tracks(self, dealt: npt.NDArray[np.int64], chain: npt.NDArray[np.int64]) -> list[int]:
        """Micro-batches of tracks, given their deal and the place of their chain among those kept."""
        return [self.kept[deal][at] for deal, at in zip(dealt.tolist(), chain.tolist(), strict=True)]

    def _balanced(self, shape: int, total: int) -> list[int] | None:
        """Micro-batches of a replica of each chain."""
        classes = self._classes[shape]
        found = balance_micro_batches(total, classes.replicas, classes.micro_batch_s)
        return None if found is None else [found[one] for one in classes.of_chain]


def _classes_of(shape: ParallelLayout, speeds: Sequence[float]) -> Classes:
    each = estimate_chain_times(shape.layout, shape.layers, speeds)
    times = sorted(set(each))
    of_chain = [times.index(one) for one in each]
    shares = shape.layout.shares
    replicas = [sum(n for n, own in zip(shares, of_chain, strict=True) if own == one) for one in range(len(times))]
    return Classes(of_chain, replicas, times)


# Rate forward, rate back and latency, [shapes, chains, runs]; None: nothing crosses zones.
Links = tuple[Floats, ...] | None


class LayoutTable:
    """Shapes with their links, whatever the framework: arrays [shapes]."""

    def __init__(
        self,
        shapes: Sequence[ParallelLayout],
        model: Model,
        groups: Sequence[NodeGroup],
        zone_of: Sequence[int],
        ways: WanLinks,
        speeds: Sequence[float],
    ):
        self.shapes, self.groups, self._model = shapes, groups, model
        self.tp, self.cp, self.ep, self.pp, self.dp, self.stride = (
            np.array([(s.tp, s.cp, s.ep, s.pp, s.dp, s.stride) for s in shapes], dtype=np.int64).reshape(-1, 6).T
        )
        self.cell = self.tp * self.cp
        self._near = np.array([s.order == REPLICAS_NEAR for s in shapes], dtype=bool)
        self.frames: list[LayoutPattern] = []
        self.frame = np.zeros(len(shapes), dtype=np.int64)
        """Frame of each shape."""
        self._splits: list[tuple[int, ...] | None] = []
        """Layers of each chunk of a frame's stages; None: dealt out evenly."""
        known: dict[object, int] = {}
        told = [(g.gpu, g.gpus, g.domain, g.fast_link, g.nic_gbps_node, g.fabric, g.memory_gib) for g in groups]
        kind_of = tuple(map(told.index, told))
        for number, shape in enumerate(shapes):
            key = (shape.layout.paths, shape.layers)
            if key not in known:
                known[key] = len(self.frames)
                self.frames.append(build_pattern(shape.layout.paths, tuple(zone_of), kind_of))
                self._splits.append(shape.layers)
            self.frame[number] = known[key]
        self.split = np.array([len(one) if one else 0 for one in self._splits], dtype=np.int64)[self.frame]
        """Chunks of all stages, where their layers are given; 0: dealt out evenly."""
        self.deals = MicroBatchShares(shapes, [self.frames[number] for number in self.frame.tolist()], speeds)
        self.chains = np.array([len(frame.kept) for frame in self.frames], dtype=np.int64)[self.frame]
        """Chains of each shape that differ."""
        self.along = np.array([frame.crosses for frame in self.frames], dtype=bool)[self.frame]
        """Stages of a replica lie in several zones."""
        self._replicas = [shape.layout.shares for shape in shapes]
        self.across = np.zeros(len(shapes), dtype=bool)
        """Replicas of a stage lie in several zones."""
        self._fast_after: dict[int, Floats] = {}
        self._boundaries: dict[tuple[int, int, int, bool], Floats]
        self.zone_shards = self.dp.copy()
        """Fewest replicas of a stage in one zone."""
        self.level = np.ones(len(shapes), dtype=bool)
        """Every zone in use holds equally many replicas of every stage."""
        self._members = dict(self._by_frame(np.arange(len(shapes))))
        """Shapes of each frame."""
        self._place = np.zeros(len(shapes), dtype=np.int64)
        self._runs: dict[tuple[int, ScheduleChoice], EqualStageRuns] = {}
        self._links: dict[tuple[int, ScheduleChoice], Links] = {}
        for number, here in self._members.items():
            frame = self.frames[number]
            self._place[here] = np.arange(len(here))
            if frame.dp_zones.max() > 1:
                self.across[here] = True
                self.zone_shards[here] = frame.least_in_zone(self.replicas(here))
                even = self.zone_shards[here][:, None] * frame.dp_zones == self.dp[here][:, None]
                self.level[here] = even.all(axis=1)
        self.parts: dict[str, Any] = {}
        self._tie(ways)

    def _tie(self, ways: WanLinks) -> None:
        """Take these links between the zones."""
        self._ways, self._boundaries, self._links = ways, {}, {}
        self.parts = kept(self.parts, without=("ring",))

    @property
    def gloo(self) -> bool:
        """Ranks talk over Gloo."""
        return self._ways.transport.library == "gloo"

    @part
    def ring(self) -> Floats:
        """Rate and latency of the ring of zones, and the rate of a flat ring: [shapes, 3]."""
        found = np.tile([np.inf, 0.0, np.inf], (len(self.shapes), 1))
        for number, here in self._members.items():
            if self.across[here[0]]:
                found[here] = self.frames[number].ring(self.replicas(here), self.cell[here], self.tp[here], self._ways)
        return found

    def on(self, ways: WanLinks) -> LayoutTable:
        """The same shapes with other links between the zones."""
        other = copy(self)
        other._tie(ways)
        return other

    def replicas(self, shapes: Ints) -> Ints:
        """Replicas of each chain of shapes with the same frame: [n, chains]."""
        return np.array([self._replicas[i] for i in shapes.tolist()], dtype=np.int64)

    def _by_frame(self, shapes: Ints) -> list[tuple[int, Ints]]:
        """Shapes of each frame."""
        order = np.argsort(self.frame[shapes], kind="stable")
        frames, first = np.unique(self.frame[shapes][order], return_index=True)
        pieces = np.split(shapes[order], first[1:]) if len(shapes) else []
        return list(zip(frames.tolist(), pieces, strict=True))

    @part
    def cells(self) -> Ints:
        """Cells in use of each node group: [shapes, groups]."""
        found = np.zeros((len(self.shapes), len(self.groups)), dtype=np.int64)
        for number, here in self._members.items():
            found[here] = self.replicas(here) @ self.frames[number].stages_in(len(self.groups))
        return found

    @part
    def nodes(self) -> Ints:
        """Nodes in use."""
        size = np.array([group.gpus for group in self.groups])
        whole = size // self.tp[:, None] * self.tp[:, None]
        per_node = np.where(self.tp[:, None] <= size, whole, size)
        return np.asarray((-(-self.cells * self.cell[:, None] // np.maximum(per_node, 1))).sum(axis=1))

    @part
    def node_shards(self) -> Ints:
        """Replicas of a stage that lie in every node, where that is the same for all nodes; else 0."""
        size = np.array([group.gpus for group in self.groups])
        used = self.cells > 0
        most, least = np.where(used, size, 0).max(axis=1), np.where(used, size, 1 << 30).min(axis=1)
        beside = np.array([frame.stages_beside for frame in self.frames], dtype=np.int64)[self.frame]
        step = np.where(self._near, self.cell, self.cell * np.maximum(beside, 1))
        clean = (most == least) & (most % step == 0) & (self._near | (beside > 0))
        count = np.where(clean, most // step, 0)
        for shape in np.flatnonzero(count > 1).tolist():
            if any(share % count[shape] for share in self._replicas[shape]):
                count[shape] = 0
        return count

    @part
    def memory_kind(self) -> Ints:
        """Number of what memory depends on: shapes of one number need the same, options and micro-batch being equal."""
        known: dict[object, int] = {}
        frames = [
            known.setdefault((split, *sorted(set(map(tuple, frame.kinds.tolist())))), len(known))
            for frame, split in zip(self.frames, self._splits, strict=True)
        ]
        columns = [np.array(frames, dtype=np.int64)[self.frame], self.tp, self.cp, self.ep, self.dp]
        own = np.where(self.deals.uneven, np.arange(len(self.shapes)), -1)
        told = np.stack([*columns, self.zone_shards, self.node_shards, own], axis=1)
        return np.unique(told, axis=0, return_inverse=True)[1].ravel()

    @part
    def fast(self) -> Floats:
        """2 where a boundary between stages may lie inside a fast-link domain, else 0."""
        domain = np.array([group.local_gpus for group in self.groups])
        widest = np.where(self.cells > 0, domain, 1).max(axis=1)
        fewest = np.array([min(shares) for shares in self._replicas], dtype=np.int64)
        return np.asarray(2.0 * (widest > np.where(self._near, self.cell * fewest, self.cell)))

    def fast_after(self, shape: int) -> Floats:
        """As `fast` for each stage; 1 or 0 as it is for the slowest replica, where all lie in one node group."""
        if shape not in self._fast_after:
            self._fast_after[shape] = self._fast_of(shape)
        return self._fast_after[shape]

    def _fast_of(self, shape: int) -> Floats:
        cell, pp, dp = int(self.cell[shape]), int(self.pp[shape]), int(self.dp[shape])
        used = np.flatnonzero(self.cells[shape])
        group = self.groups[int(used[0])]
        domain = group.local_gpus
        if len(used) > 1 or domain % cell or group.gpus % int(self.tp[shape]) or not self.fast[shape]:
            return np.full(pp, self.fast[shape])
        stage, replica = np.arange(pp)[:, None], np.arange(dp)
        rank = cell * (replica + dp * stage if self._near[shape] else stage + pp * replica)
        inside = rank // domain == np.roll(rank, -1, axis=0) // domain
        return np.asarray(inside[:, np.argmin(inside.sum(axis=0))] * 1.0)

    def runs(self, shapes: Ints, pipe: ScheduleChoice) -> list[tuple[Ints, EqualStageRuns]]:
        """Shapes of each frame with their runs of equal stages.

        Without a schedule stages that cost the same are one run.
        """
        return [(here, self._runs_of(number, pipe)) for number, here in self._by_frame(shapes)]

    def _runs_of(self, number: int, pipe: ScheduleChoice) -> EqualStageRuns:
        """Runs of a frame, made once."""
        if (number, pipe) not in self._runs:
            frame = self.frames[number]
            layers = count_stage_layers(self._model, frame.stages, pipe, self._splits[number])
            self._runs[number, pipe] = frame.runs(pipe, *layers)
        return self._runs[number, pipe]

    def links(self, shapes: Ints, pipe: ScheduleChoice) -> Links:
        """The links after the runs of shapes of one frame: rates and latency; None where no chain crosses zones.

        Without a schedule only the slowest link of each chain counts.
        """
        number = int(self.frame[shapes[0]])
        runs = self._runs_of(number, pipe)
        if not runs.boundaries:
            return None
        if (number, pipe) not in self._links:
            self._links[number, pipe] = self._links_of(number, runs, self._members[number])
        found = self._links[number, pipe]
        return tuple(values[self._place[shapes]] for values in found) if found else None

    def _links_of(self, number: int, runs: EqualStageRuns, here: Ints) -> Links:
        size = (len(here), len(runs.groups), 1 if runs.merged else len(runs))
        rate, back, late = np.full(size, np.inf), np.full(size, np.inf), np.zeros(size)
        for chain, run, a, b in runs.boundaries:
            there, home = (self._boundary(number, *way, runs.wraps) for way in ((a, b), (b, a)))
            at = 0 if runs.merged else run
            rate[:, chain, at] = np.minimum(rate[:, chain, at], there[:, 0])
            back[:, chain, at] = np.minimum(back[:, chain, at], home[:, 0])
            late[:, chain, at] = there[:, 1]
        return rate, back, late

    def _boundary(self, frame: int, a: int, b: int, wraps: bool) -> Floats:
        """Rate and latency from zone to zone, for the shapes of a frame: [shapes of it, 2]."""
        key = (frame, a, b, wraps)
        if key not in self._boundaries:
            here = self._members[frame]
            ranks = self.frames[frame].ranks(a, b, wraps, self.replicas(here), self.cell[here])
            self._boundaries[key] = self._ways.boundaries(a, b, ranks)
        return self._boundaries[key]
