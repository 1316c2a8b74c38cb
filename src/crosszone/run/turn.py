"""Turn: one step of one task, and what it may still store: nothing once it was left behind.

A turn may wait for a machine that hangs. Whoever drives the task need not: it leaves the turn, which from then on
changes nothing, and goes on with another.
"""

from __future__ import annotations

import threading
from typing import Any

from crosszone.run.work import Work
from crosszone.store import Store
from crosszone.store.tasks import State, Task


class Left(Exception):
    """The turn was left behind: whatever it was about, nobody waits for it."""


class Turn:
    """One step of a task."""

    def __init__(self, store: Store, task: Task) -> None:
        self.task, self._store = task, store
        self.refined: Work | None = None
        """What the task does, with what its checks have found out; None: as it was."""
        self._gone = threading.Event()

    def leave(self) -> None:
        """Nobody waits for it any more."""
        self._gone.set()

    @property
    def left(self) -> bool:
        """Nobody waits for it any more."""
        return self._gone.is_set()

    def go_on(self) -> None:
        """Return while it is waited for; `Left` when not."""
        if self.left:
            raise Left

    def move(self, after: State, *, kind: str = "state", **fields: Any) -> Task | None:
        """Change the task's state, unless it is no longer where it was at the beginning."""
        self.go_on()
        return self._store.tasks.move(self.task.id, self.task.state, after, kind=kind, **fields)

    def note(self, **fields: Any) -> Task:
        """Change other columns of the task."""
        self.go_on()
        return self._store.tasks.note(self.task.id, **fields)

    def tell(self, kind: str, **about: Any) -> None:
        """Add an event."""
        self.go_on()
        self._store.tasks.tell(self.task.id, kind, **about)
