"""The shapes of answers and errors, as the API's description states them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from crosszone.errors import CrossZoneError, FileError, MachineError, Notice, RequestError, StoreError
from crosszone.inputs.value import MOST_NOTICES
from crosszone.web.language import choose_language

log = logging.getLogger("crosszone.web")


class NoticeBody(BaseModel):
    """One error, warning or note."""

    code: str = Field(description="Stable name of what is said, the same in each language.")
    level: str = Field(description="error, warning or note.")
    message: str = Field(description="What is wrong, with the field, the value and the limit.")
    field: str = Field(description="Path of the field, e.g. cluster.zones[0].name; empty: the whole.")
    hint: str = Field(description="What to do about it.")
    value: Any = Field(default=None, description="What was given.")
    file: str | None = Field(default=None, description="File it stands in; <text> for the text of the request.")
    line: int | None = Field(default=None, description="Line in that file, from 1.")


class ErrorBody(BaseModel):
    """Every error: the first one, and all of them."""

    code: str
    message: str
    field: str
    hint: str
    errors: list[NoticeBody] = Field(description=f"All of them, at most {MOST_NOTICES}.")


class ExampleBody(BaseModel):
    """A scenario that can be opened."""

    name: str = Field(description="Its name in the path.")
    title: str = Field(description="What the scenario calls itself.")
    opened: bool = Field(description="It is the file the server was started with.")


class ExamplesBody(BaseModel):
    """The scenarios that can be opened, and which one to open first."""

    default: str
    examples: list[ExampleBody]


class DescriptionBody(BaseModel):
    """What follows from a scenario before anything is predicted: `crosszone scenario show --json`, and its text."""

    fields: dict[str, Any] = Field(description="The document as it was given, in the form of today.")
    yaml: str = Field(description="The same as text.")

    scenario: dict[str, Any]
    model: dict[str, Any]
    job: dict[str, Any]
    cluster: dict[str, Any]
    strategy: dict[str, Any] | None
    legal: bool
    notices: list[NoticeBody]


class ChangedBody(BaseModel):
    """A scenario with some of its fields changed."""

    fields: dict[str, Any] = Field(description="The document as it was given, with the changes.")
    yaml: str = Field(description="The same as text.")


class TextBody(BaseModel):
    """The strings of one language."""

    language: str
    page: dict[str, Any]
    label: dict[str, str]
    framework: dict[str, str] = Field(description="What each training framework is called.")


class Json(JSONResponse):
    """A JSON answer; half a surrogate pair, which UTF-8 cannot hold, becomes a question mark."""

    def render(self, content: Any) -> bytes:
        """The body of the answer."""
        return dump_json(content)


def dump_json(content: Any) -> bytes:
    """Plain values and pydantic models as the JSON that is sent."""
    text = json.dumps(
        content,
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
        # Not pydantic's own JSON, which prints some floats otherwise than `--json` of the command line does.
        default=lambda model: model.model_dump(mode="json"),
    )
    return text.encode("utf-8", "replace")


def document_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may refuse with these statuses besides those of any route (`openapi.py`)."""
    why = {
        400: "The body is not JSON.",
        403: "The request comes from another site.",
        401: "The token is missing or wrong.",
        404: "There is no such thing.",
        405: "The address cannot be asked with this method.",
        408: "The body did not arrive in time.",
        409: "It clashes with what is there, or it was cancelled.",
        413: "The body is too large.",
        415: "The body is not application/json.",
        421: "The Host is not this machine.",
        422: "The input is wrong; each error names the field and the remedy.",
        424: "A machine cannot be reached, or cannot do what it was asked.",
        429: "Too much work is waiting, or too many wrong tokens came; try again after Retry-After seconds.",
        431: "Address and headers are too large.",
        503: "What is saved cannot be reached now.",
    }
    return {status: {"model": ErrorBody, "description": why[status]} for status in statuses}


def answer_error(request: Request, error: Exception) -> Json:
    """The answer to an error that CrossZone raises on purpose: 4xx by the kind of error, 503 for the store."""
    assert isinstance(error, CrossZoneError)
    status = find_status(error)
    answer = answer_notices(request, status, error.notices)
    if status == 401:
        answer.headers["WWW-Authenticate"] = 'Bearer realm="CrossZone"'
    if status == 429:
        answer.headers["Retry-After"] = str(error.notices[0].params.get("seconds", 5))
    return answer


def find_status(error: CrossZoneError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, StoreError):
        return 503  # the request may be right, so it may come again
    if isinstance(error, MachineError):
        return 424  # neither the request nor the server is wrong
    return 413 if isinstance(error, FileError) and error.notices[0].code == "file_too_large" else 422


def answer_http_error(request: Request, error: Exception) -> Response:
    """The answer to what the router refuses: an unknown address, or a method that it does not take."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "request_refused")
    notice = Notice(code=code, value=request.url.path, params={"method": request.method, "status": status})
    answer = answer_notices(request, status, [notice])
    answer.headers.update(error.headers or {})
    return answer


def answer_validation_error(request: Request, error: Exception) -> Response:
    """The answer to parameters of the address or headers that FastAPI refuses; `ApiRoute` refuses bodies itself."""
    assert isinstance(error, RequestValidationError)
    notices = [
        Notice(code="not_valid", field=".".join(str(step) for step in detail["loc"]), value=detail.get("input"))
        for detail in error.errors()
    ]
    return answer_notices(request, 422, notices)


def answer_failure(request: Request, error: Exception) -> Json:
    """The answer to a mistake of ours: logged with its traceback, answered without one."""
    return Json(build_failure_body(request, error), status_code=500)


def answer_notices(request: Request, status: int, notices: Sequence[Notice]) -> Json:
    """An error as every route sends it."""
    return Json(build_error_body(notices, choose_language(request)), status_code=status)


def build_error_body(notices: Sequence[Notice], language: str) -> dict[str, Any]:
    """The body of an error."""
    errors = [_use_field_of_request(notice).as_dict(language) for notice in notices[:MOST_NOTICES]]
    first = {key: errors[0][key] for key in ("code", "message", "field", "hint")}
    return {**first, "errors": errors}


def build_failure_body(request: Request, error: Exception) -> dict[str, Any]:
    """The body of the answer to a mistake of ours, which is logged."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    notice = Notice(code="internal", params={"reason": type(error).__name__})
    return build_error_body([notice], choose_language(request))


def _use_field_of_request(notice: Notice) -> Notice:
    """The notice with the field of the request it is about where it names the command line's option for that."""
    if not notice.field.startswith("--"):
        return notice
    option = notice.field.removeprefix("--").replace("-", "_")
    return replace(notice, field={"set": "changes", "switch": "switches", "part": "parts"}.get(option, option))
