"""Which stages and replicas each zone holds, and plans that are read back."""

import pytest

from crosszone.web.scenarios import find_examples_folder


def asked(client, path, **body):
    answer = client.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_each_zone_tells_its_stages_and_replicas(client, three_cities):
    """Two of four stages fill the 64 GPUs of Beijing, one each the 32 of the others; each stage has 4 replicas. [R1]"""
    found = asked(client, "places", text=three_cities)
    held = {zone["name"]: (zone["used"], zone["stages"], zone["replicas"]) for zone in found["zones"]}
    assert held == {"beijing-a": (64, [0, 1], 4), "shanghai-a": (32, [2], 4), "shenzhen-c": (32, [3], 4)}
    zones = [stage["zones"] for stage in found["stages"]]
    assert zones == [["beijing-a"], ["beijing-a"], ["shanghai-a"], ["shenzhen-c"]]
    assert found["layers"] == [20, 20, 20, 20]


def test_replicas_in_every_zone_share_its_one_stage(client):
    text = (find_examples_folder() / "three-continents.yaml").read_text("utf-8")
    found = asked(client, "places", text=text)
    assert [(zone["stages"], zone["replicas"]) for zone in found["zones"]] == [([0], 32)] * 3
    assert found["stages"] == [{"stage": 0, "zones": ["virginia", "frankfurt", "tokyo"]}]


def test_a_scenario_without_a_strategy_is_refused(client):
    text = (
        "model: llama-2-7b\njob: {seq_len: 4096, global_batch: 256}\n"
        "cluster: {zones: [{name: a, nodes: [{count: 1, gpus: 8, gpu: a100-80gb-sxm, nic_gbps: 200}]}]}"
    )
    assert client.post("/api/v1/places", json={"text": text}).status_code == 422


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed-gpus", "mixtral", "three-cities", "three-continents"])
def test_a_plan_put_over_its_scenario_is_predicted_as_the_plan_says(client, name):
    """A plan writes down every option, also those it leaves to the framework."""
    text = (find_examples_folder() / f"{name}.yaml").read_text("utf-8")
    plan = asked(client, "plan", text=text, top=1)["plans"][0]
    way = {key: plan[key] for key in ("framework", "strategy", "placement")}
    assert asked(client, "predict", text=text, way=way)["step_time_s"] == plan["prediction"]["step_time_s"]
