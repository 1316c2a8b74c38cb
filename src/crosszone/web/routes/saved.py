"""Saved scenarios: texts under a name, good or not yet."""

from __future__ import annotations

from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.store import Page, SavedScenario, ScenarioRow
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, ScenarioBody, body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.saved import MOST_NAME, Before, Id, Limit, kept, text_of
from crosszone.web.state import State


class SaveBody(ScenarioBody):
    """A scenario to save; it is kept as it is, even while it has mistakes."""

    name: str = Field(max_length=MOST_NAME, description="What to call it.")


class ScenarioChange(BaseModel):
    """What to change of a saved scenario."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, max_length=MOST_NAME, description="Another name.")
    text: str | None = Field(default=None, description="Another text.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.name is None and self.text is None:
            raise ValueError("name or text")
        return self


def routes(state: State) -> APIRouter:
    """Save, list, open, change and delete scenarios."""
    router = APIRouter(prefix="/scenarios", tags=["scenarios"])
    scenarios = state.store.scenarios

    @router.get("", response_model=Page[ScenarioRow], responses=errors_documented())
    def listed(language: Language, limit: Limit = 50, before: Before = None) -> Page[ScenarioRow]:
        """List saved scenarios, newest first."""
        del language
        return scenarios.page(limit=limit, before=before)

    @router.post(
        "",
        status_code=201,
        response_model=SavedScenario,
        responses=errors_documented(400, 403, 409, 413, 415),
        openapi_extra=body_documented(SaveBody, {**EXAMPLE, "name": "my cluster"}),
    )
    async def save(request: Request, language: Language) -> Response:
        """Save a scenario."""
        del language
        body = await read_body(request, SaveBody)

        def work() -> Json:
            text = text_of(body, state.reader)
            with kept():
                return Json(scenarios.add(name=body.name, text=text).model_dump(), status_code=201)

        return await run_in_threadpool(work)

    @router.get("/{id}", response_model=SavedScenario, responses=errors_documented(404))
    def one(id: Id, language: Language) -> SavedScenario:
        """Open a saved scenario."""
        del language
        with kept():
            return scenarios.get(id)

    @router.patch(
        "/{id}",
        response_model=SavedScenario,
        responses=errors_documented(400, 403, 404, 413, 415),
        openapi_extra=body_documented(ScenarioChange, {"name": "another name"}),
    )
    async def change(id: Id, request: Request, language: Language) -> Response:
        """Give a saved scenario another name or text."""
        del language
        body = await read_body(request, ScenarioChange)

        def work() -> Json:
            with kept():
                return Json(scenarios.change(id, name=body.name, text=body.text).model_dump())

        return await run_in_threadpool(work)

    @router.delete("/{id}", status_code=204, response_class=Response, responses=errors_documented(403, 404))
    def delete(id: Id, language: Language) -> Response:
        """Delete a saved scenario."""
        del language
        with kept():
            scenarios.remove(id)
        return Response(status_code=204)

    return router
