"""Scenarios: described, changed and edited as text; saved under a name, good or not yet; and examples to start from."""

from __future__ import annotations

from typing import Annotated, Any, Self

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import Document, parse_document
from crosszone.inputs.edit_text import edit_yaml
from crosszone.inputs.scenario import upgrade_fields
from crosszone.store import Page, SavedScenario, ScenarioRow
from crosszone.web.answers import ChangedBody, DescriptionBody, ExamplesBody, Json, document_errors
from crosszone.web.body import MOST_NAME, SCENARIO_EXAMPLE, ApiRoute, ChangeBody, ScenarioBody, document_example
from crosszone.web.language import Language
from crosszone.web.refusals import map_store_errors
from crosszone.web.saved import Before, Id, Limit
from crosszone.web.scenarios import TEXT, describe_loaded
from crosszone.web.state import State

router = APIRouter(prefix="/scenarios", tags=["scenarios"], route_class=ApiRoute)
examples_router = APIRouter(prefix="/examples", tags=["examples"], route_class=ApiRoute)

_YAML = {"content": {"application/yaml": {"schema": {"description": "YAML."}}}, "description": "The text."}
ExampleName = Annotated[str, Path(min_length=1, max_length=200, description="Its name.")]


class TextOnlyBody(BaseModel):
    """A text that need not be a good scenario."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(description="YAML or JSON text.")


class EditBody(TextOnlyBody):
    """A text, and what it should say."""

    scenario: dict[str, Any] = Field(description="The fields the text should have.")


class FieldsBody(BaseModel):
    """What a text says."""

    fields: dict[str, Any] = Field(description="The document as it was given, in the form of today.")


class EditedBody(BaseModel):
    """A changed text."""

    text: str = Field(description="Reads as the fields wanted; what did not change is as it was written.")


class SaveScenarioBody(ScenarioBody):
    """A scenario to save; it is kept as it is, even while it has mistakes."""

    name: str = Field(max_length=MOST_NAME, description="What to call it.")


class ScenarioChange(BaseModel):
    """What to change of a saved scenario."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, max_length=MOST_NAME, description="Another name.")
    text: str | None = Field(default=None, description="Another text.")

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        if self.name is None and self.text is None:
            raise ValueError("name or text")
        return self


@examples_router.get("", response_model=ExamplesBody)
def list_examples(state: State) -> dict[str, Any]:
    """List the scenarios that can be opened: those that come with CrossZone and the opened file."""
    return {"default": state.examples.default, "examples": state.examples.list()}


@examples_router.get("/{name}", response_class=Response, responses={200: _YAML, **document_errors(404)})
def show_example(name: ExampleName, state: State) -> Response:
    """Give the text of one scenario."""
    return Response(state.examples.read_text(name), media_type="application/yaml")


@router.post("/describe", response_model=DescriptionBody, openapi_extra=document_example(SCENARIO_EXAMPLE))
def describe_scenario(body: ScenarioBody, state: State, language: Language) -> Json:
    """Say what follows from a scenario before anything is predicted, and whether its strategy is legal."""
    return Json(describe_loaded(state.reader.read(body), language))


@router.post(
    "/change",
    response_model=ChangedBody,
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "changes": {"strategy.communication.flows": 4}}),
)
def change_fields(body: ChangeBody, state: State) -> Json:
    """Set fields of a scenario by their paths, as a what-if names them; null takes a field out."""
    return Json(state.reader.apply_changes(body))


@router.post("/fields", response_model=FieldsBody, openapi_extra=document_example(SCENARIO_EXAMPLE))
def read_fields(body: TextOnlyBody) -> Json:
    """Read a text as fields, whether they make a good scenario or not."""
    document = parse_document(body.text, TEXT)
    if not isinstance(document.value, dict):
        raise InvalidError(Notice(code="scenario_not_mapping", value=document.value).with_place(TEXT, 1))
    return Json({"fields": upgrade_fields(document)[0]})


@router.post(
    "/edit",
    response_model=EditedBody,
    openapi_extra=document_example({"text": "job: {seq_len: 4096}  # tokens", "scenario": {"job": {}}}),
)
def edit_text(body: EditBody) -> Json:
    """Change a text so that it says something else, and keep its comments."""
    return Json({"text": edit_yaml(body.text, body.scenario)})


def edit_document(document: Document, text: str) -> dict[str, str]:
    """A text changed so that it says what a document says."""
    if not isinstance(document.value, dict):
        raise InvalidError(Notice(code="scenario_not_mapping", value=document.value).with_place(TEXT, 1))
    return {"text": edit_yaml(text, document.value)}


@router.get("", response_model=Page[ScenarioRow])
def list_scenarios(state: State, limit: Limit = 50, before: Before = None) -> Page[ScenarioRow]:
    """List saved scenarios, newest first."""
    return state.store.scenarios.page(limit=limit, before=before)


@router.post(
    "",
    status_code=201,
    response_model=SavedScenario,
    responses=document_errors(409),
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "name": "my cluster"}),
)
def save_scenario(body: SaveScenarioBody, state: State) -> Json:
    """Save a scenario."""
    text = state.reader.format_text(body)
    with map_store_errors():
        return Json(state.store.scenarios.add(name=body.name, text=text), status_code=201)


@router.get("/{id}", response_model=SavedScenario, responses=document_errors(404))
def open_scenario(id: Id, state: State) -> SavedScenario:
    """Open a saved scenario."""
    with map_store_errors():
        return state.store.scenarios.get(id)


@router.patch(
    "/{id}",
    response_model=SavedScenario,
    responses=document_errors(404),
    openapi_extra=document_example({"name": "another name"}),
)
def change_scenario(id: Id, body: ScenarioChange, state: State) -> Json:
    """Give a saved scenario another name or text."""
    with map_store_errors():
        return Json(state.store.scenarios.change(id, name=body.name, text=body.text))


@router.delete("/{id}", status_code=204, responses=document_errors(404))
def delete_scenario(id: Id, state: State) -> Response:
    """Delete a saved scenario."""
    with map_store_errors():
        state.store.scenarios.remove(id)
    return Response(status_code=204)
