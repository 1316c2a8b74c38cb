"""`crosszone serve`: bind the port, set up the token, and answer HTTP connections that arrive in time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from crosszone.errors import InputError, Notice, ServeError
from crosszone.inputs.document import read_text
from crosszone.web.app import create_app
from crosszone.web.security import MAX_HEAD
from crosszone.web.tokens import TOKEN_VARIABLE, ServerToken, TokenAuth, load_token, read_environment_token

LOOPBACK = ("127.0.0.1", "localhost", "::1")  # Binds that only this machine reaches


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """Where the server is and how to get in.

    address: what to open; holds a token that was made just now, behind the `#` that no log and no other site sees
    token:   the token, if it was made just now: it is kept as a hash, so it can only be printed now
    guarded: requests to the API need a token
    """

    address: str
    token: str | None
    guarded: bool


def run_server(
    *,
    host: str,
    port: int,
    file: str | None = None,
    store: str | None = None,
    new_token: bool = False,
    started: Callable[[ServerAddress], None],
) -> None:
    """Serve the page and the API until interrupted; `file` is a scenario to open first, `store` where things are saved.

    `started` is called with the address. `FileError` when the file cannot be read, `ServeError` when the port is taken.
    """
    path = Path(file) if file is not None else None
    if path is not None:
        read_text(path)
    with bind_port(host, port) as listener:
        token = choose_token(host, new_token=new_token)
        app = create_app(path, store=store, auth=TokenAuth(digest=token.digest) if token is not None else None)
        started(build_address(host, listener.getsockname()[1], token))
        sys.stdout.flush()
        config = uvicorn.Config(
            app,
            http=TimedConnection,
            h11_max_incomplete_event_size=MAX_HEAD,
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def choose_token(host: str, *, new_token: bool) -> ServerToken | None:
    """The token of this start: that of the environment, else the kept one where others reach us or one is wanted."""
    environment_token = read_environment_token()
    if environment_token is not None and new_token:
        raise InputError(Notice(code="token_twice", field="--new-token", value=TOKEN_VARIABLE))
    if environment_token is None and (new_token or host.lower() not in LOOPBACK):
        return load_token(replace=new_token)
    return environment_token


def build_address(host: str, port: int, token: ServerToken | None) -> ServerAddress:
    """What to print at the start."""
    display_host = find_own_address(host) if host in ("0.0.0.0", "::") else host
    address = f"http://{f'[{display_host}]' if ':' in display_host else display_host}:{port}"
    fresh = token.fresh if token is not None else None
    return ServerAddress(
        address=f"{address}/#token={fresh}" if fresh else address, token=fresh, guarded=token is not None
    )


def find_own_address(host: str) -> str:
    """An address under which others find this machine: that of the way out, else its name."""
    family, outside = (socket.AF_INET, "192.0.2.1") if host == "0.0.0.0" else (socket.AF_INET6, "2001:db8::1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def bind_port(host: str, port: int) -> socket.socket:
    """A socket that listens on the port."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise ServeError(
            Notice(code="host_unknown", field="--host", value=host, params={"reason": describe_reason(error)})
        ) from None
    # named TCP, so that asyncio turns Nagle's algorithm off: with it, small answers wait 40 ms for an acknowledgement
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        code = "port_taken" if error.errno == errno.EADDRINUSE else "port_refused"
        params = {"host": host, "other": port + 1 if port < 65535 else 8000, "reason": describe_reason(error)}
        raise ServeError(Notice(code=code, value=port, params=params)) from None
    return listener


def describe_reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# Seconds until a request's line and headers are there; a connection that sends them more slowly is closed.
HEAD_S = 20.0


class TimedConnection(H11Protocol):
    """HTTP/1.1 that neither waits for ever nor answers nonsense with anything but a plain error."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the first request its time."""
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_S, self._close)

    def data_received(self, data: bytes) -> None:
        """Take what came; a head that has begun, and only that, is waited for by the clock."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Say that this was not HTTP, in the shape of every error."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is under way
            self.transport.close()
            return
        notice = Notice(code="not_http", params={"reason": msg.rstrip(".")}).as_dict()
        first = {key: notice[key] for key in ("code", "message", "field", "hint")}
        body = json.dumps({**first, "errors": [notice]}).encode()
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
