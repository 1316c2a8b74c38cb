"""Reports: a scenario with its plan as a document to hand on."""

from __future__ import annotations

import json

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from crosszone.web.answers import errors_documented
from crosszone.web.body import EXAMPLE, ReportBody, body_documented, read_body
from crosszone.web.events import STREAMED, answered
from crosszone.web.jobs import report_job
from crosszone.web.language import Language
from crosszone.web.saved import attachment
from crosszone.web.state import State

_TYPES = {"md": "text/markdown", "html": "text/html"}
_TEXT = {kind: {"schema": {"type": "string"}} for kind in _TYPES.values()}


def routes(state: State) -> APIRouter:
    """Report."""
    router = APIRouter(tags=["report"])

    @router.post(
        "/report",
        response_class=Response,
        responses={
            200: {"content": {**_TEXT, **STREAMED}, "description": "The report, to be saved."},
            **errors_documented(400, 403, 409, 413, 415, 429),
        },
        openapi_extra=body_documented(ReportBody, {**EXAMPLE, "format": "html"}),
    )
    async def report(request: Request, language: Language) -> Response:
        """Report a scenario, or its best plan where it has no strategy: what `crosszone report` writes."""
        body = await read_body(request, ReportBody)
        loaded = await run_in_threadpool(state.reader.read, body)
        how = {"form": body.format, "budget_s": body.budget_s}
        done = await answered(request, state.workers, report_job, loaded, how, language)
        if isinstance(done, StreamingResponse):
            return done
        text = json.loads(bytes(done.body))["text"]
        # Saved, never shown by this server: its policy allows no style inside a page.
        saved = attachment(loaded.scenario.name, body.format, "report")
        return Response(text.encode("utf-8", "replace"), media_type=_TYPES[body.format], headers=saved)

    return router
