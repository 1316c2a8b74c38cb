"""Candidate: one strategy of the search by its numbers, and the predictor that simulates it.

Over: one placed strategy over many sets of links between the zones at once, as cells of a sweep have them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.errors import IllegalError, Notice
from crosszone.inputs.cluster import NodeGroup, Zone
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.placement import Placement
from crosszone.inputs.rules import Case
from crosszone.inputs.strategy import Strategy
from crosszone.plan.bounds import BoundTable
from crosszone.plan.layout_table import LayoutTable, ScheduleChoice
from crosszone.plan.layouts import Crossing, ParallelLayout
from crosszone.plan.plan import Objective
from crosszone.plan.problem import Problem, compute_rank_bucket_mb
from crosszone.predict.batch import chunk_layers
from crosszone.predict.breakdown import bottleneck_of, breakdown_of
from crosszone.predict.predictor import Predictor
from crosszone.predict.run import HOUR_S, power_figures, run_of, usd_egress
from crosszone.predict.site import Site
from crosszone.predict.step import simulated_step
from crosszone.predict.traffic import traffic_of

ROWS = 512  # Rows that are looked at together: more do not fit the cache


def simulate_over_links(p: Predictor, sites: Sequence[Site]) -> npt.NDArray[np.float64]:
    """Expected step of a strategy over the links of each site, which differ in nothing else (`Site.on`).

    The same numbers as those of a predictor for each site; without bands and periodic averaging.
    """
    assert p.site.bands == 1
    assert p.strategy.local_update is None
    rows = len(p.site.kinds[0])
    together = max(1, ROWS // rows)
    found = []
    for start in range(0, len(sites), together):
        some = sites[start : start + together]
        batch, count = p.batch, len(some)
        many = replace(
            batch,
            work=_repeated(batch.work, rows, count),
            gpu=_repeated(batch.gpu, rows, count),
            links=_joined([site.link_columns() for site in some], rows),
            counts=np.tile(batch.counts, (count, 1)),
            sparse=None if batch.sparse is None else np.tile(batch.sparse, (count, 1)),
        )
        k = _repeated(p.coefficients, rows, count)
        step = simulated_step(many, chunk_layers(p.case), p.strategy, k)
        found.append(step.total_s.reshape(count, rows).max(axis=1))
    return np.concatenate(found)


def _repeated(columns: Any, rows: int, count: int) -> Any:
    """Columns with every row so many times, all of them one after the other; numbers stay numbers."""
    wide = {
        f.name: np.tile(value, (count, 1))
        for f in fields(columns)
        if np.ndim(value := getattr(columns, f.name)) == 2 and len(value) == rows > 1
    }
    return replace(columns, **wide) if wide else columns


def _joined(columns: Sequence[Any], rows: int) -> Any:
    """Columns of several cases, each of so many rows, as those of one."""
    found = {}
    for f in fields(columns[0]):
        values = [getattr(one, f.name) for one in columns]
        plain = np.ndim(values[0]) == 0
        found[f.name] = (
            values[0] if plain else np.concatenate([np.broadcast_to(v, (rows, np.shape(v)[-1])) for v in values])
        )
    return type(columns[0])(**found)


ROUNDED = 1.0 - 1e-9  # On a bound: its sums may be rounded otherwise than those of the step


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A strategy of one framework's grid."""

    problem: Problem
    bound_table: BoundTable
    layout: ParallelLayout
    schedule: ScheduleChoice
    micro_batch: int
    micro_batches: int
    options: dict[str, Any]
    """Fields of the strategy beside its degrees."""
    layers_per_stage: tuple[int, ...] | None = None
    replica_micro_batches: tuple[int, ...] | None = None

    @cached_property
    def _key(self) -> Hashable:
        """What it is, whatever the links between zones."""
        own = {name: tuple(sorted(v.items())) if isinstance(v, dict) else v for name, v in self.options.items()}
        crosses = self.crossing in ("dp", "both")
        return (
            self.framework.name,
            self.layout,
            self.schedule,
            self.micro_batch,
            self.micro_batches,
            tuple(sorted(own.items())),
            self.layers_per_stage,
            self.replica_micro_batches,
            self.bound_table.settings.wan_bucket_mb if crosses else None,
            self.problem.communication.flows if self.crossing != "none" else None,
        )

    @cached_property
    def strategy(self) -> Strategy:
        """With everything filled in."""
        return self._placed[0]

    @cached_property
    def placement(self) -> Placement:
        """Where its ranks run."""
        return self._placed[1]

    @cached_property
    def _placed(self) -> tuple[Strategy, Placement]:
        """Strategy and placement, made once whatever the links."""
        known: tuple[Strategy, Placement] | None = self.problem.kept.placed(("placed", self._key))
        if known is None:
            shape = self.layout
            where = shape.stage_map.build_placement(self.problem.cluster, shape.tp, shape.cp, shape.order)
            known = self._strategy(), where
            self.problem.kept.place(("placed", self._key), known, shape.gpus)
        return known

    def _strategy(self) -> Strategy:
        pinned, shape = self.problem.pinned, self.layout
        talk = pinned.communication if self.crossing == "none" else self.problem.communication
        options = dict(self.options)
        inner = options.pop("communication", {})
        setting = self.bound_table.settings
        if setting.wan_bucket_mb is not None and self.crossing in ("dp", "both"):
            inner = {**inner, "bucket_mb": float(compute_rank_bucket_mb(setting, shape.tp, shape.pp, shape.dp))}
        fields: dict[str, Any] = {
            "tp": shape.tp,
            "pp": shape.pp,
            "dp": shape.dp,
            "cp": shape.cp,
            "ep": shape.ep,
            "expert_tp": pinned.expert_tp,
            "micro_batch": self.micro_batch,
            "interleave": self.schedule.virtual_stages,
            "schedule": self.schedule.name if shape.pp > 1 else None,
            "communication": talk.replace(**inner) if inner else talk,
            "layers_per_stage": self.layers_per_stage or shape.layers,
            "replica_micro_batches": self.replica_micro_batches,
            "local_update": pinned.local_update,
        } | options
        return Strategy(**{name: value for name, value in fields.items() if value is not None})

    @cached_property
    def predictor(self) -> Predictor:
        """Everything that is computed of it, at the expected RTT."""
        return self.predictor_of(banded=False)

    def predictor_of(self, *, banded: bool, notices: tuple[Notice, ...] = ()) -> Predictor:
        """Everything that is computed of it; `banded`: with the range of the links' RTT."""
        problem, setting = self.problem, self.bound_table.settings
        crossings, links = problem.wan_links.crossings, problem.scenario.links
        known: Predictor | None = problem.kept.placed((banded, self._key))
        if known is not None:
            return known.on(problem.scenario.name, known.site.on(problem.cluster, links, crossings), notices)
        case = Case(
            model=problem.model,
            job=problem.job,
            cluster=problem.cluster,
            strategy=self.strategy,
            placement=self.placement,
        ).on(setting.framework)
        site = Site(case=case, placement=self.placement, links=links, banded=banded, shared_crossings=crossings)
        found = Predictor(
            name=problem.scenario.name,
            site=site,
            framework=setting.framework,
            profiles=setting.profiles,
            stack=setting.stack,
            release=setting.release,
            notices=notices,
        )
        problem.kept.place((banded, self._key), found, self.layout.gpus)
        return found

    @cached_property
    def step_s(self) -> float:
        """Simulated step at the expected RTT."""
        if not self._several:
            return self.predictor.step_time.expected
        kept = self.problem.kept
        known: dict[int, float] = kept.placed(("steps", self._key)) or {}
        own = next(number for number, ways in kept.ahead.items() if ways is self.problem.wan_links)
        if own not in known:
            site = self.predictor.site
            sites = [site.on(ways.cluster, ways.links, ways.crossings) for ways in kept.ahead.values()]
            known = dict(zip(kept.ahead, simulate_over_links(self.predictor, sites).tolist(), strict=True))
            kept.place(("steps", self._key), known, 0)
        return known[own]

    @property
    def _several(self) -> bool:
        """Others come next that differ in their links only, and the step depends on these (`PlanCache`)."""
        alone = self.strategy.local_update is not None or self.crossing == "none"
        own = self.bound_table.settings.wan_bucket_mb is not None and self.crossing in ("dp", "both")
        return len(self.problem.kept.ahead) > 1 and not alone and not own

    def may_beat(self, limit: float) -> bool:
        """Whether the step may be below a limit: by a bound, where that is quicker than the step itself."""
        return self._several or self.predictor.least_s * ROUNDED < limit

    @cached_property
    def crossing(self) -> Crossing:
        """What crosses zones."""
        return self.layout.stage_map.find_crossing(self.problem.zone_graph.zone_of)

    @cached_property
    def zones(self) -> tuple[int, ...]:
        """Zones in use."""
        return self.layout.stage_map.list_zones(self.problem.zone_graph.zone_of)

    @cached_property
    def chain_micro_batches(self) -> tuple[int, ...]:
        """Micro-batches of a replica of each chain."""
        counts = self.replica_micro_batches
        starts = np.cumsum([0, *self.layout.stage_map.shares[:-1]]).tolist()
        return tuple(counts[at] if counts else self.micro_batches for at in starts)

    @cached_property
    def chain_s(self) -> tuple[float, ...]:
        """Step of a replica of each chain, the others left out."""
        site, total = self.predictor.site, self.predictor.step.total_s
        ends = np.cumsum(self.layout.stage_map.shares)
        chain = np.searchsorted(ends, site.kinds[0], side="right")
        return tuple(float(total[chain == number].max()) for number in range(len(ends)))

    def with_shares(self, counts: tuple[int, ...]) -> Candidate:
        """The same with so many micro-batches for a replica of each chain."""
        shares = self.layout.stage_map.shares
        each = tuple(m for m, n in zip(counts, shares, strict=True) for _ in range(n))
        return replace(self, micro_batches=max(counts), replica_micro_batches=each)

    @property
    def framework(self) -> Framework:
        """Its framework."""
        return self.bound_table.settings.framework

    @property
    def zone_names(self) -> tuple[str, ...]:
        """Zones in use, by name."""
        return tuple(self.problem.cluster.zones[z].name for z in self.zones)


Floats = npt.NDArray[np.float64]


def require_objective_figures(problem: Problem, objective: Objective) -> None:
    """Refuse an objective whose figures are not known."""
    for number, group in enumerate(problem.groups):
        unknown = {"cost": _usd(group) is None, "energy": group.gpu.tdp_w is None}
        code = {"cost": "objective_cost_unknown", "energy": "objective_energy_unknown"}
        if unknown.get(objective):
            zone = problem.cluster.zones[problem.zone_graph.zone_of[number]].name
            params = {"gpu": group.gpu.name, "zone": zone}
            raise IllegalError(Notice(code=code[objective], field="objective", params=params))


def bound_cost_per_second(problem: Problem, land: LayoutTable, objective: Objective) -> Floats:
    """What a second of each shape costs at least, in the objective's unit; 1 where time itself counts."""
    if objective not in ("cost", "energy"):
        return np.ones(len(land.layouts))
    zones = [problem.cluster.zones[z] for z in problem.zone_graph.zone_of]
    each = _usd if objective == "cost" else _kilowatt
    per_gpu = np.array([each(group, zone) or 0.0 for group, zone in zip(problem.groups, zones, strict=True)])
    return np.asarray(land.cells * land.ranks_per_cell[:, None] @ per_gpu / HOUR_S)


def _usd(group: NodeGroup, _: Zone | None = None) -> float | None:
    return group.usd_per_gpu_hour if group.usd_per_gpu_hour is not None else group.gpu.usd_per_hour


def _kilowatt(group: NodeGroup, zone: Zone) -> float:
    """Power of an idle GPU with its share of host and site."""
    figures = power_figures()
    return (group.gpu.tdp_w or 0.0) * (figures["idle_share"] + figures["host_share"]) * (zone.pue or 1.0) / 1000.0


def compute_objective(candidate: Candidate, objective: Objective) -> float:
    """What a candidate is ranked by, smaller is better: s, $ or kWh of a step; memory: GiB left, negative."""
    if objective == "time":
        return candidate.step_s
    if objective == "memory":
        return -candidate.predictor.memory().margin
    usd, kwh = compute_step_cost(candidate.predictor)
    found = usd if objective == "cost" else kwh
    return np.inf if found is None else found


def compute_step_cost(p: Predictor) -> tuple[float | None, float | None]:
    """$ and kWh of one step: GPUs, with what failures and checkpoints add, and what leaves the zones. [E2]"""
    breakdown = breakdown_of(p)
    _, shares = bottleneck_of(breakdown)
    _, egress = traffic_of(p, breakdown)
    run = run_of(p.site, p.framework.name, p.step_time, shares["compute"], egress)
    hours = p.step_time.expected / run.goodput.share / HOUR_S
    usd = None if run.usd_per_hour is None else run.usd_per_hour * hours + (usd_egress(p.site, egress, 1) or 0.0)
    return usd, None if run.kw is None else run.kw * hours
