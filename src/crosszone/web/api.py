"""The routes under `/api/v1`: each calls the function the command line calls and adds nothing to its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.errors import RequestError, UnknownNameError
from crosszone.inputs.catalogue import KINDS, catalogue
from crosszone.inputs.catalogue.describe import describe_entry, figures
from crosszone.inputs.catalogue.entry import Kind
from crosszone.text import LANGUAGES, texts
from crosszone.web.answers import DescriptionBody, ExamplesBody, Json, TextBody, errors_documented
from crosszone.web.body import ScenarioBody, body_documented, read_body
from crosszone.web.examples import Shelf
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.scenarios import Reader

Name = Annotated[str, Path(min_length=1, max_length=200, description="A name or alias.")]
_YAML = {"content": {"application/yaml": {"schema": {"type": "string"}}}, "description": "The text."}
KindName = Annotated[str, Path(max_length=50, description="gpus, models or regions.")]


def api_routes(shelf: Shelf) -> APIRouter:
    """All routes; `shelf` holds the scenarios that can be opened."""
    router = APIRouter(prefix="/api/v1")
    reader = Reader(shelf.base)

    @router.get("/catalogue/links", tags=["catalogue"], responses=errors_documented())
    def links() -> list[dict[str, Any]]:
        """List what was measured between regions."""
        return [pair.to_plain() for pair in catalogue().measured_pairs()]

    @router.get("/catalogue/sources", tags=["catalogue"], responses=errors_documented())
    def sources() -> dict[str, dict[str, Any]]:
        """List the citations that figures name by id."""
        return catalogue().sources

    @router.get("/catalogue/{kind}", tags=["catalogue"], responses=errors_documented(404))
    def entries(kind: KindName, language: Language) -> list[dict[str, Any]]:
        """List all GPUs, models or regions with everything that follows from their figures."""
        del language
        known = _kind(kind)
        return [describe_entry(known, entry) for entry in catalogue().entries(known)]

    @router.get("/catalogue/{kind}/{name:path}", tags=["catalogue"], responses=errors_documented(404))
    def entry(kind: KindName, name: Name, language: Language) -> dict[str, Any]:
        """Show one entry, by name or alias, with the source of each figure."""
        del language
        known = _kind(kind)
        try:
            found = catalogue().entry(known, name)
        except UnknownNameError as error:
            raise RequestError(404, *(replace(notice, field="name") for notice in error.notices)) from None
        return {**describe_entry(known, found), "figures": figures(known, found)}

    @router.get("/examples", tags=["examples"], response_model=ExamplesBody, responses=errors_documented())
    def examples() -> dict[str, Any]:
        """List the scenarios that can be opened: those that come with CrossZone and the opened file."""
        return {"default": shelf.default, "examples": shelf.listed()}

    @router.get(
        "/examples/{name}",
        tags=["examples"],
        response_class=Response,
        responses={200: _YAML, **errors_documented(404, 413)},
    )
    def example(name: Name, language: Language) -> Response:
        """Give the text of one scenario."""
        del language
        return Response(shelf.text(name), media_type="application/yaml")

    @router.post(
        "/scenarios/describe",
        tags=["scenarios"],
        response_model=DescriptionBody,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(ScenarioBody, {"text": "model: llama-2-7b\njob: {...}\ncluster: {...}\n"}),
    )
    async def describe(
        request: Request,
        language: Language,
    ) -> Json:
        """Say what follows from a scenario before anything is predicted, and whether its strategy is legal."""
        body = await read_body(request, ScenarioBody)
        if body.text is not None:
            return Json(await run_in_threadpool(reader.described_text, body.text, language))
        return Json(await run_in_threadpool(reader.described_fields, body.scenario or {}, language))

    @router.get("/text/{language}", tags=["page"], response_model=TextBody, responses=errors_documented(404))
    def text(language: Annotated[str, Path(max_length=20, description="en or zh.")]) -> dict[str, Any]:
        """Give the strings of the page in one language."""
        if language not in LANGUAGES:
            raise refused(404, "language_unknown", value=language, allowed=", ".join(LANGUAGES))
        return {"language": language, "page": texts(language)["page"], "label": texts(language)["label"]}

    return router


def _kind(word: str) -> Kind:
    for kind in KINDS:
        if kind == word:
            return kind
    raise refused(404, "kind_unknown", value=word, allowed=", ".join([*KINDS, "links"]))
