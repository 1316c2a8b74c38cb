"""A bar on standard error for work that takes long enough to look at one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crosszone.cli.output import console, said

if TYPE_CHECKING:
    from rich.progress import TaskID

PATIENCE_S = 0.5  # Seconds before a bar is drawn: a quick answer needs none

Progress = Callable[[str, int, int], None]  # What is being done, how much of it is, and of how much


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Something to tell progress to; None where nobody looks at a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress as Bar

    bar = Bar(console=console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}
    began = time.monotonic()

    def advance(what: str, done: int, of: int) -> None:
        if time.monotonic() - began < PATIENCE_S:
            return
        if not tasks:
            bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(said(f"progress_{what}"))
        bar.update(tasks[what], completed=done, total=of)

    try:
        yield advance
    finally:
        if tasks:
            bar.stop()
