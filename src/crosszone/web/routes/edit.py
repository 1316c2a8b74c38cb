"""A scenario as text and as fields: from one to the other, comments kept."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import parse_document
from crosszone.inputs.edit_text import edited_text
from crosszone.inputs.scenario import upgraded
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.scenarios import TEXT
from crosszone.web.state import State


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


def routes(state: State) -> APIRouter:
    """Read fields from a text, and write fields into one."""
    del state
    router = APIRouter(prefix="/scenarios", tags=["scenarios"])

    @router.post(
        "/fields",
        response_model=FieldsBody,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(TextOnlyBody, EXAMPLE),
    )
    async def fields(request: Request, language: Language) -> Json:
        """Read a text as fields, whether they make a good scenario or not."""
        del language
        body = await read_body(request, TextOnlyBody)
        return Json({"fields": await run_in_threadpool(_fields, body.text)})

    @router.post(
        "/edit",
        response_model=EditedBody,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(EditBody, {"text": "job: {seq_len: 4096}  # tokens", "scenario": {"job": {}}}),
    )
    async def edit(request: Request, language: Language) -> Json:
        """Change a text so that it says something else, and keep its comments."""
        del language
        body = await read_body(request, EditBody)
        return Json({"text": await run_in_threadpool(edited_text, body.text, body.scenario)})

    return router


def _fields(text: str) -> dict[str, Any]:
    document = parse_document(text, TEXT)
    if not isinstance(document.value, dict):
        raise InvalidError(Notice(code="scenario_not_mapping", value=document.value).at(TEXT, 1))
    return upgraded(document)[0]
