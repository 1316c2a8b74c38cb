"""Ranks and places: which rank runs on which GPU, and which stages and replicas each zone holds."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from crosszone.predict.ranks import MOST_RANKS, build_ranks, list_rank_places
from crosszone.web.answers import Json, NoticeBody
from crosszone.web.body import SCENARIO_EXAMPLE, ApiRoute, ScenarioBody, document_example
from crosszone.web.language import Language
from crosszone.web.scenarios import RequestScenario
from crosszone.web.state import State

router = APIRouter(tags=["ranks"], route_class=ApiRoute)


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


@router.post("/ranks", response_model=RanksBody, openapi_extra=document_example(SCENARIO_EXAMPLE))
def list_ranks(body: ScenarioBody, state: State, language: Language) -> Json:
    """List every rank of a scenario with a strategy once, with its coordinates and its GPU."""
    return Json(build_ranks(RequestScenario(state.reader, body, language).predictor, language))


@router.post("/places", response_model=PlacesBody, openapi_extra=document_example(SCENARIO_EXAMPLE))
def list_places(body: ScenarioBody, state: State, language: Language) -> Json:
    """Say which stages and replicas of a strategy each zone holds; /ranks lists every rank."""
    return Json(list_rank_places(RequestScenario(state.reader, body, language).predictor))
