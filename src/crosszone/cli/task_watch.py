"""Watching a task: what happens to it, its steps measured beside predicted, and its end; driven here if nobody does.

with driven(service, id):
    ...
watched(service, id)
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from crosszone.cli.output import label, open_console, print_json

if TYPE_CHECKING:
    from crosszone.run.service import Service
    from crosszone.store.tasks import Task

LOOK_S = 1.0
# How long the end waits for a step of the driver; one that is cut off is done again by whoever comes next.
END_S = 5.0


@contextmanager
def drive_meanwhile(service: Service, id: str) -> Iterator[None]:
    """Drive one task meanwhile, unless another does; it goes on by itself afterwards."""
    stop = threading.Event()
    drive = service.engine().run_until
    thread = threading.Thread(target=drive, args=(stop,), kwargs={"only": id}, name="driver", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(END_S)


def wait_for_end(service: Service, id: str) -> Task:
    """The task when it has come to an end; it is driven there."""
    from crosszone.store.tasks import LIVE

    with drive_meanwhile(service, id):
        while (task := service.store.tasks.get(id)).state in LIVE:
            time.sleep(LOOK_S / 4)
    return task


def watch_task(service: Service, id: str, *, drive: bool = True, as_json: bool = False) -> None:
    """Show a task until it ends; exit status 1 unless it succeeded."""
    from contextlib import nullcontext

    from crosszone.cli.task_view import TaskView

    service.store.tasks.get(id)
    try:
        with drive_meanwhile(service, id) if drive else nullcontext():
            view = TaskView(service, id, quiet=as_json, live=sys.stdout.isatty() and not as_json)
            task = view.show_until_end()
    except KeyboardInterrupt:
        if not as_json:
            open_console(stderr=True).print(label("task_left", id=id), soft_wrap=True)
        raise
    if as_json:
        from crosszone.cli.task_view import read_comparison
        from crosszone.cli.tasks import dump_task

        twin = read_comparison(service, id)
        print_json({**dump_task(task), "twin": None if twin is None else twin.model_dump(mode="json")})
    if task.state != "succeeded":
        raise typer.Exit(1)
