"""Accuracy: how far predictions are from what was measured, in data on this server and in its own saved runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import fmean, median
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.calibrate.accuracy_report import FILES, FOLDER_VARIABLE, find_measurements
from crosszone.calibrate.first_contact import AccuracySummary, read_summary
from crosszone.inputs.value import Value
from crosszone.store import ResultRow
from crosszone.store.saved import Results
from crosszone.store.table import MAX_PAGE
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import ApiRoute
from crosszone.web.calibrate_jobs import build_report_key, report_accuracy_job, report_parts_job
from crosszone.web.events import JOB_RESPONSES, run_job
from crosszone.web.language import Language
from crosszone.web.state import AppState, State
from crosszone.web.workers import Job

router = APIRouter(prefix="/calibrate/accuracy", tags=["calibrate"], route_class=ApiRoute)

MOST_ROWS = 1000  # Saved results that are looked at, newest first


class SavedRunRow(Value):
    """A saved run and what was predicted of it, where that is known."""

    id: str
    """The saved result."""
    name: str
    """What it is called."""
    created: str
    """When it was saved."""
    predicted_id: str | None
    """The saved prediction it belongs to; null: none was saved by itself."""
    measured_s: float
    """Step that was measured."""
    predicted_s: float | None
    """Step that was predicted; null: no prediction was kept with it."""
    low_s: float | None
    """Low end of the prediction."""
    high_s: float | None
    """High end of the prediction."""
    error_pct: float | None
    """(predicted - measured) / measured; null: nothing was predicted."""
    inside: bool | None
    """The measured step lies within the range; null: it has none."""
    tokens_error_pct: float | None
    """The same error of tokens/s."""
    memory_error_pct: float | None
    """The same error of the memory peak."""


class SavedAccuracy(Value):
    """Saved runs beside their predictions."""

    rows: tuple[SavedRunRow, ...]
    """Newest first."""
    mean_pct: float | None
    """Mean of the absolute errors; null: there are none."""
    median_pct: float | None
    """The middle one of them."""
    inside_pct: float | None
    """Share of runs that lie within the predicted range; eight in ten are to."""


class AccuracyReport(Value):
    """Errors of predictions against measured data on the server."""

    present: bool
    """There is such data; else everything else is empty."""
    variable: str
    """The environment variable that names its folder."""
    files: tuple[str, ...]
    """Names of files that are looked for in it."""
    report: dict[str, Any] | None
    """What `crosszone accuracy DATA --json` tells: sources, runs, components, shares, stability, operators, ..."""


@router.get("", response_model=AccuracyReport, responses=JOB_RESPONSES)
async def report_accuracy(request: Request, state: State, language: Language) -> Response:
    """Predict the measured runs that lie on the server: error tables and what figures are drawn of."""
    return await _answer_report(request, state, report_accuracy_job, language)


@router.get("/summary", response_model=AccuracySummary)
def show_summary() -> Json:
    """Tell how accurate this release is: at first contact, with sources left out of the fit, and on the fit's rows."""
    return Json(read_summary())


@router.get("/parts", response_model=AccuracyReport, responses=JOB_RESPONSES)
async def report_parts(request: Request, state: State, language: Language) -> Response:
    """Tell of the jobs that were timed part by part alone: errors, shares, steadiness. It takes a moment."""
    return await _answer_report(request, state, report_parts_job, language)


@router.get("/runs", response_model=SavedAccuracy, responses=document_errors(503))
def list_saved_runs(state: State) -> Json:
    """List saved runs beside what was predicted of them, and how far off that was."""
    return Json(compare_saved_runs(state.store.results))


async def _answer_report(request: Request, state: AppState, job: Job, language: str) -> Response:
    folder = await run_in_threadpool(find_measurements)
    if folder is None:
        return Json(AccuracyReport(present=False, variable=FOLDER_VARIABLE, files=FILES, report=None))
    reports = state.accuracy_reports
    key = await run_in_threadpool(build_report_key, folder, job.__name__, language)
    cached = reports.get(key)
    if cached is not None:
        return Response(cached, media_type="application/json")
    keep = partial(reports.put, key)
    return await run_job(request, state.workers, job, str(folder), language, on_answer=keep)


def compare_saved_runs(results: Results) -> SavedAccuracy:
    """All saved runs, and the errors of those that have a prediction. [Q5]"""
    rows = tuple(row for saved in _read_measured(results) if (row := _build_run_row(saved)) is not None)
    errors = [abs(row.error_pct) for row in rows if row.error_pct is not None]
    inside = [row.inside for row in rows if row.inside is not None]
    return SavedAccuracy(
        rows=rows,
        mean_pct=fmean(errors) if errors else None,
        median_pct=median(errors) if errors else None,
        inside_pct=100.0 * sum(inside) / len(inside) if inside else None,
    )


def _read_measured(results: Results) -> Iterator[ResultRow]:
    before, row_count = None, 0
    while row_count < MOST_ROWS:
        page = results.page(limit=MAX_PAGE, before=before)
        yield from (row for row in page.rows if row.kind == "measured")
        row_count, before = row_count + len(page.rows), page.before
        if before is None:
            return


def _build_run_row(saved: ResultRow) -> SavedRunRow | None:
    measured, predicted = saved.headline, saved.headline.get("predicted") or {}
    measured_s, predicted_s = _read_figure(measured, "step_time_s"), _read_figure(predicted, "step_time_s")
    if not measured_s:
        return None
    low, high = (predicted["step_time_s"].get(end) if predicted_s else None for end in ("low", "high"))
    # A run and its prediction that were saved together share what follows the kind in their ids.
    has_prediction = predicted_s and saved.id.startswith("measured-")
    return SavedRunRow(
        id=saved.id,
        name=saved.name,
        created=saved.created,
        predicted_id=saved.id.replace("measured-", "predicted-", 1) if has_prediction else None,
        measured_s=measured_s,
        predicted_s=predicted_s,
        low_s=low,
        high_s=high,
        error_pct=100.0 * (predicted_s / measured_s - 1.0) if predicted_s else None,
        inside=None if low is None or high is None else low <= measured_s <= high,
        tokens_error_pct=_compute_error_pct(predicted, measured, "tokens_per_s"),
        memory_error_pct=_compute_error_pct(predicted, measured, "memory_gib"),
    )


def _compute_error_pct(predicted: dict[str, Any], measured: dict[str, Any], name: str) -> float | None:
    predicted_value, measured_value = _read_figure(predicted, name), _read_figure(measured, name)
    return 100.0 * (predicted_value / measured_value - 1.0) if predicted_value and measured_value else None


def _read_figure(figures: dict[str, Any], name: str) -> float | None:
    figure = figures.get(name)
    value = figure.get("value") if isinstance(figure, dict) else None
    return value if isinstance(value, int | float) else None
