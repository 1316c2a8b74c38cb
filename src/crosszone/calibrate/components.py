"""Score the cost model part by part against jobs whose layers, stages and collectives were timed.

    runs, skipped = read_components(Path("runs.csv"))
    scores = score_components(runs, Profiles.load(), skipped)
    scores.summary["setups_mape_pct"]     # mean absolute error of the step, fastest job of each set-up
    scores.as_dict()                      # what `crosszone accuracy --json` prints

The step is compared with the fastest iteration. Where a set-up was run twice, the two differ by what the network did
that day: no prediction can meet both, and `floor_pct` says how close any could come.

What `predict` says of each part of a job: layer, stage, collectives, update, and the step they make.

The table of component errors and the shares of an iteration: rows are parts, columns are jobs timed part by part.

    scores = score_components(*...)                       # components.py
    table = component_table(scores, "en")
    table.rows[0].errors_pct, table.rows[0].means["vista"].fastest_pct
    shares(scores, "en")[0].predicted_pct                 # of the iteration, by part; they add up to 100

An empty cell is a part that the job does not state, or whose span contradicts another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean, median
from typing import Any

import numpy as np

from crosszone.calibrate.components_read import STAGES, ComponentRun, read_components
from crosszone.calibrate.runs import Skipped
from crosszone.cost.own_profiles import load_cluster_profile
from crosszone.cost.profile import Profiles
from crosszone.cost.tiers import Floats
from crosszone.inputs.frameworks import frameworks
from crosszone.predict.predict import measured_predictor
from crosszone.text import label


@dataclass(frozen=True, kw_only=True)
class Components:
    """Predicted seconds of the parts of one job; arrays have one entry a stage."""

    layer_fwd: float
    layer_bwd: float
    stage_fwd: Floats
    stage_bwd: Floats
    mp_allreduce: float
    p2p_send: float
    dp_allreduce: Floats
    """Once all replicas take part: their waiting for each other is apart."""
    dp_allgather: Floats
    update: Floats
    """Optimizer and all-gather."""
    pipeline: float
    """From the first forward to the last backward pass."""
    replica_wait: float
    """Until the slowest replica has come to the sum of the gradients."""
    step: float

    def part(self, name: str, stage: str) -> float:
        """One part on the first, a middle or the last stage."""
        value = np.atleast_1d(getattr(self, name))
        return float(value[{"first": 0, "middle": min(1, len(value) - 1), "last": -1}[stage]])


def predict_components(run: ComponentRun, profiles: Profiles) -> Components:
    """Every part of one job, and the step: those of `predict` for the same case. [K2]

    `profiles`: what the job is predicted with; what was measured of its cluster is laid over by `profiles_of_cluster`.
    """
    p = measured_predictor(run.id, run.case, frameworks()["deepspeed"], profiles)
    times, stages = p.step.times, run.case.strategy.pp
    (layer, _), row = times.layer.whole, p.row

    def of_stages(value: Any) -> Floats:
        """A row of the batch, one entry a stage."""
        table = np.atleast_2d(np.asarray(value, dtype=float))
        return np.broadcast_to(table[row if len(table) > 1 else 0], (stages,)).copy()

    def single(value: Any) -> float:
        return float(of_stages(value)[0])

    gather = of_stages(times.gather)
    return Components(
        layer_fwd=single(layer.forward_s),
        layer_bwd=single(layer.backward_s),
        stage_fwd=of_stages(times.cost.forward_s),
        stage_bwd=of_stages(times.cost.backward_s),
        mp_allreduce=single(times.layer.tp_s),
        p2p_send=single(times.send),
        dp_allreduce=of_stages(times.reduce),
        dp_allgather=gather,
        update=of_stages(times.update) + gather,
        pipeline=float(p.step.pipelines.span_s[row]),
        replica_wait=float(p.step.jitter_s[row]),
        step=p.step_time.expected,
    )


@cache
def profiles_of_cluster(cluster: str, profiles: Profiles) -> Profiles:
    """The profiles with what was measured of a cluster over them; an own profile in use stays alone."""
    known = None if profiles.own else load_cluster_profile(cluster)
    return profiles if known is None else profiles.with_own(known)


# Part, stages whose measured time is looked at, and which of them is taken. Layers and collectives are alike on all
# stages. Sends, sums and updates of later stages include waiting for others.
COMPARED = (
    ("layer_fwd", STAGES, "median"),
    ("layer_bwd", STAGES, "median"),
    ("mp_allreduce", STAGES, "median"),
    ("p2p_send", STAGES, "least"),
    ("dp_allreduce", ("first",), "as is"),
    ("dp_allgather", ("first",), "as is"),
    ("update", ("first",), "as is"),
    *((part, (stage,), "as is") for part in ("stage_fwd", "stage_bwd") for stage in STAGES),
)


@dataclass(frozen=True, kw_only=True)
class PartScore:
    """One part of one job: measured and predicted seconds, and the signed error."""

    part: str
    measured_s: float
    predicted_s: float

    @property
    def error_pct(self) -> float:
        """(predicted - measured) / measured."""
        return 100.0 * (self.predicted_s / self.measured_s - 1.0)


@dataclass(frozen=True, kw_only=True)
class RunScore:
    """One job: its step and its parts."""

    run: ComponentRun
    step: PartScore
    parts: tuple[PartScore, ...]
    predicted: Components
    """Every part of the prediction."""
    fastest: bool
    """No job of the same set-up was faster."""


@dataclass(frozen=True, kw_only=True)
class ComponentScores:
    """All jobs of a file, and the tables made of them."""

    runs: tuple[RunScore, ...]
    skipped: tuple[Skipped, ...]

    @property
    def summary(self) -> dict[str, float | int | None]:
        """Errors of the step over all jobs, and over the fastest job of each set-up."""
        return {**_summary(self.runs, len(self.skipped)), **_setups(self.runs)}

    @property
    def by_source(self) -> list[dict[str, Any]]:
        """The summary of each cluster."""
        names = sorted({r.run.cluster for r in self.runs} | {s.source.lower() for s in self.skipped})
        found = []
        for name in names:
            runs = [r for r in self.runs if r.run.cluster == name]
            left = sum(s.source.lower() == name for s in self.skipped)
            found.append({"source": name, **_summary(runs, left), **_setups(runs)})
        return found

    @property
    def by_part(self) -> list[dict[str, Any]]:
        """Mean absolute and median signed error of each part, over the jobs that state it."""
        errors: dict[str, list[float]] = defaultdict(list)
        for scored in self.runs:
            for one in (*scored.parts, scored.step):
                errors[one.part].append(one.error_pct)
        return [
            {
                "part": part,
                "jobs": len(values),
                "mape_pct": fmean(map(abs, values)),
                "median_error_pct": median(values),
                "worst_error_pct": max(values, key=abs),
            }
            for part, values in errors.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: summary, by_source, by_part, rows."""
        rows: list[dict[str, Any]] = [_row(scored) for scored in self.runs]
        rows += [{"id": s.id, "source": s.source, "skipped": s.reason, "code": s.code} for s in self.skipped]
        return {"summary": self.summary, "by_source": self.by_source, "by_part": self.by_part, "rows": rows}


def score_components(
    runs: Sequence[ComponentRun], profiles: Profiles, skipped: Sequence[Skipped] = ()
) -> ComponentScores:
    """Predict every job and set its parts against what was measured; equal set-ups are predicted once."""
    known: dict[str, Components] = {}
    best: dict[str, float] = {}
    for run in runs:
        key = run.setup
        if key not in known:
            known[key] = predict_components(run, profiles_of_cluster(run.cluster, profiles))
        best[key] = min(run.step_s, best.get(key, run.step_s))
    scored = [_scored(run, known[run.setup], run.step_s == best[run.setup]) for run in runs]
    return ComponentScores(runs=tuple(scored), skipped=tuple(skipped))


def repeat_floor_pct(measured_s: Sequence[Sequence[float]]) -> float:
    """Mean absolute error in % that no prediction can go below, given the times of jobs grouped by set-up. [K8]

    A set-up gets one prediction x; the sum of |x - y| / y over its jobs is least where x is the time y of one of them.
    """
    total, count = 0.0, 0
    for times in measured_s:
        total += min(sum(abs(x - y) / y for y in times) for x in times)
        count += len(times)
    return 100.0 * total / count


def _scored(run: ComponentRun, found: Components, fastest: bool) -> RunScore:
    parts = []
    for part, stages, which in COMPARED:
        measured = [run.parts_s[part, stage] for stage in stages if (part, stage) in run.parts_s]
        if not measured or (part == "update" and _contradicted(run)):
            continue
        name = f"{part}_{stages[0]}" if part.startswith("stage") else part
        value = min(measured) if which == "least" else median(measured)
        parts.append(PartScore(part=name, measured_s=value, predicted_s=found.part(part, stages[0])))
    step = PartScore(part="step", measured_s=run.step_s, predicted_s=found.step)
    return RunScore(run=run, step=step, parts=tuple(parts), predicted=found, fastest=fastest)


def _contradicted(run: ComponentRun) -> bool:
    """The update, which holds the all-gather, is said to be shorter than it: no figure to score against."""
    gather = run.parts_s.get(("dp_allgather", "first"), 0.0)
    return run.parts_s.get(("update", "first"), gather) < gather


def _summary(runs: Sequence[RunScore], skipped: int) -> dict[str, float | int | None]:
    errors = [abs(r.step.error_pct) for r in runs]
    share = {limit: 100.0 * fmean(e <= limit for e in errors) if errors else None for limit in (10, 20)}
    return {
        "rows": len(runs) + skipped,
        "scored": len(runs),
        "skipped": skipped,
        "mape_pct": fmean(errors) if errors else None,
        "median_ape_pct": median(errors) if errors else None,
        "within_10_pct": share[10],
        "within_20_pct": share[20],
    }


def _setups(runs: Sequence[RunScore]) -> dict[str, float | int | None]:
    """Errors over the fastest job of each set-up, and what repeated jobs leave no prediction below."""
    times: dict[str, list[float]] = defaultdict(list)
    for scored in runs:
        times[scored.run.setup].append(scored.run.step_s)
    errors = [abs(r.step.error_pct) for r in runs if r.fastest]
    return {
        "setups": len(times),
        "setups_mape_pct": fmean(errors) if errors else None,
        "floor_pct": repeat_floor_pct(list(times.values())) if times else None,
    }


def _row(scored: RunScore) -> dict[str, Any]:
    return {
        "id": scored.run.id,
        "source": scored.run.cluster,
        "measured_s": scored.step.measured_s,
        "predicted_s": scored.step.predicted_s,
        "error_pct": scored.step.error_pct,
        "fastest_of_setup": scored.fastest,
        "components": [
            {"part": p.part, "measured_s": p.measured_s, "predicted_s": p.predicted_s, "error_pct": p.error_pct}
            for p in scored.parts
        ],
        "skipped": None,
    }


# Rows of the table.
PARTS = (
    "layer_fwd",
    "layer_bwd",
    "slowest_fwd",
    "slowest_bwd",
    "mp_allreduce",
    "p2p_send",
    "dp_allreduce",
    "dp_allgather",
    "update",
    "step",
)
# Parts that are alike on all stages, and which of the measured ones is taken: sends may include waiting.
ALIKE: Mapping[str, Callable[[Sequence[float]], float]] = {"mp_allreduce": median, "p2p_send": min}
# What an iteration is made of, as its slowest stage sees it; waiting is what is left.
SHARES = ("forward", "backward", "mp_allreduce", "p2p_send", "dp_allreduce", "update", "waiting")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One column of the table."""

    id: str
    cluster: str
    name: str
    """Model and degrees: pipeline, tensor, data."""
    fastest: bool
    """No job of the same set-up was faster."""


@dataclass(frozen=True, kw_only=True)
class Means:
    """Mean absolute errors of one cluster, %; None: no job states the part."""

    all_pct: float | None
    """Over all its jobs."""
    fastest_pct: float | None
    """Over the fastest job of each set-up."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One part in every job."""

    part: str
    name: str
    measured_s: tuple[float | None, ...]
    predicted_s: tuple[float | None, ...]
    errors_pct: tuple[float | None, ...]
    """Signed, (predicted - measured) / measured."""
    means: Mapping[str, Means]
    """By cluster."""


@dataclass(frozen=True, kw_only=True)
class ComponentTable:
    """Errors of all parts in all jobs."""

    jobs: tuple[Job, ...]
    clusters: tuple[str, ...]
    rows: tuple[TableRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one job's iteration is made of, in % of it."""

    job: Job
    names: Mapping[str, str]
    measured_pct: Mapping[str, float] | None
    """None: the job does not state all parts."""
    predicted_pct: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def component_table(scores: ComponentScores, language: str) -> ComponentTable:
    """Signed errors of every part and job, and mean absolute ones by cluster. [K60]

    The slowest stage is the one that took longest, in the measurement and in the prediction each.
    """
    jobs = tuple(job_of(scored) for scored in scores.runs)
    clusters = tuple(dict.fromkeys(job.cluster for job in jobs))
    columns = [_parts(scored) for scored in scores.runs]
    rows = []
    for part in PARTS:
        found = [column.get(part) for column in columns]
        errors = tuple(None if one is None else one.error_pct for one in found)
        rows.append(
            TableRow(
                part=part,
                name=label(f"component_{part}", language),
                measured_s=tuple(None if one is None else one.measured_s for one in found),
                predicted_s=tuple(None if one is None else one.predicted_s for one in found),
                errors_pct=errors,
                means={cluster: _means(cluster, jobs, errors) for cluster in clusters},
            )
        )
    return ComponentTable(jobs=jobs, clusters=clusters, rows=tuple(rows))


def shares(scores: ComponentScores, language: str) -> list[Share]:
    """What each job's iteration is made of, measured and predicted. [K61]

    Of the slowest stage: its micro-batches' compute forward and backward (with recomputation), the sums of tensor
    parallelism in them, a message each way, then the sum of gradients and the update of the first stage. What is left
    of the iteration is waiting: the pipeline filling and draining, and slower neighbours.
    """
    names = {part: label(f"share_{part}", language) for part in SHARES}
    return [
        Share(
            job=job_of(scored),
            names=names,
            measured_pct=_share(scored.run, scored.run.step_s, _measured(scored.run)),
            predicted_pct=_share(scored.run, scored.step.predicted_s, scored.predicted.part) or {},
        )
        for scored in scores.runs
    ]


def job_of(scored: RunScore) -> Job:
    """The column of one job."""
    case = scored.run.case
    degrees = f"{case.strategy.pp}-{case.strategy.tp}-{case.dp}"
    name = f"{case.model.name} {degrees}"
    return Job(id=scored.run.id, cluster=scored.run.cluster, name=name, fastest=scored.fastest)


def _parts(scored: RunScore) -> dict[str, PartScore]:
    found = {one.part: one for one in (*scored.parts, scored.step)}
    for way in ("fwd", "bwd"):
        seen = [found[name] for stage in STAGES if (name := f"stage_{way}_{stage}") in found]
        if seen:
            found[f"slowest_{way}"] = PartScore(
                part=f"slowest_{way}",
                measured_s=max(one.measured_s for one in seen),
                predicted_s=max(one.predicted_s for one in seen),
            )
    return found


def _means(cluster: str, jobs: Sequence[Job], errors: Sequence[float | None]) -> Means:
    here = [(job, abs(e)) for job, e in zip(jobs, errors, strict=True) if job.cluster == cluster and e is not None]
    fastest = [size for job, size in here if job.fastest]
    return Means(
        all_pct=fmean(size for _, size in here) if here else None,
        fastest_pct=fmean(fastest) if fastest else None,
    )


def _measured(run: ComponentRun) -> Callable[[str, str], float | None]:
    def part(name: str, stage: str) -> float | None:
        if name in ALIKE:
            seen = [run.parts_s[name, one] for one in STAGES if (name, one) in run.parts_s]
            return ALIKE[name](seen) if seen else None
        return run.parts_s.get((name, stage))

    return part


def _share(run: ComponentRun, step_s: float, part: Callable[[str, str], float | None]) -> dict[str, float] | None:
    strategy, model = run.case.strategy, run.case.model
    stages = STAGES if strategy.pp > 2 else STAGES[::2] if strategy.pp == 2 else STAGES[:1]
    layers = _layers(run)
    times = {stage: (part("stage_fwd", stage), part("stage_bwd", stage)) for stage in stages}
    slowest = max(stages, key=lambda stage: sum(x or 0.0 for x in times[stage]))
    forward, backward = times[slowest]
    reduce = part("mp_allreduce", slowest) if strategy.tp > 1 else 0.0
    send = part("p2p_send", slowest) if strategy.pp > 1 else 0.0
    gradients = part("dp_allreduce", "first") if run.case.dp > 1 else 0.0
    update = part("update", "first")
    if forward is None or backward is None or reduce is None or send is None or gradients is None or update is None:
        return None
    batches = strategy.micro_batches(run.case.job.global_batch)
    once = (1 if model.parallel_residual else 2) * layers[slowest] * reduce
    again = once if strategy.recompute == "full" else 0.0
    back = 2 * layers[slowest] * reduce + again
    seconds = {
        "forward": batches * max(0.0, forward - once),
        "backward": batches * max(0.0, backward - back),
        "mp_allreduce": batches * (once + back),
        "p2p_send": batches * 2 * send,
        "dp_allreduce": gradients,
        "update": update,
    }
    left = max(0.0, step_s - sum(seconds.values()))
    whole = sum(seconds.values()) + left
    return {name: 100.0 * value / whole for name, value in (*seconds.items(), ("waiting", left))}


def _layers(run: ComponentRun) -> dict[str, int]:
    """Layers of the first, a middle and the last stage."""
    held = run.case.strategy.layers_per_stage
    if held is None:
        even = -(-run.case.model.layers // run.case.strategy.pp)
        return dict.fromkeys(STAGES, even)
    return {"first": held[0], "middle": held[min(1, len(held) - 1)], "last": held[-1]}


__all__ = ["ComponentScores", "PartScore", "RunScore", "read_components", "score_components"]
