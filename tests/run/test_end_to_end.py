"""Training as a client of the HTTP API sees it: two emulated zones over ssh at 100 Mbit/s and 20 ms, real trainers.

The server runs in a node of no zone, from which all others are reached; in each zone's node runs an sshd. Nothing is
stood in for but the machines and the wire.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from crosszone.deploy.bundle import Bundle, BundleFile
from crosszone.inputs.environment import Environment
from crosszone.run.emulate.network import Network
from crosszone.run.engine import Engine
from crosszone.run.machine import Local
from crosszone.run.remote.supervisor import TOKEN_VARIABLE
from crosszone.run.runners.supervised import SupervisedRunner
from crosszone.run.work import TaskWork, WorkNode
from crosszone.store import open_store
from run.sshd import keys, needs_sshd, serving
from run.zones import SLOW, TRAIN_PYTHON, Server, cluster, needs_torch, needs_zones, thread_inside
from waiting import wait_until

pytestmark = [*needs_zones, *needs_torch, *needs_sshd, pytest.mark.slow]
LIVE = ("initializing", "preflight", "queued", "running", "stopping")
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "vocab": 512, "ffn_hidden": 512}
"""A million parameters: 4 MB of gradients, a third of a second on the wire."""
STOP_S = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with two environments that were probed, the link between them measured, a dataset and a model."""
    folder = tmp_path_factory.mktemp("end-to-end")
    with ExitStack() as stack:
        network = stack.enter_context(Network.from_cluster(cluster({"ab": SLOW})))
        thread = stack.enter_context(thread_inside(network.control))
        host_keys = keys(folder / "keys")
        serve = Server(network.control, thread, folder / "server")
        stack.callback(serve.close)
        serve.start()
        for name, node in zip("ab", network.nodes, strict=True):
            daemon = serving(node.address, 2222, host_keys, folder / f"sshd-{name}", node.machine.command_prefix)
            thread.submit(daemon.__enter__).result()
            stack.callback(lambda one=daemon: thread.submit(one.__exit__, None, None, None).result())
            environment = {
                "id": f"env-{name}",
                "name": f"zone {name}",
                "zone": f"zone-{name}",
                "runner": "ssh",
                "address": node.address,
                "ssh_user": "root",
                "ssh_port": 2222,
                "ssh_key": str(host_keys.user),
                "known_hosts": str(host_keys.known),
                "python": str(TRAIN_PYTHON),
                "workdir": str(folder / f"node-{name}"),
            }
            serve.ask("POST", "/environments", environment, status=201)
            probed = serve.ask("POST", f"/environments/env-{name}/probe")["value"]
            assert probed["status"] == "running"
            assert probed["interface"] == "wan0"
            assert probed["facts"]["software"]["torch"]
        link = serve.ask("POST", "/environments/measure", {"first": "env-a", "second": "env-b"})["value"]
        assert link["rtt_ms_least"] == pytest.approx(20, rel=0.2)
        assert link["gbps"] == pytest.approx(0.0965, rel=0.2)
        dataset = {"id": "synthetic", "name": "synthetic tokens", "versions": [{"id": "v1", "path": None}]}
        serve.ask("POST", "/datasets", dataset, status=201)
        serve.ask("POST", "/training-models", {"id": "tiny", "name": "tiny", "model": MODEL}, status=201)
        yield serve


def create(server: Server, name: str, *, steps: int, every: int = 1000, **policy) -> str:
    """Create a task as the platform's form does; its id."""
    request = {
        "taskName": name,
        "datasetId": "synthetic",
        "datasetVersionId": "v1",
        "modelId": "tiny",
        "launchMode": "existing",
        "distributedConfig": {
            "enabled": True,
            "nodeIds": ["env-a", "env-b"],
            "masterNode": "env-a",
            "framework": "pytorch-ddp",
            "strategy": {"dataParallel": 2, "pipelineParallel": 1, "tensorParallel": 1},
        },
        "job": {"seq_len": 64, "global_batch": 8, "steps": steps, "precision": "fp32"},
        "policy": policy,
        "settings": {"training": {"lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 0, "checkpoint_every": every}},
    }
    answer = server.ask("POST", "/training-tasks", request, **{"Idempotency-Key": name})
    assert answer["code"] == 200
    assert answer["data"]["status"] == "initializing"
    expected = {"nodeCount": 2, "totalGpus": 0, "masterNode": "env-a", "framework": "pytorch-ddp"}
    assert answer["data"]["distributedInfo"] == expected
    again = server.ask("POST", "/training-tasks", request, **{"Idempotency-Key": name})
    assert again["data"]["taskId"] == answer["data"]["taskId"]
    return answer["data"]["taskId"]


def task(server: Server, id: str) -> dict:
    return server.ask("GET", f"/training-tasks/{id}")


def reached(server: Server, id: str, *states: str, step: int = 0) -> dict:
    """The task once it is in one of these states (and has made so many steps)."""

    def there():
        now = task(server, id)
        if now["state"] in states and now["progress"].get("step", 0) >= step:
            return now
        assert now["state"] in LIVE, f"{now['state']}: {now['notice']}"
        return None

    return wait_until(there)


def processes(id: str) -> list[int]:
    """All processes of a task on this machine, in whatever namespace."""
    rows = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{TOKEN_VARIABLE}={id}.".encode() in path.read_bytes():
                rows.append(int(path.parent.name))
        except OSError:
            continue
    return rows


def ranks(id: str) -> list[int]:
    """Those that train."""
    return [pid for pid in processes(id) if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2:3]]


def starts(server: Server, id: str) -> int:
    """How many times training has begun: each writes a header."""
    (file,) = server.folder.parent.glob(f"node-a/tasks/{id}/node-000/bundle/out/metrics-stage-0.jsonl")
    return sum("lanes" in json.loads(line) for line in file.read_text().splitlines() if line.startswith("{"))


def test_a_task_over_ssh_learns_and_tells_its_metrics_logs_and_events(server):
    id = create(server, "ten steps", steps=10)
    done = reached(server, id, "succeeded")
    measured = done["measured"]
    assert measured["step"] == 10
    assert measured["loss"] < measured["first_loss"] - 0.1
    assert measured["tokens_per_s"] > 0
    assert done["slowdown"] > 2
    assert [(node["environment"], node["zone"], node["code"]) for node in done["nodes"]] == [
        ("env-a", "zone-a", 0),
        ("env-b", "zone-b", 0),
    ]
    rows = server.ask("GET", f"/training-tasks/{id}/metrics")["rows"]
    assert [row["step"] for row in rows] == list(range(1, 11))
    assert all(row["tokens_per_s"] > 0 for row in rows)
    files = server.ask("GET", f"/training-tasks/{id}/logs")["files"]
    assert {(file["node"], file["rank"]) for file in files} >= {(0, 0), (1, 1)}
    for file in files:
        part = server.ask("GET", f"/training-tasks/{id}/logs/{file['node']}?name={file['name']}")
        assert part["size"] == file["bytes"]
        assert not part["live"]
    printed = server.ask("GET", f"/training-tasks/{id}/logs/0")["text"]
    assert "step 10" in printed
    events = server.ask("GET", f"/training-tasks/{id}/events")["entries"]
    moved = [event["about"]["to"] for event in events if "to" in event["about"]]
    assert moved == ["preflight", "queued", "running", "succeeded"]
    twin = server.ask("GET", f"/training-tasks/{id}/twin")
    assert twin
    assert starts(server, id) == 1
    assert processes(id) == []


@pytest.mark.long
def test_steps_take_as_long_as_predicted_from_the_measured_link(server):
    id = create(server, "twenty steps", steps=20)
    predicted = reached(server, id, "succeeded")["prediction"]["step_time_s"]
    rows = server.ask("GET", f"/training-tasks/{id}/metrics")["rows"]
    took = sorted(row["step_s"] for row in rows[3:])[8]
    assert took == pytest.approx(predicted["expected"], rel=0.25)


@pytest.mark.long
def test_a_task_is_stopped_resumed_and_recovers_from_a_killed_rank(server):
    id = create(server, "long", steps=5000, every=5, maxRestarts=1)
    reached(server, id, "running", step=4)
    assert len(ranks(id)) == 2
    begin = time.monotonic()
    server.ask("POST", f"/training-tasks/{id}/stop")
    wait_until(lambda: not processes(id))
    took = time.monotonic() - begin
    stopped = reached(server, id, "stopped")
    at = stopped["progress"]["step"]

    server.ask("POST", f"/training-tasks/{id}/resume")
    resumed = reached(server, id, "running", step=at + 2)
    assert resumed["attempt"] == 2
    rows = server.ask("GET", f"/training-tasks/{id}/metrics")["rows"]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert min(row["step"] for row in rows if row["start"] == 1) == at + 1  # it was told to stop, so it wrote one

    before = reached(server, id, "running", step=at + 7)["progress"]["step"]
    os.kill(ranks(id)[1], signal.SIGKILL)
    wait_until(lambda: task(server, id)["restarts"] == 1)
    recovered = reached(server, id, "running", step=before + 3)
    assert recovered["restarts"] == 1
    rows = server.ask("GET", f"/training-tasks/{id}/metrics")["rows"]
    first = min(row["step"] for row in rows if row["start"] == 2)
    assert first > at + 1, "it goes on from a checkpoint after the one it was resumed from"
    assert first <= before + 3
    server.ask("POST", f"/training-tasks/{id}/stop")
    reached(server, id, "stopped")
    assert starts(server, id) == 3
    assert processes(id) == []
    server.ask("DELETE", f"/training-tasks/{id}", status=204)
    assert not list(server.folder.parent.glob(f"node-*/tasks/{id}/*"))
    assert took < STOP_S, "all ranks end in time, on every node"


def killed_in(server: Server, id: str, state: str) -> None:
    """Kill the server while the task is in a state, and start it again."""
    with open_store(server.database) as store:
        wait_until(lambda: store.tasks.get(id).state == state)
        server.kill()
        assert store.tasks.get(id).state == state
    server.start()


@pytest.mark.long
def test_the_server_may_be_killed_at_any_moment(server):
    id = create(server, "survivor", steps=5000)
    for state in ("initializing", "preflight"):
        killed_in(server, id, state)
    reached(server, id, "running", step=2)
    alive = sorted(ranks(id))
    assert len(alive) == 2
    killed_in(server, id, "running")
    step = task(server, id)["progress"]["step"]
    reached(server, id, "running", step=step + 3)
    assert sorted(ranks(id)) == alive, "what runs is attached to, not started again"
    server.ask("POST", f"/training-tasks/{id}/stop")
    killed_in(server, id, "stopping")
    reached(server, id, "stopped")
    assert processes(id) == []
    assert starts(server, id) == 1
    last = server.ask("GET", f"/training-tasks/{id}/events")["entries"][-1]
    assert last["about"]["to"] == "stopped"


SCRIPT = """#!/usr/bin/env bash
echo "$CROSSZONE_TOKEN" >> starts
mkdir -p out
echo '{"lanes": []}' >> out/metrics-stage-0.jsonl
for step in 1 2 3; do
  echo "{\\"step\\": $step, \\"start_s\\": $step, \\"end_s\\": $step.5, \\"loss\\": $((9 - step))}" >> out/metrics-stage-0.jsonl
  sleep 0.2
done
"""


def test_twenty_tasks_at_once_on_this_machine(tmp_path):
    """All of them run side by side, each once, on the local runner; what they run is a script, not a trainer."""
    files = (BundleFile(path="nodes/000.sh", text=SCRIPT),)
    bundle = Bundle(
        name="b", framework="ddp", launcher="nodes", template=False, world_size=1, port=1, nodes=(), how=(),
        options=(), files=files, warnings=(),
    )  # fmt: skip
    node = WorkNode(number=0, environment="here", script="nodes/000.sh", ranks=("0",), address=None)
    doing = TaskWork(scenario="", bundle=bundle, prediction={}, slowdown=None, nodes=(node,))
    environment = Environment(name="here", zone="z", runner="local", workdir=str(tmp_path / "w"))

    def runner(one, work):
        machines = {"here": Local(name="here")}
        return SupervisedRunner(task=one.id, work=work, environments={"here": environment}, machines=machines, port=1)

    with open_store(f"sqlite:///{tmp_path}/saved.db") as store:
        ids = [store.tasks.add(name=f"task {number}", request={})[0].id for number in range(20)]
        engine = Engine(store, name="engine", make=lambda _: doing, check=lambda *_: [], runner=runner)
        stop = threading.Event()
        driver = threading.Thread(target=engine.run_until, args=(stop,))
        driver.start()
        try:
            wait_until(lambda: not store.tasks.list_live())
        finally:
            stop.set()
            driver.join()
        assert {store.tasks.get(id).state for id in ids} == {"succeeded"}
        assert {store.tasks.get(id).progress["step"] for id in ids} == {3}
        tokens = {store.tasks.get(id).token for id in ids}
    begun = [path.read_text().split() for path in tmp_path.glob("w/tasks/*/node-000/bundle/starts")]
    assert sorted(begun) == sorted([token] for token in tokens)
    assert not any(processes(id) for id in ids)
