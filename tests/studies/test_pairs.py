"""Pairs of strategies: how far their errors lie apart, and how often stated chances come true."""

from __future__ import annotations

import math

import numpy as np
import pytest
from refit import FOLDER, replace_pair_spread
from uncertainty import Pairs, fit_pair_spread, pair_strategies, score_chances

from crosszone.calibrate.accuracy import build_setup_key, build_strategy_key
from crosszone.calibrate.fit import CrossValidation, select_usable_runs
from crosszone.calibrate.runs import read_runs
from crosszone.cost.coefficients import read_pair_spread


def pairs(predicted, measured, weight=None) -> Pairs:
    said, real = np.array(predicted, dtype=float), np.array(measured, dtype=float)
    return Pairs(predicted=said, measured=real, weight=np.ones(len(said)) if weight is None else weight, setups=1)


def test_the_spread_is_what_two_thirds_of_the_differences_stay_below():
    """[W2] Differences of 0.01 to 1.00 on either side: 68.27 % lie within 0.69; a huge one changes nothing."""
    sizes = np.arange(1, 101) / 100
    signs = np.tile([1.0, -1.0], 50)
    assert fit_pair_spread(pairs(np.zeros(100), signs * sizes)) == 0.69
    assert fit_pair_spread(pairs(np.zeros(100), signs * np.where(sizes == 1, 50, sizes))) == 0.69


def test_a_heavy_pair_counts_as_many():
    """[W2] Nine pairs of 0.1 and one of 0.3: 0.1, until the one weighs as much as the nine."""
    sizes = np.array([0.1] * 9 + [0.3])
    assert fit_pair_spread(pairs(np.zeros(10), sizes)) == 0.1
    assert fit_pair_spread(pairs(np.zeros(10), sizes, np.array([1.0] * 9 + [9.0]))) == 0.3


def test_stated_chances_are_put_beside_what_happened():
    """[W2] At a spread of 0.1: apart by 0.01 is 54.0 %, by 0.1 84.1 %, by 0.2 97.7 %; an equal time is half right."""
    said = [0.01, 0.01, 0.1, 0.1, 0.1, 0.2]
    found = score_chances(pairs(said, [0.3, -0.3, 0.1, 0.1, 0.0, 0.5], np.array([3.0, 1.0, 1.0, 1.0, 1.0, 1.0])), 0.1)
    assert [one["pairs"] for one in found.values()] == [2, 0, 0, 3, 1]
    assert found["50-60 %"]["stated_pct"] == pytest.approx(53.98, abs=0.01)
    assert (found["50-60 %"]["right_pct"], found["50-60 %"]["weighted_pct"]) == (50.0, 75.0)
    assert found["80-90 %"]["stated_pct"] == pytest.approx(84.13, abs=0.01)
    assert found["80-90 %"]["right_pct"] == pytest.approx(100 * 2.5 / 3)
    assert found["90-100 %"]["right_pct"] == 100 and found["60-70 %"]["right_pct"] is None


def test_a_certain_pair_belongs_to_the_last_range():
    """[W2] Far apart the chance rounds to one."""
    assert score_chances(pairs([5.0], [5.0]), 0.1)["90-100 %"] == {
        "pairs": 1, "stated_pct": 100.0, "right_pct": 100.0, "weighted_pct": 100.0,
    }  # fmt: skip


def test_only_strategies_of_one_set_up_are_paired(data):
    """[W2] Three strategies of a set-up make three pairs of weight 2/3; the one predicted faster comes first."""
    runs = select_usable_runs(read_runs(data / "measured_runs.csv")[0], {})
    groups: dict = {}
    for run in runs:
        groups.setdefault(build_setup_key(run), {}).setdefault(build_strategy_key(run), []).append(run)
    three = next(g for g in groups.values() if len(g) == 3 and all(len(same) == 1 for same in g.values()))
    lone = next(g for g in groups.values() if len(g) == 1)
    some = [same[0] for g in (three, lone) for same in g.values()]
    measured = np.array([run.step_time_s for run in some])
    known = np.ones(4, dtype=bool)
    found = pair_strategies(
        CrossValidation(
            kind="source", folds=2, runs=tuple(some), predicted_s=measured[[0, 1, 2, 3]] * np.array([1, 2, 4, 1]),
            stack_known=known, gpu_known=known,
        )
    )  # fmt: skip
    assert (found.setups, found.weight.tolist()) == (1, [pytest.approx(2 / 3)] * 3)
    assert (found.predicted >= 0).all()
    errors = sorted(np.abs(found.predicted - found.measured))
    assert errors == pytest.approx([math.log(2), math.log(2), math.log(4)])


def test_the_spread_is_written_back_and_nothing_else_changes():
    text = (FOLDER / "bands.yaml").read_text("utf-8")
    assert replace_pair_spread(text, read_pair_spread()) == text
    other = replace_pair_spread(text, 0.5)
    assert other != text and other.replace("{sd: 0.5,", f"{{sd: {read_pair_spread()!r},") == text
