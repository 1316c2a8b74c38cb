"""Events: long work told while it is done, as Server-Sent Events, or answered at its end.

With `Accept: text/event-stream` the answer is a stream: `started` with the id of the work, `progress` now and then,
then `result` or `error`. Hanging up stops the work, and so does `DELETE /api/v1/work/{id}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from crosszone.errors import InputError, Notice
from crosszone.plan.search import CancelledError
from crosszone.web.answers import error_body, failure_body, json_bytes
from crosszone.web.language import wanted_language
from crosszone.web.refusals import refused
from crosszone.web.workers import Job, Work, Workers

STREAM = "text/event-stream"
# Seconds of silence after which the stream says that it is alive; also how soon a hang-up is noticed.
ALIVE_S = 1.0
# How the description of the API states the second form of an answer.
STREAMED: dict[str, Any] = {
    STREAM: {
        "schema": {"type": "string"},
        "example": 'event: progress\ndata: {"what": "simulating", "done": 3, "of": 8}\n\n',
    }
}


async def answered(
    request: Request, workers: Workers, job: Job, *arguments: Any, keep: Callable[[bytes], None] | None = None
) -> Response:
    """The answer of a piece of long work, in the form the request asks for; `keep` is handed it too."""
    if STREAM in request.headers.get("accept", ""):
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = _stream(request, workers, job, arguments, keep)
        return StreamingResponse(stream, media_type=STREAM, headers=headers)
    done = await finished(request, workers, job, *arguments)
    if keep is not None:
        keep(done)
    return Response(done, media_type="application/json")


async def finished(request: Request, workers: Workers, job: Job, *arguments: Any) -> bytes:
    """What a piece of long work answers at its end; hanging up stops it."""
    work = Work(job, arguments)
    doing = _begun(workers, work)
    try:
        while not (await asyncio.wait([doing], timeout=ALIVE_S))[0]:
            if await request.is_disconnected():
                work.cancelled.set()
        return doing.result()
    except CancelledError:
        raise refused(409, "work_cancelled") from None
    finally:
        work.cancelled.set()


async def _stream(
    request: Request, workers: Workers, job: Job, arguments: tuple[Any, ...], keep: Callable[[bytes], None] | None
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[bytes] = asyncio.Queue()

    def progress(what: str, done: int, of: int) -> None:
        with suppress(RuntimeError):  # the server is closing
            loop.call_soon_threadsafe(told.put_nowait, _event("progress", {"what": what, "done": done, "of": of}))

    work = Work(job, arguments, progress)
    doing = _begun(workers, work)
    doing.add_done_callback(lambda _: told.put_nowait(b""))
    try:
        yield _event("started", {"id": work.id})
        while True:
            try:
                event = await asyncio.wait_for(told.get(), ALIVE_S)
            except TimeoutError:
                event = b": working\n\n"
            if not event:
                break
            yield event
        if keep is not None and not doing.cancelled() and doing.exception() is None:
            keep(doing.result())
        yield _ending(request, doing)
    finally:
        work.cancelled.set()


def _begun(workers: Workers, work: Work) -> asyncio.Task[bytes]:
    """The work as a task; nobody need hear how it ends once the one who asked is gone."""
    doing = asyncio.create_task(workers.run(work))
    doing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return doing


def _ending(request: Request, doing: asyncio.Task[bytes]) -> bytes:
    try:
        return b"event: result\ndata: " + doing.result() + b"\n\n"
    except CancelledError:
        return _event("error", error_body([Notice(code="work_cancelled")], wanted_language(request)))
    except InputError as error:
        return _event("error", error_body(error.notices, wanted_language(request)))
    except Exception as error:
        return _event("error", failure_body(request, error))


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: ".encode() + json_bytes(data) + b"\n\n"
