"""The strings of the page."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from crosszone.inputs.frameworks import frameworks
from crosszone.text import LANGUAGES, load_texts
from crosszone.web.answers import TextBody, errors_documented
from crosszone.web.refusals import refused
from crosszone.web.state import State


def routes(state: State) -> APIRouter:
    """Read them."""
    del state
    router = APIRouter(tags=["page"])

    @router.get("/text/{language}", response_model=TextBody, responses=errors_documented(404))
    def text(language: Annotated[str, Path(max_length=20, description="en or zh.")]) -> dict[str, Any]:
        """Give the strings of the page in one language."""
        if language not in LANGUAGES:
            raise refused(404, "language_unknown", value=language, allowed=", ".join(LANGUAGES))
        known = load_texts(language)
        called = {name: one.title for name, one in frameworks().items()}
        return {"language": language, "page": known["page"], "label": known["label"], "framework": called}

    return router
