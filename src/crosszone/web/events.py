"""Events: progress of long work as Server-Sent Events, or its answer at the end.

With `Accept: text/event-stream` the answer is a stream: `started` with the id of the work, `progress` now and then,
then `result` or `error`. Hanging up stops the work, and so does `DELETE /api/v1/work/{id}`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from crosszone.errors import InputError, Notice
from crosszone.plan.search import CancelledError
from crosszone.web.answers import build_error_body, build_failure_body, document_errors, dump_json
from crosszone.web.language import choose_language
from crosszone.web.refusals import refuse
from crosszone.web.workers import Job, Workers, WorkItem

STREAM = "text/event-stream"
LINES = "application/x-ndjson"
# Seconds of silence after which the stream says that it is alive; also how soon a hang-up is noticed.
ALIVE_S = 1.0
# How the description of the API states the second form of an answer.
STREAMED: dict[str, Any] = {
    STREAM: {
        "schema": {"type": "string"},
        "example": 'event: progress\ndata: {"what": "simulating", "done": 3, "of": 8}\n\n',
    }
}
# What a route documents that answers with `run_job`.
JOB_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": STREAMED}, **document_errors(409)}


async def run_job(
    request: Request, workers: Workers, job: Job, *arguments: Any, on_answer: Callable[[bytes], None] | None = None
) -> Response:
    """The answer of a piece of long work, in the form the request asks for; `on_answer` is given it too."""
    if STREAM in request.headers.get("accept", ""):
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = _stream_job(request, workers, job, arguments, on_answer)
        return StreamingResponse(stream, media_type=STREAM, headers=headers)
    answer = await finish_job(request, workers, job, *arguments)
    if on_answer is not None:
        on_answer(answer)
    return Response(answer, media_type="application/json")


async def finish_job(request: Request, workers: Workers, job: Job, *arguments: Any) -> bytes:
    """What a piece of long work answers at its end; hanging up stops it."""
    work = WorkItem(job, arguments)
    task = _start_work(workers, work)
    try:
        while not (await asyncio.wait([task], timeout=ALIVE_S))[0]:
            if await request.is_disconnected():
                work.cancelled.set()
        return task.result()
    except CancelledError:
        raise refuse(409, "work_cancelled") from None
    finally:
        work.cancelled.set()


async def _stream_job(
    request: Request, workers: Workers, job: Job, arguments: tuple[Any, ...], on_answer: Callable[[bytes], None] | None
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[bytes] = asyncio.Queue()

    def progress(what: str, done: int, of: int) -> None:
        with suppress(RuntimeError):  # the server is closing
            loop.call_soon_threadsafe(
                messages.put_nowait, _format_event("progress", {"what": what, "done": done, "of": of})
            )

    work = WorkItem(job, arguments, progress)
    task = _start_work(workers, work)
    task.add_done_callback(lambda _: messages.put_nowait(b""))
    try:
        yield _format_event("started", {"id": work.id})
        while True:
            try:
                event = await asyncio.wait_for(messages.get(), ALIVE_S)
            except TimeoutError:
                event = b": working\n\n"
            if not event:
                break
            yield event
        if on_answer is not None and not task.cancelled() and task.exception() is None:
            on_answer(task.result())
        yield _format_ending(request, task)
    finally:
        work.cancelled.set()


def stream_lines(request: Request, lines: AsyncIterator[Any]) -> Response:
    """One JSON value a line, each sent when it is there."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Accept-Encoding"}
    content = _encode_lines(lines)
    if "gzip" in request.headers.get("accept-encoding", ""):
        # Compressed here: the middleware would hold a line back until some more have filled its buffer.
        headers["Content-Encoding"] = "gzip"
        content = _compress_lines(content)
    return StreamingResponse(content, media_type=LINES, headers=headers)


async def _encode_lines(lines: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for line in lines:
        yield dump_json(line) + b"\n"


async def _compress_lines(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(5, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    async for line in lines:
        yield packer.compress(line) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


def _start_work(workers: Workers, work: WorkItem) -> asyncio.Task[bytes]:
    """The work as a task; its error counts as handled, since the client may be gone."""
    task = asyncio.create_task(workers.run(work))
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


def _format_ending(request: Request, task: asyncio.Task[bytes]) -> bytes:
    try:
        return b"event: result\ndata: " + task.result() + b"\n\n"
    except CancelledError:
        return _format_event("error", build_error_body([Notice(code="work_cancelled")], choose_language(request)))
    except InputError as error:
        return _format_event("error", build_error_body(error.notices, choose_language(request)))
    except Exception as error:
        return _format_event("error", build_failure_body(request, error))


def _format_event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: ".encode() + dump_json(data) + b"\n\n"
