"""Analyses: where the bytes of a step go, what would help, what it costs, and how sure it is."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.analyse.answer import QUICK, Analysis, answer
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, AnalyseBody, body_documented, read_body
from crosszone.web.events import STREAMED, answered
from crosszone.web.jobs import analyse_job
from crosszone.web.language import Language
from crosszone.web.state import State

MOST_GROUPS = 16  # Node groups up to which suggestions and ratings, hundreds of predictions, are quick


def routes(state: State) -> APIRouter:
    """Analyse."""
    router = APIRouter(tags=["analyse"])

    @router.post(
        "/analyse",
        response_model=Analysis,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 409, 413, 415, 429)},
        openapi_extra=body_documented(AnalyseBody, {**EXAMPLE, "parts": ["traffic", "suggestions"]}),
    )
    async def analyse(request: Request, language: Language) -> Response:
        """Analyse a scenario, or its best plan where it has no strategy: what `crosszone analyse --json` prints."""
        body = await read_body(request, AnalyseBody)
        loaded = await run_in_threadpool(state.reader.read, body)
        quick = set(body.parts) <= set(QUICK) and loaded.scenario.strategy is not None and not body.plans
        quick = quick and (body.parts == ["traffic"] or len(list(loaded.scenario.cluster.groups())) <= MOST_GROUPS)
        if not quick:
            return await answered(request, state.workers, analyse_job, loaded, body.how(), language)
        done = await run_in_threadpool(answer, loaded, language, **body.how())
        return Json(done.analysis.to_asked())

    return router
