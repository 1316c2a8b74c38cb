"""Older files: version 0, the deployment request of the prototype."""

from __future__ import annotations

import pytest

from crosszone import InputError
from crosszone.inputs.scenario import UPGRADES, VERSION, parse_scenario, read_scenario
from crosszone.inputs.summary import describe

REQUEST = {"regions": 3, "gpusPerRegion": [4, 8, 2], "modelSize": 1, "batchSize": 32, "dp": 14, "pp": 1, "tp": 1}


def test_every_version_before_today_has_an_upgrade():
    assert sorted(UPGRADES) == list(range(VERSION))


def test_a_prototype_request_becomes_a_scenario_and_says_what_it_assumed():
    loaded = read_scenario(REQUEST)
    assert [zone.gpus for zone in loaded.scenario.cluster.zones] == [4, 8, 2]
    assert loaded.scenario.model.name == "llama-3.2-1b"
    assert loaded.scenario.job.global_batch == 32
    assumed = {notice.field for notice in loaded.notices if notice.code == "prototype_assumes"}
    assert assumed == {"seq_len", "gpu", "bandwidth", "latency"}
    assert "upgraded" in [notice.code for notice in loaded.notices]
    text = loaded.scenario.to_yaml()
    assert text.startswith("version: 1\n")
    assert parse_scenario(text).scenario == loaded.scenario


def test_the_prototypes_committed_requests_are_refused_with_the_rule():
    """[4, 8, 2] GPUs with batch 32: 14 replicas do not divide 32; 175B with tp 14 does not divide 96 heads."""
    small = describe(read_scenario(REQUEST))
    assert not small["legal"]
    assert "batch_not_divided" in [n["code"] for n in small["notices"]]
    large = describe(read_scenario(REQUEST | {"modelSize": 175, "dp": 1, "tp": 14}))
    assert "tp_over_heads" in [n["code"] for n in large["notices"]]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"gpusPerRegion": 3}, "must_be_list"),
        ({"regions": 1, "gpusPerRegion": [0]}, "must_be_at_least"),
        ({"regions": 0, "gpusPerRegion": []}, "too_short"),
        ({"tp": -3}, "must_be_at_least"),
        ({"batchSize": "32"}, "must_be_whole"),
        ({"modelSize": None}, "size_out_of_range"),
        ({"color": "red"}, "unknown_key"),
        ({"regions": 2}, "prototype_regions"),
    ],
)
def test_bad_requests_are_refused(changes, code):
    with pytest.raises(InputError) as caught:
        read_scenario(REQUEST | changes)
    assert caught.value.notices[0].code == code
