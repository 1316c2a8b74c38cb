"""The scenarios that can be opened: those that come with CrossZone and the opened file."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from crosszone.web.answers import ExamplesBody, errors_documented
from crosszone.web.language import Language
from crosszone.web.state import State

Name = Annotated[str, Path(min_length=1, max_length=200, description="Its name.")]
_YAML = {"content": {"application/yaml": {"schema": {"description": "YAML."}}}, "description": "The text."}


def routes(state: State) -> APIRouter:
    """List and read them."""
    router = APIRouter(prefix="/examples", tags=["examples"])
    shelf = state.shelf

    @router.get("", response_model=ExamplesBody, responses=errors_documented())
    def examples() -> dict[str, Any]:
        """List the scenarios that can be opened: those that come with CrossZone and the opened file."""
        return {"default": shelf.default, "examples": shelf.listed()}

    @router.get("/{name}", response_class=Response, responses={200: _YAML, **errors_documented(404, 413)})
    def example(name: Name, language: Language) -> Response:
        """Give the text of one scenario."""
        del language
        return Response(shelf.text(name), media_type="application/yaml")

    return router
