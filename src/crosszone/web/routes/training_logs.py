"""What a training task tells: events, logs, metrics, and the run beside its prediction; in pages, or followed.

Followed (`Accept: text/event-stream` for events, `follow=true` for a log) an answer is a stream that ends with the
task. Each of its events has an id; sent back as `Last-Event-ID`, the stream goes on behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from crosszone.errors import CrossZoneError
from crosszone.run.logs import MOST_BYTES, LogFile, LogPart
from crosszone.run.monitor import Twin
from crosszone.run.monitor import worded as worded_twin
from crosszone.store.tasks import LIVE
from crosszone.store.tasks import State as TaskState
from crosszone.web.answers import Json, error_body, errors_documented, json_bytes
from crosszone.web.events import STREAM, STREAMED
from crosszone.web.language import Language, worded_event
from crosszone.web.saved import Id, kept
from crosszone.web.state import State
from crosszone.web.task_body import task_entry

PAUSE_S = 0.5  # Seconds between looks at what is followed
ALIVE = b": nothing new\n\n"
BIGGEST = 2**53  # Largest number that every client can say
# What is new, each piece with its id, name and data; and whether more may come.
Pieces = tuple[list[tuple[int | None, str, Any]], bool]


class EventBody(BaseModel):
    """One thing that happened to a task."""

    number: int = Field(description="Counts from 1.")
    at: str = Field(description="When, in UTC.")
    state: TaskState = Field(description="State of the task then.")
    kind: str = Field(description="created, state, check, node, restart, resume, note.")
    about: dict[str, Any] = Field(description="What happened; its `notice` is told in the language of the request.")


class EventsBody(BaseModel):
    """Some of what happened to a task."""

    entries: list[EventBody] = Field(description="Oldest first.")
    live: bool = Field(description="More may come.")


class LogsBody(BaseModel):
    """The logs of a task."""

    files: list[LogFile] = Field(description="Of each node, and of each rank.")


class MetricsBody(BaseModel):
    """What steps measured."""

    rows: list[dict[str, Any]] = Field(description="Step, loss, tokens/s and seconds by part, in their order.")


def routes(state: State) -> APIRouter:
    """All of that."""
    router = APIRouter(prefix="/training-tasks", tags=["training-tasks"])
    tasks, service = state.store.tasks, state.service

    @router.get(
        "/{id}/events",
        response_model=EventsBody,
        responses={200: {"content": STREAMED}, **errors_documented(404, 503)},
    )
    async def events(
        id: Id,
        request: Request,
        language: Language,
        after: Annotated[int, Query(ge=0, le=BIGGEST, description="Only events after this one, by number.")] = 0,
        limit: Annotated[int, Query(ge=1, le=2000, description="Most events of a page.")] = 200,
        last_event_id: Annotated[str | None, Header(max_length=100, description="Of a stream: go on after it.")] = None,
    ) -> Response:
        """Tell what happened to a task, oldest first; with `Accept: text/event-stream`, as it happens."""
        seen = max(after, _number(last_event_id))

        def look(behind: int, most: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
            with kept():
                entry = task_entry(tasks.get(id), language)
                return [worded_event(one, language) for one in tasks.events(id, after=behind, limit=most)], entry

        first, entry = await run_in_threadpool(look, seen, limit)
        if STREAM not in request.headers.get("accept", ""):
            return Json({"entries": first, "live": entry["state"] in LIVE})
        told: dict[str, Any] = {"behind": seen, "progress": None}

        def new() -> Pieces:
            found, now = look(told["behind"], 200)
            pieces: list[tuple[int | None, str, Any]] = [(one["number"], "event", one) for one in found]
            told["behind"] = found[-1]["number"] if found else told["behind"]
            if now["progress"] != told["progress"]:
                told["progress"] = now["progress"]
                pieces.append((None, "task", now))
            live = now["state"] in LIVE or bool(found)
            return (pieces if live else [*pieces, (None, "end", now)]), live

        return _streamed(new, language)

    @router.get("/{id}/logs", response_model=LogsBody, responses=errors_documented(404, 424, 503))
    def logs(id: Id, language: Language) -> Json:
        """List the logs of a task: of each node, and of each rank."""
        del language
        with kept():
            return Json({"files": [one.model_dump(mode="json") for one in service.logs(id)]})

    @router.get(
        "/{id}/logs/{node}",
        response_model=LogPart,
        responses={200: {"content": STREAMED}, **errors_documented(404, 424, 503)},
    )
    async def log(
        id: Id,
        node: Annotated[int, Path(ge=0, le=BIGGEST, description="Node, by number.")],
        language: Language,
        name: Annotated[str, Query(min_length=1, max_length=500, description="Log, as the list names it.")] = (
            "logs/node.log"
        ),
        offset: Annotated[
            int, Query(ge=-BIGGEST, le=BIGGEST, description="Byte to begin at; less than 0: counted from the end.")
        ] = 0,
        most: Annotated[int, Query(ge=1, le=MOST_BYTES, description="Most bytes to answer.")] = 65536,
        follow: Annotated[bool, Query(description="Stream what comes, until the task ends.")] = False,
        last_event_id: Annotated[str | None, Header(max_length=100, description="Of a stream: go on there.")] = None,
    ) -> Response:
        """Read a log from a byte on, or follow it."""
        begin = _number(last_event_id) or offset

        def part(offset: int) -> LogPart:
            with kept():
                return service.log(id, node=node, name=name, offset=offset, most=most)

        first = await run_in_threadpool(part, begin)
        if not follow:
            return Json(first.model_dump(mode="json"))
        told: dict[str, int] = {"next": first.offset}

        def new() -> Pieces:
            found = part(told["next"])
            told["next"] = found.next
            pieces: list[tuple[int | None, str, Any]] = []
            if found.text:
                pieces.append((found.next, "log", found.model_dump(mode="json")))
            live = found.live or (bool(found.text) and found.next < found.size)
            return (pieces if live else [*pieces, (None, "end", {"next": found.next, "size": found.size})]), live

        return _streamed(new, language)

    @router.get("/{id}/metrics", response_model=MetricsBody, responses=errors_documented(404, 424, 503))
    def metrics(
        id: Id,
        language: Language,
        after: Annotated[int, Query(ge=-1, le=BIGGEST, description="Only steps after this one.")] = -1,
        limit: Annotated[int, Query(ge=1, le=10_000, description="Most steps to answer.")] = 1000,
    ) -> Json:
        """List what steps measured: loss, tokens/s, and where their time went."""
        del language
        with kept():
            return Json({"rows": list(service.metrics(id, after=after, limit=limit))})

    @router.get("/{id}/twin", response_model=Twin, responses=errors_documented(404, 409, 424, 503))
    def twin(id: Id, language: Language) -> Json:
        """Compare the run with its prediction, part by part, and name what drifts."""
        with kept():
            return Json(worded_twin(service.twin(id), language).model_dump(mode="json"))

    return router


def _streamed(new: Callable[[], Pieces], language: str) -> StreamingResponse:
    """A stream of what is new, until nothing more can come."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(new, language), media_type=STREAM, headers=headers)


async def _stream(new: Callable[[], Pieces], language: str) -> AsyncIterator[bytes]:
    silent_s = 0.0
    while True:
        try:
            pieces, live = await run_in_threadpool(new)
        except CrossZoneError as error:  # it was deleted, or a machine or the store is out of reach
            yield _event(None, "error", error_body(error.notices, language))
            return
        for piece in pieces:
            yield _event(*piece)
        if not live:
            return
        silent_s = 0.0 if pieces else silent_s + PAUSE_S
        if silent_s >= 10 * PAUSE_S:
            silent_s = 0.0
            yield ALIVE
        await asyncio.sleep(PAUSE_S)


def _event(id: int | None, name: str, data: Any) -> bytes:
    head = b"" if id is None else f"id: {id}\n".encode()
    return head + f"event: {name}\ndata: ".encode() + json_bytes(data) + b"\n\n"


def _number(text: str | None) -> int:
    """The number of an event that a client saw last; one that is none is as good as none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0
