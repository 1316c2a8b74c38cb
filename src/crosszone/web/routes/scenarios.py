"""What follows from a scenario before anything is predicted."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from crosszone.web.answers import ChangedBody, DescriptionBody, Json, errors_documented
from crosszone.web.body import EXAMPLE, ChangeBody, ScenarioBody, body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.state import State


def routes(state: State) -> APIRouter:
    """Describe scenarios."""
    router = APIRouter(prefix="/scenarios", tags=["scenarios"])

    @router.post(
        "/describe",
        response_model=DescriptionBody,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(ScenarioBody, EXAMPLE),
    )
    async def describe(request: Request, language: Language) -> Json:
        """Say what follows from a scenario before anything is predicted, and whether its strategy is legal."""
        body = await read_body(request, ScenarioBody)
        return Json(await run_in_threadpool(state.reader.described, body, language))

    @router.post(
        "/change",
        response_model=ChangedBody,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(ChangeBody, {**EXAMPLE, "changes": {"strategy.communication.flows": 4}}),
    )
    async def change(request: Request, language: Language) -> Json:
        """Set fields of a scenario by their paths, as a what-if names them; null takes a field out."""
        del language
        body = await read_body(request, ChangeBody)
        return Json(await run_in_threadpool(state.reader.changed, body))

    return router
