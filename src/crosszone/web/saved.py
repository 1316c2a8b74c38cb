"""What routes of saved things have in common: ids, pages, files to download, and the routes of one registry."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.responses import Response

from crosszone.inputs.value import Value, parse
from crosszone.store import MAX_PAGE
from crosszone.store.registered import Entry, Registry
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import document_example
from crosszone.web.refusals import map_store_errors
from crosszone.web.state import AppState, State

Id = Annotated[str, Path(min_length=1, max_length=200, description="As the list tells it.")]
# An id of the user's own; the store says which characters it may have.
NewId = Annotated[str, Field(min_length=1, max_length=64)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most rows to answer.")]
Before = Annotated[str | None, Query(max_length=200, description="`before` of the page that came last: go on there.")]
Registered = TypeVar("Registered", bound=Value)


class Entries(Value, Generic[Registered]):
    """All entries of a kind."""

    entries: tuple[Entry[Registered], ...]
    """In the order in which they were registered."""


def add_registry_routes(
    router: APIRouter,
    get_registry: Callable[[AppState], Registry[Any]],
    form: type[Value],
    new_form: type[Value],
    example: dict[str, Any],
    noun: str,
    *,
    forget: Callable[[AppState, str], None] | None = None,
) -> None:
    """Add the routes of one registry: add, show, change and remove an entry.

    `new_form` is `form` with an id, `forget` removes an entry in place of the store. What a list shows differs from
    kind to kind, so each file has its own.
    """
    entry: Any = Entry[form]  # type: ignore[valid-type]

    def add_entry(body: Any, state: State) -> Json:
        fields = body.to_plain()
        id = fields.pop("id", None)
        with map_store_errors():
            added = get_registry(state).add(parse(form, fields), id=id)
        return Json(added, status_code=201)

    def show_entry(id: Id, state: State) -> Json:
        with map_store_errors():
            return Json(get_registry(state).get(id))

    def change_entry(id: Id, body: Any, state: State) -> Json:
        with map_store_errors():
            return Json(get_registry(state).change(id, body))

    def remove_entry(id: Id, state: State) -> Response:
        with map_store_errors():
            if forget is None:
                get_registry(state).remove(id)
            else:
                forget(state, id)
        return Response(status_code=204)

    # FastAPI reads the form of a body from the annotation, which cannot name an argument of this function.
    add_entry.__annotations__["body"] = new_form
    change_entry.__annotations__["body"] = form
    router.post(
        "",
        status_code=201,
        response_model=entry,
        responses=document_errors(409, 503),
        openapi_extra=document_example(example),
        description=f"Register {noun}, under an id of your own or one that is made.",
    )(add_entry)
    router.get(
        "/{id}",
        response_model=entry,
        responses=document_errors(404, 503),
        description=f"Show {noun}.",
    )(show_entry)
    router.put(
        "/{id}",
        response_model=entry,
        responses=document_errors(404, 503),
        openapi_extra=document_example({key: value for key, value in example.items() if key != "id"}),
        description=f"Put other fields in place of those of {noun}.",
    )(change_entry)
    router.delete(
        "/{id}",
        status_code=204,
        response_class=Response,
        responses=document_errors(404, 409, 503),
        description=f"Forget {noun}; what it stands for stays as it is.",
    )(remove_entry)


def build_attachment_header(name: str, ending: str, fallback: str) -> dict[str, str]:
    """The header that has an answer saved as a file: plain letters for old clients, the full name for others."""
    plain = f"{make_slug(name, fallback)}.{ending}"
    encoded = quote(re.sub(r"[\s/\\:]+", "-", name).encode("utf-8", "replace"), safe="")
    return {"Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}.{ending}"}


def make_slug(name: str, fallback: str) -> str:
    """The plain letters of a name, for files and folders; `fallback` where it has none."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or fallback
