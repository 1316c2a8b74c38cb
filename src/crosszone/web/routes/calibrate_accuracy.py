"""Accuracy: how far predictions are from what was measured, here and on this server's own runs."""

from __future__ import annotations

from collections.abc import Hashable

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.calibrate.accuracy_report import FOLDER_VARIABLE, find_measurements
from crosszone.web.answers import Json, errors_documented
from crosszone.web.calibrate_accuracy import AccuracyReport, SavedAccuracy, saved_accuracy
from crosszone.web.calibrate_jobs import KeptReports, accuracy_job, key_of, parts_job
from crosszone.web.events import STREAMED, answered
from crosszone.web.language import Language
from crosszone.web.state import State
from crosszone.web.workers import Job


def routes(state: State) -> APIRouter:
    """Tell errors."""
    router = APIRouter(prefix="/calibrate/accuracy", tags=["calibrate"])
    reports = KeptReports()

    async def told(request: Request, job: Job, language: str) -> Response:
        folder = await run_in_threadpool(find_measurements)
        if folder is None:
            return Json(absent().model_dump(mode="json"))
        key: Hashable = await run_in_threadpool(key_of, folder, job.__name__, language)
        made = reports.get(key)
        if made is not None:
            return Response(made, media_type="application/json")
        return await answered(
            request, state.workers, job, str(folder), language, keep=lambda answer: reports.put(key, answer)
        )

    @router.get(
        "",
        response_model=AccuracyReport,
        responses={200: {"content": STREAMED}, **errors_documented(409, 429)},
    )
    async def accuracy(request: Request, language: Language) -> Response:
        """Predict the measured runs that lie on the server: error tables and what figures are drawn of."""
        return await told(request, accuracy_job, language)

    @router.get(
        "/parts",
        response_model=AccuracyReport,
        responses={200: {"content": STREAMED}, **errors_documented(409, 429)},
    )
    async def parts(request: Request, language: Language) -> Response:
        """Tell of the jobs that were timed part by part alone: errors, shares, steadiness. It takes a moment."""
        return await told(request, parts_job, language)

    @router.get("/runs", response_model=SavedAccuracy, responses=errors_documented(503))
    def runs(language: Language) -> Json:
        """List saved runs beside what was predicted of them, and how far off that was."""
        del language
        return Json(saved_accuracy(state.store.results).model_dump(mode="json"))

    return router


def absent() -> AccuracyReport:
    """That there is nothing to predict, and where it is looked for."""
    from crosszone.calibrate.accuracy_report import FILES

    return AccuracyReport(present=False, variable=FOLDER_VARIABLE, files=FILES, report=None)
