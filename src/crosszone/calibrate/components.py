"""Score the cost model part by part against jobs whose layers, stages and collectives were timed.

    runs, skipped = read_components(Path("runs.csv"))
    scores = score_components(runs, Profiles.load(), skipped)
    scores.summary["setups_mape_pct"]     # mean absolute error of the step, fastest job of each set-up
    scores.as_dict()                      # what `crosszone accuracy --json` prints

The step is compared with the fastest iteration. Where a set-up was run twice, the two differ by what the network did
that day: no prediction can meet both, and `floor_pct` says how close any could come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from crosszone.calibrate.components_predict import Components, predict_components, profiles_of_cluster
from crosszone.calibrate.components_read import STAGES, ComponentRun, read_components
from crosszone.calibrate.runs import Skipped
from crosszone.cost.profile import Profiles

__all__ = ["ComponentScores", "PartScore", "RunScore", "read_components", "score_components"]

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
"""Part, stages whose measured time is looked at, and which of them is taken.

Layers and collectives are alike on all stages. Sends, sums and updates of later stages include waiting for others.
"""


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
