"""Tasks: what is to be trained, how far it is, and every change of it, stored before anything is done about it.

    task = store.tasks.add(name="gpt", request={...}, key="retry-safe")
    store.tasks.move(task.id, "initializing", "preflight")       # only from where it is
    store.tasks.claim(task.id, "server-1", seconds=10)             # one driver at a time

initializing -> preflight -> queued -> running -> succeeded | failed
any live state -> stopping -> stopped;  any live state -> interrupted
interrupted, failed, stopped -> initializing (resume);  running -> queued (the group starts again)

Stored notices: a notice as columns hold it, in no language yet, and back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Literal, get_args

from sqlalchemy import Connection, func, or_, select

from crosszone.errors import InvalidError, Notice, StoreError
from crosszone.inputs.value import Value
from crosszone.store.table import MAX_NAME, SavedTable, check_name, encode_json, format_now
from crosszone.store.tables import TASK_EVENTS, TASKS

State = Literal[
    "initializing", "preflight", "queued", "running", "stopping", "succeeded", "failed", "stopped", "interrupted"
]
STATES: tuple[State, ...] = get_args(State)
LIVE: tuple[State, ...] = ("initializing", "preflight", "queued", "running", "stopping")
RESUMABLE: tuple[State, ...] = ("failed", "stopped", "interrupted")
MOVES: Mapping[State, tuple[State, ...]] = {
    "initializing": ("preflight", "failed", "stopping", "interrupted"),
    "preflight": ("queued", "failed", "stopping", "interrupted"),
    "queued": ("running", "failed", "stopping", "interrupted"),
    "running": ("succeeded", "failed", "stopping", "interrupted", "queued"),
    "stopping": ("stopped", "interrupted"),
    "succeeded": (),
    "failed": ("initializing",),
    "stopped": ("initializing",),
    "interrupted": ("initializing",),
}
MAX_EVENTS = 2_000  # Events kept of a task; the first and the newest


class TaskRow(Value):
    """What a list shows of a task."""

    id: str
    """What it is asked for by."""
    name: str
    """What the user calls it."""
    state: State
    """How far it is."""
    created: str
    """When it was created, in UTC."""
    changed: str
    """When its state changed last, in UTC."""
    attempt: int
    """How many times it was started or resumed, from 1."""
    restarts: int
    """How many times the group was started again in this attempt, after a rank had failed."""
    stop_asked: bool
    """It is to stop."""
    request: dict[str, Any]
    """What was asked for."""
    progress: dict[str, Any]
    """Step, loss, rates and nodes as last seen."""
    notice: dict[str, Any] | None
    """Why it is where it is: code and parameters of a notice; null: there is nothing to say."""


class Task(TaskRow):
    """A task with everything that is needed to go on with it."""

    key: str | None
    """Key of the request, by which the same request is known again."""
    plan: dict[str, Any] | None
    """Scenario, bundle, prediction and nodes; null: not made yet."""
    token: str | None
    """What its processes carry; null: nothing was started yet."""
    driver: str | None
    """Who drives it."""
    driven_until: float
    """Until when, seconds since 1970; then anyone may."""


class Event(Value):
    """One thing that happened to a task."""

    number: int
    """Counts from 1."""
    at: str
    """When, in UTC."""
    state: State
    """State of the task then."""
    kind: str
    """created, state, check, node, restart, resume, note."""
    about: dict[str, Any]
    """What happened."""


class Tasks(SavedTable[TaskRow, Task]):
    """All tasks."""

    table, row_type, record_type = TASKS, TaskRow, Task
    json_columns = ("request", "progress", "notice")
    packed_columns = ("plan",)

    def add(self, *, name: str, request: Mapping[str, Any], key: str | None = None) -> tuple[Task, bool]:
        """A new task, or the one that the same key made before; and whether it is new.

        `InvalidError` when the key came with another request before.
        """
        request_text = encode_json(request, "request")
        if key is not None and not 1 <= len(key) <= MAX_NAME:
            raise InvalidError(Notice(code="idempotency_key", field="Idempotency-Key", params={"limit": MAX_NAME}))
        existing = self._find_by_key(key)
        if existing is None:
            fields = {"name": check_name(name), "state": "initializing", "changed": format_now(), "key": key}
            counts = {"attempt": 1, "restarts": 0, "stop_asked": False, "driven_until": 0.0}
            try:
                task = self._insert({**fields, **counts, "request": request_text, "progress": "{}"})
            except StoreError:
                existing = self._find_by_key(key)  # the same request came twice at once
                if existing is None:
                    raise
            else:
                self.add_event(task.id, "created")
                return task, True
        if encode_json(existing.request, "request") != request_text:
            raise InvalidError(Notice(code="idempotency_other", field="Idempotency-Key", value=key))
        return existing, False

    def move(self, id: str, before: State, after: State, *, kind: str = "state", **fields: Any) -> Task | None:
        """Change a task's state, and other columns with it; None: it is not where it was thought to be, so nothing was.

        `fields` may hold token, attempt, restarts, plan, stop_asked and notice.
        """
        if after not in MOVES[before]:
            raise ValueError(f"a task cannot go from {before} to {after}")
        columns = {"state": after, "changed": format_now(), **self._encode(fields)}
        with self._access.begin_write() as connection:
            # The state it had is part of the condition, so a move that somebody else made first is not undone.
            is_unmoved = (TASKS.c.id == id) & (TASKS.c.state == before)
            if not connection.execute(TASKS.update().where(is_unmoved).values(columns)).rowcount:
                return None
            about = {"from": before, "to": after}
            if fields.get("notice"):
                about["notice"] = fields["notice"]
            _insert_event(connection, id, after, kind, about)
            return self._fetch(connection, id)

    def update_fields(self, id: str, **fields: Any) -> Task:
        """Change columns without changing the state: progress, plan, stop_asked, token."""
        return self._update(id, self._encode(fields))

    def add_event(self, id: str, kind: str, **about: Any) -> None:
        """Add an event."""
        with self._access.begin_write() as connection:
            state = connection.execute(select(TASKS.c.state).where(TASKS.c.id == id)).scalar_one()
            _insert_event(connection, id, state, kind, about)

    def list_events(self, id: str, *, after: int = 0, limit: int = 200) -> tuple[Event, ...]:
        """What happened to a task after an event, oldest first; `UnknownNameError` when there is no such task."""
        query = select(TASK_EVENTS).where(TASK_EVENTS.c.task == id, TASK_EVENTS.c.number > after)
        with self._access.begin_read() as connection:
            self._fetch(connection, id)
            rows = connection.execute(query.order_by(TASK_EVENTS.c.number).limit(limit)).mappings().all()
        return tuple(
            Event(**{key: value for key, value in row.items() if key != "task"} | {"about": json.loads(row["about"])})
            for row in rows
        )

    def list_live(self) -> tuple[Task, ...]:
        """Every task that is not at an end, oldest first."""
        query = select(TASKS).where(TASKS.c.state.in_(LIVE)).order_by(TASKS.c.created, TASKS.c.id)
        with self._access.begin_read() as connection:
            return tuple(self._read(Task, row) for row in connection.execute(query).mappings().all())

    def claim(self, id: str, driver: str, seconds: float) -> bool:
        """Become, or stay, the one who drives a task for some seconds; False: another one does."""
        now_s = time.time()  # the clock of the wall: drivers on several machines compare it
        is_claimable = or_(TASKS.c.driver.is_(None), TASKS.c.driver == driver, TASKS.c.driven_until < now_s)
        # One statement with its condition: of two drivers that ask at once only one changes the row.
        with self._access.begin_write() as connection:
            update = TASKS.update().where((TASKS.c.id == id) & is_claimable)
            return bool(connection.execute(update.values(driver=driver, driven_until=now_s + seconds)).rowcount)

    def release(self, id: str, driver: str) -> None:
        """Let go of a task, so that another one may drive it at once."""
        with self._access.begin_write() as connection:
            # Another driver may have taken over since: its claim stays.
            is_own = (TASKS.c.id == id) & (TASKS.c.driver == driver)
            connection.execute(TASKS.update().where(is_own).values(driver=None, driven_until=0.0))

    def remove(self, id: str) -> None:
        """Forget a task that is at an end; `InvalidError` for a live one."""
        task = self.get(id)
        if task.state in LIVE:
            raise InvalidError(Notice(code="task_live", field="id", value=id, params={"state": task.state}))
        with self._access.begin_write() as connection:
            connection.execute(TASK_EVENTS.delete().where(TASK_EVENTS.c.task == id))
            connection.execute(TASKS.delete().where(TASKS.c.id == id))

    def _find_by_key(self, key: str | None) -> Task | None:
        if key is None:
            return None
        with self._access.begin_read() as connection:
            row = connection.execute(select(TASKS).where(TASKS.c.key == key)).mappings().one_or_none()
        return None if row is None else self._read(Task, row)


def _insert_event(connection: Connection, id: str, state: str, kind: str, about: Mapping[str, Any]) -> None:
    """Add an event; of very many, those in the middle are forgotten."""
    of_task = TASK_EVENTS.c.task == id
    last = connection.execute(select(func.max(TASK_EVENTS.c.number)).where(of_task)).scalar_one() or 0
    event = {
        "task": id,
        "number": last + 1,
        "at": format_now(),
        "state": state,
        "kind": kind,
        "about": encode_json(about, "about"),
    }
    connection.execute(TASK_EVENTS.insert().values(event))
    if last >= MAX_EVENTS:
        middle = of_task & (TASK_EVENTS.c.number == last + 1 - MAX_EVENTS // 2)
        connection.execute(TASK_EVENTS.delete().where(middle))


def encode_notice(notice: Notice) -> dict[str, Any]:
    """A notice as plain values."""
    plain = {"code": notice.code, "field": notice.field, "value": notice.value, "level": notice.level}
    return {**plain, "params": dict(notice.params)}


def decode_notice(plain: Mapping[str, Any]) -> Notice:
    """The notice that was stored."""
    return Notice(**{key: plain[key] for key in ("code", "field", "value", "level", "params") if key in plain})
