"""What clients ask of the server itself: the strings of the page, the schemas of inputs, and work to be stopped."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.schema import build_json_schema
from crosszone.plan.schema import ROOTS
from crosszone.text import LANGUAGES, load_texts
from crosszone.web.answers import TextBody, document_errors
from crosszone.web.body import ApiRoute
from crosszone.web.refusals import refuse
from crosszone.web.state import State

router = APIRouter(route_class=ApiRoute)


@router.get("/text/{language}", tags=["page"], response_model=TextBody, responses=document_errors(404))
def list_texts(language: Annotated[str, Path(max_length=20, description="en or zh.")]) -> dict[str, Any]:
    """Give the strings of the page in one language."""
    if language not in LANGUAGES:
        raise refuse(404, "language_unknown", value=language, allowed=", ".join(LANGUAGES))
    strings = load_texts(language)
    titles = {name: framework.title for name, framework in load_frameworks().items()}
    return {"language": language, "page": strings["page"], "label": strings["label"], "framework": titles}


@router.get("/schema/{name}", tags=["schema"], responses=document_errors(404))
def show_schema(
    name: Annotated[str, Path(max_length=50, description="scenario, model, job, cluster, strategy, ...")],
) -> dict[str, Any]:
    """Give the JSON Schema of one kind of input or answer, made from the code that reads or writes it."""
    if name not in ROOTS:
        raise refuse(404, "schema_unknown", value=name, allowed=", ".join(ROOTS))
    return _build_schema(name)


@router.delete("/work/{id}", tags=["work"], status_code=204, responses=document_errors(404))
def cancel_work(
    id: Annotated[str, Path(max_length=100, description="As `started` told it.")], state: State
) -> Response:
    """Stop a piece of work; its stream ends with an error that says so."""
    if not state.workers.cancel(id):
        raise refuse(404, "work_unknown", value=id)
    return Response(status_code=204)


@cache
def _build_schema(name: str) -> dict[str, Any]:
    return build_json_schema(name, ROOTS)
