"""Calibration jobs that workers run: fit samples, collectives and logs, read traces and workbooks, report accuracy.

Each answers JSON. What is wrong with a file is told under the name the user gave it, not under the one it is kept by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crosszone.analyse.outcome import build_headline, build_outcome
from crosszone.calibrate.accuracy_report import FOLDER_VARIABLE
from crosszone.calibrate.imported import ImportedRun
from crosszone.calibrate.sheet.reading import MOST_BYTES
from crosszone.cost.own_profiles import name_from
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.scenario import Loaded
from crosszone.plan.search import CancelledError, Progress
from crosszone.predict.answer import answer, build_predictor_from
from crosszone.schedule.timeline import build_view
from crosszone.store.table import MAX_DOCUMENT, MAX_NOTE
from crosszone.web.answers import dump_json
from crosszone.web.calibrate_found import RunFound, StepColumns
from crosszone.web.jobs import IsCancelled
from crosszone.web.uploads import SourceFile

if TYPE_CHECKING:
    from crosszone.calibrate.single_run import SingleRunCalibration
    from crosszone.web.calibrate_found import ErrorRow, IterationsFound


def samples_job(
    source: SourceFile, how: dict[str, Any], language: str, *, progress: Progress, cancelled: IsCancelled
) -> bytes:
    """Kernel samples fitted: errors of every operator, and the values that the cost formulas take from them."""
    from crosszone.calibrate.operator_fit import read_samples
    from crosszone.calibrate.operator_profiles import (
        build_own_profile,
        fit_operator_profile,
        list_undetermined,
        select_fittable,
    )
    from crosszone.web.calibrate_found import ErrorRow, FitFound, values_of

    tell = watched(progress, cancelled)
    tell("reading", 0, 0)
    with renamed(source):
        read = dataclasses.replace(read_samples([Path(source.path)], how["gpu"]), source=source.name)
        counted = _counted(tell, len(select_fittable(read)))
        fitted = fit_operator_profile(read, correction=how["correction"], progress=counted)
    profile = build_own_profile(fitted, name_from(fitted.gpu, "samples"))
    undetermined = list_undetermined(fitted)
    stay = [Notice(code="calibrate_kept", level="note", params={"fields": undetermined})] if undetermined else []
    answer = FitFound(
        name=source.name,
        source=read.device,
        facts={
            "gpu": fitted.gpu,
            "rows": read.used_rows,
            "operators": len(fitted.operators),
            "left_out": _counts(read.left_out),
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
        values=values_of(profile),
        step=None,
        iterations=None,
        unknown=(*fitted.notes, *_said(stay, language)),
        untold=(),
        next=(),
        next_runs=(),
        profile=profile.model_dump(mode="json") if profile.gpus or profile.stacks else None,
        notices=(),
    )
    return dump_json(answer)


def collectives_job(
    source: SourceFile, scenario: tuple[str, str] | None, language: str, *, progress: Progress, cancelled: IsCancelled
) -> bytes:
    """Timed collectives fitted; `scenario`: text and file of one whose links take the measured figures."""
    from crosszone.calibrate.collective_apply import apply_link_figures
    from crosszone.calibrate.collective_fit import derive_link_figures, fit_links, measure_concurrency, read_collectives
    from crosszone.web.calibrate_found import LinksFound

    tell = watched(progress, cancelled)
    tell("reading", 0, 2)
    with renamed(source):
        read = read_collectives(Path(source.path))
    fits, few = fit_links(read.rows)
    tell("reading", 1, 2)
    changed, notices = None, list[Notice]()
    if scenario is not None:
        try:
            changed = apply_link_figures(*scenario, derive_link_figures(fits))
            notices += changed.notices
        except InputError as error:
            notices += [dataclasses.replace(notice, level="warning") for notice in error.notices]
    answer = LinksFound(
        name=source.name,
        rows=len(read.rows),
        left_out=dict(read.flagged),
        fits=tuple(fit.as_dict() for fit in fits),
        together=tuple(topology.as_dict() for topology in measure_concurrency(read.rows)),
        few=tuple(dataclasses.asdict(topology) for topology in few),
        changes=tuple(dataclasses.asdict(change) for change in changed.changes) if changed else (),
        text=changed.text if changed else None,
        notices=told(notices, source, language),
    )
    return dump_json(answer)


def log_job(source: SourceFile, loaded: Loaded, language: str, *, progress: Progress, cancelled: IsCancelled) -> bytes:
    """What the log of one run teaches: its steps, the values that move, what stays unknown, the next run."""
    from crosszone.calibrate.single_run import calibrate_single_run
    from crosszone.web.calibrate_found import FitFound, StepFound, values_of

    tell = watched(progress, cancelled)
    tell("reading", 0, 1)
    with renamed(source):
        name = name_from(Path(source.name).stem)
        calibration = calibrate_single_run(Path(source.path), loaded.scenario, name=name, progress=tell)
        iterations = _iterations(Path(source.path), loaded, calibration.format, tell)
    measured, before, after = (
        seconds["step"] for seconds in (calibration.measured_s, calibration.before_s, calibration.after_s)
    )
    apart = {
        code: [notice for notice in calibration.notices if notice.code == code]
        for code in ("log_untold", "log_next_run")
    }
    others = [notice for notice in calibration.notices if notice.code not in (*apart, "log_moved")]
    answer = FitFound(
        name=source.name,
        source=calibration.profile.source,
        facts=_log_facts(calibration),
        errors=_part_errors(calibration, language),
        values=values_of(calibration.profile, calibration.stack),
        step=StepFound(
            measured_s=measured,
            before_s=before,
            after_s=after,
            before_pct=100.0 * (before / measured - 1.0),
            after_pct=100.0 * (after / measured - 1.0),
        ),
        iterations=iterations,
        unknown=_said(apart["log_untold"], language),
        untold=tuple(dataclasses.asdict(coefficient) for coefficient in calibration.untold),
        next=_said(apart["log_next_run"], language),
        next_runs=tuple(dataclasses.asdict(run) for run in calibration.next_runs),
        profile=calibration.profile.model_dump(mode="json")
        if calibration.profile.gpus or calibration.profile.stacks
        else None,
        notices=told(others, source, language),
    )
    return dump_json(answer)


def _log_facts(calibration: SingleRunCalibration) -> dict[str, Any]:
    steady = calibration.steady
    facts: dict[str, Any] = {"format": calibration.format, "steps_used": steady.used, "steps": steady.of}
    facts |= {"warm_up": steady.warm_up, "outliers": steady.outliers}
    if calibration.memory_gib is not None:
        facts |= {"memory_measured": calibration.memory_gib[0], "memory_predicted": calibration.memory_gib[1]}
    return facts


def _part_errors(calibration: SingleRunCalibration, language: str) -> tuple[ErrorRow, ...]:
    """Errors of the parts that a log tells apart, before and after."""
    from crosszone.text import label
    from crosszone.web.calibrate_found import ErrorRow

    return tuple(
        ErrorRow(
            name=label(f"log_part_{part}", language),
            samples=calibration.steady.used,
            before_pct=100.0 * abs(calibration.before_s[part] / seconds - 1.0),
            after_pct=100.0 * abs(calibration.after_s[part] / seconds - 1.0),
        )
        for part, seconds in calibration.measured_s.items()
    )


def _iterations(path: Path, loaded: Loaded, form: str, tell: Progress) -> IterationsFound | None:
    """Steps of a log as it tells them; None of a profiler's trace, which is decoded once.

    A run that was started again tells some numbers twice: each time counts.
    """
    from crosszone.calibrate.log_formats import KINETO, read_log
    from crosszone.calibrate.stability import measure_stability
    from crosszone.calibrate.training_log import LogContext
    from crosszone.predict.answer import build_predictor_from
    from crosszone.web.calibrate_found import IterationsFound, StepColumns

    if form == KINETO:
        return None
    case = build_predictor_from(loaded)
    job, gpus = case.case.job, case.strategy.ranks
    context = LogContext(file=str(path), gpus=gpus, global_batch=job.global_batch, tokens_per_step=job.tokens_per_step)
    steps = read_log(path, context, form, progress=tell).steps
    numbers = tuple(at if step.step is None else step.step for at, step in enumerate(steps, 1))
    columns = StepColumns(step=numbers, seconds=tuple(step.seconds for step in steps))
    stability = measure_stability(dict(enumerate(columns.seconds)))
    statistics = stability.model_copy(update={"best_step": numbers[stability.best_step]})
    return IterationsFound(steps=columns, statistics=statistics)


@contextmanager
def renamed(source: SourceFile) -> Iterator[None]:
    """Around the reading of a file: refusals name it as the user does."""
    try:
        yield
    except InputError as error:
        raise type(error)(*(_renamed(notice, source) for notice in error.notices)) from None


def told(notices: Iterable[Notice], source: SourceFile, language: str) -> tuple[dict[str, Any], ...]:
    """Notices on a file in a language, under the user's name for it."""
    return tuple(_renamed(notice, source).as_dict(language) for notice in notices)


def watched(progress: Progress, cancelled: IsCancelled) -> Progress:
    """Progress that ends the work when it is no longer wanted."""

    def tell(what: str, done: int, of: int) -> None:
        progress(what, done, of)
        if cancelled():
            raise CancelledError

    return tell


def _renamed(notice: Notice, source: SourceFile) -> Notice:
    stored_name = Path(source.path).name

    def name(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return source.name if value == stored_name else value.replace(source.path, source.name)

    params = {key: name(value) for key, value in notice.params.items()}
    return dataclasses.replace(notice, value=name(notice.value), file=name(notice.file), params=params)


def _said(notices: Sequence[Notice], language: str) -> tuple[str, ...]:
    return tuple(f"{notice.message(language)} {notice.hint(language)}".strip() for notice in notices)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{key} {count}" for key, count in counts.items()) or "0"


def _counted(tell: Progress, of: int) -> Callable[[], None]:
    """To be called after each of so many pieces."""
    done = 0
    tell("fitting", 0, of)

    def one() -> None:
        nonlocal done
        done = min(done + 1, of)
        tell("fitting", done, of)

    return one


# Figures of a prediction that are kept beside what was measured.
SHOWN = ("step_time_s", "tokens_per_s", "memory_gib")


def run_job(
    source: SourceFile,
    what: str,
    iteration: str,
    loaded: Loaded | None,
    language: str,
    *,
    progress: Progress,
    cancelled: IsCancelled,
) -> bytes:
    """A trace or a workbook looked at: its iterations, one of them drawn, beside the prediction where there is one."""
    from crosszone.calibrate.imported import check_same_run, compare_with_prediction

    form, run = _read(source, what, iteration, loaded, watched(progress, cancelled))
    step = run.get_step(iteration)
    view = predicted = against = None
    if run.timeline is not None:
        timeline, _ = run.read_timelines().timeline(step.step)
        view = {**build_view(timeline), "micro_batch": None}
        if loaded is not None:
            predictor = build_predictor_from(loaded)
            ours = predictor.timeline(language)
            predicted, against = (
                {**build_view(ours), "micro_batch": None},
                compare_with_prediction(ours, timeline, pipeline=True),
            )
            differs = check_same_run(run, predictor, timeline, ours) if run.kind == "measured" else []
            run = run.model_copy(update={"notices": (*differs, *run.notices)})
    answered = RunFound(
        name=run.name,
        kind=run.kind,
        format=form,
        steps=StepColumns(step=tuple(run.seconds), seconds=tuple(run.seconds.values())),
        statistics=run.statistics,
        step=step.step,
        phases_s=step.phases_s or run.phases_s,
        figures=run.figures,
        meta={key: value for key, value in run.meta.items() if isinstance(value, str | int | float)},
        bad_rows=run.bad_rows,
        view=view,
        predicted=predicted,
        difference=against,
        notices=told(run.trim_timeline(step.step, MAX_DOCUMENT).notices, source, language),
    )
    return dump_json(answered)


def kept_job(
    source: SourceFile,
    what: str,
    iteration: str,
    loaded: Loaded | None,
    about: dict[str, Any],
    language: str,
    *,
    progress: Progress,
    cancelled: IsCancelled,
) -> bytes:
    """What the store keeps of a trace or a workbook; a file with rows that are wrong is refused, each row named.

    Where its timeline is too large to be kept whole, the note of the result says so.
    """
    _, run = _read(source, what, iteration, loaded, watched(progress, cancelled))
    if run.bad_rows:
        wrong = [notice for notice in run.notices if notice.level != "note"]
        with renamed(source):
            raise InvalidError(
                Notice(code="trace_not_saved", value=source.name, params={"count": run.bad_rows}), *wrong
            )
    short = run.trim_timeline(run.get_step(iteration).step, MAX_DOCUMENT)
    fields = short.to_result(**about)
    for lost in short.notices[len(run.notices) :]:
        note = f"{fields['note']}\n{lost.message(language)} {lost.hint(language)}".strip()
        fields["note"] = note if len(note.encode()) <= MAX_NOTE else fields["note"]
    if loaded is not None:
        headline = build_headline(build_outcome(answer(loaded, language).prediction))
        fields["headline"] |= {"predicted": {key: headline[key] for key in SHOWN}}
    return dump_json(fields)


def sheet_job(loaded: Loaded, language: str, *, progress: Progress, cancelled: IsCancelled) -> bytes:
    """The workbook of a scenario: not JSON, but the file itself."""
    from crosszone.calibrate.sheet import build_workbook

    watched(progress, cancelled)("writing", 0, 1)
    return build_workbook(loaded, language)


def _read(
    source: SourceFile, what: str, iteration: str, loaded: Loaded | None, progress: Progress
) -> tuple[str, ImportedRun]:
    """The run that a file tells of, and what kind of file it is."""
    path = Path(source.path)
    progress("reading", 0, 1)
    with renamed(source):
        if what == "sheet":
            from crosszone.calibrate.sheet import read_workbook

            with path.open("rb") as file:
                return "sheet", read_workbook(file.read(MOST_BYTES + 1), source.name)
        from crosszone.calibrate.trace_files import collect_degrees, detect_format, read_run

        form = detect_format(path)
        degrees = None if loaded is None else collect_degrees(build_predictor_from(loaded).strategy)
        name = source.name[:100]
        return form, read_run([path], form, name=name, iteration=iteration, degrees=degrees, progress=progress)


def key_of(folder: Path, *question: str) -> Hashable:
    """What a report depends on: the files, the profile in use, and what was asked."""
    from crosszone.calibrate.accuracy_report import get_folder_state

    return (folder, get_folder_state(folder), Profiles.load(), *question)  # the same profiles are one object


def accuracy_job(folder: str, language: str, *, progress: Progress, cancelled: IsCancelled) -> bytes:
    """Errors of predictions against the measured data of a folder."""
    from crosszone.calibrate.accuracy_report import build_report

    return _answer(build_report(_found(Path(folder), watched(progress, cancelled)), language))


def parts_job(folder: str, language: str, *, progress: Progress, cancelled: IsCancelled) -> bytes:
    """The same of the jobs that were timed part by part alone, which takes a moment."""
    from crosszone.calibrate.accuracy_report import (
        COMPONENTS_FILE,
        ITERATIONS_FILE,
        ScoredFolder,
        build_report,
        score_file,
    )
    from crosszone.calibrate.stability import read_stability_table

    watched(progress, cancelled)("parts", 0, 1)
    home = Path(folder)
    has_components = (home / COMPONENTS_FILE).is_file()
    scored = (
        score_file(home / COMPONENTS_FILE)
        if has_components
        else ScoredFolder(folder=home, missing=(), own_profile=Profiles.load().own)
    )
    if (home / ITERATIONS_FILE).is_file():
        scored = replace(scored, stability=read_stability_table(home / ITERATIONS_FILE))
    return _answer(build_report(scored, language))


def _answer(report: dict[str, Any]) -> bytes:
    from crosszone.calibrate.accuracy_report import FILES

    public = {key: value for key, value in report.items() if key != "folder"}
    return dump_json({"present": True, "variable": FOLDER_VARIABLE, "files": list(FILES), "report": public})


def _found(folder: Path, tell: Progress) -> Any:
    """What a folder holds; the last one is kept, since the other language asks for the same."""
    from crosszone.calibrate.accuracy_report import RUN_FILES, count_rows, score_folder

    key = key_of(folder)
    if key not in _last:
        rows = [count_rows(folder / name) for name in RUN_FILES]
        done, of = 0, sum(rows)
        tell("scoring", 0, of)

        def count(more: int) -> None:
            nonlocal done
            done = min(done + more, of)
            tell("scoring", done, of)

        scored = score_folder(folder, count)
        _last.clear()
        _last[key] = scored
    return _last[key]


_last: dict[Hashable, Any] = {}
