"""The table of component errors and the shares of an iteration: rows are parts, columns are jobs timed part by part.

    scores = score_components(*...)                       # components.py
    table = component_table(scores, "en")
    table.rows[0].errors_pct, table.rows[0].means["vista"].fastest_pct
    shares(scores, "en")[0].predicted_pct                 # of the iteration, by part; they add up to 100

An empty cell is a part that the job does not state, or whose span contradicts another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from crosszone.calibrate.components import ComponentScores, PartScore, RunScore
from crosszone.calibrate.components_read import STAGES, ComponentRun
from crosszone.text import label

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
"""Rows of the table."""
ALIKE: Mapping[str, Callable[[Sequence[float]], float]] = {"mp_allreduce": median, "p2p_send": min}
"""Parts that are alike on all stages, and which of the measured ones is taken: sends may include waiting."""
SHARES = ("forward", "backward", "mp_allreduce", "p2p_send", "dp_allreduce", "update", "waiting")
"""What an iteration is made of, as its slowest stage sees it; waiting is what is left."""


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
