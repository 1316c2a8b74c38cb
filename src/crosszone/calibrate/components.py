"""Score the cost model part by part against jobs whose layers, stages and collectives were timed.

    runs, skipped = read_components(Path("runs.csv"))
    scores = score_components(runs, Profiles.load(), skipped)
    scores.summary["setups_mape_pct"]     # mean absolute error of the step, fastest job of each set-up
    scores.as_dict()                      # what `crosszone accuracy --json` prints

The step is compared with the fastest iteration. Where a set-up was run twice, the two differ by what the network did
that day: no prediction can meet both, and `floor_pct` says how close any could come.

Parts are layer, stage, collectives, update, and the step they make. A table shows them as rows, with jobs as columns;
shares of an iteration say what it is made of:

    table = build_component_table(scores, "en")
    table.rows[0].errors_pct, table.rows[0].means["vista"].fastest_pct
    compute_iteration_shares(scores, "en")[0].predicted_pct     # of the iteration, by part; they add up to 100

An empty cell is a part that the job does not state, or whose span contradicts another one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from statistics import fmean, median
from typing import Any

import numpy as np

from crosszone.calibrate.components_read import STAGES, ComponentRun
from crosszone.calibrate.runs import Skipped
from crosszone.cost.own_profiles import load_cluster_profile
from crosszone.cost.profile import Profiles
from crosszone.cost.tiers import Floats
from crosszone.inputs.frameworks import load_frameworks
from crosszone.predict.predict import build_measured_predictor
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

    def get_part_s(self, name: str, stage: str) -> float:
        """One part on the first, a middle or the last stage."""
        value = np.atleast_1d(getattr(self, name))
        return float(value[{"first": 0, "middle": min(1, len(value) - 1), "last": -1}[stage]])


def predict_components(run: ComponentRun, profiles: Profiles) -> Components:
    """Every part of one job, and the step: those of `predict` for the same case. [K2]

    `profiles`: what the job is predicted with; what was measured of its cluster is laid over by `add_cluster_profile`.
    """
    prediction = build_measured_predictor(run.id, run.case, load_frameworks()["deepspeed"], profiles)
    times, stages = prediction.step.times, run.case.strategy.pp
    layer, row = times.layer.complete_layers["dense"], prediction.row

    def expand_stages(value: Any) -> Floats:
        """A row of the batch, one entry a stage."""
        table = np.atleast_2d(np.asarray(value, dtype=float))
        return np.broadcast_to(table[row if len(table) > 1 else 0], (stages,)).copy()

    def get_first(value: Any) -> float:
        return float(expand_stages(value)[0])

    gather = expand_stages(times.gather)
    return Components(
        layer_fwd=get_first(layer.forward_s),
        layer_bwd=get_first(layer.backward_s),
        stage_fwd=expand_stages(times.cost.forward_s),
        stage_bwd=expand_stages(times.cost.backward_s),
        mp_allreduce=get_first(times.layer.tp_s),
        p2p_send=get_first(times.send),
        dp_allreduce=expand_stages(times.reduce),
        dp_allgather=gather,
        update=expand_stages(times.update) + gather,
        pipeline=float(prediction.step.pipelines.span_s[row]),
        replica_wait=float(prediction.step.jitter_s[row]),
        step=prediction.step_time.expected,
    )


@cache
def add_cluster_profile(cluster: str, profiles: Profiles) -> Profiles:
    """The profiles with what was measured of a cluster over them; an own profile in use stays alone."""
    cluster_profile = None if profiles.own else load_cluster_profile(cluster)
    return profiles if cluster_profile is None else profiles.with_own(cluster_profile)


# Part, stages whose measured time is looked at, and which of them is taken. Layers and collectives are alike on all
# stages. Sends, sums and updates of later stages include waiting for others.
COMPARED_PARTS = (
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
        return {**_summarize_runs(self.runs, len(self.skipped)), **_summarize_setups(self.runs)}

    @property
    def by_source(self) -> list[dict[str, Any]]:
        """The summary of each cluster."""
        names = sorted({r.run.cluster for r in self.runs} | {s.source.lower() for s in self.skipped})
        summaries = []
        for name in names:
            runs = [r for r in self.runs if r.run.cluster == name]
            skipped = sum(s.source.lower() == name for s in self.skipped)
            summaries.append({"source": name, **_summarize_runs(runs, skipped), **_summarize_setups(runs)})
        return summaries

    @property
    def by_part(self) -> list[dict[str, Any]]:
        """Mean absolute and median signed error of each part, over the jobs that state it."""
        errors: dict[str, list[float]] = defaultdict(list)
        for scored in self.runs:
            for part in (*scored.parts, scored.step):
                errors[part.part].append(part.error_pct)
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
        rows: list[dict[str, Any]] = [_build_json_row(scored) for scored in self.runs]
        rows += [{"id": s.id, "source": s.source, "skipped": s.reason, "code": s.code} for s in self.skipped]
        return {"summary": self.summary, "by_source": self.by_source, "by_part": self.by_part, "rows": rows}


def score_components(
    runs: Sequence[ComponentRun], profiles: Profiles, skipped: Sequence[Skipped] = ()
) -> ComponentScores:
    """Predict every job and set its parts against what was measured; equal set-ups are predicted once."""
    predicted: dict[str, Components] = {}
    fastest_s: dict[str, float] = {}
    for run in runs:
        key = run.setup
        if key not in predicted:
            predicted[key] = predict_components(run, add_cluster_profile(run.cluster, profiles))
        fastest_s[key] = min(run.step_s, fastest_s.get(key, run.step_s))
    scored = [_score_run(run, predicted[run.setup], run.step_s == fastest_s[run.setup]) for run in runs]
    return ComponentScores(runs=tuple(scored), skipped=tuple(skipped))


def compute_repeat_floor_pct(measured_s: Sequence[Sequence[float]]) -> float:
    """Mean absolute error in % that no prediction can go below, given the times of jobs grouped by set-up. [K8]

    A set-up gets one prediction x; the sum of |x - y| / y over its jobs is least where x is the time y of one of them.
    """
    total, count = 0.0, 0
    for times in measured_s:
        total += min(sum(abs(x - y) / y for y in times) for x in times)
        count += len(times)
    return 100.0 * total / count


def _score_run(run: ComponentRun, predicted: Components, fastest: bool) -> RunScore:
    parts = []
    for part, stages, which in COMPARED_PARTS:
        measured = [run.parts_s[part, stage] for stage in stages if (part, stage) in run.parts_s]
        if not measured or (part == "update" and is_update_contradicted(run)):
            continue
        name = f"{part}_{stages[0]}" if part.startswith("stage") else part
        value = min(measured) if which == "least" else median(measured)
        parts.append(PartScore(part=name, measured_s=value, predicted_s=predicted.get_part_s(part, stages[0])))
    step = PartScore(part="step", measured_s=run.step_s, predicted_s=predicted.step)
    return RunScore(run=run, step=step, parts=tuple(parts), predicted=predicted, fastest=fastest)


def is_update_contradicted(run: ComponentRun) -> bool:
    """Whether the update is stated to be shorter than the all-gather it holds: no figure to score against."""
    gather = run.parts_s.get(("dp_allgather", "first"), 0.0)
    return run.parts_s.get(("update", "first"), gather) < gather


def _summarize_runs(runs: Sequence[RunScore], skipped: int) -> dict[str, float | int | None]:
    errors = [abs(r.step.error_pct) for r in runs]
    shares_pct = {limit: 100.0 * fmean(e <= limit for e in errors) if errors else None for limit in (10, 20)}
    return {
        "rows": len(runs) + skipped,
        "scored": len(runs),
        "skipped": skipped,
        "mape_pct": fmean(errors) if errors else None,
        "median_ape_pct": median(errors) if errors else None,
        "within_10_pct": shares_pct[10],
        "within_20_pct": shares_pct[20],
    }


def _summarize_setups(runs: Sequence[RunScore]) -> dict[str, float | int | None]:
    """Errors over the fastest job of each set-up, and what repeated jobs leave no prediction below."""
    times: dict[str, list[float]] = defaultdict(list)
    for scored in runs:
        times[scored.run.setup].append(scored.run.step_s)
    errors = [abs(r.step.error_pct) for r in runs if r.fastest]
    return {
        "setups": len(times),
        "setups_mape_pct": fmean(errors) if errors else None,
        "floor_pct": compute_repeat_floor_pct(list(times.values())) if times else None,
    }


def _build_json_row(scored: RunScore) -> dict[str, Any]:
    return {
        "id": scored.run.id,
        "source": scored.run.cluster,
        "measured_s": scored.step.measured_s,
        "predicted_s": scored.step.predicted_s,
        "error_pct": scored.step.error_pct,
        "fastest_of_setup": scored.fastest,
        "components": [{**asdict(part), "error_pct": part.error_pct} for part in scored.parts],
        "skipped": None,
    }


# Rows of the table.
TABLE_PARTS = (
    *("layer_fwd", "layer_bwd", "slowest_fwd", "slowest_bwd"),
    *("mp_allreduce", "p2p_send", "dp_allreduce", "dp_allgather", "update", "step"),
)
# Parts that are alike on all stages, and which of the measured ones is taken: sends may include waiting.
EQUAL_ON_STAGES: Mapping[str, Callable[[Sequence[float]], float]] = {"mp_allreduce": median, "p2p_send": min}
# What an iteration is made of, as its slowest stage sees it; waiting is what is left.
SHARE_NAMES = ("forward", "backward", "mp_allreduce", "p2p_send", "dp_allreduce", "update", "waiting")


@dataclass(frozen=True, kw_only=True)
class JobColumn:
    """One column of the table."""

    id: str
    cluster: str
    name: str
    """Model and degrees: pipeline, tensor, data."""
    fastest: bool
    """No job of the same set-up was faster."""


@dataclass(frozen=True, kw_only=True)
class ClusterMeans:
    """Mean absolute errors of one cluster, %; None: no job states the part."""

    all_pct: float | None
    """Over all its jobs."""
    fastest_pct: float | None
    """Over the fastest job of each set-up."""


@dataclass(frozen=True, kw_only=True)
class ComponentRow:
    """One part in every job."""

    part: str
    name: str
    measured_s: tuple[float | None, ...]
    predicted_s: tuple[float | None, ...]
    errors_pct: tuple[float | None, ...]
    """Signed, (predicted - measured) / measured."""
    means: Mapping[str, ClusterMeans]
    """By cluster."""


@dataclass(frozen=True, kw_only=True)
class ComponentTable:
    """Errors of all parts in all jobs."""

    jobs: tuple[JobColumn, ...]
    clusters: tuple[str, ...]
    rows: tuple[ComponentRow, ...]


@dataclass(frozen=True, kw_only=True)
class IterationShares:
    """What one job's iteration is made of, in % of it."""

    job: JobColumn
    names: Mapping[str, str]
    measured_pct: Mapping[str, float] | None
    """None: the job does not state all parts."""
    predicted_pct: Mapping[str, float]


def build_component_table(scores: ComponentScores, language: str) -> ComponentTable:
    """Signed errors of every part and job, and mean absolute ones by cluster. [K60]

    The slowest stage is the one that took longest, in the measurement and in the prediction each.
    """
    jobs = tuple(build_job_column(scored) for scored in scores.runs)
    clusters = tuple(dict.fromkeys(job.cluster for job in jobs))
    columns = [_collect_parts(scored) for scored in scores.runs]
    rows = []
    for part in TABLE_PARTS:
        scores_of_part = [column.get(part) for column in columns]
        errors = tuple(None if score is None else score.error_pct for score in scores_of_part)
        rows.append(
            ComponentRow(
                part=part,
                name=label(f"component_{part}", language),
                measured_s=tuple(None if score is None else score.measured_s for score in scores_of_part),
                predicted_s=tuple(None if score is None else score.predicted_s for score in scores_of_part),
                errors_pct=errors,
                means={cluster: _average_errors(cluster, jobs, errors) for cluster in clusters},
            )
        )
    return ComponentTable(jobs=jobs, clusters=clusters, rows=tuple(rows))


def compute_iteration_shares(scores: ComponentScores, language: str) -> list[IterationShares]:
    """What each job's iteration is made of, measured and predicted. [K61]

    Of the slowest stage: its micro-batches' compute forward and backward (with recomputation), the sums of tensor
    parallelism in them, a message each way, then the sum of gradients and the update of the first stage. What is left
    of the iteration is waiting: the pipeline filling and draining, and slower neighbours.
    """
    names = {part: label(f"share_{part}", language) for part in SHARE_NAMES}
    return [
        IterationShares(
            job=build_job_column(scored),
            names=names,
            measured_pct=_compute_shares(scored.run, scored.run.step_s, partial(_get_measured_part_s, scored.run)),
            predicted_pct=_compute_shares(scored.run, scored.step.predicted_s, scored.predicted.get_part_s) or {},
        )
        for scored in scores.runs
    ]


def build_job_column(scored: RunScore) -> JobColumn:
    """The column of one job."""
    case = scored.run.case
    degrees = f"{case.strategy.pp}-{case.strategy.tp}-{case.dp}"
    name = f"{case.model.name} {degrees}"
    return JobColumn(id=scored.run.id, cluster=scored.run.cluster, name=name, fastest=scored.fastest)


def _collect_parts(scored: RunScore) -> dict[str, PartScore]:
    by_name = {score.part: score for score in (*scored.parts, scored.step)}
    for direction in ("fwd", "bwd"):
        stage_scores = [by_name[name] for stage in STAGES if (name := f"stage_{direction}_{stage}") in by_name]
        if stage_scores:
            by_name[f"slowest_{direction}"] = PartScore(
                part=f"slowest_{direction}",
                measured_s=max(score.measured_s for score in stage_scores),
                predicted_s=max(score.predicted_s for score in stage_scores),
            )
    return by_name


def _average_errors(cluster: str, jobs: Sequence[JobColumn], errors: Sequence[float | None]) -> ClusterMeans:
    errors_in_cluster = [
        (job, abs(e)) for job, e in zip(jobs, errors, strict=True) if job.cluster == cluster and e is not None
    ]
    fastest = [size for job, size in errors_in_cluster if job.fastest]
    return ClusterMeans(
        all_pct=fmean(size for _, size in errors_in_cluster) if errors_in_cluster else None,
        fastest_pct=fmean(fastest) if fastest else None,
    )


def _get_measured_part_s(run: ComponentRun, name: str, stage: str) -> float:
    """Measured seconds of one part on a stage; NaN: the job does not state it."""
    if name in EQUAL_ON_STAGES:
        times_s = [run.parts_s[name, each_stage] for each_stage in STAGES if (name, each_stage) in run.parts_s]
        return EQUAL_ON_STAGES[name](times_s) if times_s else math.nan
    return run.parts_s.get((name, stage), math.nan)


def _compute_shares(
    run: ComponentRun, step_s: float, get_part_s: Callable[[str, str], float]
) -> dict[str, float] | None:
    strategy, model = run.case.strategy, run.case.model
    stages = STAGES if strategy.pp > 2 else STAGES[::2] if strategy.pp == 2 else STAGES[:1]
    layers = _count_layers(run)
    times = {stage: (get_part_s("stage_fwd", stage), get_part_s("stage_bwd", stage)) for stage in stages}
    slowest = max(stages, key=lambda stage: float(np.nansum(times[stage])))
    forward_s, backward_s = times[slowest]
    tp_allreduce_s = get_part_s("mp_allreduce", slowest) if strategy.tp > 1 else 0.0
    send_s = get_part_s("p2p_send", slowest) if strategy.pp > 1 else 0.0
    gradients_s = get_part_s("dp_allreduce", "first") if run.case.dp > 1 else 0.0
    update_s = get_part_s("update", "first")
    if np.isnan([forward_s, backward_s, tp_allreduce_s, send_s, gradients_s, update_s]).any():
        return None
    micro_batches = strategy.micro_batches(run.case.job.global_batch)
    forward_tp_s = (1 if model.parallel_residual else 2) * layers[slowest] * tp_allreduce_s
    recompute_tp_s = forward_tp_s if strategy.recompute == "full" else 0.0
    backward_tp_s = 2 * layers[slowest] * tp_allreduce_s + recompute_tp_s
    seconds = {
        "forward": micro_batches * max(0.0, forward_s - forward_tp_s),
        "backward": micro_batches * max(0.0, backward_s - backward_tp_s),
        "mp_allreduce": micro_batches * (forward_tp_s + backward_tp_s),
        "p2p_send": micro_batches * 2 * send_s,
        "dp_allreduce": gradients_s,
        "update": update_s,
    }
    waiting_s = max(0.0, step_s - sum(seconds.values()))
    total_s = sum(seconds.values()) + waiting_s
    return {name: 100.0 * value / total_s for name, value in (*seconds.items(), ("waiting", waiting_s))}


def _count_layers(run: ComponentRun) -> dict[str, int]:
    """Layers of the first, a middle and the last stage."""
    even = -(-run.case.model.layers // run.case.strategy.pp)
    layers = run.case.strategy.layers_per_stage or (even,)
    return {"first": layers[0], "middle": layers[min(1, len(layers) - 1)], "last": layers[-1]}
