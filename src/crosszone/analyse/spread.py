"""Spread: many cells worked out at once, on all cores of this machine or on Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any
from uuid import uuid4

from crosszone.analyse.cell import Cell, Cells, Point
from crosszone.errors import CrossZoneError, InputError, InvalidError, Notice
from crosszone.plan.search import CancelledError, Progress

Cancelled = Callable[[], bool]
Chunk = tuple[int, Sequence[Point]]
"""Place of the first of some points that lie beside each other, and these points."""
CHUNKS = 8
"""Chunks for each worker, so that none waits long for the last one."""
LARGEST = 64
"""Points of a chunk."""
WORTH = 16
"""Points below which starting processes takes longer than it saves."""
LOOK_S = 0.1
"""Seconds between two questions whether to go on."""
STOPS_S = 5.0
"""Seconds after its pipe broke until a process has ended."""
CORES, RAY = "cores", "ray"


def spread(
    cells: Cells,
    points: Sequence[Point],
    *,
    on: str = CORES,
    workers: int | None = None,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
) -> list[Cell]:
    """The cells of all points, in their order; `CancelledError` when asked to stop, and no process is left behind."""
    if on not in (CORES, RAY) and not on.startswith("ray://"):
        params = {"allowed": [CORES, RAY, "ray://HOST:PORT"], "nearest": CORES}
        raise InvalidError(Notice(code="not_one_of", field="on", value=on, params=params))
    if workers is not None and workers < 1:
        raise InvalidError(Notice(code="must_be_at_least", field="workers", value=workers, params={"limit": 1}))
    count = workers or _cores()
    if on == CORES and (count == 1 or len(points) < 2 or (workers is None and len(points) < WORTH)):
        return _here(cells, points, progress, cancelled)
    if on == CORES:
        done = _on_cores(cells, points, count, cancelled)
    else:
        done = _on_ray(cells, points, None if on == RAY else on, workers, cancelled)
    found: dict[int, list[Cell]] = {}
    for at, some in done:
        found[at] = some
        if progress is not None:
            progress("sweeping", sum(map(len, found.values())), len(points))
    return [cell for _, some in sorted(found.items()) for cell in some]


def _chunks(points: Sequence[Point], count: int) -> list[Chunk]:
    """Points beside each other, in pieces for so many workers."""
    size = max(1, min(LARGEST, -(-len(points) // (CHUNKS * count))))
    return [(at, points[at : at + size]) for at in range(0, len(points), size)]


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _here(cells: Cells, points: Sequence[Point], progress: Progress | None, cancelled: Cancelled | None) -> list[Cell]:
    """In this process."""
    found: list[Cell] = []
    for start in range(0, len(points), LARGEST):
        for cell in cells.several(points[start : start + LARGEST], cancelled):
            found.append(cell)
            if progress is not None:
                progress("sweeping", len(found), len(points))
            if cancelled is not None and cancelled():
                raise CancelledError
    return found


def _on_cores(
    cells: Cells, points: Sequence[Point], count: int, cancelled: Cancelled | None
) -> Iterator[tuple[int, list[Cell]]]:
    """In processes of their own, each given the next chunk when it is done with one."""
    waiting = _chunks(points, count)[::-1]
    with _workers(cells, min(count, len(waiting))) as workers:
        busy = dict.fromkeys(workers, True)
        for pipe in workers:
            _send(pipe, workers[pipe], waiting.pop())
        while any(busy.values()):
            if cancelled is not None and cancelled():
                raise CancelledError
            ready = wait([pipe for pipe in workers if busy[pipe]], LOOK_S)
            for pipe in [pipe for pipe in workers if pipe in ready]:
                try:
                    answer = pipe.recv()
                except (EOFError, OSError) as error:
                    raise _died(workers[pipe]) from error
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
                busy[pipe] = bool(waiting)
                if waiting:
                    _send(pipe, workers[pipe], waiting.pop())


def _send(pipe: Connection, worker: Any, chunk: Chunk) -> None:
    try:
        pipe.send(chunk)
    except OSError as error:
        raise _died(worker) from error


def _died(worker: Any) -> CrossZoneError:
    """That a process is gone, with its exit status."""
    worker.join(STOPS_S)
    return CrossZoneError(Notice(code="sweep_worker_died", value=worker.exitcode))


@contextmanager
def _workers(cells: Cells, count: int) -> Iterator[dict[Connection, Any]]:
    """Processes that work out cells, by the pipe to each; all are ended on the way out, whatever happened."""
    context = get_context("spawn")  # a fork would copy the threads' locks, but not the threads
    found: dict[Connection, Any] = {}
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(theirs, cells), daemon=True)
            worker.start()
            theirs.close()
            found[ours] = worker
        yield found
    finally:
        for pipe, worker in found.items():
            pipe.close()
            worker.terminate()
        for worker in found.values():
            worker.join()
            worker.close()


def _serve(pipe: Connection, cells: Cells) -> None:
    """Answer chunks until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            at, points = pipe.recv()
            try:
                answer: Any = (at, list(cells.several(points)))
            except Exception as error:
                answer = error
            pipe.send(answer)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, in the middle of a chunk too."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


_kept: dict[str, Cells] = {}
"""On a worker of Ray: what it works on, so that neighbouring chunks share what they have in common."""


def _on_worker(cells: Cells, name: str, chunk: Chunk) -> tuple[int, list[Cell]]:
    """A chunk on a worker of Ray; `name` is that of the sweep, for a worker may live longer."""
    if name not in _kept:
        _kept.clear()
        _kept[name] = cells
    at, points = chunk
    return at, list(_kept[name].several(points))


def _on_ray(
    cells: Cells, points: Sequence[Point], address: str | None, count: int | None, cancelled: Cancelled | None
) -> Iterator[tuple[int, list[Cell]]]:
    """As tasks of a Ray cluster: the one that is connected, the one at the address, or one started on this machine."""
    ray = _ray()
    ours = not ray.is_initialized()
    own = {"num_cpus": count, "include_dashboard": False}  # not whatever cluster happens to run on this machine
    if ours:
        how: dict[str, Any] = {"address": address} if address else {"address": "local", **own}
        try:
            ray.init(log_to_driver=False, logging_level="warning", **how)
        except (OSError, RuntimeError, ValueError) as error:
            why = str(error).partition("\n")[0]
            raise InputError(Notice(code="ray_unreachable", field="on", value=address, params={"why": why})) from error
    running: list[Any] = []
    try:
        work, task, name = ray.put(cells), ray.remote(_on_worker), uuid4().hex
        chunks = _chunks(points, count or int(ray.cluster_resources().get("CPU", 1)))
        running = [task.remote(work, name, chunk) for chunk in chunks]
        while running:
            if cancelled is not None and cancelled():
                raise CancelledError
            ready, running = ray.wait(running, timeout=LOOK_S)
            for one in ready:
                try:
                    yield ray.get(one)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                except ray.exceptions.RayError as error:
                    raise CrossZoneError(Notice(code="sweep_worker_died", value=str(error)[:200])) from error
    finally:
        for one in running:
            ray.cancel(one, force=True)
        if ours:
            ray.shutdown()


def _ray() -> Any:
    """The library, which is an extra."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise InputError(Notice(code="ray_missing", field="on", value=RAY)) from error
