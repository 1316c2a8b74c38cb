"""Jobs that bring runs in: traces and workbooks read, looked at beside a prediction, and made ready to be kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crosszone.analyse.outcome import headline_of, outcome_of
from crosszone.calibrate.imported import ImportedRun
from crosszone.calibrate.sheet.reading import MOST_BYTES
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.scenario import Loaded
from crosszone.plan.search import Progress
from crosszone.predict.answer import answer, predictor_of
from crosszone.schedule.timeline import build_view
from crosszone.store.table import MAX_DOCUMENT, MAX_NOTE
from crosszone.web.answers import json_bytes
from crosszone.web.calibrate_found import RunFound, StepColumns
from crosszone.web.calibrate_jobs import renamed, told, watched
from crosszone.web.calibrate_source import Source
from crosszone.web.jobs import Cancelled

# Figures of a prediction that are kept beside what was measured.
SHOWN = ("step_time_s", "tokens_per_s", "memory_gib")


def run_job(
    source: Source,
    what: str,
    iteration: str,
    loaded: Loaded | None,
    language: str,
    *,
    progress: Progress,
    cancelled: Cancelled,
) -> bytes:
    """A trace or a workbook looked at: its iterations, one of them drawn, beside the prediction where there is one."""
    from crosszone.calibrate.imported import check_same_run, compare_with_prediction

    form, found = _read(source, what, iteration, loaded, watched(progress, cancelled))
    one = found.at(iteration)
    view = predicted = against = None
    if found.timeline is not None:
        timeline, _ = found.measured().timeline(one.step)
        view = {**build_view(timeline), "micro_batch": None}
        if loaded is not None:
            predictor = predictor_of(loaded)
            ours = predictor.timeline(language)
            predicted, against = (
                {**build_view(ours), "micro_batch": None},
                compare_with_prediction(ours, timeline, pipeline=True),
            )
            differs = check_same_run(found, predictor, timeline, ours) if found.kind == "measured" else []
            found = found.model_copy(update={"notices": (*differs, *found.notices)})
    answered = RunFound(
        name=found.name,
        kind=found.kind,
        format=form,
        steps=StepColumns(step=tuple(found.seconds), seconds=tuple(found.seconds.values())),
        statistics=found.statistics,
        step=one.step,
        phases_s=one.phases_s or found.phases_s,
        figures=found.figures,
        meta={key: value for key, value in found.meta.items() if isinstance(value, str | int | float)},
        bad_rows=found.bad_rows,
        view=view,
        predicted=predicted,
        difference=against,
        notices=told(found.bounded(one.step, MAX_DOCUMENT).notices, source, language),
    )
    return json_bytes(answered.model_dump(mode="json"))


def kept_job(
    source: Source,
    what: str,
    iteration: str,
    loaded: Loaded | None,
    about: dict[str, Any],
    language: str,
    *,
    progress: Progress,
    cancelled: Cancelled,
) -> bytes:
    """What the store keeps of a trace or a workbook; a file with rows that are wrong is refused, each row named.

    Where its timeline is too large to be kept whole, the note of the result says so.
    """
    _, found = _read(source, what, iteration, loaded, watched(progress, cancelled))
    if found.bad_rows:
        wrong = [notice for notice in found.notices if notice.level != "note"]
        with renamed(source):
            raise InvalidError(
                Notice(code="trace_not_saved", value=source.name, params={"count": found.bad_rows}), *wrong
            )
    short = found.bounded(found.at(iteration).step, MAX_DOCUMENT)
    kept = short.kept(**about)
    for lost in short.notices[len(found.notices) :]:
        note = f"{kept['note']}\n{lost.message(language)} {lost.hint(language)}".strip()
        kept["note"] = note if len(note.encode()) <= MAX_NOTE else kept["note"]
    if loaded is not None:
        said = headline_of(outcome_of(answer(loaded, language).prediction))
        kept["headline"] |= {"predicted": {key: said[key] for key in SHOWN}}
    return json_bytes(kept)


def sheet_job(loaded: Loaded, language: str, *, progress: Progress, cancelled: Cancelled) -> bytes:
    """The workbook of a scenario: not JSON, but the file itself."""
    from crosszone.calibrate.sheet import build_workbook

    watched(progress, cancelled)("writing", 0, 1)
    return build_workbook(loaded, language)


def _read(
    source: Source, what: str, iteration: str, loaded: Loaded | None, progress: Progress
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
        degrees = None if loaded is None else collect_degrees(predictor_of(loaded).strategy)
        name = source.name[:100]
        return form, read_run([path], form, name=name, iteration=iteration, degrees=degrees, progress=progress)
