"""Bands about a prediction."""

from __future__ import annotations

import itertools
import math

import pytest

from crosszone.cost.coefficients import compute_band_factors, read_band_parts

SWITCHES = ("moe", "stack_measured", "gpu_measured", "stated")
WIDER = {"moe": True, "stack_measured": False, "gpu_measured": False, "stated": False}


def test_widths_add_in_squares(monkeypatch):
    """[Q6] sqrt(0.03^2 + 0.04^2) = 0.05 below, sqrt(0.06^2 + 0.08^2) = 0.1 above."""
    parts = {"base": {"low": 0.03, "high": 0.06}, "moe": {"low": 0.04, "high": 0.08}}
    monkeypatch.setitem(read_band_parts(), "step", parts)
    assert compute_band_factors() == pytest.approx((math.exp(-0.03), math.exp(0.06)))
    assert compute_band_factors(moe=True) == pytest.approx((math.exp(-0.05), math.exp(0.1)))


@pytest.mark.parametrize("memory", [False, True])
def test_a_band_holds_the_prediction_and_nothing_unknown_makes_it_narrower(memory):
    for count in range(len(SWITCHES)):
        for chosen in itertools.combinations(SWITCHES, count):
            given = {name: WIDER[name] for name in chosen}
            low, high = compute_band_factors(memory=memory, **given)
            assert 0.5 < low < 1 < high < 2
            for more in set(SWITCHES) - set(chosen):
                lower, higher = compute_band_factors(memory=memory, **given, **{more: WIDER[more]})
                assert lower <= low and higher >= high
