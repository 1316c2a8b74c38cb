"""A task on a real Slurm: two partitions are two zones; whoever comes next finds its job, and a stop ends it."""

from __future__ import annotations

import re
import subprocess

import pytest

from conftest import ROOT
from crosszone.errors import MachineError
from crosszone.inputs.dataset import Dataset, TrainingModel
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.inputs.value import parse
from crosszone.run.engine import Engine
from crosszone.run.remote.supervisor import find_processes
from crosszone.run.request import RegisteredEntries, TaskRequest, check_request
from crosszone.run.runners import slurm as running
from crosszone.run.service import make_runner
from crosszone.run.work import build_work
from crosszone.store import open_store
from deploy.test_slurm import asked, pytestmark, slurm  # noqa: F401
from run.test_engine import advanced, states
from waiting import wait_until

TORCH = ROOT / ".venv-train" / "bin" / "python"
WAY = {"rtt_ms": 20, "rtt_ms_least": 20, "rtt_ms_most": 20, "gbps": 10, "gbps_back": 10, "measured": 0}
LINKS = (MeasuredLink(first="north", second="south", **WAY),)
STUB = """#!/usr/bin/env bash
# Stands for torchrun: one line of metrics a step, and a log for each rank.
value() { while [ $# -gt 1 ]; do if [ "$1" = "$key" ]; then echo "$2"; return; fi; shift; done; }
key=--node-rank; rank=$(value "$@"); rank=${rank:-0}
echo "$CROSSZONE_TOKEN" >> "$STARTS/$rank"
mkdir -p "$PET_LOG_DIR/0" out
echo "rank of node $rank meets at $MASTER_ADDR:$MASTER_PORT" | tee "$PET_LOG_DIR/0/stdout.log"
if [ "$rank" = 0 ]; then
  for step in 1 2 3; do
    echo "{\\"step\\": $step, \\"start_s\\": $step, \\"end_s\\": $step.5, \\"loss\\": 2, \\"tokens_per_s\\": 9}" >> out/metrics-stage-0.jsonl
  done
fi
if [ "$rank" = 1 ] && [ -e "$STARTS/fail" ]; then echo "error: a bad node"; exit 7; fi
while [ -e "$STARTS/hold" ]; do sleep 0.2; done
"""


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/saved.db") as opened:
        yield opened


@pytest.fixture
def starts(tmp_path, slurm, monkeypatch):  # noqa: F811
    """Slurm's commands reach the test's cluster, and torchrun is a stub that counts its starts in this folder."""
    (tmp_path / "stubs").mkdir()
    (tmp_path / "starts").mkdir()
    (tmp_path / "stubs" / "torchrun").write_text(STUB)
    (tmp_path / "stubs" / "torchrun").chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    monkeypatch.setenv("PATH", f"{tmp_path}/stubs:{slurm['PATH']}")
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))
    yield tmp_path / "starts"
    for job in asked(slurm, "squeue", "-h", "-o", "%i").split():
        subprocess.run(["scancel", job], env=slurm, check=False)


def known(tmp_path) -> RegisteredEntries:
    """A partition of each zone: nodes of the north have two GPUs, those of the south one."""
    fields = {"runner": "slurm", "gpu": "a100-80gb-sxm", "nic_gbps": 100, "workdir": str(tmp_path / "shared")}
    places = {
        "north": Environment(name="north", zone="beijing", partition="north", gpus=2, **fields),
        "south": Environment(name="south", zone="shenzhen", partition="south", gpus=1, **fields),
    }
    return RegisteredEntries(environments=places, datasets={"d": Dataset(name="d", versions=({"id": "v"},))}, models={})


def request(**changes) -> dict:
    return {
        "taskName": "two partitions",
        "datasetId": "d",
        "datasetVersionId": "v",
        "modelId": "gpt2-small",
        "distributedConfig": {"nodeIds": ["north", "south"], "masterNode": "north", "framework": "pytorch-ddp"},
        "job": {"seq_len": 128, "steps": 3},
    } | changes


NEW = {
    "launchMode": "new",
    "distributedConfig": {"framework": "pytorch-ddp"},
    "allocation": [
        {"zone": "beijing", "gpu": "a100-80gb-sxm", "nodes": 2, "gpus_per_node": 2},
        {"zone": "shenzhen", "nodes": 2},
    ],
}


def engine_of(store, tmp_path, *, name: str = "engine") -> Engine:
    def make(task):
        return build_work(check_request(parse(TaskRequest, task.request), known(tmp_path)), LINKS, "en")

    def runner(task, work):
        return make_runner(task, work, work.environments, {}, 29_501)

    return Engine(store, name=name, make=make, check=lambda *_: [], runner=runner)


def task_of(store, **changes) -> str:
    return store.tasks.add(name="t", request=request(**changes))[0].id


def started(starts) -> dict[str, int]:
    return {file.name: len(file.read_text().split()) for file in starts.iterdir() if file.name.isdigit()}


def test_a_task_over_two_partitions_runs_to_its_end(store, tmp_path, starts):
    id = task_of(store)
    engine = engine_of(store, tmp_path)
    task = advanced(engine, id)
    assert task.state == "succeeded", str(task.notice)
    assert states(store, id) == ["preflight", "queued", "running", "succeeded"]
    assert started(starts) == {"0": 1, "1": 1}
    assert [node["code"] for node in task.progress["nodes"]] == [0, 0]
    assert (task.progress["step"], task.progress["loss"]) == (3, 2)
    runner = engine._make_runner(task, engine._load_work(task))
    statuses = runner.poll(task.token)
    for number in range(2):
        assert "logs/ranks/0/stdout.log" in statuses[number].files
        for name in ("logs/node.log", "logs/ranks/0/stdout.log"):
            _, data = runner.read(number, name, 0, 1000)
            assert f"rank of node {number} meets at 127.0.0.1:29501" in data.decode()
    runner.clean()
    assert not list((tmp_path / "shared" / "tasks" / id).glob("node-*"))


@pytest.mark.long
def test_nodes_that_are_asked_for_by_zone_and_gpu_come_from_its_partition(store, tmp_path, starts):
    id = task_of(store, **NEW)
    task = advanced(engine_of(store, tmp_path), id)
    assert task.state == "succeeded", str(task.notice)
    assert [node["environment"] for node in task.plan["nodes"]] == ["north.0", "north.1", "south.0", "south.1"]
    assert started(starts) == {str(number): 1 for number in range(4)}


@pytest.mark.long
def test_whoever_comes_next_finds_the_job_that_was_submitted(store, tmp_path, starts):
    """A new engine at every step; one is killed after sbatch, before it could store that."""
    (starts / "hold").touch()
    id = task_of(store)
    advanced(engine_of(store, tmp_path), id, to="queued")
    move, store.tasks.move = store.tasks.move, lambda *_, **__: None
    engine_of(store, tmp_path).advance(id)
    store.tasks.move = move
    assert store.tasks.get(id).state == "queued"
    advanced(engine_of(store, tmp_path, name="next"), id, to="running")
    token = store.tasks.get(id).token
    assert len(running.SlurmRunner.list_jobs(None, token)) == 2  # the two components of one job
    (starts / "hold").unlink()
    assert advanced(engine_of(store, tmp_path, name="last"), id).state == "succeeded"
    assert started(starts) == {"0": 1, "1": 1}


def test_a_stop_cancels_the_job_and_a_late_start_does_nothing(store, tmp_path, starts):
    (starts / "hold").touch()
    id = task_of(store)
    engine = engine_of(store, tmp_path)
    advanced(engine, id, to="running")
    wait_until(lambda: len(started(starts)) == 2)
    store.tasks.update_fields(id, stop_asked=True)
    task = advanced(engine, id)
    assert task.state == "stopped"
    assert find_processes(task.token) == []
    runner = engine._make_runner(task, engine._load_work(task))
    assert [status.state for status in runner.poll(task.token)] == ["ended", "ended"]
    runner.start(task.token)
    assert not running.is_live(runner.list_jobs(task.token))
    assert started(starts) == {"0": 1, "1": 1}


@pytest.mark.long
def test_a_job_that_waits_can_be_stopped(store, tmp_path, starts):
    (starts / "hold").touch()
    first, second = task_of(store, **NEW), task_of(store)
    engine = engine_of(store, tmp_path)
    advanced(engine, first, to="running")
    advanced(engine, second, to="running")  # one node of the north is left, none of the south
    engine.advance(second)
    nodes = store.tasks.get(second).progress["nodes"]
    assert [node["state"] for node in nodes] == ["starting", "starting"]
    for id in (second, first):
        store.tasks.update_fields(id, stop_asked=True)
        assert advanced(engine, id).state == "stopped"
    assert not any(
        token == store.tasks.get(second).token for file in starts.glob("[0-9]") for token in file.read_text().split()
    )


def test_the_node_that_failed_is_named_and_the_group_starts_again(store, tmp_path, starts):
    (starts / "hold").touch()
    (starts / "fail").touch()
    id = task_of(store, policy={"maxRestarts": 1})
    engine = engine_of(store, tmp_path)
    task = advanced(engine, id)
    assert (task.state, task.restarts) == ("failed", 1)
    assert (task.notice["code"], task.notice["params"]["node"]) == ("task_node_failed", 1)
    assert task.notice["params"]["code"] == 7
    assert task.notice["params"]["said"] == "error: a bad node"
    assert started(starts) == {"0": 2, "1": 2}


def test_a_job_that_slurm_does_not_take_fails_with_its_words(store, tmp_path, starts):
    changed = [{"zone": "beijing", "nodes": 40, "gpus_per_node": 2}]
    id = task_of(store, **NEW | {"allocation": changed})
    task = advanced(engine_of(store, tmp_path), id)
    assert (task.state, task.notice["code"]) == ("failed", "slurm_refused")
    assert "node" in task.notice["params"]["reason"].lower()


def test_a_controller_that_does_not_answer_is_out_of_reach(store, tmp_path, starts, monkeypatch):
    id = task_of(store)
    engine = engine_of(store, tmp_path)
    advanced(engine, id, to="running")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    task = store.tasks.get(id)
    runner = engine._make_runner(task, engine._load_work(task))
    assert [status.state for status in runner.poll(task.token)] == ["unreachable", "unreachable"]
    with pytest.raises(MachineError):
        runner.list_jobs(task.token)


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.skipif(not TORCH.exists(), reason=".venv-train is not installed; ./test installs it")
def test_a_model_is_trained_over_two_partitions(store, tmp_path, starts, monkeypatch):
    """PyTorch itself, on the CPU: both zones take part in every step, and each rank has its log."""
    (tmp_path / "stubs" / "torchrun").unlink()
    facts = {"cpu": {"fp32_tflops": 0.1, "bf16_tflops": 0.01, "memory_gb_per_s": 16.0}}
    fields = {"runner": "slurm", "memory_gb": 8, "cpus": 1, "facts": facts, "nic_gbps": 1, "python": str(TORCH)}
    fields["workdir"] = str(tmp_path / "shared")
    places = {
        "north": Environment(name="north", zone="beijing", partition="north", **fields),
        "south": Environment(name="south", zone="shenzhen", partition="south", **fields),
    }
    tiny = {"layers": 2, "hidden": 64, "heads": 4, "ffn_hidden": 128, "vocab": 256}
    models = {"tiny": TrainingModel(name="tiny", model=tiny)}
    registered = known(tmp_path)
    with_models = RegisteredEntries(environments=places, datasets=registered.datasets, models=models)
    body = request(modelId="tiny", job={"seq_len": 32, "steps": 4, "global_batch": 4, "precision": "fp32"})
    body["settings"] = {"python": str(TORCH)}
    engine = engine_of(store, tmp_path)
    engine._make_work = lambda task: build_work(
        check_request(parse(TaskRequest, task.request), with_models), LINKS, "en"
    )
    id = store.tasks.add(name="t", request=body)[0].id
    task = advanced(engine, id)
    assert task.state == "succeeded", str(task.notice)
    assert task.progress["step"] == 4
    statuses = engine._make_runner(task, engine._load_work(task)).poll(task.token)
    assert all(
        any(re.fullmatch(r"logs/ranks/.*/std(out|err)\.log", name) for name in status.files) for status in statuses
    )
