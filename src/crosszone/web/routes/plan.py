"""Plans: the best strategies and placements for a scenario."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.plan.plan import Plans
from crosszone.web.answers import errors_documented
from crosszone.web.body import EXAMPLE, PlanBody, body_documented, read_body
from crosszone.web.events import STREAMED, answered
from crosszone.web.jobs import plan_job
from crosszone.web.language import Language
from crosszone.web.state import State


def routes(state: State) -> APIRouter:
    """Plan."""
    router = APIRouter(tags=["plan"])

    @router.post(
        "/plan",
        response_model=Plans,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 409, 413, 415, 429)},
        openapi_extra=body_documented(PlanBody, {**EXAMPLE, "objective": "time", "top": 5}),
    )
    async def plan(request: Request, language: Language) -> Response:
        """Find the best ways to train, as `crosszone plan --json` does; what the strategy gives is pinned."""
        body = await read_body(request, PlanBody)
        loaded = await run_in_threadpool(state.reader.read, body, body.pins)
        return await answered(request, state.workers, plan_job, loaded, body.how(), language)

    return router
