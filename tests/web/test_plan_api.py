"""Predictions, plans, analyses, what-ifs and sweeps over HTTP: the numbers of the command line, told while they are made."""

import json
import os
import signal

import pytest

from commands import call
from crosszone.web.scenarios import find_examples_folder
from crosszone.web.workers import WorkerProcess

FILE = str(find_examples_folder() / "three-cities.yaml")
TWO_ZONES = (find_examples_folder() / "two-zones-7b.yaml").read_text("utf-8")
SLOW = {"x": "cluster.links[*].gbps=1:100:log30", "y": "cluster.links[*].rtt_ms=5:200:30", "free": True}
"""A sweep that takes minutes."""


def command_line(*arguments):
    done = call(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bare(value):
    """An answer without what differs from one time or place to the next: the clock, files and lines."""
    if isinstance(value, dict):
        return {key: bare(inner) for key, inner in value.items() if key not in ("seconds", "file", "line")}
    return [bare(inner) for inner in value] if isinstance(value, list) else value


def events(text):
    """The events of a stream, in order."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "body", "arguments"),
    [
        ("predict", {}, ["predict", FILE]),
        ("plan", {}, ["plan", FILE]),
        ("plan", {"objective": "cost", "top": 2, "pins": {"pp": 2}}, ["plan", FILE, "--objective", "cost", "--top", "2", "--pin", "pp=2"]),
        ("analyse", {}, ["analyse", FILE]),
        ("analyse", {"parts": ["traffic", "drill"]}, ["analyse", FILE, "--part", "traffic", "--part", "drill"]),
        ("what-if", {"changes": {"job.global_batch": 512}}, ["what-if", FILE, "--set", "job.global_batch=512"]),
        ("what-if", {"switches": {"flows": 4}}, ["what-if", FILE, "--switch", "flows=4"]),
        ("sweep", {"x": "cluster.links[*].gbps=1:50:3"}, ["sweep", FILE, "--x", "cluster.links[*].gbps=1:50:3"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_answer_is_what_the_command_line_prints(client, three_cities, route, body, arguments):
    answer = client.post(f"/api/v1/{route}", json={"text": three_cities, **body})
    assert answer.status_code == 200, answer.text
    printed = bare(command_line("--lang", "en", *arguments, "--json"))
    assert {key: inner for key, inner in bare(answer.json()).items() if key in printed} == printed


def test_both_languages_give_the_same_numbers(client, three_cities):
    def numbers(value):
        if isinstance(value, dict):
            return {key: numbers(inner) for key, inner in value.items() if key not in ("seconds", "message", "hint")}
        return [numbers(inner) for inner in value] if isinstance(value, list) else value

    english, chinese = (
        client.post("/api/v1/plan", json={"text": three_cities}, params={"lang": language}).json()
        for language in ("en", "zh")
    )
    assert numbers(english) == numbers(chinese)
    assert english["plans"][0]["reasons"][0]["message"] != chinese["plans"][0]["reasons"][0]["message"]


def test_the_way_of_a_plan_is_predicted_as_the_plan_says(client, three_cities):
    plan = client.post("/api/v1/plan", json={"text": three_cities}).json()["plans"][0]
    way = {key: plan[key] for key in ("framework", "strategy", "placement")}
    again = client.post("/api/v1/predict", json={"text": three_cities, "way": way}).json()
    assert again["step_time_s"] == plan["prediction"]["step_time_s"]
    assert again["memory_gib"] == plan["prediction"]["memory_gib"]
    halved = three_cities.replace("gbps: 10,", "gbps: 1,")
    slower = client.post("/api/v1/predict", json={"text": halved, "way": way}).json()
    assert slower["step_time_s"]["expected"] > again["step_time_s"]["expected"]


def test_a_stream_tells_how_far_the_work_is_and_ends_with_the_answer(client):
    answer = client.post("/api/v1/plan", json={"text": TWO_ZONES}, headers={"Accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = events(answer.text)
    assert told[0][0] == "started" and told[0][1]["id"]
    assert told[-1][0] == "result"
    progress = [data for name, data in told if name == "progress"]
    assert progress and all(0 <= step["done"] <= step["of"] for step in progress)
    assert bare(told[-1][1]) == bare(client.post("/api/v1/plan", json={"text": TWO_ZONES}).json())


def test_a_stream_tells_refusals_in_the_language_of_the_request(client, three_cities):
    text = three_cities.replace("tp: 8", "tp: 7")
    for language in ("en", "zh"):
        answer = client.post(
            "/api/v1/plan", json={"text": text}, params={"lang": language}, headers={"Accept": "text/event-stream"}
        )
        name, error = events(answer.text)[-1]
        assert name == "error"
        assert set(error) == {"code", "message", "field", "hint", "errors"}
        assert error["field"] == "strategy.tp"
        assert error["errors"][0]["line"]
        assert any("\u4e00" <= letter <= "\u9fff" for letter in error["message"]) == (language == "zh")


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("plan", {"objective": "speed"}, "objective"),
        ("plan", {"top": 0}, "top"),
        ("plan", {"top": 2**63}, "top"),
        ("plan", {"top": "5"}, "top"),
        ("plan", {"budget_s": -1}, "budget_s"),
        ("plan", {"pins": {"tq": 8}}, "strategy.tq"),
        ("plan", {"pins": []}, "pins"),
        ("plan", {"text": "", "pins": {"pp": 2}}, ""),
        ("plan", {"text": "- 1", "pins": {"pp": 2}}, ""),
        ("analyse", {"parts": ["weather"]}, "parts.0"),
        ("analyse", {"parts": []}, "parts"),
        ("what-if", {"changes": {"job.global_batsh": 1}}, "job.global_batsh"),
        ("what-if", {"switches": {"warp": 9}}, "switches"),
        ("sweep", {}, "x"),
        ("sweep", {"x": "job.global_batch=nothing"}, "job.global_batch"),
        ("sweep", {"x": "job.global_batch"}, "x"),
        ("sweep", {"x": "a" * 3000}, "x"),
        ("predict", {"way": {"strategy": {"tp": 3}}}, "strategy.tp"),
        ("predict", {"way": {"strategy": 3}}, "way.strategy"),
        ("predict", {"way": {"strategy": {}, "placement": {"blocks": []}}}, "placement.blocks"),
    ],
)
def test_wrong_fields_are_named(client, three_cities, route, body, field):
    answer = client.post(f"/api/v1/{route}", json={"text": three_cities, **body})
    assert answer.status_code == 422, answer.text
    assert field in [error["field"] for error in answer.json()["errors"]], answer.text


@pytest.mark.slow
def test_work_can_be_cancelled_by_its_id(server_client):
    with server_client.stream(
        "POST", "/api/v1/sweep", json={"text": TWO_ZONES, **SLOW}, headers={"Accept": "text/event-stream"}
    ) as stream:
        lines = stream.iter_lines()
        started = next(line for line in lines if line.startswith("data: "))
        identity = json.loads(started[6:])["id"]
        assert server_client.delete(f"/api/v1/work/{identity}").status_code == 204
        told = events("\n".join(lines))
        assert told[-1][0] == "error" and told[-1][1]["code"] == "work_cancelled"
    gone = server_client.delete(f"/api/v1/work/{identity}")
    assert gone.status_code == 404 and gone.json()["code"] == "work_unknown"


@pytest.mark.slow
def test_work_of_a_client_that_hung_up_is_stopped(server_client):
    for _ in range(4):  # more than there are workers: those that go on would block what follows
        with server_client.stream(
            "POST", "/api/v1/sweep", json={"text": TWO_ZONES, **SLOW}, headers={"Accept": "text/event-stream"}
        ) as stream:
            next(stream.iter_lines())
    assert server_client.post("/api/v1/plan", json={"text": TWO_ZONES}).status_code == 200


def test_a_worker_that_dies_is_said_and_replaced(client, three_cities, monkeypatch):
    original = WorkerProcess.do

    def killed(worker, work):
        os.kill(worker._process.pid, signal.SIGKILL)
        worker._process.wait()
        return original(worker, work)

    monkeypatch.setattr(WorkerProcess, "do", killed)
    answer = client.post("/api/v1/plan", json={"text": three_cities})
    assert answer.status_code == 422 and answer.json()["code"] == "work_died"
    monkeypatch.undo()
    assert client.post("/api/v1/plan", json={"text": three_cities}).status_code == 200
