"""Outcome: what one check of a preflight found, on which environments; and how checks ask many machines at once.

Turn: one step of one task, and what it may still store: nothing once it was left behind.

A turn may wait for a machine that hangs. Whoever drives the task need not: it leaves the turn, which from then on
changes nothing, and goes on with another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from crosszone.errors import MachineError, Notice
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.run.machine import WAIT_S, Machine
from crosszone.run.work import Work
from crosszone.store import Store
from crosszone.store.tasks import State, Task, kept


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


Found = TypeVar("Found")
SIDE_BY_SIDE = 32
# What ends and deletes: it is done also when nobody waits any more.
_LETS_GO = ("supervisor.stop", "files.delete_folder")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one check found."""

    check: str
    """reach, clock, disk, software, versions, gpus, data, port, link, step."""
    environments: tuple[str, ...]
    """Where, by id."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What was seen."""
    notice: Notice | None = None
    """What is wrong; None: nothing is."""

    @property
    def level(self) -> str:
        """`ok`, `note`, `warning` or `error`."""
        return "ok" if self.notice is None else self.notice.level

    def to_plain(self) -> dict[str, Any]:
        """As an event of the task holds it."""
        return {
            "check": self.check,
            "environments": list(self.environments),
            "level": self.level,
            "measured": dict(self.measured),
            "notice": None if self.notice is None else kept(self.notice),
        }


@dataclass(frozen=True, kw_only=True)
class NeededFile:
    """A file or folder that must be on every machine."""

    field: str
    """What names it: data, tokenizer, weights."""
    path: str
    bytes: int | None = None
    """Size as recorded; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a preflight is about."""

    work: Work
    environments: Mapping[str, Environment]
    """Of its nodes, by id, in their order."""
    machines: Mapping[str, Machine]
    """Those that can be asked."""
    links: tuple[MeasuredLink, ...]
    """As they were measured last."""
    files: tuple[NeededFile, ...] = ()
    fixed_port: int | None = None
    """Port that the request names."""

    @property
    def master(self) -> str:
        """Environment of the first node."""
        return self.work.nodes[0].environment


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A machine that is asked only as long as somebody waits for the answer."""

    machine: Machine
    turn: Turn

    @property
    def name(self) -> str:
        """As `Machine.name`."""
        return self.machine.name

    def call(self, function: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """As `Machine.call`."""
        if function not in _LETS_GO:
            self.turn.go_on()
        return self.machine.call(function, payload=payload, wait_s=wait_s, **arguments)


def beside(ask: Callable[[str], Found], ids: Iterable[str]) -> dict[str, Found | MachineError]:
    """The same asked of many environments at once: each one's answer, or why there is none."""
    each = list(dict.fromkeys(ids))

    def answer(id: str) -> Found | MachineError:
        try:
            return ask(id)
        except MachineError as error:
            return error

    with ThreadPoolExecutor(max_workers=max(1, min(SIDE_BY_SIDE, len(each)))) as pool:
        return dict(zip(each, pool.map(answer, each), strict=True))
