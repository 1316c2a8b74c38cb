"""Bundles: a plan as files that start it; looked at, saved, handed out."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Path as InPath
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.deploy.bundle import Bundle
from crosszone.store import BundleRow, Page, SavedBundle
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, BundleBody, body_documented, read_body
from crosszone.web.choices import Choices, choices
from crosszone.web.events import STREAMED, answered, finished
from crosszone.web.jobs import bundle_job
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.saved import MOST_NAME, Before, Id, Limit, attachment, kept, slug
from crosszone.web.state import State

_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The text of the file."}
_ZIP = {
    "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    "description": "The archive.",
}
_EXAMPLE = {**EXAMPLE, "framework": "fsdp", "launcher": "nodes", "settings": {"port": 29501}, "template": True}
FilePath = Annotated[str, InPath(min_length=1, max_length=500, description="As the bundle names the file.")]


class SaveBundleBody(BundleBody):
    """A bundle to make and save."""

    name: str | None = Field(default=None, max_length=MOST_NAME, description="What to call it; none: as the scenario.")


def routes(state: State) -> APIRouter:
    """Make, save, list, open, hand out and delete bundles."""
    router = APIRouter(prefix="/bundles", tags=["bundles"])
    bundles = state.store.bundles

    async def made(request: Request, body: BundleBody, language: str) -> Bundle:
        how = body.how()
        loaded = await run_in_threadpool(state.reader.read, body)
        done = await finished(request, state.workers, bundle_job, loaded, how, language)
        return await run_in_threadpool(lambda: Bundle(**json.loads(done)))

    @router.get("", response_model=Page[BundleRow], responses=errors_documented(503))
    def listed(language: Language, limit: Limit = 50, before: Before = None) -> Page[BundleRow]:
        """List saved bundles, newest first."""
        del language
        return bundles.page(limit=limit, before=before)

    @router.get("/choices", response_model=Choices, responses=errors_documented())
    def chosen_from(language: Language) -> Choices:
        """List frameworks, launchers and settings to choose from."""
        return choices(language)

    @router.post(
        "/preview",
        response_model=Bundle,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 409, 413, 415, 429)},
        openapi_extra=body_documented(BundleBody, _EXAMPLE),
    )
    async def preview(request: Request, language: Language) -> Response:
        """Make a bundle and save nothing: a dry run, as `crosszone deploy --json` does."""
        body = await read_body(request, BundleBody)
        how = body.how()
        loaded = await run_in_threadpool(state.reader.read, body)
        return await answered(request, state.workers, bundle_job, loaded, how, language)

    @router.post(
        "/zip",
        response_class=Response,
        responses={200: _ZIP, **errors_documented(400, 403, 409, 413, 415, 429)},
        openapi_extra=body_documented(BundleBody, _EXAMPLE),
    )
    async def archived(request: Request, language: Language) -> Response:
        """Make a bundle and answer it as an archive; nothing is saved."""
        body = await read_body(request, BundleBody)
        bundle = await made(request, body, language)
        return await run_in_threadpool(_archive, bundle, bundle.name)

    @router.post(
        "",
        status_code=201,
        response_model=BundleRow,
        responses=errors_documented(400, 403, 409, 413, 415, 429, 503),
        openapi_extra=body_documented(SaveBundleBody, {**_EXAMPLE, "name": "first try"}),
    )
    async def save(request: Request, language: Language) -> Response:
        """Make a bundle and save it."""
        body = await read_body(request, SaveBundleBody)
        bundle = await made(request, body, language)

        def work() -> Json:
            with kept():
                return Json(_row(bundles.add(name=body.name or bundle.name, bundle=bundle)), status_code=201)

        return await run_in_threadpool(work)

    @router.get("/{id}", response_model=SavedBundle, responses=errors_documented(404, 503))
    def one(id: Id, language: Language) -> Json:
        """Open a saved bundle with all its files."""
        del language
        with kept():
            return Json(bundles.get(id).model_dump(mode="json"))

    @router.get(
        "/{id}/files/{path:path}", response_class=Response, responses={200: _TEXT, **errors_documented(404, 503)}
    )
    def file(id: Id, path: FilePath, language: Language) -> Response:
        """Give one file of a saved bundle; only a path that the bundle itself names."""
        del language
        with kept():
            found = bundles.get(id).bundle
        for one in found.files:
            if one.path == path:
                return Response(one.text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")
        raise refused(404, "bundle_no_file", field="path", value=path)

    @router.get("/{id}/zip", response_class=Response, responses={200: _ZIP, **errors_documented(404, 503)})
    def archive(id: Id, language: Language) -> Response:
        """Give a saved bundle as an archive."""
        del language
        with kept():
            found = bundles.get(id)
        return _archive(found.bundle, found.name)

    @router.delete("/{id}", status_code=204, response_class=Response, responses=errors_documented(403, 404, 503))
    def delete(id: Id, language: Language) -> Response:
        """Delete a saved bundle."""
        del language
        with kept():
            bundles.remove(id)
        return Response(status_code=204)

    return router


def _archive(bundle: Bundle, name: str) -> Response:
    called = f"{name} {bundle.framework}"
    folder = slug(called, "bundle")[:100]
    return Response(bundle.archive(folder), media_type="application/zip", headers=attachment(called, "zip", "bundle"))


def _row(saved: SavedBundle) -> dict[str, Any]:
    return saved.model_dump(include=set(BundleRow.model_fields))
