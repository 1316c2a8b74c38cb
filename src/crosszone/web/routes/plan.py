"""Plans: the best strategies and placements of a scenario, sweeps of its fields, and alternatives on a radar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.analyse.radar import FAMILIES, Radar, build_radar
from crosszone.analyse.sweep import MARGIN, Sweep
from crosszone.analyse.sweep_cells import Mode, SweepAxis, read_axis
from crosszone.errors import InputError
from crosszone.inputs.scenario import Scenario
from crosszone.plan.plan import Objective, Plans
from crosszone.plan.planner import MAX_TOP
from crosszone.web.answers import Json
from crosszone.web.body import (
    BUDGET_S,
    MOST_S,
    SCENARIO_EXAMPLE,
    ApiRoute,
    ScenarioBody,
    StrategyOverride,
    document_example,
)
from crosszone.web.events import JOB_RESPONSES, run_job
from crosszone.web.jobs import compare_families_job, plan_job, sweep_job
from crosszone.web.language import Language
from crosszone.web.scenarios import RequestScenario
from crosszone.web.state import State

router = APIRouter(route_class=ApiRoute)

CHOSEN, MAX_ALTERNATIVES = "chosen", 8


class PlanBody(ScenarioBody):
    """What to plan, and how."""

    objective: Objective = Field(default="time", description="What to rank by.")
    top: int = Field(default=5, ge=1, le=MAX_TOP, description="Plans to answer.")
    pins: dict[str, Any] = Field(default={}, max_length=100, description="Parts of the strategy to keep, by key.")
    front: bool = Field(default=False, description="Also what fewer GPUs cost: time against $.")
    crossover: bool = Field(default=False, description="Also the rate between zones at which local updates win.")
    budget_s: float = Field(default=BUDGET_S, gt=0, le=MOST_S, description="The search ends after that, and says so.")

    def options(self) -> dict[str, Any]:
        """The options of the planner."""
        return self.model_dump(include={"objective", "top", "front", "crossover", "budget_s"})


class SweepBody(ScenarioBody):
    """Fields to vary, and how."""

    x: str = Field(max_length=2000, description="FIELD=RANGE, e.g. cluster.links[*].gbps=1:100:log20.")
    y: str | None = Field(default=None, max_length=2000, description="A second field: a heat map.")
    objective: Objective = Field(default="time", description="What plans are ranked by.")
    mode: Mode = Field(default="plan", description="Plan anew, or predict the scenario's own strategy.")
    free: bool = Field(default=False, description="Leave the scenario's strategy out.")
    local_updates: bool = Field(default=True, description="Also plans in which zones average now and then.")
    margin: float = Field(default=MARGIN, ge=0, le=1, description="What those must gain to be taken.")

    def options(self) -> dict[str, Any]:
        """The options of the sweep."""
        return self.model_dump(include={"objective", "mode", "free", "local_updates", "margin"})


class NamedAlternative(BaseModel):
    """An alternative to draw beside the chosen plan."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=100, description="Its name, e.g. runner_up.")
    way: StrategyOverride = Field(description="Framework, strategy and placement of a plan.")


class RadarOptions(BaseModel):
    """What to draw besides."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ways: list[NamedAlternative] = Field(default=[], max_length=MAX_ALTERNATIVES, description="Others to draw.")


class RadarBody(RadarOptions, ScenarioBody):
    """What to compare: the scenario's own strategy (or `way`), alternatives, and the best of each family."""

    families: bool = Field(default=True, description="Also find the best with only data or pipeline parallelism.")

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [CHOSEN, *(alternative.name for alternative in self.ways), *(FAMILIES if self.families else ())]
        if len(set(names)) != len(names):
            raise ValueError("ways with names of their own")
        return self


@router.post(
    "/plan",
    tags=["plan"],
    response_model=Plans,
    responses=JOB_RESPONSES,
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "objective": "time", "top": 5}),
)
async def plan_scenario(body: PlanBody, request: Request, state: State, language: Language) -> Response:
    """Find the best ways to train, as `crosszone plan --json` does; what the strategy gives is pinned."""
    loaded = await run_in_threadpool(state.reader.read, body, body.pins)
    return await run_job(request, state.workers, plan_job, loaded, body.options(), language)


@router.post(
    "/sweep",
    tags=["sweep"],
    response_model=Sweep,
    responses=JOB_RESPONSES,
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "x": "cluster.links[*].gbps=1:100:log5"}),
)
async def sweep_scenario(body: SweepBody, request: Request, state: State, language: Language) -> Response:
    """Plan a scenario anew at every value of one field, or of two: what `crosszone sweep --json` prints."""
    axes = _read_axis("x", body.x), None if body.y is None else _read_axis("y", body.y)
    loaded = await run_in_threadpool(state.reader.read, body)
    return await run_job(request, state.workers, sweep_job, loaded, axes, body.options(), language)


@router.post(
    "/radar",
    tags=["plan"],
    response_model=Radar,
    responses=JOB_RESPONSES,
    openapi_extra=document_example(SCENARIO_EXAMPLE),
)
async def compare_alternatives(body: RadarBody, request: Request, state: State, language: Language) -> Response:
    """Compare alternatives, 0 to 1 on every axis; each axis states its formula and the number behind it."""
    request_scenario = RequestScenario(state.reader, body, language)
    if not body.families:
        return Json(await run_in_threadpool(draw_alternatives, request_scenario, body))
    # The best of each family is searched for, which takes a worker.
    scenario, alternatives = await run_in_threadpool(_read_alternatives, request_scenario, body)
    return await run_job(request, state.workers, compare_families_job, scenario, alternatives, language)


def draw_alternatives(request_scenario: RequestScenario, options: RadarOptions) -> dict[str, Any]:
    """Alternatives on every axis, without a search for others."""
    scenario, alternatives = _read_alternatives(request_scenario, options)
    return build_radar(scenario, alternatives, language=request_scenario.language, families=False).model_dump(
        mode="json"
    )


def _read_alternatives(
    request_scenario: RequestScenario, options: RadarOptions
) -> tuple[Scenario, list[tuple[str, Scenario]]]:
    """The scenario as it is written, and each alternative by its name."""
    alternatives = [
        (alternative.name, request_scenario.with_override(alternative.way).loaded.scenario)
        for alternative in options.ways
    ]
    return request_scenario.as_written.loaded.scenario, [(CHOSEN, request_scenario.loaded.scenario), *alternatives]


def _read_axis(name: str, text: str) -> SweepAxis:
    """The axis of a field of the request; what is wrong with it names that field."""
    try:
        return read_axis(text)
    except InputError as error:
        raise type(error)(*(replace(notice, field=notice.field or name) for notice in error.notices)) from None
