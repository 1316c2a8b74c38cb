"""Calibration jobs that workers run: fit samples, collectives and logs, read traces and workbooks, report accuracy.

Each answers JSON. Messages name a file as the user does: the name on disk means nothing to them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from crosszone.analyse.outcome import build_headline, build_outcome
from crosszone.calibrate.accuracy_report import (
    COMPONENTS_FILE,
    FILES,
    FOLDER_VARIABLE,
    ITERATIONS_FILE,
    RUN_FILES,
    ScoredFolder,
    build_report,
    count_rows,
    get_folder_state,
    score_file,
    score_folder,
)
from crosszone.calibrate.collective_apply import apply_link_figures
from crosszone.calibrate.collective_fit import derive_link_figures, fit_links, measure_concurrency, read_collectives
from crosszone.calibrate.imported import ImportedRun, check_same_run, compare_with_prediction
from crosszone.calibrate.log_formats import KINETO, read_log
from crosszone.calibrate.operator_fit import read_samples
from crosszone.calibrate.operator_profiles import (
    build_own_profile,
    fit_operator_profile,
    list_undetermined,
    select_fittable,
)
from crosszone.calibrate.sheet import build_workbook, read_workbook
from crosszone.calibrate.sheet.reading import MOST_BYTES
from crosszone.calibrate.single_run import SingleRunCalibration, calibrate_single_run
from crosszone.calibrate.stability import measure_stability, read_stability_table
from crosszone.calibrate.trace_files import collect_degrees, detect_format, read_run
from crosszone.calibrate.training_log import LogContext
from crosszone.cost.own_profiles import OwnProfile, name_from
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.scenario import Loaded
from crosszone.plan.search import CancelledError, Progress
from crosszone.predict.answer import answer, build_predictor_from
from crosszone.schedule.timeline import Timeline, build_view
from crosszone.store.table import MAX_DOCUMENT, MAX_NOTE
from crosszone.text import label
from crosszone.web.answers import dump_json
from crosszone.web.calibrate_found import (
    ErrorRow,
    FitFound,
    IterationsFound,
    LinksFound,
    RunFound,
    StepColumns,
    StepFound,
    list_values,
)
from crosszone.web.jobs import IsCancelled
from crosszone.web.uploads import SourceFile

# Figures of a prediction that are saved beside what was measured.
SAVED_FIGURES = ("step_time_s", "tokens_per_s", "memory_gib")


def fit_samples_job(
    source: SourceFile, options: dict[str, Any], language: str, *, progress: Progress, cancelled: IsCancelled
) -> bytes:
    """Kernel samples fitted: errors of every operator, and the values that the cost formulas take from them."""
    report = stop_when_cancelled(progress, cancelled)
    report("reading", 0, 0)
    with name_file_in_errors(source):
        samples = replace(read_samples([Path(source.path)], options["gpu"]), source=source.name)
        count = count_progress(report, "fitting", len(select_fittable(samples)))
        fitted = fit_operator_profile(samples, correction=options["correction"], progress=count)
    profile = build_own_profile(fitted, name_from(fitted.gpu, "samples"))
    undetermined = list_undetermined(fitted)
    unchanged = [Notice(code="calibrate_kept", level="note", params={"fields": undetermined})] if undetermined else []
    found = FitFound(
        name=source.name,
        source=samples.device,
        facts={
            "gpu": fitted.gpu,
            "rows": samples.used_rows,
            "operators": len(fitted.operators),
            "left_out": ", ".join(f"{flag} {rows}" for flag, rows in samples.left_out.items()) or "0",
        },
        errors=tuple(
            ErrorRow(
                name=key,
                samples=fit.samples,
                after_pct=fit.error_pct,
                median_pct=fit.median_pct,
                unseen_pct=fit.unseen_pct,
            )
            for key, fit in fitted.operators.items()
        ),
        values=list_values(profile),
        step=None,
        iterations=None,
        unknown=(*fitted.notes, *_format_notices(unchanged, language)),
        untold=(),
        next=(),
        next_runs=(),
        profile=_dump_profile(profile),
        notices=(),
    )
    return dump_json(found)


def fit_collectives_job(
    source: SourceFile, scenario: tuple[str, str] | None, language: str, *, progress: Progress, cancelled: IsCancelled
) -> bytes:
    """Timed collectives fitted; `scenario`: text and file of one whose links take the measured figures."""
    report = stop_when_cancelled(progress, cancelled)
    report("reading", 0, 2)
    with name_file_in_errors(source):
        read = read_collectives(Path(source.path))
    fits, too_few = fit_links(read.rows)
    report("reading", 1, 2)
    changed, notices = None, list[Notice]()
    if scenario is not None:
        try:
            changed = apply_link_figures(*scenario, derive_link_figures(fits))
            notices += changed.notices
        except InputError as error:
            notices += [replace(notice, level="warning") for notice in error.notices]
    found = LinksFound(
        name=source.name,
        rows=len(read.rows),
        left_out=dict(read.flagged),
        fits=tuple(fit.as_dict() for fit in fits),
        together=tuple(topology.as_dict() for topology in measure_concurrency(read.rows)),
        few=tuple(asdict(topology) for topology in too_few),
        changes=tuple(asdict(change) for change in changed.changes) if changed else (),
        text=changed.text if changed else None,
        notices=localize_notices(notices, source, language),
    )
    return dump_json(found)


def calibrate_log_job(
    source: SourceFile, loaded: Loaded, language: str, *, progress: Progress, cancelled: IsCancelled
) -> bytes:
    """What the log of one run teaches: its steps, the values that change, what stays unknown, the next run."""
    report = stop_when_cancelled(progress, cancelled)
    report("reading", 0, 1)
    path = Path(source.path)
    with name_file_in_errors(source):
        name = name_from(Path(source.name).stem)
        calibration = calibrate_single_run(path, loaded.scenario, name=name, progress=report)
        iterations = _read_iterations(path, loaded, calibration.format, report)
    notices: dict[str, list[Notice]] = {"log_untold": [], "log_next_run": [], "log_moved": [], "other": []}
    for notice in calibration.notices:
        notices[notice.code if notice.code in notices else "other"].append(notice)
    measured_s, before_s, after_s = (
        seconds["step"] for seconds in (calibration.measured_s, calibration.before_s, calibration.after_s)
    )
    found = FitFound(
        name=source.name,
        source=calibration.profile.source,
        facts=_list_log_facts(calibration),
        errors=_list_part_errors(calibration, language),
        values=list_values(calibration.profile, calibration.stack),
        step=StepFound(
            measured_s=measured_s,
            before_s=before_s,
            after_s=after_s,
            before_pct=100.0 * (before_s / measured_s - 1.0),
            after_pct=100.0 * (after_s / measured_s - 1.0),
        ),
        iterations=iterations,
        unknown=_format_notices(notices["log_untold"], language),
        untold=tuple(asdict(coefficient) for coefficient in calibration.untold),
        next=_format_notices(notices["log_next_run"], language),
        next_runs=tuple(asdict(run) for run in calibration.next_runs),
        profile=_dump_profile(calibration.profile),
        notices=localize_notices(notices["other"], source, language),
    )
    return dump_json(found)


def _list_log_facts(calibration: SingleRunCalibration) -> dict[str, Any]:
    steady = calibration.steady
    facts: dict[str, Any] = {"format": calibration.format, "steps_used": steady.used, "steps": steady.of}
    facts |= {"warm_up": steady.warm_up, "outliers": steady.outliers}
    if calibration.memory_gib is not None:
        facts |= {"memory_measured": calibration.memory_gib[0], "memory_predicted": calibration.memory_gib[1]}
    return facts


def _list_part_errors(calibration: SingleRunCalibration, language: str) -> tuple[ErrorRow, ...]:
    """Errors of the parts of a step that a log times, before and after."""
    return tuple(
        ErrorRow(
            name=label(f"log_part_{part}", language),
            samples=calibration.steady.used,
            before_pct=100.0 * abs(calibration.before_s[part] / seconds - 1.0),
            after_pct=100.0 * abs(calibration.after_s[part] / seconds - 1.0),
        )
        for part, seconds in calibration.measured_s.items()
    )


def _read_iterations(path: Path, loaded: Loaded, log_format: str, progress: Progress) -> IterationsFound | None:
    """All steps of a log; None for a profiler's trace, which takes too long to be decoded twice.

    A run that was restarted logs some step numbers twice: both steps count.
    """
    if log_format == KINETO:
        return None
    predictor = build_predictor_from(loaded)
    job = predictor.case.job
    context = LogContext(
        file=str(path),
        gpus=predictor.strategy.ranks,
        global_batch=job.global_batch,
        tokens_per_step=job.tokens_per_step,
    )
    steps = read_log(path, context, log_format, progress=progress).steps
    numbers = tuple(position if step.step is None else step.step for position, step in enumerate(steps, 1))
    columns = StepColumns(step=numbers, seconds=tuple(step.seconds for step in steps))
    # By position, since a step number may come twice.
    stability = measure_stability(dict(enumerate(columns.seconds)))
    statistics = stability.model_copy(update={"best_step": numbers[stability.best_step]})
    return IterationsFound(steps=columns, statistics=statistics)


def inspect_run_job(
    source: SourceFile,
    kind: str,
    iteration: str,
    loaded: Loaded | None,
    language: str,
    *,
    progress: Progress,
    cancelled: IsCancelled,
) -> bytes:
    """A trace or a workbook (`kind`): its iterations, one of them to draw, beside the prediction where there is one."""
    file_format, run = _read_run(source, kind, iteration, loaded, stop_when_cancelled(progress, cancelled))
    step = run.get_step(iteration)
    view = predicted_view = difference = None
    if run.timeline is not None:
        timeline, _ = run.read_timelines().timeline(step.step)
        view = _draw(timeline)
        if loaded is not None:
            predictor = build_predictor_from(loaded)
            predicted = predictor.timeline(language)
            predicted_view = _draw(predicted)
            difference = compare_with_prediction(predicted, timeline, pipeline=True)
            mismatches = check_same_run(run, predictor, timeline, predicted) if run.kind == "measured" else []
            run = run.model_copy(update={"notices": (*mismatches, *run.notices)})
    found = RunFound(
        name=run.name,
        kind=run.kind,
        format=file_format,
        steps=StepColumns(step=tuple(run.seconds), seconds=tuple(run.seconds.values())),
        statistics=run.statistics,
        step=step.step,
        phases_s=step.phases_s or run.phases_s,
        figures=run.figures,
        meta={key: value for key, value in run.meta.items() if isinstance(value, str | int | float)},
        bad_rows=run.bad_rows,
        view=view,
        predicted=predicted_view,
        difference=difference,
        notices=localize_notices(run.trim_timeline(step.step, MAX_DOCUMENT).notices, source, language),
    )
    return dump_json(found)


def _draw(timeline: Timeline) -> dict[str, Any]:
    return {**build_view(timeline), "micro_batch": None}


def build_result_job(
    source: SourceFile,
    kind: str,
    iteration: str,
    loaded: Loaded | None,
    about: dict[str, Any],
    language: str,
    *,
    progress: Progress,
    cancelled: IsCancelled,
) -> bytes:
    """The fields of a result to save of a trace or a workbook; a file with wrong rows is refused, each row named.

    Where its timeline is too large to be saved whole, the note of the result says so.
    """
    _, run = _read_run(source, kind, iteration, loaded, stop_when_cancelled(progress, cancelled))
    if run.bad_rows:
        mistakes = [notice for notice in run.notices if notice.level != "note"]
        refusal = Notice(code="trace_not_saved", value=source.name, params={"count": run.bad_rows})
        with name_file_in_errors(source):
            raise InvalidError(refusal, *mistakes)
    trimmed = run.trim_timeline(run.get_step(iteration).step, MAX_DOCUMENT)
    fields = trimmed.to_result(**about)
    for sentence in _format_notices(trimmed.notices[len(run.notices) :], language):
        note = f"{fields['note']}\n{sentence}".strip()
        fields["note"] = note if len(note.encode()) <= MAX_NOTE else fields["note"]
    if loaded is not None:
        headline = build_headline(build_outcome(answer(loaded, language).prediction))
        fields["headline"] |= {"predicted": {key: headline[key] for key in SAVED_FIGURES}}
    return dump_json(fields)


def build_workbook_job(loaded: Loaded, language: str, *, progress: Progress, cancelled: IsCancelled) -> bytes:
    """The workbook of a scenario: not JSON, but the file itself."""
    stop_when_cancelled(progress, cancelled)("writing", 0, 1)
    return build_workbook(loaded, language)


def _read_run(
    source: SourceFile, kind: str, iteration: str, loaded: Loaded | None, progress: Progress
) -> tuple[str, ImportedRun]:
    """The format of a file, and the run that it holds."""
    path = Path(source.path)
    progress("reading", 0, 1)
    with name_file_in_errors(source):
        if kind == "sheet":
            with path.open("rb") as file:
                return "sheet", read_workbook(file.read(MOST_BYTES + 1), source.name)
        file_format = detect_format(path)
        degrees = None if loaded is None else collect_degrees(build_predictor_from(loaded).strategy)
        name = source.name[:100]
        run = read_run([path], file_format, name=name, iteration=iteration, degrees=degrees, progress=progress)
        return file_format, run


def build_report_key(folder: Path, *question: str) -> Hashable:
    """What a report depends on: the files, the profile in use, and what was asked."""
    return (folder, get_folder_state(folder), Profiles.load(), *question)  # the same profiles are one object


def report_accuracy_job(folder: str, language: str, *, progress: Progress, cancelled: IsCancelled) -> bytes:
    """Errors of predictions against the measured data of a folder."""
    return _answer_report(_score_folder(Path(folder), stop_when_cancelled(progress, cancelled)), language)


def report_parts_job(folder: str, language: str, *, progress: Progress, cancelled: IsCancelled) -> bytes:
    """The same of the jobs that were timed part by part alone, which takes a moment."""
    stop_when_cancelled(progress, cancelled)("parts", 0, 1)
    components, iterations = Path(folder, COMPONENTS_FILE), Path(folder, ITERATIONS_FILE)
    if components.is_file():
        scored = score_file(components)
    else:
        scored = ScoredFolder(folder=Path(folder), missing=(), own_profile=Profiles.load().own)
    if iterations.is_file():
        scored = replace(scored, stability=read_stability_table(iterations))
    return _answer_report(scored, language)


def _answer_report(scored: ScoredFolder, language: str) -> bytes:
    # Not the folder: where files of the server lie is nothing that others need to know.
    report = {key: value for key, value in build_report(scored, language).items() if key != "folder"}
    return dump_json({"present": True, "variable": FOLDER_VARIABLE, "files": FILES, "report": report})


_last_scored: dict[Hashable, ScoredFolder] = {}


def _score_folder(folder: Path, progress: Progress) -> ScoredFolder:
    """Errors of a folder's runs; the last ones are kept, since the other language asks for the same."""
    key = build_report_key(folder)
    if key not in _last_scored:
        rows = sum(count_rows(folder / name) for name in RUN_FILES)
        scored = score_folder(folder, count_progress(progress, "scoring", rows))
        _last_scored.clear()
        _last_scored[key] = scored
    return _last_scored[key]


@contextmanager
def name_file_in_errors(source: SourceFile) -> Iterator[None]:
    """Around the reading of a file: have errors name it as the user does."""
    try:
        yield
    except InputError as error:
        raise type(error)(*(_use_given_name(notice, source) for notice in error.notices)) from None


def localize_notices(notices: Iterable[Notice], source: SourceFile, language: str) -> tuple[dict[str, Any], ...]:
    """Notices about a file in a language, under the user's name for it."""
    return tuple(_use_given_name(notice, source).as_dict(language) for notice in notices)


def _use_given_name(notice: Notice, source: SourceFile) -> Notice:
    """The notice with the user's name for a file in place of its name or path on disk."""
    stored_name = Path(source.path).name

    def rename(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return source.name if value == stored_name else value.replace(source.path, source.name)

    params = {key: rename(value) for key, value in notice.params.items()}
    return replace(notice, value=rename(notice.value), file=rename(notice.file), params=params)


def _format_notices(notices: Iterable[Notice], language: str) -> tuple[str, ...]:
    return tuple(f"{notice.message(language)} {notice.hint(language)}".strip() for notice in notices)


def stop_when_cancelled(progress: Progress, cancelled: IsCancelled) -> Progress:
    """Progress that ends the work when it is no longer wanted."""

    def report(what: str, done: int, of: int) -> None:
        progress(what, done, of)
        if cancelled():
            raise CancelledError

    return report


def count_progress(progress: Progress, what: str, total: int) -> Callable[..., None]:
    """A function to call with how many more pieces of a total are done, of one piece without an argument."""
    done = 0
    progress(what, 0, total)

    def count(more: int = 1) -> None:
        nonlocal done
        done = min(done + more, total)
        progress(what, done, total)

    return count


def _dump_profile(profile: OwnProfile) -> dict[str, Any] | None:
    """The fields of a profile; None where it has no values, so that there is nothing to save."""
    return profile.model_dump(mode="json") if profile.gpus or profile.stacks else None
