"""Environments, datasets and models over HTTP, as a client would use them."""

from __future__ import annotations

import hashlib
import sys

import pytest

from crosszone.errors import MachineError, Notice
from crosszone.run.machine import Ssh
from web.client import A100, SEED, empty, undriven


@pytest.fixture(scope="module")
def undriven_api(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "crosszone.db"
    with undriven(path) as made:
        yield made, path


@pytest.fixture
def api(undriven_api):
    made, path = undriven_api
    empty(path)
    return made


def ids(answer):
    return [entry["id"] for entry in answer["entries"]]


def test_an_environment_is_registered_shown_changed_and_removed(api):
    made = api("POST", "environments", {"id": "env-001", **SEED["env-001"]}, status=201)
    assert made["id"] == "env-001"
    assert made["value"]["gpus"] == 2
    assert made["value"]["runner"] == "ssh"
    changed = api("PUT", "environments/env-001", {**SEED["env-001"], "gpus": 8})
    assert (changed["value"]["gpus"], changed["created"]) == (8, made["created"])
    assert changed["changed"] > made["changed"]
    assert api("GET", "environments/env-001") == changed
    api("DELETE", "environments/env-001", status=204)
    api("GET", "environments/env-001", status=404)
    api("PUT", "environments/env-001", SEED["env-001"], status=404)
    api("DELETE", "environments/env-001", status=404)


def test_an_id_is_made_where_none_is_given_and_none_is_taken_twice(api):
    first = api("POST", "environments", {"name": "a", "zone": "z"}, status=201)
    api("POST", "environments", {"id": first["id"], "name": "b", "zone": "z"}, status=409)
    refusal = api("POST", "environments", {"id": "no id", "name": "b", "zone": "z"}, status=422)
    assert refusal["code"] == "registered_id"


def test_what_is_wrong_with_an_environment_is_told_by_field_in_both_languages(api):
    refusal = api("POST", "environments", {"name": "a", "zone": "z", "gpus": -1}, status=422)
    assert (refusal["code"], refusal["field"]) == ("must_be_at_least", "gpus")
    refusal = api("POST", "environments?lang=zh", {"name": "a", "zone": "z", "runner": "telnet"}, status=422)
    assert (refusal["code"], refusal["field"]) == ("not_one_of", "runner")
    assert "ssh" in refusal["hint"] + refusal["message"]
    refusal = api("POST", "environments", {"zone": "z"}, status=422)
    assert (refusal["code"], refusal["field"]) == ("missing_key", "name")
    api("POST", "environments", {"name": "a", "zone": "z", "password": "secret"}, status=422)


def test_a_key_is_a_name_of_a_file_never_its_text(api):
    api("POST", "environments", {"name": "a", "zone": "z", "ssh_key": "-----BEGIN KEY-----\nabc"}, status=422)
    made = api("POST", "environments", {"name": "a", "zone": "z", "ssh_key": "~/.ssh/id_ed25519"}, status=201)
    assert made["value"]["ssh_key"] == "~/.ssh/id_ed25519"


def test_environments_are_filtered_and_sorted(api):
    api.seed()
    api("POST", "environments", {"id": "cpu", "name": "Notebook", "zone": "beijing-a", "since": 200}, status=201)
    whole = api("GET", "environments")
    assert ids(whole) == ["env-001", "env-003", "env-005", "cpu"]
    assert whole["zones"] == ["beijing-a", "shanghai-a", "shenzhen-c"]
    assert whole["gpus"] == ["a100-80gb-sxm"]
    assert whole["types"] == ["custom", "jupyter"]
    assert whole["statuses"] == ["running", "unknown"]
    assert ids(api("GET", "environments?zone=beijing-a")) == ["env-001", "cpu"]
    assert ids(api("GET", "environments?zone=beijing-a&zone=shanghai-a&gpu=a100-80gb-sxm")) == ["env-001", "env-005"]
    assert ids(api("GET", "environments?status=running&type=custom")) == ["env-003"]
    assert api("GET", "environments?zone=nowhere")["zones"] == whole["zones"]
    assert ids(api("GET", "environments?sort=name")) == ["env-003", "env-005", "cpu", "env-001"]
    assert ids(api("GET", "environments?sort=gpus&order=desc")) == ["env-005", "env-003", "env-001", "cpu"]
    assert ids(api("GET", "environments?sort=uptime")) == ["env-001", "cpu", "env-003", "env-005"]
    assert ids(api("GET", "environments?sort=uptime&order=desc")) == ["env-003", "cpu", "env-001", "env-005"]
    api("GET", "environments?sort=colour", status=422)


def test_environments_are_imported_from_a_list_and_known_ones_keep_what_is_not_in_it(api):
    api("POST", "environments", {"id": "env-001", **SEED["env-001"], "image": "pytorch:2"}, status=201)
    text = "environments:\n- {id: env-001, name: other, zone: z}\n- {name: gpu.example, zone: z}\n"
    answer = api("POST", "environments/import", {"format": "yaml", "text": text})
    assert answer == {"added": ["gpu-example"], "changed": ["env-001"], "notices": []}
    value = api("GET", "environments/env-001")["value"]
    assert (value["name"], value["zone"], value["image"], value["gpus"]) == ("other", "z", "pytorch:2", 2)
    again = api("POST", "environments/import", {"format": "yaml", "text": text})
    assert again["added"] == []


def test_an_import_that_is_wrong_names_the_line_and_keeps_nothing(api):
    text = "environments:\n- {name: a, zone: z}\n- {name: b, zone: z, gpus: many}\n"
    refusal = api("POST", "environments/import", {"format": "yaml", "text": text}, status=422)
    assert (refusal["field"], refusal["errors"][0]["line"]) == ("environments[1].gpus", 3)
    assert api("GET", "environments")["entries"] == []
    assert api("POST", "environments/import", {"format": "yaml"}, status=422)["field"] == "text"
    api("POST", "environments/import", {"format": "csv", "text": "a"}, status=422)


def test_an_ssh_config_is_imported_and_can_run_nothing(api, tmp_path):
    text = "Host gpu-1\n  HostName 10.0.0.1\n  User ml\n  Port 2222\nHost *\n  User any\n"
    answer = api("POST", "environments/import", {"format": "ssh_config", "text": text, "zone": "z"})
    assert answer["added"] == ["gpu-1"]
    value = api("GET", "environments/gpu-1")["value"]
    assert (value["address"], value["ssh_user"], value["ssh_port"], value["zone"]) == ("10.0.0.1", "ml", 2222, "z")
    assert api("POST", "environments/import", {"format": "ssh_config", "text": text}, status=422)["field"] == "zone"
    mark = tmp_path / "ran"
    for line in (f'Match exec "touch {mark}"', f'  "match" exec "touch {mark}"', f'mAtCh=exec "touch {mark}"',
                 "Include /etc/passwd", " 'include' /etc/passwd"):  # fmt: skip
        body = {"format": "ssh_config", "text": f"Host gpu-1\n{line}\n", "zone": "z"}
        refusal = api("POST", "environments/import", body, status=422)
        assert refusal["code"] == "ssh_config_line"
        assert "2" in refusal["message"]
    assert not mark.exists()
    many = {"format": "ssh_config", "text": "Host " + " ".join(f"h{n}" for n in range(501)), "zone": "z"}
    assert api("POST", "environments/import", many, status=422)["code"] == "ssh_config_hosts"


def test_nodes_of_schedulers_are_imported_from_what_they_print(api):
    text = "n1|train|64|512000|gpu:a100:8(S:0-1)|idle\nn2|train|64|512000|(null)|down*\n"
    assert api("POST", "environments/import", {"format": "slurm", "text": text})["added"] == ["n1", "n2"]
    first = api("GET", "environments/n1")["value"]
    assert (first["runner"], first["gpus"], first["status"]) == ("slurm", 8, "running")
    refusal = api("POST", "environments/import", {"format": "slurm", "text": "n1|a|many|1|x|idle"}, status=422)
    assert refusal["code"] == "import_unreadable"
    for text in ("", "{", "[]", '{"items": [{}]}', '{"items": 1}', "[" * 10_000):
        body = {"format": "kubernetes", "text": text}
        assert api("POST", "environments/import", body, status=422)["code"] == "import_unreadable"


def test_a_scheduler_that_is_not_there_is_said_so(api, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for format, code in (("slurm", "slurm_missing"), ("kubernetes", "kubernetes_missing")):
        assert api("POST", "environments/import", {"format": format}, status=424)["code"] == code


@pytest.mark.slow
def test_this_machine_is_probed(api):
    local = {"id": "here", "name": "here", "zone": "z", "runner": "local", "python": sys.executable}
    api("POST", "environments", local, status=201)
    value = api("POST", "environments/here/probe")["value"]
    assert value["status"] == "running"
    assert value["cpus"] >= 1
    assert value["memory_gb"] > 0
    assert value["facts"]["software"]["python"].startswith("3.")
    assert api("GET", "environments/here")["value"] == value
    api("POST", "environments/nobody/probe", status=404)


def test_a_machine_out_of_reach_is_marked_and_told(api, monkeypatch):
    def call(self, what, **_):
        raise MachineError(Notice(code="machine_unreachable", params={"machine": self.name, "reason": "timed out"}))

    monkeypatch.setattr(Ssh, "call", call)
    api.seed()
    refusal = api("POST", "environments/env-003/probe", status=424)
    assert (refusal["code"], refusal["field"]) == ("machine_unreachable", "")
    assert "env-003" in refusal["message"]
    assert refusal["hint"]
    assert api("GET", "environments/env-003")["value"]["status"] == "unreachable"
    api("POST", "environments/measure", {"first": "env-001", "second": "env-003"}, status=424)
    api("POST", "environments/measure", {"first": "env-001", "second": "nobody"}, status=404)
    refusal = api("POST", "environments/measure", {"first": "env-001", "second": "env-001"}, status=422)
    assert refusal["code"] == "measure_same"


@pytest.mark.slow
def test_a_link_is_measured_becomes_part_of_a_cluster_and_goes_with_its_environment(api):
    for id, zone in (("a", "beijing-a"), ("b", "shenzhen-c")):
        local = {"id": id, "name": id, "zone": zone, "runner": "local", "address": "127.0.0.1", **A100, "gpus": 2}
        api("POST", "environments", local, status=201)
    link = api("POST", "environments/measure", {"first": "a", "second": "b"})["value"]
    assert link["rtt_ms"] < 50
    assert link["gbps"] > 0.01
    assert [entry["value"] for entry in api("GET", "environments/links")["entries"]] == [link]
    made = api("POST", "environments/cluster", {"nodeIds": ["a", "b"]})
    assert [zone["name"] for zone in made["cluster"]["zones"]] == ["beijing-a", "shenzhen-c"]
    assert made["cluster"]["links"][0]["rtt_ms"] == link["rtt_ms"]
    assert "between: [beijing-a, shenzhen-c]" in made["text"] or "beijing-a" in made["text"]
    api("DELETE", "environments/b", status=204)
    assert api("GET", "environments/links")["entries"] == []


def test_a_cluster_names_only_what_there_is(api):
    api("POST", "environments/cluster", {"nodeIds": ["nobody"]}, status=404)
    api("POST", "environments/cluster", {"nodeIds": []}, status=422)


def test_the_three_environments_together(api):
    """3 nodes, 14 GPUs of one kind, 112 cores, 896 GB, 3 zones: the figures of the platform's own example."""
    api.seed()
    where = {"nodeIds": list(SEED), "masterNode": "env-005", "framework": "pytorch-ddp"}
    chosen = api("POST", "environments/selection", {"distributedConfig": where})
    together = chosen["selection"]
    assert (together["nodes"], together["gpus"], together["cpus"], together["memory_gb"]) == (3, 14, 112, 896)
    assert together["gpu_kinds"] == ["a100-80gb-sxm"]
    assert together["zones"] == ["beijing-a", "shenzhen-c", "shanghai-a"]
    assert together["distributed"]
    assert chosen["master"] == "env-005"
    without = api("POST", "environments/selection", {"distributedConfig": {**where, "nodeIds": ["env-003", "env-001"]}})
    assert without["master"] == "env-003"  # the master was deselected: the first that is left
    assert api("POST", "environments/selection", {})["master"] is None


@pytest.mark.slow
def test_a_selection_with_a_model_is_predicted(api):
    api.seed()
    where = {"nodeIds": list(SEED), "masterNode": "env-001", "framework": "pytorch-fsdp"}
    chosen = api("POST", "environments/selection", {"modelId": "llama-2-7b", "distributedConfig": where})
    band = chosen["step_time_s"]
    assert band["low"] < band["expected"] < band["high"]
    assert chosen["tokens_per_s"] > 0
    assert chosen["slowdown"] > 1
    assert "task_cross_zone" in [notice["code"] for notice in chosen["notices"]]
    single = {"modelId": "llama-2-7b", "distributedConfig": {"nodeIds": ["env-005"]}}
    assert api("POST", "environments/selection", single)["slowdown"] is None


def test_datasets_have_versions(api):
    body = {"id": "d", "name": "wiki", "versions": [{"id": "v1"}, {"id": "v1"}]}
    assert api("POST", "datasets", body, status=422)["code"] == "version_twice"
    body["versions"][1]["id"] = "v2"
    api("POST", "datasets", body, status=201)
    assert [one["id"] for one in api("GET", "datasets")["entries"][0]["value"]["versions"]] == ["v1", "v2"]
    api("POST", "datasets", {"name": "none", "versions": []}, status=422)
    changed = api("PUT", "datasets/d", {"name": "wiki", "versions": [{"id": "v3", "path": "/data/x.bin"}]})
    assert changed["value"]["versions"][0]["path"] == "/data/x.bin"
    api("DELETE", "datasets/d", status=204)
    api("GET", "datasets/d", status=404)


def test_a_version_is_looked_at_where_it_lies(api, tmp_path):
    data = tmp_path / "tokens.bin"
    data.write_bytes(b"\x01\x00" * 500)
    versions = [{"id": "v1", "path": str(data)}, {"id": "v2", "path": str(tmp_path / "gone")}, {"id": "v3"}]
    api("POST", "datasets", {"id": "d", "name": "d", "versions": versions}, status=201)
    api("POST", "environments", {"id": "here", "name": "here", "zone": "z", "runner": "local"}, status=201)
    found = api("POST", "datasets/d/versions/v1/check", {"environment": "here"})["value"]["versions"]
    assert (found[0]["bytes"], found[0]["sha256"]) == (1000, hashlib.sha256(data.read_bytes()).hexdigest())
    assert found[1]["sha256"] is None
    assert api("GET", "datasets/d")["value"]["versions"] == found
    assert api("POST", "datasets/d/versions/v2/check", {"environment": "here"}, status=424)["code"] == "data_missing"
    assert api("POST", "datasets/d/versions/v3/check", {"environment": "here"}, status=422)["code"] == "dataset_no_path"
    api("POST", "datasets/d/versions/v9/check", {"environment": "here"}, status=404)
    api("POST", "datasets/d/versions/v1/check", {"environment": "nobody"}, status=404)


def test_models_are_registered(api):
    api("POST", "training-models", {"id": "m", "name": "Llama", "model": "llama-2-7b"}, status=201)
    tiny = {"layers": 2, "hidden": 64, "heads": 2, "vocab": 256}
    api("POST", "training-models", {"id": "t", "name": "tiny", "model": tiny, "weights": "/w"}, status=201)
    assert ids(api("GET", "training-models")) == ["m", "t"]
    assert api("PUT", "training-models/m", {"name": "L", "model": "llama-2-7b"})["value"]["name"] == "L"
    api("DELETE", "training-models/t", status=204)
    assert ids(api("GET", "training-models")) == ["m"]


def test_frameworks_are_told_in_both_languages_and_horovod_says_why_not(api):
    found = {one["name"]: one for one in api("GET", "training-frameworks")}
    assert list(found) == ["pytorch-ddp", "pytorch-fsdp", "deepspeed", "horovod", "megatron-lm"]
    assert [name for name, one in found.items() if not one["available"]] == ["horovod"]
    assert "C++14" in found["horovod"]["reason"]
    assert found["pytorch-ddp"]["framework"] == "ddp"
    chinese = {one["name"]: one for one in api("GET", "training-frameworks?lang=zh")}
    assert chinese["pytorch-ddp"]["kind"] == "数据并行"
    assert "探测" in chinese["horovod"]["reason"]
    facts = {"software": {"python": "3.11", "horovod": "0.28.1"}}
    api("POST", "environments", {"id": "h", "name": "h", "zone": "z", "facts": facts}, status=201)
    assert all(one["available"] for one in api("GET", "training-frameworks"))
