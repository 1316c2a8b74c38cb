"""Objectives: what plans are ranked by, exactly for one, and as a bound for many.

Time is the step; cost and energy are those of a step with the share of the run that failures and checkpoints take.
Memory ranks by what the fullest GPU has left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from crosszone.errors import IllegalError, Notice
from crosszone.inputs.cluster import NodeGroup, Zone
from crosszone.plan.candidates import Candidate
from crosszone.plan.layout_table import LayoutTable
from crosszone.plan.plan import Objective
from crosszone.plan.problem import Problem
from crosszone.predict.breakdown import bottleneck_of, breakdown_of
from crosszone.predict.predictor import Predictor
from crosszone.predict.run import HOUR_S, power_figures, run_of, usd_egress
from crosszone.predict.traffic import traffic_of

Floats = npt.NDArray[np.float64]


def require_objective_figures(problem: Problem, objective: Objective) -> None:
    """Refuse an objective whose figures are not known."""
    for number, group in enumerate(problem.groups):
        unknown = {"cost": _usd(group) is None, "energy": group.gpu.tdp_w is None}
        code = {"cost": "objective_cost_unknown", "energy": "objective_energy_unknown"}
        if unknown.get(objective):
            zone = problem.cluster.zones[problem.ground.zone_of[number]].name
            params = {"gpu": group.gpu.name, "zone": zone}
            raise IllegalError(Notice(code=code[objective], field="objective", params=params))


def bound_cost_per_second(problem: Problem, land: LayoutTable, objective: Objective) -> Floats:
    """What a second of each shape costs at least, in the objective's unit; 1 where time itself counts."""
    if objective not in ("cost", "energy"):
        return np.ones(len(land.shapes))
    zones = [problem.cluster.zones[z] for z in problem.ground.zone_of]
    each = _usd if objective == "cost" else _kilowatt
    per_gpu = np.array([each(group, zone) or 0.0 for group, zone in zip(problem.groups, zones, strict=True)])
    return np.asarray(land.cells * land.cell[:, None] @ per_gpu / HOUR_S)


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
