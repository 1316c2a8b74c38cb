"""The engine with real processes: a task goes through its states, and whoever takes it up finds the truth."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from crosszone.deploy.bundle import Bundle, BundleFile
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.inputs.environment import Environment
from crosszone.run import engine as driving
from crosszone.run.engine import Engine
from crosszone.run.machine import Local
from crosszone.run.remote.supervisor import find_processes, send_signal
from crosszone.run.runners.supervised import SupervisedRunner
from crosszone.run.work import TaskWork, WorkNode
from crosszone.store import open_store
from waiting import PAUSE_S, wait_until

pytestmark = pytest.mark.slow
STEPS = """#!/usr/bin/env bash
echo "$CROSSZONE_TOKEN" >> "$STARTS/{number}"
mkdir -p out
[ -e out/metrics-stage-0.jsonl ] || echo '{{"lanes": []}}' >> out/metrics-stage-0.jsonl
for step in 1 2 3 4 5; do
  echo "{{\\"step\\": $step, \\"start_s\\": $step, \\"end_s\\": $step.5, \\"loss\\": $((9 - step)), \\"tokens_per_s\\": 100}}" >> out/metrics-stage-0.jsonl
  sleep {pause}
done
{end}
"""


def work(starts: Path, *, nodes: int = 2, pause: float = 0.01, ends: tuple[str, ...] = ()) -> TaskWork:
    """A bundle of plain scripts that write metrics."""
    scripts = [STEPS.format(number=n, pause=pause, end=ends[n] if n < len(ends) else "exit 0") for n in range(nodes)]
    files = [
        BundleFile(path=f"nodes/{n:03d}.sh", text=text.replace("$STARTS", str(starts)))
        for n, text in enumerate(scripts)
    ]
    bundle = Bundle(
        name="b", framework="ddp", launcher="nodes", template=False, world_size=nodes, port=1, nodes=(), how=(),
        options=(), files=tuple(files), warnings=(),
    )  # fmt: skip
    places = [
        WorkNode(number=n, environment=f"env-{n}", script=f"nodes/{n:03d}.sh", ranks=(str(n),), address="127.0.0.1")
        for n in range(nodes)
    ]
    return TaskWork(scenario="", bundle=bundle, prediction={}, slowdown=None, nodes=tuple(places))


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/saved.db") as opened:
        yield opened
        for task in opened.tasks.list_live():
            if task.token:
                send_signal(find_processes(task.token), signal.SIGKILL)


@pytest.fixture
def starts(tmp_path):
    folder = tmp_path / "starts"
    folder.mkdir()
    return folder


def made(store, tmp_path, doing: TaskWork, *, name: str = "engine", check=None, make=None) -> Engine:
    places = {node.environment: Environment(name="e", zone="z", workdir=str(tmp_path / "w")) for node in doing.nodes}

    def runner(task, work):
        machines = {id: Local(name=id) for id in places}
        return SupervisedRunner(task=task.id, work=work, environments=places, machines=machines, port=1)

    return Engine(store, name=name, make=make or (lambda task: doing), check=check or (lambda *_: []), runner=runner)


def task_of(store, **policy) -> str:
    return store.tasks.add(name="t", request={"policy": policy})[0].id


def advanced(engine: Engine, id: str, *, to: str | None = None):
    """Drive a task until a state, or to its end."""
    while True:
        task = engine.store.tasks.get(id)
        if task.state == to or (to is None and not engine.advance(id)):
            return task
        if to is not None:
            engine.advance(id)
        time.sleep(PAUSE_S)


def states(store, id: str) -> list[str]:
    return [event.about["to"] for event in store.tasks.list_events(id) if "to" in event.about]


def counted(starts: Path) -> list[int]:
    return [len(file.read_text().split()) for file in sorted(starts.iterdir())]


def test_a_task_runs_to_its_end(store, tmp_path, starts):
    id = task_of(store)
    task = advanced(made(store, tmp_path, work(starts)), id)
    assert states(store, id) == ["preflight", "queued", "running", "succeeded"]
    assert (task.progress["step"], task.progress["loss"], task.progress["first_loss"]) == (5, 4, 8)
    assert task.progress["step_s"] == pytest.approx(0.5)
    assert [node["code"] for node in task.progress["nodes"]] == [0, 0]
    assert counted(starts) == [1, 1]
    assert find_processes(task.token) == []


@pytest.mark.parametrize("state", ["initializing", "preflight", "queued", "running", "stopping"])
def test_whoever_comes_next_goes_on(store, tmp_path, starts, state):
    """A new engine at every step, as after a kill, and one that had acted but not yet stored what comes next."""
    id = task_of(store)
    doing = work(starts, pause=0.2)
    for number in range(200):
        engine = made(store, tmp_path, doing, name=f"engine-{number}")
        task = store.tasks.get(id)
        if task.state == state:
            before = store.tasks.get(id)
            if state == "stopping" or not engine._works:
                move = store.tasks.move
                store.tasks.move = lambda *_, **__: None  # killed before it was stored
                engine.advance(id)
                store.tasks.move = move
            assert store.tasks.get(id).state == before.state
        if state == "stopping" and task.state == "running":
            store.tasks.update_fields(id, stop_asked=True)
        if not made(store, tmp_path, doing, name=f"next-{number}").advance(id):
            break
        time.sleep(0.1)
    task = store.tasks.get(id)
    assert task.state == ("stopped" if state == "stopping" else "succeeded"), str(task.notice)
    assert counted(starts) == [1, 1]


def test_nodes_that_share_a_machine_end_by_themselves(store, tmp_path, starts):
    """The first to end ends nothing of the others."""
    id = task_of(store)
    task = advanced(made(store, tmp_path, work(starts, nodes=3, ends=("exit 0", "sleep 1", "sleep 1; exit 0"))), id)
    assert task.state == "succeeded", str(task.notice)
    assert [node["code"] for node in task.progress["nodes"]] == [0, 0, 0]


def test_a_rank_that_fails_takes_the_group_with_it_which_starts_again(store, tmp_path, starts):
    same = f"""[ "$(cat {starts}/0 | wc -l)" = "$(cat {starts}/1 | wc -l)" ]"""
    both = f"while ! {same}; do sleep 0.05; done; [ $(wc -l < {starts}/0) -ge 3 ] && exit 0"
    ends = (f"{both}; echo 'error: a bad rank'; exit 7", f"{both}; sleep 600")
    id = task_of(store, maxRestarts=5)
    task = advanced(made(store, tmp_path, work(starts, ends=ends)), id)
    assert (task.state, task.restarts) == ("succeeded", 2)
    assert counted(starts) == [3, 3]
    notices = [event.about["notice"] for event in store.tasks.list_events(id) if "notice" in event.about]
    assert notices[0]["params"]["said"] == "error: a bad rank"
    tokens = {token for file in starts.iterdir() for token in file.read_text().split()}
    assert len(tokens) == 3
    assert [find_processes(token) for token in tokens] == [[]] * 3


def test_after_its_last_restart_a_task_has_failed_and_may_be_resumed(store, tmp_path, starts):
    id = task_of(store, maxRestarts=1)
    engine = made(store, tmp_path, work(starts, ends=("exit 7", "sleep 600")))
    task = advanced(engine, id)
    assert (task.state, task.restarts) == ("failed", 1)
    assert task.notice["code"] == "task_node_failed"
    store.tasks.move(id, "failed", "initializing", attempt=task.attempt + 1, restarts=0, notice=None)
    again = advanced(made(store, tmp_path, work(starts)), id)
    assert (again.state, again.attempt, again.notice) == ("succeeded", 2, None)


@pytest.mark.parametrize("state", ["initializing", "preflight", "queued", "running"])
def test_a_task_can_be_stopped_in_any_state(store, tmp_path, starts, state):
    id = task_of(store)
    engine = made(store, tmp_path, work(starts, pause=600))
    advanced(engine, id, to=state)
    if state == "running":
        wait_until(lambda: len(counted(starts)) == 2)
    store.tasks.update_fields(id, stop_asked=True)
    task = advanced(engine, id)
    assert (task.state, task.stop_asked) == ("stopped", False)
    assert task.token is None or find_processes(task.token) == []


def test_what_cannot_be_made_or_checked_fails_with_its_reason(store, tmp_path, starts):
    def refuses(_):
        raise InvalidError(Notice(code="task_name_missing", field="taskName"))

    id = task_of(store)
    assert advanced(made(store, tmp_path, work(starts), make=refuses), id).notice["code"] == "task_name_missing"
    wrong = Notice(code="machine_port_taken", params={"machine": "m", "address": "a", "port": 1, "reason": "r"})
    id = task_of(store)
    task = advanced(made(store, tmp_path, work(starts), check=lambda *_: [wrong]), id)
    assert (task.state, task.notice["code"]) == ("failed", "machine_port_taken")
    id = task_of(store, ignorePreflight=True)
    assert advanced(made(store, tmp_path, work(starts), check=lambda *_: [wrong]), id).state == "succeeded"


def test_a_machine_that_goes_away_interrupts_and_one_that_comes_back_does_not(store, tmp_path, starts, monkeypatch):
    monkeypatch.setattr(driving, "UNREACHABLE_S", 0.6)
    away = threading.Event()

    class Fickle(Local):
        def call(self, what, **more):
            if away.is_set():
                raise MachineError(Notice(code="machine_unreachable", params={"machine": "m", "reason": "gone"}))
            return super().call(what, **more)

    doing = work(starts, pause=0.3)
    engine = made(store, tmp_path, doing)
    places = {node.environment: Environment(name="e", zone="z", workdir=str(tmp_path / "w")) for node in doing.nodes}
    machines = {id: Fickle(name=id) for id in places}
    engine._make_runner = lambda task, work: SupervisedRunner(
        task=task.id, work=work, environments=places, machines=machines, port=1
    )
    id = task_of(store)
    advanced(engine, id, to="running")
    away.set()
    engine.advance(id)
    away.clear()
    assert advanced(engine, id).state == "succeeded"
    id = task_of(store)
    advanced(engine, id, to="running")
    away.set()
    task = advanced(engine, id)
    assert (task.state, task.notice["code"]) == ("interrupted", "task_node_away")


def test_twenty_tasks_side_by_side_and_two_engines_never_drive_the_same(store, tmp_path, starts):
    doing = work(starts, nodes=1, pause=0.05)
    ids = [task_of(store) for _ in range(20)]
    stop = threading.Event()
    engines = [made(store, tmp_path, doing, name=f"engine-{n}") for n in range(2)]
    threads = [threading.Thread(target=engine.run_until, args=(stop,)) for engine in engines]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: not store.tasks.list_live())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [store.tasks.get(id).state for id in ids] == ["succeeded"] * 20
    assert counted(starts) == [20]
