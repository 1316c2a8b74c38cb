"""What is known of a training task: events, logs, metrics, the run beside its prediction; in pages, or followed.

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
from crosszone.run.logs import MAX_PART_BYTES, LogFile, LogPart
from crosszone.run.monitor import RunComparison, localize_comparison
from crosszone.store.tasks import LIVE
from crosszone.store.tasks import State as TaskState
from crosszone.web.answers import Json, build_error_body, document_errors, dump_json
from crosszone.web.body import ApiRoute
from crosszone.web.events import STREAM, STREAMED
from crosszone.web.language import Language, localize_event
from crosszone.web.refusals import map_store_errors
from crosszone.web.routes.training_tasks import build_task_entry
from crosszone.web.saved import Id
from crosszone.web.state import State

router = APIRouter(prefix="/training-tasks", tags=["training-tasks"], route_class=ApiRoute)

PAUSE_S = 0.5  # Seconds between looks at what is followed
ALIVE = b": nothing new\n\n"
ALIVE_AFTER_S = 5.0  # Seconds of silence after which ALIVE is sent: proxies close a stream that says nothing
BIGGEST = 2**53  # Largest number that every client can say
# What is new: messages with their id, name and data; and whether more may come.
Message = tuple[int | None, str, Any]
Update = tuple[list[Message], bool]


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


@router.get(
    "/{id}/events",
    response_model=EventsBody,
    responses={200: {"content": STREAMED}, **document_errors(404, 503)},
)
async def list_events(
    id: Id,
    request: Request,
    state: State,
    language: Language,
    after: Annotated[int, Query(ge=0, le=BIGGEST, description="Only events after this one, by number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=2000, description="Most events of a page.")] = 200,
    last_event_id: Annotated[str | None, Header(max_length=100, description="Of a stream: go on after it.")] = None,
) -> Response:
    """Tell what happened to a task, oldest first; with `Accept: text/event-stream`, as it happens."""
    tasks = state.store.tasks
    last_number = max(after, _parse_event_id(last_event_id))
    last_progress: dict[str, Any] | None = None

    def read_events(behind: int, limit: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        with map_store_errors():
            # The task before its events: one that ends in between is answered as live, and asked for once more.
            entry = build_task_entry(tasks.get(id), language)
            return [
                localize_event(event, language) for event in tasks.list_events(id, after=behind, limit=limit)
            ], entry

    def read_update() -> Update:
        nonlocal last_number, last_progress
        events, entry = read_events(last_number, 200)
        messages: list[Message] = [(event["number"], "event", event) for event in events]
        last_number = events[-1]["number"] if events else last_number
        if entry["progress"] != last_progress:
            last_progress = entry["progress"]
            messages.append((None, "task", entry))
        live = entry["state"] in LIVE or bool(events)
        return (messages if live else [*messages, (None, "end", entry)]), live

    # Read before the stream begins: a task that does not exist is a 404, not a stream that ends with an error.
    events, entry = await run_in_threadpool(read_events, last_number, limit)
    if STREAM not in request.headers.get("accept", ""):
        return Json({"entries": events, "live": entry["state"] in LIVE})
    return _stream_response(read_update, language)


@router.get("/{id}/logs", response_model=LogsBody, responses=document_errors(404, 424, 503))
def list_logs(id: Id, state: State) -> Json:
    """List the logs of a task: of each node, and of each rank."""
    with map_store_errors():
        return Json({"files": state.service.list_logs(id)})


@router.get(
    "/{id}/logs/{node}",
    response_model=LogPart,
    responses={200: {"content": STREAMED}, **document_errors(404, 424, 503)},
)
async def read_log(
    id: Id,
    node: Annotated[int, Path(ge=0, le=BIGGEST, description="Node, by number.")],
    state: State,
    language: Language,
    name: Annotated[str, Query(min_length=1, max_length=500, description="Log, as the list names it.")] = (
        "logs/node.log"
    ),
    offset: Annotated[
        int, Query(ge=-BIGGEST, le=BIGGEST, description="Byte to begin at; less than 0: counted from the end.")
    ] = 0,
    most: Annotated[int, Query(ge=1, le=MAX_PART_BYTES, description="Most bytes to answer.")] = 65536,
    follow: Annotated[bool, Query(description="Stream what comes, until the task ends.")] = False,
    last_event_id: Annotated[str | None, Header(max_length=100, description="Of a stream: go on there.")] = None,
) -> Response:
    """Read a log from a byte on, or follow it."""

    def read_part(begin: int) -> LogPart:
        with map_store_errors():
            return state.service.read_log(id, node=node, name=name, offset=begin, max_bytes=most)

    first = await run_in_threadpool(read_part, _parse_event_id(last_event_id) or offset)
    if not follow:
        return Json(first)
    next_byte = first.offset

    def read_update() -> Update:
        nonlocal next_byte
        part = read_part(next_byte)
        next_byte = part.next
        messages: list[Message] = []
        if part.text:
            messages.append((part.next, "log", part.model_dump(mode="json")))
        # A task that ended may still have left more of its log than one part holds.
        live = part.live or (bool(part.text) and part.next < part.size)
        return (messages if live else [*messages, (None, "end", {"next": part.next, "size": part.size})]), live

    return _stream_response(read_update, language)


@router.get("/{id}/metrics", response_model=MetricsBody, responses=document_errors(404, 424, 503))
def list_metrics(
    id: Id,
    state: State,
    after: Annotated[int, Query(ge=-1, le=BIGGEST, description="Only steps after this one.")] = -1,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Most steps to answer.")] = 1000,
) -> Json:
    """List what steps measured: loss, tokens/s, and where their time went."""
    with map_store_errors():
        return Json({"rows": list(state.service.read_metrics(id, after=after, limit=limit))})


@router.get("/{id}/twin", response_model=RunComparison, responses=document_errors(404, 409, 424, 503))
def compare_with_prediction(id: Id, state: State, language: Language) -> Json:
    """Compare the run with its prediction, part by part, and name what drifts."""
    with map_store_errors():
        return Json(localize_comparison(state.service.compare_run(id), language))


def _stream_response(read_update: Callable[[], Update], language: str) -> StreamingResponse:
    """A stream of what is new, until nothing more can come."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream_updates(read_update, language), media_type=STREAM, headers=headers)


async def _stream_updates(read_update: Callable[[], Update], language: str) -> AsyncIterator[bytes]:
    silent_s = 0.0
    while True:
        try:
            messages, live = await run_in_threadpool(read_update)
        except CrossZoneError as error:  # it was deleted, or a machine or the store is out of reach
            yield _format_message(None, "error", build_error_body(error.notices, language))
            return
        for message in messages:
            yield _format_message(*message)
        if not live:
            return
        silent_s = 0.0 if messages else silent_s + PAUSE_S
        if silent_s >= ALIVE_AFTER_S:
            silent_s = 0.0
            yield ALIVE
        await asyncio.sleep(PAUSE_S)


def _format_message(id: int | None, name: str, data: Any) -> bytes:
    head = b"" if id is None else f"id: {id}\n".encode()
    return head + f"event: {name}\ndata: ".encode() + dump_json(data) + b"\n\n"


def _parse_event_id(text: str | None) -> int:
    """The number of an event that a client saw last; one that is none is as good as none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0
