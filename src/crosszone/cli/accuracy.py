"""`crosszone accuracy`: measured runs beside their predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.accuracy_table import TESTBED, Columns, print_table
from crosszone.cli.options import JsonOption
from crosszone.cli.output import get_language, label, open_console, print_json
from crosszone.errors import InputError, Notice
from crosszone.text.figures import format_amount

if TYPE_CHECKING:
    from crosszone.calibrate.accuracy import Accuracy
    from crosszone.calibrate.accuracy_report import ScoredFolder
    from crosszone.calibrate.fit import CrossValidation
    from crosszone.calibrate.published import TwoSites

MOST_ROWS = 60  # Rows of a table shown in the terminal; --json has all
MOST_ASSUMED = 20
SCORES = (
    ("scored", "right"),
    ("skipped", "right"),
    ("mape_pct", "right"),
    ("median_ape_pct", "right"),
    ("within_10_pct", "right"),
    ("within_20_pct", "right"),
    ("bias_pct", "right"),
    ("band_coverage_pct", "right"),
    ("memory_rows", "right"),
    ("memory_mape_pct", "right"),
)


def show_accuracy(
    runs: Annotated[
        Path | None,
        typer.Argument(
            help="Runs (CSV): whole steps, components, transfers on a testbed, or results across zones; or a folder of "
            "them. Without it: the measured runs that come with the program.",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also draw pictures (PNG and SVG) into this folder.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write the tables as CSV files into this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite pictures and tables that exist.")] = False,
    doubtful: Annotated[
        Path | None, typer.Option(help="Rows to score apart (CSV: id, reason); default: doubtful_rows.csv beside RUNS.")
    ] = None,
    cv: Annotated[
        bool, typer.Option("--cv", help="Also fit without each source, model and row in turn (minutes).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict measured runs and show how far off: per run, source and component, with what was assumed.

    Without a file the runs that come with the program are scored; a folder is scored as a whole.

    Example: crosszone accuracy my-runs.csv
    """
    from crosszone.cli.accuracy_folder import check_targets, find_default_folder

    check_targets(force, csv, figures)
    targets = _Targets(csv, figures, as_json)
    if runs is None or runs.is_dir():
        _score_folder(runs or find_default_folder(), doubtful, cv, targets)
        return
    kind = _detect_kind(runs)
    if kind == "testbed":
        _refuse_files(runs, targets)
        _score_testbed(runs, as_json)
    elif kind == "components":
        _score_components(runs, targets)
    elif kind == "published":
        _refuse_files(runs, targets)
        _compare_published(runs, as_json)
    else:
        _score_runs(runs, doubtful, cv, targets)


@dataclass(frozen=True)
class _Targets:
    """Where the user wants the answer."""

    csv: Path | None
    figures: Path | None
    as_json: bool

    def write(self, scored: ScoredFolder) -> dict[str, Any] | None:
        """Write what was asked for; gives the report, or None where no file was."""
        if self.csv is None and self.figures is None:
            return None
        from crosszone.calibrate.accuracy_report import build_report
        from crosszone.cli.accuracy_folder import print_written, write_report

        report = build_report(scored, get_language())
        print_written(write_report(report, self.csv, self.figures))
        return report


def _refuse_files(path: Path, targets: _Targets) -> None:
    """Transfers and published results are tables of the terminal; with others, in a folder, they are files too."""
    if targets.csv is not None or targets.figures is not None:
        raise InputError(Notice(code="accuracy_no_figure", value=str(path)))


def _score_folder(folder: Path, doubtful: Path | None, cv: bool, targets: _Targets) -> None:
    from crosszone.calibrate.accuracy_report import MAIN_FILE, RUN_FILES, build_report, count_rows, score_folder
    from crosszone.calibrate.fit import read_doubtful_reasons
    from crosszone.cli.accuracy_folder import print_report, print_written, write_report

    total = sum(count_rows(folder / name) for name in RUN_FILES)
    with _open_progress(label("accuracy_rows"), total) as advance:
        scored = score_folder(folder, advance, doubtful=doubtful, published=True)
    report = build_report(scored, get_language())
    paths = write_report(report, targets.csv, targets.figures)
    can_validate = cv and MAIN_FILE in scored.runs
    validations = (
        _run_cross_validation(folder / MAIN_FILE, read_doubtful_reasons(folder / MAIN_FILE, doubtful))
        if can_validate
        else []
    )
    if targets.as_json:
        print_json(
            {**report, "cross_validation": [validation.as_dict() for validation in validations]} if cv else report
        )
    else:
        print_report(report)
        _print_validations(validations)
    print_written(paths)


def _detect_kind(path: Path) -> str:
    """What a file holds, by its columns; a file that cannot be read is left to the reader of runs to refuse."""
    from crosszone.calibrate.components_read import is_components
    from crosszone.calibrate.published import NEEDED as PUBLISHED
    from crosszone.calibrate.testbed import NEEDED as RIG

    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            columns = {name.strip().strip('"') for name in file.readline(100_000).split(",")}
    except OSError:
        return "runs"
    if set(RIG) <= columns:
        return "testbed"
    if set(PUBLISHED) <= columns:
        return "published"
    return "components" if is_components(columns) else "runs"


def _score_runs(path: Path, doubtful: Path | None, cv: bool, targets: _Targets) -> None:
    from crosszone.calibrate.accuracy import score_runs
    from crosszone.calibrate.accuracy_report import count_rows, score_file
    from crosszone.calibrate.fit import read_doubtful_reasons

    reasons = read_doubtful_reasons(path, doubtful)
    with _open_progress(label("accuracy_rows"), count_rows(path)) as advance:
        accuracy_report = score_runs(path, doubtful=reasons, progress=advance)
    if targets.csv is not None or targets.figures is not None:
        targets.write(score_file(path, accuracy_report))
    validations = _run_cross_validation(path, reasons) if cv else []
    if targets.as_json:
        answer = accuracy_report.as_dict()
        print_json(
            {**answer, "cross_validation": [validation.as_dict() for validation in validations]} if cv else answer
        )
        return
    _print_runs(accuracy_report)
    _print_validations(validations)


def _print_validations(validations: Sequence[CrossValidation]) -> None:
    if validations:
        columns = (("left_out", "left"), ("folds", "right"), *SCORES[2:8])
        lines = [
            {"left_out": label(f"left_out_{validation.kind}"), "folds": validation.folds, **validation.scores}
            for validation in validations
        ]
        print_table(label("cv_title"), columns, lines, MOST_ROWS)


def _run_cross_validation(path: Path, doubtful: Mapping[str, str]) -> list[CrossValidation]:
    from crosszone.calibrate.fit import (
        Kind,
        build_training_rows,
        cross_validate,
        list_held_out_masks,
        select_usable_runs,
    )
    from crosszone.calibrate.runs import read_runs
    from crosszone.cost.profile import Profiles

    rows, profiles = build_training_rows(select_usable_runs(read_runs(path)[0], doubtful)), Profiles.shipped()
    kinds: tuple[Kind, ...] = ("source", "model", "row")
    total = sum(len(list_held_out_masks(rows, profiles, kind)) for kind in kinds)
    with _open_progress(label("accuracy_fits"), total) as advance:
        validations = [cross_validate(rows, profiles, kind, progress=lambda: advance(1)) for kind in kinds]
    return [validation for validation in validations if validation is not None]


def _print_runs(accuracy_report: Accuracy) -> None:
    first = (("source", "left"),)
    total = {"source": label("total"), **accuracy_report.summary}
    print_table(label("accuracy_title"), (*first, *SCORES), [*accuracy_report.by_source, total], MOST_ROWS)
    lines = [{"subset": label(f"subset_{name}"), **values} for name, values in accuracy_report.subsets.items()]
    if accuracy_report.doubtful["rows"]:
        lines.append({"subset": label("subset_doubtful"), **accuracy_report.doubtful})
    print_table(label("subsets_title"), (("subset", "left"), SCORES[0], *SCORES[2:8]), lines, MOST_ROWS)
    ranking = accuracy_report.ranking
    if ranking.mean_regret is not None:
        line = label(
            "ranking_line",
            groups=ranking.groups,
            regret=f"{ranking.mean_regret:.3f}",
            worst=f"{ranking.max_regret:.3f}",
            pairs=ranking.pairs,
            right=format_amount(ranking.pairs_right_pct, 3),
        )
        open_console().print(line, soft_wrap=True)
    if accuracy_report.assumed:
        columns = (("source", "left"), ("rows", "right"), ("assumed", "left"))
        print_table(label("assumed_title"), columns, accuracy_report.assumed, MOST_ASSUMED)
    if accuracy_report.skipped:
        columns = (("source", "left"), ("rows", "right"), ("reason", "left"))
        print_table(label("skipped_title"), columns, accuracy_report.skipped, MOST_ROWS)


def _score_components(path: Path, targets: _Targets) -> None:
    from crosszone.calibrate.accuracy_report import build_report, score_file
    from crosszone.calibrate.components import build_component_table, compute_iteration_shares
    from crosszone.cli.accuracy_folder import print_jobs

    scored = score_file(path)
    report = targets.write(scored) or build_report(scored, get_language())
    jobs = scored.components
    assert jobs is not None
    answer = jobs.as_dict()
    if targets.as_json:
        component_table, shares = (
            build_component_table(jobs, get_language()),
            compute_iteration_shares(jobs, get_language()),
        )
        print_json({**answer, "components": component_table.as_dict(), "shares": [item.as_dict() for item in shares]})
        return
    print_jobs(report)
    columns: Columns = (("part", "left"), ("jobs", "right"), ("mape_pct", "right"), ("median_error_pct", "right"))
    print_table(label("parts_error_title"), columns, answer["by_part"], MOST_ROWS)
    if report["skipped"]:
        print_table(
            label("skipped_title"),
            (("run", "left"), ("source", "left"), ("reason", "left")),
            [{"run": item["id"], **item} for item in report["skipped"]],
        )


def _score_testbed(path: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from crosszone.calibrate.testbed import build_transfer_report

    report = build_transfer_report(path)
    lines = [asdict(item) for item in report.summaries]
    skipped = [{"line": line, "reason": reason} for line, reason in report.skipped]
    if as_json:
        rows = [
            {
                "line": item.row.line,
                "experiment": item.row.experiment,
                "op": item.row.op,
                "unit": item.row.unit,
                "median": item.row.median,
                "best": item.row.best,
                "predicted": item.predicted,
                "error_median_pct": item.error_median_pct,
                "error_best_pct": item.error_best_pct,
                "skipped": item.reason or None,
            }
            for item in report.results
        ]
        print_json({"summaries": lines, "rows": rows, "skipped": skipped})
        return
    print_table(label("rig_title"), TESTBED, lines, MOST_ROWS)


def _compare_published(path: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from crosszone.calibrate.published import compare_cells, read_published, read_stored_study, summarize_families

    results = read_published(path)
    families = [asdict(item) for item in summarize_families(results)]
    sites = read_stored_study().two_sites if any(item.family == "headline" for item in results) else None
    cells = compare_cells(results)
    rows = [
        {**item.model_dump(), "error_pct": item.error_pct, "reason": _localize_reason(item.reason) or None}
        for item in results
    ]
    if as_json:
        sites_answer = sites and sites.model_dump()
        print_json({"families": families, "grid": cells._asdict(), "two_sites": sites_answer, "rows": rows})
        return
    columns: Columns = (("family", "left"), ("rows", "right"), ("predicted", "right"), *SCORES[3:6])
    print_table(label("published_summary_title"), columns, families, MOST_ROWS)
    if cells.cells:
        open_console().print(label("published_cells", **cells._asdict()), soft_wrap=True)
    if sites is not None:
        _print_sites(sites)
    columns = (
        ("family", "left"),
        ("published_case", "left"),
        ("published_figure", "right"),
        ("published_prediction", "right"),
        ("published_difference_pct", "right"),
    )
    lines = [
        {
            "family": item["family"],
            "published_case": item["case"],
            "published_figure": f"{format_amount(item['published'], 4)} {item['unit']}",
            "published_prediction": item["reason"] or f"{format_amount(item['predicted'], 4)} {item['unit']}",
            "published_difference_pct": item["error_pct"],
        }
        for item in rows
    ]
    print_table(label("published_title"), columns, lines, len(lines))


def _print_sites(sites: TwoSites) -> None:
    if sites.least_gbps is None:
        line = label("published_two_sites_never", target=format_amount(sites.target_pct, 3))
    else:
        gbps = format_amount(float(f"{sites.least_gbps:.3g}"))
        line = label("published_two_sites", target=format_amount(sites.target_pct, 3), gbps=gbps)
    open_console().print(line, soft_wrap=True)
    lines = [{"gbps": format_amount(at), "published_efficiency_pct": pct} for at, pct in sites.efficiency_pct.items()]
    columns: Columns = (("gbps", "right"), ("published_efficiency_pct", "right"))
    print_table(label("published_two_sites_title"), columns, lines, MOST_ROWS)


def _localize_reason(reason: str) -> str:
    """A reason in the user's language where it is the key of one."""
    return label(reason) if reason.startswith("published_") else reason


@contextmanager
def _open_progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, gone when done."""
    from rich.progress import Progress

    with Progress(console=open_console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
