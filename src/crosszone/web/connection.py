"""A connection to the server: what it asks must arrive in time and be HTTP."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from crosszone.errors import Notice

# Seconds until a request's line and headers are there; a connection that sends them more slowly is closed.
HEAD_S = 20.0


class Connection(H11Protocol):
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
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._forget()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Say that this was not HTTP, in the shape of every error."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is under way
            self.transport.close()
            return
        told = Notice(code="not_http", params={"reason": msg.rstrip(".")}).as_dict()
        first = {key: told[key] for key in ("code", "message", "field", "hint")}
        body = json.dumps({**first, "errors": [told]}).encode()
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
