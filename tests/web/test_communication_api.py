"""Changing a scenario by paths, and switches with what each could be turned to."""

import pytest

TWO_ZONES = """\
# kept
model: llama-2-7b
job: {seq_len: 4096, global_batch: 512, framework: fsdp}
cluster:
  zones:
    - {name: a, nodes: [{count: 1, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}]}
    - {name: b, nodes: [{count: 1, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}]}
  links: [{between: [a, b], gbps: 10, rtt_ms: 20}]   # and this
strategy: {tp: 1, pp: 1, zero: 3, shard_within: zone, communication: {flows: 4}}
"""


def changed(client, changes, text=TWO_ZONES):
    return client.post("/api/v1/scenarios/change", json={"text": text, "changes": changes})


def listed(client, **more):
    answer = client.post("/api/v1/what-if/switches", json={"text": TWO_ZONES, **more})
    assert answer.status_code == 200, answer.text
    return {one["name"]: one for one in answer.json()}


def test_fields_are_set_by_path_and_comments_stay(client):
    found = changed(client, {"cluster.links[*].gbps": 40, "strategy.communication.compression": "bf16"}).json()
    assert found["fields"]["cluster"]["links"][0]["gbps"] == 40
    assert found["fields"]["strategy"]["communication"] == {"flows": 4, "compression": "bf16"}
    assert "# kept" in found["yaml"]
    assert "# and this" in found["yaml"]
    again = client.post("/api/v1/scenarios/describe", json={"text": found["yaml"]}).json()
    assert again["fields"] == found["fields"]


def test_null_takes_a_field_out_and_what_only_held_it(client):
    found = changed(client, {"strategy.communication.flows": None, "strategy.local_update": None}).json()
    assert found["fields"]["strategy"] == {"tp": 1, "pp": 1, "zero": 3, "shard_within": "zone"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster.links[a,c].gbps": 1}, "path_no_link"),
        ({"job.global_batch": "many"}, "must_be_whole"),
        ({"strategy..tp": 1}, "path_malformed"),
        ({"strategy.tq": 1}, "unknown_key"),
        ({"cluster": {"zones": 5}, "cluster.links[*].gbps": 1}, "must_be_list"),
        ({"cluster.links": [5], "cluster.links[*].gbps": 1}, "must_be_mapping"),
        ({"cluster.links": [{"between": 5}], "cluster.links[a,b].gbps": 1}, "must_be_list"),
        ({"cluster": 5, "cluster.links[*].gbps": 1}, "path_no_mapping"),
        ({".".join("a" * 300): 1}, "not_valid"),
    ],
)
def test_what_cannot_be_set_is_refused_with_its_reason(client, changes, code):
    answer = changed(client, changes)
    assert answer.status_code == 422
    assert answer.json()["code"] == code


def test_switches_say_what_is_pinned_and_what_cannot_be_turned_here(client):
    found = listed(client)
    assert found["flows"]["pinned"] is True
    assert found["flows"]["sets"] == ["strategy.communication.flows"]
    assert found["compression"]["pinned"] is False
    assert set(found["compression"]["refused"]) == {"fp16", "int8", "int4", "powersgd", "1-bit"}  # FSDP2 has bf16 only
    assert found["compression"]["reason"] is None
    assert found["bucket"]["reason"]["code"] == "framework_lacks_option"
    assert found["fragments"]["reason"]["code"] == "switch_needs_local_steps"


def test_a_switch_that_is_turned_frees_those_that_rest_on_it(client):
    found = listed(client, switches={"local_steps": 100})
    assert found["local_steps"]["now"] == 100
    assert found["fragments"]["reason"] is None
    both = {"text": TWO_ZONES, "switches": {"fragments": 4, "local_steps": 100}}
    answer = client.post("/api/v1/what-if", json=both).json()
    assert answer["changes"] == {"strategy.local_update.steps": 100, "strategy.local_update.fragments": 4}


def test_figures_of_a_what_if_stand_side_by_side(client):
    answer = client.post("/api/v1/what-if", json={"text": TWO_ZONES, "switches": {"compression": "bf16"}}).json()
    rows = {row["name"]: row["cells"] for row in answer["figures"]}
    before, after = rows["between_zones_gb"]
    assert after["value"] == pytest.approx(before["value"] / 2)  # fp32 sums against bf16
    assert after["percent"] == pytest.approx(-50)
    assert after["verdict"] == "better"
    assert rows["step_time_s"][0]["value"] == answer["before"]["step_time_s"]["expected"]
