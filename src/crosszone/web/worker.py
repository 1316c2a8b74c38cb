"""Worker: a process that does one piece of long work after another, started by `workers`."""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from crosszone.errors import CrossZoneError
from crosszone.plan.search import CancelledError

log = logging.getLogger("crosszone.web")

STOP = "stop"  # sent to a worker whose work is no longer wanted


def run_worker(pipe: Connection) -> None:
    """What a worker process does: one piece of work after the other until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends its workers itself
    from crosszone.web.jobs import preload_data

    preload_data()
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        if message == STOP:  # came after the work it was meant for had ended
            continue
        job, arguments = message
        stopped = False

        def cancelled() -> bool:
            nonlocal stopped
            if not stopped and pipe.poll():
                with suppress(EOFError):  # the server is gone
                    pipe.recv()
                stopped = True
            return stopped

        def progress(what: str, done: int, of: int) -> None:
            pipe.send(("progress", (what, done, of)))

        answer: tuple[str, Any]
        try:
            answer = ("done", job(*arguments, progress=progress, cancelled=cancelled))
        except (CrossZoneError, CancelledError) as error:
            answer = ("failed", error)
        except Exception as error:
            log.exception("%s failed", job.__name__)
            answer = ("failed", RuntimeError(type(error).__name__))
        try:
            pipe.send(answer)
        except (BrokenPipeError, OSError):
            return


if __name__ == "__main__":
    run_worker(Connection(int(sys.argv[1])))
