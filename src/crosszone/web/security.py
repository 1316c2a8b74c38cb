"""What keeps the server to those it is meant for: hosts, origins, the token, the session, sizes and headers.

On this machine alone it has no password, so it answers only to itself: a foreign `Host` (DNS rebinding) and a foreign
`Origin` (another site posting through the user's browser) are refused. Reached from elsewhere it answers to any host,
but only to those who know the token. A browser sends the token once and gets a session: a cookie that scripts cannot
read. Nothing the page shows may load from elsewhere.
"""

from __future__ import annotations

import asyncio
import re

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crosszone.errors import InputError
from crosszone.web.answers import answer_error, answer_failure
from crosszone.web.body import ApiRoute, document_example
from crosszone.web.refusals import refuse
from crosszone.web.state import State
from crosszone.web.tokens import LONGEST_TOKEN, SESSION_S, TokenAuth

MAX_HEAD = 64 * 1024
MAX_BODY = 4 * 1024 * 1024
# Bytes of a refused body that are read and dropped, so that the sender sees the answer and not a broken pipe.
MAX_DRAINED = 64 * 1024 * 1024
BODY_S = 60.0  # Seconds until a body is there
# The one address whose body is a whole file: its route writes it to disk as it comes, within a limit of its own.
UPLOADS = "/api/v1/calibrate/files"
SESSION_COOKIE = "crosszone_session"

_OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_READING = ("GET", "HEAD", "OPTIONS")
# What the page needs before it has a token: its files, which hold no data, its strings, and the way to hand it in.
_OPEN = re.compile(r"(?!/api/).*|/api/v1/text/[a-z]+|/api/v1/session", re.DOTALL)

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


class SecurityMiddleware:
    """The outermost layer: refuses foreign and oversized requests, adds the headers, lets no exception out.

    `auth` asks for the token; without one, only this machine is answered.
    """

    def __init__(self, app: ASGIApp, auth: TokenAuth | None = None) -> None:
        self.app, self.auth = app, auth

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
            refusal = self._find_refusal(request)
            if refusal is None and request.method == "POST" and scope["path"] == UPLOADS:
                await self.app(scope, receive, answer)
                return
            body = await _read_bounded_body(request.headers, receive, keep=refusal is None)
            if refusal is not None:
                raise refusal
            if body is not None:
                await self.app(scope, _replay_body(body, receive), answer)
        except InputError as error:
            await answer_error(request, error)(scope, receive, answer)
        except Exception as error:
            if started:
                raise
            await answer_failure(request, error)(scope, receive, answer)

    def _find_refusal(self, request: Request) -> InputError | None:
        """Why the request is not for us to answer, if so."""
        try:
            _check_head(request.scope)
            if self.auth is None:
                _check_host(request.headers)
            _check_origin(request)
            if self.auth is not None:
                _check_token(request, self.auth)
        except InputError as error:
            return error
        return None


def _check_head(scope: Scope) -> None:
    head = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if head + sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD:
        raise refuse(431, "head_too_large", limit_kib=MAX_HEAD // 1024)


def _check_host(headers: Headers) -> None:
    host = headers.get("host", "")
    if not _OWN_HOST.fullmatch(host):
        raise refuse(421, "host_foreign", field="Host", value=host)


def _check_origin(request: Request) -> None:
    origin = request.headers.get("origin")
    if request.method in _READING or origin is None:
        return
    if origin.lower() != f"{request.url.scheme}://{request.headers.get('host', '')}".lower():
        raise refuse(403, "origin_foreign", field="Origin", value=origin)


def _check_token(request: Request, auth: TokenAuth) -> None:
    if _OPEN.fullmatch(request.scope["path"]):
        return
    authorization = request.headers.get("authorization")
    session = request.cookies.get(SESSION_COOKIE)
    auth.check(authorization=authorization, session=session, address=get_client_address(request))


def get_client_address(request: Request) -> str:
    """Whom a request comes from."""
    return request.client.host if request.client else ""


async def _read_bounded_body(headers: Headers, receive: Receive, *, keep: bool) -> bytes | None:
    """The whole body, or None when the sender left; one that is too large is drained, and refused like a slow one."""
    parts, size, more = [], 0, True
    stated = headers.get("content-length", "0")
    too_large = stated.isdecimal() and int(stated[:20]) > MAX_BODY
    try:
        async with asyncio.timeout(BODY_S):
            while more and size <= MAX_DRAINED:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                size += len(part)
                too_large = too_large or size > MAX_BODY
                if keep and not too_large:
                    parts.append(part)
                more = message.get("more_body", False)
    except TimeoutError:
        raise refuse(408, "body_slow", seconds=int(BODY_S)) from None
    if too_large:
        raise refuse(413, "body_too_large", limit_mib=MAX_BODY // 2**20)
    return b"".join(parts)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, then waits for the client to leave."""
    was_replayed = False

    async def replay() -> Message:
        nonlocal was_replayed
        if was_replayed:
            return await receive()
        was_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _add_headers(message: Message, path: str) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers[name] = value
    if path.startswith("/api/"):
        headers["Cache-Control"] = "no-store"
    else:
        headers.setdefault("Cache-Control", "no-cache")  # assets may be kept: their names hold their hash
    if message["status"] in (408, 413, 431):  # the rest of the body may still be on its way, and nobody will read it
        headers["Connection"] = "close"


session_router = APIRouter(prefix="/session", tags=["session"], route_class=ApiRoute)


class SessionBody(BaseModel):
    """The token that `crosszone serve` printed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: str = Field(max_length=LONGEST_TOKEN, description="The token that `crosszone serve` printed.")


@session_router.post(
    "",
    status_code=204,
    openapi_extra=document_example({"token": "as-printed-by-crosszone-serve"}),
)
async def start_session(body: SessionBody, request: Request, state: State) -> Response:
    """Trade the token for a session cookie; a server that asks for no token sets none."""
    # async although it awaits nothing: tokens and sessions are counted on the event loop alone, so they need no lock
    answer = Response(status_code=204)
    if state.auth is not None:
        session = state.auth.open_session(body.token, get_client_address(request))
        answer.set_cookie(
            SESSION_COOKIE,
            session,
            max_age=SESSION_S,
            path="/api/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
    return answer


@session_router.delete("", status_code=204)
async def end_session(request: Request, state: State) -> Response:
    """End the session of this browser."""
    if state.auth is not None and SESSION_COOKIE in request.cookies:
        state.auth.end(request.cookies[SESSION_COOKIE])
    answer = Response(status_code=204)
    answer.delete_cookie(SESSION_COOKIE, path="/api/", httponly=True, samesite="strict")
    return answer
