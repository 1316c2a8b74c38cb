"""Radar: ways to do a job beside each other on computed axes."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.analyse.radar import FAMILIES, Radar, radar
from crosszone.inputs.scenario import Scenario
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, ScenarioBody, Way, body_documented, read_body
from crosszone.web.events import STREAMED, answered
from crosszone.web.jobs import radar_job
from crosszone.web.language import Language
from crosszone.web.state import State

CHOSEN, MOST_WAYS = "chosen", 8


class NamedWay(BaseModel):
    """A way to draw beside the chosen one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=100, description="Its name, e.g. runner_up.")
    way: Way = Field(description="Framework, strategy and placement of a plan.")


class RadarBody(ScenarioBody):
    """What to compare: the scenario's own way (or `way`), others, and the best of each family."""

    ways: Annotated[list[NamedWay], Field(default=[], max_length=MOST_WAYS, description="Others to draw.")]
    families: bool = Field(default=True, description="Also find the best with only data or pipeline parallelism.")

    @model_validator(mode="after")
    def _apart(self) -> Self:
        names = [CHOSEN, *(one.name for one in self.ways), *(FAMILIES if self.families else ())]
        if len(set(names)) != len(names):
            raise ValueError("ways with names of their own")
        return self


def routes(state: State) -> APIRouter:
    """Radar."""
    router = APIRouter(tags=["plan"])

    @router.post(
        "/radar",
        response_model=Radar,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 409, 413, 415, 429)},
        openapi_extra=body_documented(RadarBody, EXAMPLE),
    )
    async def beside(request: Request, language: Language) -> Response:
        """Ways beside each other, 0 to 1 on every axis; each axis states its formula and the number behind it."""
        body = await read_body(request, RadarBody)

        def done(way: Way | None) -> Scenario:
            return state.reader.read(ScenarioBody(text=body.text, scenario=body.scenario, way=way)).scenario

        def read() -> tuple[Scenario, list[tuple[str, Scenario]]]:
            return done(None), [(CHOSEN, done(body.way)), *((one.name, done(one.way)) for one in body.ways)]

        scenario, ways = await run_in_threadpool(read)
        if body.families:
            return await answered(request, state.workers, radar_job, scenario, ways, language)
        found = await run_in_threadpool(radar, scenario, ways, language=language, families=False)
        return Json(found.model_dump(mode="json"))

    return router
