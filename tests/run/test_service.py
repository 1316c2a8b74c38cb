"""The service: what page, API and command line ask of training, with real processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from crosszone.errors import InvalidError, MachineError, Notice, UnknownNameError
from crosszone.inputs.dataset import Dataset, DatasetVersion
from crosszone.inputs.environment import Environment
from crosszone.inputs.value import parse
from crosszone.run import engine as driving
from crosszone.run import preflight
from crosszone.run import service as serving_module
from crosszone.run.remote.supervisor import find_processes, send_signal
from crosszone.run.request import TaskRequest
from crosszone.run.service import Service
from crosszone.run.work import Trial
from crosszone.store import open_store
from crosszone.store.tasks import LIVE
from effort import mostly_long
from run.test_engine import work as scripts
from waiting import wait_until


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


def filled(store, tmp_path, zones=("beijing-a", "shenzhen-c", "shanghai-a"), gpus=(2, 4, 8)):
    """The environments of the example: 3 nodes, 14 GPUs, 112 cores, 896 GB, 3 zones."""
    regions = {"beijing-a": "cn-beijing", "shenzhen-c": "cn-shenzhen", "shanghai-a": "cn-shanghai"}
    for number, (zone, count) in enumerate(zip(zones, gpus, strict=True)):
        environment = Environment(
            name=f"e{number}", zone=zone, region=regions[zone], gpu="a100-80gb-sxm", gpus=count, cpus=8 * count,
            memory_gb=64.0 * count, address=f"10.0.{number}.1", workdir=str(tmp_path / "work"), runner="local",
        )  # fmt: skip
        store.environments.add(environment, id=f"env-{number}")
    store.datasets.add(Dataset(name="d", versions=(DatasetVersion(id="v1"),)), id="ds")


def request_for(*ids, **more) -> TaskRequest:
    where = {"nodeIds": list(ids), "masterNode": ids[0] if ids else None, "framework": "pytorch-ddp"}
    fields = {"taskName": "t", "datasetId": "ds", "datasetVersionId": "v1", "modelId": "llama-3.2-1b"}
    return parse(TaskRequest, {**fields, "distributedConfig": where, **more})


@pytest.fixture
def service(store, tmp_path, starts, monkeypatch):
    """A service whose tasks run plain scripts, one for each environment of the request."""
    filled(store, tmp_path)
    service = Service(store, home=tmp_path)

    def quick(checked, links, language):
        doing = scripts(starts, nodes=len(checked.environments), pause=service.pause, ends=service.ends)
        return doing.replace(environments=checked.environments)

    service.pause, service.ends = 0.02, ()
    monkeypatch.setattr(serving_module, "plan_work", quick)
    monkeypatch.setattr(serving_module, "run_preflight", lambda *_, **__: [])
    return service


class Driven:
    """An engine in a thread, as a server has it."""

    def __init__(self, service):
        self.stop = threading.Event()
        self.thread = threading.Thread(target=service.get_engine().run_until, args=(self.stop,))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


def counts(starts):
    """How often each node was started."""
    return [len(file.read_text().split()) for file in sorted(starts.iterdir())]


def until(service, id, *states):
    def reached():
        state = service.store.tasks.get(id).state
        return state in states or (not states and state not in LIVE)

    wait_until(reached)
    return service.store.tasks.get(id)


# --- before a task ----------------------------------------------------------------------------------------------------


def test_the_summary_of_the_example(store, tmp_path):
    filled(store, tmp_path)
    chosen = Service(store).choose(request_for("env-0", "env-1", "env-2", taskName="", datasetId=""), "zh")
    together = chosen.selection
    assert (together.nodes, together.gpus, together.cpus, together.memory_gb) == (3, 14, 112, 896)
    assert len(together.zones) == 3
    assert (chosen.master, chosen.framework, chosen.strategy) == ("env-0", "ddp", {"dp": 14, "pp": 1, "tp": 1})
    assert chosen.step_time_s["low"] < chosen.step_time_s["expected"] < chosen.step_time_s["high"]
    assert chosen.slowdown > 1
    notice = next(notice for notice in chosen.notices if notice["code"] == "task_cross_zone")
    assert f"{chosen.slowdown:.4g}" in notice["message"]


def test_the_master_follows_what_is_chosen(store, tmp_path):
    filled(store, tmp_path)
    service = Service(store)

    def master(ids, preferred):
        return service.choose(
            parse(TaskRequest, {"distributedConfig": {"nodeIds": ids, "masterNode": preferred}}), "en"
        ).master

    assert master(["env-1", "env-0"], None) == "env-1"
    assert master(["env-1", "env-0"], "env-0") == "env-0"
    assert master(["env-1"], "env-0") == "env-1"
    assert master([], "env-0") is None


def test_why_there_is_no_prediction_is_said(store, tmp_path):
    filled(store, tmp_path)
    service = Service(store)
    chosen = service.choose(request_for("env-0", "env-9"), "en")
    assert (chosen.step_time_s, chosen.selection.nodes) == (None, 1)
    assert [notice["code"] for notice in chosen.notices] == ["task_unknown"]
    chosen = service.choose(request_for("env-0", modelId="no-such-model"), "en")
    assert chosen.step_time_s is None
    assert chosen.notices
    assert service.choose(request_for("env-0", modelId=""), "en").notices == ()
    for id in ("env-0", "env-1"):
        store.environments.change(id, store.environments.get(id).value.replace(region=None))
    (notice,) = service.choose(request_for("env-0", "env-1"), "en").notices
    assert notice["code"] == "task_link_unknown"
    assert "env-0" in notice["hint"]


# --- environments -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_probe_stores_what_the_machine_says_and_one_that_is_away_is_unreachable(store, tmp_path):
    service = Service(store, home=tmp_path)
    store.environments.add(Environment(name="here", zone="z", runner="local", workdir=str(tmp_path)), id="here")
    probed = service.probe("here").value
    assert (probed.status, probed.cpus) == ("running", probed.facts["cpus"])
    assert store.environments.get("here").value == probed
    away = Environment(name="away", zone="z", runner="ssh", address="127.0.0.1", ssh_port=1)
    store.environments.add(away, id="away")
    with pytest.raises(MachineError) as refused:
        service.probe("away")
    assert refused.value.notices[0].code == "machine_unreachable"
    assert store.environments.get("away").value.status == "unreachable"


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_a_request_that_comes_twice_makes_one_task(service):
    first, checked, new = service.create(request_for("env-0"), key="k")
    again, _, second = service.create(request_for("env-0"), key="k")
    assert (new, second, again.id) == (True, False, first.id)
    assert checked.master == "env-0"
    with pytest.raises(InvalidError) as refused:
        service.create(request_for("env-1"), key="k")
    assert refused.value.notices[0].code == "idempotency_other"


def test_a_request_is_refused_before_anything_is_stored(service):
    with pytest.raises(InvalidError) as refused:
        service.create(request_for("env-0", taskName=" "))
    assert refused.value.notices[0].code == "task_name_missing"
    assert service.store.tasks.page().total == 0


@pytest.mark.slow
def test_a_task_from_its_creation_to_its_removal(service, tmp_path, monkeypatch):
    saved_ids = []
    monkeypatch.setattr(service, "_save_history", lambda task, work, runner: saved_ids.append(task.id))
    task, _, _ = service.create(request_for("env-0", "env-1"))
    with Driven(service):
        ended = until(service, task.id)
    assert (ended.state, ended.progress["step"], saved_ids) == ("succeeded", 5, [task.id])
    files = service.list_logs(task.id)
    assert [(log.node, log.environment, log.name) for log in files] == [
        (0, "env-0", "logs/node.log"),
        (1, "env-1", "logs/node.log"),
    ]
    assert [row["step"] for row in service.read_metrics(task.id)] == [1, 2, 3, 4, 5]
    assert [row["step"] for row in service.read_metrics(task.id, after=3)] == [4, 5]
    assert service.stop(task.id).state == "succeeded"
    with pytest.raises(InvalidError) as refused:
        service.resume(task.id)
    assert refused.value.notices[0].code == "task_not_resumable"
    folder = tmp_path / "work" / "tasks" / task.id
    assert folder.exists()
    service.remove(task.id)
    assert not folder.exists()
    with pytest.raises(UnknownNameError):
        service.list_logs(task.id)


@pytest.mark.slow
def test_a_log_is_read_in_parts(service):
    service.ends = ("printf 'ein Wort, 一个词\\n'; exit 0",)
    task, _, _ = service.create(request_for("env-0"))
    with Driven(service):
        until(service, task.id, "succeeded")
    text, offset, parts = "", 0, 0
    while True:
        part = service.read_log(task.id, node=0, name="logs/node.log", offset=offset, max_bytes=4)
        text, parts = text + part.text, parts + 1
        if part.next == part.size:
            break
        assert part.next > offset
        offset = part.next
    assert text == "ein Wort, 一个词\n"
    assert parts > 4
    assert service.read_log(task.id, node=0, name="logs/node.log", offset=-4).text == "词\n"
    for node, name in (
        (0, "bundle/nodes/000.sh"),
        (0, "logs/../bundle/nodes/000.sh"),
        (0, "/etc/passwd"),
        (7, "logs/x"),
    ):
        with pytest.raises(UnknownNameError):
            service.read_log(task.id, node=node, name=name)


@pytest.mark.slow
def test_a_stopped_task_goes_on_where_it_was_when_resumed(service):
    service.pause = 600
    task, _, _ = service.create(request_for("env-0", "env-1"))
    with Driven(service):
        running = until(service, task.id, "running")
        with pytest.raises(InvalidError) as refused:
            service.remove(task.id)
        assert refused.value.notices[0].code == "task_live"
        wait_until(lambda: service.store.tasks.get(task.id).progress.get("step"))
        assert service.stop(task.id).stop_asked
        stopped = until(service, task.id, "stopped")
        assert find_processes(running.token) == []
        again = service.resume(task.id)
        assert (again.state, again.attempt, again.notice, again.stop_asked) == ("initializing", 2, None, False)
        resumed = until(service, task.id, "running")
        assert resumed.token != stopped.token
        assert resumed.plan["bundle"] == running.plan["bundle"]
        service.stop(task.id)
        until(service, task.id, "stopped")
    kinds = [event.kind for event in service.store.tasks.list_events(task.id)]
    assert kinds.count("resume") == 1


@pytest.mark.slow
def test_what_an_interrupted_attempt_left_running_is_ended_before_the_next(service, starts):
    service.pause = 600
    task, _, _ = service.create(request_for("env-0", "env-1"))
    with Driven(service):
        old = until(service, task.id, "running")
        wait_until(lambda: counts(starts) == [1, 1])
    assert len(find_processes(old.token)) > 0
    service.store.tasks.move(task.id, "running", "interrupted")
    service.resume(task.id)
    with Driven(service):
        assert until(service, task.id, "running").token != old.token
        assert find_processes(old.token) == []
        wait_until(lambda: counts(starts) == [2, 2])
        service.stop(task.id)
        until(service, task.id, "stopped")
    assert counts(starts) == [2, 2]


@pytest.mark.slow
def test_a_task_can_be_stopped_in_the_middle_of_a_preflight_that_hangs(service, monkeypatch):
    entered, go, abandoned = threading.Event(), threading.Event(), threading.Event()

    def hangs(*_, **__):
        entered.set()
        go.wait()
        abandoned.set()
        return [Notice(code="task_name_missing")]

    monkeypatch.setattr(serving_module, "run_preflight", hangs)
    task, _, _ = service.create(request_for("env-0"))
    with Driven(service):
        assert entered.wait()
        service.stop(task.id)
        assert until(service, task.id).state == "stopped"
        go.set()
        assert abandoned.wait()
        assert service.store.tasks.get(task.id).state == "stopped"


@pytest.mark.slow
def test_a_driver_keeps_its_task_through_a_long_step(service, store, tmp_path, monkeypatch):
    monkeypatch.setattr(driving, "LEASE_S", 3.0)  # a renewal every 0.3 s may be late by some, on a busy machine
    monkeypatch.setattr(driving, "RENEW_S", 0.3)
    who = []

    def slow(*_, **__):
        who.append(threading.current_thread().name)
        time.sleep(7)
        return []

    monkeypatch.setattr(serving_module, "run_preflight", slow)
    other = Service(store, home=tmp_path)
    task, _, _ = service.create(request_for("env-0"))
    with Driven(service), Driven(other):
        assert until(service, task.id).state == "succeeded"
    assert len(who) == 1


@pytest.mark.slow
def test_an_error_of_our_own_ends_a_task_with_a_notice(service, monkeypatch):
    monkeypatch.setattr(serving_module, "run_preflight", lambda *_, **__: 1 / 0)
    task, _, _ = service.create(request_for("env-0"))
    with Driven(service):
        ended = until(service, task.id)
    assert (ended.state, ended.notice["code"]) == ("failed", "internal")


@pytest.mark.slow
def test_a_port_that_was_taken_meanwhile_is_changed_for_the_next_start(service, starts, monkeypatch):
    import socket

    service.ends = ("sleep 0.3; exit 7", "sleep 600")
    task, _, _ = service.create(request_for("env-0", "env-1", policy={"maxRestarts": 2}))
    first = None
    with Driven(service):
        first = until(service, task.id, "running").plan["port"]
        with socket.create_server(("0.0.0.0", first)):
            ended = until(service, task.id)
    assert ended.state == "failed"
    assert first is not None
    assert ended.plan["port"] not in (None, first)


@pytest.mark.slow
@pytest.mark.parametrize("state", mostly_long(["initializing", "preflight", "running", "stopping"], "running"))
def test_a_server_that_is_killed_loses_nothing(store, tmp_path, starts, state):
    """A process drives; it is killed in a state; another drives to the end."""
    filled(store, tmp_path)
    script = Path(__file__).with_name("killed_driver.py")
    task, _, _ = Service(store).create(request_for("env-0", "env-1"))
    words = [sys.executable, str(script), str(tmp_path), str(starts)]
    environment = {**os.environ, "PYTHONPATH": str(script.parents[1])}
    driver = subprocess.Popen([*words, state], env=environment)
    try:
        while store.tasks.get(task.id).state != state:
            if state == "stopping" and store.tasks.get(task.id).state == "running":
                store.tasks.update_fields(task.id, stop_asked=True)
            time.sleep(0.02)
        time.sleep(0.3)
        assert store.tasks.get(task.id).state == state
    finally:
        driver.kill()
        driver.wait()
    after = subprocess.Popen([*words, "none"], env=environment)
    try:
        service = Service(store)
        ended = until(service, task.id)
        assert ended.state == ("stopped" if state == "stopping" else "succeeded"), str(ended.notice)
        assert counts(starts) == [1, 1]
        assert find_processes(ended.token) == []
    finally:
        after.kill()
        after.wait()


@pytest.mark.slow
def test_preflight_stops_a_launch_unless_it_is_told_not_to(service, monkeypatch):
    monkeypatch.undo()
    service.pause = 0.01
    monkeypatch.setattr(serving_module, "plan_work", lambda checked, *_: _scripts_of(checked))
    task, _, _ = service.create(request_for("env-0"))
    ignoring, _, _ = service.create(request_for("env-0", policy={"ignorePreflight": True}))

    def _scripts_of(checked):
        return scripts(Path(service.home) / "starts", nodes=1).replace(environments=checked.environments)

    def band(id, *_):
        predicted = {"low": 0.1, "expected": 0.1, "high": 0.1}
        return Trial(environment=id, step_s=9.0, predicted=predicted, speed=1.0, steps=1, layers=1, micro_batches=1)

    monkeypatch.setattr(preflight, "run_trial", band)
    with Driven(service):
        failed, ran = until(service, task.id), until(service, ignoring.id)
    assert failed.state == "failed"
    assert failed.notice["code"].startswith("preflight_")
    assert failed.notice["params"]["machine"] == "env-0"
    assert ran.state == "succeeded"
    checks = [event.about for event in service.store.tasks.list_events(ignoring.id) if event.kind == "check"]
    assert "error" in {check["level"] for check in checks}
