"""How likely the plan predicted faster is faster."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.coefficients import read_band_parts
from crosszone.plan.comparison import estimate_win_probability
from crosszone.predict.prediction import Prediction, Triple
from predict.given import predicted

BASE = predicted({"dp": 16})
TIMES = st.floats(0.1, 100.0)
BANDS = st.floats(0.0, 1.0)


@pytest.fixture(autouse=True)
def _spread(monkeypatch):
    monkeypatch.setitem(read_band_parts(), "pair", {"sd": 0.1})


def plan(step_s: float, below: float = 0.0, above: float = 0.0, **basis: object) -> Prediction:
    """A plan of that step, whose links widen its band by so much (logarithms)."""
    own = BASE.basis.replace(low=math.exp(-0.06), high=math.exp(0.06), **basis)
    time = Triple(low=step_s * math.exp(-0.06 - below), expected=step_s, high=step_s * math.exp(0.06 + above))
    return BASE.model_copy(update={"step_time_s": time, "basis": own})


def test_ten_percent_apart_at_a_spread_of_ten_percent():
    """[W2] ln 1.1 / 0.1 = 0.953: 83.0 % from the table of the normal distribution; one sigma apart: 84.1 %."""
    assert estimate_win_probability(plan(10), plan(11)) == pytest.approx(0.830, abs=5e-4)
    assert estimate_win_probability(plan(10), plan(10 * math.exp(0.1))) == pytest.approx(0.8413, abs=5e-5)


def test_uncertain_links_bring_the_chance_nearer_to_one_half():
    """[W2] Half-width 0.22 / 1.2816 = 0.1717 beside 0.1: sigma 0.1987; two sigma apart are 97.7 %."""
    apart = math.exp(2 * math.hypot(0.1, 0.22 / 1.2816))
    assert estimate_win_probability(plan(10, 0.22, 0.22), plan(10 * apart)) == pytest.approx(0.9772, abs=1e-4)
    assert estimate_win_probability(plan(10, 0.0, 0.44), plan(10 * apart)) == pytest.approx(0.9772, abs=1e-4)
    assert estimate_win_probability(plan(10), plan(10 * apart)) > 0.999


def test_plans_of_two_stacks_share_less_of_their_error():
    """[W2] Bands of 0.06 / 1.2816 = 0.047 each stay below the spread of a pair; of 0.36 each they make 0.397."""
    a, b = plan(10), plan(11)
    other = b.model_copy(update={"basis": b.basis.replace(stack="another")})
    assert estimate_win_probability(a, other) == estimate_win_probability(a, b)
    wide = [
        p.model_copy(update={
            "basis": p.basis.replace(low=math.exp(-0.36), high=math.exp(0.36)),
            "step_time_s": Triple(low=t * math.exp(-0.36), expected=t, high=t * math.exp(0.36)),
        })
        for p, t in ((a, 10.0), (other, 11.0))
    ]  # fmt: skip
    assert estimate_win_probability(*wide) == pytest.approx(0.5949, abs=5e-4)  # ln 1.1 / 0.3973 = 0.2399


def test_equal_plans_are_a_coin():
    """[W2]"""
    assert estimate_win_probability(BASE, BASE) == 0.5
    assert estimate_win_probability(plan(10, 0.1), plan(10)) == 0.5


@given(TIMES, TIMES, BANDS, BANDS)
def test_one_of_the_two_is_faster(a, b, wide, wider):
    """[W2] Both chances add up to one, and the plan predicted faster has the better one."""
    one, other = plan(a, wide, wide), plan(b, wider, wide)
    chance = estimate_win_probability(one, other)
    assert chance + estimate_win_probability(other, one) == pytest.approx(1.0, abs=1e-12)
    assert 0 <= chance <= 1 and (chance >= 0.5 if a <= b else chance <= 0.5)
    assert estimate_win_probability(one, plan(b * 1.01, wider, wide)) >= chance
