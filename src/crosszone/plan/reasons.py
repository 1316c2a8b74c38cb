"""Reasons: why a plan stands where it stands, why GPUs stay idle, what was kept out, and rules of thumb.

Assumption: what a plan with local updates is taken to cost in loss (`local_update.yaml`), and how far that holds.

Refusal: why there is no plan: the rule that rules everything out, or the bytes that do not fit.
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
from crosszone.inputs.placement import Idle, tp_capacity
from crosszone.inputs.rules import broken_rules, refusals
from crosszone.inputs.scenario import SIZE_TOLERANCE
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value
from crosszone.plan.candidates import Candidate
from crosszone.plan.comparison import compare_predictions
from crosszone.plan.layouts import Crossing
from crosszone.plan.search import Search
from crosszone.predict.prediction import Prediction
from crosszone.text import Label

What = Literal["params_b", "steps", "replicas"]


class Range(Value):
    """From low to high, both included."""

    low: float
    """Least."""
    high: float
    """Most."""


class Measured(Value):
    """One published comparison with synchronous training."""

    method: str
    """Name of the algorithm."""
    params_b: Range
    """Sizes of the models, 1e9 parameters."""
    steps: int
    """Steps between two averages."""
    replicas: int
    """Zones that average."""
    extra_loss: Range
    """Loss above that of synchronous training."""
    source: str
    """Where it was published."""


class Outside(Value):
    """What of a plan lies outside the measurements its penalty rests on."""

    what: What
    """Size of the model in 1e9 parameters, steps between two averages, or zones that average."""
    value: float
    """Of the plan."""
    low: float
    """Least that was measured."""
    high: float
    """Most that was measured."""


class Penalty(Value):
    """Loss that a plan with local updates is assumed to end above synchronous training, and what says so."""

    low: float
    """Least of the measurements."""
    high: float
    """Most of the measurements."""
    measured: tuple[Measured, ...]
    """What it rests on; nothing where a single zone averages with nobody."""
    outside: tuple[Outside, ...]
    """What was never measured so: the range may not hold."""

    @property
    def source(self) -> str:
        """The publications, each once."""
        return "; ".join(dict.fromkeys(one.source for one in self.measured))

    def notices(self) -> Iterator[Notice]:
        """The assumption, and each thing that lies outside of it."""
        if not self.measured:
            return
        params = {"low": self.low, "high": self.high, "source": self.source}
        yield Notice(code="loss_assumed", level="note", field="strategy.local_update", params=params)
        for one in self.outside:
            yield Notice(
                code=_CODES[one.what],
                level="warning",
                field="model" if one.what == "params_b" else "strategy.local_update",
                value=round(one.value, 2),
                params={"low": one.low, "high": one.high},
            )


_CODES: dict[What, str] = {
    "params_b": "loss_size_unmeasured",
    "steps": "loss_steps_unmeasured",
    "replicas": "loss_replicas_unmeasured",
}


def find_loss_penalty(model: Model, zones: int, steps: int) -> Penalty:
    """Extra loss of averaging `zones` zones every `steps` steps: a look-up, never a formula.

    Taken are the measurements with as many replicas, or those next to it on either side; what else differs from
    them is flagged. A model within a quarter of a measured size counts as of that size.
    """
    if zones == 1:
        return Penalty(low=0.0, high=0.0, measured=(), outside=())
    taken = _nearest(zones)
    size, near = parameters(model).total / 1e9, 1.0 + SIZE_TOLERANCE
    sizes = max(one.params_b.low for one in taken), min(one.params_b.high for one in taken)
    cadence = max(one.steps for one in taken), min(one.steps for one in taken)
    counts = min(one.replicas for one in taken), max(one.replicas for one in taken)
    checks: tuple[tuple[What, float, tuple[float, float], float], ...] = (
        ("params_b", size, sizes, near),
        ("steps", steps, cadence, 1.0),
        ("replicas", zones, counts, 1.0),
    )
    outside = [
        Outside(what=what, value=value, low=low, high=high)
        for what, value, (low, high), slack in checks
        if not low / slack <= value <= high * slack
    ]
    return Penalty(
        low=min(one.extra_loss.low for one in taken),
        high=max(one.extra_loss.high for one in taken),
        measured=tuple(taken),
        outside=tuple(outside),
    )


def _nearest(zones: int) -> list[Measured]:
    """Measurements with as many replicas; else those with the next fewer and the next more."""
    known = read_measurements()
    fewer = max((one.replicas for one in known if one.replicas <= zones), default=None)
    more = min((one.replicas for one in known if one.replicas >= zones), default=None)
    return [one for one in known if one.replicas in (fewer, more)]


@cache
def read_measurements() -> tuple[Measured, ...]:
    """Everything that `local_update.yaml` holds."""
    return tuple(Measured(**one) for one in read_shipped("crosszone.plan", "local_update.yaml").value["measured"])


UNITS = {"time": "s", "cost": "$", "energy": "kWh", "memory": "GiB"}  # Of what a plan is ranked by, a step
# What is told of plans that cross zones.
ACROSS = {"dp": "reason_across_dp", "pp": "reason_across_pp", "both": "reason_across_both"}
SMALL = 0.001  # Share of a step below which a part is not told


class Asked(Protocol):
    """What is to be trained where: a scenario, or the search's own view of it."""

    @property
    def model(self) -> Model: ...
    @property
    def job(self) -> Job: ...
    @property
    def cluster(self) -> Cluster: ...


class Way(Protocol):
    """A strategy that is placed: a candidate of the search, or one that the user gave."""

    @property
    def problem(self) -> Asked: ...
    @property
    def strategy(self) -> Strategy: ...
    @property
    def framework(self) -> Framework: ...
    @property
    def crossing(self) -> Crossing: ...
    @property
    def zone_names(self) -> Sequence[str]: ...


def _note(code: str, **params: object) -> Notice:
    return Notice(code=code, level="note", params=params)


def explain_plan(one: Way, found: Prediction, best: Prediction | None) -> Iterator[Notice]:
    """Why a plan is as fast as it is; `best`: the plan it comes after."""
    s, shares = one.strategy, found.shares
    if best is not None:
        yield from _behind(found, best)
    kind = Label(f"class_{found.bottleneck}")
    yield _note("reason_bottleneck", kind=kind, share=round(100 * shares[found.bottleneck], 1))
    yield from _across(one, found)
    if s.tp > 1:
        yield _note("reason_tp", tp=s.tp)
    if s.pp > 1:
        bubble = round(100 * shares["pipeline"], 1)
        yield _note("reason_pipeline", pp=s.pp, m=found.micro_batches, schedule=s.pipeline_schedule, bubble=bubble)
    memory = found.memory_gib
    yield _note("reason_memory", peak=round(memory.peak.expected, 1), limit=round(memory.limit, 1))
    means = [f"ZeRO {s.zero}"] if (s.zero or 0) > one.framework.zero[0] else []
    means += [f"recompute {s.recompute}"] if s.recompute != "none" else []
    means += [f"offload {s.offload}"] if s.offload != "none" else []
    if means:
        yield _note("reason_memory_means", means=means)
    if s.communication.gradient_dtype is not None:
        yield _note("reason_gradient_dtype", dtype=s.communication.gradient_dtype)
    if s.layers_per_stage is not None:
        yield _note("reason_layers", layers=list(s.layers_per_stage))
    if s.replica_micro_batches is not None:
        yield _note("reason_shares", counts=sorted(set(s.replica_micro_batches), reverse=True))
    if one.problem.job.framework == "any":
        yield _note("reason_framework", framework=one.framework.title)


def _behind(found: Prediction, best: Prediction) -> Iterator[Notice]:
    """What makes it slower than the best plan."""
    apart = compare_predictions(best, found)
    if apart.step_s > SMALL * best.step_time_s.expected and apart.parts and apart.parts[0].seconds > 0:
        part = apart.parts[0]
        yield _note(
            "reason_behind",
            seconds=round(apart.step_s, 3),
            part=Label(f"step_{part.name}"),
            more=round(part.seconds, 3),
        )


def _across(one: Way, found: Prediction) -> Iterator[Notice]:
    """What crosses zones, and what it costs."""
    if len(one.problem.cluster.zones) == 1:
        return
    if one.crossing == "none":
        yield _note("reason_one_zone", zone=one.zone_names[0])
        return
    local = one.strategy.local_update
    if local is not None:
        yield _note("reason_averages", zones=list(one.zone_names), steps=local.steps, fragments=local.fragments)
        yield from find_loss_penalty(one.problem.model, len(one.zone_names), local.steps).notices()
        return
    names = {zone.name for zone in one.problem.cluster.zones}
    wide = [row for row in found.communication if " > " in row.link and row.link.split(" > ")[0] in names]
    size, exposed = sum(row.bytes_per_step for row in wide), sum(row.exposed_s for row in wide)
    share = 100 * exposed / found.step_time_s.expected
    zones = list(one.zone_names)
    params = {"zones": zones, "gb": round(size / 1e9, 2), "s": round(exposed, 3), "share": round(share, 1)}
    yield _note(ACROSS[one.crossing], **params)


def list_idle_gpus(one: Candidate, value: float, search: Search) -> Iterator[Idle]:
    """GPUs that no rank uses, each with its reason."""
    cluster, cells, shape = one.problem.cluster, one.layout.stage_map.cells, one.layout
    number = 0
    for zone in cluster.zones:
        for place, group in enumerate(zone.nodes):
            used = cells.get(number, 0) * shape.tp * shape.cp
            left = group.total_gpus - used
            fits = tp_capacity(group, shape.tp)
            torn = group.total_gpus - fits if used else 0
            about = {"zone": zone.name, "gpus": group.gpus, "tp": shape.tp, "ranks": one.strategy.ranks}
            for code, count in (("idle_tp", torn), ("idle_spare" if used else "idle_unused", left - torn)):
                if count > 0:
                    why = Notice(code=code, field="strategy", level="note", params=about | {"count": count})
                    best = _with_group(search, number, one)
                    if code == "idle_unused" and best is not None and best > value:
                        params = {**why.params, **_told(best, search), "now": abs(value)}
                        why = Notice(code="idle_slower", field="strategy", level="note", params=params)
                    yield Idle(zone=zone.name, group=place, count=count, reason=why)
            number += 1


def _told(value: float, search: Search) -> dict[str, object]:
    """A value of the objective with its unit; of memory, what is left free."""
    return {"value": abs(value), "unit": UNITS[search.objective]}


def _with_group(search: Search, group: int, one: Candidate) -> float | None:
    """The best value found of a strategy that uses a node group beside those of a plan; None: none was simulated."""
    needed = {group, *one.layout.stage_map.cells}
    return min(
        (value for value, other in search.best.rank_families() if needed <= other.layout.stage_map.cells.keys()),
        default=None,
    )


def list_hints(one: Candidate, found: Prediction, search: Search) -> Iterator[Notice]:
    """Rules of thumb that this search bears out: largest sensible tp, smallest pp that fits, micro-batch."""
    space = next(s for s in search.spaces if s.framework == one.framework)
    number = search.spaces.index(space)
    if not one.problem.is_pinned("tp"):
        heads, domain = one.problem.model.heads, max(g.domain for g in one.problem.groups)
        yield _note("hint_tp", tp=max(space.degrees.tp), heads=heads, domain=domain)
    lacks = dict(search.missing_bytes).get(number)
    if lacks is not None and not one.problem.is_pinned("pp"):
        land = space.layout_table
        fits = land.pp[(lacks <= 0) & (land.tp == one.layout.tp)]
        if len(fits):
            yield _note("hint_pp", pp=int(fits.min()), tp=one.layout.tp)
    s = one.strategy
    bubble = round(100 * found.shares["pipeline"], 1)
    yield _note("hint_micro_batch", b=s.micro_batch, m=found.micro_batches, dp=s.dp, bubble=bubble)


def list_rejected(search: Search) -> Iterator[tuple[str, int, Notice]]:
    """Families that are not among the plans: what they have in common, how many, and the first reason."""
    for notice in search.problem.refused:
        yield str(notice.params["framework"]), 1, notice
    seen = set()
    for space in search.spaces:
        for (code, degree), (values, notice) in space.ruled_out.found.items():
            if (code, degree, *values) not in seen:
                seen.add((code, degree, *values))
                yield f"{degree} {_listed(values)}", len(values), notice
    for number, lacks in search.missing_bytes:
        land = search.spaces[number].layout_table
        over = np.flatnonzero(np.isfinite(lacks) & (lacks > 0))
        if len(over):
            least = int(over[np.argmin(lacks[over])])
            params = {
                "lacks": round(float(lacks[least]) / GIB, 1),
                "tp": int(land.tp[least]),
                "pp": int(land.pp[least]),
                "dp": int(land.dp[least]),
            }
            yield f"{search.spaces[number].framework.name}: memory", len(over), _note("rejected_memory", **params)
    slower = search.tally.evaluated - search.tally.scored
    if slower > 0:
        worst = search.best.rank_families()[: search.best.top][-1][0]
        yield "bound", slower, _note("rejected_bound", **_told(worst, search))


def _listed(values: list[int | str]) -> str:
    """Numbers, runs of them shortened."""
    if len(values) <= 4:
        return ", ".join(map(str, values))
    return f"{values[0]}, {values[1]} ... {values[-1]}"


def explain_no_plan(search: Search) -> list[Notice]:
    """Every reason that leaves nothing, the nearest to a plan first."""
    return [*_too_big(search), *_illegal(search)] or [Notice(code="no_plan", field="strategy")]


def _too_big(search: Search) -> Iterator[Notice]:
    """The strategy that comes nearest to fitting, with its byte budget."""
    nearest: tuple[float, int, int] | None = None
    for number, lacks in search.missing_bytes:
        if len(lacks) and np.isfinite(lacks).any():
            at = int(np.argmin(lacks))
            if nearest is None or lacks[at] < nearest[0]:
                nearest = (float(lacks[at]), number, at)
    if nearest is None or nearest[0] <= 0:
        return
    _, number, shape = nearest
    one = search.find_smallest_memory(number, shape)
    memory = one.predictor.memory()
    worst = memory.stages[memory.worst_stage]
    s = one.strategy
    parts = sorted(((name, value) for name, value in worst.parts.items() if value > 0.05), key=lambda part: -part[1])
    budget = " + ".join(f"{name} {value:.1f}" for name, value in parts)
    params = {
        "framework": one.framework.title,
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


def _illegal(search: Search) -> Iterator[Notice]:
    """Rules that the pinned strategy breaks, or that leave no value of a degree."""
    pinned, problem = search.problem.pinned, search.problem
    if any(np.isfinite(lacks).any() for _, lacks in search.missing_bytes):
        return
    case = problem.case(pinned.settled(problem.cluster.gpus, problem.job.global_batch))
    broken = broken_rules(case) or [one for framework in problem.frameworks for one in refusals(case, framework)[:1]]
    told = [one for one in broken if one.field.split(".")[-1] in pinned.pinned or not pinned.pinned]
    yield from told or broken
