"""Layout table: all candidate layouts of a search, one row each, with what follows from where their stages lie.

Array names end in their shape where a reader could doubt it; arrays without a suffix have one row a layout ([L]):

    L layouts    G node groups    H different chains of a layout    S stages    R runs of equal stages    D replicas

Layouts whose chains go through the same node groups differ only in their numbers of replicas: they have a
`LayoutPattern` in common, and what follows from the pattern is worked out once.

`EqualStageRuns`: a pipeline of 64 stages in one zone has three or four different ones: the first with the embedding,
those between, the last with the head. Stages before a boundary between zones differ too. The cost formulas take such
runs as they take stages, so that a strategy costs a handful of numbers whatever its depth.

`MicroBatchShares`: how the chains of a layout share out the micro-batches of a step by their speed. [W5]

`balance_layers`: layers shared out so that the slowest stage is as fast as it can be. [W4]
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

from crosszone.cost.wan import EXPECTED, WanTransport
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.flops import forward_flops_per_token
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.model import Model
from crosszone.plan.layouts import REPLICAS_NEAR, ParallelLayout, estimate_chain_times
from crosszone.predict.batch import count_blocks, count_moe_layers, split_model_layers
from crosszone.predict.parts import cached_part, select_parts
from crosszone.predict.placed_strategy import Crossings
from crosszone.schedule.orders import V_SHAPED, list_stages_in_order

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ZonePair = tuple[int, int]


@dataclass(frozen=True)
class ScheduleChoice:
    """A pipeline schedule by name, and its virtual stages a stage."""

    name: str
    virtual_stages: int

    @property
    def wraps(self) -> bool:
        """Micro-batches go from the last stage on to the first."""
        return self.virtual_stages > 1 and self.name not in V_SHAPED and not self.is_any

    @property
    def v_shaped(self) -> bool:
        """The first stage holds the head too."""
        return self.name in V_SHAPED or self.name == "any v-shaped"

    @property
    def is_any(self) -> bool:
        """It is no schedule, but stands for all of them in a bound."""
        return self.name.startswith("any")


# No schedule: bounds of it hold for every schedule.
ANY_SCHEDULE = ScheduleChoice("any", 1)
# The same for V-shaped schedules, which put the embedding and the head on one stage: with the head on the last
# stage, as `ANY_SCHEDULE` has it, the bound could be above what such a schedule takes.
ANY_V_SHAPED = ScheduleChoice("any v-shaped", 1)


def build_any_schedule(virtual_stages: int) -> ScheduleChoice:
    """No schedule, but so many virtual stages a stage."""
    return ScheduleChoice(ANY_SCHEDULE.name, virtual_stages)


class StageCounts(NamedTuple):
    """Layers of each stage, and how many of each kind: arrays as tuples, [S]."""

    layers: tuple[int, ...]
    moe: tuple[int, ...]
    attention: tuple[int, ...]
    """Of hybrids, whose layers are blocks: with attention, and Mamba-2 layers; of other models 0."""
    mamba: tuple[int, ...]

    def list_stages(self) -> list[tuple[int, ...]]:
        """The counts of each stage."""
        return list(zip(*self, strict=True))


@lru_cache(maxsize=8192)
def count_stage_layers(
    model: Model, stages: int, schedule: ScheduleChoice, layers_per_chunk: tuple[int, ...] | None = None
) -> StageCounts:
    """Layers of each stage, its virtual stages added up, and those of each kind: spread evenly, or as given.

    A V-shaped placeholder has two virtual stages a stage where the layers divide so.
    """
    name = schedule.name
    virtual_stages = len(layers_per_chunk) // stages if layers_per_chunk else schedule.virtual_stages
    if schedule == ANY_V_SHAPED and not layers_per_chunk and model.layers % (2 * stages) == 0:
        name, virtual_stages = "zbv", 2  # every V-shaped schedule places virtual stages as this one does
    chunk_layers = layers_per_chunk or tuple(split_model_layers(model, stages * virtual_stages))
    stage_of_chunk = list_stages_in_order(name, stages, virtual_stages)
    nothing = [0] * len(chunk_layers)
    blocks = count_blocks(model.pattern, chunk_layers)[1] if model.pattern else (nothing, nothing)
    kinds = (chunk_layers, count_moe_layers(model, chunk_layers), *blocks)
    sums = (np.bincount(stage_of_chunk, weights=counts, minlength=stages) for counts in kinds)
    return StageCounts(*(tuple(counts.astype(int).tolist()) for counts in sums))


@dataclass(frozen=True, kw_only=True)
class WanLinks:
    """Links between the zones as a number of ranks sees them, looked up once."""

    cluster: Cluster
    links: dict[tuple[int, int], ZoneLink]
    transport: WanTransport
    _links_by_use: dict[Any, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def crossings(self) -> Crossings:
        """The paths between the zones."""
        return Crossings(self.cluster, self.links, self.transport)

    def get_boundary(self, a: int, b: int, ranks: int) -> tuple[float, float]:
        """Rate of one rank from zone to zone, and latency, at the expected RTT."""
        key = (a, b, ranks)
        if key not in self._links_by_use:
            rate, latency_s = self.crossings.get_boundary(a, b, ranks)
            self._links_by_use[key] = float(rate[EXPECTED]), float(latency_s[EXPECTED])
        return self._links_by_use[key]

    def get_ring(self, zones: tuple[int, ...], ranks: int) -> tuple[float, float]:
        """Rate and latency of the ring through zones, of which the smallest has so many ranks."""
        key = (zones, ranks)
        if key not in self._links_by_use:
            tier = self.crossings.get_ring_link(self.crossings.get_ring(zones, ranks), ranks)
            self._links_by_use[key] = (
                float(np.asarray(tier.bytes_per_s)[EXPECTED]),
                float(np.asarray(tier.latency_s)[EXPECTED]),
            )
        return self._links_by_use[key]

    def get_flat_rate(self, zones: tuple[int, ...], ranks: int, groups: int) -> float:
        """Rate of that ring where only one rank of each of so many groups sends to the next zone."""
        key = ("flat", zones, ranks, groups)
        if key not in self._links_by_use:
            tier = self.crossings.get_ring_link(self.crossings.get_ring(zones, ranks), groups)
            self._links_by_use[key] = float(np.asarray(tier.bytes_per_s)[EXPECTED]), 0.0
        return self._links_by_use[key][0]

    def list_rings(self, zones: tuple[int, ...], ranks: Ints, groups: Ints) -> Floats:
        """Rate and latency for many numbers of ranks, and the rate of flat rings of so many groups: [n, 3]."""
        pairs = zip(ranks.tolist(), groups.tolist(), strict=True)
        return np.array(
            [
                (*self.get_ring(zones, rank_count), self.get_flat_rate(zones, rank_count, group_count))
                for rank_count, group_count in pairs
            ]
        )

    def list_boundaries(self, a: int, b: int, ranks: Ints) -> Floats:
        """The same of a boundary: [n, 2]."""
        return np.array([self.get_boundary(a, b, n) for n in ranks.tolist()])


class EqualStageRuns:
    """The runs of equal stages of a pattern under a schedule: arrays [H, R]."""

    def __init__(self, pattern: LayoutPattern, schedule: ScheduleChoice, counts: StageCounts):
        """Stages that hold so many layers of each kind.

        Without a schedule, stages between the first and the last that cost the same are one run, wherever they lie:
        a bound asks only for the slowest stage and the sum, so their order does not matter.
        """
        self.stages = stages = pattern.stages
        inner_stages = range(1, stages - 1)
        if schedule.is_any:
            cost = np.stack([*counts, pattern.dp_zones, *pattern.kinds[pattern.distinct_chains]], axis=1).tolist()
            stages_by_cost: dict[tuple[int, ...], list[int]] = {}
            for stage in inner_stages:
                stages_by_cost.setdefault(tuple(cost[stage]), []).append(stage)
            runs = [0, *(members[0] for members in stages_by_cost.values()), *([stages - 1] if stages > 1 else [])]
            repeats = [1, *map(len, stages_by_cost.values()), *([1] if stages > 1 else [])]
        else:
            starts = {0, min(1, stages - 1), stages - 1} | pattern.breaks
            by_stage = counts.list_stages()
            starts |= {s for s in range(1, stages) if by_stage[s] != by_stage[s - 1]}
            runs = sorted(starts)
            repeats = np.diff(runs, append=stages).tolist()
        first = np.array(runs)
        self.starts = first.astype(float)
        self.repeats = np.array(repeats, dtype=float)
        self.counts, self.moe_counts, self.attention_counts, self.mamba_counts = (
            np.array(x, dtype=float)[first] for x in counts
        )
        self.groups = pattern.kinds[pattern.distinct_chains][:, first]
        self.dp_zones = pattern.dp_zones[first].astype(float)
        self.wraps, self.is_merged = schedule.wraps, schedule.is_any
        last = np.arange(stages) if schedule.is_any else first + self.repeats.astype(int) - 1
        self.boundaries: list[tuple[int, int, int, int]] = []
        """Chain of those kept, run (or stage), and the two zones, where the boundary after it crosses them."""
        if pattern.crosses:
            for chain, row in enumerate(pattern.zones[pattern.distinct_chains].tolist()):
                for run, stage in enumerate(last.tolist()):
                    a, b = row[stage], row[(stage + 1) % stages]
                    if a != b and (schedule.wraps or stage < stages - 1):
                        self.boundaries.append((chain, run, a, b))

    def __len__(self) -> int:
        return len(self.starts)


class LayoutPattern:
    """Where the chains of a layout go: node group and zone of every stage, [chains, S], and what crosses zones."""

    def __init__(self, paths: tuple[tuple[tuple[int, int], ...], ...], zone_of: Sequence[int], kind_of: Sequence[int]):
        self.groups: Ints = np.array([[g for g, count in path for _ in range(count)] for path in paths])
        self.zones: Ints = np.array(zone_of)[self.groups]
        self.kinds: Ints = np.array(kind_of)[self.groups]
        """First node group that is like that of each stage."""
        self.chains, self.stages = self.groups.shape
        self.crosses = bool((self.zones != self.zones[:, :1]).any())
        """Some chain goes through several zones."""
        chain_rows = zip(map(tuple, self.kinds.tolist()), map(tuple, self.zones.tolist()), strict=True)
        chain_keys = [(kinds, zones if self.crosses else ()) for kinds, zones in chain_rows]
        self.distinct_chains: Ints = np.array(
            [chain for chain, key in enumerate(chain_keys) if chain_keys.index(key) == chain]
        )
        """Chains that differ: the others take as long."""
        zones_by_stage = list(map(tuple, self.zones.T.tolist()))
        self._stage_zones = list(dict.fromkeys(zones_by_stage))
        self.dp_zones: Ints = np.array([len(set(zones)) for zones in zones_by_stage])
        lengths = {count for path in paths for _, count in path}
        self.stages_per_group = lengths.pop() if len(lengths) == 1 else 0
        """Stages of a replica in each node group it lies in; 0: not always as many."""
        path_ends = {at for path in paths for at in np.cumsum([count for _, count in path])[:-1].tolist()}
        changes = set((np.flatnonzero(np.diff(self.dp_zones)) + 1).tolist())
        self.breaks: set[int] = {s for at in path_ends for s in (at - 1, at, min(at + 1, self.stages - 1))} | changes
        """Stages that differ from the one before by where they lie or send."""
        self._runs: dict[tuple[ScheduleChoice, StageCounts], EqualStageRuns] = {}

    def splits_zone(self, chain_class: Sequence[int]) -> bool:
        """Some zone holds chains of different classes at one stage."""
        classes_by_stage = [set(zip(column, chain_class, strict=True)) for column in self._stage_zones]
        return any(len({zone for zone, _ in pairs}) < len(pairs) for pairs in classes_by_stage)

    def count_stages_in(self, groups: int) -> Ints:
        """Stages of each chain in each node group: [chains, G]."""
        return np.stack([np.bincount(row, minlength=groups) for row in self.groups])

    def build_runs(self, schedule: ScheduleChoice, counts: StageCounts) -> EqualStageRuns:
        """Runs of equal stages where stages have so many layers of each kind."""
        key = (schedule, counts)
        if key not in self._runs:
            self._runs[key] = EqualStageRuns(self, schedule, counts)
        return self._runs[key]

    def find_min_replicas_in_zone(self, replicas: Ints) -> Ints:
        """Fewest replicas of a stage that lie in one zone, [n]; `replicas` is [n, chains]."""
        fewest: Ints = np.min(
            [
                replicas[:, [c for c, z in enumerate(stage_zones) if z == zone]].sum(axis=1)
                for stage_zones in self._stage_zones
                for zone in set(stage_zones)
            ],
            axis=0,
        )
        return fewest

    def find_ring(self, replicas: Ints, ranks_per_cell: Ints, tp: Ints, wan_links: WanLinks) -> Floats:
        """Rate and latency of the ring of zones among which gradients cross, and the rate of a flat one: [n, 3]."""
        crossing_zones = self.zones[:, self.dp_zones > 1]
        zones = tuple(np.unique(crossing_zones).tolist())
        if not zones:
            return np.tile([np.inf, 0.0, np.inf], (len(replicas), 1))
        ranks = np.min([(replicas @ (crossing_zones == zone).sum(axis=1)) * ranks_per_cell for zone in zones], axis=0)
        return wan_links.list_rings(zones, ranks, int((self.dp_zones > 1).sum()) * tp)

    @cached_property
    def _boundary_counts(self) -> tuple[dict[ZonePair, Ints], dict[ZonePair, Ints]]:
        """Boundaries of each chain between two zones, either way: without and with the one back to its start."""
        without_wrap: dict[ZonePair, Ints] = {}
        with_wrap: dict[ZonePair, Ints] = {}
        for chain, row in enumerate(self.zones.tolist()):
            steps = [(a, b, (without_wrap, with_wrap)) for a, b in pairwise(row)] + [(row[-1], row[0], (with_wrap,))]
            for a, b, targets in steps:
                if a != b:
                    for counts in targets:
                        counts.setdefault((min(a, b), max(a, b)), np.zeros(self.chains, dtype=np.int64))[chain] += 1
        return without_wrap, with_wrap

    def count_ranks(self, a: int, b: int, wraps: bool, replicas: Ints, ranks_per_cell: Ints) -> Ints:
        """Ranks that send between two zones at once, [n]."""
        senders: Ints = (replicas @ self._boundary_counts[wraps][min(a, b), max(a, b)]) * ranks_per_cell
        return senders


@lru_cache(maxsize=16_384)
def build_pattern(
    paths: tuple[tuple[tuple[int, int], ...], ...], zone_of: tuple[int, ...], kind_of: tuple[int, ...]
) -> LayoutPattern:
    """The pattern of these paths, made once."""
    return LayoutPattern(paths, zone_of, kind_of)


def balance_layers(layers: int, layer_s: Sequence[float], other_s: Sequence[float]) -> tuple[int, ...]:
    """Layers of each stage, at least one, so that the slowest stage is as fast as it can be. [W4]

    A stage takes `other_s` (embedding, head) and `layer_s` for each of its layers. Each layer goes to the stage that is
    soonest done with it: no other way to share them out has a faster slowest stage. Ties go to later stages, whose
    activations are fewer.
    """
    counts = [1] * len(layer_s)
    # When each stage would be done with one layer more; -stage breaks ties in favour of later stages.
    finish_times = [
        (other + 2 * seconds, -stage) for stage, (seconds, other) in enumerate(zip(layer_s, other_s, strict=True))
    ]
    heapq.heapify(finish_times)
    for _ in range(layers - len(counts)):
        end, at = heapq.heappop(finish_times)
        counts[-at] += 1
        heapq.heappush(finish_times, (end + layer_s[-at], at))
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
    counts = _balance_classes(total, list(zip(replicas, micro_batch_s, strict=True)))
    return None if counts is None or len(set(counts)) == 1 else counts


def _balance_classes(total: int, classes: list[tuple[int, float]]) -> tuple[int, ...] | None:
    """The best way to share out `total` among classes of so many replicas and seconds."""
    (count, seconds), *later_classes = classes
    if not later_classes:
        return (total // count,) if total % count == 0 and total >= count else None
    upper = (total - sum(n for n, _ in later_classes)) // count
    ideal = total / sum(n / s for n, s in classes) / seconds
    near_ideal = range(max(1, int(ideal) - 1), min(upper, int(ideal) + 2) + 1)
    # Of two classes every share is tried, for the total must come out; of more that would take too long.
    candidates = range(1, upper + 1) if len(later_classes) == 1 else near_ideal
    best: tuple[float, tuple[int, ...]] | None = None
    for first in sorted(candidates, key=lambda candidate: abs(candidate - ideal)):
        if best is not None and first * seconds >= best[0] and first > ideal:
            continue  # this class alone takes longer than the best so far
        later_counts = _balance_classes(total - first * count, later_classes)
        if later_counts is not None:
            slowest = max(first * seconds, *(m * s for m, (_, s) in zip(later_counts, later_classes, strict=True)))
            best = min(best or (slowest, (first, *later_counts)), (slowest, (first, *later_counts)))
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


EVEN_SHARES = -1  # In place of a number of shares: all chains take equally many, or there is no other way


class ChainClasses(NamedTuple):
    """Chains of a layout by the time they take for a micro-batch."""

    of_chain: list[int]
    replicas: list[int]
    micro_batch_s: list[float]


class MicroBatchShares:
    """Shares of layouts whose chains take different numbers of micro-batches, numbered as they are asked for."""

    def __init__(self, layouts: Sequence[ParallelLayout], patterns: Sequence[LayoutPattern], speeds: Sequence[float]):
        """`patterns`: that of each layout."""
        self._layouts, self._patterns = layouts, patterns
        uneven = [number for number, layout in enumerate(layouts) if layout.uneven]
        self._classes = {number: _build_chain_classes(layouts[number], speeds) for number in uneven}
        self._numbers: dict[tuple[int, int], int] = {}
        self.per_chain: list[tuple[int, ...]] = []
        """By number: micro-batches of a replica of each different chain."""
        self.uneven = np.zeros(len(layouts), dtype=bool)
        """Chains take different numbers of micro-batches."""
        self.uneven[uneven] = True
        self.uneven_in_zone = np.zeros(len(layouts), dtype=bool)
        """Of these: replicas of a stage in one zone take different numbers of them."""
        for number, classes in self._classes.items():
            self.uneven_in_zone[number] = patterns[number].splits_zone(classes.of_chain)

    def number_shares(self, layout: int, total: int) -> int:
        """Number of the shares of so many micro-batches among the chains of a layout; `EVEN_SHARES`: there are none."""
        if (layout, total) not in self._numbers:
            counts = self._balance(layout, total)
            self._numbers[layout, total] = EVEN_SHARES if counts is None else len(self.per_chain)
            if counts is not None:
                self.per_chain.append(tuple(counts[chain] for chain in self._patterns[layout].distinct_chains.tolist()))
        return self._numbers[layout, total]

    def list_replica_shares(self, layout: int, total: int) -> tuple[int, ...]:
        """Micro-batches of each replica of a layout whose chains share out so many."""
        counts = self._balance(layout, total)
        assert counts is not None
        return tuple(m for m, n in zip(counts, self._layouts[layout].stage_map.shares, strict=True) for _ in range(n))

    def list_chain_shares(self, shares: npt.NDArray[np.int64], chain: npt.NDArray[np.int64]) -> list[int]:
        """Micro-batches of a replica, given the number of its shares and its chain's place."""
        return [self.per_chain[number][at] for number, at in zip(shares.tolist(), chain.tolist(), strict=True)]

    def _balance(self, layout: int, total: int) -> list[int] | None:
        """Micro-batches of a replica of each chain."""
        classes = self._classes[layout]
        counts = balance_micro_batches(total, classes.replicas, classes.micro_batch_s)
        return None if counts is None else [counts[chain_class] for chain_class in classes.of_chain]


def _build_chain_classes(layout: ParallelLayout, speeds: Sequence[float]) -> ChainClasses:
    chain_times = estimate_chain_times(layout.stage_map, layout.layers, speeds)
    times = sorted(set(chain_times))
    of_chain = [times.index(chain_s) for chain_s in chain_times]
    replicas = [0] * len(times)
    for count, chain_class in zip(layout.stage_map.shares, of_chain, strict=True):
        replicas[chain_class] += count
    return ChainClasses(of_chain, replicas, times)


# Rate forward, rate back and latency, [L, H, R]; None: nothing crosses zones.
BoundaryLinks = tuple[Floats, ...] | None


class LayoutTable:
    """All candidate layouts of a search, one row each (L), with the WAN links they cross."""

    def __init__(
        self,
        layouts: Sequence[ParallelLayout],
        model: Model,
        groups: Sequence[NodeGroup],
        zone_of: Sequence[int],
        wan_links: WanLinks,
        speeds: Sequence[float],
    ):
        self.layouts, self.groups, self._model = layouts, groups, model
        self.tp, self.cp, self.ep, self.pp, self.dp, self.stride = (
            np.array([(s.tp, s.cp, s.ep, s.pp, s.dp, s.stride) for s in layouts], dtype=np.int64).reshape(-1, 6).T
        )
        self.ranks_per_cell = self.tp * self.cp
        self._replicas_near = np.array([s.order == REPLICAS_NEAR for s in layouts], dtype=bool)
        self.patterns: list[LayoutPattern] = []
        self.pattern = np.zeros(len(layouts), dtype=np.int64)
        """Number of each layout's pattern."""
        self._splits: list[tuple[int, ...] | None] = []
        """Of each pattern: layers of its virtual stages; None: spread evenly."""
        pattern_numbers: dict[object, int] = {}
        group_keys = [(g.gpu, g.gpus, g.domain, g.fast_link, g.nic_gbps_node, g.fabric, g.memory_gib) for g in groups]
        kind_of = tuple(map(group_keys.index, group_keys))
        for number, layout in enumerate(layouts):
            key = (layout.stage_map.paths, layout.layers)
            if key not in pattern_numbers:
                pattern_numbers[key] = len(self.patterns)
                self.patterns.append(build_pattern(layout.stage_map.paths, tuple(zone_of), kind_of))
                self._splits.append(layout.layers)
            self.pattern[number] = pattern_numbers[key]
        self.given_chunks = np.array([len(split) if split else 0 for split in self._splits], dtype=np.int64)[
            self.pattern
        ]
        """Virtual stages in all, where their layers are given; 0: spread evenly."""
        self.micro_batch_shares = MicroBatchShares(
            layouts, [self.patterns[number] for number in self.pattern.tolist()], speeds
        )
        self.chains = np.array([len(pattern.distinct_chains) for pattern in self.patterns], dtype=np.int64)[
            self.pattern
        ]
        """Different chains of each layout."""
        self.pipeline_crosses = np.array([pattern.crosses for pattern in self.patterns], dtype=bool)[self.pattern]
        """Stages of a replica lie in several zones."""
        self._replicas = [layout.stage_map.shares for layout in layouts]
        self.replicas_cross = np.zeros(len(layouts), dtype=bool)
        """Replicas of a stage lie in several zones."""
        self._fast_after: dict[int, Floats] = {}
        self._boundaries: dict[tuple[int, int, int, bool], Floats]
        self.zone_shards = self.dp.copy()
        """Fewest replicas of a stage in one zone."""
        self.equal_zones = np.ones(len(layouts), dtype=bool)
        """Every zone in use holds equally many replicas of every stage."""
        self._layouts_of_pattern = dict(self._group_by_pattern(np.arange(len(layouts))))
        """Layouts of each pattern."""
        self._place_in_pattern = np.zeros(len(layouts), dtype=np.int64)
        self._runs: dict[tuple[int, ScheduleChoice], EqualStageRuns] = {}
        self._links: dict[tuple[int, ScheduleChoice], BoundaryLinks] = {}
        for number, members in self._layouts_of_pattern.items():
            pattern = self.patterns[number]
            self._place_in_pattern[members] = np.arange(len(members))
            if pattern.dp_zones.max() > 1:
                self.replicas_cross[members] = True
                self.zone_shards[members] = pattern.find_min_replicas_in_zone(self.list_replicas(members))
                even = self.zone_shards[members][:, None] * pattern.dp_zones == self.dp[members][:, None]
                self.equal_zones[members] = even.all(axis=1)
        self.parts: dict[str, Any] = {}
        self._set_links(wan_links)

    def _set_links(self, wan_links: WanLinks) -> None:
        """Use these links between the zones; everything computed from links is dropped together."""
        self._ways, self._boundaries, self._links = wan_links, {}, {}
        self.parts = select_parts(self.parts, without=("ring",))

    @property
    def gloo(self) -> bool:
        """Ranks talk over Gloo."""
        return self._ways.transport.library == "gloo"

    @cached_part
    def ring(self) -> Floats:
        """Rate and latency of the ring of zones, and the rate of a flat ring: [L, 3]."""
        ring_L3 = np.tile([np.inf, 0.0, np.inf], (len(self.layouts), 1))
        for number, members in self._layouts_of_pattern.items():
            if self.replicas_cross[members[0]]:
                ring_L3[members] = self.patterns[number].find_ring(
                    self.list_replicas(members), self.ranks_per_cell[members], self.tp[members], self._ways
                )
        return ring_L3

    def with_links(self, wan_links: WanLinks) -> LayoutTable:
        """The same layouts with other links between the zones."""
        other = copy(self)
        other._set_links(wan_links)
        return other

    def list_replicas(self, layouts: Ints) -> Ints:
        """Replicas of each chain of layouts with the same pattern: [n, chains]."""
        return np.array([self._replicas[i] for i in layouts.tolist()], dtype=np.int64)

    def _group_by_pattern(self, layouts: Ints) -> list[tuple[int, Ints]]:
        """Some layouts, by their pattern."""
        order = np.argsort(self.pattern[layouts], kind="stable")
        patterns, first = np.unique(self.pattern[layouts][order], return_index=True)
        pieces = np.split(layouts[order], first[1:]) if len(layouts) else []
        return list(zip(patterns.tolist(), pieces, strict=True))

    @cached_part
    def cells(self) -> Ints:
        """Cells (tp x cp GPUs) in use of each node group: [L, G]."""
        cells_LG = np.zeros((len(self.layouts), len(self.groups)), dtype=np.int64)
        for number, members in self._layouts_of_pattern.items():
            cells_LG[members] = self.list_replicas(members) @ self.patterns[number].count_stages_in(len(self.groups))
        return cells_LG

    @cached_part
    def nodes_used(self) -> Ints:
        """Nodes in use."""
        node_gpus_G = np.array([group.gpus for group in self.groups])
        # A tensor-parallel group does not straddle nodes, so the GPUs that do not fill one stay idle.
        whole_groups_LG = node_gpus_G // self.tp[:, None] * self.tp[:, None]
        per_node_LG = np.where(self.tp[:, None] <= node_gpus_G, whole_groups_LG, node_gpus_G)
        return np.asarray((-(-self.cells * self.ranks_per_cell[:, None] // np.maximum(per_node_LG, 1))).sum(axis=1))

    @cached_part
    def node_shards(self) -> Ints:
        """Replicas of a stage that lie in every node, where that is the same for all nodes; else 0."""
        node_gpus_G = np.array([group.gpus for group in self.groups])
        used_LG = self.cells > 0
        largest = np.where(used_LG, node_gpus_G, 0).max(axis=1)
        smallest = np.where(used_LG, node_gpus_G, 1 << 30).min(axis=1)
        stages_by_pattern = np.array([pattern.stages_per_group for pattern in self.patterns], dtype=np.int64)
        stages_per_group = stages_by_pattern[self.pattern]
        ranks_per_replica = np.where(
            self._replicas_near, self.ranks_per_cell, self.ranks_per_cell * np.maximum(stages_per_group, 1)
        )
        fills_nodes = (
            (largest == smallest) & (largest % ranks_per_replica == 0) & (self._replicas_near | (stages_per_group > 0))
        )
        count = np.where(fills_nodes, largest // ranks_per_replica, 0)
        for layout in np.flatnonzero(count > 1).tolist():
            if any(share % count[layout] for share in self._replicas[layout]):
                count[layout] = 0
        return count

    @cached_part
    def memory_class(self) -> Ints:
        """Number of what memory depends on: layouts of one number need the same for equal options."""
        numbers: dict[object, int] = {}
        pattern_classes = [
            numbers.setdefault((split, *sorted(set(map(tuple, pattern.kinds.tolist())))), len(numbers))
            for pattern, split in zip(self.patterns, self._splits, strict=True)
        ]
        columns = [np.array(pattern_classes, dtype=np.int64)[self.pattern], self.tp, self.cp, self.ep, self.dp]
        uneven_layout = np.where(self.micro_batch_shares.uneven, np.arange(len(self.layouts)), -1)
        keys = np.stack([*columns, self.zone_shards, self.node_shards, uneven_layout], axis=1)
        return np.unique(keys, axis=0, return_inverse=True)[1].ravel()

    @cached_part
    def fast(self) -> Floats:
        """2 where a boundary between stages may lie inside a fast-link domain, else 0."""
        domain = np.array([group.local_gpus for group in self.groups])
        widest = np.where(self.cells > 0, domain, 1).max(axis=1)
        fewest = np.array([min(shares) for shares in self._replicas], dtype=np.int64)
        return np.asarray(
            2.0 * (widest > np.where(self._replicas_near, self.ranks_per_cell * fewest, self.ranks_per_cell))
        )

    def find_fast_after(self, layout: int) -> Floats:
        """As `fast` for each stage, [S]; 1 or 0 as it is for the slowest replica, where all lie in one node group."""
        if layout not in self._fast_after:
            self._fast_after[layout] = self._compute_fast_after(layout)
        return self._fast_after[layout]

    def _compute_fast_after(self, layout: int) -> Floats:
        ranks_per_cell, pp, dp = int(self.ranks_per_cell[layout]), int(self.pp[layout]), int(self.dp[layout])
        used = np.flatnonzero(self.cells[layout])
        group = self.groups[int(used[0])]
        domain = group.local_gpus
        if len(used) > 1 or domain % ranks_per_cell or group.gpus % int(self.tp[layout]) or not self.fast[layout]:
            return np.full(pp, self.fast[layout])
        stage, replica = np.arange(pp)[:, None], np.arange(dp)
        rank_SD = ranks_per_cell * (replica + dp * stage if self._replicas_near[layout] else stage + pp * replica)
        inside_SD = rank_SD // domain == np.roll(rank_SD, -1, axis=0) // domain
        return np.asarray(inside_SD[:, np.argmin(inside_SD.sum(axis=0))] * 1.0)

    def group_by_pattern(self, layouts: Ints, schedule: ScheduleChoice) -> list[tuple[Ints, EqualStageRuns]]:
        """Layouts grouped by their pattern; with each group, the pattern's runs of equal stages.

        Without a schedule stages that cost the same are one run.
        """
        return [(members, self._build_runs(number, schedule)) for number, members in self._group_by_pattern(layouts)]

    def _build_runs(self, number: int, schedule: ScheduleChoice) -> EqualStageRuns:
        """Runs of a pattern, made once."""
        if (number, schedule) not in self._runs:
            pattern = self.patterns[number]
            layers = count_stage_layers(self._model, pattern.stages, schedule, self._splits[number])
            self._runs[number, schedule] = pattern.build_runs(schedule, layers)
        return self._runs[number, schedule]

    def find_links(self, layouts: Ints, schedule: ScheduleChoice) -> BoundaryLinks:
        """The links after the runs of layouts of one pattern: rates and latency; None where no chain crosses zones.

        Without a schedule only the slowest link of each chain counts.
        """
        number = int(self.pattern[layouts[0]])
        runs = self._build_runs(number, schedule)
        if not runs.boundaries:
            return None
        if (number, schedule) not in self._links:
            self._links[number, schedule] = self._build_links(number, runs, self._layouts_of_pattern[number])
        links = self._links[number, schedule]
        return tuple(values[self._place_in_pattern[layouts]] for values in links) if links else None

    def _build_links(self, number: int, runs: EqualStageRuns, members: Ints) -> BoundaryLinks:
        size = (len(members), len(runs.groups), 1 if runs.is_merged else len(runs))
        rate_LHR, back_rate_LHR, latency_LHR = np.full(size, np.inf), np.full(size, np.inf), np.zeros(size)
        for chain, run, a, b in runs.boundaries:
            forward, backward = (self._find_boundary(number, *direction, runs.wraps) for direction in ((a, b), (b, a)))
            at = 0 if runs.is_merged else run
            rate_LHR[:, chain, at] = np.minimum(rate_LHR[:, chain, at], forward[:, 0])
            back_rate_LHR[:, chain, at] = np.minimum(back_rate_LHR[:, chain, at], backward[:, 0])
            latency_LHR[:, chain, at] = forward[:, 1]
        return rate_LHR, back_rate_LHR, latency_LHR

    def _find_boundary(self, pattern: int, a: int, b: int, wraps: bool) -> Floats:
        """Rate and latency from zone to zone, for the layouts of a pattern: [layouts of it, 2]."""
        key = (pattern, a, b, wraps)
        if key not in self._boundaries:
            members = self._layouts_of_pattern[pattern]
            ranks = self.patterns[pattern].count_ranks(
                a, b, wraps, self.list_replicas(members), self.ranks_per_cell[members]
            )
            self._boundaries[key] = self._ways.list_boundaries(a, b, ranks)
        return self._boundaries[key]
