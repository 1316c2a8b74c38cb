"""Predictions: step time, memory, communication, money and energy of a scenario with a strategy."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.predict.answer import answer
from crosszone.predict.prediction import Prediction
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, ScenarioBody, body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.state import State


def routes(state: State) -> APIRouter:
    """Predict."""
    router = APIRouter(tags=["predict"])

    @router.post(
        "/predict",
        response_model=Prediction,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(ScenarioBody, EXAMPLE),
    )
    async def predict(request: Request, language: Language) -> Response:
        """Predict one step of a scenario with a strategy: what `crosszone predict --json` prints."""
        body = await read_body(request, ScenarioBody)

        def work() -> Json:
            return Json(answer(state.reader.read(body), language).prediction.model_dump(mode="json"))

        return await run_in_threadpool(work)

    return router
