"""Jobs that bring runs in: traces and workbooks read, looked at beside a prediction, and made ready to be kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crosszone.analyse.outcome import headline_of, outcome_of
from crosszone.calibrate.imported import Imported
from crosszone.calibrate.sheet.opening import MOST_BYTES
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.scenario import Loaded
from crosszone.plan.search import Progress
from crosszone.predict.answer import answer, predictor_of
from crosszone.schedule.difference import difference
from crosszone.schedule.view import view_of
from crosszone.store.text import MAX_DOCUMENT
from crosszone.web.answers import json_bytes
from crosszone.web.calibrate_found import RunFound, StepColumns
from crosszone.web.calibrate_jobs import renamed, told, watched
from crosszone.web.calibrate_source import Source
from crosszone.web.jobs import Cancelled

DEGREES = ("tp", "cp", "dp", "pp")
SHOWN = ("step_time_s", "tokens_per_s", "memory_gib")
"""Figures of a prediction that are kept beside what was measured."""
SPARE = 200_000
"""Bytes of a kept timeline besides its trace."""


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
    form, found = _read(source, what, iteration, loaded, watched(progress, cancelled))
    one = found.at(iteration)
    view = predicted = against = None
    if found.timeline is not None:
        timeline, _ = found.measured().timeline(one.step)
        view = {**view_of(timeline), "micro_batch": None}
        if loaded is not None:
            ours = predictor_of(loaded).timeline(language)
            predicted, against = {**view_of(ours), "micro_batch": None}, difference(ours, timeline)
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
        notices=told(found.notices, source, language),
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
    """What the store keeps of a trace or a workbook; a file with rows that are wrong is refused, each row named."""
    _, found = _read(source, what, iteration, loaded, watched(progress, cancelled))
    if found.bad_rows:
        wrong = [notice for notice in found.notices if notice.level != "note"]
        with renamed(source):
            raise InvalidError(
                Notice(code="trace_not_saved", value=source.name, params={"count": found.bad_rows}), *wrong
            )
    kept = found.kept(**about)
    kept["timeline"] = _bounded(kept["timeline"], found.at(iteration).step)
    if loaded is not None:
        said = headline_of(outcome_of(answer(loaded, language).prediction))
        kept["headline"] |= {"predicted": {key: said[key] for key in SHOWN}}
    return json_bytes(kept)


def sheet_job(loaded: Loaded, language: str, *, progress: Progress, cancelled: Cancelled) -> bytes:
    """The workbook of a scenario: not JSON, but the file itself."""
    from crosszone.calibrate.sheet import workbook_of

    watched(progress, cancelled)("writing", 0, 1)
    return workbook_of(loaded, language)


def _read(source: Source, what: str, iteration: str, loaded: Loaded | None, progress: Progress) -> tuple[str, Imported]:
    """The run that a file tells of, and what kind of file it is."""
    path = Path(source.path)
    progress("reading", 0, 1)
    with renamed(source):
        if what == "sheet":
            from crosszone.calibrate.sheet import read_workbook

            with path.open("rb") as file:
                return "sheet", read_workbook(file.read(MOST_BYTES + 1), source.name)
        from crosszone.calibrate.trace_files import format_of, read_run

        form = format_of(path)
        degrees = _degrees(loaded)
        name = source.name[:100]
        return form, read_run([path], form, name=name, iteration=iteration, degrees=degrees, progress=progress)


def _degrees(loaded: Loaded | None) -> dict[str, int] | None:
    """The ways of splitting, by which process groups of a profiler's trace are told apart."""
    if loaded is None:
        return None
    strategy = predictor_of(loaded).strategy
    found = {key: getattr(strategy, key, None) for key in DEGREES}
    return {key: value for key, value in found.items() if isinstance(value, int)}


def _bounded(timeline: dict[str, Any] | None, step: int) -> dict[str, Any] | None:
    """A timeline that can be kept: all of it, else the iteration that was chosen, else its phases alone."""
    trace = (timeline or {}).get("trace")
    if timeline is None or trace is None or len(trace) < MAX_DOCUMENT - SPARE:
        return timeline
    whole = json.loads(trace)
    at = next((one for one in whole.get("steps", ()) if one["step"] == step), None)
    if at is not None:
        inside = [one for one in whole["spans"] if one["end_s"] > at["start_s"] and one["start_s"] < at["end_s"]]
        short = json.dumps({**whole, "spans": inside, "steps": [at]})
        if len(short) < MAX_DOCUMENT - SPARE:
            return {**timeline, "trace": short}
    return {key: value for key, value in timeline.items() if key != "trace"} or None
