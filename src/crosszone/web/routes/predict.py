"""Predictions: a step of a scenario, what changes if fields change, and how each number comes about."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field, TypeAdapter

from crosszone.analyse.compare import Compared, Row, compare
from crosszone.analyse.explain import Explanation, Formula, explain, formulas
from crosszone.analyse.outcome import outcome_of
from crosszone.analyse.what_if import Available, WhatIf, available, changed_scenario, turned_changes, what_if
from crosszone.predict.answer import answer
from crosszone.predict.predict import predictor
from crosszone.predict.prediction import Prediction
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import SCENARIO_EXAMPLE, ApiRoute, FieldPath, ScenarioBody, document_example
from crosszone.web.language import Language
from crosszone.web.refusals import refuse
from crosszone.web.state import State

router = APIRouter(route_class=ApiRoute)

MAX_FIGURE_PATH = 300  # Characters of a figure's path; names of zones stand in some of them
_SWITCHES: TypeAdapter[Any] = TypeAdapter(tuple[Available, ...])


class WhatIfBody(ScenarioBody):
    """Fields to change and switches to turn."""

    changes: dict[FieldPath, Any] = Field(default={}, max_length=100, description="New values of fields, by path.")
    switches: dict[str, Any] = Field(default={}, max_length=50, description="New values of switches, by name.")


class WhatIfFigures(WhatIf):
    """A what-if with its figures side by side."""

    figures: tuple[Row, ...]
    """Every figure before and after: its value, and how it differs."""


class ExplainBody(ScenarioBody):
    """What to explain."""

    figure: str = Field(
        min_length=1, max_length=MAX_FIGURE_PATH, description="Path of the figure, e.g. mfu or run.usd."
    )


@router.post(
    "/predict",
    tags=["predict"],
    response_model=Prediction,
    responses=errors_documented(400, 403, 413, 415),
    openapi_extra=document_example(SCENARIO_EXAMPLE),
)
def predict_scenario(body: ScenarioBody, state: State, language: Language) -> Json:
    """Predict one step of a scenario with a strategy: what `crosszone predict --json` prints."""
    return Json(answer(state.reader.read(body), language).prediction.model_dump(mode="json"))


@router.post(
    "/what-if",
    tags=["what-if"],
    response_model=WhatIfFigures,
    responses=errors_documented(400, 403, 413, 415),
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "changes": {"job.global_batch": 2048}}),
)
def predict_what_if(body: WhatIfBody, state: State, language: Language) -> Json:
    """Predict a scenario with some fields changed and switches turned, beside the prediction without."""
    loaded = state.reader.read(body)
    before = answer(loaded, language)
    changed = what_if(
        loaded.scenario,
        body.changes,
        list(body.switches.items()),
        base=before.predictor,
        before=before.prediction,
        language=language,
    )
    sides = [Compared("", "predicted", outcome_of(prediction)) for prediction in (changed.before, changed.after)]
    figures = [row.model_dump(mode="json") for row in compare(sides, language).figures]
    return Json({**changed.model_dump(mode="json"), "figures": figures})


@router.post(
    "/what-if/switches",
    tags=["what-if"],
    response_model=tuple[Available, ...],
    responses=errors_documented(400, 403, 413, 415),
    openapi_extra=document_example(SCENARIO_EXAMPLE),
)
def list_switches(body: WhatIfBody, state: State, language: Language) -> Json:
    """List the switches as they stand, what each takes, and what it cannot be turned to here.

    With changes and switches: as they stand once those are made.
    """
    scenario = state.reader.read(body).scenario
    # Read again without the plan's strategy: what the scenario itself says is what a switch is turned back to.
    written_strategy = state.reader.read(body.model_copy(update={"way": None})).document.value.get("strategy")
    current = predictor(scenario)
    if body.changes or body.switches:
        fields = turned_changes(scenario, body.changes, list(body.switches.items()), current)
        scenario = changed_scenario(scenario, fields, current)
        current = predictor(scenario)
    switches = available(scenario, current, written_strategy or {}, language)
    return Json(_SWITCHES.dump_python(switches, mode="json"))


@router.post(
    "/explain",
    tags=["explain"],
    response_model=Explanation,
    responses=errors_documented(400, 403, 413, 415),
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "figure": "mfu"}),
)
def explain_figure(body: ExplainBody, state: State, language: Language) -> Json:
    """Open one number of a prediction: its formula, every number that goes in, and the expression worked out."""
    predicted = answer(state.reader.read(body), language)
    explanation = explain(predicted.predictor, predicted.prediction, body.figure, language)
    return Json(explanation.model_dump(mode="json"))


@router.get("/formulas", tags=["explain"], response_model=list[Formula], responses=errors_documented(403))
def list_formulas() -> Json:
    """List every formula with its text (English), in the order of the documentation."""
    return Json([formula.model_dump(mode="json") for formula in formulas().values()])


@router.get("/formulas/{id}", tags=["explain"], response_model=Formula, responses=errors_documented(403, 404))
def show_formula(id: Annotated[str, Path(max_length=100, description="Id of a formula, e.g. C3.")]) -> Json:
    """Show one formula."""
    if id not in formulas():
        raise refuse(404, "formula_unknown", field="id", value=id)
    return Json(formulas()[id].model_dump(mode="json"))
