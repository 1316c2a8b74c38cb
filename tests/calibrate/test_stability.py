"""How steady iterations are, and which one is meant."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.calibrate.stability import measure_stability, resolve_iteration
from crosszone.errors import InvalidError

RUN = {3: 4.0, 4: 2.0, 5: 3.0}
"""Mean 3; deviations 1, -1, 0."""


def test_five_numbers_by_hand_of_three_iterations():
    """[K40]"""
    found = measure_stability(RUN)
    assert (found.count, found.min_s, found.max_s, found.mean_s, found.std_s) == (3, 2.0, 4.0, 3.0, 1.0)
    assert (found.mean_to_min_pct, found.best_step) == (50.0, 4)


def test_one_iteration_has_no_spread_and_is_its_own_best():
    found = measure_stability({7: 1.5})
    assert (found.std_s, found.mean_to_min_pct, found.best_step) == (0.0, 0.0, 7)


@given(st.lists(st.floats(1e-6, 1e5), min_size=2, max_size=50))
def test_statistics_agree_with_the_standard_library_whatever_the_times(times):
    found = measure_stability(dict(enumerate(times)))
    assert found.min_s <= found.mean_s <= found.max_s
    assert math.isclose(found.mean_s, statistics.fmean(times), rel_tol=1e-9)
    assert math.isclose(found.std_s, statistics.stdev(times), rel_tol=1e-6, abs_tol=1e-9 * max(times))
    assert times[found.best_step] == min(times)


@pytest.mark.parametrize(("word", "step"), [("first", 3), ("last", 5), ("best", 4), ("5", 5), (3, 3)])
def test_an_iteration_is_called_by_word_or_number(word, step):
    assert resolve_iteration(word, RUN) == step


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("fastest", "not_one_of"),
        ("9", "trace_step_unknown"),
        ("-1", "not_one_of_these"),
        ("9" * 30, "trace_step_unknown"),
    ],
)
def test_an_iteration_that_is_not_there_is_refused(word, code):
    with pytest.raises(InvalidError) as error:
        resolve_iteration(word, RUN)
    assert error.value.notices[0].code == code
