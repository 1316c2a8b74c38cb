"""Suggestions: every gain is a prediction, none a constant."""

from __future__ import annotations

import pytest

from builders import scenario
from conftest import ROOT
from crosszone import load_scenario
from crosszone.analyse.fields import change_scenario
from crosszone.analyse.host import list_host_settings
from crosszone.analyse.suggest import find_suggestions
from crosszone.analyse.what_if import what_if
from crosszone.predict.predict import build_predictor, predict
from predict.given import MEGATRON, one_zone, placed, zones

APART = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": z, "count": 8} for z in "ab"]}


def slow_line():
    return scenario(strategy={"tp": 8, "dp": 2, "zero": 1}, job=MEGATRON, cluster=zones(2, 8, gbps=2), placement=APART)


def test_every_gain_is_what_predicting_the_change_gives():
    """[A6] F72: applying a suggestion's fields gives its step and its gain; the best comes first."""
    base = slow_line()
    before = predict(base).tokens_per_s.expected
    found = find_suggestions(base)
    assert found.boundness == "communication-bound"
    assert len(found.ranked) >= 3
    for one in found.ranked:
        after = predict(change_scenario(base, {"job.framework": "megatron", **one.changes}))
        assert one.step_s == after.step_time_s.expected
        assert one.gain == pytest.approx(after.tokens_per_s.expected / before - 1)
        assert one.gain > 0 and one.risk and one.title
    gains = [one.gain for one in found.ranked]
    assert gains == sorted(gains, reverse=True)


def test_what_changes_the_training_is_marked_and_kept_out_of_what_is_turned_together():
    found = find_suggestions(slow_line())
    exact = {one.switch for one in found.ranked if one.exact}
    assert "compression" not in exact and "accumulation" not in exact
    assert found.together is not None
    assert {one.partition("=")[0] for one in found.together.switches} <= exact
    best = max(one.gain for one in found.ranked if one.exact)
    assert found.together.gain >= best * (1 - 1e-9)
    after = predict(change_scenario(slow_line(), found.together.changes))
    assert after.step_time_s.expected == found.together.step_s


def test_what_is_not_available_says_why():
    found = find_suggestions(slow_line())
    reasons = {(one.switch, one.value): one.reason for one in found.refused}
    assert "Megatron" in reasons["local_steps", 100]["message"]
    assert all(reason["message"] and reason["hint"] for reason in reasons.values())


def test_other_plans_are_those_of_the_planner():
    base = load_scenario(ROOT / "examples/two-zones-7b.yaml")
    found = find_suggestions(base, plans=True)
    before = predict(base).tokens_per_s.expected
    assert {one.kind for one in found.plans} == {"synchronous", "local update"}
    for one in found.plans:
        after = what_if(base, one.changes).after
        assert after.tokens_per_s.expected == pytest.approx(before * (1 + one.gain), rel=1e-9)


def test_one_zone_needs_no_settings_of_hosts():
    assert find_suggestions(scenario(strategy={"tp": 8, "dp": 2}, job=MEGATRON, cluster=one_zone())).host == ()


def test_buffers_hold_twice_what_is_in_flight():
    """[A7] 10 Gbit/s x 70 ms are 87.5 MB in flight, twice that is 175 MB: 167 MiB; beyond 2 GiB Linux takes no more."""
    far = placed({"tp": 8, "dp": 2}, cluster=zones(2, 8, rtt_ms=70), placement=APART)
    told = {one.name: one for one in list_host_settings(far)}
    assert f"net.core.rmem_max={167 * 2**20}" in told["buffers"].setting
    assert "87.5 MB" in told["buffers"].why
    assert told["idle"].saves_s > 0
    wide = placed({"tp": 8, "dp": 2}, cluster=zones(2, 8, gbps=800, rtt_ms=70), placement=APART)
    assert f"rmem_max={2047 * 2**20} " in {one.name: one for one in list_host_settings(wide)}["buffers"].setting


def test_a_collective_may_take_three_times_as_long_as_predicted_before_it_is_given_up():
    """[A7] 6.7e9 gradients of 4 bytes over 0.1 Gbit/s take about 2230 s: 112 minutes, where PyTorch waits 10."""
    slow = placed({"tp": 8, "dp": 2}, cluster=zones(2, 8, gbps=0.1), placement=APART)
    setting = {one.name: one for one in list_host_settings(slow)}["timeout"].setting
    assert int(setting.removeprefix("--distributed-timeout-minutes ")) == pytest.approx(112, abs=3)
    near = build_predictor(
        scenario(strategy={"tp": 8, "dp": 2}, job=MEGATRON, cluster=zones(2, 8, gbps=100), placement=APART)
    )
    assert {one.name: one for one in list_host_settings(near)}["timeout"].setting == "--distributed-timeout-minutes 10"
