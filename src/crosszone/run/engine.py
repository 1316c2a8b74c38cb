"""Engine: what drives tasks from state to state. It may be killed at any moment; whoever comes next goes on.

    engine = Engine(store, name="server-1", make=..., check=..., runner=...)
    engine.advance(task_id)        one step of one task: look at what is stored, act, store what comes next
    engine.run_until(stop)         all live tasks, side by side

A change is stored before it is acted on, and every act may be done again: starting a token twice starts it once. So a
task that is found in a state is simply taken up there. While a step takes long its driver stays the only one, and a
task that is told to stop leaves the step behind.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable

from crosszone.errors import CrossZoneError, InputError, MachineError, Notice, StoreError
from crosszone.run.checks import Left, Turn
from crosszone.run.metrics import Progress
from crosszone.run.runners.runner import NodeStatus, Runner
from crosszone.run.work import Work
from crosszone.store import Store
from crosszone.store.tasks import LIVE, Task, kept

LEASE_S = 15.0  # How long a driver that says nothing keeps a task
RENEW_S = LEASE_S / 5  # How often a driver whose step takes long says that it still drives
PAUSE_S = 0.5
GONE_S = 60.0  # How long a machine may be out of reach before its task counts as interrupted
LEAVE_S = 3.0  # How long a driver that is to end waits for the step it is in
MOST_AT_ONCE = 64

Make = Callable[[Task], Work]
Check = Callable[[Task, Work, Turn], list[Notice]]
Start = Callable[[Task, Work], Runner]
Port = Callable[[Task, Work], int | None]
Keep = Callable[[Task, Work, Runner], None]


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
        make: Make,
        check: Check,
        runner: Start,
        port: Port = lambda _task, _work: None,
        keep: Keep = lambda _task, _work, _runner: None,
    ) -> None:
        self.store, self.name = store, name
        self._make, self._check, self._runner, self._port, self._keep = make, check, runner, port, keep
        self._works: dict[str, tuple[tuple[int, str | None], Work]] = {}
        self._progress: dict[str, Progress] = {}
        self._unseen: dict[str, float] = {}
        self._driving: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    # --- all tasks ----------------------------------------------------------------------------------------------------

    def run_until(self, stop: threading.Event, *, only: str | None = None) -> None:
        """Drive every live task (or `only` one) that nobody else drives, each in its own thread, until told to stop."""
        while not stop.is_set():
            with contextlib.suppress(StoreError):  # it may come back
                for task in self.store.tasks.live():
                    if only in (None, task.id):
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
        """Take a task as far as it goes, or until another drives it."""
        try:
            while not stop.is_set() and self.store.tasks.claim(id, self.name, LEASE_S):
                turn = Turn(self.store, self.store.tasks.get(id))
                if not self._watched(turn, stop):
                    break
                stop.wait(PAUSE_S)
            if not self._stepping(id):
                self.store.tasks.release(id, self.name)
        except CrossZoneError:
            pass  # deleted meanwhile, or the store is away: it is taken up again when it is back
        finally:
            with self._lock:
                self._driving.pop(id, None)

    def _watched(self, turn: Turn, stop: threading.Event) -> bool:
        """Take a step beside and stay its driver; leave it when it is no longer wanted. False: go no further."""
        id, went_on = turn.task.id, [False]

        def step() -> None:
            with contextlib.suppress(CrossZoneError):
                went_on[0] = self._step(turn)

        thread = threading.Thread(target=step, name=f"step-{id}", daemon=True)
        thread.start()
        renewed = time.monotonic()
        while True:
            thread.join(PAUSE_S)
            if not thread.is_alive():
                return went_on[0]
            if stop.is_set():
                thread.join(LEAVE_S)
                turn.leave()
                return went_on[0]
            if time.monotonic() - renewed > RENEW_S:
                if not self.store.tasks.claim(id, self.name, LEASE_S):
                    turn.leave()  # we were asleep, and another took over
                    return False
                renewed = time.monotonic()
            if turn.task.state != "stopping" and self.store.tasks.get(id).stop_asked:
                turn.leave()
                return True

    def _stepping(self, id: str) -> bool:
        """A step that was left still acts; what it holds is kept from others until its time is over."""
        return any(thread.name == f"step-{id}" for thread in threading.enumerate())

    # --- one task -----------------------------------------------------------------------------------------------------

    def advance(self, id: str) -> bool:
        """Take one task one step further; False: it is at an end."""
        return self._step(Turn(self.store, self.store.tasks.get(id)))

    def _step(self, turn: Turn) -> bool:
        task = turn.task
        if task.state not in LIVE:
            self._forget(task.id)
            return False
        with contextlib.suppress(Left):
            try:
                if task.stop_asked and task.state != "stopping":
                    return turn.move("stopping") is not None
                getattr(self, f"_{task.state}")(turn)
            except InputError as error:
                self._fail(turn, error.notices[0])
            except MachineError as error:
                self._out_of_reach(turn, error.notices[0])
            except (CrossZoneError, Left):
                raise
            except Exception as error:  # a mistake of ours must not be repeated twice a second
                logging.getLogger(__name__).exception("task %s, %s", task.id, task.state)
                self._fail(turn, Notice(code="internal", params={"reason": type(error).__name__}))
        return True

    def _initializing(self, turn: Turn) -> None:
        """Decide what is done; what is left of an earlier attempt is ended first."""
        task = turn.task
        if task.token is not None and task.plan is not None:
            seen = self._runner(task, self._work(task)).stop(task.token)
            away = [one for one in seen if one.state == "unreachable"]
            if away:
                self._fail(turn, _away_notice(away[0]))
                return
            turn.note(token=None)
        work = self._make(task)
        turn.move("preflight", plan=work.model_dump(mode="json"))

    def _preflight(self, turn: Turn) -> None:
        """See whether it can be done."""
        task = turn.task
        work = self._work(task)
        errors = [notice for notice in self._check(task, work, turn) if notice.level == "error"]
        if errors and not task.request.get("policy", {}).get("ignorePreflight"):
            self._fail(turn, errors[0])
            return
        work = turn.refined or work
        turn.move("queued", token=_token(task), plan=self._with_port(task, work).model_dump(mode="json"))

    def _queued(self, turn: Turn) -> None:
        """Bring it to the machines and start it: once for the token that is stored."""
        task = turn.task
        assert task.token is not None
        runner = self._runner(task, self._work(task))
        runner.prepare()
        turn.go_on()
        runner.start(task.token)
        turn.move("running")

    def _running(self, turn: Turn) -> None:
        """See how it goes; a node that fails takes the group with it, which starts again from its last checkpoint."""
        task = turn.task
        assert task.token is not None
        runner = self._runner(task, self._work(task))
        seen = runner.poll(task.token)
        self._note_progress(turn, runner, seen)
        away = [one for one in seen if one.state == "unreachable"]
        if away:
            self._away(turn, away[0])
            return
        self._unseen.pop(task.id, None)
        failed = [one for one in seen if one.state in ("lost", "none") or (one.state == "ended" and one.code != 0)]
        failed.sort(key=lambda one: one.stopped)  # one that was told to end is not the cause
        if failed:
            turn.go_on()
            runner.stop(task.token)
            self._again(turn, failed[0], runner)
        elif all(one.state == "ended" for one in seen):
            self._keep_history(turn, runner)
            turn.move("succeeded")

    def _stopping(self, turn: Turn) -> None:
        """End everything; a task that was never started has nothing to end."""
        task = turn.task
        if task.token is not None and task.plan is not None:
            runner = self._runner(task, self._work(task))
            seen = runner.stop(task.token)
            away = [one for one in seen if one.state == "unreachable"]
            if away:
                self._away(turn, away[0])
                return
            self._note_progress(turn, runner, seen)
            self._keep_history(turn, runner)
        turn.move("stopped", stop_asked=False)

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _again(self, turn: Turn, failed: NodeStatus, runner: Runner) -> None:
        """Start the group again, or give up."""
        task = turn.task
        most = task.request.get("policy", {}).get("maxRestarts", 0)
        params = {"node": failed.number, "code": "-" if failed.code is None else failed.code}
        notice = Notice(code="task_node_failed", params={**params, "said": last_words(runner, failed)})
        if task.restarts >= most:
            self._keep_history(turn, runner)
            self._fail(turn, notice)
            return
        plan = self._with_port(task, self._work(task)).model_dump(mode="json")
        turn.tell("restart", notice=kept(notice))
        turn.move("queued", kind="restart", restarts=task.restarts + 1, token=_token(task), plan=plan)

    def _fail(self, turn: Turn, notice: Notice) -> None:
        if turn.task.state == "stopping":
            turn.move("interrupted", notice=kept(notice), stop_asked=False)
            return
        turn.move("failed", notice=kept(notice))

    def _out_of_reach(self, turn: Turn, notice: Notice) -> None:
        """A machine could not be asked: in the middle of a run that may pass, before it nothing is lost by failing."""
        if turn.task.state in ("running", "stopping"):
            self._away(turn, NodeStatus(number=0, state="unreachable", reason=notice.message()))
            return
        self._fail(turn, notice)

    def _away(self, turn: Turn, node: NodeStatus) -> None:
        """A machine is out of reach: wait, and after a while say so; a resume finds out what has become of it."""
        since = self._unseen.setdefault(turn.task.id, time.monotonic())
        if time.monotonic() - since < GONE_S:
            return
        turn.move("interrupted", notice=kept(_away_notice(node)), stop_asked=False)

    # --- what is remembered -------------------------------------------------------------------------------------------

    def _work(self, task: Task) -> Work:
        """What the task does, read once for each start."""
        start = (task.attempt, task.token)
        known = self._works.get(task.id)
        if known is None or known[0] != start:
            known = self._works[task.id] = (start, Work.model_validate(task.plan))
        return known[1]

    def _with_port(self, task: Task, work: Work) -> Work:
        """The work with a port that is free where its ranks meet: it is stored before anything is started at it."""
        port = self._port(task, work)
        return work if port == work.port else work.replace(port=port)

    def _note_progress(self, turn: Turn, runner: Runner, seen: tuple[NodeStatus, ...]) -> None:
        progress = self._progress.setdefault(turn.task.id, Progress())
        told = progress.read(runner, seen)
        if told != turn.task.progress:
            turn.note(progress=told)

    def _keep_history(self, turn: Turn, runner: Runner) -> None:
        """Put what was measured beside what was predicted; what hinders that does not change how the task ended."""
        turn.go_on()
        if not self.store.tasks.get(turn.task.id).progress.get("step"):
            return
        try:
            self._keep(turn.task, self._work(turn.task), runner)
        except MachineError as error:
            turn.tell("note", notice=kept(error.notices[0]))
        except Exception as error:
            logging.getLogger(__name__).exception("history of task %s", turn.task.id)
            turn.tell("note", notice=kept(Notice(code="internal", params={"reason": type(error).__name__})))

    def _forget(self, id: str) -> None:
        for held in (self._works, self._progress, self._unseen):
            held.pop(id, None)


def last_words(runner: Runner, node: NodeStatus, most: int = 400) -> str:
    """The end of a node's output: most often it says why."""
    try:
        _, data = runner.read(node.number, "logs/node.log", -4000, 4000)
    except MachineError:
        return node.reason or ""
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [node.reason or ""])[-1][-most:]


def _away_notice(node: NodeStatus) -> Notice:
    return Notice(code="task_node_away", params={"node": node.number, "reason": node.reason or ""})


def _token(task: Task) -> str:
    """What the processes of the next start carry: nobody can guess it, and none is used twice."""
    return f"{task.id}.{task.attempt}.{task.restarts}.{secrets.token_hex(8)}"
