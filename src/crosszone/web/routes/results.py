"""Saved results: what was predicted, taken from a sheet or measured, kept for comparing."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.analyse.compare import MOST
from crosszone.analyse.outcome import (
    Figures,
    Kind,
    figures_of,
    headline_of,
    outcome_of,
    outcome_of_figures,
    phases_s,
    seconds_of,
)
from crosszone.errors import InvalidError
from crosszone.inputs.value import parse
from crosszone.predict.answer import answer
from crosszone.predict.predictor import Predictor
from crosszone.schedule.measured import read_measured
from crosszone.store import Page, Result, ResultRow
from crosszone.web.answers import Json, errors_documented, json_bytes
from crosszone.web.body import EXAMPLE, ScenarioBody, Way, body_documented, read_body
from crosszone.web.compared import table_of
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.saved import MOST_NAME, Before, Id, Limit, kept
from crosszone.web.saved import text_of as text_of_body
from crosszone.web.state import State

_FILES = {
    "content": {kind: {"schema": {"type": "string"}} for kind in ("application/json", "text/csv")},
    "description": "The file.",
}
_YAML = {"content": {"application/yaml": {"schema": {"description": "YAML."}}}, "description": "The text."}
# What a result of each kind is made from: one of these.
_NEEDS = {"predicted": "text, scenario", "sheet": "figures", "measured": "figures, trace"}


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
    def _one(self) -> Self:
        if self.text is not None and self.scenario is not None:
            raise ValueError("one of text and scenario")
        return self

    def check(self) -> None:
        """Refuse what does not belong to its kind, or nothing at all."""
        has_scenario = self.text is not None or self.scenario is not None
        given = [key for key in ("figures", "trace") if getattr(self, key) is not None]
        allowed = [key for key in _NEEDS[self.kind].split(", ") if key in ("figures", "trace")]
        wrong = [key for key in given if key not in allowed]
        if wrong or len(given) != bool(allowed) or (self.kind == "predicted" and not has_scenario):
            field = wrong[0] if wrong else "body"
            raise refused(422, "result_needs", field=field, value=self.kind, keys=_NEEDS[self.kind])
        if self.way is not None and not has_scenario:
            raise refused(422, "result_needs", field="way", value="way", keys="text, scenario")


class ResultChange(BaseModel):
    """What to change of a saved result."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, max_length=MOST_NAME, description="Another name.")
    note: str | None = Field(default=None, max_length=20_000, description="Another note.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.name is None and self.note is None:
            raise ValueError("name or note")
        return self


def routes(state: State) -> APIRouter:
    """Save, list, open, rename, export and delete results."""
    router = APIRouter(prefix="/results", tags=["results"])
    results = state.store.results

    @router.get("", response_model=Page[ResultRow], responses=errors_documented(503))
    def listed(language: Language, limit: Limit = 50, before: Before = None) -> Page[ResultRow]:
        """List saved results with their main figures, newest first."""
        del language
        return results.page(limit=limit, before=before)

    @router.post(
        "",
        status_code=201,
        response_model=ResultRow,
        responses=errors_documented(400, 403, 409, 413, 415, 503),
        openapi_extra=body_documented(ResultBody, {**EXAMPLE, "name": "first try"}),
    )
    async def save(request: Request, language: Language) -> Response:
        """Save a result: a prediction of a scenario, figures of a sheet, or a measured run."""
        body = await read_body(request, ResultBody)
        body.check()

        def work() -> Json:
            made = _made(state, body, language)
            with kept():
                return Json(_row(results.add(**made)), status_code=201)

        return await run_in_threadpool(work)

    @router.get("/export", response_class=Response, responses={200: _FILES, **errors_documented(404, 409, 503)})
    def export(
        language: Language,
        ids: Annotated[str, Query(max_length=MOST * 70, description="Ids with commas between.")],
        format: Annotated[Literal["csv", "json"], Query(description="One row a result, or all of each.")] = "csv",
    ) -> Response:
        """Give chosen results as a file."""
        del language
        asked = [id for id in ids.split(",") if id]
        if not 1 <= len(asked) <= MOST:
            raise refused(422, "compare_count", field="ids", value=len(asked), least=1, limit=MOST)
        with kept():
            found = [results.get(id) for id in asked]
        if format == "json":
            return _file(json_bytes([one.model_dump() for one in found]), "json", "application/json")
        return _file(table_of(found).encode("utf-8", "replace"), "csv", "text/csv; charset=utf-8")

    @router.get("/{id}", response_model=Result, responses=errors_documented(404, 503))
    def one(id: Id, language: Language) -> Json:
        """Open a saved result with all its numbers."""
        del language
        with kept():
            return Json(results.get(id).model_dump())

    @router.get("/{id}/scenario", response_class=Response, responses={200: _YAML, **errors_documented(404, 503)})
    def scenario(id: Id, language: Language) -> Response:
        """Give the scenario of a saved result as text, done the way the result was."""
        del language
        with kept():
            found = results.get(id)
        if found.scenario is None:
            raise refused(404, "result_bare", field="id", value=found.name)
        text = found.scenario
        if found.way is not None:
            text = text_of_body(ScenarioBody(text=text, way=Way(**found.way)), state.reader)
        return Response(text, media_type="application/yaml")

    @router.patch(
        "/{id}",
        response_model=ResultRow,
        responses=errors_documented(400, 403, 404, 413, 415, 503),
        openapi_extra=body_documented(ResultChange, {"name": "another name"}),
    )
    async def change(id: Id, request: Request, language: Language) -> Response:
        """Give a saved result another name or note."""
        del language
        body = await read_body(request, ResultChange)

        def work() -> Json:
            with kept():
                return Json(_row(results.change(id, name=body.name, note=body.note)))

        return await run_in_threadpool(work)

    @router.delete("/{id}", status_code=204, response_class=Response, responses=errors_documented(403, 404, 503))
    def delete(id: Id, language: Language) -> Response:
        """Delete a saved result."""
        del language
        with kept():
            results.remove(id)
        return Response(status_code=204)

    return router


def _made(state: State, body: ResultBody, language: str) -> dict[str, Any]:
    """What the store keeps of a result: nothing of a prediction is taken from the request but its scenario."""
    way = None if body.way is None else body.way.model_dump()
    plain = body.model_copy(update={"way": None})
    has_scenario = body.text is not None or body.scenario is not None
    made: dict[str, Any] = {"kind": body.kind, "note": body.note, "way": way}
    made["scenario"] = text_of_body(plain, state.reader) if has_scenario else None
    if body.kind == "predicted":
        found = answer(state.reader.read(body), language)
        phases = _phases(found.predictor)
        outcome = outcome_of(found.prediction, phases)
        made |= {"name": body.name or found.prediction.name, "document": found.prediction.model_dump(mode="json")}
        made |= {"timeline": {"phases_s": phases} if phases else None}
    elif body.trace is not None:
        run = read_measured(body.trace)
        figures, lasting = figures_of(run)
        phases = seconds_of(lasting)
        outcome = outcome_of_figures(figures, phases)
        made |= {"name": body.name or run.name, "document": figures.model_dump(mode="json")}
        made |= {"timeline": {"phases_s": phases, "trace": body.trace}}
    else:
        figures = parse(Figures, body.figures, at=("figures",))
        outcome = outcome_of_figures(figures)
        made |= {"name": body.name or body.kind, "document": figures.model_dump(mode="json")}
    return {**made, "headline": headline_of(outcome)}


def _phases(predictor: Predictor) -> dict[str, float]:
    """The phases of a predicted step; none where it has more spans than a timeline draws."""
    try:
        return phases_s(predictor.timeline())
    except InvalidError:
        return {}


def _row(result: Result) -> dict[str, Any]:
    return result.model_dump(include=set(ResultRow.model_fields))


def _file(content: bytes, ending: str, kind: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="crosszone-results.{ending}"'}
    return Response(content, media_type=kind, headers=headers)
