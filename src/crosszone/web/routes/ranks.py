"""Ranks: which rank runs where."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.predict.answer import predictor_of
from crosszone.predict.ranks import MOST_RANKS, ranks_of
from crosszone.web.answers import Json, NoticeBody, errors_documented
from crosszone.web.body import EXAMPLE, ScenarioBody, body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.state import State


class RankZoneBody(BaseModel):
    """A zone and how many of its GPUs hold ranks."""

    name: str
    gpus: int
    used: int


class RankGroupBody(BaseModel):
    """A node group."""

    zone: int = Field(description="Position of its zone.")
    group: int = Field(description="Its number within the zone.")
    gpu: str
    gpus: int = Field(description="GPUs of a node.")
    nodes: int


class StageBody(BaseModel):
    """A stage and the layers it holds."""

    stage: int
    layers: int
    runs: list[list[int]] = Field(description="First and last layer of each run of layers, from 0.")


class IdleBody(BaseModel):
    """GPUs that no rank uses."""

    zone: str
    group: int
    count: int
    reason: NoticeBody


class RanksBody(BaseModel):
    """Every rank with its place along each axis, its zone, node group, node and GPU."""

    ranks: int
    shown: int = Field(description=f"Ranks in the columns, at most {MOST_RANKS}.")
    gpus: int
    degrees: dict[str, int]
    order: list[str] = Field(description="Axes by how fast they change with the rank number.")
    zones: list[RankZoneBody]
    groups: list[RankGroupBody]
    stages: list[StageBody]
    idle: list[IdleBody]
    columns: dict[str, list[int]] = Field(
        description="rank, zone, group (positions), node (within the group), gpu (within the node), tp, cp, dp, pp."
    )


def routes(state: State) -> APIRouter:
    """Place."""
    router = APIRouter(tags=["ranks"])

    @router.post(
        "/ranks",
        response_model=RanksBody,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(ScenarioBody, EXAMPLE),
    )
    async def ranks(request: Request, language: Language) -> Response:
        """List every rank of a scenario with a strategy once, with its coordinates and its GPU."""
        body = await read_body(request, ScenarioBody)

        def work() -> dict[str, Any]:
            return ranks_of(predictor_of(state.reader.read(body)), language)

        return Json(await run_in_threadpool(work))

    return router
