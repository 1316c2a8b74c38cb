"""Pins go into the strategy of a scenario, and are checked with it."""

from __future__ import annotations

import pytest

from builders import fields
from crosszone import InputError, load_scenario
from crosszone.plan.planner import merge_pins, read_pin


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("tp=8", "tp", 8),
        ("recompute=full", "recompute", "full"),
        ("communication.overlap_tensor=true", "communication.overlap_tensor", True),
        ("layers_per_stage=20,20,20,20", "layers_per_stage", [20, 20, 20, 20]),
        ("layers_per_stage=[32]", "layers_per_stage", [32]),
        (" dp = 4 ", "dp", 4),
        ("dp=null", "dp", None),
        ("communication.overlap=0.5", "communication.overlap", 0.5),
        ("communication.compression=1-bit", "communication.compression", "1-bit"),
    ],
)
def test_a_pin_is_a_key_and_a_value_as_a_file_has_it(text, key, value):
    assert read_pin(text) == (key, value)
    assert type(read_pin(text)[1]) is type(value)


@pytest.mark.parametrize("text", ["tp", "", "=", "tp=", "=8", ".tp=8", "communication.=1", "a..b=1"])
def test_what_is_no_key_and_value_is_refused_with_an_example(text):
    with pytest.raises(InputError) as caught:
        merge_pins(fields(), [text])
    (notice,) = caught.value.notices
    assert (notice.code, notice.field, notice.value) == ("pin_malformed", "pin", text)
    assert "tp=8" in notice.hint("en") and "tp=8" in notice.hint("zh")


def test_pins_go_over_what_the_file_gives_and_leave_the_rest():
    given = fields(strategy={"tp": 2, "zero": 1, "communication": {"flows": 4}})
    merged = merge_pins(given, ["tp=8", "communication.congestion=bbr", "local_update.steps=100"])
    assert merged["strategy"] == {
        "tp": 8,
        "zero": 1,
        "communication": {"flows": 4, "congestion": "bbr"},
        "local_update": {"steps": 100},
    }
    assert {key: value for key, value in merged.items() if key != "strategy"} == fields()
    assert given["strategy"]["tp"] == 2 and "congestion" not in given["strategy"]["communication"]


@pytest.mark.parametrize("strategy", [{}, {"strategy": None}, {"strategy": {}}])
def test_a_scenario_without_strategy_gets_one_with_the_pins_alone(strategy):
    read = load_scenario(merge_pins(fields(**strategy), ["tp=8", "dp=1"]))
    assert read.strategy.pinned == {"tp", "dp"}
    assert (read.strategy.tp, read.strategy.dp) == (8, 1)


def test_no_pins_change_nothing():
    assert merge_pins(fields(), []) == fields()


@pytest.mark.parametrize(
    ("pin", "code", "field", "said"),
    [
        ("micro_bath=2", "unknown_key", "strategy.micro_bath", "micro_batch"),
        ("communication.flow=2", "unknown_key", "strategy.communication.flow", "flows"),
        ("tp=0", "must_be_at_least", "strategy.tp", "1"),
        ("recompute=ful", "not_one_of", "strategy.recompute", "full"),
        ("tp.x=3", "must_be_whole", "strategy.tp", "whole"),
        ("layers_per_stage=20,,20", "must_be_whole", "strategy.layers_per_stage[1]", "whole"),
    ],
)
def test_a_wrong_pin_is_refused_as_a_wrong_line_would_be(pin, code, field, said):
    with pytest.raises(InputError) as caught:
        load_scenario(merge_pins(fields(strategy={"tp": 8}), [pin]))
    (notice,) = caught.value.notices
    assert (notice.code, notice.field) == (code, field)
    assert said in notice.message() + notice.hint()


def test_a_strategy_that_is_no_mapping_is_left_to_the_reader_to_refuse():
    with pytest.raises(InputError) as caught:
        load_scenario(merge_pins(fields(strategy=8), ["tp=8"]))
    assert [notice.code for notice in caught.value.notices] == ["must_be_mapping"]


def test_one_key_pinned_twice_is_refused():
    with pytest.raises(InputError) as caught:
        merge_pins(fields(), ["tp=8", "tp=4"])
    assert [(notice.code, notice.value) for notice in caught.value.notices] == [("pin_twice", "tp")]
