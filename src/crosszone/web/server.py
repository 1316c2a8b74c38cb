"""The server: one process on this machine, `crosszone serve`."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import uvicorn

from crosszone.errors import Notice, ServeError
from crosszone.inputs.document import read_text
from crosszone.web.app import create_app


def run(*, host: str, port: int, file: str | None = None, started: Callable[[str], None] = print) -> None:
    """Serve the page and the API until interrupted; `file` is a scenario to open first.

    `started` is told the address. `FileError` when the file cannot be read, `ServeError` when the port cannot be had.
    """
    path = Path(file) if file is not None else None
    if path is not None:
        read_text(path)
    app = create_app(path)
    with _bound(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}"
        started(address)
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens on the port."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        code = "port_taken" if error.errno == errno.EADDRINUSE else "port_refused"
        params = {"host": host, "other": port + 1 if port < 65535 else 8000, "reason": error.strerror or str(error)}
        raise ServeError(Notice(code=code, value=port, params=params)) from None
    return listener
