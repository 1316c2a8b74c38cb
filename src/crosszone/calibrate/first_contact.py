"""How far predictions are off: as a user meets them first, without a row's source, and on the rows of the fit.

`benchmarks/accuracy.py` writes the figures into `measured/accuracy_summary.json`, since fits take minutes; the page and
the API read them from there. First contact means that each published run is entered as a user would: model, job,
cluster and degrees, nothing of its source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

from crosszone import measured
from crosszone.calibrate.accuracy import ScoredRow, summarize_errors
from crosszone.calibrate.predicted import build_run_predictor, get_gpu
from crosszone.calibrate.runs import MeasuredRun
from crosszone.cost.profile import Profiles
from crosszone.inputs.value import Value

FILE = measured.FOLDER / "accuracy_summary.json"
RANGE_PCT = 80.0  # What the range of a prediction is to hold
NOMINAL_PCT = (50.0, RANGE_PCT, 90.0, 95.0)  # Shares that scaled ranges are to hold
DIGITS = 6  # Significant digits of a figure that is written
SAMPLE_STEP = 100  # Every hundredth run is kept with its prediction, to tell whether the figures are of these values

ReadingKind = Literal["first_contact", "first_contact_left_out", "new_sources", "left_out", "fitted"]


class Coverage(Value):
    """A nominal range and what it really holds."""

    nominal_pct: float
    """Share of runs that the range is to hold."""
    inside_pct: float
    """Share of runs whose measured step lies within it."""


class ErrorGroup(Value):
    """Errors of the runs that have something in common."""

    name: str
    rows: int
    mean_pct: float
    """Mean of |predicted / measured - 1|."""
    median_pct: float
    within_10_pct: float
    """Share of runs with an error of 10 % at most."""
    bias_pct: float
    """Mean with sign: above zero, predictions are too slow."""
    inside_pct: float
    """Share of runs inside the range of 80 %."""
    width_pct: float
    """Median width of the range: (high - low) / predicted."""


class AccuracyReading(Value):
    """All runs, predicted in one manner."""

    kind: ReadingKind
    """How runs are entered and what the fit had seen: `first_contact` (as a user would enter them),
    `first_contact_left_out` (the same by fits without the run's source), `new_sources` (newer sources by a fit without
    all of them), `left_out` (software stated, by fits without the run's source), `fitted` (rows of the fit)."""
    total: ErrorGroup
    coverage: tuple[Coverage, ...]
    """Reliability of the range, scaled to several nominal shares."""
    by_knowledge: tuple[ErrorGroup, ...]
    """`dense`, `moe`, `software_stated`, `software_assumed`, `complete`, `incomplete`: those that have runs."""
    by_gpu: tuple[ErrorGroup, ...]
    """By GPU family."""
    by_source: tuple[ErrorGroup, ...]


class SampleRun(Value):
    """One run entered as a user would, and its prediction."""

    id: str
    step_s: float
    low_s: float
    high_s: float


class AccuracySummary(Value):
    """The accuracy of a release."""

    release: str
    """Version of CrossZone whose predictions were scored."""
    range_pct: float
    """Share of runs that the range of a prediction is to hold."""
    readings: tuple[AccuracyReading, ...]
    """The one that counts most first."""
    sample: tuple[SampleRun, ...]
    """Runs by which to tell whether these figures are of the coefficients in use."""


@cache
def read_summary(path: Path = FILE) -> AccuracySummary:
    """The figures that come with the program."""
    return AccuracySummary.model_validate_json(path.read_text(encoding="utf-8"))


def write_summary(summary: AccuracySummary, path: Path = FILE) -> None:
    """Write the figures with few digits, so that a change of the file is a change of the accuracy."""
    plain = _round(summary.model_dump())
    path.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _round(inner) for key, inner in value.items()}
    return [_round(inner) for inner in value] if isinstance(value, list | tuple) else value


def scale_range(row: ScoredRow, nominal_pct: float) -> tuple[float, float]:
    """The range of a row widened or narrowed from 80 % to another nominal share. [Q13]

    Log widths scale with the quantiles of the normal distribution, below and above apart.
    """
    if row.predicted_s is None or row.low_s is None or row.high_s is None:
        raise ValueError(f"run {row.id} has no prediction whose range could be scaled")
    scale = _compute_quantile(nominal_pct) / _compute_quantile(RANGE_PCT)
    low, high = row.low_s / row.predicted_s, row.high_s / row.predicted_s
    return float(row.predicted_s * low**scale), float(row.predicted_s * high**scale)


def _compute_quantile(nominal_pct: float) -> float:
    """Standard deviations on either side that hold a share of a normal distribution."""
    return NormalDist().inv_cdf(0.5 + nominal_pct / 200.0)


def compute_coverage(rows: Sequence[ScoredRow]) -> tuple[Coverage, ...]:
    """The share of rows inside ranges of several nominal shares. [Q13]"""
    scored = [row for row in rows if row.counts and row.predicted_s is not None]
    coverage = []
    for nominal_pct in NOMINAL_PCT if scored else ():
        ranges = [scale_range(row, nominal_pct) for row in scored]
        inside = sum(low <= (row.measured_s or 0.0) <= high for row, (low, high) in zip(scored, ranges, strict=True))
        coverage.append(Coverage(nominal_pct=nominal_pct, inside_pct=100.0 * inside / len(scored)))
    return tuple(coverage)


def build_reading(
    kind: ReadingKind, rows: Sequence[ScoredRow], runs: Iterable[MeasuredRun], profiles: Profiles
) -> AccuracyReading:
    """Errors and coverage of scored rows, over all and by group; `runs`: the same rows, in any order."""
    run_of = {run.id: run for run in runs}
    scored = [row for row in rows if row.counts and row.predicted_s is not None and row.id in run_of]

    def group_by(label: Callable[[ScoredRow], str]) -> tuple[ErrorGroup, ...]:
        groups: dict[str, list[ScoredRow]] = {}
        for row in scored:
            groups.setdefault(label(row), []).append(row)
        ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        return tuple(build_error_group(name, members) for name, members in ordered)

    def is_stated(row: ScoredRow) -> bool:
        return run_of[row.id].stack is not None

    tests: dict[str, Callable[[ScoredRow], bool]] = {
        "dense": lambda row: not row.moe,
        "moe": lambda row: row.moe,
        "software_stated": is_stated,
        "software_assumed": lambda row: not is_stated(row),
        "complete": lambda row: row.complete,
        "incomplete": lambda row: not row.complete,
    }
    members = {name: [row for row in scored if test(row)] for name, test in tests.items()}
    return AccuracyReading(
        kind=kind,
        total=build_error_group("all", scored),
        coverage=compute_coverage(scored),
        by_knowledge=tuple(build_error_group(name, part) for name, part in members.items() if part),
        by_gpu=group_by(lambda row: profiles.find_family(get_gpu(run_of[row.id]))[0]),
        by_source=group_by(lambda row: row.source),
    )


def build_error_group(name: str, rows: Sequence[ScoredRow]) -> ErrorGroup:
    """Errors over some rows. [Q5]"""
    scores = summarize_errors(rows)
    return ErrorGroup(
        name=name,
        rows=scores["scored"],
        mean_pct=scores["mape_pct"],
        median_pct=scores["median_ape_pct"],
        within_10_pct=scores["within_10_pct"],
        bias_pct=scores["bias_pct"],
        inside_pct=scores["band_coverage_pct"],
        width_pct=scores["band_width_pct"],
    )


def predict_sample(runs: Sequence[MeasuredRun], profiles: Profiles) -> tuple[SampleRun, ...]:
    """Some of the runs with what is predicted of each."""
    sample = []
    for run in runs:
        step = build_run_predictor(run, profiles).step_time
        sample.append(SampleRun(id=run.id, step_s=step.expected, low_s=step.low, high_s=step.high))
    return tuple(sample)
