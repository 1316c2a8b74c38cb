"""The API's description: what the routes say of themselves, and what is true of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from crosszone.inputs.schema import build_json_schema
from crosszone.inputs.value import Value
from crosszone.web.answers import document_errors
from crosszone.web.security import SESSION_COOKIE

PREFIX = "/api/v1"
_SCHEMAS = "#/components/schemas/"
# Refusals of any request, before its route is asked.
ANY_REQUEST = document_errors(401, 408, 413, 421, 422, 429, 431)


def build_operation_id(route: APIRoute) -> str:
    """The name of a route in generated clients: its method and path, which are the contract."""
    method = min(route.methods or ("get",)).lower()
    words = re.findall(r"\w+", re.sub(r":\w+}", "}", route.path_format.removeprefix(PREFIX)))
    return "_".join([method, *words])


def complete_description(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Have the application describe itself with everything that the routes have in common."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete_document(build(), routers)
        return build()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete_document(document: dict[str, Any], routers: Sequence[APIRouter]) -> None:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "The token that `crosszone serve` printed."},
        "session": {"type": "apiKey", "in": "cookie", "name": SESSION_COOKIE, "description": "From POST /session."},
    }
    document["security"] = [{}, {"token": []}, {"session": []}]  # none on a server for its own machine
    _describe_fields(routers, schemas)
    for path in document["paths"].values():
        for method, operation in path.items():
            operation["summary"] = operation.get("description", "").partition("\n")[0].rstrip(".")
            refusals = [] if method in ("get", "head", "options") else [403]
            refusals += [400, 415] if "requestBody" in operation else []
            for status, response in document_errors(*refusals).items():
                operation["responses"].setdefault(str(status), _describe_error(response["description"]))
            operation["responses"] = dict(sorted(operation["responses"].items()))


def _describe_error(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": f"{_SCHEMAS}ErrorBody"}}},
    }


def _describe_fields(routers: Iterable[APIRouter], schemas: dict[str, Any]) -> None:
    """Say what the fields of bodies mean that are values: their docstrings, which pydantic does not read."""
    for model in _list_body_models(routers):
        document = build_json_schema("body", {"body": model})
        for title, definition in {model.__name__: document, **document.get("$defs", {})}.items():
            # FastAPI adds -Input where the schema of an answer differs from that of a body.
            schema = schemas.get(f"{title}-Input", schemas.get(title, {}))
            for name, field in definition.get("properties", {}).items():
                if "description" in field and name in schema.get("properties", {}):
                    schema["properties"][name].setdefault("description", field["description"])


def _list_body_models(routers: Iterable[APIRouter]) -> Iterator[type[Value]]:
    for route in chain.from_iterable(router.routes for router in routers):
        field = route.body_field if isinstance(route, APIRoute) else None
        model = field.field_info.annotation if field is not None else None
        if isinstance(model, type) and issubclass(model, Value):
            yield model
