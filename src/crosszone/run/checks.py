"""Outcome: what one check of a preflight found, on which environments; and how checks ask many machines at once.

Step context: one step of one task, and what it may still store: nothing once it was abandoned.

A step may wait for a machine that hangs. Whoever drives the task need not: it abandons the step, which from then on
changes nothing, and goes on with another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crosszone.errors import MachineError, Notice
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.run.machine import WAIT_S, Answer, Machine, call_each
from crosszone.run.work import TaskWork
from crosszone.store import Store
from crosszone.store.tasks import State, Task, encode_notice


class StepAbandoned(Exception):
    """The step was abandoned: whatever it was about, nobody waits for it."""


class StepContext:
    """One step of a task."""

    def __init__(self, store: Store, task: Task) -> None:
        self.task, self._store = task, store
        self.refined_work: TaskWork | None = None
        """What the task does, with what its checks have found out; None: as it was."""
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self._abandoned.set()

    @property
    def is_abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return self._abandoned.is_set()

    def require_active(self) -> None:
        """Return while it is waited for; `StepAbandoned` when not."""
        if self.is_abandoned:
            raise StepAbandoned

    def move(self, after: State, *, kind: str = "state", **fields: Any) -> Task | None:
        """Change the task's state, unless it is no longer where it was at the beginning."""
        self.require_active()
        return self._store.tasks.move(self.task.id, self.task.state, after, kind=kind, **fields)

    def update_fields(self, **fields: Any) -> Task:
        """Change other columns of the task."""
        self.require_active()
        return self._store.tasks.update_fields(self.task.id, **fields)

    def add_event(self, kind: str, **about: Any) -> None:
        """Add an event."""
        self.require_active()
        self._store.tasks.add_event(self.task.id, kind, **about)


# What ends and deletes: it is done also when nobody waits any more.
_CLEANUP_CALLS = ("supervisor.stop", "files.delete_folder")


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
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
            "notice": None if self.notice is None else encode_notice(self.notice),
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
class PreflightSubject:
    """What a preflight is about."""

    work: TaskWork
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
class GuardedMachine:
    """A machine that is asked only as long as somebody waits for the answer."""

    machine: Machine
    context: StepContext

    @property
    def name(self) -> str:
        """As `Machine.name`."""
        return self.machine.name

    def call(self, function: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """As `Machine.call`."""
        if function not in _CLEANUP_CALLS:
            self.context.require_active()
        return self.machine.call(function, payload=payload, wait_s=wait_s, **arguments)


def ask_each(ask: Callable[[str], Answer], ids: Iterable[str]) -> dict[str, Answer | MachineError]:
    """The same asked of many environments at once: each one's answer, or why there is none."""
    distinct = list(dict.fromkeys(ids))

    def answer_or_error(id: str) -> Answer | MachineError:
        try:
            return ask(id)
        except MachineError as error:
            return error

    return dict(zip(distinct, call_each(answer_or_error, distinct), strict=True))
