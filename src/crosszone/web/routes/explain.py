"""Explanations: how a shown number comes about, and the formulas behind all of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.analyse.explain import Explanation, Formula, explain, formulas
from crosszone.predict.answer import answer
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, ScenarioBody, body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.state import State

MOST_PATH = 300  # Characters of a figure's path; names of zones stand in some of them


class ExplainBody(ScenarioBody):
    """What to explain."""

    figure: str = Field(min_length=1, max_length=MOST_PATH, description="Path of the figure, e.g. mfu or run.usd.")


def routes(state: State) -> APIRouter:
    """Explain."""
    router = APIRouter(tags=["explain"])

    @router.post(
        "/explain",
        response_model=Explanation,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(ExplainBody, {**EXAMPLE, "figure": "mfu"}),
    )
    async def explained(request: Request, language: Language) -> Response:
        """Open one number of a prediction: its formula, every number that goes in, and the expression worked out."""
        body = await read_body(request, ExplainBody)

        def work() -> Json:
            found = answer(state.reader.read(body), language)
            return Json(explain(found.predictor, found.prediction, body.figure, language).model_dump(mode="json"))

        return await run_in_threadpool(work)

    @router.get("/formulas", response_model=list[Formula], responses=errors_documented(403))
    async def every(language: Language) -> Response:  # noqa: ARG001
        """Every formula with its text (English), in the order of the documentation."""
        return Json([one.model_dump(mode="json") for one in formulas().values()])

    @router.get("/formulas/{id}", response_model=Formula, responses=errors_documented(403, 404))
    async def one(
        id: Annotated[str, Path(max_length=100, description="Id of a formula, e.g. C3.")],
        language: Language,  # noqa: ARG001
    ) -> Response:
        """One formula."""
        if id not in formulas():
            raise refused(404, "formula_unknown", field="id", value=id)
        return Json(formulas()[id].model_dump(mode="json"))

    return router
