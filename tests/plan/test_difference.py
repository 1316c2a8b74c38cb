"""Why one plan's step is longer than another's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from crosszone.plan.comparison import Difference, compare_predictions, sum_link_bytes
from crosszone.predict.predict import build_prediction
from effort import examples
from predict.given import DDP, FSDP, one_zone, predicted, predictors, zones

PARAMETERS = 6_738_415_616


def test_a_slower_link_shows_as_gradients_and_nothing_else():
    """[W1] Ten times slower: 2 x 15/16 of 4 bytes a parameter take 9/10 of 418.8 s longer over 1 Gbit/s; no other part changes."""
    many = {"dp": 16, "communication": {"flows": 16}}  # windows do not limit
    quick, slow = (predicted(many, job=DDP, cluster=zones(2, 8, gbps=gbps)) for gbps in (10, 1))
    found = compare_predictions(quick, slow)
    assert [part.name for part in found.parts] == ["gradients"]
    assert found.step_s == pytest.approx(0.9 * 1.875 * 4 * PARAMETERS / (1e9 / 8 * 0.9653), rel=0.01)
    assert found.memory_gib == 0 and found.bytes_per_step == {}


def test_the_largest_part_comes_first_whatever_its_sign():
    """[W1] Parts changed by hand: -3, 2, 1 s make 0 s."""
    a = predicted({"dp": 16})
    more = {"matmul": 2.0, "gradients": -3.0, "fixed": 1.0}
    b = a.model_copy(update={"breakdown_s": {k: v + more.get(k, 0.0) for k, v in a.breakdown_s.items()} | {"new": 0.5}})
    found = compare_predictions(a, b)
    assert [(part.name, pytest.approx(part.seconds)) for part in found.parts] == [
        ("gradients", -3.0), ("matmul", 2.0), ("fixed", 1.0), ("new", 0.5),
    ]  # fmt: skip
    assert found.step_s == pytest.approx(0.5)


def test_traffic_is_told_by_kind_of_link():
    """[W1] Averaging every hundred steps sends a hundredth of the fp32 parameters each way."""
    strategy = {"zero": 3, "shard_within": "zone", "dp": 16}
    every, rarely = (
        predicted(strategy | more, job=FSDP, cluster=zones()) for more in ({}, {"local_update": {"steps": 100}})
    )
    assert sum_link_bytes(rarely)["between zones"] == pytest.approx(2 * 4 * PARAMETERS / 100)
    found = compare_predictions(every, rarely).bytes_per_step["between zones"]
    assert found == pytest.approx(sum_link_bytes(rarely)["between zones"] - sum_link_bytes(every)["between zones"])
    inside = compare_predictions(predicted({"dp": 16}, cluster=one_zone()), rarely).bytes_per_step
    assert inside["between zones"] == pytest.approx(2 * 4 * PARAMETERS / 100)


def test_money_and_energy_need_both_plans():
    """[W1] A run of unknown length has no price to compare; one of known length costs what it costs more."""
    job = DDP | {"tokens": 1e9}
    known, other, unknown = (
        predicted({"dp": 16}, job=job),
        predicted({"dp": 8}, job=job),
        predicted({"dp": 16}, job=DDP),
    )
    assert compare_predictions(known, unknown).usd is None and compare_predictions(unknown, known).kwh is None
    found = compare_predictions(known, other)
    assert found.usd == pytest.approx(other.run.usd.expected - known.run.usd.expected) and found.usd != 0
    assert found.kwh == pytest.approx(other.run.kwh.expected - known.run.kwh.expected) and found.kwh != 0


@examples(25)
@given(predictors(), predictors())
def test_parts_add_up_and_the_way_back_is_the_opposite(one, other):
    """[W1]"""
    a, b = build_prediction(one), build_prediction(other)
    there, back = compare_predictions(a, b), compare_predictions(b, a)
    step = b.step_time_s.expected - a.step_time_s.expected
    assert there.step_s == math.fsum(part.seconds for part in there.parts)
    assert there.step_s == pytest.approx(step, abs=1e-9 * (a.step_time_s.expected + b.step_time_s.expected))
    assert [(part.name, -part.seconds) for part in there.parts] == [(part.name, part.seconds) for part in back.parts]
    assert (there.memory_gib, there.step_s) == (-back.memory_gib, -back.step_s)
    assert there.bytes_per_step == {kind: -size for kind, size in back.bytes_per_step.items()}
    sizes = [abs(part.seconds) for part in there.parts]
    assert sizes == sorted(sizes, reverse=True)
    assert Difference.model_validate_json(there.model_dump_json()) == there


@examples(10)
@given(predictors())
def test_a_plan_differs_from_itself_in_nothing(one):
    """[W1]"""
    found = compare_predictions(build_prediction(one), build_prediction(one))
    assert (found.step_s, found.parts, found.memory_gib, found.bytes_per_step) == (0, (), 0, {})
    assert found.usd in (0, None) and found.kwh in (0, None)
