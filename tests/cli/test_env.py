"""`crosszone env`, `crosszone dataset` and `crosszone model` as a user meets them."""

from __future__ import annotations

import json
import sys
import time

import pytest

from crosszone.inputs.environment import MeasuredLink
from crosszone.store import open_store
from crosszone.text import LANGUAGES

LISTED = """
environments:
  - {id: env-001, name: pytorch-dev-env, type: jupyter, status: running, zone: beijing-a, runner: ssh,
     address: 10.0.1.7, gpu: a100-80gb-sxm, gpus: 2, cpus: 16, memory_gb: 128, since: %d}
  - {id: env-003, name: llm-training-env, status: running, zone: shenzhen-c,
     address: 10.0.3.7, gpu: a100-80gb-sxm, gpus: 4, cpus: 32, memory_gb: 256, since: %d}
  - {id: env-005, name: nlp-research-lab, status: stopped, zone: shanghai-a,
     address: 10.0.5.7, gpu: h100-80gb-sxm, gpus: 8, cpus: 64, memory_gb: 512}
"""
DAY = 86_400


@pytest.fixture
def told(say):
    """Run a command that succeeds; gives its JSON."""

    def run(*arguments: object) -> dict:
        status, out, err = say(*arguments, "--json")
        assert (status, err) == (0, ""), out + err
        return json.loads(out)

    return run


@pytest.fixture
def three(told, tmp_path):
    """The three environments of the platform's own example."""
    file = tmp_path / "environments.yaml"
    file.write_text(LISTED % (time.time() - 5 * DAY - 3 * 3600 - 60, time.time() - DAY / 2 - 60), encoding="utf-8")
    assert told("env", "import", file) == {"added": ["env-001", "env-003", "env-005"], "changed": []}
    return file


def ids(found: dict) -> list[str]:
    return [entry["id"] for entry in found["entries"]]


def test_the_three_of_the_example_add_up(three, say, told):
    together = told("env", "list")["selection"]
    assert (together["nodes"], together["gpus"], together["cpus"], together["memory_gb"]) == (3, 14, 112, 896)
    assert together["zones"] == ["beijing-a", "shenzhen-c", "shanghai-a"]
    shown = say("env", "list")[1]
    assert "nodes 3, GPUs 14 (a100-80gb-sxm, h100-80gb-sxm), cores 112, memory 896 GB, zones 3" in shown
    assert "5 d 3 h" in shown and "12 h 1 min" in shown


def test_filter_and_sort(three, told):
    assert ids(told("env", "list", "--zone", "shenzhen-c")) == ["env-003"]
    assert ids(told("env", "list", "--gpu", "A100-80GB-SXM")) == ["env-001", "env-003"]
    assert ids(told("env", "list", "--gpu", "cpu")) == []
    assert ids(told("env", "list", "--status", "stopped")) == ["env-005"]
    assert ids(told("env", "list", "--type", "jupyter")) == ["env-001"]
    assert ids(told("env", "list", "--sort", "name")) == ["env-003", "env-005", "env-001"]
    assert ids(told("env", "list", "--sort", "gpus", "--desc")) == ["env-005", "env-003", "env-001"]
    assert ids(told("env", "list", "--sort", "uptime")) == ["env-003", "env-001", "env-005"]
    assert ids(told("env", "list", "--sort", "uptime", "--desc")) == ["env-001", "env-003", "env-005"]
    assert told("env", "list", "--zone", "shenzhen-c")["selection"]["gpus"] == 4


def test_bad_input_is_refused_with_2(three, say):
    for words in (
        ("env", "list", "--sort", "colour"),
        ("env", "show", "nobody"),
        ("env", "add", "env-001", "--zone", "x"),
        ("env", "add", "no blank", "--zone", "x"),
        ("env", "add", "e", "--zone", "x", "--set", "colour=red"),
        ("env", "add", "e", "--zone", "x", "--set", "colour"),
        ("env", "add", "e", "--zone", "x", "--runner", "telnet"),
        ("env", "change", "env-001", "gpus=-1"),
        ("env", "import", "--format", "yaml"),
        ("env", "import", three, "--format", "ssh_config"),
        ("env", "import", three, "--format", "csv"),
        ("env", "probe"),
        ("env", "probe", "nobody"),
        ("env", "measure", "env-001"),
        ("env", "cluster", "nobody"),
        ("env", "remove", "nobody"),
        ("dataset", "show", "nobody"),
        ("dataset", "add", "d"),
        ("model", "add", "m", "--model", "unheard-of"),
    ):
        status, out, err = say(*words)
        assert status == 2, (words, out, err)
        assert "error" in err or "Usage" in err, words
        assert "Traceback" not in err
        status, out, err = say(*words, "--json")
        assert status == 2
        assert json.loads(out)["errors"][0]["message"], words


def test_an_environment_is_added_changed_shown_and_removed(say, told):
    added = told(
        "env", "add", "one", "--zone", "a", "--address", "10.0.0.1", "--ssh-user", "ml", "--set", "nic_gbps=200"
    )
    assert added["value"]["nic_gbps"] == 200
    assert added["value"]["name"] == "one"
    changed = told("env", "change", "one", "gpus=8", "gpu=h100-80gb-sxm", "ssh_user=null")
    assert (changed["value"]["gpus"], changed["value"]["ssh_user"], changed["value"]["nic_gbps"]) == (8, None, 200)
    shown = say("env", "show", "one")[1]
    assert "h100-80gb-sxm" in shown and "crosszone env probe one" in shown
    assert told("env", "remove", "one") == {"removed": ["one"]}
    assert say("env", "show", "one")[0] == 2


def test_what_is_shown_as_yaml_can_be_imported_and_keeps_what_it_does_not_name(three, say, told, tmp_path):
    told("env", "change", "env-001", "python=/opt/bin/python")
    file = tmp_path / "one.yaml"
    file.write_text(say("env", "show", "env-001", "--yaml")[1], encoding="utf-8")
    before = told("env", "show", "env-001")["value"]
    assert told("env", "import", file) == {"added": [], "changed": ["env-001"]}
    assert told("env", "import", three)["changed"] == ["env-001", "env-003", "env-005"]
    assert told("env", "show", "env-001")["value"] == before
    assert before["python"] == "/opt/bin/python"


def test_hosts_of_an_ssh_config_are_imported(told, tmp_path):
    file = tmp_path / "config"
    file.write_text("Host gpu-1 gpu2.example.com\n  User ml\n  Port 2222\nHost *\n  User root\n", encoding="utf-8")
    found = told("env", "import", file, "--format", "ssh_config", "--zone", "beijing-a")
    assert found["added"] == ["gpu-1", "gpu2-example-com"]
    one = told("env", "show", "gpu2-example-com")["value"]
    assert (one["name"], one["address"], one["ssh_port"]) == ("gpu2.example.com", "gpu2.example.com", 2222)
    assert (one["ssh_user"], one["zone"], one["runner"]) == ("ml", "beijing-a", "ssh")


def test_what_slurm_and_kubernetes_printed_can_be_imported(say, told, tmp_path):
    slurm = tmp_path / "sinfo.txt"
    slurm.write_text("n1|bj|64|515000|gpu:a100:8|idle\nn2|sh|64|515000|gpu:a100:8|down\n", encoding="utf-8")
    assert told("env", "import", slurm, "--format", "slurm")["added"] == ["n1", "n2"]
    assert told("env", "show", "n2")["value"]["status"] == "stopped"
    nodes = tmp_path / "nodes.json"
    about = {"name": "ip-10.ec2.internal", "labels": {"topology.kubernetes.io/zone": "us-east-1a"}}
    nodes.write_text(json.dumps({"items": [{"metadata": about, "status": {}}]}), encoding="utf-8")
    assert told("env", "import", nodes, "--format", "kubernetes")["added"] == ["ip-10-ec2-internal"]
    nodes.write_text("[1]", encoding="utf-8")
    assert say("env", "import", nodes, "--format", "kubernetes")[0] == 2


@pytest.mark.slow
def test_this_machine_is_asked_measured_and_made_a_cluster_of(say, told, tmp_path):
    for id, zone, address in (("here", "a", "127.0.0.1"), ("there", "b", "127.0.0.2")):
        local = ("--runner", "local", "--address", address, "--python", sys.executable)
        told("env", "add", id, "--zone", zone, *local, "--workdir", tmp_path / "work")
    found = told("env", "probe", "--all")
    assert [one["value"]["status"] for one in found["entries"]] == ["running", "running"]
    assert all(one["value"]["facts"]["software"]["python"] for one in found["entries"])
    link = told("env", "measure", "here", "there")["links"][0]
    assert link["rtt_ms"] < 50 and link["gbps"] > 0.1
    assert len(told("env", "links")["links"]) == 1
    assert "here - there" in say("env", "show", "here")[1]
    told("env", "remove", "there")
    assert told("env", "links")["links"] == []


def test_a_machine_out_of_reach_is_told_and_marked(say, told, tmp_path):
    told(
        "env", "add", "away", "--zone", "a", "--address", "127.0.0.1", "--ssh-port", 9, "--set", "known_hosts=/dev/null"
    )
    status, out, err = say("env", "probe", "away")
    assert (status, out) == (1, "")
    assert "away" in err and "Traceback" not in err
    assert told("env", "list")["entries"][0]["value"]["status"] == "unreachable"
    status, out, err = say("env", "probe", "--all", "--json")
    assert status == 1
    assert json.loads(out)["errors"][0]["code"] == "machine_unreachable"


def test_environments_with_gpus_make_the_cluster_of_a_scenario(three, say, told, tmp_path, home):
    found = {"rtt_ms": 31.0, "rtt_ms_least": 30.0, "rtt_ms_most": 33.0, "gbps": 9.0, "gbps_back": 8.0, "measured": 1.0}
    link = MeasuredLink(first="env-001", second="env-003", **found)
    with open_store(str(home / "crosszone.db")) as store:
        store.measured_links.put(link.id, link)
    made = told("env", "cluster", "env-003", "env-001")["cluster"]
    assert [zone["name"] for zone in made["zones"]] == ["shenzhen-c", "beijing-a"]
    assert made["links"][0]["rtt_ms"] == 31
    target = tmp_path / "cluster.yaml"
    assert say("env", "cluster", "env-003", "env-001", "-o", target)[0] == 0
    assert say("env", "cluster", "env-003", "env-001", "-o", target)[0] == 2
    scenario = tmp_path / "scenario.yaml"
    text = "model: gpt-2\njob: {seq_len: 1024, global_batch: 96}\ncluster: {file: cluster.yaml}\nstrategy: {dp: 6}\n"
    scenario.write_text(text, encoding="utf-8")
    assert say("scenario", "check", scenario)[0] == 0


def test_an_environment_in_which_a_task_runs_stays(three, say, home):
    with open_store(str(home / "crosszone.db")) as store:
        store.tasks.add(name="t", request={"distributedConfig": {"nodeIds": ["env-001"]}})
    status, _, err = say("env", "remove", "env-001")
    assert status == 2
    assert "env-001" in err


def test_a_store_of_ones_own(told, tmp_path):
    store = ("--store", tmp_path / "other.db")
    told("env", "add", "one", "--zone", "a", *store)
    assert ids(told("env", "list", *store)) == ["one"]
    assert ids(told("env", "list")) == []


def test_datasets_have_versions(say, told):
    told("dataset", "add", "wiki", "--version", "v1", "--path", "/data/wiki.bin", "--about", "pages")
    second = told("dataset", "add", "wiki", "--version", "v2")
    assert [one["id"] for one in second["value"]["versions"]] == ["v1", "v2"]
    assert second["value"]["about"] == "pages"
    assert say("dataset", "add", "wiki", "--version", "v2")[0] == 2
    assert "/data/wiki.bin" in say("dataset", "list")[1]
    told("dataset", "remove", "wiki", "--version", "v1")
    assert [one["id"] for one in told("dataset", "show", "wiki")["value"]["versions"]] == ["v2"]
    assert say("dataset", "remove", "wiki", "--version", "v1")[0] == 2
    told("dataset", "remove", "wiki", "--version", "v2")
    assert ids(told("dataset", "list")) == []


def test_a_version_is_looked_at_on_a_machine(told, say, tmp_path):
    import hashlib

    file = tmp_path / "tokens.bin"
    file.write_bytes(b"\1\0" * 5000)
    told("env", "add", "here", "--zone", "a", "--runner", "local")
    told("dataset", "add", "mine", "--version", "v1", "--path", file)
    version = told("dataset", "check", "mine", "v1", "--env", "here")["value"]["versions"][0]
    assert version["bytes"] == 10_000
    assert version["sha256"] == hashlib.sha256(b"\1\0" * 5000).hexdigest()
    assert "10,000" in say("dataset", "show", "mine")[1]
    assert say("dataset", "check", "mine", "v2", "--env", "here")[0] == 2


def test_models_come_from_the_catalogue_or_a_file(say, told, tmp_path):
    told("model", "add", "mine", "--model", "gpt-2", "--weights", "/models/gpt-2")
    file = tmp_path / "small.yaml"
    file.write_text("model: {like: gpt-2, layers: 2, name: small}\n", encoding="utf-8")
    told("model", "add", "small", "--model", file)
    assert told("model", "show", "small")["value"]["model"] == {"like": "gpt-2", "layers": 2, "name": "small"}
    shown = say("model", "list")[1]
    assert "/models/gpt-2" in shown and "(own fields)" in shown
    file.write_text("model: {like: gpt-2, layers: -2}\n", encoding="utf-8")
    status, _, err = say("model", "add", "bad", "--model", file)
    assert status == 2
    assert "layers" in err
    told("model", "remove", "mine")
    assert ids(told("model", "list")) == ["small"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_both_languages(three, say, language):
    for words in (
        ("env", "list"),
        ("env", "show", "env-001"),
        ("env", "links"),
        ("dataset", "list"),
        ("model", "list"),
    ):
        status, out, err = say("--lang", language, *words)
        assert (status, err) == (0, "")
        assert any("\u4e00" <= c <= "\u9fff" for c in out) is (language == "zh"), out
