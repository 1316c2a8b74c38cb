"""The accuracy report as CSV files: one table a file, headers that programs can read.

    files = csv_files(accuracy_report(folder, "en"))
    files["component_error.csv"]            # component, one column a job, then means by cluster

A table that the report has nothing for is no file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
"""Files that `csv_files` may make."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell starts that a spreadsheet would run."""


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
