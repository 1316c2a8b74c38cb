"""A task on a real Ray through its job server; and the files of nodes that are known only by what they say."""

from __future__ import annotations

import re
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from crosszone.errors import InvalidError, MachineError
from crosszone.inputs.dataset import Dataset
from crosszone.inputs.environment import Environment
from crosszone.inputs.value import parse
from crosszone.run.engine import Engine
from crosszone.run.machine import BOOT
from crosszone.run.request import RegisteredEntries, TaskRequest, check_request
from crosszone.run.runners import ray as running
from crosszone.run.runners.runner import LogReportedNode, build_start_files, drop_shared_metrics
from crosszone.run.service import make_runner
from crosszone.run.work import build_work
from crosszone.store import open_store
from deploy.test_slurm import free_ports
from run.test_engine import advanced, states, work
from run.test_slurm_task import STUB, started
from waiting import wait_until

RAY = ROOT / ".venv-ray"
SERVER = (RAY / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages" / "aiohttp").exists()
with_ray = [
    pytest.mark.cluster,
    pytest.mark.skipif(not (RAY / "bin" / "ray").exists() or not SERVER, reason=".venv-ray has no ray[default]"),
]


# --- nodes that speak -------------------------------------------------------------------------------------------------


def spoken(folder: Path, doing, *, number: int = 0, **more) -> subprocess.Popen:
    """A node started as a scheduler starts it."""
    for file in doing.bundle.files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_text(file.text)
    for path, data in build_start_files(doing, "tok", 29_502, sys.executable).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    assert BOOT in (folder / f"speak/{number:03d}.sh").read_text()
    words = ["bash", f"speak/{number:03d}.sh", "10.0.0.1"]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True, **more)


@pytest.mark.slow
def test_a_node_that_speaks_tells_its_log_its_metrics_and_its_end(tmp_path):
    (tmp_path / "starts").mkdir()
    end = 'echo "at $MASTER_ADDR:$MASTER_PORT"; mkdir -p "$PET_LOG_DIR/0"; printf "no end" > "$PET_LOG_DIR/0/stderr.log"; exit 3'
    node = spoken(tmp_path, work(tmp_path / "starts", nodes=1, ends=(end,)))
    node_report = LogReportedNode.from_lines(node.communicate(timeout=60)[0].splitlines())
    assert node.returncode == 3
    assert node_report.files["logs/node.log"].decode() == "at 10.0.0.1:29502\n"
    assert node_report.files["logs/ranks/0/stderr.log"] == b"no end\n"
    assert node_report.files["bundle/out/metrics-stage-0.jsonl"].count(b'"step"') == 5
    status = node_report.status(0, is_live=False)
    assert (status.state, status.code, status.stopped) == ("ended", 3, False)
    assert node_report.read("logs/node.log", 3, 4) == ({"size": 18, "offset": 3}, b"10.0")


@pytest.mark.slow
def test_a_node_that_speaks_ends_when_it_is_told_to(tmp_path):
    (tmp_path / "starts").mkdir()
    node = spoken(tmp_path, work(tmp_path / "starts", nodes=1, pause=600))
    wait_until((tmp_path / "starts" / "0").exists)
    node.terminate()
    node_report = LogReportedNode.from_lines(node.communicate(timeout=60)[0].splitlines())
    assert node_report.status(0, is_live=False).stopped


def test_metrics_of_a_shared_folder_count_once():
    name = "bundle/out/metrics-stage-0.jsonl"
    nodes = drop_shared_metrics(
        [LogReportedNode({name: b"a", "logs/node.log": b"x"}), LogReportedNode({name: b"a", "logs/node.log": b"y"})]
    )
    assert [sorted(status.files) for status in nodes] == [[name, "logs/node.log"], ["logs/node.log"]]


def test_a_node_that_said_nothing_starts_or_is_lost():
    assert LogReportedNode().status(0, is_live=True).state == "starting"
    assert LogReportedNode(state={"state": "running"}).status(0, is_live=True).state == "running"
    assert LogReportedNode(state={"state": "running"}).status(0, is_live=False).state == "lost"


# --- Ray --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A head with a job server and a token of its own; its folder holds the stub of torchrun."""
    folder = tmp_path_factory.mktemp("ray")
    for name in ("stubs", "starts", "home"):
        (folder / name).mkdir()
    (folder / "stubs" / "torchrun").write_text(STUB)
    (folder / "stubs" / "torchrun").chmod(0o755)
    port, board = free_ports(2)
    log, token = folder / "head.log", secrets.token_hex(32)
    env = {"PATH": f"{folder}/stubs:{RAY}/bin:/usr/bin:/bin", "HOME": str(folder / "home"), "PYTHONUNBUFFERED": "1"}
    env |= {"STARTS": str(folder / "starts"), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    env |= {"RAY_USAGE_STATS_ENABLED": "0"}
    command = [RAY / "bin" / "ray", "start", "--head", "--block", f"--port={port}", "--num-cpus=4", "--num-gpus=4"]
    command += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={board}"]
    command += ["--object-store-memory=80000000", "--log-color=false"]
    with log.open("wb") as to:
        process = subprocess.Popen(command, env=env, stdout=to, stderr=to, start_new_session=True)
    try:
        wait_until(lambda: "Ray runtime started" in log.read_text())
        address = re.search(r"Local node IP: (\S+)", log.read_text())[1]
        yield folder, f"http://127.0.0.1:{board}", token, address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def starts(head, monkeypatch):
    folder, server, token, _ = head
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", server)
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    monkeypatch.setattr("crosszone.run.runners.runner.FRESH_S", 0.2)
    for old in (folder / "starts").iterdir():
        old.unlink()
    return folder / "starts"


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/saved.db") as opened:
        yield opened


def engine_of(store, address: str) -> Engine:
    """Two nodes on the one machine: by its address and by its name."""
    fields = {"runner": "ray", "gpu": "a100-80gb-sxm", "gpus": 2, "nic_gbps": 100, "zone": "a", "python": "python3"}
    places = {
        "first": Environment(name="first", address=address, **fields),
        "second": Environment(name="second", address=socket.gethostname(), **fields),
    }
    registered = RegisteredEntries(
        environments=places, datasets={"d": Dataset(name="d", versions=({"id": "v"},))}, models={}
    )

    def make(task):
        return build_work(check_request(parse(TaskRequest, task.request), registered), (), "en")

    def runner(task, work):
        return make_runner(task, work, work.environments, {}, 29_503)

    return Engine(store, name="engine", make=make, check=lambda *_: [], runner=runner)


def task_of(store, **changes) -> str:
    where = {"nodeIds": ["first", "second"], "masterNode": "first", "framework": "pytorch-ddp"}
    fields = {"taskName": "t", "datasetId": "d", "datasetVersionId": "v", "modelId": "gpt2-small"}
    request = {**fields, "distributedConfig": where, "job": {"seq_len": 128, "steps": 3}, **changes}
    return store.tasks.add(name="t", request=request)[0].id


class TestRay:
    pytestmark = with_ray

    def test_a_task_runs_to_its_end_and_a_token_starts_once(self, store, head, starts):
        id = task_of(store)
        engine = engine_of(store, head[3])
        advanced(engine, id, to="queued")
        move, store.tasks.move = store.tasks.move, lambda *_, **__: None  # killed before it was stored
        engine.advance(id)
        store.tasks.move = move
        task = advanced(engine_of(store, head[3]), id)
        assert task.state == "succeeded", str(task.notice)
        assert states(store, id) == ["preflight", "queued", "running", "succeeded"]
        assert started(starts) == {"0": 1, "1": 1}
        assert [node["code"] for node in task.progress["nodes"]] == [0, 0]
        assert task.progress["step"] == 3
        runner = engine._make_runner(task, engine._load_work(task))
        for number in range(2):
            for name in ("logs/node.log", "logs/ranks/0/stdout.log"):
                _, data = runner.read(number, name, 0, 1000)
                assert f"rank of node {number} meets at {head[3]}:29503" in data.decode()
        runner.clean()
        assert {status.state for status in runner.poll(task.token)} == {"none"}

    @pytest.mark.long
    def test_a_machine_that_ray_chooses_tells_the_nodes_where_they_meet(self, store, head, starts):
        allocation = [{"zone": "a", "gpu": "a100-80gb-sxm", "nodes": 1, "gpus_per_node": 2}]
        where = {"framework": "pytorch-ddp"}
        id = task_of(store, launchMode="new", allocation=allocation, distributedConfig=where)
        engine = engine_of(store, head[3])
        task = advanced(engine, id)
        assert task.state == "succeeded", str(task.notice)
        (log,) = [engine._make_runner(task, engine._load_work(task)).read(0, "logs/node.log", 0, 1000)[1].decode()]
        assert f"meets at {head[3]}:29503" in log

    def test_a_stop_ends_every_node(self, store, head, starts):
        (starts / "hold").touch()
        id = task_of(store)
        engine = engine_of(store, head[3])
        advanced(engine, id, to="running")
        wait_until(lambda: len(started(starts)) == 2)
        task = store.tasks.get(id)
        assert {status.state for status in engine._make_runner(task, engine._load_work(task)).poll(task.token)} <= {
            "running",
            "starting",
        }
        store.tasks.update_fields(id, stop_asked=True)
        task = advanced(engine, id)
        assert task.state == "stopped"
        from crosszone.run.remote.supervisor import find_processes

        wait_until(lambda: not find_processes(task.token))

    def test_the_node_that_failed_is_named(self, store, head, starts):
        (starts / "hold").touch()
        (starts / "fail").touch()
        id = task_of(store, policy={"maxRestarts": 0})
        task = advanced(engine_of(store, head[3]), id)
        assert (task.state, task.notice["code"]) == ("failed", "task_node_failed")
        assert (task.notice["params"]["node"], task.notice["params"]["code"]) == (1, 7)
        assert task.notice["params"]["said"] == "error: a bad node"


def runner(**fields) -> running.RayRunner:
    places = {
        f"env-{n}": Environment(name="e", zone="z", runner="ray", **one) for n, one in fields.pop("places").items()
    }
    return running.RayRunner(task="t", work=work(Path("/nowhere")), environments=places, port=1)


def test_a_server_that_does_not_answer_is_out_of_reach():
    (port,) = free_ports(1)
    gone = runner(places={0: {"partition": f"http://127.0.0.1:{port}"}})
    assert [status.state for status in gone.poll("token")] == ["unreachable", "unreachable"]
    with pytest.raises(MachineError) as refused:
        gone.start("token")
    assert refused.value.notices[0].code == "ray_failed"


def test_environments_of_two_clusters_or_of_no_server_are_refused():
    with pytest.raises(InvalidError) as refused:
        runner(places={0: {"partition": "http://a:1"}, 1: {"partition": "http://b:1"}}).prepare()
    assert refused.value.notices[0].code == "ray_servers"
    with pytest.raises(InvalidError) as refused:
        runner(places={0: {"partition": "file:///etc/passwd"}}).prepare()
    assert refused.value.notices[0].code == "ray_server_bad"
