"""Workers: processes that do long work (planning, sweeps) beside the server, so that it stays quick for everyone.

A piece of work is a function of this package, by name, and its arguments. It is given `progress` and `cancelled`, and
answers the JSON to send. A worker keeps what plans have in common from one piece of work to the next.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from time import monotonic
from typing import Any

from crosszone.plan.search import CancelledError
from crosszone.web.refusals import refuse
from crosszone.web.worker import STOP

# Pieces of work that may wait for a worker; more are refused, so that none waits for minutes.
MOST_WAITING = 200
POLL_S = 0.05  # seconds between two checks whether to go on
# Seconds without progress after which work is taken to be more than a worker can do, and is ended.
SILENCE_S = 120.0
STOP_GRACE_S = 5.0  # Seconds a worker has to end cancelled work before it is ended itself

Job = Callable[..., bytes]
ProgressCallback = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is


@dataclass(eq=False)
class WorkItem:
    """One piece of work: what to do, and how to stop it."""

    job: Job
    arguments: tuple[Any, ...]
    progress: ProgressCallback = field(default=lambda _what, _done, _of: None)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    cancelled: threading.Event = field(default_factory=threading.Event)


class Workers:
    """So many processes, each with one piece of work at a time; started when they are first needed."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or count_cores()
        self._idle: list[WorkerProcess] = []
        self._free = asyncio.Semaphore(self.count)
        self._waiting = 0
        self._running: dict[str, WorkItem] = {}
        self._closed = False

    async def run(self, work: WorkItem) -> bytes:
        """The answer of the work; `CancelledError` when it was stopped, an `InputError` when it refuses its input."""
        if self._waiting >= MOST_WAITING:
            raise refuse(429, "too_busy", value=self._waiting)
        self._waiting += 1
        self._running[work.id] = work
        try:
            async with self._free:
                if work.cancelled.is_set():
                    raise CancelledError
                worker = self._idle.pop() if self._idle else WorkerProcess()
                try:
                    return await asyncio.to_thread(worker.do, work)
                finally:
                    self._put_back(worker)
        finally:
            self._waiting -= 1
            self._running.pop(work.id, None)

    def cancel(self, identity: str) -> bool:
        """Stop a piece of work; False: there is none of that id."""
        work = self._running.get(identity)
        if work is not None:
            work.cancelled.set()
        return work is not None

    def warm_up(self) -> None:
        """Start the processes now, so that the first plan need not wait for them."""
        self._idle += [WorkerProcess() for _ in range(self.count - len(self._idle))]

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        for work in list(self._running.values()):
            work.cancelled.set()
        for worker in self._idle:
            worker.end()
        self._idle = []

    def _put_back(self, worker: WorkerProcess) -> None:
        if self._closed or not worker.alive:
            worker.end()
        else:
            self._idle.append(worker)


def count_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerProcess:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-m", "crosszone.web.worker", str(theirs.fileno())]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        self.alive = True

    def do(self, work: WorkItem) -> bytes:
        """Do the work; called in a thread of its own."""
        try:
            self._pipe.send((work.job, work.arguments))
            return self._answer(work)
        except (EOFError, OSError):
            self.end()
            raise refuse(422, "work_died") from None

    def _answer(self, work: WorkItem) -> bytes:
        is_stopping, waited_s, last_message_s = False, 0.0, monotonic()
        while True:
            if self._pipe.poll(POLL_S):
                last_message_s = monotonic()
                kind, value = self._pipe.recv()
                if kind == "progress":
                    work.progress(*value)
                elif kind == "done":
                    return bytes(value)
                else:
                    raise value
            elif is_stopping:
                waited_s += POLL_S
                if waited_s > STOP_GRACE_S:
                    self.end()
                    raise CancelledError
            if monotonic() - last_message_s > SILENCE_S:
                self.end()
                raise refuse(422, "work_silent", seconds=int(SILENCE_S))
            if work.cancelled.is_set() and not is_stopping:
                self._pipe.send(STOP)
                is_stopping = True

    def end(self) -> None:
        """End the process."""
        self.alive = False
        with suppress(OSError):
            self._pipe.close()
        self._process.terminate()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
