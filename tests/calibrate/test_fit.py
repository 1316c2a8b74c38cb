"""The fit: finds values that made the rows, shrugs at wrong rows, and stays at what is believed where rows say nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.calibrate.fit import (
    FRAMEWORK_SPREAD,
    PriorArrays,
    build_prior_arrays,
    build_training_rows,
    draw_start_values,
    fit,
    read_priors,
)
from crosszone.cost.coefficients import RATES
from crosszone.cost.profile import FIELDS, Profiles
from effort import examples

SIZE = np.linspace(1.0, 9.0, 12)


def believed(centre, sd=2.0, **changes) -> PriorArrays:
    n = len(centre)
    plain = {
        "free": np.ones(n, dtype=bool),
        "centre": np.array(centre, dtype=float),
        "sd": np.full(n, sd),
        "anchor": np.full(n, -1),
        "shift": np.zeros(n),
        "lower": np.full(n, 1e-6),
        "upper": np.full(n, 1e6),
    }
    return PriorArrays(**plain | changes)


def line(columns):
    """A row takes rate x size + fixed."""
    return columns["rate"][:, 0] * SIZE + columns["fixed"][:, 0]


INDEX = {"rate": np.zeros((12, 1), dtype=int), "fixed": np.ones((12, 1), dtype=int)}


@given(rate=st.floats(0.1, 10.0), fixed=st.floats(0.1, 10.0))
@examples(25)
def test_values_that_made_the_rows_are_found(rate, fixed):
    """[Q3]"""
    found = fit(line, INDEX, rate * SIZE + fixed, np.array([1.0, 1.0]), believed([1.0, 1.0], sd=20.0))
    assert found.values[0] * SIZE + found.values[1] == pytest.approx(rate * SIZE + fixed, rel=0.01)


def test_one_wrong_row_of_twelve_hardly_moves_the_fit():
    """[Q3] Ten times too slow: least squares on the logarithm would move the line by 10^(1/12) = 1.21."""
    measured = 2.0 * SIZE + 1.0
    measured[5] *= 10.0
    found = fit(line, INDEX, measured, np.array([1.0, 1.0]), believed([1.0, 1.0], sd=20.0))
    assert found.values[0] * 5 + found.values[1] == pytest.approx(11.0, rel=0.01)


def test_a_row_without_weight_does_not_count():
    measured = 2.0 * SIZE + 1.0
    measured[5] *= 10.0
    weights = np.where(np.arange(12) == 5, 0.0, 1.0)
    found = fit(line, INDEX, measured, np.array([1.0, 1.0]), believed([1.0, 1.0], sd=20.0), weights=weights)
    assert found.values == pytest.approx([2.0, 1.0], rel=1e-3)


def test_a_value_that_no_row_reads_stays_at_its_belief_with_its_error():
    found = fit(line, INDEX, 2.0 * SIZE + 1.0, np.array([1.0, 1.0, 7.0]), believed([1.0, 1.0, 7.0], sd=0.5))
    assert found.values[2] == pytest.approx(7.0)
    assert found.error[2] == pytest.approx(0.5)
    assert found.error[0] < 0.05


def test_a_value_without_rows_follows_its_anchor():
    """[Q4] The third value lies about the first, which the rows put at 2."""
    anchor = np.array([-1, -1, 0])
    found = fit(
        line, INDEX, 2.0 * SIZE + 1.0, np.array([1.0, 1.0, 1.0]), believed([1.0, 1.0, 1.0], sd=5.0, anchor=anchor)
    )
    assert found.values[2] == pytest.approx(found.values[0], rel=1e-3)
    assert found.values[0] == pytest.approx(2.0, rel=0.02)


def test_bounds_hold_and_fixed_values_stay():
    free = np.array([True, False])
    beliefs_ = believed([1.0, 3.0], upper=np.array([1.5, 9.0]), free=free)
    found = fit(line, INDEX, 2.0 * SIZE + 1.0, np.array([1.0, 3.0]), beliefs_)
    assert found.values[0] <= 1.5
    assert found.values[1] == 3.0 and found.error[1] == 0


def test_the_start_does_not_matter():
    measured = 2.0 * SIZE + 1.0
    costs = [
        fit(line, INDEX, measured, np.array(begin), believed([1.0, 1.0])).cost for begin in ([1.0, 1.0], [8.0, 0.1])
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-3)


def test_every_fitted_coefficient_has_a_prior_inside_its_bounds_and_a_reason():
    profiles = Profiles.load()
    fitted = {field for (_, field), fixed in zip(profiles.names, profiles.fixed, strict=True) if not fixed}
    assert fitted <= set(read_priors()) <= set(FIELDS)
    for name, prior in read_priors().items():
        assert prior.lower < prior.value < prior.upper, name
        assert len(prior.why) > 10


def test_a_value_of_less_power_lies_below_its_anchor():
    """[Q4] The third value lies about half of the first, which the rows put at 2; one without an anchor about its own."""
    beliefs = believed(
        [1.0, 1.0, 1.0, 3.0], sd=5.0, anchor=np.array([-1, -1, 0, -1]), shift=np.log([1.0, 1.0, 0.5, 0.5])
    )
    found = fit(line, INDEX, 2.0 * SIZE + 1.0, np.array([1.0, 1.0, 1.0, 3.0]), beliefs)
    assert found.values[2] == pytest.approx(found.values[0] / 2, rel=1e-3)
    assert found.values[3] == pytest.approx(1.5, rel=1e-3)


def test_stacks_lie_about_their_framework_and_that_about_the_common_value():
    """[Q4] Megatron-Core about Megatron, Megatron about all; where the common value is assumed, about the prior."""
    profiles = Profiles.load()
    found, place = build_prior_arrays(profiles), profiles.place
    own, framework = place["stack megatron-core", "elementwise"], place["stack megatron", "elementwise"]
    common = place["common", "elementwise"]
    assert (found.anchor[own], found.anchor[framework], found.anchor[common]) == (framework, common, -1)
    assert found.sd[own] == read_priors()["elementwise"].spread
    assert found.sd[framework] == FRAMEWORK_SPREAD
    assumed = place["stack megatron", "p2p_exposed"]
    assert found.anchor[assumed] == -1 and found.centre[assumed] == read_priors()["p2p_exposed"].value


def test_rates_of_a_family_with_less_power_are_expected_to_be_lower():
    """[Q4] 500 of 700 W: the cube root of 0.714 is 0.894. Shares of links, say, do not follow the clock."""
    profiles = Profiles.load()
    found = build_prior_arrays(profiles)
    for at, (scope, field) in enumerate(profiles.names):
        if not scope.startswith("gpu ") or not found.free[at]:
            continue
        share = profiles.gpus[scope.removeprefix("gpu ")].get("power_share", 1.0)
        assert found.shift[at] == pytest.approx(np.log(share) / 3.0 if field in RATES else 0.0)
    lower = profiles.place["gpu h100-500w", "matmul"]
    assert np.exp(found.shift[lower]) == pytest.approx(0.894, abs=5e-4)


def test_rows_of_large_sources_and_secondary_files_count_less():
    """[Q3] Up to 30 rows of a source count fully, each of 120 rows (30 / 120)^0.6 = 0.435; secondary ones 0.03."""
    runs = [SimpleNamespace(source="small")] * 30 + [SimpleNamespace(source="large")] * 120
    weights = build_training_rows(runs, [SimpleNamespace(source="other")]).weights
    assert weights[:30] == pytest.approx(np.ones(30))
    assert weights[30:150] == pytest.approx(np.full(120, 0.435), abs=5e-4)
    assert weights[150] == 0.03


def test_a_fit_starts_from_the_priors_and_not_from_the_last_fit():
    profiles = Profiles.load()
    believed_ = build_prior_arrays(profiles)
    other = profiles.with_values(np.where(profiles.fixed, profiles.values, 2.0 * profiles.values))
    assert np.array_equal(draw_start_values(profiles, believed_), draw_start_values(other, believed_))
    strewn = draw_start_values(profiles, believed_, spread=1.0)
    inside = (strewn >= believed_.lower) & (strewn <= believed_.upper)
    assert np.all(inside[believed_.free])
    assert np.array_equal(strewn[profiles.fixed], profiles.values[profiles.fixed])
