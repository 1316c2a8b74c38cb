"""`crosszone accuracy`: measured runs beside their predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import (
    check_not_existing,
    get_language,
    get_text,
    label,
    open_console,
    print_json,
    print_line,
    print_sections,
    write_bytes,
)
from crosszone.errors import InputError, Notice
from crosszone.extras import require_extra

if TYPE_CHECKING:
    from crosszone.calibrate.accuracy_report import ScoredFolder
    from crosszone.calibrate.fit import CrossValidation


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
    first_contact: Annotated[
        bool,
        typer.Option(
            "--first-contact",
            help="Enter every run as a user would write it: model, job, cluster, degrees; nothing of its source.",
        ),
    ] = False,
    crashed: Annotated[
        Path | None,
        typer.Option(
            help="Configurations that crashed (CSV): also count how many of both files are predicted not to fit."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict measured runs and show how far off: per run, source and component, with what was assumed.

    Without a file the runs that come with the program are scored; a folder is scored as a whole.

    Example: crosszone accuracy my-runs.csv
    """
    check_targets(force, csv, figures)
    targets = _Targets(csv, figures, as_json)
    if first_contact:
        _score_first_contact(runs, doubtful, targets)
        return
    if crashed is not None and (runs is None or runs.is_dir() or _detect_kind(runs) != "runs"):
        raise InputError(Notice(code="crashed_without_runs", value=str(crashed)))
    if runs is None or runs.is_dir():
        _score_folder(runs or find_default_folder(), doubtful, cv, targets)
        return
    kind = _detect_kind(runs)
    if kind == "testbed":
        _check_no_files(runs, targets)
        _score_testbed(runs, as_json)
    elif kind == "components":
        _score_components(runs, targets)
    elif kind == "published":
        _check_no_files(runs, targets)
        _compare_published(runs, as_json)
    else:
        _score_runs(runs, doubtful, cv, targets, crashed)


def _score_first_contact(runs: Path | None, doubtful: Path | None, targets: _Targets) -> None:
    """A file of runs, or the published ones of a folder, entered as a user would."""
    from crosszone.calibrate.accuracy_report import MAIN_FILE

    path = runs or find_default_folder()
    if path.is_dir():
        path = path / MAIN_FILE
    kind = _detect_kind(path)
    if kind != "runs":
        raise InputError(Notice(code="first_contact_kind", value=str(path)))
    _score_runs(path, doubtful, False, targets, as_user=True)


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

        report = build_report(scored, get_language())
        print_written(write_report(report, self.csv, self.figures))
        return report


def _check_no_files(path: Path, targets: _Targets) -> None:
    """Transfers and published results are tables of the terminal; with others, in a folder, they are files too."""
    if targets.csv is not None or targets.figures is not None:
        raise InputError(Notice(code="accuracy_no_figure", value=str(path)))


def _score_folder(folder: Path, doubtful: Path | None, cv: bool, targets: _Targets) -> None:
    from crosszone.calibrate.accuracy_report import MAIN_FILE, RUN_FILES, build_report, count_rows, score_folder
    from crosszone.calibrate.fit import read_doubtful_reasons
    from crosszone.views.accuracy import build_folder_sections, build_validation_sections

    total = sum(count_rows(folder / name) for name in RUN_FILES)
    with _open_progress(label("accuracy_rows"), total) as advance:
        scored = score_folder(folder, advance, doubtful=doubtful, published=True)
    report = build_report(scored, get_language())
    paths = write_report(report, targets.csv, targets.figures)
    validations = []
    if cv and MAIN_FILE in scored.runs:
        main = folder / MAIN_FILE
        validations = _run_cross_validation(main, read_doubtful_reasons(main, doubtful))
    if targets.as_json:
        print_json({**report, **_build_validation_answer(validations, cv)})
    else:
        text = get_text()
        print_sections(
            build_folder_sections(report, text, open_console().width) + build_validation_sections(validations, text)
        )
    print_written(paths)


def _detect_kind(path: Path) -> str:
    """What a file holds, by its columns; a file that cannot be read is left to the reader of runs to refuse."""
    from crosszone.calibrate.components_read import is_components
    from crosszone.calibrate.published import NEEDED as PUBLISHED
    from crosszone.calibrate.testbed import NEEDED as RIG

    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            # a file without line ends must not be read whole to find out what it is
            columns = {name.strip().strip('"') for name in file.readline(100_000).split(",")}
    except OSError:
        return "runs"
    if set(RIG) <= columns:
        return "testbed"
    if set(PUBLISHED) <= columns:
        return "published"
    return "components" if is_components(columns) else "runs"


def _score_runs(
    path: Path,
    doubtful: Path | None,
    cv: bool,
    targets: _Targets,
    crashed: Path | None = None,
    *,
    as_user: bool = False,
) -> None:
    from crosszone.calibrate.accuracy import score_runs
    from crosszone.calibrate.accuracy_report import count_rows, score_file
    from crosszone.calibrate.fit import read_doubtful_reasons

    reasons = read_doubtful_reasons(path, doubtful)
    with _open_progress(label("accuracy_rows"), count_rows(path)) as advance:
        accuracy_report = score_runs(path, doubtful=reasons, progress=advance, as_user=as_user)
    if targets.csv is not None or targets.figures is not None:
        targets.write(score_file(path, accuracy_report))
    validations = _run_cross_validation(path, reasons) if cv else []
    fits = _score_fits(path, crashed) if crashed else {}
    if targets.as_json:
        print_json({**accuracy_report.as_dict(), **_build_validation_answer(validations, cv), **fits})
        return
    from crosszone.views.accuracy import build_fits_sections, build_runs_sections, build_validation_sections

    text = get_text()
    sections = build_runs_sections(accuracy_report, text) + build_validation_sections(validations, text)
    print_sections(sections + (build_fits_sections(fits["fits"], text) if fits else []))


def _score_fits(ran: Path, crashed: Path) -> dict[str, Any]:
    """How many configurations of both files are predicted not to fit."""
    from crosszone.calibrate.fits import read_configurations, score_fits
    from crosszone.cost.profile import Profiles

    score = score_fits(read_configurations(ran), read_configurations(crashed), Profiles.load())
    return {"fits": score.as_dict()}


def _build_validation_answer(validations: Sequence[CrossValidation], cv: bool) -> dict[str, Any]:
    return {"cross_validation": [validation.as_dict() for validation in validations]} if cv else {}


def _run_cross_validation(path: Path, doubtful: Mapping[str, str]) -> list[CrossValidation]:
    from crosszone.calibrate.fit import (
        Kind,
        build_training_rows,
        cross_validate,
        list_held_out_parts,
        select_usable_runs,
    )
    from crosszone.calibrate.runs import read_runs
    from crosszone.cost.profile import Profiles

    rows, profiles = build_training_rows(select_usable_runs(read_runs(path)[0], doubtful)), Profiles.load_shipped()
    kinds: tuple[Kind, ...] = ("source", "model", "row")
    total = sum(len(list_held_out_parts(rows, profiles, kind)) for kind in kinds)
    with _open_progress(label("accuracy_fits"), total) as advance:
        validations = [cross_validate(rows, profiles, kind, progress=lambda: advance(1)) for kind in kinds]
    return [validation for validation in validations if validation is not None]


def _score_components(path: Path, targets: _Targets) -> None:
    from crosszone.calibrate.accuracy_report import build_report, score_file
    from crosszone.views.accuracy import build_components_sections

    scored = score_file(path)
    report = targets.write(scored) or build_report(scored, get_language())
    jobs = scored.components
    assert jobs is not None
    answer = jobs.as_dict()
    if targets.as_json:
        print_json({**answer, "components": report["components"], "shares": report["shares"]})
        return
    print_sections(build_components_sections(report, answer["by_part"], get_text(), open_console().width))


def _score_testbed(path: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from crosszone.calibrate.testbed import build_transfer_report

    report = build_transfer_report(path)
    lines = [asdict(item) for item in report.summaries]
    skipped = [{"line": line, "reason": reason} for line, reason in report.skipped]
    if as_json:
        rows = [
            {key: getattr(item.row, key) for key in ("line", "experiment", "op", "unit", "median", "best")}
            | {key: getattr(item, key) for key in ("predicted", "error_median_pct", "error_best_pct")}
            | {"skipped": item.reason or None}
            for item in report.results
        ]
        print_json({"summaries": lines, "rows": rows, "skipped": skipped})
        return

    from crosszone.views.accuracy import build_testbed_section

    print_sections(build_testbed_section(lines, get_text()))


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

    from crosszone.views.accuracy import build_published_sections

    print_sections(build_published_sections(families, cells._asdict(), sites, rows, get_text()))


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


# --- files


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
    # all pictures and tables exist in memory by now, so that a failure leaves no half of them
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
        print_line("accuracy_written", count=len(paths), files=names, stderr=True)
