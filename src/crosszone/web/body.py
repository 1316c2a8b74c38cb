"""Request bodies: JSON, checked against a model, refused with the error shape of the API."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request

from crosszone.errors import InvalidError, Notice
from crosszone.web.refusals import refused

B = TypeVar("B", bound=BaseModel)


class ScenarioBody(BaseModel):
    """A scenario: its text, or its fields."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str | None = Field(default=None, description="The scenario as YAML or JSON text.")
    scenario: dict[str, Any] | None = Field(default=None, description="The scenario as an object.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.text is None) == (self.scenario is None):
            raise ValueError("one of text and scenario")
        return self


async def read_body(request: Request, model: type[B]) -> B:
    """The body of a request as a `model`: 415 when it is not JSON by its type, 400 by its syntax, 422 by its fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise refused(415, "not_json_type", field="Content-Type", value=kind)
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        details = error.errors(include_url=False)
        if details[0]["type"] == "json_invalid":
            reason = str(details[0].get("ctx", {}).get("error", ""))
            raise refused(400, "not_json", reason=reason) from None
        raise InvalidError(*(_notice(model, detail) for detail in details)) from None


def body_documented(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is a `model`."""
    content = {"application/json": {"schema": model.model_json_schema(), "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _notice(model: type[BaseModel], detail: Any) -> Notice:
    field = ".".join(str(step) for step in detail["loc"])
    codes = {"string_type": "must_be_text", "dict_type": "must_be_mapping", "model_type": "must_be_mapping"}
    if detail["type"] == "extra_forbidden":
        params = {"nearest": ", ".join(model.model_fields), "known": list(model.model_fields)}
        return Notice(code="unknown_key", field=field, value=field, params=params)
    if detail["type"] in codes:
        return Notice(code=codes[detail["type"]], field=field or "body", value=detail["input"])
    if not detail["loc"]:
        return Notice(code="one_of_body", field="body", params={"keys": ", ".join(model.model_fields)})
    return Notice(code="not_valid", field=field, value=detail["input"])
