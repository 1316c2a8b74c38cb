"""Cross-validation: rows are predicted by fits that have not seen them, and bands hold what they promise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refit import fit_profiles, fit_stacks
from uncertainty import fit_software_widths, fit_step_widths

from crosszone.calibrate import fit
from crosszone.calibrate.fit import (
    CrossValidation,
    TrainingRows,
    assign_folds,
    build_training_rows,
    cross_validate,
    read_doubtful_reasons,
    select_usable_runs,
    thin_rows,
)
from crosszone.calibrate.runs import MeasuredRun, read_runs
from crosszone.cost.profile import Profiles
from effort import examples

FEW = ("megatron-2020", "korthikanti-2022", "nanotron")
"""Sources of a quick fit: the last has a stack of its own."""


@pytest.fixture
def runs(data: Path) -> list[MeasuredRun]:
    path = data / "measured_runs.csv"
    return select_usable_runs(read_runs(path)[0], read_doubtful_reasons(path, None))


@pytest.fixture
def few(runs) -> TrainingRows:
    return build_training_rows([run for run in runs if run.source in FEW])


@given(labels=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60), most=st.integers(1, 10))
@examples(50)
def test_every_row_is_left_out_once_together_with_its_kind(labels, most):
    """[Q8]"""
    parts = assign_folds(labels, most)
    assert len(parts) == min(most, len(set(labels)))
    assert np.array_equal(np.sum(parts, axis=0), np.ones(len(labels)))
    for part in parts:
        inside = {label for label, left_out in zip(labels, part, strict=True) if left_out}
        outside = {label for label, left_out in zip(labels, part, strict=True) if not left_out}
        assert inside and not inside & outside


def test_large_kinds_are_spread_over_the_parts():
    """[Q8] 4, 3, 2 and 1 rows in two parts: 4 + 1 and 3 + 2."""
    parts = assign_folds(list("aaaabbbccd"), 2)
    assert [int(part.sum()) for part in parts] == [5, 5]


@pytest.mark.slow
def test_sources_are_predicted_without_themselves(few, monkeypatch):
    """[Q8] Figures ten times as high move the predictions of other sources, never those of their own."""
    monkeypatch.setattr(fit, "ROUNDS", 1)
    profiles = Profiles.load()
    changed = [replace(run, step_time_s=10 * run.step_time_s) if run.source == FEW[0] else run for run in few.runs]
    found, other = (cross_validate(rows, profiles, "source", workers=1) for rows in (few, build_training_rows(changed)))
    assert found is not None and other is not None and found.folds == len(FEW)
    own = np.array([run.source == FEW[0] for run in few.runs])
    assert found.predicted_s[own] == pytest.approx(other.predicted_s[own], rel=1e-9)
    assert not np.any(np.isclose(found.predicted_s[~own], other.predicted_s[~own]))
    known = dict(zip((run.source for run in few.runs), found.stack_known, strict=True))
    assert known == {"megatron-2020": True, "korthikanti-2022": True, "nanotron": False}
    assert {one["source"] for one in found.as_dict()["by_source"]} == set(FEW)


def test_one_source_alone_cannot_be_left_out(runs):
    one = build_training_rows([run for run in runs if run.source == "korthikanti-2022"])
    assert cross_validate(one, Profiles.load(), "source", workers=1) is None


def test_long_files_are_thinned(few, monkeypatch):
    monkeypatch.setattr(fit, "MOST_FITTED", 10)
    found = thin_rows(few)
    assert len(found.runs) == 10 and found.runs[0] is few.runs[0] and found.runs[-1] is few.runs[-1]


def test_stacks_of_other_files_move_no_other_value(data):
    """Rows of one H200 fit the coefficients of the two stacks that only they have, towards which nothing else moves."""
    profiles = Profiles.load()
    rows, _ = read_runs(data / "measured_runs_h200.csv")
    found = fit_stacks(rows, profiles, {run.stack for run in rows})
    moved = {profiles.names[at][0] for at in np.flatnonzero(found.values != profiles.values)}
    assert moved == {"stack hf-eager", "stack hf-compile"}


@pytest.mark.slow
def test_a_fit_ends_at_the_same_cost_from_another_start(runs):
    few = build_training_rows([run for run in runs if run.source == "korthikanti-2022"])
    one, other = (fit_profiles(few, Profiles.load(), strewn=strewn) for strewn in (0.0, 1.0))
    assert other.cost == pytest.approx(one.cost, rel=2e-3)


def left_out(runs, kind, error, *, stack_known=True, gpu_known=True) -> CrossValidation:
    """Runs whose measured time is exp(error) of the predicted one."""
    measured = np.array([run.step_time_s for run in runs])
    known = np.full(len(runs), True)
    return CrossValidation(
        kind=kind,
        folds=2,
        runs=tuple(runs),
        predicted_s=measured / np.exp(error),
        stack_known=known & stack_known,
        gpu_known=known & gpu_known,
    )


def test_widths_leave_one_row_in_ten_on_each_side(runs):
    """[Q6] Errors -0.50 to 0.49 in even steps: -0.4 and 0.4 hold four of five."""
    dense = [run for run in runs if run.complete and not run.moe][:100]
    error = (np.arange(100) - 50) / 100
    found = fit_step_widths([left_out(dense, "row", error)])
    assert found["base"]["low"] == pytest.approx(0.4, abs=0.011)
    assert found["base"]["high"] == pytest.approx(0.4, abs=0.011)
    assert found["moe"] == found["stack"] == found["gpu"] == {"low": 0.0, "high": 0.0}


def test_an_unknown_stack_adds_what_is_missing_in_squares(runs):
    """[Q6] Base 0.3 and 0.5 needed: sqrt(0.25 - 0.09) = 0.4."""
    dense = [run for run in runs if run.complete and not run.moe][:100]
    known = left_out(dense, "row", np.tile([-0.3, 0.3], 50))
    unknown = left_out(dense, "source", np.tile([-0.5, 0.5], 50), stack_known=False)
    found = fit_step_widths([known, unknown])
    assert found["base"] == {"low": 0.3, "high": 0.3}
    assert found["stack"] == {"low": 0.4, "high": 0.4}


def test_software_that_nobody_named_adds_what_is_missing_in_squares(runs):
    """[Q6] Base 0.3 and 0.5 needed, with the source seen or not: sqrt(0.25 - 0.09) = 0.4."""
    dense = [run for run in runs if run.complete and not run.moe][:100]
    as_user = left_out(dense, "source", np.tile([-0.5, 0.5], 50))
    zero = {"low": 0.0, "high": 0.0}
    widths = {"base": {"low": 0.3, "high": 0.3}, "moe": zero, "gpu": zero}
    found = fit_software_widths(as_user, as_user.predicted_s, widths)
    assert found["software"] == {"low": 0.4, "high": 0.4}
    assert found["software_moe"] == zero


def test_models_are_kept_whole(runs):
    """[Q8] No model is both in a fit and left out of it."""
    rows = build_training_rows(runs)
    for part in fit.list_held_out_masks(rows, Profiles.load(), "model"):
        left = Counter(run.case.model.name for run, out in zip(runs, part, strict=True) if out)
        kept = {run.case.model.name for run, out in zip(runs, part, strict=True) if not out}
        assert not set(left) & kept
