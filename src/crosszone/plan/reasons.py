"""Reasons: why a plan ranks where it does, why GPUs stay idle, what was left out, and rules of thumb.

`find_loss_penalty`: what a plan with local SGD is assumed to add to the loss (`local_update.yaml`), with its limits.

`explain_no_plan`: why there is no plan: the rule that excludes everything, or the bytes that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, Protocol

import numpy as np

from crosszone.cost.memory import GIB
from crosszone.errors import Notice
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.job import Job
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.placement import Idle, count_group_tp_room
from crosszone.inputs.rules import list_broken_rules, list_refusals
from crosszone.inputs.scenario import SIZE_TOLERANCE
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value
from crosszone.plan.candidates import Candidate
from crosszone.plan.comparison import compare_predictions
from crosszone.plan.layouts import Crossing
from crosszone.plan.search import PlanSearch
from crosszone.predict.prediction import Prediction
from crosszone.text import Label

PenaltyScope = Literal["params_b", "steps", "replicas"]


class LossRange(Value):
    """From low to high, both included."""

    low: float
    """Least."""
    high: float
    """Most."""


class LossMeasurement(Value):
    """One published comparison with synchronous training."""

    method: str
    """Name of the algorithm."""
    params_b: LossRange
    """Sizes of the models, 1e9 parameters."""
    steps: int
    """Steps between two averages."""
    replicas: int
    """Zones that average."""
    extra_loss: LossRange
    """Loss above that of synchronous training."""
    source: str
    """Where it was published."""


class UnmeasuredAspect(Value):
    """A property of a plan that lies outside the measurements its penalty rests on."""

    what: PenaltyScope
    """Size of the model in 1e9 parameters, steps between two averages, or zones that average."""
    value: float
    """Of the plan."""
    low: float
    """Least that was measured."""
    high: float
    """Most that was measured."""


class LossPenalty(Value):
    """Loss that a plan with local updates is assumed to end above synchronous training, and what says so."""

    low: float
    """Least of the measurements."""
    high: float
    """Most of the measurements."""
    measured: tuple[LossMeasurement, ...]
    """The measurements it rests on; none where a single zone averages with nobody."""
    outside: tuple[UnmeasuredAspect, ...]
    """Properties that no measurement covers: there the range may not hold."""

    @property
    def source(self) -> str:
        """The publications, each once."""
        return "; ".join(dict.fromkeys(measurement.source for measurement in self.measured))

    def list_notices(self) -> Iterator[Notice]:
        """The assumption, and each property of the plan that it does not cover."""
        if not self.measured:
            return
        params = {"low": self.low, "high": self.high, "source": self.source}
        yield Notice(code="loss_assumed", level="note", field="strategy.local_update", params=params)
        for excess in self.outside:
            yield Notice(
                code=_CODES[excess.what],
                level="warning",
                field="model" if excess.what == "params_b" else "strategy.local_update",
                value=round(excess.value, 2),
                params={"low": excess.low, "high": excess.high},
            )


_CODES: dict[PenaltyScope, str] = {
    "params_b": "loss_size_unmeasured",
    "steps": "loss_steps_unmeasured",
    "replicas": "loss_replicas_unmeasured",
}


def find_loss_penalty(model: Model, zones: int, steps: int) -> LossPenalty:
    """Extra loss of averaging `zones` zones every `steps` steps: a look-up, never a formula.

    Taken are the measurements with as many replicas, or those next to it on either side; what else differs from
    them is flagged. A model within a quarter of a measured size counts as of that size.
    """
    if zones == 1:
        return LossPenalty(low=0.0, high=0.0, measured=(), outside=())
    measurements = _select_nearest(zones)
    size, size_slack = parameters(model).total / 1e9, 1.0 + SIZE_TOLERANCE
    # Sizes and cadence must be covered by every measurement taken; numbers of replicas may lie between two of them.
    sizes = max(row.params_b.low for row in measurements), min(row.params_b.high for row in measurements)
    cadence = max(row.steps for row in measurements), min(row.steps for row in measurements)
    counts = min(row.replicas for row in measurements), max(row.replicas for row in measurements)
    checks: tuple[tuple[PenaltyScope, float, tuple[float, float], float], ...] = (
        ("params_b", size, sizes, size_slack),
        ("steps", steps, cadence, 1.0),
        ("replicas", zones, counts, 1.0),
    )
    outside = [
        UnmeasuredAspect(what=what, value=value, low=low, high=high)
        for what, value, (low, high), slack in checks
        if not low / slack <= value <= high * slack
    ]
    return LossPenalty(
        low=min(row.extra_loss.low for row in measurements),
        high=max(row.extra_loss.high for row in measurements),
        measured=tuple(measurements),
        outside=tuple(outside),
    )


def _select_nearest(zones: int) -> list[LossMeasurement]:
    """Measurements with as many replicas; else those with the next fewer and the next more."""
    measurements = read_measurements()
    fewer = max((row.replicas for row in measurements if row.replicas <= zones), default=None)
    more = min((row.replicas for row in measurements if row.replicas >= zones), default=None)
    return [row for row in measurements if row.replicas in (fewer, more)]


@cache
def read_measurements() -> tuple[LossMeasurement, ...]:
    """Everything that `local_update.yaml` holds."""
    return tuple(
        LossMeasurement(**entry) for entry in read_shipped("crosszone.plan", "local_update.yaml").value["measured"]
    )


UNITS = {"time": "s", "cost": "$", "energy": "kWh", "memory": "GiB"}  # Of what a plan is ranked by, a step
# Notices on plans that cross zones, by what crosses them.
CROSSING_CODES = {"dp": "reason_across_dp", "pp": "reason_across_pp", "both": "reason_across_both"}
MIN_SHARE = 0.001  # Share of a step below which a part is not mentioned


class PlannedProblem(Protocol):
    """What is to be trained, and where: a scenario, or the search's own view of it."""

    @property
    def model(self) -> Model: ...
    @property
    def job(self) -> Job: ...
    @property
    def cluster(self) -> Cluster: ...


class HasPlacement(Protocol):
    """A strategy that is placed: a candidate of the search, or one that the user gave."""

    @property
    def problem(self) -> PlannedProblem: ...
    @property
    def strategy(self) -> Strategy: ...
    @property
    def framework(self) -> Framework: ...
    @property
    def crossing(self) -> Crossing: ...
    @property
    def zone_names(self) -> Sequence[str]: ...


def _build_note(code: str, **params: object) -> Notice:
    return Notice(code=code, level="note", params=params)


def explain_plan(placed: HasPlacement, prediction: Prediction, best: Prediction | None) -> Iterator[Notice]:
    """Why a plan is as fast as it is; `best`: the plan it comes after."""
    s, shares = placed.strategy, prediction.shares
    if best is not None:
        yield from _explain_gap(prediction, best)
    kind = Label(f"class_{prediction.bottleneck}")
    yield _build_note("reason_bottleneck", kind=kind, share=round(100 * shares[prediction.bottleneck], 1))
    yield from _explain_crossing(placed, prediction)
    if s.tp > 1:
        yield _build_note("reason_tp", tp=s.tp)
    if s.pp > 1:
        bubble = round(100 * shares["pipeline"], 1)
        yield _build_note(
            "reason_pipeline", pp=s.pp, m=prediction.micro_batches, schedule=s.pipeline_schedule, bubble=bubble
        )
    memory = prediction.memory_gib
    yield _build_note("reason_memory", peak=round(memory.peak.expected, 1), limit=round(memory.limit, 1))
    means = [f"ZeRO {s.zero}"] if (s.zero or 0) > placed.framework.zero[0] else []
    means += [f"recompute {s.recompute}"] if s.recompute != "none" else []
    means += [f"offload {s.offload}"] if s.offload != "none" else []
    if means:
        yield _build_note("reason_memory_means", means=means)
    if s.communication.gradient_dtype is not None:
        yield _build_note("reason_gradient_dtype", dtype=s.communication.gradient_dtype)
    if s.layers_per_stage is not None:
        yield _build_note("reason_layers", layers=list(s.layers_per_stage))
    if s.replica_micro_batches is not None:
        yield _build_note("reason_shares", counts=sorted(set(s.replica_micro_batches), reverse=True))
    if placed.problem.job.framework == "any":
        yield _build_note("reason_framework", framework=placed.framework.title)


def _explain_gap(prediction: Prediction, best: Prediction) -> Iterator[Notice]:
    """What makes it slower than the best plan."""
    difference = compare_predictions(best, prediction)
    if (
        difference.step_s > MIN_SHARE * best.step_time_s.expected
        and difference.parts
        and difference.parts[0].seconds > 0
    ):
        part = difference.parts[0]
        yield _build_note(
            "reason_behind",
            seconds=round(difference.step_s, 3),
            part=Label(f"step_{part.name}"),
            more=round(part.seconds, 3),
        )


def _explain_crossing(placed: HasPlacement, prediction: Prediction) -> Iterator[Notice]:
    """What crosses zones, and what that costs."""
    if len(placed.problem.cluster.zones) == 1:
        return
    if placed.crossing == "none":
        yield _build_note("reason_one_zone", zone=placed.zone_names[0])
        return
    local = placed.strategy.local_update
    if local is not None:
        yield _build_note(
            "reason_averages", zones=list(placed.zone_names), steps=local.steps, fragments=local.fragments
        )
        yield from find_loss_penalty(placed.problem.model, len(placed.zone_names), local.steps).list_notices()
        return
    names = {zone.name for zone in placed.problem.cluster.zones}
    wan_rows = [row for row in prediction.communication if " > " in row.link and row.link.split(" > ")[0] in names]
    size, exposed = sum(row.bytes_per_step for row in wan_rows), sum(row.exposed_s for row in wan_rows)
    share = 100 * exposed / prediction.step_time_s.expected
    zones = list(placed.zone_names)
    params = {"zones": zones, "gb": round(size / 1e9, 2), "s": round(exposed, 3), "share": round(share, 1)}
    yield _build_note(CROSSING_CODES[placed.crossing], **params)


def list_idle_gpus(candidate: Candidate, value: float, search: PlanSearch) -> Iterator[Idle]:
    """GPUs that no rank uses, each with its reason."""
    cluster, cells, layout = candidate.problem.cluster, candidate.layout.stage_map.cells, candidate.layout
    number = 0
    for zone in cluster.zones:
        for place, group in enumerate(zone.nodes):
            used = cells.get(number, 0) * layout.tp * layout.cp
            idle = group.total_gpus - used
            fits = count_group_tp_room(group, layout.tp)
            incomplete = group.total_gpus - fits if used else 0
            params_of_all = {"zone": zone.name, "gpus": group.gpus, "tp": layout.tp, "ranks": candidate.strategy.ranks}
            for code, count in (("idle_tp", incomplete), ("idle_spare" if used else "idle_unused", idle - incomplete)):
                if count > 0:
                    notice = Notice(code=code, field="strategy", level="note", params=params_of_all | {"count": count})
                    best = _find_best_with_group(search, number, candidate)
                    if code == "idle_unused" and best is not None and best > value:
                        params = {**notice.params, **_describe_value(best, search), "now": abs(value)}
                        notice = Notice(code="idle_slower", field="strategy", level="note", params=params)
                    yield Idle(zone=zone.name, group=place, count=count, reason=notice)
            number += 1


def _describe_value(value: float, search: PlanSearch) -> dict[str, object]:
    """A value of the objective with its unit; of memory, what is left free."""
    return {"value": abs(value), "unit": UNITS[search.objective]}


def _find_best_with_group(search: PlanSearch, group: int, candidate: Candidate) -> float | None:
    """The best value found of a strategy that uses a node group beside those of a plan; None: none was simulated."""
    needed = {group, *candidate.layout.stage_map.cells}
    return min(
        (value for value, other in search.best.rank_families() if needed <= other.layout.stage_map.cells.keys()),
        default=None,
    )


def list_hints(candidate: Candidate, prediction: Prediction, search: PlanSearch) -> Iterator[Notice]:
    """Rules of thumb that this search bears out: largest sensible tp, smallest pp that fits, micro-batch."""
    space = next(s for s in search.spaces if s.framework == candidate.framework)
    number = search.spaces.index(space)
    if not candidate.problem.is_pinned("tp"):
        heads, domain = candidate.problem.model.heads, max(g.domain for g in candidate.problem.groups)
        yield _build_note("hint_tp", tp=max(space.degrees.tp), heads=heads, domain=domain)
    missing_bytes_L = dict(search.missing_bytes).get(number)
    if missing_bytes_L is not None and not candidate.problem.is_pinned("pp"):
        table = space.layout_table
        fits = table.pp[(missing_bytes_L <= 0) & (table.tp == candidate.layout.tp)]
        if len(fits):
            yield _build_note("hint_pp", pp=int(fits.min()), tp=candidate.layout.tp)
    s = candidate.strategy
    bubble = round(100 * prediction.shares["pipeline"], 1)
    yield _build_note("hint_micro_batch", b=s.micro_batch, m=prediction.micro_batches, dp=s.dp, bubble=bubble)


def list_rejected(search: PlanSearch) -> Iterator[tuple[str, int, Notice]]:
    """Families that are not among the plans: what they have in common, how many, and the first reason."""
    for notice in search.problem.refused:
        yield str(notice.params["framework"]), 1, notice
    listed = set()
    for space in search.spaces:
        for (code, degree), (values, notice) in space.ruled_out.values_by_reason.items():
            if (code, degree, *values) not in listed:
                listed.add((code, degree, *values))
                yield f"{degree} {_shorten_list(values)}", len(values), notice
    for number, missing_bytes_L in search.missing_bytes:
        table = search.spaces[number].layout_table
        exceeding = np.flatnonzero(np.isfinite(missing_bytes_L) & (missing_bytes_L > 0))
        if len(exceeding):
            least = int(exceeding[np.argmin(missing_bytes_L[exceeding])])
            params = {
                "lacks": round(float(missing_bytes_L[least]) / GIB, 1),
                "tp": int(table.tp[least]),
                "pp": int(table.pp[least]),
                "dp": int(table.dp[least]),
            }
            yield (
                f"{search.spaces[number].framework.name}: memory",
                len(exceeding),
                _build_note("rejected_memory", **params),
            )
    slower = search.tally.evaluated - search.tally.scored
    if slower > 0:
        worst = search.best.rank_families()[: search.best.top][-1][0]
        yield "bound", slower, _build_note("rejected_bound", **_describe_value(worst, search))


def _shorten_list(values: list[int | str]) -> str:
    """Numbers, runs of them shortened."""
    if len(values) <= 4:
        return ", ".join(map(str, values))
    return f"{values[0]}, {values[1]} ... {values[-1]}"


def explain_no_plan(search: PlanSearch) -> list[Notice]:
    """Every reason that leaves nothing, the nearest to a plan first."""
    return [*_explain_memory(search), *_explain_rules(search)] or [Notice(code="no_plan", field="strategy")]


def _explain_memory(search: PlanSearch) -> Iterator[Notice]:
    """The strategy that comes nearest to fitting, with its byte budget."""
    nearest: tuple[float, int, int] | None = None
    for number, missing_bytes_L in search.missing_bytes:
        if len(missing_bytes_L) and np.isfinite(missing_bytes_L).any():
            at = int(np.argmin(missing_bytes_L))
            if nearest is None or missing_bytes_L[at] < nearest[0]:
                nearest = (float(missing_bytes_L[at]), number, at)
    if nearest is None or nearest[0] <= 0:
        return
    _, number, layout = nearest
    candidate = search.find_smallest_memory(number, layout)
    memory = candidate.predictor.memory
    worst = memory.stages[memory.worst_stage]
    s = candidate.strategy
    parts = sorted(((name, value) for name, value in worst.parts.items() if value > 0.05), key=lambda part: -part[1])
    budget = " + ".join(f"{name} {value:.1f}" for name, value in parts)
    params = {
        "framework": candidate.framework.title,
        "gpu": worst.gpu,
        "needed": round(worst.total, 1),
        "limit": round(worst.limit, 1),
        "budget": budget,
        "degrees": f"tp {s.tp}, pp {s.pp}, dp {s.dp}, zero {s.zero}, micro_batch {s.micro_batch}",
        "means": f"recompute {s.recompute}, offload {s.offload}",
        "states_gib": round(sum(worst.parts[n] for n in ("weights", "gradients", "optimizer")), 1),
        "lacks": round((worst.total - worst.limit), 1),
    }
    yield Notice(code="nothing_fits", field="strategy", params=params)


def _explain_rules(search: PlanSearch) -> Iterator[Notice]:
    """Rules that the pinned strategy breaks, or that leave no value of a degree."""
    pinned, problem = search.problem.pinned, search.problem
    if any(np.isfinite(missing_bytes_L).any() for _, missing_bytes_L in search.missing_bytes):
        return
    case = problem.build_case(pinned.settle_dp(problem.cluster.gpus, problem.job.global_batch))
    broken = list_broken_rules(case) or [
        notice for framework in problem.frameworks for notice in list_refusals(case, framework)[:1]
    ]
    about_pins = [notice for notice in broken if notice.field.split(".")[-1] in pinned.pinned or not pinned.pinned]
    yield from about_pins or broken
