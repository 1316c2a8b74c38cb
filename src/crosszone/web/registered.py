"""Registered things as routes: add, show, change and remove entries of one registry.

    registry_routes(router, state.store.datasets, Dataset, NewDataset, EXAMPLE, "a dataset")

What a list shows differs from kind to kind, so each file has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

from fastapi import APIRouter
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.inputs.value import Value, parse
from crosszone.store.registered import Entry, Registry
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import read_value, value_documented
from crosszone.web.language import Language
from crosszone.web.saved import Id, kept

# An id of the user's own; the store says which characters it may have.
NewId = Annotated[str, Field(min_length=1, max_length=64)]
Held = TypeVar("Held", bound=Value)


class Entries(Value, Generic[Held]):
    """All entries of a kind."""

    entries: tuple[Entry[Held], ...]
    """In the order in which they were registered."""


def registry_routes(
    router: APIRouter,
    registry: Registry[Any],
    form: type[Value],
    new: type[Value],
    example: dict[str, Any],
    noun: str,
    *,
    forget: Callable[[str], None] | None = None,
) -> None:
    """Add the routes of one registry; `new` is `form` with an id, `forget` removes an entry in place of the store."""
    entry: Any = Entry[form]  # type: ignore[valid-type]

    @router.post(
        "",
        status_code=201,
        response_model=entry,
        responses=errors_documented(400, 403, 409, 413, 415, 503),
        openapi_extra=value_documented(new, example),
        description=f"Register {noun}, under an id of your own or one that is made.",
    )
    async def add(request: Request, language: Language) -> Response:
        del language
        fields = (await read_value(request, new)).to_plain()
        id = fields.pop("id", None)

        def work() -> Json:
            with kept():
                return Json(registry.add(parse(form, fields), id=id).model_dump(mode="json"), status_code=201)

        return await run_in_threadpool(work)

    @router.get(
        "/{id}",
        response_model=entry,
        responses=errors_documented(404, 503),
        description=f"Show {noun}.",
    )
    def one(id: Id, language: Language) -> Json:
        del language
        with kept():
            return Json(registry.get(id).model_dump(mode="json"))

    @router.put(
        "/{id}",
        response_model=entry,
        responses=errors_documented(400, 403, 404, 413, 415, 503),
        openapi_extra=value_documented(form, {key: value for key, value in example.items() if key != "id"}),
        description=f"Put other fields in place of those of {noun}.",
    )
    async def change(id: Id, request: Request, language: Language) -> Response:
        del language
        body = await read_value(request, form)

        def work() -> Json:
            with kept():
                return Json(registry.change(id, body).model_dump(mode="json"))

        return await run_in_threadpool(work)

    @router.delete(
        "/{id}",
        status_code=204,
        response_class=Response,
        responses=errors_documented(403, 404, 409, 503),
        description=f"Forget {noun}; what it stands for stays as it is.",
    )
    def remove(id: Id, language: Language) -> Response:
        del language
        with kept():
            (forget or registry.remove)(id)
        return Response(status_code=204)
