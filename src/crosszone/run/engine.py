"""Engine: what drives tasks from state to state. It may be killed at any moment; whoever comes next goes on.

    engine = Engine(store, name="server-1", make=..., check=..., runner=...)
    engine.advance(task_id)        one step of one task: look at what is stored, act, store what comes next
    engine.run_until(stop)         all live tasks, side by side

A change is stored before it is acted on, and every act may be done again: starting a token twice starts it once. So a
task that is found in a state is simply taken up there. While a step takes long its driver stays the only one, and a
task that is told to stop leaves the step behind: it may hang on a machine, and from then on changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from crosszone.errors import CrossZoneError, InputError, MachineError, Notice, StoreError
from crosszone.run.metrics import RunProgress
from crosszone.run.runners.runner import NodeStatus, Runner
from crosszone.run.work import TaskWork
from crosszone.store import Store
from crosszone.store.tasks import LIVE, State, Task, encode_notice

LEASE_S = 15.0  # How long a driver that says nothing keeps a task
RENEW_S = LEASE_S / 5  # How often a driver whose step takes long says that it still drives
PAUSE_S = 0.5
UNREACHABLE_S = 60.0  # How long a machine may be out of reach before its task counts as interrupted
LEAVE_S = 3.0  # How long a driver that is to end waits for the step it is in
MAX_DRIVEN_TASKS = 64


class StepAbandoned(Exception):
    """The step was abandoned and may change nothing any more."""


class StepContext:
    """One step of one task, and what it may still store: nothing once it was abandoned."""

    def __init__(self, store: Store, task: Task) -> None:
        self.task, self._store = task, store
        self.refined_work: TaskWork | None = None
        """What the task does, with what its checks have found out; None: as it was."""
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """Stop waiting for the step: from now on it changes nothing."""
        self._abandoned.set()

    @property
    def is_abandoned(self) -> bool:
        """The step was abandoned."""
        return self._abandoned.is_set()

    def require_active(self) -> None:
        """Raise `StepAbandoned` where the step was abandoned."""
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


MakeWork = Callable[[Task], TaskWork]
RunPreflight = Callable[[Task, TaskWork, StepContext], list[Notice]]
MakeRunner = Callable[[Task, TaskWork], Runner]
ChoosePort = Callable[[Task, TaskWork], int | None]
SaveHistory = Callable[[Task, TaskWork, Runner], None]


class Engine:
    """Drives tasks.

    make    decides what a task does
    check   its preflight: what is wrong; it tells each outcome itself
    runner  starts it
    port    a port that is free where its ranks meet, the one it has if that is; None: the bundle's own will do
    keep    puts what a run has measured into the history; called again for the same run it does nothing
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        make: MakeWork,
        check: RunPreflight,
        runner: MakeRunner,
        port: ChoosePort = lambda _task, _work: None,
        keep: SaveHistory = lambda _task, _work, _runner: None,
    ) -> None:
        self.store, self.name = store, name
        self._make_work, self._run_preflight, self._make_runner = make, check, runner
        self._choose_port, self._save_history = port, keep
        self._works: dict[str, tuple[tuple[int, str | None], TaskWork]] = {}
        self._progress: dict[str, RunProgress] = {}
        self._unseen: dict[str, float] = {}
        self._driving: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    # --- all tasks ----------------------------------------------------------------------------------------------------

    def run_until(self, stop: threading.Event, *, only: str | None = None) -> None:
        """Drive every live task (or `only` one) that nobody else drives, each in its own thread, until told to stop."""
        while not stop.is_set():
            with contextlib.suppress(StoreError):  # it may come back
                for task in self.store.tasks.list_live():
                    if only in (None, task.id):
                        self._begin(task.id, stop)
            stop.wait(PAUSE_S)
        for thread in list(self._driving.values()):
            thread.join()

    def _begin(self, id: str, stop: threading.Event) -> None:
        with self._lock:
            if id in self._driving or len(self._driving) >= MAX_DRIVEN_TASKS:
                return
            thread = threading.Thread(target=self._drive, args=(id, stop), name=f"task-{id}", daemon=True)
            self._driving[id] = thread
        thread.start()

    def _drive(self, id: str, stop: threading.Event) -> None:
        """Take a task as far as it goes, or until another drives it."""
        try:
            while not stop.is_set() and self.store.tasks.claim(id, self.name, LEASE_S):
                context = StepContext(self.store, self.store.tasks.get(id))
                if not self._run_step(context, stop):
                    break
                stop.wait(PAUSE_S)
            if not self._is_stepping(id):
                self.store.tasks.release(id, self.name)
        except CrossZoneError:
            pass  # deleted meanwhile, or the store is away: it is taken up again when it is back
        finally:
            with self._lock:
                self._driving.pop(id, None)

    def _run_step(self, context: StepContext, stop: threading.Event) -> bool:
        """Take a step in another thread and renew the lease meanwhile; abandon it on a stop. False: go no further."""
        id, is_unfinished = context.task.id, [False]

        def take_step() -> None:
            with contextlib.suppress(CrossZoneError):
                is_unfinished[0] = self._take_step(context)

        thread = threading.Thread(target=take_step, name=f"step-{id}", daemon=True)
        thread.start()
        renewed = time.monotonic()
        while True:
            thread.join(PAUSE_S)
            if not thread.is_alive():
                return is_unfinished[0]
            if stop.is_set():
                thread.join(LEAVE_S)
                context.abandon()
                return is_unfinished[0]
            if time.monotonic() - renewed > RENEW_S:
                if not self.store.tasks.claim(id, self.name, LEASE_S):
                    context.abandon()  # we were asleep, and another took over
                    return False
                renewed = time.monotonic()
            if context.task.state != "stopping" and self.store.tasks.get(id).stop_asked:
                context.abandon()
                return True

    def _is_stepping(self, id: str) -> bool:
        """An abandoned step still runs: the lease is then kept until it expires."""
        return any(thread.name == f"step-{id}" for thread in threading.enumerate())

    # --- one task -----------------------------------------------------------------------------------------------------

    def advance(self, id: str) -> bool:
        """Take one task one step further; False: it is at an end."""
        return self._take_step(StepContext(self.store, self.store.tasks.get(id)))

    def _take_step(self, context: StepContext) -> bool:
        task = context.task
        if task.state not in LIVE:
            self._drop_caches(task.id)
            return False
        with contextlib.suppress(StepAbandoned):
            try:
                if task.stop_asked and task.state != "stopping":
                    return context.move("stopping") is not None
                getattr(self, f"_handle_{task.state}")(context)
            except InputError as error:
                self._mark_failed(context, error.notices[0])
            except MachineError as error:
                self._handle_machine_error(context, error.notices[0])
            except (CrossZoneError, StepAbandoned):
                raise
            except Exception as error:  # a mistake of ours must not be repeated twice a second
                logging.getLogger(__name__).exception("task %s, %s", task.id, task.state)
                self._mark_failed(context, _make_internal_notice(error))
        return True

    def _handle_initializing(self, context: StepContext) -> None:
        """Plan the work, after ending what an earlier attempt has left."""
        task = context.task
        if task.token is not None and task.plan is not None:
            unreachable = find_unreachable(self._open_runner(task).stop(task.token))
            if unreachable is not None:
                self._mark_failed(context, make_away_notice(unreachable))
                return
            context.update_fields(token=None)
        work = self._make_work(task)
        context.move("preflight", plan=work.model_dump(mode="json"))

    def _handle_preflight(self, context: StepContext) -> None:
        """Run the preflight; errors fail the task unless its policy ignores them."""
        task = context.task
        work = self._load_work(task)
        errors = [notice for notice in self._run_preflight(task, work, context) if notice.level == "error"]
        if errors and not task.request.get("policy", {}).get("ignorePreflight"):
            self._mark_failed(context, errors[0])
            return
        work = context.refined_work or work
        context.move("queued", token=_make_token(task), plan=self._choose_free_port(task, work).model_dump(mode="json"))

    def _handle_queued(self, context: StepContext) -> None:
        """Copy the bundle to the machines and start it, once for the stored token."""
        task = context.task
        assert task.token is not None
        runner = self._open_runner(task)
        runner.prepare()
        context.require_active()
        runner.start(task.token)
        context.move("running")

    def _handle_running(self, context: StepContext) -> None:
        """Poll the nodes; where one has failed all are stopped and start again from the last checkpoint."""
        task = context.task
        assert task.token is not None
        runner = self._open_runner(task)
        statuses = runner.poll(task.token)
        self._update_progress(context, runner, statuses)
        unreachable = find_unreachable(statuses)
        if unreachable is not None:
            self._wait_for_node(context, unreachable)
            return
        self._unseen.pop(task.id, None)
        failed = [
            status
            for status in statuses
            if status.state in ("lost", "none") or (status.state == "ended" and status.code != 0)
        ]
        if failed:
            context.require_active()
            runner.stop(task.token)
            # a node that was told to end is not the cause
            self._restart_or_fail(context, min(failed, key=lambda status: status.stopped), runner)
        elif all(status.state == "ended" for status in statuses):
            self._record_history(context, runner)
            context.move("succeeded")

    def _handle_stopping(self, context: StepContext) -> None:
        """Stop all nodes; a task that was never started has none."""
        task = context.task
        if task.token is not None and task.plan is not None:
            runner = self._open_runner(task)
            statuses = runner.stop(task.token)
            unreachable = find_unreachable(statuses)
            if unreachable is not None:
                self._wait_for_node(context, unreachable)
                return
            self._update_progress(context, runner, statuses)
            self._record_history(context, runner)
        context.move("stopped", stop_asked=False)

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _restart_or_fail(self, context: StepContext, failed: NodeStatus, runner: Runner) -> None:
        """Start the group again, or give up."""
        task = context.task
        max_restarts = task.request.get("policy", {}).get("maxRestarts", 0)
        params = {"node": failed.number, "code": "-" if failed.code is None else failed.code}
        notice = Notice(code="task_node_failed", params={**params, "said": find_error_line(runner, failed)})
        if task.restarts >= max_restarts:
            self._record_history(context, runner)
            self._mark_failed(context, notice)
            return
        plan = self._choose_free_port(task, self._load_work(task)).model_dump(mode="json")
        context.add_event("restart", notice=encode_notice(notice))
        context.move("queued", kind="restart", restarts=task.restarts + 1, token=_make_token(task), plan=plan)

    def _mark_failed(self, context: StepContext, notice: Notice) -> None:
        if context.task.state == "stopping":
            context.move("interrupted", notice=encode_notice(notice), stop_asked=False)
            return
        context.move("failed", notice=encode_notice(notice))

    def _handle_machine_error(self, context: StepContext, notice: Notice) -> None:
        """A machine could not be asked: wait for it during a run; before a run the task fails."""
        if context.task.state in ("running", "stopping"):
            self._wait_for_node(context, NodeStatus(number=0, state="unreachable", reason=notice.message()))
            return
        self._mark_failed(context, notice)

    def _wait_for_node(self, context: StepContext, node: NodeStatus) -> None:
        """Wait for a machine that is out of reach; after `UNREACHABLE_S` the task is interrupted and can be resumed."""
        since = self._unseen.setdefault(context.task.id, time.monotonic())
        if time.monotonic() - since < UNREACHABLE_S:
            return
        context.move("interrupted", notice=encode_notice(make_away_notice(node)), stop_asked=False)

    # --- what is remembered -------------------------------------------------------------------------------------------

    def _load_work(self, task: Task) -> TaskWork:
        """The work of the task, parsed once for each start."""
        start = (task.attempt, task.token)
        cached = self._works.get(task.id)
        if cached is None or cached[0] != start:
            cached = self._works[task.id] = (start, TaskWork.model_validate(task.plan))
        return cached[1]

    def _open_runner(self, task: Task) -> Runner:
        return self._make_runner(task, self._load_work(task))

    def _choose_free_port(self, task: Task, work: TaskWork) -> TaskWork:
        """The work with a port that is free on its first node; it is stored before anything starts there."""
        port = self._choose_port(task, work)
        return work if port == work.port else work.replace(port=port)

    def _update_progress(self, context: StepContext, runner: Runner, statuses: tuple[NodeStatus, ...]) -> None:
        progress = self._progress.setdefault(context.task.id, RunProgress())
        state = progress.read(runner, statuses)
        if state != context.task.progress:
            context.update_fields(progress=state)

    def _record_history(self, context: StepContext, runner: Runner) -> None:
        """Save the measured figures; an error here is an event and does not change how the task ended."""
        context.require_active()
        if not self.store.tasks.get(context.task.id).progress.get("step"):
            return
        try:
            self._save_history(context.task, self._load_work(context.task), runner)
        except MachineError as error:
            context.add_event("note", notice=encode_notice(error.notices[0]))
        except Exception as error:
            logging.getLogger(__name__).exception("history of task %s", context.task.id)
            context.add_event("note", notice=encode_notice(_make_internal_notice(error)))

    def _drop_caches(self, id: str) -> None:
        for cache in (self._works, self._progress, self._unseen):
            cache.pop(id, None)


def find_error_line(runner: Runner, node: NodeStatus, max_characters: int = 400) -> str:
    """The last line of a node's output that names an error, else its last line."""
    try:
        _, data = runner.read(node.number, "logs/node.log", -4000, 4000)
    except MachineError:
        return node.reason or ""
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [node.reason or ""])[-1][-max_characters:]


def find_unreachable(statuses: Iterable[NodeStatus]) -> NodeStatus | None:
    """The first node whose machine does not answer."""
    return next((status for status in statuses if status.state == "unreachable"), None)


def _make_internal_notice(error: Exception) -> Notice:
    return Notice(code="internal", params={"reason": type(error).__name__})


def make_away_notice(node: NodeStatus) -> Notice:
    """That a node is out of reach."""
    return Notice(code="task_node_away", params={"node": node.number, "reason": node.reason or ""})


def _make_token(task: Task) -> str:
    """A new token for the processes of the next start; it cannot be guessed."""
    return f"{task.id}.{task.attempt}.{task.restarts}.{secrets.token_hex(8)}"
