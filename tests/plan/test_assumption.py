"""What local updates are assumed to cost in loss."""

from __future__ import annotations

import pytest

from builders import scenario
from crosszone.plan.reasons import LossPenalty, find_loss_penalty, read_measurements


def model(size: str = "1b"):
    """A model of about 1.1e9 parameters, or a larger one by name."""
    small = {
        "layers": 22, "hidden": 2048, "heads": 32, "kv_heads": 4, "ffn_hidden": 5632, "vocab": 32000, "name": "small",
    }  # fmt: skip
    return scenario(model=small if size == "1b" else size).model


def outside(penalty: LossPenalty) -> list[str]:
    return [one.what for one in penalty.outside]


def test_what_was_measured_is_given_back_without_a_flag():
    """1B, two replicas, every 100 steps: 0.01 to 0.02; four replicas 0.02 to 0.03 more."""
    two, four = find_loss_penalty(model(), 2, 100), find_loss_penalty(model(), 4, 100)
    assert (two.low, two.high, outside(two)) == (0.01, 0.02, [])
    assert (four.low, four.high, outside(four)) == (0.03, 0.05, [])
    assert "2501.18512" in two.source and ";" not in four.source


def test_three_zones_lie_between_two_measurements():
    """From the least of two replicas to the most of four; sizes that only one of them has are flagged."""
    found = find_loss_penalty(model(), 3, 100)
    assert (found.low, found.high, outside(found)) == (0.01, 0.05, [])
    assert len(found.measured) == 2


@pytest.mark.parametrize(
    ("size", "zones", "steps", "flags"),
    [
        ("llama-2-7b", 2, 100, ["params_b"]),
        ("1b", 2, 500, ["steps"]),
        ("1b", 2, 10, ["steps"]),
        ("1b", 8, 100, ["replicas"]),
        ("llama-2-70b", 5, 30, ["params_b", "steps", "replicas"]),
    ],
)
def test_what_was_never_measured_so_is_flagged(size, zones, steps, flags):
    found = find_loss_penalty(model(size), zones, steps)
    assert outside(found) == flags
    assert (found.low, found.high) == ((0.01, 0.02) if zones == 2 else (0.03, 0.05))


def test_a_notice_says_the_assumption_and_each_flag_in_both_languages():
    said = list(find_loss_penalty(model("llama-2-70b"), 5, 30).list_notices())
    codes = ["loss_assumed", "loss_size_unmeasured", "loss_steps_unmeasured", "loss_replicas_unmeasured"]
    assert [notice.code for notice in said] == codes
    assert "0.03 to 0.05" in said[0].message() and "2501.18512" in said[0].message()
    assert "30 steps" in said[2].message() and "5 zones" in said[3].message()
    assert all(notice.message("zh") and notice.hint("zh") for notice in said)


def test_one_zone_averages_with_nobody():
    found = find_loss_penalty(model(), 1, 100)
    assert (found.low, found.high, found.source, list(found.list_notices())) == (0, 0, "", [])


def test_a_penalty_reads_back_from_json_and_every_measurement_has_a_source():
    found = find_loss_penalty(model(), 3, 50)
    assert LossPenalty.model_validate_json(found.model_dump_json()) == found
    assert all(one.source and one.extra_loss.low <= one.extra_loss.high for one in read_measurements())
