"""Problem: a scenario as the search sees it, with what all frameworks have in common.

`choose_flows`: TCP connections that plans open between zones, so that windows do not hold a wide line up.

`PlanCache`: what problems that differ only in their links share, so that the next plan of a sweep costs a fraction of
the first. Whatever is put there must not depend on links.

`SearchSettings`: what all strategies of one framework have in common.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.collectives import best_bucket_bytes
from crosszone.cost.columns import Numbers
from crosszone.cost.memory import GIB
from crosszone.cost.profile import Profiles
from crosszone.cost.tiers import Tier
from crosszone.cost.wan import EXPECTED, build_zone_paths
from crosszone.errors import Notice
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.frameworks import Framework, load_frameworks
from crosszone.inputs.job import Job, find_compute_path, state_bytes
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.rules import (
    Case,
    check_framework_axes,
    check_framework_needs,
    check_framework_options,
    check_framework_precision,
)
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.software import SettledSoftware, find_newest_architecture, find_release
from crosszone.inputs.strategy import Communication, LocalUpdate, Strategy
from crosszone.plan.layout_table import LayoutTable, WanLinks, balance_layers_by_speed
from crosszone.plan.layouts import (
    Breadth,
    DegreeChoices,
    StageMap,
    ZoneGraph,
    ZoneOrder,
    build_zone_graph,
    iterate_layouts,
    list_zone_orders,
)
from crosszone.predict.batch import compute_bucket_bytes
from crosszone.predict.fits import compute_safe_share
from crosszone.predict.memory import get_host_gib
from crosszone.predict.parts import cached_part
from crosszone.predict.placed_strategy import select_transport

RANKS_PER_LINE = 8  # Ranks that fill a line together: those of a node
MAX_FLOWS = 64  # NCCL allows 64 sockets a connection (NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD)


def choose_flows(
    communication: Communication, cluster: Cluster, links: Mapping[tuple[int, int], ZoneLink]
) -> Communication:
    """The options with as many connections a channel as fill every line between zones, unless a number is given. [W7]

    Eight ranks (or a zone's, where it has fewer) with their channels carry flows x one window a round trip each; the
    smallest power of two that reaches the rate of the widest line, at most 64.
    """
    if "flows" in communication.model_fields_set or not links:
        return communication
    one_flow = select_transport(communication.replace(flows=1), cluster)
    if one_flow.library == "gloo":  # has one connection between two ranks
        return communication
    paths = build_zone_paths(cluster, one_flow, links)
    ranks = min(RANKS_PER_LINE, *(zone.gpus for zone in cluster.zones))
    flow_bytes_per_s, line_bytes_per_s = paths.group_bytes_per_s[EXPECTED], paths.limits.pair
    line_bytes_per_s = np.minimum(
        line_bytes_per_s, np.minimum(paths.limits.egress[:, None], paths.limits.ingress[None, :])
    )
    needed = max(float(line_bytes_per_s[a, b] / (ranks * flow_bytes_per_s[a, b])) for a, b in _list_directions(links))
    if not needed > 1:
        return communication
    return communication.replace(flows=min(MAX_FLOWS, 2 ** math.ceil(math.log2(min(needed, MAX_FLOWS)))))


def _list_directions(links: Mapping[tuple[int, int], ZoneLink]) -> list[tuple[int, int]]:
    return [*links, *((b, a) for a, b in links)]


MAX_PROBLEM_CACHES = 6  # Problems that are remembered; the one used longest ago goes first


class ProblemCache(dict[Hashable, Any]):
    """What problems that differ only in their links share: search spaces, layout tables, placed strategies."""

    max_placed_ranks = 2_000_000
    """Ranks of placed strategies that are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self._placed: dict[Hashable, Any] = {}
        self._ranks = 0
        self.announced: dict[int, Any] = {}
        """Links of the problems that come next, this one among them, by number. Numbers are not used twice."""
        self._numbers = count()

    def announce_links(self, links_of_problems: Iterable[Any]) -> None:
        """Take the links of the problems that come next: a strategy is then simulated for all of them at once."""
        self.announced = {next(self._numbers): wan_links for wan_links in links_of_problems}

    def get_placed(self, key: Hashable) -> Any:
        """What was put under the key of a placed strategy; None: nothing."""
        return self._placed.get(key)

    def put_placed(self, key: Hashable, value: Any, ranks: int) -> None:
        """Remember something of a placed strategy of so many ranks."""
        if self._ranks + ranks > self.max_placed_ranks:
            self._placed, self._ranks = {}, 0  # memory stays bounded; what is needed again is computed again
        self._placed[key] = value
        self._ranks += ranks


class PlanCache:
    """Caches of the last problems, by everything of a problem but its links."""

    def __init__(self, *, lasting: bool = False) -> None:
        self.lasting = lasting
        """More than one problem will use it: answers of bound tables are worth remembering too."""
        self._caches: list[tuple[tuple[Any, ...], ProblemCache]] = []

    def find_problem_cache(self, *key: Any) -> ProblemCache:
        """The cache of the problems with this key."""
        for at, (known_key, problem_cache) in enumerate(self._caches):
            if known_key == key:
                self._caches.append(self._caches.pop(at))
                return problem_cache
        self._caches = [*self._caches[1 - MAX_PROBLEM_CACHES :], (key, ProblemCache())]
        return self._caches[-1][1]


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

    @cached_part
    def shared(self) -> ProblemCache:
        """The cache of problems with these zones, this model, job and pinned strategy, whatever their links."""
        return self.cache.find_problem_cache(self.model, self.job, self.cluster.zones, self.pinned, self.profiles)

    def with_local_update(self, local_update: LocalUpdate) -> Problem:
        """The same with local SGD: zones train on their own and average now and then."""
        other = replace(self, pinned=self.pinned.replace(local_update=local_update))
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

    @cached_part
    def groups(self) -> tuple[NodeGroup, ...]:
        """Node groups of all zones."""
        return tuple(group for _, group in self.cluster.zone_groups)

    @cached_part
    def zone_graph(self) -> ZoneGraph:
        """What zone orders are chosen by."""
        return build_zone_graph(self.cluster, self.scenario.links, find_compute_path(self.job))

    @cached_part
    def zone_orders(self) -> list[ZoneOrder]:
        """Zone orders of the node groups; with local SGD, only whole replicas in several zones."""
        orders = list_zone_orders(self.zone_graph)
        if self.pinned.local_update is None:
            return orders
        zone_of = self.zone_graph.zone_of
        return [r for r in orders if all(len(path) == 1 for path in r) and len({zone_of[p[0]] for p in r}) > 1]

    @cached_part
    def communication(self) -> Communication:
        """How ranks talk, what is not given filled in for the links between the zones."""
        return choose_flows(self.pinned.communication, self.cluster, self.scenario.links)

    @cached_part
    def wan_links(self) -> WanLinks:
        """Links between the zones."""
        transport = select_transport(self.communication, self.cluster)
        return WanLinks(cluster=self.cluster, links=self.scenario.links, transport=transport)

    @cached_part
    def frameworks(self) -> list[Framework]:
        """Frameworks that can do what is pinned, in the job's precision."""
        refused = {notice.params["framework"] for notice in self.refused}
        return [framework for framework in self._requested_frameworks if framework.title not in refused]

    @cached_part
    def refused(self) -> list[Notice]:
        """What each of the other frameworks cannot do."""
        case = self.build_case(self.pinned if self.pinned.dp else self.pinned.replace(dp=1))
        notices = []
        for framework in self._requested_frameworks:
            rules = (check_framework_axes, check_framework_options, check_framework_precision)
            broken = [notice for rule in rules for notice in rule(case.with_framework(framework), framework)]
            schedule = self.pinned.schedule
            if schedule is not None and schedule not in framework.schedules:
                params = {"framework": framework.title, "option": "schedule", "allowed": framework.schedules}
                broken.append(Notice(code="framework_lacks", field="strategy.schedule", value=schedule, params=params))
            notices += (
                broken
                or [
                    need
                    for need in check_framework_needs(case.with_framework(framework), framework)
                    if _pins_all_fields(self, need)
                ]
            )[:1]
        return notices

    @property
    def _requested_frameworks(self) -> list[Framework]:
        all_frameworks, requested = load_frameworks(), self.job.framework
        return list(all_frameworks.values()) if requested == "any" else [all_frameworks[requested]]

    def build_layout_table(self, degrees: DegreeChoices, breadth: Breadth) -> LayoutTable:
        """The layouts of these degrees, built once."""
        key = (degrees, breadth)
        if key not in self._layout_tables:
            cache_key = ("layout_table", *key, tuple(self.zone_orders))
            if cache_key in self.shared:
                self._layout_tables[key] = self.shared[cache_key].with_links(self.wan_links)
                return self._layout_tables[key]
            rules = (degrees, breadth, self._list_layer_splits, self.can_hold_tp, self._uneven_speeds)
            layouts = list(iterate_layouts(self.cluster, self.zone_graph, self.zone_orders, *rules))
            if self.pinned.local_update is not None:
                layouts = [layout for layout in layouts if layout.stage_map.has_equal_zones(self.zone_graph.zone_of)]
            table = LayoutTable(layouts, self.model, self.groups, self.zone_graph.zone_of, self.wan_links, self._speeds)
            self._layout_tables[key] = self.shared[cache_key] = table
        return self._layout_tables[key]

    @cached_part
    def _layout_tables(self) -> dict[tuple[DegreeChoices, Breadth], LayoutTable]:
        return {}

    def can_hold_tp(self, group: NodeGroup, tp: int) -> bool:
        """A node group may hold such tensor-parallel groups: inside a fast-link domain or a node, unless pinned."""
        return self.is_pinned("tp") or tp <= (group.domain if group.fast_link else group.gpus)

    def _list_layer_splits(self, stage_map: StageMap) -> list[tuple[int, ...] | None]:
        """Splits of the layers to try: the pinned one; else even, and by speed where stages lie on different GPUs."""
        pinned = self.pinned.layers_per_stage
        if pinned is not None:
            return [pinned] if len(pinned) % stage_map.stages == 0 else []
        if len(set(self._speeds)) == 1:
            return [None]
        slowest = [min(self._speeds[g] for g in stage) for stage in stage_map.groups.T.tolist()]
        if len(set(slowest)) == 1:
            return [None]
        return [None, balance_layers_by_speed(self.model, slowest)]

    @property
    def _uneven_speeds(self) -> list[float] | None:
        """Speeds of the node groups, where replicas may take different numbers of micro-batches."""
        is_able = any(framework.uneven_micro_batches for framework in self.frameworks)
        is_fixed = self.pinned.local_update is not None or self.is_pinned("dp")
        return self._speeds if is_able and not is_fixed and min(self._speeds) > 0 else None

    @cached_part
    def _speeds(self) -> list[float]:
        """Peak of one GPU of each node group, scaled to the speed that a trial measured."""
        precision = find_compute_path(self.job)
        return [(group.gpu.peak(precision) or 0.0) * (group.speed or 1.0) for group in self.groups]

    def build_case(self, strategy: Strategy) -> Case:
        """What the rules of legality look at."""
        return Case(model=self.model, job=self.job, cluster=self.cluster, strategy=strategy)

    def is_pinned(self, field: str) -> bool:
        """The user gave this degree or option."""
        return field in self.pinned.pinned and getattr(self.pinned, field) is not None


def _pins_all_fields(problem: Problem, notice: Notice) -> bool:
    """Whether all fields that a framework's need is about are pinned."""
    reason = str(notice.params.get("reason", ""))
    fields = [
        notice.field.removeprefix("strategy."),
        *(condition.split("=")[0] for condition in reason.split(" and ")),
    ]
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
    pinned: Strategy
    wan_bucket_mb: float | None = None
    """MB of a whole model's gradients that go together between zones (`buckets`); None: as pinned or usual."""
    safe: bool = False
    """Memory must suffice with the verdict `yes`."""

    @cached_property
    def layers_know_pipelines(self) -> bool:
        """A layer's cost depends on whether it lies in a pipeline: by padding, or by ranks that wait there."""
        waits = any(np.any(k.pipeline_host_s > 0) for k in self.coefficients)
        return waits or self.framework.vocab_multiple_split is not None

    @cached_property
    def software(self) -> SettledSoftware:
        """Every switch of the software."""
        gpus = [group.gpu for group in self.groups]
        release = find_release(self.job.software, self.job.stack, gpus)
        architecture = find_newest_architecture(gpus)
        return self.profiles.settle_software(self.job, self.framework.name, self.stack, release, architecture)

    @cached_property
    def memory_share(self) -> float:
        """Share of a GPU's memory that the expected peak may take."""
        if not self.safe:
            return 1.0
        return compute_safe_share(self.stack)

    @cached_property
    def memory_bytes(self) -> list[tuple[float, float]]:
        """What a GPU of each node group has for the expected peak, on itself and in its node."""
        # a framework that never offloads needs no memory of its hosts
        offloads = any(value != "none" for value in self.framework.offload)
        host_gib = [get_host_gib(group) if offloads else math.inf for group in self.groups]
        return [
            (self.memory_share * group.gpu.memory_gib * GIB, host * GIB)
            for group, host in zip(self.groups, host_gib, strict=True)
        ]

    @cached_property
    def coefficients(self) -> list[Coefficients]:
        """Of each node group."""
        return [self.profiles.select(group.gpu, self.stack, group.speed).coefficients for group in self.groups]


MB = 1e6


def choose_wan_bucket_mb(problem: Problem, framework: Framework) -> float | None:
    """MB of a whole model's gradients that go together between zones; None: nobody may choose, or it costs memory. [W6]

    n buckets of S bytes pay n latencies of A and leave S / (n B) at the end: n = sqrt(S / (A B)), for a ring over all
    zones, so that it depends on the links and the model only.
    """
    is_settled = problem.pinned.communication.bucket_mb is not None or problem.pinned.local_update is not None
    zones = tuple(range(len(problem.cluster.zones)))
    if is_settled or len(zones) < 2 or not framework.has_buckets or framework.bucket_buffer:
        return None
    crossings = problem.wan_links.crossings
    ranks = min(zone.gpus for zone in problem.cluster.zones)
    ring = crossings.get_ring_link(crossings.get_ring(zones, ranks), ranks)
    gradient_bytes = parameters(problem.model).total * state_bytes(problem.job, framework=framework.name).gradients
    latency_s = 2 * (len(zones) - 1) * float(ring.latency_s[EXPECTED])
    if latency_s <= 0:
        return gradient_bytes / MB
    return float(best_bucket_bytes(gradient_bytes, Tier(float(ring.bytes_per_s[EXPECTED]), latency_s))) / MB


def compute_rank_bucket_mb(settings: SearchSettings, tp: Numbers, pp: Numbers, dp: Numbers) -> Numbers:
    """MB of gradients of one rank that go together between zones: at least what the framework takes anyway. [W6]"""
    assert settings.wan_bucket_mb is not None
    grad_bytes = state_bytes(settings.job, framework=settings.framework.name).gradients
    usual_mb = compute_bucket_bytes(settings.model, None, settings.framework.name, grad_bytes, tp, dp) / MB
    return np.maximum(usual_mb, np.ceil(settings.wan_bucket_mb / (np.asarray(tp) * pp)))
