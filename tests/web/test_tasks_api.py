"""Training tasks over HTTP: the platform's own request and answer, and everything until a task is gone again."""

from __future__ import annotations

import json
import signal
import threading
import time
from functools import cache

import pytest
from starlette.testclient import TestClient

from crosszone.deploy.bundle import Bundle, BundleFile, NodeCommand
from crosszone.errors import Notice, StoreError
from crosszone.inputs.scenario import parse_scenario
from crosszone.predict.answer import answer
from crosszone.run.remote.supervisor import find_processes, send_signal
from crosszone.run.work import TaskWork, WorkNode
from crosszone.store import open_store
from crosszone.web.app import TaskDriver, create_app
from crosszone.web.body import SCENARIO_EXAMPLE
from waiting import PAUSE_S, wait_until
from web.client import HERE, Api, empty, undriven

REQUEST = {
    "taskName": "gpt3-pretraining",
    "datasetId": "dataset-001",
    "datasetVersionId": "version-001",
    "modelId": "model-001",
    "launchMode": "existing",
    "distributedConfig": {
        "enabled": True,
        "nodeIds": ["env-001", "env-003", "env-005"],
        "masterNode": "env-001",
        "framework": "deepspeed",
        "strategy": {"dataParallel": 2, "pipelineParallel": 4, "tensorParallel": 8},
    },
}
"""The platform's own example, word for word: 64 ranks on 14 GPUs."""
FITS = {"dataParallel": 14, "pipelineParallel": 1, "tensorParallel": 1}
STEPS = """#!/usr/bin/env bash
echo "node {number} begins 开始"
mkdir -p out
pause={pause}
[ -e out/again ] && pause=0.01  # what was stopped is quick when it goes on
touch out/again
for step in 1 2 3 4 5; do
  echo "{{\\"step\\": $step, \\"start_s\\": $step, \\"end_s\\": $step.5, \\"loss\\": $((9 - step)), \\"tokens\\": 50}}" >> out/metrics-stage-0.jsonl
  echo "step $step"
  sleep $pause
done
{end}
"""


@pytest.fixture(scope="module")
def undriven_api(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "crosszone.db"
    with undriven(path) as made:
        yield made, path


@pytest.fixture
def quiet(undriven_api):
    """An API whose tasks nobody drives."""
    made, path = undriven_api
    empty(path)
    made.seed()
    registered(made)
    return made


def registered(api):
    version = {"id": "version-001", "path": "/data/pile.bin"}
    api("POST", "datasets", {"id": "dataset-001", "name": "pile", "versions": [version]}, status=201)
    api("POST", "training-models", {"id": "model-001", "name": "GPT", "model": "llama-2-7b"}, status=201)


def asked(**changes):
    """The request with other values, by path."""
    body = json.loads(json.dumps(REQUEST))
    body["distributedConfig"]["strategy"] = FITS
    for path, value in changes.items():
        *outer, last = path.split("__")
        at = body
        for step in outer:
            at = at[step]
        at[last] = value
    return body


def test_the_platforms_request_is_answered_as_it_says(quiet):
    answer = quiet("POST", "training-tasks?lang=zh", asked())
    id = answer["data"].pop("taskId")
    assert answer == {
        "code": 200,
        "message": "训练任务创建成功",
        "data": {
            "status": "initializing",
            "distributedInfo": {"nodeCount": 3, "totalGpus": 14, "masterNode": "env-001", "framework": "deepspeed"},
        },
    }
    assert quiet("GET", f"training-tasks/{id}")["request"]["taskName"] == "gpt3-pretraining"
    assert quiet("POST", "training-tasks", asked())["message"] == "Training task created"


def test_sixty_four_ranks_on_fourteen_gpus_are_refused(quiet):
    refusal = quiet("POST", "training-tasks", REQUEST, status=422)
    assert (refusal["code"], refusal["field"]) == ("task_strategy_product", "distributedConfig.strategy")
    assert "64" in refusal["message"]
    assert "14" in refusal["message"]
    assert "14" in refusal["hint"]
    assert quiet("GET", "training-tasks")["entries"] == []


WRONG = [
    ({"taskName": "  "}, "taskName", "Enter a name for the task.", "请输入任务名称"),
    ({"datasetId": ""}, "datasetId", "Choose a dataset", "请选择数据集"),
    ({"datasetVersionId": ""}, "datasetVersionId", "Choose a dataset", "请选择数据集"),
    ({"distributedConfig__nodeIds": []}, "distributedConfig.nodeIds", "Choose at least one", "请至少选择一个开发环境"),
    ({"distributedConfig__masterNode": "env-009"}, "distributedConfig.masterNode", "Choose a master", "请选择有效的主节点"),
    ({"distributedConfig__framework": None}, "distributedConfig.framework", "Choose a distributed", "请选择分布式框架"),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_what_is_missing_is_told_in_the_order_of_the_form_in_both_languages(quiet, place):
    """Everything from here on is wrong, and the first thing is told."""
    changes = {key: value for change, *_ in reversed(WRONG[place:]) for key, value in change.items()}
    if "distributedConfig__nodeIds" in changes and place < 3:
        changes["distributedConfig__nodeIds"] = []
    _, field, english, chinese = WRONG[place]
    for language, said in (("en", english), ("zh", chinese)):
        refusal = quiet("POST", f"training-tasks?lang={language}", asked(**changes), status=422)
        assert refusal["field"] == field
        assert refusal["message"].startswith(said)


def test_what_is_not_there_is_refused(quiet):
    for change in ({"datasetId": "x"}, {"datasetVersionId": "x"}, {"distributedConfig__nodeIds": ["env-001", "x"]}):
        refusal = quiet("POST", "training-tasks", asked(**change), status=422)
        assert refusal["code"] == "task_unknown"
        assert refusal["hint"]
    quiet("POST", "training-tasks", asked(distributedConfig__framework="mpi"), status=422)
    quiet("POST", "training-tasks", asked(launchMode="later"), status=422)
    quiet("POST", "training-tasks", {**asked(), "shell": "rm"}, status=422)


def test_one_environment_needs_neither_master_nor_framework(quiet):
    answer = quiet("POST", "training-tasks", asked(distributedConfig={"nodeIds": ["env-001"]}))
    info = answer["data"]["distributedInfo"]
    assert info == {"nodeCount": 1, "totalGpus": 2, "masterNode": "env-001", "framework": None}


def test_the_same_key_makes_one_task(quiet):
    headers = {"Idempotency-Key": "once"}
    first = quiet("POST", "training-tasks", asked(), headers=headers)
    assert quiet("POST", "training-tasks", asked(), headers=headers) == first
    refusal = quiet("POST", "training-tasks", asked(taskName="other"), headers=headers, status=409)
    assert (refusal["code"], refusal["field"]) == ("idempotency_other", "Idempotency-Key")
    assert quiet("GET", "training-tasks")["total"] == 1
    quiet("POST", "training-tasks", asked(), headers={"Idempotency-Key": "x" * 300}, status=422)


def test_tasks_are_listed_in_pages_and_by_state(quiet):
    made = [quiet("POST", "training-tasks", asked(taskName=f"t{n}"))["data"]["taskId"] for n in range(5)]
    first = quiet("GET", "training-tasks?limit=2")
    assert [row["name"] for row in first["entries"]] == ["t4", "t3"]
    assert first["total"] == 5
    assert "plan" not in first["entries"][0]
    second = quiet("GET", f"training-tasks?limit=3&before={first['before'].replace('+', '%2B')}")
    assert [row["name"] for row in second["entries"]] == ["t2", "t1", "t0"]
    assert second["before"] is None
    quiet("GET", "training-tasks?before=x", status=422)
    assert quiet("GET", "training-tasks?state=running")["entries"] == []
    page = quiet("GET", "training-tasks?state=running&state=initializing&limit=4")
    assert [row["id"] for row in page["entries"]] == made[:0:-1]
    last = quiet("GET", "training-tasks", params={"state": "initializing", "before": page["before"]})
    assert [row["id"] for row in last["entries"]] == made[:1]
    assert last["before"] is None
    quiet("GET", "training-tasks?state=asleep", status=422)


def test_a_live_task_keeps_its_environments_and_is_not_deleted(quiet):
    id = quiet("POST", "training-tasks", asked())["data"]["taskId"]
    refusal = quiet("DELETE", "environments/env-003", status=409)
    assert refusal["code"] == "environment_in_use"
    assert quiet("DELETE", f"training-tasks/{id}", status=409)["code"] == "task_live"
    assert quiet("POST", f"training-tasks/{id}/resume", status=409)["code"] == "task_not_resumable"
    assert quiet("POST", f"training-tasks/{id}/stop")["stop_asked"]


def test_a_task_that_nobody_planned_has_nothing_to_show_yet(quiet):
    id = quiet("POST", "training-tasks", asked())["data"]["taskId"]
    task = quiet("GET", f"training-tasks/{id}")
    assert (task["state"], task["prediction"], task["nodes"], task["measured"]) == ("initializing", None, [], None)
    assert not task["driven"]
    assert quiet("GET", f"training-tasks/{id}/logs") == {"files": []}
    assert quiet("GET", f"training-tasks/{id}/logs/0")["text"] == ""
    assert quiet("GET", f"training-tasks/{id}/metrics") == {"rows": []}
    assert quiet("GET", f"training-tasks/{id}/twin", status=409)["code"] == "task_not_planned"
    events = quiet("GET", f"training-tasks/{id}/events")
    assert [one["kind"] for one in events["entries"]] == ["created"]
    assert events["live"]


def test_nobody_knows_a_task_that_is_not_there(quiet):
    for path in ("", "/events", "/logs", "/logs/0", "/metrics", "/twin"):
        assert quiet("GET", f"training-tasks/none{path}", status=404)["code"] == "saved_missing"
    for path in ("/stop", "/resume"):
        quiet("POST", f"training-tasks/none{path}", status=404)
    quiet("DELETE", "training-tasks/none", status=404)


# --- tasks that run ---------------------------------------------------------------------------------------------------


def scripts(*, nodes=2, pause=0.01, ends=()):
    """What a task does in place of training: plain scripts that write metrics."""
    texts = [STEPS.format(number=n, pause=pause, end=ends[n] if n < len(ends) else "exit 0") for n in range(nodes)]
    files = [BundleFile(path=f"nodes/{n:03d}.sh", text=text) for n, text in enumerate(texts)]
    commands = [
        NodeCommand(number=n, name=f"n{n}", zone="z", address="127.0.0.1", interface=None, ranks=(f"{n}-{n}",),
                    script=f"nodes/{n:03d}.sh", commands=("torchrun train.py",))
        for n in range(nodes)
    ]  # fmt: skip
    bundle = Bundle(
        name="b", framework="ddp", launcher="nodes", template=False, world_size=nodes, port=1, nodes=tuple(commands),
        how=(), options=(), files=tuple(files), warnings=(),
    )  # fmt: skip
    places = [
        WorkNode(number=n, environment=f"local-{n}", script=f"nodes/{n:03d}.sh", ranks=(f"{n}-{n}",), address=None)
        for n in range(nodes)
    ]
    plan = parse_scenario(SCENARIO_EXAMPLE["text"], "plan.yaml")
    prediction = {**predicted(), "step_time_s": {"low": 0.4, "expected": 0.5, "high": 0.6}}
    return TaskWork(
        scenario=plan.scenario.to_yaml(), bundle=bundle, prediction=prediction, slowdown=1.5, nodes=tuple(places)
    )


@cache
def predicted():
    return answer(parse_scenario(SCENARIO_EXAMPLE["text"], "plan.yaml")).prediction.model_dump(mode="json")


class Running:
    """An API whose tasks are driven, and what they do."""

    def __init__(self, api, monkeypatch):
        self.api, self.work = api, scripts()
        monkeypatch.setattr("crosszone.run.service.plan_work", lambda *_, **__: self.work)
        monkeypatch.setattr("crosszone.run.service.run_preflight", lambda *_, **__: [])  # has tests of its own

    def created(self, work, name="t", **policy):
        self.work = work
        ids = [node.environment for node in work.nodes]
        where = {"nodeIds": ids, "masterNode": ids[0], "framework": "pytorch-ddp"}
        policy = {"ignorePreflight": True, **policy}
        body = {**asked(taskName=name, distributedConfig=where), "policy": policy}
        return self.api("POST", "training-tasks", body)["data"]["taskId"]

    def until(self, id, *states):
        while (task := self.api("GET", f"training-tasks/{id}"))["state"] not in states:
            time.sleep(PAUSE_S)
        return task

    def stream(self, path, **headers):
        """A whole stream, as (id, name, data)."""
        answer = self.api.client.get(f"/api/v1/{path}", headers={"Accept": "text/event-stream", **headers})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = []
        for block in answer.text.split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if lines:
                found.append((int(lines["id"]) if "id" in lines else None, lines["event"], json.loads(lines["data"])))
        return found


@pytest.fixture
def running(tmp_path, monkeypatch):
    store = str(tmp_path / "crosszone.db")
    app = create_app(store=store, workers=1)
    with TestClient(app, base_url=HERE) as client:
        api = Api(client)
        registered(api)
        for n in range(3):
            local = {"id": f"local-{n}", "name": f"node {n}", "zone": "z", "runner": "local",
                     "workdir": str(tmp_path / f"work-{n}"), "address": "127.0.0.1"}  # fmt: skip
            api("POST", "environments", local, status=201)
        yield Running(api, monkeypatch)
    with open_store(store) as opened:
        for task in opened.tasks.list_live():
            if task.token:
                send_signal(find_processes(task.token), signal.SIGKILL)


@pytest.mark.slow
def test_a_task_runs_to_its_end_and_is_deleted(running, tmp_path):
    id = running.created(scripts())
    task = running.until(id, "succeeded", "failed")
    assert task["state"] == "succeeded", task["notice"]
    assert [(node["environment"], node["state"], node["code"]) for node in task["nodes"]] == [
        ("local-0", "ended", 0),
        ("local-1", "ended", 0),
    ]
    assert task["nodes"][0]["master"]
    assert not task["nodes"][1]["master"]
    assert task["nodes"][1]["commands"] == ["torchrun train.py"]
    assert task["prediction"]["step_time_s"]["expected"] == 0.5
    assert task["prediction"]["parts"] == predicted()["breakdown_s"]
    assert (task["slowdown"], task["framework"]) == (1.5, "ddp")
    assert task["strategy"]["tp"] == 2
    measured = task["measured"]
    assert (measured["step"], measured["loss"], measured["first_loss"]) == (5, 4, 8)
    assert measured["over_predicted"] == pytest.approx(1.0)
    assert measured["in_band"]
    rows = running.api("GET", f"training-tasks/{id}/metrics")["rows"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["step"] for row in running.api("GET", f"training-tasks/{id}/metrics?after=3")["rows"]] == [4, 5]
    assert [row["step"] for row in running.api("GET", f"training-tasks/{id}/metrics?limit=2")["rows"]] == [1, 2]
    assert any((tmp_path / "work-1").rglob("node.log"))
    running.api("DELETE", f"training-tasks/{id}", status=204)
    running.api("GET", f"training-tasks/{id}", status=404)
    assert not any((tmp_path / "work-1").rglob("node.log"))


@pytest.mark.slow
def test_events_come_in_pages_and_as_a_stream_that_ends_with_the_task(running):
    id = running.created(scripts(pause=0.1))
    streamed = running.stream(f"training-tasks/{id}/events")
    assert streamed[-1][1] == "end"
    assert streamed[-1][2]["state"] == "succeeded"
    events = [data for _, name, data in streamed if name == "event"]
    assert [one["about"]["to"] for one in events if one["kind"] == "state"] == [
        "preflight",
        "queued",
        "running",
        "succeeded",
    ]
    assert [id for id, name, _ in streamed if name == "event"] == [one["number"] for one in events]
    assert running.api("GET", f"training-tasks/{id}/events")["entries"] == events
    page = running.api("GET", f"training-tasks/{id}/events?after=1&limit=2")
    assert page["entries"] == events[1:3]
    assert not page["live"]
    rest = running.stream(f"training-tasks/{id}/events", **{"Last-Event-ID": str(events[2]["number"])})
    assert [data for _, name, data in rest if name == "event"] == events[3:]
    assert any(name == "task" and data["progress"].get("step") for _, name, data in streamed)


@pytest.mark.slow
def test_logs_are_listed_paged_and_followed(running):
    id = running.created(scripts(pause=0.1))
    running.until(id, "running", "succeeded")
    followed = running.stream(f"training-tasks/{id}/logs/1?follow=true")
    whole = "".join(data["text"] for _, name, data in followed if name == "log")
    assert whole == "node 1 begins 开始\n" + "".join(f"step {n}\n" for n in range(1, 6))
    assert followed[-1][1] == "end"
    files = running.api("GET", f"training-tasks/{id}/logs")["files"]
    found = {(one["node"], one["name"]): one["bytes"] for one in files}
    assert found[1, "logs/node.log"] == len(whole.encode())
    first = running.api("GET", f"training-tasks/{id}/logs/1?most=17")
    assert first["text"] == "node 1 begins 开"  # half a character waits
    assert first["next"] == 17
    rest = running.api("GET", f"training-tasks/{id}/logs/1?offset={first['next']}")
    assert first["text"] + rest["text"] == whole
    assert (rest["next"], rest["size"], rest["live"]) == (len(whole.encode()), len(whole.encode()), False)
    assert running.api("GET", f"training-tasks/{id}/logs/1?offset=-7")["text"] == "step 5\n"
    again = running.stream(f"training-tasks/{id}/logs/1?follow=true", **{"Last-Event-ID": str(first["next"])})
    assert "".join(data["text"] for _, name, data in again if name == "log") == rest["text"]


@pytest.mark.slow
def test_a_log_cannot_leave_the_tasks_folder(running, tmp_path):
    (tmp_path / "secret").write_text("secret")
    id = running.created(scripts())
    running.until(id, "succeeded")
    for name in (
        "../secret",
        "logs/../../../secret",
        "/etc/passwd",
        "logs/../bundle/nodes/000.sh",
        "logs",
        "x\x00y",
        "logs/x\x00y",
    ):
        told = running.api.client.get(f"/api/v1/training-tasks/{id}/logs/0", params={"name": name})
        assert told.status_code in (404, 422, 424), (name, told.text)
        assert "secret" not in told.json().get("text", "")
    running.api("GET", f"training-tasks/{id}/logs/7", status=404)
    running.api("GET", f"training-tasks/{id}/logs/-1", status=422)


@pytest.mark.slow
def test_a_task_is_stopped_and_resumed(running):
    id = running.created(scripts(pause=30))
    running.until(id, "running")
    assert running.api("POST", f"training-tasks/{id}/stop")["stop_asked"]
    task = running.until(id, "stopped")
    assert [node["state"] for node in task["nodes"]] == ["ended", "ended"]
    assert running.api("POST", f"training-tasks/{id}/stop")["state"] == "stopped"
    assert running.api("POST", f"training-tasks/{id}/resume")["attempt"] == 2
    assert running.until(id, "succeeded", "failed")["state"] == "succeeded"
    running.api("POST", f"training-tasks/{id}/resume", status=409)
    kinds = [one["kind"] for one in running.api("GET", f"training-tasks/{id}/events")["entries"]]
    assert "resume" in kinds


@pytest.mark.slow
def test_why_a_task_failed_is_told_in_the_callers_language(running):
    id = running.created(scripts(ends=("echo 'RuntimeError: no room'; exit 3",)), maxRestarts=0)
    task = running.until(id, "failed", "succeeded")
    assert task["state"] == "failed"
    assert task["notice"]["code"] == "task_node_failed"
    assert "3" in task["notice"]["message"]
    assert "no room" in task["notice"]["message"]
    chinese = running.api("GET", f"training-tasks/{id}?lang=zh")["notice"]["message"]
    assert "no room" in chinese
    assert chinese != task["notice"]["message"]
    listed = running.api("GET", "training-tasks?lang=zh&state=failed")["entries"][0]
    assert listed["notice"]["message"] == chinese
    events = running.api("GET", f"training-tasks/{id}/events?lang=zh")["entries"]
    assert events[-1]["about"]["notice"]["message"] == chinese


@pytest.mark.slow
def test_several_tasks_run_side_by_side(running):
    ids = [running.created(scripts(pause=0.05), name=f"t{n}") for n in range(6)]
    assert [running.until(id, "succeeded", "failed")["state"] for id in ids] == ["succeeded"] * 6


@pytest.mark.slow
def test_tasks_outlive_the_server_and_the_next_one_takes_them_up(tmp_path, monkeypatch):
    store = str(tmp_path / "crosszone.db")
    for number in range(2):
        with TestClient(create_app(store=store, workers=1), base_url=HERE) as client:
            api = Api(client)
            running = Running(api, monkeypatch)
            if number == 0:
                registered(api)
                local = {"id": "local-0", "name": "n", "zone": "z", "runner": "local", "workdir": str(tmp_path / "w"),
                         "address": "127.0.0.1"}  # fmt: skip
                api("POST", "environments", local, status=201)
                id = running.created(scripts(nodes=1, pause=0.5))
                running.until(id, "running")
            else:
                assert running.until(id, "succeeded", "failed")["state"] == "succeeded"
                text = api("GET", f"training-tasks/{id}/logs/0")["text"]
                assert text.count("begins") == 1


@pytest.mark.slow
def test_a_driver_ends_and_survives_a_store_that_is_away():
    class Stubborn:
        calls = 0

        def run_until(self, stop):
            Stubborn.calls += 1
            if Stubborn.calls == 1:
                raise StoreError(Notice(code="store_busy", value="x", params={"reason": "busy"}))
            threading.Event().wait(600)  # a machine that does not answer; whoever waited for it would miss the limit

    driver = TaskDriver(Stubborn())
    driver.start()
    wait_until(lambda: Stubborn.calls == 2)
    driver.close()
