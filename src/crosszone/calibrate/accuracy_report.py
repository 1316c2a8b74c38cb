"""How good predictions are, as plain values: what the accuracy tables, CSV files and pictures are made of.

    folder = find_measurements()            # the folder with measured runs; None: the one that is named has none
    report = get_accuracy_report(folder, "en")
    report["sources"], report["runs"], report["components"], report["shares"], report["stability"], report["operators"]

A folder holds any of these files; what it lacks is listed in `missing`, and its part of the report is empty:

    measured_runs*.csv             whole steps, by source; doubtful_rows.csv beside them: scored apart
    ultrascale_sweep.csv           the same: one sweep of 900 strategies
    gpumodeling25/runs.csv         jobs timed part by part
    gpumodeling25/iterations.csv   seconds of their iterations
    crosszone_rig.csv              transfers between emulated zones (the testbed)
    cross_zone_runs.csv            published results across zones (on the command line only)

The same as CSV files, one table a file, with headers that programs can read; a table without rows is no file:

    files = build_csv_files(report)
    files["component_error.csv"]            # component, one column a job, then means by cluster

The command line and the server look for measured runs in `list_measurement_folders()`, in this order.
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
from crosszone.calibrate.accuracy import Accuracy, score_runs
from crosszone.calibrate.components import (
    ComponentScores,
    build_component_table,
    build_job_column,
    compute_iteration_shares,
    score_components,
)
from crosszone.calibrate.components_read import STACK, read_components
from crosszone.calibrate.fit import read_doubtful_reasons
from crosszone.calibrate.published import FamilySummary, read_published, summarize_families
from crosszone.calibrate.stability import JobStability, read_stability_table
from crosszone.calibrate.testbed import TransferReport, build_transfer_report
from crosszone.cost.operator_profile import list_sampled_gpus, load_operator_profile
from crosszone.cost.own_profiles import load_cluster_profile
from crosszone.cost.profile import Profiles
from crosszone.errors import FileError, InputError, Notice
from crosszone.inputs.catalogue.entries import find_home

MAIN_FILE = "measured_runs.csv"  # The rows that coefficients were fitted to
# Whole steps; each file has averages of its own.
RUN_FILES = (
    MAIN_FILE,
    "measured_runs_2.csv",
    "measured_runs_vtrain_single.csv",
    "measured_runs_h200.csv",
    "ultrascale_sweep.csv",
)
DOUBTFUL_FILE = "doubtful_rows.csv"
COMPONENTS_FILE = "gpumodeling25/runs.csv"
ITERATIONS_FILE = "gpumodeling25/iterations.csv"
TESTBED_FILE = "crosszone_rig.csv"
PUBLISHED_FILE = "cross_zone_runs.csv"
# Files of a folder that a report is made of.
FILES = (*RUN_FILES, COMPONENTS_FILE, ITERATIONS_FILE, TESTBED_FILE, PUBLISHED_FILE)
JOB_SOURCE = "gpumodeling25"  # Source of jobs timed part by part
Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class ScoredFolder:
    """What the files of a folder hold, predicted and scored."""

    folder: Path
    missing: tuple[str, ...]
    runs: Mapping[str, Accuracy] = field(default_factory=dict)
    """By name of the file."""
    components: ComponentScores | None = None
    stability: Sequence[JobStability] = ()
    testbed: TransferReport | None = None
    published: Sequence[FamilySummary] = ()
    """Published results across zones, by publication."""
    own_profile: str | None = None
    """Name of the user's profile that predictions were made with."""

    @property
    def rows(self) -> int:
        """Rows of all files that were scored."""
        return sum(len(accuracy.rows) for accuracy in self.runs.values())


def get_accuracy_report(folder: Path, language: str) -> dict[str, Any]:
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
    key = (folder, get_folder_state(folder), Profiles.load(), language)  # the same profiles are one object
    if key not in _report_cache:
        while len(_report_cache) >= MAX_CACHED_REPORTS:
            _report_cache.pop(next(iter(_report_cache)))
        _report_cache[key] = build_report(score_folder(folder), language)
    return _report_cache[key]


MAX_CACHED_REPORTS = 4  # A folder in both languages, before and after a change of the profile
_report_cache: dict[Any, dict[str, Any]] = {}


def score_folder(
    folder: Path, progress: Progress | None = None, *, doubtful: Path | None = None, published: bool = False
) -> ScoredFolder:
    """Read and score what a folder holds; `InputError` where it holds none of the files, or one cannot be read.

    `doubtful`: rows to score apart, else those listed beside the runs; `published`: also results across zones, which
    take seconds more.
    """
    if not folder.is_dir():
        raise FileError(Notice(code="accuracy_no_folder", value=str(folder), params={"files": list(FILES)}))
    missing = tuple(name for name in FILES if not (folder / name).is_file())
    if len(missing) == len(FILES):
        raise InputError(Notice(code="accuracy_empty_folder", value=str(folder), params={"files": list(FILES)}))
    profiles, present = Profiles.load(), set(FILES) - set(missing)
    doubtful_rows = read_doubtful_reasons(folder / MAIN_FILE, doubtful)
    stability = read_stability_table(folder / ITERATIONS_FILE) if ITERATIONS_FILE in present else ()
    return ScoredFolder(
        folder=folder,
        missing=missing,
        runs={
            name: score_runs(folder / name, profiles, doubtful_rows, progress) for name in RUN_FILES if name in present
        },
        components=_score_component_file(folder / COMPONENTS_FILE, profiles) if COMPONENTS_FILE in present else None,
        stability=stability,
        testbed=build_transfer_report(folder / TESTBED_FILE) if TESTBED_FILE in present else None,
        published=summarize_families(read_published(folder / PUBLISHED_FILE))
        if published and PUBLISHED_FILE in present
        else (),
        own_profile=profiles.own,
    )


def score_file(file: Path, runs: Accuracy | None = None) -> ScoredFolder:
    """What one file holds: whole steps that were scored already, else jobs timed part by part."""
    profiles = Profiles.load()
    jobs = None if runs else _score_component_file(file, profiles)
    return ScoredFolder(
        folder=file, missing=(), runs={file.name: runs} if runs else {}, components=jobs, own_profile=profiles.own
    )


def _score_component_file(path: Path, profiles: Profiles) -> ComponentScores:
    jobs, skipped = read_components(path)
    return score_components(jobs, profiles, skipped)


def build_report(scored: ScoredFolder, language: str) -> dict[str, Any]:
    """A scored folder as plain values for JSON: the keys of `get_accuracy_report`."""
    jobs, main = scored.components, next(iter(scored.runs.values()), None)
    return {
        "folder": str(scored.folder),
        "own": scored.own_profile,
        "missing": list(scored.missing),
        "summary": {name: accuracy.summary for name, accuracy in scored.runs.items()},
        "subsets": main.subsets if main else {},
        "doubtful": main.doubtful if main else None,
        "ranking": asdict(main.ranking) if main else None,
        "sources": _list_sources(scored.runs, jobs),
        "runs": _list_runs(scored.runs, jobs),
        "skipped": _list_skipped(scored),
        "components": asdict(build_component_table(jobs, language)) if jobs else None,
        "clusters": _list_clusters(jobs) if jobs else [],
        "shares": [asdict(job_shares) for job_shares in compute_iteration_shares(jobs, language)] if jobs else [],
        "stability": _list_stability(scored.stability, jobs),
        "published": [asdict(family) for family in scored.published],
        "transfers": [asdict(transfer) for transfer in scored.testbed.summaries] if scored.testbed else [],
        "operators": list_operator_errors(),
    }


def list_operator_errors() -> list[dict[str, Any]]:
    """Errors of the shipped operator profiles: GPU, family, samples, cross-validated and on unseen sizes."""
    lines = []
    for gpu in list_sampled_gpus():
        profile = load_operator_profile(gpu)
        for family, values in (profile.summarize() if profile else {}).items():
            lines.append({"gpu": gpu, "family": family, **values})
    return lines


def get_folder_state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Time and size of every file the report is made of."""
    state = []
    for name in (*FILES, DOUBTFUL_FILE):
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        state.append((name, status.st_mtime_ns, status.st_size))
    return tuple(state)


def count_rows(path: Path) -> int:
    """About how many rows a file has; 0 where it cannot be read."""
    try:
        with path.open("rb") as file:
            return max(0, sum(1 for _ in file) - 1)
    except OSError:
        return 0


def _list_sources(runs: Mapping[str, Accuracy], jobs: ComponentScores | None) -> list[dict[str, Any]]:
    """Sources of each file; jobs timed by part are one source a cluster."""
    lines = [{"file": name, **line} for name, accuracy in runs.items() for line in accuracy.by_source]
    return lines + [
        {"file": COMPONENTS_FILE, **line, "source": _label_job_source(line["source"])}
        for line in (jobs.by_source if jobs else ())
    ]


def _list_clusters(jobs: ComponentScores) -> list[dict[str, Any]]:
    """Errors of the iteration by cluster, with the cross-validated error that the cluster's profile states.

    There is no such error where an own profile made the predictions, or the jobs are others than those of the fit.
    """
    lines = []
    for line in jobs.by_source:
        cluster_profile = None if Profiles.load().own else load_cluster_profile(line["source"])
        scores = cluster_profile.scores["jobs"][STACK] if cluster_profile else {}
        same_jobs = line["setups"] == scores.get("setups")
        lines.append({**line, "left_out_pct": scores.get("left_out_pct") if same_jobs else None})
    return lines


def _label_job_source(cluster: str) -> str:
    return f"{JOB_SOURCE} {cluster}".strip()


def _list_runs(runs: Mapping[str, Accuracy], jobs: ComponentScores | None) -> list[dict[str, Any]]:
    """Every scored run; jobs timed by part have no band, and only the fastest of a set-up counts."""
    lines = [
        {name: file if name == "file" else getattr(row, name) for name in (*RUN_COLUMNS, "moe", "complete")}
        for file, accuracy in runs.items()
        for row in accuracy.rows
        if row.error_pct is not None
    ]
    for scored in jobs.runs if jobs else ():
        line = dict.fromkeys(RUN_COLUMNS) | {
            "id": scored.run.id,
            "source": _label_job_source(scored.run.cluster),
            "file": COMPONENTS_FILE,
            "measured_s": scored.step.measured_s,
            "predicted_s": scored.step.predicted_s,
            "error_pct": scored.step.error_pct,
            "counts": scored.fastest,
            "moe": False,
            "complete": True,
        }
        lines.append(line)
    return lines


def _list_skipped(scored: ScoredFolder) -> list[dict[str, Any]]:
    """Rows that could not be scored: file, id and why."""
    lines = [
        {"file": name, "id": row.id, "source": row.source, "reason": row.skipped}
        for name, accuracy in scored.runs.items()
        for row in accuracy.rows
        if row.skipped is not None
    ]
    jobs = scored.components.skipped if scored.components else ()
    lines += [{"file": COMPONENTS_FILE, "id": job.id, "source": job.source, "reason": job.reason} for job in jobs]
    transfers = scored.testbed.skipped if scored.testbed else ()
    return lines + [
        {"file": TESTBED_FILE, "id": str(line), "source": "", "reason": reason} for line, reason in transfers
    ]


def _list_stability(statistics: Sequence[JobStability], jobs: ComponentScores | None) -> list[dict[str, Any]]:
    """Statistics of each job; its cluster and name where the jobs' file knows it."""
    job_by_id = {scored.run.id: build_job_column(scored) for scored in (jobs.runs if jobs else ())}
    lines = []
    for job_statistics in statistics:
        job = job_by_id.get(job_statistics.id)
        lines.append(
            {
                **job_statistics.as_dict(),
                "cluster": job.cluster if job else "",
                "name": job.name if job else job_statistics.id,
                "fastest": job.fastest if job else None,
            }
        )
    return lines


RUN_COLUMNS = (
    *("id", "source", "file", "measured_s", "predicted_s", "low_s", "high_s"),
    *("error_pct", "counts", "doubtful"),
)
SOURCE_COLUMNS = (
    *("file", "source", "rows", "scored", "skipped", "doubtful", "duplicates"),
    *("mape_pct", "median_ape_pct", "within_10_pct", "within_20_pct", "bias_pct", "band_coverage_pct"),
    *("memory_rows", "memory_mape_pct", "setups", "setups_mape_pct", "floor_pct"),
)
STABILITY_COLUMNS = ("id", "cluster", "name", "count", "min_s", "max_s", "mean_s", "std_s", "mean_to_min_pct")
TRANSFER_COLUMNS = ("experiment", "op", "rows", "predicted", "median_best_pct", "p90_best_pct", "median_median_pct")
PUBLISHED_COLUMNS = ("family", "rows", "predicted", "median_ape_pct", "within_10_pct", "within_20_pct")
OPERATOR_COLUMNS = ("gpu", "family", "samples", "error_pct", "unseen_pct")
# Files that `build_csv_files` may make.
TABLE_FILES = (
    *("runs.csv", "sources.csv", "component_error.csv", "component_share.csv"),
    *("iteration_stability.csv", "transfers.csv", "published.csv", "operators.csv"),
)
# How a cell starts that a spreadsheet would run as a formula; names of runs come from files of others.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def build_csv_files(report: Mapping[str, Any]) -> dict[str, str]:
    """Name and text of every CSV table that the report has rows for."""
    texts = (
        _format_table(RUN_COLUMNS, report["runs"]),
        _format_table(SOURCE_COLUMNS, report["sources"]),
        _format_component_errors(report["components"]),
        _format_component_shares(report["shares"]),
        _format_table(STABILITY_COLUMNS, report["stability"]),
        _format_table(TRANSFER_COLUMNS, report["transfers"]),
        _format_table(PUBLISHED_COLUMNS, report["published"]),
        _format_table(OPERATOR_COLUMNS, report["operators"]),
    )
    return {name: text for name, text in zip(TABLE_FILES, texts, strict=True) if text.count("\n") > 1}


def _format_component_errors(table: Mapping[str, Any] | None) -> str:
    """Rows: components; columns: signed error of every job, mean absolute ones of every cluster."""
    if table is None:
        return ""
    jobs = [f"{job['cluster']} {job['name']} ({job['id']})" for job in table["jobs"]]
    means = [f"{cluster} mean abs, {which}" for cluster in table["clusters"] for which in ("all jobs", "fastest jobs")]
    lines: list[Sequence[Any]] = [("component", *jobs, *means)]
    for row in table["rows"]:
        means_by_cluster = [row["means"][cluster] for cluster in table["clusters"]]
        lines.append(
            (row["part"], *row["errors_pct"], *(x for m in means_by_cluster for x in (m["all_pct"], m["fastest_pct"])))
        )
    return _format_csv(lines)


def _format_component_shares(shares: Sequence[Mapping[str, Any]]) -> str:
    lines: list[Sequence[Any]] = []
    for job_shares in shares:
        job = job_shares["job"]
        for kind in ("measured", "predicted"):
            percents = job_shares[f"{kind}_pct"]
            if percents:
                lines.append((job["id"], job["cluster"], job["name"], kind, *percents.values()))
    names = tuple(f"{name}_pct" for name in shares[0]["names"]) if shares else ()
    return _format_csv([("id", "cluster", "job", "kind", *names), *lines])


def _format_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    return _format_csv([columns, *([row.get(name) for name in columns] for row in rows)])


def _format_csv(lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_format_cell(value) for value in line] for line in lines)
    return text.getvalue()


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


FOLDER_VARIABLE = "CROSSZONE_MEASUREMENTS"  # Names the folder with measured data


def find_measurements() -> Path | None:
    """The first place with any of the files that a report is made of."""
    return next(
        (place.resolve() for place in list_measurement_folders() if any((place / name).is_file() for name in FILES)),
        None,
    )


def list_measurement_folders() -> list[Path]:
    """The folder that is named; else the user's own, then the runs that come with the program."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return [Path(folder).expanduser()]
    return [find_home() / "measurements", measured.FOLDER]
