"""Problem: a scenario as the search sees it, with what all frameworks have in common.

Flows: TCP connections that plans open between zones, so that windows do not hold a wide line up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crosszone.cost.profile import Profiles
from crosszone.cost.wan import EXPECTED, zone_paths
from crosszone.errors import Notice
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.frameworks import Framework, frameworks
from crosszone.inputs.job import Job, compute_precision
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.model import Model
from crosszone.inputs.rules import (
    Case,
    framework_has_axes,
    framework_has_options,
    framework_has_precision,
    framework_needs_met,
)
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Communication, LocalUpdate, Strategy
from crosszone.plan.cache import PlanCache, ProblemCache
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
        other.parts.update(ways=self.ways, ground=self.ground, groups=self.groups)
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
    def ground(self) -> ZoneGraph:
        """What routes are chosen on."""
        return build_zone_graph(self.cluster, self.scenario.links, compute_precision(self.job))

    @part
    def routes(self) -> list[ZoneOrder]:
        """Routes through the node groups; where zones average, whole replicas in several zones."""
        found = list_zone_orders(self.ground)
        if self.pinned.local_update is None:
            return found
        zone_of = self.ground.zone_of
        return [r for r in found if all(len(path) == 1 for path in r) and len({zone_of[p[0]] for p in r}) > 1]

    @part
    def communication(self) -> Communication:
        """How ranks talk, what is not given filled in for the links between the zones."""
        return choose_flows(self.pinned.communication, self.cluster, self.scenario.links)

    @part
    def ways(self) -> WanLinks:
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

    def land(self, degrees: Degrees, breadth: Breadth) -> LayoutTable:
        """The shapes of these degrees, made once."""
        key = (degrees, breadth)
        if key not in self._lands:
            kept = ("land", *key, tuple(self.routes))
            if kept in self.kept:
                self._lands[key] = self.kept[kept].on(self.ways)
                return self._lands[key]
            how = (degrees, breadth, self._layer_splits, self.holds_tp, self._uneven_speeds)
            found = list(iterate_layouts(self.cluster, self.ground, self.routes, *how))
            if self.pinned.local_update is not None:
                found = [shape for shape in found if shape.layout.level(self.ground.zone_of)]
            land = LayoutTable(found, self.model, self.groups, self.ground.zone_of, self.ways, self._speeds)
            self._lands[key] = self.kept[kept] = land
        return self._lands[key]

    @part
    def _lands(self) -> dict[tuple[Degrees, Breadth], LayoutTable]:
        return {}

    def holds_tp(self, group: NodeGroup, tp: int) -> bool:
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
