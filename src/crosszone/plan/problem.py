"""Problem: a scenario as the search sees it, with what all frameworks have in common.

Flows: TCP connections that plans open between zones, so that windows do not hold a wide line up.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from crosszone.cost.coefficients import Coefficients, band_factors
from crosszone.cost.collectives import best_bucket_bytes
from crosszone.cost.columns import Numbers
from crosszone.cost.memory import GIB
from crosszone.cost.profile import Profiles
from crosszone.cost.tiers import Tier
from crosszone.cost.wan import EXPECTED, zone_paths
from crosszone.errors import Notice
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.frameworks import Framework, frameworks
from crosszone.inputs.job import Job, compute_precision, state_bytes
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.rules import (
    Case,
    framework_has_axes,
    framework_has_options,
    framework_has_precision,
    framework_needs_met,
)
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Communication, LocalUpdate, Strategy
from crosszone.plan.layout_table import LayoutTable, WanLinks, balance_layers_by_speed
from crosszone.plan.layouts import (
    Breadth,
    Degrees,
    StageMap,
    ZoneGraph,
    ZoneOrder,
    build_zone_graph,
    iterate_layouts,
    list_zone_orders,
)
from crosszone.predict.batch import buckets
from crosszone.predict.memory import host_gib
from crosszone.predict.parts import part
from crosszone.predict.site import transport_of

TOGETHER = 8  # Ranks that fill a line together: a node's
MOST = 64  # Sockets of a connection that NCCL allows


def choose_flows(asked: Communication, cluster: Cluster, links: Mapping[tuple[int, int], ZoneLink]) -> Communication:
    """The options with as many connections a channel as fill every line between zones, unless a number is given. [W7]

    Eight ranks (or a zone's, where it has fewer) with their channels carry flows x one window a round trip each; the
    smallest power of two that reaches the rate of the widest line, at most 64.
    """
    if "flows" in asked.model_fields_set or not links:
        return asked
    one_flow = transport_of(asked.replace(flows=1), cluster)
    if one_flow.library == "gloo":  # has one connection between two ranks
        return asked
    paths = zone_paths(cluster, one_flow, links)
    ranks = min(TOGETHER, *(zone.gpus for zone in cluster.zones))
    one, wide = paths.group_bytes_per_s[EXPECTED], paths.limits.pair
    wide = np.minimum(wide, np.minimum(paths.limits.egress[:, None], paths.limits.ingress[None, :]))
    needed = max(float(wide[a, b] / (ranks * one[a, b])) for a, b in _ways(links))
    if not needed > 1:
        return asked
    return asked.replace(flows=min(MOST, 2 ** math.ceil(math.log2(min(needed, MOST)))))


def _ways(links: Mapping[tuple[int, int], ZoneLink]) -> list[tuple[int, int]]:
    return [*links, *((b, a) for a, b in links)]


MOST_GROUNDS = 6  # Grounds that are remembered; the one used longest ago goes first


class ProblemCache(dict[Hashable, Any]):
    """What is known of one ground: spaces, shapes, placed strategies."""

    most_placed = 2_000_000
    """Ranks of placed strategies that are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self._placed: dict[Hashable, Any] = {}
        self._ranks = 0
        self.ahead: dict[int, Any] = {}
        """Links of the problems that come next, this one among them, by a number of their own."""
        self._numbers = count()

    def look_ahead(self, ways: Iterable[Any]) -> None:
        """Links of the problems that come next: what is simulated for one is simulated for all of them at once."""
        self.ahead = {next(self._numbers): one for one in ways}

    def placed(self, key: Hashable) -> Any:
        """What was put under the key of a placed strategy."""
        return self._placed.get(key)

    def place(self, key: Hashable, value: Any, ranks: int) -> None:
        """Remember something of a placed strategy of so many ranks."""
        if self._ranks + ranks > self.most_placed:
            self._placed, self._ranks = {}, 0
        self._placed[key] = value
        self._ranks += ranks


class PlanCache:
    """What is known, by the ground it stands on: everything of a problem but its links."""

    def __init__(self, *, lasting: bool = False) -> None:
        self.lasting = lasting
        """More than one problem will ask."""
        self._grounds: list[tuple[tuple[Any, ...], ProblemCache]] = []

    def on(self, *ground: Any) -> ProblemCache:
        """What is known of a ground."""
        for at, (known, kept) in enumerate(self._grounds):
            if known == ground:
                self._grounds.append(self._grounds.pop(at))
                return kept
        self._grounds = [*self._grounds[1 - MOST_GROUNDS :], (ground, ProblemCache())]
        return self._grounds[-1][1]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is to be planned; `pinned` holds what the user wants as it is."""

    scenario: Scenario
    pinned: Strategy
    profiles: Profiles
    cache: PlanCache = field(default_factory=PlanCache, repr=False, compare=False)
    """What is known from problems that differ only in their links."""
    parts: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)
    """What has been computed of it so far, by name; a changed copy begins anew."""

    @part
    def kept(self) -> ProblemCache:
        """What is known of problems with these zones, this model, job and pinned strategy, whatever their links."""
        return self.cache.on(self.model, self.job, self.cluster.zones, self.pinned, self.profiles)

    def averaging(self, how: LocalUpdate) -> Problem:
        """The same with zones that train on their own and average now and then."""
        other = replace(self, pinned=self.pinned.replace(local_update=how))
        other.parts.update(wan_links=self.wan_links, zone_graph=self.zone_graph, groups=self.groups)
        return other

    @property
    def model(self) -> Model:
        """What is trained."""
        return self.scenario.model

    @property
    def job(self) -> Job:
        """How it is trained."""
        return self.scenario.job

    @property
    def cluster(self) -> Cluster:
        """Where it is trained."""
        return self.scenario.cluster

    @part
    def groups(self) -> tuple[NodeGroup, ...]:
        """Node groups of all zones."""
        return tuple(group for _, group in self.cluster.groups())

    @part
    def zone_graph(self) -> ZoneGraph:
        """What routes are chosen on."""
        return build_zone_graph(self.cluster, self.scenario.links, compute_precision(self.job))

    @part
    def zone_orders(self) -> list[ZoneOrder]:
        """Routes through the node groups; where zones average, whole replicas in several zones."""
        found = list_zone_orders(self.zone_graph)
        if self.pinned.local_update is None:
            return found
        zone_of = self.zone_graph.zone_of
        return [r for r in found if all(len(path) == 1 for path in r) and len({zone_of[p[0]] for p in r}) > 1]

    @part
    def communication(self) -> Communication:
        """How ranks talk, what is not given filled in for the links between the zones."""
        return choose_flows(self.pinned.communication, self.cluster, self.scenario.links)

    @part
    def wan_links(self) -> WanLinks:
        """Links between the zones."""
        how = transport_of(self.communication, self.cluster)
        return WanLinks(cluster=self.cluster, links=self.scenario.links, transport=how)

    @part
    def frameworks(self) -> list[Framework]:
        """Frameworks that can do what is pinned, in the job's precision."""
        refused = {notice.params["framework"] for notice in self.refused}
        return [framework for framework in self._asked if framework.title not in refused]

    @part
    def refused(self) -> list[Notice]:
        """What each of the other frameworks cannot do."""
        case = self.case(self.pinned if self.pinned.dp else self.pinned.replace(dp=1))
        found = []
        for framework in self._asked:
            rules = (framework_has_axes, framework_has_options, framework_has_precision)
            broken = [notice for rule in rules for notice in rule(case.on(framework), framework)]
            schedule = self.pinned.schedule
            if schedule is not None and schedule not in framework.schedules:
                params = {"framework": framework.title, "option": "schedule", "allowed": framework.schedules}
                broken.append(Notice(code="framework_lacks", field="strategy.schedule", value=schedule, params=params))
            found += (
                broken or [one for one in framework_needs_met(case.on(framework), framework) if _pins(self, one)]
            )[:1]
        return found

    @property
    def _asked(self) -> list[Framework]:
        known, asked = frameworks(), self.job.framework
        return list(known.values()) if asked == "any" else [known[asked]]

    def build_layout_table(self, degrees: Degrees, breadth: Breadth) -> LayoutTable:
        """The shapes of these degrees, made once."""
        key = (degrees, breadth)
        if key not in self._layout_tables:
            kept = ("layout_table", *key, tuple(self.zone_orders))
            if kept in self.kept:
                self._layout_tables[key] = self.kept[kept].with_links(self.wan_links)
                return self._layout_tables[key]
            how = (degrees, breadth, self._layer_splits, self.can_hold_tp, self._uneven_speeds)
            found = list(iterate_layouts(self.cluster, self.zone_graph, self.zone_orders, *how))
            if self.pinned.local_update is not None:
                found = [shape for shape in found if shape.stage_map.has_equal_zones(self.zone_graph.zone_of)]
            land = LayoutTable(found, self.model, self.groups, self.zone_graph.zone_of, self.wan_links, self._speeds)
            self._layout_tables[key] = self.kept[kept] = land
        return self._layout_tables[key]

    @part
    def _layout_tables(self) -> dict[tuple[Degrees, Breadth], LayoutTable]:
        return {}

    def can_hold_tp(self, group: NodeGroup, tp: int) -> bool:
        """A node group may hold such tensor-parallel groups: inside a fast-link domain or a node, unless pinned."""
        return self.is_pinned("tp") or tp <= (group.domain if group.fast_link else group.gpus)

    def _layer_splits(self, layout: StageMap) -> list[tuple[int, ...] | None]:
        """Splits of the layers to try: the pinned one; else even, and by speed where stages lie on different GPUs."""
        pinned = self.pinned.layers_per_stage
        if pinned is not None:
            return [pinned] if len(pinned) % layout.stages == 0 else []
        if len(set(self._speeds)) == 1:
            return [None]
        slowest = [min(self._speeds[g] for g in stage) for stage in layout.groups.T.tolist()]
        if len(set(slowest)) == 1:
            return [None]
        return [None, balance_layers_by_speed(self.model, slowest)]

    @property
    def _uneven_speeds(self) -> list[float] | None:
        """Speeds of the node groups, where replicas may take different numbers of micro-batches."""
        able = any(framework.uneven_micro_batches for framework in self.frameworks)
        fixed = self.pinned.local_update is not None or self.is_pinned("dp")
        return self._speeds if able and not fixed and min(self._speeds) > 0 else None

    @part
    def _speeds(self) -> list[float]:
        """Peak of one GPU of each node group, as fast as a trial found it."""
        path = compute_precision(self.job)
        return [(group.gpu.peak(path) or 0.0) * (group.speed or 1.0) for group in self.groups]

    def case(self, strategy: Strategy) -> Case:
        """What the rules of legality look at."""
        return Case(model=self.model, job=self.job, cluster=self.cluster, strategy=strategy)

    def is_pinned(self, field: str) -> bool:
        """The user gave this degree or option."""
        return field in self.pinned.pinned and getattr(self.pinned, field) is not None


def _pins(problem: Problem, notice: Notice) -> bool:
    """Whether all fields that a framework's need is about are pinned."""
    reason = str(notice.params.get("reason", ""))
    fields = [notice.field.removeprefix("strategy."), *(part.split("=")[0] for part in reason.split(" and "))]
    return all(name.split(".")[0] in problem.pinned.pinned for name in fields)


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """What all strategies of a search have in common."""

    model: Model
    job: Job
    groups: tuple[NodeGroup, ...]
    framework: Framework
    profiles: Profiles
    stack: str
    release: float | None
    pinned: Strategy
    wan_bucket_mb: float | None = None
    """MB of a whole model's gradients that go together between zones (`buckets`); None: as pinned or usual."""
    safe: bool = False
    """Memory must suffice even at the high end of its range."""

    @cached_property
    def memory_share(self) -> float:
        """Share of a GPU's memory that the expected peak may take."""
        if not self.safe:
            return 1.0
        measured = all(self.profiles.select(group.gpu, self.stack).stack_measured for group in self.groups)
        return 1.0 / float(band_factors(stack_measured=measured, memory=True)[1])

    @cached_property
    def memory_bytes(self) -> list[tuple[float, float]]:
        """What a GPU of each node group has for the expected peak, on itself and in its node."""
        return [(self.memory_share * group.gpu.memory_gib * GIB, host_gib(group) * GIB) for group in self.groups]

    @cached_property
    def coefficients(self) -> list[Coefficients]:
        """Of each node group."""
        return [self.profiles.select(one.gpu, self.stack, one.speed).coefficients for one in self.groups]


MB = 1e6


def choose_wan_bucket_mb(problem: Problem, framework: Framework) -> float | None:
    """MB of a whole model's gradients that go together between zones; None: nobody may choose, or it costs memory. [W6]

    n buckets of S bytes pay n latencies of A and leave S / (n B) at the end: n = sqrt(S / (A B)), for a ring over all
    zones, so that it depends on the links and the model only.
    """
    asked = problem.pinned.communication.bucket_mb is not None or problem.pinned.local_update is not None
    zones = tuple(range(len(problem.cluster.zones)))
    if asked or len(zones) < 2 or not framework.has_buckets or framework.bucket_buffer:
        return None
    crossings = problem.wan_links.crossings
    ranks = min(zone.gpus for zone in problem.cluster.zones)
    ring = crossings.ring_link(crossings.ring(zones, ranks), ranks)
    size = parameters(problem.model).total * state_bytes(problem.job, framework=framework.name).gradients
    late = 2 * (len(zones) - 1) * float(ring.latency_s[EXPECTED])
    if late <= 0:
        return size / MB
    return float(best_bucket_bytes(size, Tier(float(ring.bytes_per_s[EXPECTED]), late))) / MB


def compute_rank_bucket_mb(setting: SearchSettings, tp: Numbers, pp: Numbers, dp: Numbers) -> Numbers:
    """MB of gradients of one rank that go together between zones: at least what the framework takes anyway. [W6]"""
    assert setting.wan_bucket_mb is not None
    kept = state_bytes(setting.job, framework=setting.framework.name).gradients
    usual = buckets(setting.model, None, setting.framework.name, kept, tp, dp) / MB
    return np.maximum(usual, np.ceil(setting.wan_bucket_mb / (np.asarray(tp) * pp)))
