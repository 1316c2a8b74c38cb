"""Sweeps: the best plan at every value of one field, or of two, and where the choice flips."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.analyse.sweep import Sweep
from crosszone.analyse.sweep_cells import SweepAxis, read_axis
from crosszone.errors import InputError
from crosszone.web.answers import errors_documented
from crosszone.web.body import EXAMPLE, SweepBody, body_documented, read_body
from crosszone.web.events import STREAMED, answered
from crosszone.web.jobs import sweep_job
from crosszone.web.language import Language
from crosszone.web.state import State


def routes(state: State) -> APIRouter:
    """Sweep."""
    router = APIRouter(tags=["sweep"])

    @router.post(
        "/sweep",
        response_model=Sweep,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 409, 413, 415, 429)},
        openapi_extra=body_documented(SweepBody, {**EXAMPLE, "x": "cluster.links[*].gbps=1:100:log5"}),
    )
    async def sweep(request: Request, language: Language) -> Response:
        """Plan a scenario anew at every value of one field, or of two: what `crosszone sweep --json` prints."""
        body = await read_body(request, SweepBody)
        axes = _axis("x", body.x), None if body.y is None else _axis("y", body.y)
        loaded = await run_in_threadpool(state.reader.read, body)
        return await answered(request, state.workers, sweep_job, loaded, axes, body.how(), language)

    return router


def _axis(name: str, text: str) -> SweepAxis:
    """The axis of a field of the request."""
    try:
        return read_axis(text)
    except InputError as error:
        raise type(error)(*(replace(one, field=one.field or name) for one in error.notices)) from None
