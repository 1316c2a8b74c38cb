"""Ranking of strategies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.calibrate.accuracy import RankedRun, compute_spearman, score_ranking

TIMES = st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 10.0)), min_size=2, max_size=12)


def group(*times, setup="a") -> list[RankedRun]:
    return [RankedRun(setup, number, *pair) for number, pair in enumerate(times)]


def test_regret_is_what_the_choice_costs_more_than_the_best():
    """[Q7] The second is predicted best (9.0) and takes 11 s; the best takes 10 s: 1.1."""
    found = score_ranking(group((10.0, 9.5), (11.0, 9.0), (20.0, 21.0)))
    assert found.mean_regret == found.max_regret == pytest.approx(1.1)
    assert (found.groups, found.strategies) == (1, 3)


def test_only_pairs_more_than_five_percent_apart_count():
    """[Q7] 10 and 10.4 are too near; 10 against 20 and 10.4 against 20 are one right and one wrong."""
    found = score_ranking(group((10.0, 5.0), (10.4, 8.0), (20.0, 7.0)))
    assert found.pairs == 2
    assert found.pairs_right_pct == pytest.approx(50.0)


def test_runs_of_the_same_strategy_count_as_their_mean():
    """[Q7] 10 and 14 make 12: worse than 11."""
    rows = [RankedRun("a", 1, 10.0, 1.0), RankedRun("a", 1, 14.0, 1.0), RankedRun("a", 2, 11.0, 2.0)]
    assert score_ranking(rows).mean_regret == pytest.approx(12 / 11)


def test_set_ups_are_never_mixed_and_a_lone_strategy_says_nothing():
    found = score_ranking([*group((1.0, 1.0), (2.0, 2.0)), *group((5.0, 1.0), setup="b")])
    assert found.groups == 1 and found.mean_regret == 1
    nothing = score_ranking(group((1.0, 1.0)))
    assert (nothing.groups, nothing.mean_regret, nothing.pairs_right_pct, nothing.spearman) == (0, None, None, None)


def test_groups_that_are_too_small_are_left_out():
    """[Q7] Of five strategies the second is taken for the best: 1.2; the group of three, at 2.0, does not count."""
    five = group((10.0, 9.0), (12.0, 8.0), (13.0, 20.0), (14.0, 21.0), (15.0, 22.0))
    three = group((1.0, 3.0), (2.0, 1.0), (3.0, 4.0), setup="b")
    found = score_ranking([*five, *three], 5)
    assert (found.groups, found.strategies) == (1, 5)
    assert found.mean_regret == found.max_regret == pytest.approx(1.2)
    assert found.spearman == pytest.approx(1 - 6 * 2 / (5 * 24))
    assert score_ranking([*five, *three]).mean_regret == pytest.approx(1.6)


def test_rank_correlation():
    """Ranks 1 2 3 against 1 3 2: 1 - 6 x 2 / (3 x 8) = 0.5."""
    assert compute_spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])) == pytest.approx(0.5)
    assert compute_spearman(np.array([1.0, 2.0]), np.array([5.0, 5.0])) == 0


@given(times=TIMES)
def test_a_perfect_prediction_has_no_regret_and_any_other_at_least_one(times):
    assert (score_ranking(group(*times)).mean_regret or 0) >= 1
    perfect = score_ranking(group(*((m, m) for m, _ in times)))
    assert perfect.mean_regret == 1
    assert perfect.pairs_right_pct in (None, 100.0)
