"""`crosszone task` as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from crosszone.store import open_store
from crosszone.store.tasks import LIVE
from crosszone.text import LANGUAGES
from waiting import wait_until

pytestmark = pytest.mark.slow
TRAIN_PYTHON = ROOT / ".venv-train/bin/python"
TINY = "model: {name: tiny, layers: 2, hidden: 32, heads: 2, ffn_hidden: 64, vocab: 128}\n"
GPUS = ("--gpu", "a100-80gb-sxm", "--cpus", 16, "--memory-gb", 128)
INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from crosszone.cli import main; main()"
)
"""The command line, with Ctrl-C also where whoever runs the tests ignores it."""


@pytest.fixture
def told(say):
    """Run a command that succeeds; gives its JSON."""

    def run(*arguments: object) -> dict:
        status, out, err = say(*arguments, "--json")
        assert (status, err) == (0, ""), out + err
        return json.loads(out)

    return run


@pytest.fixture
def store(home):
    """The store that commands use."""
    home.mkdir(exist_ok=True)
    with open_store(str(home / "crosszone.db")) as kept:
        yield kept


@pytest.fixture
def known(told, tmp_path):
    """Two environments with GPUs in two cities, one without on this machine, a dataset and a model."""
    told(
        "env", "add", "bj", "--zone", "beijing-a", "--region", "cn-beijing", "--address", "10.0.1.7", "--gpus", 2, *GPUS
    )
    told(
        "env",
        "add",
        "sz",
        "--zone",
        "shenzhen-c",
        "--region",
        "cn-shenzhen",
        "--address",
        "10.0.3.7",
        "--gpus",
        4,
        *GPUS,
    )
    local = ("--runner", "local", "--address", "127.0.0.1", "--python", sys.executable)
    told("env", "add", "here", "--zone", "a", *local, "--workdir", tmp_path / "work")
    told("dataset", "add", "syn", "--version", "v1")
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY, encoding="utf-8")
    told("model", "add", "tiny", "--model", file)


ASKED = ("--name", "first", "--dataset", "syn", "--version", "v1", "--model", "gpt-2")
TWO = (*ASKED, "--env", "bj", "--env", "sz", "--framework", "pytorch-ddp")


def test_what_is_missing_is_told_in_the_order_of_the_form(known, say):
    for words, code in (
        (("--dataset", "syn"), "task_name_missing"),
        (("--name", "n", "--env", "bj"), "task_dataset_missing"),
        (("--name", "n", "--dataset", "syn"), "task_dataset_missing"),
        (ASKED, "task_environment_missing"),
        ((*TWO, "--master", "here"), "task_master_invalid"),
        (TWO[:-2], "task_framework_missing"),
        ((*TWO, "--env", "nobody"), "task_unknown"),
        ((*TWO, "--dp", 2, "--tp", 2), "task_strategy_product"),
    ):
        status, out, _ = say("task", "create", *words, "--json")
        assert status == 2, words
        assert json.loads(out)["errors"][0]["code"] == code
        status, out, err = say("task", "create", *words)
        assert (status, out) == (2, "")
        assert "error" in err and "Traceback" not in err
    assert json.loads(say("task", "list", "--json")[1]) == {"entries": []}


def test_a_task_is_created_with_the_answer_of_the_api_and_a_summary(known, told):
    made = told("task", "create", *TWO, "--steps", 20)
    assert (made["code"], made["data"]["status"]) == (200, "initializing")
    assert made["data"]["distributedInfo"] == {
        "nodeCount": 2,
        "totalGpus": 6,
        "masterNode": "bj",
        "framework": "pytorch-ddp",
    }
    summary = made["summary"]
    assert (summary["selection"]["gpus"], summary["selection"]["cpus"], summary["selection"]["memory_gb"]) == (
        6,
        32,
        256,
    )
    assert summary["step_time_s"]["low"] <= summary["step_time_s"]["expected"] <= summary["step_time_s"]["high"]
    assert summary["slowdown"] > 1
    shown = told("task", "show", made["data"]["taskId"])
    assert shown["request"]["job"]["steps"] == 20
    assert not {"token", "plan", "driver"} & set(shown)


def test_the_summary_names_what_is_used_and_what_crossing_zones_costs(known, say):
    status, out, err = say("task", "create", *TWO)
    assert (status, err) == (0, "")
    assert "nodes 2, GPUs 6 (a100-80gb-sxm), cores 32, memory 256 GB, zones 2" in out
    assert "beijing-a, shenzhen-c" in out
    assert "times as long" in out
    assert "master" in out
    single = say("task", "create", *ASKED, "--env", "bj")[1]
    assert "Single-node training" in single
    assert "master" not in single and "times as long" not in single


def test_a_request_comes_from_a_file_and_flags_win(known, say, told, tmp_path):
    asked = {
        "taskName": "from a file",
        "datasetId": "syn",
        "datasetVersionId": "v1",
        "modelId": "gpt-2",
        "distributedConfig": {"nodeIds": ["sz", "bj"], "framework": "pytorch-ddp"},
        "job": {"steps": 5, "seq_len": 512},
        "settings": {"training": {"lr": 0.1}},
    }
    file = tmp_path / "request.json"
    file.write_text(json.dumps(asked), encoding="utf-8")
    id = told("task", "create", file, "--steps", 7, "--set", "training.seed=5")["data"]["taskId"]
    request = told("task", "show", id)["request"]
    assert (request["job"]["steps"], request["job"]["seq_len"]) == (7, 512)
    assert request["settings"] == {"training": {"lr": 0.1, "seed": 5}}
    assert request["distributedConfig"]["masterNode"] == "sz"
    other = told("task", "create", "--file", file, "--master", "bj")["data"]["distributedInfo"]
    assert other["masterNode"] == "bj"
    assert say("task", "create", file, "--file", file)[0] == 2
    file.write_text('{"taskname": "x"}', encoding="utf-8")
    status, _, err = say("task", "create", file)
    assert status == 2
    assert "request.json:1" in err and "taskName" in err
    assert say("task", "create", tmp_path / "missing.yaml")[0] == 2


def test_the_same_key_makes_one_task(known, say, told):
    first = told("task", "create", *TWO, "--key", "k")["data"]["taskId"]
    assert told("task", "create", *TWO, "--key", "k")["data"]["taskId"] == first
    assert say("task", "create", *TWO, "--key", "k", "--steps", 9)[0] == 2
    assert len(told("task", "list")["entries"]) == 1


def test_what_cannot_be_planned_is_refused_before_anything_is_stored(known, say, told):
    told("env", "change", "sz", "gpu=null")
    status, out, err = say("task", "create", *TWO)
    assert (status, out) == (2, "")
    assert "sz" in err
    assert told("task", "list")["entries"] == []


def test_lists_are_filtered_by_state(known, say, told, store):
    ids = [told("task", "create", *TWO)["data"]["taskId"] for _ in range(3)]
    store.tasks.move(ids[1], "initializing", "failed", notice={"code": "task_environment_gone", "value": "bj"})
    assert [one["id"] for one in told("task", "list")["entries"]] == ids[::-1]
    assert [one["id"] for one in told("task", "list", "--limit", 1)["entries"]] == ids[-1:]
    failed = told("task", "list", "--state", "failed")["entries"]
    assert [one["id"] for one in failed] == [ids[1]]
    assert "bj" in failed[0]["notice"]["message"]
    assert "bj" in say("task", "show", ids[1])[1]
    assert say("task", "list", "--state", "asleep")[0] == 2
    assert "failed" in say("task", "events", ids[1])[1]
    assert [one["kind"] for one in told("task", "events", ids[1])["events"]] == ["created", "state"]
    assert told("task", "events", ids[1], "--after", 1)["events"][0]["number"] == 2


def test_unknown_tasks_are_refused_also_when_their_id_looks_like_an_option(say):
    for verb in ("show", "watch", "logs", "events", "stop", "resume", "remove"):
        for id in ("nobody", "-nobody"):
            status, out, err = say("task", verb, id)
            assert (status, out) == (2, ""), verb
            assert id in err


def test_stopping_one_task_starts_no_other(known, say, told):
    first, second = (told("task", "create", *TWO)["data"]["taskId"] for _ in range(2))
    assert told("task", "stop", first)["state"] == "stopped"
    assert told("task", "show", second)["state"] == "initializing"
    assert "stopped" in say("task", "stop", first)[1]
    assert say("task", "remove", second)[0] == 2
    told("task", "remove", first)
    assert [one["id"] for one in told("task", "list")["entries"]] == [second]


def test_a_task_whose_checks_fail_says_why_and_can_be_resumed(known, say, told):
    """It claims a GPU that is not there, and the Python of these tests has no torch."""
    told("env", "change", "here", "gpu=a100-80gb-sxm", "gpus=1")
    words = (*ASKED[:-1], "tiny", "--env", "here", "--steps", 2, "--seq-len", 16)
    status, out, _ = say("task", "run", *words)
    assert status == 1
    assert "preflight" in out and "torch" in out
    id = told("task", "list")["entries"][0]["id"]
    shown = told("task", "show", id)
    assert shown["state"] == "failed"
    assert "torch" in shown["notice"]["message"]
    assert say("task", "logs", id)[0] == 0
    assert told("task", "resume", id)["state"] == "initializing"
    status, out, _ = say("task", "watch", id, "--json")
    assert status == 1
    assert json.loads(out)["attempt"] == 2
    assert json.loads(out)["state"] == "failed"


@pytest.mark.parametrize("language", LANGUAGES)
def test_both_languages(known, say, language):
    outputs = [say("--lang", language, "task", "create", *TWO)]
    id = json.loads(say("task", "list", "--json")[1])["entries"][0]["id"]
    outputs += [say("--lang", language, "task", *words) for words in (("list",), ("show", id), ("events", id))]
    outputs += [say("--lang", language, "task", *words, id) for words in (("logs",), ("stop",))]
    for status, out, err in outputs:
        assert (status, err) == (0, "")
        assert any("\u4e00" <= c <= "\u9fff" for c in out) is (language == "zh"), out


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.skipif(not TRAIN_PYTHON.exists(), reason="no Python with torch: .venv-train is missing")
def test_a_run_survives_its_watcher_is_stopped_and_goes_on_from_its_checkpoint(known, say, told, store, tmp_path):
    told("env", "change", "here", f"python={TRAIN_PYTHON}")
    told("env", "probe", "here")
    words = [
        *ASKED[:-1],
        "tiny",
        "--env",
        "here",
        "--steps",
        100_000,
        "--seq-len",
        16,
        "--batch",
        2,
        "--precision",
        "fp32",
    ]
    words += ["--framework", "pytorch-ddp", "--ignore-preflight", "--set", "training.checkpoint_every=5"]
    words += ["--set", f"python={TRAIN_PYTHON}"]
    watcher = subprocess.Popen(
        [sys.executable, "-m", "crosszone", "task", "run", *map(str, words)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        id = wait_until(lambda: next((row.id for row in store.tasks.page().rows), None))
        wait_until(lambda: store.tasks.get(id).progress.get("step", 0) > 10 or store.tasks.get(id).state not in LIVE)
        assert store.tasks.get(id).state == "running", store.tasks.get(id).notice
    finally:
        os.kill(watcher.pid, signal.SIGKILL)
        watcher.wait()
    before = told("task", "logs", id)["logs"][0]["text"]
    wait_until(lambda: len(told("task", "logs", id, "--rank", 0)["logs"]) and len(log(told, id)) > len(before))
    stopped = told("task", "stop", id)
    assert stopped["state"] == "stopped"
    assert not list(processes(str(tmp_path / "work")))
    reached = store.tasks.get(id).progress["step"]
    assert "step" in say("task", "logs", id, "--rank", 0)[1]
    assert "logs/node.log" in say("task", "logs", id, "--list")[1]
    told("task", "resume", id)
    again = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "task", "watch", id],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(
            lambda: store.tasks.get(id).progress.get("step", 0) > reached or store.tasks.get(id).state not in LIVE
        )
        assert store.tasks.get(id).state == "running", store.tasks.get(id).notice
    finally:
        again.send_signal(signal.SIGINT)
    assert again.wait(30) == 130
    told("task", "stop", id)
    shown = told("task", "show", id)
    assert shown["attempt"] == 2
    assert shown["prediction"]["step_time_s"]["expected"] > 0
    told("task", "remove", id)
    assert not list((tmp_path / "work" / "tasks").glob("*/*"))


def log(told, id: str) -> str:
    return told("task", "logs", id, "--whole")["logs"][0]["text"]


def processes(folder: str):
    """Processes that work in a folder."""
    for one in Path("/proc").iterdir():
        try:
            if one.name.isdigit() and os.readlink(one / "cwd").startswith(folder):
                yield one.name
        except OSError:
            continue


def test_help_of_every_verb_has_an_example(say):
    verbs = {
        "env": "list add change show remove import probe measure links cluster",
        "dataset": "list add show remove check",
        "model": "list add show remove",
        "task": "create run list show watch logs events stop resume remove",
    }
    for noun, words in verbs.items():
        for verb in words.split():
            status, out, _ = say(noun, verb, "--help")
            assert status == 0
            assert f"Example: crosszone {noun} {verb}" in out
            assert "--json" in out and "--store" in out
