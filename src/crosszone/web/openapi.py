"""The API's description: what the routes say of themselves, and what is true of all of them."""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from crosszone.web.answers import errors_documented
from crosszone.web.security import SESSION_COOKIE

PREFIX = "/api/v1"
_SCHEMAS = "#/components/schemas/"
_DOOR = (401, 408, 413, 421, 422, 429, 431)  # Refusals of any request: at the door, before its route is asked


def operation_id(route: APIRoute) -> str:
    """The name of a route in generated clients: its method and path, which are the contract."""
    method = min(route.methods or ("get",)).lower()
    words = re.findall(r"\w+", re.sub(r":\w+}", "}", route.path_format.removeprefix(PREFIX)))
    return "_".join([method, *words])


def complete(app: FastAPI) -> None:
    """Have the application describe itself with everything that the routes have in common."""
    drawn = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(drawn())
        return drawn()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> None:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "The token that `crosszone serve` printed."},
        "session": {"type": "apiKey", "in": "cookie", "name": SESSION_COOKIE, "description": "From POST /session."},
    }
    document["security"] = [{}, {"token": []}, {"session": []}]  # none on a server for its own machine
    for path in document["paths"].values():
        for method, operation in path.items():
            _lift(operation, schemas)
            operation["summary"] = operation.get("description", "").partition("\n")[0].rstrip(".")
            unsafe = (403,) if method not in ("get", "head", "options") else ()
            for status, told in errors_documented(*_DOOR, *unsafe).items():
                operation["responses"].setdefault(str(status), _error(told["description"]))
            operation["responses"] = dict(sorted(operation["responses"].items()))


def _error(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": f"{_SCHEMAS}ErrorBody"}}},
    }


def _lift(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Put the definitions inside a body's schema where references of the whole document find them."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        definitions = schema.pop("$defs", {})
        title = schema.get("title")
        content["schema"] = _pointed(schema)
        for name, definition in definitions.items():
            schemas.setdefault(name, _pointed(definition))
        if title and schemas.setdefault(title, content["schema"]) == content["schema"]:
            content["schema"] = {"$ref": f"{_SCHEMAS}{title}"}


def _pointed(schema: Any) -> Any:
    """The same schema with its references into the whole document."""
    if isinstance(schema, dict):
        return {
            key: value.replace("#/$defs/", _SCHEMAS) if key == "$ref" and isinstance(value, str) else _pointed(value)
            for key, value in schema.items()
        }
    return [_pointed(one) for one in schema] if isinstance(schema, list) else schema
