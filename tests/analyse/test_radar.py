"""Ways beside each other: axes are what their formulas say, and follow the input."""

from __future__ import annotations

import pytest

from builders import scenario
from crosszone.analyse.bill import build_bill
from crosszone.analyse.radar import AXES, build_radar
from crosszone.inputs.parameters import parameters
from crosszone.plan.planner import plan
from crosszone.predict.predict import build_prediction, build_predictor
from predict.given import MEGATRON, zones

WAY = {"tp": 2, "pp": 2, "zero": 1, "recompute": "selective"}


def given(gbps=10, **strategy):
    job = MEGATRON | {"framework": "any"}
    return scenario(strategy=WAY | strategy, job=job, cluster=zones(2, 16, gbps=gbps))


@pytest.fixture(scope="module")
def found():
    one, other = given(), given(tp=8, pp=1)
    return one, other, build_radar(one, [("chosen", one), ("runner_up", other)])


def entry(answer, name):
    return next(one for one in answer.entries if one.name == name)


def test_every_axis_is_what_its_formula_says(found):
    """F77: [Y1] [Y2] [Y3] [Y4] [Y5] [Y6] [Y7] from the predictions of the ways shown."""
    one, other, answer = found
    p = build_predictor(one)
    prediction, chosen = build_prediction(p), entry(answer, "chosen")
    fastest = max(one.raw["speed"] for one in answer.entries)
    assert chosen.values["speed"] == pytest.approx(prediction.tokens_per_s.expected / fastest)
    assert chosen.values["computing"] == prediction.shares["compute"]
    busy = sum(row.busy_s for row in prediction.communication)
    exposed = sum(row.exposed_s for row in prediction.communication)
    assert chosen.values["hidden"] == pytest.approx(max(0.0, 1 - exposed / busy))
    sent = sum(row.bytes_per_step for row in prediction.communication if " > " in row.link)
    copy = 2 * parameters(one.model).total
    assert sent > 0
    assert chosen.values["thrift"] == pytest.approx(copy / (copy + sent))
    memory = prediction.memory_gib
    assert chosen.values["headroom"] == pytest.approx(1 - memory.peak.expected / memory.limit)
    assert chosen.values["full"] == pytest.approx(
        1 - prediction.breakdown_s["bubble"] / prediction.step_time_s.expected
    )
    cheapest = min(one.raw["price"] for one in answer.entries)
    assert chosen.values["price"] == pytest.approx(cheapest / build_bill(p).usd_per_million_tokens)
    assert entry(answer, "runner_up").raw["speed"] == pytest.approx(
        build_prediction(build_predictor(other)).tokens_per_s.expected
    )


def test_values_lie_between_0_and_1_and_the_best_relative_ones_are_1(found):
    answer = found[2]
    assert [one.name for one in answer.entries] == ["chosen", "runner_up", "dp_only", "pp_only"]
    for one in answer.entries:
        assert set(one.values) == set(AXES)
        assert all(0 <= value <= 1 for value in one.values.values())
    for axis in ("speed", "price"):
        assert max(one.values[axis] for one in answer.entries) == 1


def test_families_are_the_best_plans_with_these_degrees(found):
    one, _, answer = found
    for name, degrees in (("dp_only", {"tp": 1, "pp": 1, "cp": 1}), ("pp_only", {"tp": 1, "dp": 1, "cp": 1})):
        way = entry(answer, name)
        best = plan(one.replace(strategy=type(one.strategy)(**degrees)), top=1, local_updates=False).plans[0]
        assert {key: way.way["strategy"][key] for key in degrees} == degrees
        assert way.raw["speed"] == pytest.approx(best.prediction.tokens_per_s.expected)


def test_values_follow_the_input(found):
    answer = found[2]
    slow = build_radar(given(gbps=1), [("chosen", given(gbps=1))], families=False)
    assert entry(slow, "chosen").raw["speed"] < entry(answer, "chosen").raw["speed"]
    assert entry(slow, "chosen").values["computing"] < entry(answer, "chosen").values["computing"]


def test_a_family_that_does_not_fit_says_why():
    one = scenario(model="llama-2-70b", strategy={"tp": 8}, job=MEGATRON, cluster=zones(1, 8))
    answer = build_radar(one, [("chosen", one)])
    missing = entry(answer, "dp_only")
    assert missing.way is None
    assert set(missing.values.values()) == {None}
    assert missing.notices[0]["message"]
    assert entry(answer, "chosen").values["speed"] == 1


def test_a_price_that_is_not_known_leaves_its_axis_empty():
    zone = {"name": "a", "nodes": [{"count": 1, "gpus": 8, "gpu": {"like": "a100-80gb-sxm", "usd_per_hour": None}}]}
    one = scenario(strategy={"zero": 3}, cluster={"zones": [zone]})
    chosen = entry(build_radar(one, [("chosen", one)], families=False), "chosen")
    assert chosen.values["price"] is None
    assert chosen.raw["price"] is None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_axis_states_its_formula(found, language):
    one = found[0]
    axes = build_radar(one, [("chosen", one)], language=language, families=False).axes
    assert [axis.formula for axis in axes] == ["Y1", "Y2", "Y3", "Y4", "Y5", "Y6", "Y7"]
    assert all(axis.label and axis.explain and axis.text and axis.title for axis in axes)
