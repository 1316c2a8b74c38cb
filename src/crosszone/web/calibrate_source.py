"""Sources: the bytes of a file that was handed in, or of a text within the request.

with given(uploads, body) as source: job(source.path, source.name)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from crosszone.web.calibrate_body import FileBody, RunFileBody
from crosszone.web.calibrate_uploads import LONGEST_NAME, Uploads
from crosszone.web.events import answered
from crosszone.web.saved import kept
from crosszone.web.state import State
from crosszone.web.workers import Job

TEXT_NAME = "text"


@dataclass(frozen=True)
class Source:
    """Where a file lies while it is read, and what the user calls it."""

    path: str
    name: str


@contextmanager
def given(uploads: Uploads, body: FileBody | RunFileBody) -> Iterator[Source]:
    """The file of a request; 404 where it is gone, and a text is a file as long as it is read."""
    if body.file is not None:
        with kept():
            found, path = uploads.get(body.file), uploads.path(body.file)
        yield Source(str(path), body.name or found.name)
        return
    with TemporaryDirectory(prefix="crosszone-text-") as folder:
        path = Path(folder) / TEXT_NAME
        path.write_bytes((body.content or "").encode("utf-8", "replace"))
        yield Source(str(path), (body.name or TEXT_NAME)[:LONGEST_NAME])


async def answered_from(
    request: Request, state: State, body: FileBody | RunFileBody, job: Job, *arguments: Any
) -> Response:
    """The answer of long work on the file of a request; the file stays where it is until all is told."""
    stack = ExitStack()
    try:
        source = await run_in_threadpool(stack.enter_context, given(state.uploads, body))
        answer = await answered(request, state.workers, job, source, *arguments)
    except BaseException:
        stack.close()
        raise
    if not isinstance(answer, StreamingResponse):
        stack.close()
        return answer
    answer.body_iterator = _then(answer.body_iterator, stack)
    return answer


async def _then(parts: Any, stack: ExitStack) -> AsyncIterator[Any]:
    with stack:
        async for part in parts:
            yield part
