"""Saved results: what was predicted, taken from a sheet or measured, kept for comparing, exporting and drawing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from crosszone.analyse.compare import FIGURES, LEAST, MOST, Compared, ResultComparison, compare_outcomes
from crosszone.analyse.outcome import (
    CLASSES,
    OTHER,
    PARTS,
    Figures,
    Kind,
    build_headline,
    build_measured_outcome,
    build_outcome,
    compute_trace_figures,
    map_phase_seconds,
    measure_phases,
)
from crosszone.calibrate.stability import resolve_iteration
from crosszone.errors import InputError, InvalidError
from crosszone.inputs.value import parse
from crosszone.predict.answer import answer, build_predictor_from
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.run.history import RUN_KEY
from crosszone.schedule.measured import read_measured
from crosszone.schedule.timeline import PHASES, Timeline, build_view
from crosszone.store import Page, Result, ResultRow
from crosszone.web.answers import Json, document_errors, dump_json
from crosszone.web.body import MOST_NAME, SCENARIO_EXAMPLE, ApiRoute, ScenarioBody, StrategyOverride, document_example
from crosszone.web.language import Language
from crosszone.web.refusals import map_store_errors, refuse
from crosszone.web.routes.timeline import StepsBody, ViewBody
from crosszone.web.saved import Before, Id, Limit
from crosszone.web.scenarios import RequestScenario
from crosszone.web.state import AppState, State

router = APIRouter(tags=["results"], route_class=ApiRoute)

MOST_DRAWN = 4_000  # Spans of one result beside others
_FILES = {
    "content": {media_type: {"schema": {"type": "string"}} for media_type in ("application/json", "text/csv")},
    "description": "The file.",
}
_YAML = {"content": {"application/yaml": {"schema": {"description": "YAML."}}}, "description": "The text."}
# What a result of each kind is made from: one of these.
_NEEDS = {"predicted": "text, scenario", "sheet": "figures", "measured": "figures, trace"}
StepChoice = Annotated[
    str, Query(max_length=20, description="Of a run of several steps: first, last, best, or its number.")
]


class ResultBody(ScenarioBody):
    """A result to save. Predicted: a scenario, which the server predicts itself. Else: figures, or a trace."""

    kind: Kind = Field(default="predicted", description="Where its numbers come from.")
    name: str | None = Field(default=None, max_length=MOST_NAME, description="What to call it; none: as the scenario.")
    note: str = Field(default="", max_length=20_000, description="What to remember of it.")
    figures: dict[str, Any] | None = Field(
        default=None, max_length=50, description="Of a sheet or measured: " + ", ".join(Figures.model_fields) + "."
    )
    trace: str | None = Field(default=None, description="Measured: the trace, as /timeline/measured takes it.")

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.text is not None and self.scenario is not None:
            raise ValueError("one of text and scenario")
        return self

    def check_kind(self) -> None:
        """Refuse what does not belong to its kind, or nothing at all."""
        sources = [key for key in ("figures", "trace") if getattr(self, key) is not None]
        allowed = [key for key in _NEEDS[self.kind].split(", ") if key in ("figures", "trace")]
        wrong = [key for key in sources if key not in allowed]
        if wrong or len(sources) != bool(allowed) or (self.kind == "predicted" and not self.has_scenario):
            field = wrong[0] if wrong else "body"
            raise refuse(422, "result_needs", field=field, value=self.kind, keys=_NEEDS[self.kind])
        if self.way is not None and not self.has_scenario:
            raise refuse(422, "result_needs", field="way", value="way", keys="text, scenario")


class ResultChange(BaseModel):
    """What to change of a saved result."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, max_length=MOST_NAME, description="Another name.")
    note: str | None = Field(default=None, max_length=20_000, description="Another note.")

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        if self.name is None and self.note is None:
            raise ValueError("name or note")
        return self


ResultId = Annotated[str | None, Field(max_length=200, description="Id of a saved result.")]
SideName = Annotated[str | None, Field(max_length=MOST_NAME, description="What to call it here.")]


class ComparedItem(ScenarioBody):
    """A saved result, or a scenario that is predicted for it."""

    result: ResultId = None
    name: SideName = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if sum(source is not None for source in (self.result, self.text, self.scenario)) != 1:
            raise ValueError("one of result, text and scenario")
        return self


class CompareBody(BaseModel):
    """What to compare: the first is what the others are compared with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    items: Annotated[list[ComparedItem], Field(min_length=LEAST, max_length=MOST, description="Results and scenarios.")]


class ComparedAlternative(BaseModel):
    """A saved result, or the request's scenario done this way."""

    model_config = ConfigDict(extra="forbid", strict=True)

    result: ResultId = None
    name: SideName = None
    way: StrategyOverride | None = Field(default=None, description="Null: as the scenario says itself.")


class CompareOptions(BaseModel):
    """What to compare: the first is what the others are compared with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    items: Annotated[list[ComparedAlternative], Field(min_length=LEAST, max_length=MOST, description="Sides.")]


class ResultTimelineBody(ViewBody):
    """One step of a saved result to draw beside others."""

    name: str
    kind: str = Field(description="predicted, sheet or measured.")
    step: int | None = Field(description="Number of the step that is drawn; null: it was predicted.")
    steps: StepsBody | None = Field(description="All steps of the run; null: it was predicted.")


@router.get("/results", response_model=Page[ResultRow], responses=document_errors(503))
def list_results(state: State, limit: Limit = 50, before: Before = None) -> Page[ResultRow]:
    """List saved results with their main figures, newest first."""
    return state.store.results.page(limit=limit, before=before)


@router.post(
    "/results",
    status_code=201,
    response_model=ResultRow,
    responses=document_errors(409, 503),
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "name": "first try"}),
)
def save_result(body: ResultBody, state: State, language: Language) -> Json:
    """Save a result: a prediction of a scenario, figures of a sheet, or a measured run."""
    body.check_kind()
    fields = _build_result(state, body, language)
    with map_store_errors():
        return Json(_build_row(state.store.results.add(**fields)), status_code=201)


# Before `/results/{id}`, which would take "export" for an id.
@router.get("/results/export", response_class=Response, responses={200: _FILES, **document_errors(404, 409, 503)})
def export_results(
    state: State,
    ids: Annotated[str, Query(max_length=MOST * 70, description="Ids with commas between.")],
    format: Annotated[Literal["csv", "json"], Query(description="One row a result, or all of each.")] = "csv",
) -> Response:
    """Give chosen results as a file."""
    wanted_ids = [id for id in ids.split(",") if id]
    if not 1 <= len(wanted_ids) <= MOST:
        raise refuse(422, "compare_count", field="ids", value=len(wanted_ids), least=1, limit=MOST)
    with map_store_errors():
        results = [state.store.results.get(id) for id in wanted_ids]
    if format == "json":
        return _build_file(dump_json(results), "json", "application/json")
    return _build_file(format_csv(results).encode("utf-8", "replace"), "csv", "text/csv; charset=utf-8")


@router.get("/results/{id}", response_model=Result, responses=document_errors(404, 503))
def open_result(id: Id, state: State) -> Json:
    """Open a saved result with all its numbers."""
    with map_store_errors():
        return Json(state.store.results.get(id))


@router.get("/results/{id}/scenario", response_class=Response, responses={200: _YAML, **document_errors(404, 503)})
def show_result_scenario(id: Id, state: State) -> Response:
    """Give the scenario of a saved result as text, with the strategy the result was made with."""
    with map_store_errors():
        result = state.store.results.get(id)
    if result.scenario is None:
        raise refuse(404, "result_bare", field="id", value=result.name)
    text = result.scenario
    if result.way is not None:
        text = state.reader.format_text(read_saved_scenario(result))
    return Response(text, media_type="application/yaml")


@router.get("/results/{id}/timeline", response_model=ResultTimelineBody, responses=document_errors(404, 409, 503))
def draw_result(id: Id, state: State, language: Language, iteration: StepChoice = "best") -> Json:
    """Draw one step of a saved result; 404 where nothing is known of what happened within its step."""
    with map_store_errors():
        result = state.store.results.get(id)
    if result.kind == "predicted":
        timeline, about = _predict_timeline(state, result, language)
    else:
        timeline, about = _read_timeline(result, iteration)
    view = build_view(timeline, max_spans=MOST_DRAWN)
    return Json({**view, "micro_batch": None, "name": result.name, "kind": result.kind, **about})


@router.patch(
    "/results/{id}",
    response_model=ResultRow,
    responses=document_errors(404, 503),
    openapi_extra=document_example({"name": "another name"}),
)
def change_result(id: Id, body: ResultChange, state: State) -> Json:
    """Give a saved result another name or note."""
    with map_store_errors():
        return Json(_build_row(state.store.results.change(id, name=body.name, note=body.note)))


@router.delete("/results/{id}", status_code=204, responses=document_errors(404, 503))
def delete_result(id: Id, state: State) -> Response:
    """Delete a saved result."""
    with map_store_errors():
        state.store.results.remove(id)
    return Response(status_code=204)


@router.post(
    "/compare",
    response_model=ResultComparison,
    responses=document_errors(404, 409, 503),
    openapi_extra=document_example({"items": [SCENARIO_EXAMPLE, {**SCENARIO_EXAMPLE, "name": "again"}]}),
)
def compare_results(body: CompareBody, state: State, language: Language) -> Json:
    """Put results beside each other: every figure with its difference to the first, parts and phases, chances."""
    sides = [_read_item(state, item, language) for item in body.items]
    return Json(compare_outcomes(sides, language))


def compare_alternatives(state: AppState, request_scenario: RequestScenario, options: CompareOptions) -> dict[str, Any]:
    """Other ways to do one scenario, and saved results, beside each other."""
    sides = [
        build_compared(request_scenario.with_override(item.way).predicted.prediction, item.name)
        if item.result is None
        else _open_compared(state, item.result, item.name)
        for item in options.items
    ]
    return compare_outcomes(sides, request_scenario.language).model_dump(mode="json")


def read_saved_scenario(result: Result) -> ScenarioBody:
    """The scenario of a saved result, with the strategy it was predicted with, as a request would state it."""
    override = None if result.way is None else StrategyOverride(**result.way)
    return ScenarioBody(text=result.scenario, way=override)


def _read_item(state: AppState, item: ComparedItem, language: str) -> Compared:
    if item.result is not None:
        return _open_compared(state, item.result, item.name)
    return build_compared(answer(state.reader.read(item), language).prediction, item.name)


def _open_compared(state: AppState, id: str, name: str | None) -> Compared:
    with map_store_errors():
        side = _read_compared(state.store.results.get(id))
    return side._replace(name=name or side.name)


def build_compared(prediction: Prediction, name: str | None) -> Compared:
    """A prediction beside others."""
    return Compared(name or prediction.name, "predicted", build_outcome(prediction), prediction)


def _read_compared(result: Result) -> Compared:
    """A saved result beside others; 409 where it was saved by a version whose numbers meant something else."""
    phases = (result.timeline or {}).get("phases_s") or {}
    try:
        if result.kind != "predicted":
            # What a training run says of itself is kept with its figures, but is none of them.
            figures = {key: value for key, value in result.document.items() if key != RUN_KEY}
            outcome = build_measured_outcome(parse(Figures, figures), phases)
            return Compared(result.name, result.kind, outcome, None, result.id)
        prediction = parse(Prediction, result.document)
    except InputError:
        raise refuse(409, "saved_older", field="id", value=result.name) from None
    return Compared(result.name, result.kind, build_outcome(prediction, phases), prediction, result.id)


def format_csv(results: Sequence[Result]) -> str:
    """One row a result as CSV: figures with their ranges, then seconds by class, part and phase."""
    seconds = [("classes_s", (*CLASSES, OTHER)), ("parts_s", PARTS), ("phases_s", PHASES)]
    ends = ("", "_low", "_high")
    heads = ["name", "kind", "saved", "framework", "strategy", "fits"]
    heads += [f"{figure}{end}" for figure in FIGURES for end in ends]
    heads += [f"{group.removesuffix('_s')}_{name}_s" for group, names in seconds for name in names]
    output = io.StringIO()
    table = csv.writer(output, lineterminator="\n")
    table.writerow(heads)
    for result in results:
        outcome = _read_compared(result).outcome
        degrees = " ".join(f"{key}{value}" for key, value in outcome.degrees.items())
        row: list[Any] = [result.name, result.kind, result.created, outcome.framework, degrees, outcome.fits]
        for name in FIGURES:
            figure = outcome.figures.get(name)
            row += [figure.value, figure.low, figure.high] if figure else [None] * 3
        for group, names in seconds:
            parts = getattr(outcome, group)
            row += [parts.get(name) for name in names]
        table.writerow([_escape_cell(cell) for cell in row])
    return output.getvalue()


def _escape_cell(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: names come from others, and a formula can send data away."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t")) else cell


def _build_result(state: AppState, body: ResultBody, language: str) -> dict[str, Any]:
    """What the store keeps of a result: nothing of a prediction is taken from the request but its scenario."""
    override = None if body.way is None else body.way.model_dump()
    as_written = body.model_copy(update={"way": None})
    fields: dict[str, Any] = {"kind": body.kind, "note": body.note, "way": override}
    fields["scenario"] = state.reader.format_text(as_written) if body.has_scenario else None
    if body.kind == "predicted":
        predicted = answer(state.reader.read(body), language)
        phases = _measure_phases(predicted.predictor)
        outcome = build_outcome(predicted.prediction, phases)
        fields |= {"name": body.name or predicted.prediction.name}
        fields |= {"document": predicted.prediction.model_dump(mode="json")}
        fields |= {"timeline": {"phases_s": phases} if phases else None}
    elif body.trace is not None:
        run = read_measured(body.trace)
        figures, lasting = compute_trace_figures(run)
        phases = map_phase_seconds(lasting)
        outcome = build_measured_outcome(figures, phases)
        fields |= {"name": body.name or run.name, "document": figures.model_dump(mode="json")}
        fields |= {"timeline": {"phases_s": phases, "trace": body.trace}}
    else:
        figures = parse(Figures, body.figures, at=("figures",))
        outcome = build_measured_outcome(figures)
        fields |= {"name": body.name or body.kind, "document": figures.model_dump(mode="json")}
    return {**fields, "headline": build_headline(outcome)}


def _measure_phases(predictor: Predictor) -> dict[str, float]:
    """The phases of a predicted step; none where it has more spans than a timeline draws."""
    try:
        return measure_phases(predictor.timeline())
    except InvalidError:
        return {}


def _predict_timeline(state: AppState, result: Result, language: str) -> tuple[Timeline, dict[str, Any]]:
    """The step of a saved prediction, from its scenario; 409 where today's version cannot predict it any more."""
    if result.scenario is None:
        raise refuse(404, "result_no_timeline", field="id", value=result.name)
    try:
        timeline = build_predictor_from(state.reader.read(read_saved_scenario(result))).timeline(language)
    except InputError:
        raise refuse(409, "saved_older", field="id", value=result.name) from None
    return timeline, {"step": None, "steps": None}


def _read_timeline(result: Result, iteration: str) -> tuple[Timeline, dict[str, Any]]:
    """A step of the trace that was kept."""
    trace = (result.timeline or {}).get("trace")
    if trace is None:
        raise refuse(404, "result_no_timeline", field="id", value=result.name)
    run = read_measured(trace if isinstance(trace, str) else json.dumps(trace))
    seconds = {step.step: step.end_s - step.start_s for step in run.steps}
    number = resolve_iteration(iteration, seconds)
    steps = {"step": list(seconds), "seconds": list(seconds.values())}
    return run.timeline(number)[0], {"step": number, "steps": steps}


def _build_row(result: Result) -> dict[str, Any]:
    return result.model_dump(include=set(ResultRow.model_fields))


def _build_file(content: bytes, ending: str, media_type: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="crosszone-results.{ending}"'}
    return Response(content, media_type=media_type, headers=headers)
