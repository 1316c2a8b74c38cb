"""Bands about a prediction."""

from __future__ import annotations

import itertools
import math

import pytest

from crosszone.cost.coefficients import Knowledge, compute_band_factors, read_band_parts

WIDER = {
    "software_stated": False,
    "moe": True,
    "stack_measured": False,
    "gpu_measured": False,
    "stated": False,
    "option_measured": False,
}


def test_widths_add_in_squares(monkeypatch):
    """[Q6] sqrt(0.03^2 + 0.04^2) = 0.05 below, sqrt(0.06^2 + 0.08^2) = 0.1 above."""
    parts = {"base": {"low": 0.03, "high": 0.06}, "moe": {"low": 0.04, "high": 0.08}}
    monkeypatch.setitem(read_band_parts(), "step", parts)
    assert compute_band_factors(Knowledge()) == pytest.approx((math.exp(-0.03), math.exp(0.06)))
    assert compute_band_factors(Knowledge(moe=True)) == pytest.approx((math.exp(-0.05), math.exp(0.1)))


def test_inputs_that_nobody_gave_add_as_the_other_widths_do(monkeypatch):
    """[Q6] sqrt(0.03^2 + 0.04^2) = 0.05 below; nothing above: sqrt(0.06^2 + 0^2) = 0.06."""
    monkeypatch.setitem(read_band_parts(), "step", {"base": {"low": 0.03, "high": 0.06}})
    factors = compute_band_factors(Knowledge(), inputs=(0.04, 0.0))
    assert factors == pytest.approx((math.exp(-0.05), math.exp(0.06)))


def test_a_band_holds_the_prediction_and_nothing_unknown_makes_it_narrower():
    for count in range(len(WIDER)):
        for chosen in itertools.combinations(WIDER, count):
            given = {name: WIDER[name] for name in chosen}
            low, high = compute_band_factors(Knowledge(**given))
            assert 0.25 < low < 1 < high < 4
            for more in set(WIDER) - set(chosen):
                lower, higher = compute_band_factors(Knowledge(**given, **{more: WIDER[more]}))
                assert lower <= low and higher >= high
