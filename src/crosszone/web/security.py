"""What keeps the server to this machine and to this page: hosts, origins, sizes and headers.

The server has no password, so it answers only to itself: a foreign `Host` (DNS rebinding) and a foreign `Origin`
(another site posting through the user's browser) are refused, and nothing the page shows may load from elsewhere.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crosszone.errors import InputError
from crosszone.web.answers import failure_answer, input_error_answer
from crosszone.web.refusals import refused

MAX_BODY = 4 * 1024 * 1024
MAX_DRAINED = 64 * 1024 * 1024
"""Bytes of a refused body that are read and dropped, so that the sender sees the answer and not a broken pipe."""

_OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_READING = ("GET", "HEAD", "OPTIONS")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """The outermost layer: refuses foreign and oversized requests, adds the headers, lets no exception out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, started = Request(scope), False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add_headers(message, scope["path"])
            await send(message)

        try:
            _check_host(request.headers)
            _check_origin(request)
            body = await _bounded_body(request.headers, receive)
            await self.app(scope, _replayed(body, receive), answer)
        except InputError as error:
            await input_error_answer(request, error)(scope, receive, answer)
        except Exception as error:
            if started:
                raise
            await failure_answer(request, error)(scope, receive, answer)


def _check_host(headers: Headers) -> None:
    host = headers.get("host", "")
    if not _OWN_HOST.fullmatch(host):
        raise refused(421, "host_foreign", field="Host", value=host)


def _check_origin(request: Request) -> None:
    origin = request.headers.get("origin")
    if request.method in _READING or origin is None:
        return
    if origin.lower() != f"{request.url.scheme}://{request.headers['host']}".lower():
        raise refused(403, "origin_foreign", field="Origin", value=origin)


async def _bounded_body(headers: Headers, receive: Receive) -> bytes:
    """The whole body; one over the limit is drained and refused."""
    parts, size, more = [], 0, True
    stated = headers.get("content-length", "0")
    too_large = stated.isdecimal() and int(stated[:20]) > MAX_BODY
    while more and size <= MAX_DRAINED:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        part = message.get("body", b"")
        size += len(part)
        too_large = too_large or size > MAX_BODY
        if not too_large:
            parts.append(part)
        more = message.get("more_body", False)
    if too_large:
        raise refused(413, "body_too_large", limit_mib=MAX_BODY // 2**20)
    return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, then waits for the client to leave."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _add_headers(message: Message, path: str) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers[name] = value
    headers["Cache-Control"] = "no-store" if path.startswith("/api/") else "no-cache"
