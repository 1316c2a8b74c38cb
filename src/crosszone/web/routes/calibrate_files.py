"""Files to calibrate from: handed in whole, looked at as often as wanted, forgotten within the hour."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from crosszone.web.answers import Json, errors_documented
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.saved import Id, kept
from crosszone.web.security import MAX_DRAINED
from crosszone.web.state import State
from crosszone.web.uploads import LONGEST_NAME, MOST_BYTES, Upload

TYPE = "application/octet-stream"
_BODY = {
    "required": True,
    "description": f"The file as it is, at most {MOST_BYTES // 2**20} MiB; .gz may stay packed.",
    "content": {TYPE: {"schema": {"type": "string", "format": "binary", "minLength": 1}}},
}


def routes(state: State) -> APIRouter:
    """Hand in and drop files."""
    router = APIRouter(prefix="/calibrate/files", tags=["calibrate"])
    uploads = state.uploads

    @router.post(
        "",
        status_code=201,
        response_model=Upload,
        responses=errors_documented(400, 403, 408, 413, 415, 429),
        openapi_extra={"requestBody": _BODY},
    )
    async def hand_in(
        request: Request,
        language: Language,
        name: Annotated[str, Query(max_length=LONGEST_NAME, description="What the file is called.")] = "file",
    ) -> Response:
        """Hand in a log, a trace, samples or a workbook; what it is, the routes that read it say."""
        del language
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != TYPE:
            await _drained(request)
            raise refused(415, "not_binary_type", field="Content-Type", value=kind)
        try:
            made = await uploads.keep(request.stream(), name)
        except ClientDisconnect:  # nobody is there to be told
            return Response(status_code=400)
        return Json(made.model_dump(), status_code=201)

    @router.delete("/{id}", status_code=204, response_class=Response, responses=errors_documented(403, 404))
    async def drop(id: Id, language: Language) -> Response:
        """Forget a file that was handed in."""
        del language
        with kept():
            await run_in_threadpool(uploads.drop, id)
        return Response(status_code=204)

    return router


async def _drained(request: Request) -> None:
    """Read and drop what of a refused body is on its way, so that the sender sees the answer and not a broken pipe."""
    size = 0
    with suppress(ClientDisconnect):
        async for part in request.stream():
            size += len(part)
            if size > MAX_DRAINED:
                return
