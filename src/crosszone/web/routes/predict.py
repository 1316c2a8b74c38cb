"""Predictions: a step of a scenario, what changes if fields change, and how each number comes about."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from crosszone.analyse.compare import Compared, Row, compare_outcomes
from crosszone.analyse.explain import Explanation, Formula, explain, load_formulas
from crosszone.analyse.outcome import build_outcome
from crosszone.analyse.what_if import (
    Available,
    WhatIf,
    build_changed_scenario,
    collect_changes,
    list_available_switches,
    what_if,
)
from crosszone.predict.predict import build_predictor
from crosszone.predict.prediction import Prediction
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import SCENARIO_EXAMPLE, ApiRoute, FieldPath, ScenarioBody, document_example
from crosszone.web.language import Language
from crosszone.web.refusals import refuse
from crosszone.web.scenarios import RequestScenario
from crosszone.web.state import State

router = APIRouter(route_class=ApiRoute)

MAX_FIGURE_PATH = 300  # Characters of a figure's path; names of zones stand in some of them


class WhatIfOptions(BaseModel):
    """Fields to change and switches to turn."""

    model_config = ConfigDict(extra="forbid", strict=True)

    changes: dict[FieldPath, Any] = Field(default={}, max_length=100, description="New values of fields, by path.")
    switches: dict[str, Any] = Field(default={}, max_length=50, description="New values of switches, by name.")


class WhatIfBody(WhatIfOptions, ScenarioBody):
    """A scenario, with fields to change and switches to turn."""


class WhatIfFigures(WhatIf):
    """A what-if with its figures side by side."""

    figures: tuple[Row, ...]
    """Every figure before and after: its value, and how it differs."""


class ExplainOptions(BaseModel):
    """What to explain."""

    model_config = ConfigDict(extra="forbid", strict=True)

    figure: str = Field(
        min_length=1, max_length=MAX_FIGURE_PATH, description="Path of the figure, e.g. mfu or run.usd."
    )


class ExplainBody(ExplainOptions, ScenarioBody):
    """A scenario, and what to explain."""


@router.post(
    "/predict",
    tags=["predict"],
    response_model=Prediction,
    openapi_extra=document_example(SCENARIO_EXAMPLE),
)
def predict_scenario(body: ScenarioBody, state: State, language: Language) -> Json:
    """Predict one step of a scenario with a strategy: what `crosszone predict --json` prints."""
    return Json(predict_step(RequestScenario(state.reader, body, language)))


@router.post(
    "/what-if",
    tags=["what-if"],
    response_model=WhatIfFigures,
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "changes": {"job.global_batch": 2048}}),
)
def predict_what_if(body: WhatIfBody, state: State, language: Language) -> Json:
    """Predict a scenario with some fields changed and switches turned, beside the prediction without."""
    return Json(predict_changes(RequestScenario(state.reader, body, language), body))


@router.post(
    "/what-if/switches",
    tags=["what-if"],
    response_model=tuple[Available, ...],
    openapi_extra=document_example(SCENARIO_EXAMPLE),
)
def list_switches(body: WhatIfBody, state: State, language: Language) -> Json:
    """List the switches as they stand, what each takes, and what it cannot be turned to here.

    With changes and switches: as they stand once those are made.
    """
    return Json(read_switches(RequestScenario(state.reader, body, language), body))


@router.post(
    "/explain",
    tags=["explain"],
    response_model=Explanation,
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "figure": "mfu"}),
)
def explain_figure(body: ExplainBody, state: State, language: Language) -> Json:
    """Open one number of a prediction: its formula, every number that goes in, and the expression worked out."""
    return Json(explain_predicted(RequestScenario(state.reader, body, language), body))


def predict_step(request_scenario: RequestScenario) -> dict[str, Any]:
    """The prediction of a step."""
    return request_scenario.predicted.prediction.model_dump(mode="json")


def predict_changes(request_scenario: RequestScenario, options: WhatIfOptions) -> dict[str, Any]:
    """A what-if, and its figures beside those of the scenario."""
    changed = what_if(
        request_scenario.loaded.scenario,
        options.changes,
        list(options.switches.items()),
        base=request_scenario.predicted.predictor,
        before=request_scenario.predicted.prediction,
        language=request_scenario.language,
    )
    sides = [Compared("", "predicted", build_outcome(prediction)) for prediction in (changed.before, changed.after)]
    figures = [row.model_dump(mode="json") for row in compare_outcomes(sides, request_scenario.language).figures]
    return {**changed.model_dump(mode="json"), "figures": figures}


def read_switches(request_scenario: RequestScenario, options: WhatIfOptions) -> Any:
    """The switches as they stand once the changes are made."""
    scenario = request_scenario.loaded.scenario
    # Without the plan's strategy: what the scenario itself says is what a switch is turned back to.
    written_strategy = request_scenario.as_written.loaded.document.value.get("strategy")
    current = request_scenario.predictor
    if options.changes or options.switches:
        fields = collect_changes(scenario, options.changes, list(options.switches.items()), current)
        scenario = build_changed_scenario(scenario, fields, current)
        current = build_predictor(scenario)
    switches = list_available_switches(scenario, current, written_strategy or {}, request_scenario.language)
    return [switch.model_dump(mode="json") for switch in switches]


def explain_predicted(request_scenario: RequestScenario, options: ExplainOptions) -> dict[str, Any]:
    """One number of the prediction, opened."""
    answered = request_scenario.predicted
    return explain(answered.predictor, answered.prediction, options.figure, request_scenario.language).model_dump(
        mode="json"
    )


@router.get("/formulas", tags=["explain"], response_model=list[Formula], responses=document_errors(403))
def list_formulas() -> Json:
    """List every formula with its text (English), in the order of the documentation."""
    return Json(list(load_formulas().values()))


@router.get("/formulas/{id}", tags=["explain"], response_model=Formula, responses=document_errors(403, 404))
def show_formula(id: Annotated[str, Path(max_length=100, description="Id of a formula, e.g. C3.")]) -> Json:
    """Show one formula."""
    if id not in load_formulas():
        raise refuse(404, "formula_unknown", field="id", value=id)
    return Json(load_formulas()[id])
