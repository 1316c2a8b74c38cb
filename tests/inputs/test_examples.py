"""The examples run, and hold what their comments say."""

from __future__ import annotations

import re

import pytest

from conftest import ROOT
from crosszone import load_scenario
from crosszone.inputs.scenario import Scenario, list_scenario_notices, parse_scenario, read_scenario
from crosszone.inputs.schema import ROOTS
from crosszone.inputs.summary import describe

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.yaml"))}


def example(name: str) -> Scenario:
    return load_scenario(EXAMPLES[name])


def test_the_named_examples_are_there():
    expected = {
        "single-node",
        "two-zones-7b",
        "three-cities",
        "fourteen-gpus",
        "mixed-gpus",
        "three-continents",
        "four-zones-405b",
        "mixtral",
    }
    assert expected <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_legal_placed_and_round_trips(name):
    loaded = read_scenario(EXAMPLES[name])
    description = describe(loaded)
    assert description["legal"], description["notices"]
    assert description["strategy"]["placement"]
    idle = sum(entry["count"] for entry in description["strategy"]["idle"])
    assert description["strategy"]["ranks"] + idle == loaded.scenario.cluster.gpus
    text = loaded.scenario.to_yaml()
    assert parse_scenario(text).scenario.to_yaml() == text


def test_the_examples_explain_every_key_of_job_link_and_common_strategy():
    texts = "\n".join(path.read_text() for path in EXAMPLES.values())
    for key in (
        *ROOTS["job"].model_fields,
        "between",
        "gbps",
        "rtt_ms",
        "loss_pct",
        "usd_per_gb",
        "flow_gbps",
        "jitter_ms",
        "default_link",
        "uplink_gbps",
        "nic_gbps",
        "nic_gbps_per_gpu",
        "hosts",
        "tp",
        "pp",
        "dp",
        "ep",
        "micro_batch",
        "zero",
        "shard_within",
        "recompute",
        "local_update",
        "layers_per_stage",
        "order",
        "blocks",
    ):
        if key != "stack":
            assert re.search(rf"\b{key}\b", texts), key


def test_three_cities_are_those_of_the_design():
    scenario = example("three-cities")
    assert scenario.cluster.gpus == 128
    assert scenario.build_case().strategy.micro_batches(1024) == 256
    assert [zone.gpus for zone in scenario.cluster.zones] == [64, 32, 32]


def test_fourteen_gpus_are_the_three_environments():
    zones = example("fourteen-gpus").cluster.zones
    groups = [group for zone in zones for group in zone.nodes]
    assert (
        len(groups),
        sum(g.gpus for g in groups),
        sum(g.cpus for g in groups),
        sum(g.memory_gib for g in groups),
        len(zones),
    ) == (3, 14, 112, 896, 3)


def test_four_zones_hold_sixteen_thousand_gpus():
    assert example("four-zones-405b").cluster.gpus == 4 * 4096


def test_mixed_gpus_never_share_a_tensor_parallel_group():
    description = describe(read_scenario(EXAMPLES["mixed-gpus"]))
    assert [entry["count"] for entry in description["strategy"]["idle"]] == [4]


def test_three_continents_rest_on_published_measurements():
    links = example("three-continents").links.values()
    assert {link.origins["rtt_ms"] for link in links} == {"published"}


def test_two_of_three_cities_links_are_flagged_as_examples():
    codes = [notice.code for notice in list_scenario_notices(example("three-cities"))]
    assert codes.count("gbps_example") == 2
    assert codes.count("rtt_from_distance") == 2
