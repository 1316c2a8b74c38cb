"""Places: which stages and replicas each zone holds."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.predict.answer import predictor_of
from crosszone.predict.ranks import places_of
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, ScenarioBody, body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.state import State


class ZonePlaceBody(BaseModel):
    """What a zone holds."""

    name: str
    gpus: int = Field(description="GPUs of the zone.")
    used: int = Field(description="Of them: GPUs that run a rank.")
    stages: list[int] = Field(description="Pipeline stages, from 0.")
    replicas: int = Field(description="Replicas that have a rank there.")


class StagePlaceBody(BaseModel):
    """Which zones hold a stage."""

    stage: int
    zones: list[str]


class PlacesBody(BaseModel):
    """Where the parts of a strategy lie."""

    ranks: int
    layers: list[int] = Field(description="Layers of each stage and chunk, as strategy.layers_per_stage takes them.")
    zones: list[ZonePlaceBody]
    stages: list[StagePlaceBody]


def routes(state: State) -> APIRouter:
    """Place."""
    router = APIRouter(tags=["ranks"])

    @router.post(
        "/places",
        response_model=PlacesBody,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(ScenarioBody, EXAMPLE),
    )
    async def places(request: Request, language: Language) -> Response:
        """Say which stages and replicas of a strategy each zone holds; /ranks lists every rank."""
        del language
        body = await read_body(request, ScenarioBody)

        def work() -> dict[str, Any]:
            return places_of(predictor_of(state.reader.read(body)))

        return Json(await run_in_threadpool(work))

    return router
