"""Everything that is known of how good predictions are, as plain values: what tables, files and pictures are made of.

    report = accuracy_report(Path("data"), "en")
    report["sources"], report["runs"], report["components"], report["shares"], report["stability"], report["operators"]

A folder holds any of these files; what it lacks is told in `missing`, and its part of the report is empty:

    measured_runs*.csv             whole steps, by source; doubtful_rows.csv beside them: scored apart
    ultrascale_sweep.csv           the same: one sweep of 900 strategies
    gpumodeling25/runs.csv         jobs timed part by part
    gpumodeling25/iterations.csv   seconds of their iterations
    crosszone_rig.csv              transfers between emulated zones
    cross_zone_runs.csv            published results across zones (on the command line only)

The accuracy report as CSV files: one table a file, headers that programs can read.

    files = csv_files(accuracy_report(folder, "en"))
    files["component_error.csv"]            # component, one column a job, then means by cluster

A table that the report has nothing for is no file.

Where measured runs lie when nobody says: for the command line and the server alike.

measurements()                     # the folder with measured runs; None: the one that is named has none
places()[0]                        # where they are looked for first
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crosszone import measured
from crosszone.calibrate.accuracy import Accuracy, ScoredRow, score_runs
from crosszone.calibrate.components import ComponentScores, component_table, read_components, score_components, shares
from crosszone.calibrate.components_read import STACK
from crosszone.calibrate.fit import doubtful_of
from crosszone.calibrate.published import FamilySummary, read_published, summarize_families
from crosszone.calibrate.stability import JobStability, read_stability_table
from crosszone.calibrate.testbed import TransferReport, build_transfer_report
from crosszone.cost.operator_profile import operator_profile, operator_profiles
from crosszone.cost.own_profiles import load_cluster_profile
from crosszone.cost.profile import Profiles
from crosszone.errors import FileError, InputError, Notice
from crosszone.inputs.catalogue.entries import home

MAIN = "measured_runs.csv"  # The rows that coefficients were fitted to
# Whole steps; each file has averages of its own.
RUNS = (
    MAIN,
    "measured_runs_2.csv",
    "measured_runs_vtrain_single.csv",
    "measured_runs_h200.csv",
    "ultrascale_sweep.csv",
)
DOUBTFUL = "doubtful_rows.csv"
COMPONENTS = "gpumodeling25/runs.csv"
ITERATIONS = "gpumodeling25/iterations.csv"
RIG = "crosszone_rig.csv"
PUBLISHED = "cross_zone_runs.csv"
FILES = (*RUNS, COMPONENTS, ITERATIONS, RIG, PUBLISHED)  # Files of a folder that a report is made of
JOBS = "gpumodeling25"  # Source of jobs timed part by part
Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the files of a folder hold, predicted and scored."""

    folder: Path
    missing: tuple[str, ...]
    runs: Mapping[str, Accuracy] = field(default_factory=dict)
    """By name of the file."""
    components: ComponentScores | None = None
    stability: Sequence[JobStability] = ()
    rig: TransferReport | None = None
    published: Sequence[FamilySummary] = ()
    """Published results across zones, by publication."""
    own: str | None = None
    """The user's profile that predictions were made with."""

    @property
    def rows(self) -> int:
        """Rows of all files that were scored."""
        return sum(len(one.rows) for one in self.runs.values())


def accuracy_report(folder: Path, language: str) -> dict[str, Any]:
    """The report of a folder as plain values for JSON; made again when a file or the profile in use has changed.

    sources     per source: scored, mape_pct, median_ape_pct, within_10_pct, within_20_pct, bias_pct,
                band_coverage_pct, memory_mape_pct, and the file it is of
    runs        id, source, measured_s, predicted_s, low_s, high_s, error_pct, counts (goes into averages), file
    components  jobs, clusters, rows (part, name, errors_pct by job, means by cluster); None: no such file
    shares      per job: measured_pct and predicted_pct of the iteration by part
    stability   per job: count, min_s, max_s, mean_s, std_s, mean_to_min_pct, seconds
    operators   per GPU: error_pct and unseen_pct by family of operators
    clusters    per cluster of such jobs: mape_pct over all, setups_mape_pct over the fastest job of each set-up,
                left_out_pct over those with constants of the other set-ups only, and floor_pct, which no prediction
                could go below over all
    summary (by file), subsets, doubtful, ranking, transfers, skipped, missing, own: as their names say
    """
    key = (folder, state_of(folder), Profiles.load(), language)  # the same profiles are one object
    if key not in _kept:
        while len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = report_of(found_in(folder), language)
    return _kept[key]


KEPT = 4  # Reports that are kept
_kept: dict[Any, dict[str, Any]] = {}


def found_in(
    folder: Path, progress: Progress | None = None, *, doubtful: Path | None = None, published: bool = False
) -> Found:
    """Read and score what a folder holds; `InputError` where it holds none of the files, or one cannot be read.

    `doubtful`: rows to score apart, else those listed beside the runs; `published`: also results across zones, which
    take seconds more.
    """
    if not folder.is_dir():
        raise FileError(Notice(code="accuracy_no_folder", value=str(folder), params={"files": list(FILES)}))
    missing = tuple(name for name in FILES if not (folder / name).is_file())
    if len(missing) == len(FILES):
        raise InputError(Notice(code="accuracy_empty_folder", value=str(folder), params={"files": list(FILES)}))
    profiles, at = Profiles.load(), set(FILES) - set(missing)
    apart = doubtful_of(folder / MAIN, doubtful)
    steady = read_stability_table(folder / ITERATIONS) if ITERATIONS in at else ()
    return Found(
        folder=folder,
        missing=missing,
        runs={name: score_runs(folder / name, profiles, apart, progress) for name in RUNS if name in at},
        components=_components(folder / COMPONENTS, profiles) if COMPONENTS in at else None,
        stability=steady,
        rig=build_transfer_report(folder / RIG) if RIG in at else None,
        published=summarize_families(read_published(folder / PUBLISHED)) if published and PUBLISHED in at else (),
        own=profiles.own,
    )


def found_of(file: Path, runs: Accuracy | None = None) -> Found:
    """What one file holds: whole steps that were scored already, else jobs timed part by part."""
    profiles = Profiles.load()
    jobs = None if runs else _components(file, profiles)
    return Found(folder=file, missing=(), runs={file.name: runs} if runs else {}, components=jobs, own=profiles.own)


def _components(path: Path, profiles: Profiles) -> ComponentScores:
    read, skipped = read_components(path)
    return score_components(read, profiles, skipped)


def report_of(found: Found, language: str) -> dict[str, Any]:
    """The same as plain values."""
    jobs, main = found.components, next(iter(found.runs.values()), None)
    return {
        "folder": str(found.folder),
        "own": found.own,
        "missing": list(found.missing),
        "summary": {name: one.summary for name, one in found.runs.items()},
        "subsets": main.subsets if main else {},
        "doubtful": main.doubtful if main else None,
        "ranking": asdict(main.ranking) if main else None,
        "sources": [*_sources(found.runs), *_job_sources(jobs)],
        "runs": [*_runs(found.runs), *_job_runs(jobs)],
        "skipped": _skipped(found),
        "components": component_table(jobs, language).as_dict() if jobs else None,
        "clusters": _clusters(jobs) if jobs else [],
        "shares": [one.as_dict() for one in shares(jobs, language)] if jobs else [],
        "stability": _stability(found.stability, jobs),
        "published": [asdict(one) for one in found.published],
        "transfers": [asdict(one) for one in found.rig.summaries] if found.rig else [],
        "operators": operators(),
    }


def operators() -> list[dict[str, Any]]:
    """Errors of the shipped operator profiles: GPU, family, samples, cross-validated and on unseen sizes."""
    lines = []
    for gpu in operator_profiles():
        profile = operator_profile(gpu)
        for family, values in (profile.summary() if profile else {}).items():
            lines.append({"gpu": gpu, "family": family, **values})
    return lines


def state_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Time and size of every file the report is made of."""
    found = []
    for name in (*FILES, DOUBTFUL):
        try:
            told = (folder / name).stat()
        except OSError:
            continue
        found.append((name, told.st_mtime_ns, told.st_size))
    return tuple(found)


def rows_in(path: Path) -> int:
    """About how many rows a file has; 0 where it cannot be read."""
    try:
        with path.open("rb") as file:
            return max(0, sum(1 for _ in file) - 1)
    except OSError:
        return 0


def _sources(runs: Mapping[str, Accuracy]) -> list[dict[str, Any]]:
    return [{"file": name, **line} for name, one in runs.items() for line in one.by_source]


def _job_sources(jobs: ComponentScores | None) -> list[dict[str, Any]]:
    """Jobs timed by part are one source a cluster."""
    lines = jobs.by_source if jobs else []
    return [{"file": COMPONENTS, **line, "source": _source(line["source"])} for line in lines]


def _clusters(jobs: ComponentScores) -> list[dict[str, Any]]:
    """Errors of the iteration by cluster, also cross-validated: as the cluster's profile says, which was fitted so.

    There is no such error where an own profile made the predictions, or the jobs are others than those of the fit.
    """
    lines = []
    for line in jobs.by_source:
        known = None if Profiles.load().own else load_cluster_profile(line["source"])
        scores = known.scores["jobs"][STACK] if known else {}
        same = line["setups"] == scores.get("setups")
        lines.append({**line, "left_out_pct": scores.get("left_out_pct") if same else None})
    return lines


def _source(cluster: str) -> str:
    return f"{JOBS} {cluster}".strip()


def _runs(runs: Mapping[str, Accuracy]) -> list[dict[str, Any]]:
    return [_run(name, row) for name, one in runs.items() for row in one.rows if row.error_pct is not None]


def _run(file: str, row: ScoredRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "source": row.source,
        "file": file,
        "measured_s": row.measured_s,
        "predicted_s": row.predicted_s,
        "low_s": row.low_s,
        "high_s": row.high_s,
        "error_pct": row.error_pct,
        "counts": row.counts,
        "doubtful": row.doubtful,
        "moe": row.moe,
        "complete": row.complete,
    }


def _job_runs(jobs: ComponentScores | None) -> Iterable[dict[str, Any]]:
    for scored in jobs.runs if jobs else ():
        yield {
            "id": scored.run.id,
            "source": _source(scored.run.cluster),
            "file": COMPONENTS,
            "measured_s": scored.step.measured_s,
            "predicted_s": scored.step.predicted_s,
            "low_s": None,
            "high_s": None,
            "error_pct": scored.step.error_pct,
            "counts": scored.fastest,
            "doubtful": None,
            "moe": False,
            "complete": True,
        }


def _skipped(found: Found) -> list[dict[str, Any]]:
    """Rows that could not be scored: file, id and why."""
    lines = [
        {"file": name, "id": row.id, "source": row.source, "reason": row.skipped}
        for name, one in found.runs.items()
        for row in one.rows
        if row.skipped is not None
    ]
    jobs = found.components.skipped if found.components else ()
    lines += [{"file": COMPONENTS, "id": one.id, "source": one.source, "reason": one.reason} for one in jobs]
    rig = found.rig.skipped if found.rig else ()
    return lines + [{"file": RIG, "id": str(line), "source": "", "reason": reason} for line, reason in rig]


def _stability(found: Sequence[JobStability], jobs: ComponentScores | None) -> list[dict[str, Any]]:
    """Statistics of each job; its cluster and name where the jobs' file knows it."""
    from crosszone.calibrate.components import job_of

    known = {scored.run.id: job_of(scored) for scored in (jobs.runs if jobs else ())}
    lines = []
    for one in found:
        job = known.get(one.id)
        lines.append(
            {
                **one.as_dict(),
                "cluster": job.cluster if job else "",
                "name": job.name if job else one.id,
                "fastest": job.fastest if job else None,
            }
        )
    return lines


RUN_COLUMNS = (
    "id",
    "source",
    "file",
    "measured_s",
    "predicted_s",
    "low_s",
    "high_s",
    "error_pct",
    "counts",
    "doubtful",
)
SOURCE_COLUMNS = (
    "file",
    "source",
    "rows",
    "scored",
    "skipped",
    "doubtful",
    "duplicates",
    "mape_pct",
    "median_ape_pct",
    "within_10_pct",
    "within_20_pct",
    "bias_pct",
    "band_coverage_pct",
    "memory_rows",
    "memory_mape_pct",
    "setups",
    "setups_mape_pct",
    "floor_pct",
)
STABILITY_COLUMNS = ("id", "cluster", "name", "count", "min_s", "max_s", "mean_s", "std_s", "mean_to_min_pct")
TRANSFER_COLUMNS = ("experiment", "op", "rows", "predicted", "median_best_pct", "p90_best_pct", "median_median_pct")
PUBLISHED_COLUMNS = ("family", "rows", "predicted", "median_ape_pct", "within_10_pct", "within_20_pct")
OPERATOR_COLUMNS = ("gpu", "family", "samples", "error_pct", "unseen_pct")
# Files that `csv_files` may make.
NAMES = (
    "runs.csv",
    "sources.csv",
    "component_error.csv",
    "component_share.csv",
    "iteration_stability.csv",
    "transfers.csv",
    "published.csv",
    "operators.csv",
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # How a cell starts that a spreadsheet would run


def csv_files(report: Mapping[str, Any]) -> dict[str, str]:
    """Name and text of every table that the report has rows for."""
    made = (
        _plain(RUN_COLUMNS, report["runs"]),
        _plain(SOURCE_COLUMNS, report["sources"]),
        _component_error(report["components"]),
        _component_share(report["shares"]),
        _plain(STABILITY_COLUMNS, report["stability"]),
        _plain(TRANSFER_COLUMNS, report["transfers"]),
        _plain(PUBLISHED_COLUMNS, report["published"]),
        _plain(OPERATOR_COLUMNS, report["operators"]),
    )
    return {name: text for name, text in zip(NAMES, made, strict=True) if text.count("\n") > 1}


def _component_error(table: Mapping[str, Any] | None) -> str:
    """Rows: components; columns: signed error of every job, mean absolute ones of every cluster."""
    if table is None:
        return ""
    jobs = [f"{job['cluster']} {job['name']} ({job['id']})" for job in table["jobs"]]
    means = [f"{cluster} mean abs, {which}" for cluster in table["clusters"] for which in ("all jobs", "fastest jobs")]
    lines: list[Sequence[Any]] = [("component", *jobs, *means)]
    for row in table["rows"]:
        found = [row["means"][cluster] for cluster in table["clusters"]]
        lines.append((row["part"], *row["errors_pct"], *(x for m in found for x in (m["all_pct"], m["fastest_pct"]))))
    return _written(lines)


def _component_share(shares: Sequence[Mapping[str, Any]]) -> str:
    lines: list[Sequence[Any]] = []
    for one in shares:
        job = one["job"]
        for kind in ("measured", "predicted"):
            found = one[f"{kind}_pct"]
            if found:
                lines.append((job["id"], job["cluster"], job["name"], kind, *found.values()))
    names = tuple(f"{name}_pct" for name in shares[0]["names"]) if shares else ()
    return _written([("id", "cluster", "job", "kind", *names), *lines])


def _plain(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    return _written([columns, *([row.get(name) for name in columns] for row in rows)])


def _written(lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell(value) for value in line] for line in lines)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA) else text


VARIABLE = "CROSSZONE_MEASUREMENTS"  # Names the folder with measured data


def measurements() -> Path | None:
    """The first place with any of the files that a report is made of."""
    return next((place.resolve() for place in places() if any((place / name).is_file() for name in FILES)), None)


def places() -> list[Path]:
    """The folder that is named; else the user's own, then the runs that come with the program."""
    named = os.environ.get(VARIABLE)
    if named:
        return [Path(named).expanduser()]
    return [home() / "measurements", measured.FOLDER]
