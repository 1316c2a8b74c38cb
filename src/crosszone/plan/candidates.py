"""Candidate: one strategy of the search by its numbers, and the predictor that simulates it.

`simulate_over_links`: one placed strategy over many sets of links between the zones at once, as the cells of a sweep
have them.

Objectives: what candidates are ranked by, exactly (`compute_objective`) and as a bound (`bound_cost_per_second`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Knowledge, compute_caution
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
from crosszone.predict.batch import list_virtual_stage_layers
from crosszone.predict.breakdown import build_breakdown, find_bottleneck
from crosszone.predict.placed_strategy import EXPECTED, PlacedStrategy
from crosszone.predict.predictor import Predictor, has_unmeasured_option
from crosszone.predict.run import HOUR_S, predict_run, read_power_figures, sum_usd_egress
from crosszone.predict.step import simulate_step
from crosszone.predict.traffic import build_traffic

MAX_ROWS = 512  # Rows that are simulated together: more do not fit in the processor's cache


def simulate_over_links(predictor: Predictor, placed_strategies: Sequence[PlacedStrategy]) -> npt.NDArray[np.float64]:
    """Expected step of a strategy over the links of each, which differ in nothing else.

    The same numbers as those of a predictor for each; without bands and periodic averaging.
    """
    assert predictor.placed.bands == 1
    assert predictor.strategy.local_update is None
    rows = len(predictor.placed.replica_classes[0])
    strategies_at_once = max(1, MAX_ROWS // rows)
    step_s = []
    for start in range(0, len(placed_strategies), strategies_at_once):
        some_strategies = placed_strategies[start : start + strategies_at_once]
        batch, count = predictor.batch, len(some_strategies)
        joined_batch = replace(
            batch,
            work=_repeat_rows(batch.work, rows, count),
            gpu=_repeat_rows(batch.gpu, rows, count),
            links=_join_rows([placed.build_link_columns() for placed in some_strategies], rows),
            counts=np.tile(batch.counts, (count, 1)),
            moe_counts=None if batch.moe_counts is None else np.tile(batch.moe_counts, (count, 1)),
            block_counts=_repeat_blocks(batch.block_counts, count),
        )
        coefficients = _repeat_rows(predictor.coefficients, rows, count)
        step = simulate_step(joined_batch, list_virtual_stage_layers(predictor.case), predictor.strategy, coefficients)
        step_s.append(step.total_s.reshape(count, rows).max(axis=1))
    return np.concatenate(step_s)


def _repeat_blocks(block_counts: tuple[Any, Any] | None, count: int) -> tuple[Any, Any] | None:
    if block_counts is None:
        return None
    attention, mamba = (np.tile(counts, (count, 1)) for counts in block_counts)
    return attention, mamba


def _repeat_rows(columns: Any, rows: int, count: int) -> Any:
    """Columns with every row so many times, all of them one after the other; numbers stay numbers."""
    repeated = {
        f.name: np.tile(value, (count, 1))
        for f in fields(columns)
        if np.ndim(value := getattr(columns, f.name)) == 2 and len(value) == rows > 1
    }
    return replace(columns, **repeated) if repeated else columns


def _join_rows(columns: Sequence[Any], rows: int) -> Any:
    """Columns of several cases, each of so many rows, as those of one."""
    joined = {}
    for f in fields(columns[0]):
        values = [getattr(part, f.name) for part in columns]
        is_number = np.ndim(values[0]) == 0
        joined[f.name] = (
            values[0] if is_number else np.concatenate([np.broadcast_to(v, (rows, np.shape(v)[-1])) for v in values])
        )
    return type(columns[0])(**joined)


ROUNDING = 1.0 - 1e-9  # On a bound: its sums may be rounded otherwise than those of the step


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One strategy of a bound table: a node and an option, with what follows once it is placed."""

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
        options = {name: tuple(sorted(v.items())) if isinstance(v, dict) else v for name, v in self.options.items()}
        crosses = self.crossing in ("dp", "both")
        return (
            self.framework.name,
            self.layout,
            self.schedule,
            self.micro_batch,
            self.micro_batches,
            tuple(sorted(options.items())),
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
        placed: tuple[Strategy, Placement] | None = self.problem.shared.get_placed(("placed", self._key))
        if placed is None:
            layout = self.layout
            placement = layout.stage_map.build_placement(self.problem.cluster, layout.tp, layout.cp, layout.order)
            placed = self._build_strategy(), placement
            self.problem.shared.put_placed(("placed", self._key), placed, layout.gpus)
        return placed

    def _build_strategy(self) -> Strategy:
        pinned, layout = self.problem.pinned, self.layout
        communication = pinned.communication if self.crossing == "none" else self.problem.communication
        options = dict(self.options)
        communication_options = options.pop("communication", {})
        settings = self.bound_table.settings
        if settings.wan_bucket_mb is not None and self.crossing in ("dp", "both"):
            communication_options = {
                **communication_options,
                "bucket_mb": float(compute_rank_bucket_mb(settings, layout.tp, layout.pp, layout.dp)),
            }
        fields: dict[str, Any] = {
            "tp": layout.tp,
            "pp": layout.pp,
            "dp": layout.dp,
            "cp": layout.cp,
            "ep": layout.ep,
            "expert_tp": pinned.expert_tp,
            "micro_batch": self.micro_batch,
            "interleave": self.schedule.virtual_stages,
            "schedule": self.schedule.name if layout.pp > 1 else None,
            "communication": communication.replace(**communication_options) if communication_options else communication,
            "layers_per_stage": self.layers_per_stage or layout.layers,
            "replica_micro_batches": self.replica_micro_batches,
            "local_update": pinned.local_update,
        } | options
        return Strategy(**{name: value for name, value in fields.items() if value is not None})

    @cached_property
    def predictor(self) -> Predictor:
        """Everything that is computed of it, at the expected RTT."""
        return self.build_predictor(banded=False)

    def build_predictor(self, *, banded: bool, notices: tuple[Notice, ...] = ()) -> Predictor:
        """Everything that is computed of it; `banded`: with the range of the links' RTT."""
        problem, settings = self.problem, self.bound_table.settings
        crossings, links = problem.wan_links.crossings, problem.scenario.links
        known_predictor: Predictor | None = problem.shared.get_placed((banded, self._key))
        if known_predictor is not None:
            return known_predictor.with_links(
                problem.scenario.name, known_predictor.placed.with_links(problem.cluster, links, crossings), notices
            )
        case = Case(
            model=problem.model,
            job=problem.job,
            cluster=problem.cluster,
            strategy=self.strategy,
            placement=self.placement,
        ).with_framework(settings.framework)
        placed = PlacedStrategy(
            case=case, placement=self.placement, links=links, banded=banded, shared_crossings=crossings
        )
        predictor = Predictor(
            name=problem.scenario.name,
            placed=placed,
            framework=settings.framework,
            profiles=settings.profiles,
            stack=settings.stack,
            notices=notices,
        )
        problem.shared.put_placed((banded, self._key), predictor, self.layout.gpus)
        return predictor

    @cached_property
    def step_s(self) -> float:
        """Simulated step at the expected RTT."""
        if not self._is_simulated_together:
            return float(self.predictor.step_s[EXPECTED])
        shared = self.problem.shared
        steps_by_links: dict[int, float] = shared.get_placed(("steps", self._key)) or {}
        link_number = next(
            number for number, wan_links in shared.announced.items() if wan_links is self.problem.wan_links
        )
        if link_number not in steps_by_links:
            placed = self.predictor.placed
            placed_strategies = [
                placed.with_links(other.cluster, other.links, other.crossings) for other in shared.announced.values()
            ]
            steps_by_links = dict(
                zip(shared.announced, simulate_over_links(self.predictor, placed_strategies).tolist(), strict=True)
            )
            shared.put_placed(("steps", self._key), steps_by_links, 0)
        return steps_by_links[link_number]

    @property
    def _is_simulated_together(self) -> bool:
        """The step depends on links, and `PlanCache` has announced problems that differ in links only."""
        ignores_links = self.strategy.local_update is not None or self.crossing == "none"
        has_own_buckets = self.bound_table.settings.wan_bucket_mb is not None and self.crossing in ("dp", "both")
        return len(self.problem.shared.announced) > 1 and not ignores_links and not has_own_buckets

    def may_beat(self, limit: float) -> bool:
        """Whether the step may be below a limit: by a bound, where that is quicker than the step itself."""
        return self._is_simulated_together or self.predictor.least_s * ROUNDING < limit

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
        placed, total = self.predictor.placed, self.predictor.step.total_s
        ends = np.cumsum(self.layout.stage_map.shares)
        chain = np.searchsorted(ends, placed.replica_classes[0], side="right")
        return tuple(float(total[chain == number].max()) for number in range(len(ends)))

    def with_shares(self, counts: tuple[int, ...]) -> Candidate:
        """The same with so many micro-batches for a replica of each chain."""
        shares = self.layout.stage_map.shares
        replica_counts = tuple(m for m, n in zip(counts, shares, strict=True) for _ in range(n))
        return replace(self, micro_batches=max(counts), replica_micro_batches=replica_counts)

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
        unknown = {"cost": _get_usd_per_hour(group) is None, "energy": group.gpu.tdp_w is None}
        code = {"cost": "objective_cost_unknown", "energy": "objective_energy_unknown"}
        if unknown.get(objective):
            zone = problem.cluster.zones[problem.zone_graph.zone_of[number]].name
            params = {"gpu": group.gpu.name, "zone": zone}
            raise IllegalError(Notice(code=code[objective], field="objective", params=params))


def bound_cost_per_second(problem: Problem, table: LayoutTable, objective: Objective) -> Floats:
    """What a second of each layout costs at least, [L], in the objective's unit; 1 where time itself counts."""
    if objective not in ("cost", "energy"):
        return np.ones(len(table.layouts))
    zones = [problem.cluster.zones[z] for z in problem.zone_graph.zone_of]
    rate_of = _get_usd_per_hour if objective == "cost" else _compute_idle_kw
    per_gpu_G = np.array([rate_of(group, zone) or 0.0 for group, zone in zip(problem.groups, zones, strict=True)])
    return np.asarray(table.cells * table.ranks_per_cell[:, None] @ per_gpu_G / HOUR_S)


def _get_usd_per_hour(group: NodeGroup, _: Zone | None = None) -> float | None:
    return group.usd_per_gpu_hour if group.usd_per_gpu_hour is not None else group.gpu.usd_per_hour


def _compute_idle_kw(group: NodeGroup, zone: Zone) -> float:
    """Power of an idle GPU with its share of host and site."""
    figures = read_power_figures()
    return (group.gpu.tdp_w or 0.0) * (figures["idle_share"] + figures["host_share"]) * (zone.pue or 1.0) / 1000.0


def compute_objective(candidate: Candidate, objective: Objective) -> float:
    """What a candidate is ranked by, smaller is better: s, $ or kWh of a step; memory: GiB left, negative."""
    caution = compute_caution(Knowledge(option_measured=not has_unmeasured_option(candidate.strategy)))
    if objective == "time":
        return caution * candidate.step_s
    if objective == "memory":
        return -candidate.predictor.memory.margin
    usd, kwh = compute_step_cost(candidate.predictor)
    value = usd if objective == "cost" else kwh
    value = None if value is None else caution * value
    return np.inf if value is None else value


def compute_step_cost(predictor: Predictor) -> tuple[float | None, float | None]:
    """$ and kWh of one step: GPUs, with what failures and checkpoints add, and what leaves the zones. [E2]"""
    breakdown = build_breakdown(predictor)
    _, shares = find_bottleneck(breakdown)
    _, egress = build_traffic(predictor, breakdown)
    run = predict_run(predictor.placed, predictor.framework.name, predictor.step_time, shares["compute"], egress)
    hours = predictor.step_time.expected / run.goodput.share / HOUR_S
    usd = (
        None
        if run.usd_per_hour is None
        else run.usd_per_hour * hours + (sum_usd_egress(predictor.placed, egress, 1) or 0.0)
    )
    return usd, None if run.kw is None else run.kw * hours
