"""Fits: kernel samples, timed collectives and logs, read, fitted and told; nothing is kept."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.web.answers import errors_documented
from crosszone.web.body import EXAMPLE, body_documented, read_body
from crosszone.web.calibrate_body import LogBody, RunFileBody, SamplesBody
from crosszone.web.calibrate_examples import COLLECTIVES, LOG, SAMPLES
from crosszone.web.calibrate_found import FitFound, LinksFound
from crosszone.web.calibrate_jobs import collectives_job, log_job, samples_job
from crosszone.web.events import STREAMED
from crosszone.web.language import Language
from crosszone.web.saved import text_of
from crosszone.web.scenarios import TEXT
from crosszone.web.state import State
from crosszone.web.uploads import answered_from


def routes(state: State) -> APIRouter:
    """Fit."""
    router = APIRouter(prefix="/calibrate", tags=["calibrate"])

    @router.post(
        "/samples",
        response_model=FitFound,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 404, 409, 413, 415, 429)},
        openapi_extra=body_documented(SamplesBody, {"content": SAMPLES}),
    )
    async def samples(request: Request, language: Language) -> Response:
        """Fit kernel samples of one GPU: errors of every operator, and a profile to keep."""
        body = await read_body(request, SamplesBody)
        return await answered_from(
            request, state, body, samples_job, {"gpu": body.gpu, "correction": body.correction}, language
        )

    @router.post(
        "/collectives",
        response_model=LinksFound,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 404, 409, 413, 415, 429)},
        openapi_extra=body_documented(RunFileBody, {"content": COLLECTIVES, **EXAMPLE}),
    )
    async def collectives(request: Request, language: Language) -> Response:
        """Fit latency and rate of links to timed collectives; with a scenario, put them in place of typed ones."""
        body = await read_body(request, RunFileBody)
        scenario = None
        if body.known:
            await run_in_threadpool(state.reader.read, body)
            text = await run_in_threadpool(text_of, body, state.reader)
            scenario = (text, str(state.reader.base / TEXT))
        return await answered_from(request, state, body, collectives_job, scenario, language)

    @router.post(
        "/logs",
        response_model=FitFound,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 404, 409, 413, 415, 429)},
        openapi_extra=body_documented(LogBody, {"content": LOG, **EXAMPLE}),
    )
    async def logs(request: Request, language: Language) -> Response:
        """Calibrate from the log of one run of a scenario: what moves, what stays unknown, the run to do next."""
        body = await read_body(request, LogBody)
        loaded = await run_in_threadpool(state.reader.read, body)
        return await answered_from(request, state, body, log_job, loaded, language)

    return router
