"""All that `crosszone accuracy` tells of a folder of measured runs: tables, CSV files and pictures, by one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crosszone.cli.accuracy_table import TESTBED, Columns, format_cell, print_table
from crosszone.cli.output import build_table, check_not_existing, get_language, label, open_console, write_bytes
from crosszone.errors import InputError, Notice
from crosszone.extras import require_extra
from crosszone.text.figures import format_amount

MOST_RUNS = 20  # Runs shown in the terminal: those farthest off; --csv and --json have all
MOST_JOBS = 10  # Jobs shown in the terminal side by side
SCORES = ("scored", "mape_pct", "median_ape_pct", "within_10_pct", "within_20_pct", "bias_pct", "band_coverage_pct")
STABILITY = ("iterations", "min_s", "max_s", "mean_s", "std_s", "mean_to_min_pct")


def find_default_folder() -> Path:
    """The folder with measured runs; where there is none, the one that they are looked for in first."""
    from crosszone.calibrate.accuracy_report import find_measurements, list_measurement_folders

    return find_measurements() or list_measurement_folders()[0]


def check_targets(force: bool, csv: Path | None, figures: Path | None) -> None:
    """Refuse before long work what cannot be written: a folder that is a file, or files that exist already."""
    from crosszone.calibrate.accuracy_report import TABLE_FILES as TABLES
    from crosszone.calibrate.figures import NAMES as DRAWN

    if figures is not None:
        require_extra("figures")
    for folder, names in ((csv, TABLES), (figures, DRAWN)):
        if folder is None:
            continue
        if folder.exists() and not folder.is_dir():
            params = {"reason": label("not_a_folder")}
            raise InputError(Notice(code="output_unwritable", value=str(folder), params=params))
        for name in names:
            check_not_existing(folder / name, force)


def write_report(report: Mapping[str, Any], csv: Path | None, figures: Path | None) -> list[Path]:
    """Write tables and pictures; all are made before the first is written."""
    contents: dict[Path, bytes] = {}
    if csv is not None:
        from crosszone.calibrate.accuracy_report import build_csv_files

        contents |= {csv / name: text.encode() for name, text in build_csv_files(report).items()}
    if figures is not None:
        from crosszone.calibrate.figures import draw_figures

        pictures = draw_figures(report, get_language())
        if not pictures:
            raise InputError(Notice(code="accuracy_no_figure", value=report["folder"]))
        contents |= {figures / name: content for name, content in pictures.items()}
    for path, content in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            params = {"reason": error.strerror or str(error)}
            raise InputError(Notice(code="output_unwritable", value=str(path.parent), params=params)) from None
        write_bytes(path, content, force=True)
    return list(contents)


def print_written(paths: Sequence[Path]) -> None:
    """Say what lies where now."""
    if paths:
        names = ", ".join(str(path) for path in paths)
        open_console(stderr=True).print(label("accuracy_written", count=len(paths), files=names), soft_wrap=True)


def print_report(report: Mapping[str, Any]) -> None:
    """Every table of a folder."""
    _print_sources(report)
    _print_worst_runs(report)
    print_jobs(report)
    _print_stability(report["stability"])
    _print_transfers(report)
    _print_operators(report["operators"])
    if report["missing"]:
        open_console().print(label("accuracy_missing", files=", ".join(report["missing"])), soft_wrap=True)


def print_jobs(report: Mapping[str, Any]) -> None:
    """Jobs timed part by part: error of the iteration by cluster, of every component, and the shares."""
    if not report["components"]:
        return
    columns: Columns = (
        ("source", "left"),
        ("jobs", "right"),
        ("mape_pct", "right"),
        ("floor_pct", "right"),
        ("setups", "right"),
        ("setups_mape_pct", "right"),
        ("left_out_pct", "right"),
    )
    print_table(
        label("clusters_title"), columns, [{**cluster, "jobs": cluster["scored"]} for cluster in report["clusters"]]
    )
    _print_component_errors(report["components"])
    _print_shares(report["shares"])


def _print_sources(report: Mapping[str, Any]) -> None:
    columns: Columns = (("source", "left"), *((key, "right") for key in SCORES))
    lines = [line for line in report["sources"] if "bias_pct" in line]
    totals = [{"source": f"= {name}", **line} for name, line in report["summary"].items()]
    subsets = [{"source": label(f"subset_{name}"), **line} for name, line in report["subsets"].items()]
    if report["doubtful"] and report["doubtful"]["rows"]:
        subsets.append({"source": label("subset_doubtful"), **report["doubtful"]})
    print_table(label("accuracy_title"), columns, [*lines, *totals])
    print_table(label("subsets_title"), columns, subsets)


def _print_worst_runs(report: Mapping[str, Any]) -> None:
    """The runs farthest off."""
    counted = [run for run in report["runs"] if run["counts"]]
    worst = sorted(counted, key=lambda run: -abs(run["error_pct"]))[:MOST_RUNS]
    columns: Columns = (
        ("run", "left"),
        ("source", "left"),
        ("measured_s", "right"),
        ("predicted_s", "right"),
        ("error_pct", "right"),
    )
    lines = [
        {**run, "run": run["id"], **{key: f"{run[key]:.4g}" for key in ("measured_s", "predicted_s")}} for run in worst
    ]
    if counted:
        print_table(label("worst_runs_title", shown=len(worst), count=format_amount(len(counted))), columns, lines)


def _print_component_errors(components: Mapping[str, Any]) -> None:
    """Rows: components; columns: jobs, then means by cluster over all its jobs and over the fastest of each set-up."""
    caption = label("component_error_caption")
    if len(components["jobs"]) > MOST_JOBS:
        caption += " " + label("figure_first_jobs", shown=MOST_JOBS, count=format_amount(len(components["jobs"])))
    table = build_table(label("component_error_title"), (), caption=caption)
    table.add_column(label("component"), no_wrap=True)
    for job in components["jobs"][:MOST_JOBS]:
        name = job["name"].replace(" ", "\n")
        mark = "" if job["fastest"] else " *"
        table.add_column(f"{job['cluster']}\n{name}\n{job['id']}{mark}", justify="right")
    for cluster in components["clusters"]:
        table.add_column(label("mean_all_jobs", cluster=cluster), justify="right")
        table.add_column(label("mean_fastest_jobs", cluster=cluster), justify="right")
    for row in components["rows"]:
        means = [row["means"][cluster] for cluster in components["clusters"]]
        cells = [_format_error(error) for error in row["errors_pct"][:MOST_JOBS]]
        cells += [format_cell(cluster_means[key]) for cluster_means in means for key in ("all_pct", "fastest_pct")]
        table.add_row(row["name"], *cells)
    open_console().print(table)


def _print_shares(shares: Sequence[Mapping[str, Any]]) -> None:
    if not shares:
        return
    table = build_table(label("figure_share_title"), ())
    for key in ("job", "kind"):
        table.add_column(label(key), no_wrap=True)
    for name in shares[0]["names"].values():
        table.add_column(name, justify="right", overflow="fold")
    for job_shares in shares[:MOST_JOBS]:
        job = job_shares["job"]
        for kind in ("measured", "predicted"):
            if job_shares[f"{kind}_pct"]:
                name = f"{job['cluster']} {job['name']} {job['id']}" if kind == "measured" else ""
                table.add_row(
                    name, label(f"kind_{kind}"), *(f"{value:.1f}" for value in job_shares[f"{kind}_pct"].values())
                )
    open_console().print(table)


def _print_stability(rows: Sequence[Mapping[str, Any]]) -> None:
    columns: Columns = (("job", "left"), *((key, "right") for key in STABILITY))
    lines = [
        {
            "job": f"{row['cluster']} {row['name']} {row['id']}".strip(),
            "iterations": row["count"],
            **{key: f"{row[key]:.3f}" for key in STABILITY[1:5]},
            "mean_to_min_pct": row["mean_to_min_pct"],
        }
        for row in rows
    ]
    print_table(label("stability_title"), columns, lines)


def _print_transfers(report: Mapping[str, Any]) -> None:
    print_table(label("rig_title"), TESTBED, report["transfers"])
    columns: Columns = (
        ("family", "left"),
        ("rows", "right"),
        ("predicted", "right"),
        *((k, "right") for k in SCORES[2:5]),
    )
    print_table(label("published_summary_title"), columns, report["published"])


def _print_operators(lines: Sequence[Mapping[str, Any]]) -> None:
    columns: Columns = (
        ("gpu", "left"),
        ("operator_family", "left"),
        ("samples", "right"),
        ("operator_error_pct", "right"),
        ("operator_unseen_pct", "right"),
    )
    rows = [
        {
            "gpu": line["gpu"],
            "operator_family": line["family"],
            "samples": int(line["samples"]),
            "operator_error_pct": float(line["error_pct"]),
            "operator_unseen_pct": float(line["unseen_pct"]),
        }
        for line in lines
    ]
    print_table(label("operators_title"), columns, rows)


def _format_error(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"
