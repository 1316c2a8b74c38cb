"""Results and scenarios beside each other."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.analyse.compare import LEAST, MOST, Compared, ResultComparison, compare
from crosszone.analyse.outcome import outcome_of
from crosszone.predict.answer import answer
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, ScenarioBody, body_documented, read_body
from crosszone.web.compared import compared
from crosszone.web.language import Language
from crosszone.web.saved import MOST_NAME, kept
from crosszone.web.state import State


class Item(ScenarioBody):
    """A saved result, or a scenario that is predicted for it."""

    result: str | None = Field(default=None, max_length=200, description="Id of a saved result.")
    name: str | None = Field(default=None, max_length=MOST_NAME, description="What to call it here.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.result, self.text, self.scenario)) != 1:
            raise ValueError("one of result, text and scenario")
        return self


class CompareBody(BaseModel):
    """What to compare: the first is what the others are compared with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    items: Annotated[list[Item], Field(min_length=LEAST, max_length=MOST, description="Results and scenarios.")]


def routes(state: State) -> APIRouter:
    """Compare."""
    router = APIRouter(tags=["results"])

    def read(item: Item, language: str) -> Compared:
        if item.result is not None:
            with kept():
                found = compared(state.store.results.get(item.result))
            return found._replace(name=item.name or found.name)
        prediction = answer(state.reader.read(item), language).prediction
        return Compared(item.name or prediction.name, "predicted", outcome_of(prediction), prediction)

    @router.post(
        "/compare",
        response_model=ResultComparison,
        responses=errors_documented(400, 403, 404, 409, 413, 415, 503),
        openapi_extra=body_documented(CompareBody, {"items": [EXAMPLE, {**EXAMPLE, "name": "again"}]}),
    )
    async def beside(request: Request, language: Language) -> Response:
        """Put results beside each other: every figure with its difference to the first, parts and phases, chances."""
        body = await read_body(request, CompareBody)

        def work() -> Json:
            found = compare([read(item, language) for item in body.items], language)
            return Json(found.model_dump(mode="json"))

        return await run_in_threadpool(work)

    return router
