"""Engine: what drives tasks from state to state. It may be killed at any moment; whoever comes next goes on.

    engine = Engine(store, name="server-1")
    engine.advance(task_id)        one step of one task: look at what is stored, act, store what comes next
    engine.run_until(stop)         all live tasks, side by side

A change is stored before it is acted on, and every act may be done again: starting a token twice starts it once. So a
task that is found in a state is simply taken up there.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from crosszone.errors import CrossZoneError, InputError, MachineError, Notice
from crosszone.run.progress import Progress
from crosszone.run.runners.runner import Runner, Sight
from crosszone.run.work import Work
from crosszone.store import Store
from crosszone.store.tasks import LIVE, Task

LEASE_S = 15.0
"""How long a driver that says nothing keeps a task."""
PAUSE_S = 0.5
GONE_S = 60.0
"""How long a machine may be out of reach before its task counts as interrupted."""
MOST_AT_ONCE = 64

Make = Callable[[Task], Work]
Check = Callable[[Task, Work], list[Notice]]
Start = Callable[[Task, Work], Runner]


class Engine:
    """Drives tasks; `make` decides what a task does, `check` is its preflight, `runner` starts it."""

    def __init__(self, store: Store, *, name: str, make: Make, check: Check, runner: Start) -> None:
        self.store, self.name = store, name
        self._make, self._check, self._runner = make, check, runner
        self._works: dict[str, tuple[int, Work]] = {}
        self._progress: dict[str, Progress] = {}
        self._unseen: dict[str, float] = {}
        self._driving: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    # --- all tasks ----------------------------------------------------------------------------------------------------

    def run_until(self, stop: threading.Event) -> None:
        """Drive every live task that nobody else drives, each in a thread of its own, until told to stop."""
        while not stop.is_set():
            for task in self.store.tasks.live():
                self._begin(task.id, stop)
            stop.wait(PAUSE_S)
        for thread in list(self._driving.values()):
            thread.join()

    def _begin(self, id: str, stop: threading.Event) -> None:
        with self._lock:
            if id in self._driving or len(self._driving) >= MOST_AT_ONCE:
                return
            thread = threading.Thread(target=self._drive, args=(id, stop), name=f"task-{id}", daemon=True)
            self._driving[id] = thread
        thread.start()

    def _drive(self, id: str, stop: threading.Event) -> None:
        try:
            while not stop.is_set() and self.store.tasks.claim(id, self.name, LEASE_S):
                if not self.advance(id):
                    break
                stop.wait(PAUSE_S)
        finally:
            with contextlib.suppress(CrossZoneError):
                self.store.tasks.release(id, self.name)
            with self._lock:
                self._driving.pop(id, None)

    # --- one task -----------------------------------------------------------------------------------------------------

    def advance(self, id: str) -> bool:
        """Take one task one step further; False: it is at an end."""
        task = self.store.tasks.get(id)
        if task.state not in LIVE:
            self._forget(id)
            return False
        if task.stop_asked and task.state != "stopping":
            return self.store.tasks.move(id, task.state, "stopping") is not None
        try:
            getattr(self, f"_{task.state}")(task)
        except InputError as error:
            self._fail(task, error.notices[0])
        except MachineError as error:
            self._out_of_reach(task, error.notices[0])
        return True

    def _initializing(self, task: Task) -> None:
        """Decide what is done."""
        work = self._make(task)
        self.store.tasks.move(task.id, "initializing", "preflight", plan=work.model_dump(mode="json"))

    def _preflight(self, task: Task) -> None:
        """See whether it can be done."""
        problems = self._check(task, self._work(task))
        for notice in problems:
            self.store.tasks.tell(task.id, "check", notice=_kept(notice))
        errors = [notice for notice in problems if notice.level == "error"]
        if errors and not task.request.get("policy", {}).get("ignorePreflight"):
            self._fail(task, errors[0])
            return
        self.store.tasks.move(task.id, "preflight", "queued", token=_token(task))

    def _queued(self, task: Task) -> None:
        """Bring it to the machines and start it: once for the token that is stored."""
        assert task.token is not None
        runner = self._runner(task, self._work(task))
        runner.prepare()
        runner.start(task.token)
        self.store.tasks.move(task.id, "queued", "running")

    def _running(self, task: Task) -> None:
        """See how it goes; a node that fails takes the group with it, which starts again from its last checkpoint."""
        assert task.token is not None
        runner = self._runner(task, self._work(task))
        seen = runner.look(task.token)
        self._note_progress(task, runner, seen)
        away = [one for one in seen if one.state == "unreachable"]
        if away:
            self._away(task, away[0])
            return
        self._unseen.pop(task.id, None)
        failed = [one for one in seen if one.state in ("lost", "none") or (one.state == "ended" and one.code != 0)]
        if failed:
            runner.stop(task.token)
            self._again(task, failed[0], runner)
        elif all(one.state == "ended" for one in seen):
            self.store.tasks.move(task.id, "running", "succeeded")

    def _stopping(self, task: Task) -> None:
        """End everything; a task that was never started has nothing to end."""
        if task.token is not None and task.plan is not None:
            runner = self._runner(task, self._work(task))
            seen = runner.stop(task.token)
            away = [one for one in seen if one.state == "unreachable"]
            if away:
                self._away(task, away[0])
                return
            self._note_progress(task, runner, seen)
        self.store.tasks.move(task.id, "stopping", "stopped", stop_asked=False)

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _again(self, task: Task, failed: Sight, runner: Runner) -> None:
        """Start the group again, or give up."""
        most = task.request.get("policy", {}).get("maxRestarts", 0)
        params = {"node": failed.number, "code": "-" if failed.code is None else failed.code}
        notice = Notice(code="task_node_failed", params={**params, "said": last_words(runner, failed)})
        if task.restarts >= most:
            self._fail(task, notice)
            return
        self.store.tasks.tell(task.id, "restart", notice=_kept(notice))
        fields = {"restarts": task.restarts + 1, "token": _token(task)}
        self.store.tasks.move(task.id, "running", "queued", kind="restart", **fields)

    def _fail(self, task: Task, notice: Notice) -> None:
        if task.state == "stopping":
            self.store.tasks.move(task.id, "stopping", "interrupted", notice=_kept(notice), stop_asked=False)
            return
        self.store.tasks.move(task.id, task.state, "failed", notice=_kept(notice))

    def _out_of_reach(self, task: Task, notice: Notice) -> None:
        """A machine could not be asked: in the middle of a run that may pass, before it nothing is lost by failing."""
        if task.state in ("running", "stopping"):
            self._away(task, Sight(number=0, state="unreachable", reason=notice.message()))
            return
        self._fail(task, notice)

    def _away(self, task: Task, node: Sight) -> None:
        """A machine is out of reach: wait, and after a while say so; a resume finds out what has become of it."""
        since = self._unseen.setdefault(task.id, time.monotonic())
        if time.monotonic() - since < GONE_S:
            return
        notice = Notice(code="task_node_away", params={"node": node.number, "reason": node.reason or ""})
        self.store.tasks.move(task.id, task.state, "interrupted", notice=_kept(notice), stop_asked=False)

    # --- what is remembered -------------------------------------------------------------------------------------------

    def _work(self, task: Task) -> Work:
        """What the task does, read once for each attempt."""
        known = self._works.get(task.id)
        if known is None or known[0] != task.attempt:
            known = self._works[task.id] = (task.attempt, Work.model_validate(task.plan))
        return known[1]

    def _note_progress(self, task: Task, runner: Runner, seen: tuple[Sight, ...]) -> None:
        progress = self._progress.setdefault(task.id, Progress())
        told = progress.read(runner, seen)
        if told != task.progress:
            self.store.tasks.note(task.id, progress=told)

    def _forget(self, id: str) -> None:
        for held in (self._works, self._progress, self._unseen):
            held.pop(id, None)


def last_words(runner: Runner, node: Sight, most: int = 400) -> str:
    """The end of a node's output: most often it says why."""
    try:
        _, data = runner.read(node.number, "logs/node.log", -4000, 4000)
    except MachineError:
        return node.reason or ""
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [node.reason or ""])[-1][-most:]


def _token(task: Task) -> str:
    """What the processes of the next start carry: nobody can guess it, and none is used twice."""
    return f"{task.id}.{task.attempt}.{task.restarts}.{secrets.token_hex(8)}"


def _kept(notice: Notice) -> Mapping[str, Any]:
    """A notice as it is stored: in no language yet."""
    plain = {"code": notice.code, "field": notice.field, "value": notice.value, "level": notice.level}
    return {**plain, "params": dict(notice.params)}
