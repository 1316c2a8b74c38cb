"""What nobody stated is listed with what other values would give, and assumed networks widen the range."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml

from crosszone.inputs.scenario import parse_scenario
from crosszone.inputs.software import load_software_rules
from crosszone.predict.answer import answer
from crosszone.predict.assumptions import list_assumptions, list_networks
from crosszone.predict.predict import build_predictor
from crosszone.predict.predictor import Predictor

DENSE: dict[str, Any] = {
    "model": "llama-2-7b",
    "job": {"seq_len": 4096, "global_batch": 64, "precision": "bf16", "framework": "megatron"},
    "cluster": {"zones": [{"name": "a", "nodes": [{"gpu": "h100-80gb-sxm", "count": 2, "gpus": 8}]}]},
    "strategy": {"tp": 2, "dp": 8, "micro_batch": 1},
}
EXPERTS: dict[str, Any] = DENSE | {
    "model": "mixtral-8x7b",
    "job": DENSE["job"] | {"precision": "fp8"},
    "strategy": {"tp": 2, "cp": 2, "ep": 4, "dp": 4, "micro_batch": 1},
}
ZONES = [
    {"name": "a", "nodes": [{"gpu": "h100-80gb-sxm", "count": 1, "gpus": 8, "nic_gbps_per_gpu": 400}]},
    {"name": "b", "nodes": [{"gpu": "a100-80gb-sxm", "count": 1, "gpus": 8}]},
]
SEVERAL: dict[str, Any] = DENSE | {
    "cluster": {"zones": ZONES, "links": [{"between": ["a", "b"], "gbps": 100, "rtt_ms": 5}]}
}


def predict(scenario: dict[str, Any]) -> Predictor:
    return build_predictor(parse_scenario(yaml.safe_dump(scenario)).scenario)


def state(scenario: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    """The scenario with a field of an assumption stated."""
    copy = yaml.safe_load(yaml.safe_dump(scenario))
    if field.startswith("cluster."):
        zone = next(zone for zone in copy["cluster"]["zones"] if field.startswith(f"cluster.zones.{zone['name']}."))
        zone["nodes"][0]["nic_gbps_per_gpu"] = value
        return copy
    *path, last = field.split(".")
    place = copy
    for key in path:
        place = place.setdefault(key, {})
    place[last] = value
    return copy


@pytest.mark.parametrize("scenario", [DENSE, EXPERTS, SEVERAL], ids=["dense", "experts", "several"])
def test_an_alternative_is_the_prediction_of_the_scenario_that_states_it(scenario):
    p = predict(scenario)
    listed = list_assumptions(p)
    assert len({assumption.field for assumption in listed}) == len(listed)
    assert sum(len(assumption.alternatives) for assumption in listed) >= 5
    for assumption in listed:
        for alternative in assumption.alternatives:
            stated = predict(state(scenario, assumption.field, alternative.value))
            assert stated.step_time.expected == pytest.approx(
                alternative.step_time_s, rel=2e-3 if "nic_" in assumption.field else 1e-9
            )
            change = 100.0 * (alternative.step_time_s / p.step_time.expected - 1.0)
            assert alternative.change_pct == pytest.approx(change)


@pytest.mark.parametrize("scenario", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_stating_what_was_assumed_changes_nothing_and_is_told_so(scenario):
    for assumption in list_assumptions(predict(scenario)):
        if assumption.field.startswith("cluster."):
            continue
        p = predict(state(scenario, assumption.field, assumption.value))
        again = {other.field: other for other in list_assumptions(p)}[assumption.field]
        assert (assumption.origin, again.origin) == ("assumed", "stated")
        assert p.step_time.expected == pytest.approx(predict(scenario).step_time.expected, rel=1e-12)


def test_only_switches_that_the_step_has_are_listed():
    fields = {assumption.field for assumption in list_assumptions(predict(DENSE))}
    assert {"job.software.launch", "job.software.attention", "strategy.sequence_parallel"} <= fields
    absent = {f"job.software.{name}" for name in ("dispatcher", "expert_overlap", "context_exchange")}
    assert not fields & absent
    assert {*absent, "job.software.attention_precision"} <= {a.field for a in list_assumptions(predict(EXPERTS))}


def test_the_largest_change_comes_first_and_an_answer_has_the_list():
    listed = answer(parse_scenario(yaml.safe_dump(DENSE))).prediction.basis.assumptions
    worth = [assumption.worth_pct for assumption in listed]
    assert worth == sorted(worth, reverse=True) and worth[0] > 0
    for assumption in listed:
        changes = [abs(alternative.change_pct) for alternative in assumption.alternatives]
        assert changes == sorted(changes, reverse=True)


def test_a_preset_says_where_its_switches_are_from():
    preset = state(DENSE, "job.stack", "megatron-lm-2021")
    origins = {assumption.field: assumption.origin for assumption in list_assumptions(predict(preset))}
    assert origins["job.software.attention"] == "preset" and origins["job.software.launch"] == "assumed"
    stated = state(preset, "job.software.attention", "flash-2")
    values = {
        assumption.field: (assumption.value, assumption.origin) for assumption in list_assumptions(predict(stated))
    }
    assert values["job.software.attention"] == ("flash-2", "stated")


def test_a_network_that_nobody_gave_widens_the_range():
    """[Q6] The logarithms of the steps over half and twice the usual network, as errors beside that of the model."""
    p = predict(DENSE)
    (network,) = list_networks(p)
    assert network.origin == "assumed" and len(network.alternatives) == len(load_software_rules()["nic_factors"])
    logs = [math.log(alternative.step_time_s / p.step_time.expected) for alternative in network.alternatives]
    assert p.input_spread == pytest.approx((-min(logs), max(logs)))
    low, high = p.factors
    below = math.exp(-math.hypot(math.log(low), p.input_spread[0]))
    above = math.exp(math.hypot(math.log(high), p.input_spread[1]))
    expected = p.step_time.expected
    assert (p.step_time.low, p.step_time.high) == pytest.approx((below * expected, above * expected))
    assert p.step_time.low < low * expected and p.step_time.high > high * expected


def test_networks_of_several_node_groups_are_independent():
    """[Q6] Of two groups without a NIC the widths add as squares; one that is stated adds nothing."""
    assert len(list(list_networks(predict(SEVERAL)))) == 1
    p = predict(state(SEVERAL, "cluster.zones.a.", None))
    networks = list(list_networks(p))
    assert len(networks) == 2
    widths = [
        max(0.0, *(math.log(x.step_time_s / p.step_time.expected) for x in network.alternatives))
        if network.alternatives
        else 0.0
        for network in networks
    ]
    assert p.input_spread[1] == pytest.approx(math.hypot(*widths))


def test_a_network_that_is_stated_or_not_used_widens_nothing():
    stated = predict(state(DENSE, "cluster.zones.a.", 400))
    assert stated.input_spread == (0.0, 0.0)
    low, high = stated.factors
    expected = stated.step_time.expected
    assert (stated.step_time.low, stated.step_time.high) == pytest.approx((low * expected, high * expected))
    one_node = state(DENSE, "strategy.dp", 4)
    one_node["cluster"]["zones"][0]["nodes"][0]["count"] = 1
    assert predict(one_node).input_spread == (0.0, 0.0)
