"""Single-run calibration on published runs: the row is met, and the others of a stack that the profile does not know get better."""

from __future__ import annotations

from statistics import mean

import numpy as np
import pytest
from refit import fit_profiles
from single_run import calibrate_on_each, scale_coefficients

from crosszone.calibrate.fit import build_training_rows, read_doubtful_reasons, select_usable_runs
from crosszone.calibrate.predicted import predict_runs_s
from crosszone.calibrate.runs import read_runs
from crosszone.cost.profile import Profiles

SOURCE, TAKEN = "bigscience-bloom", 8


@pytest.mark.slow
def test_one_row_of_bloom_betters_the_prediction_of_the_others(data):
    """A newcomer's case: profiles that have not seen the source, the framework's default stack, one row as the log."""
    path = data / "measured_runs.csv"
    runs = select_usable_runs(read_runs(path)[0], read_doubtful_reasons(path, None))
    shipped = Profiles.load_shipped()
    fitted = fit_profiles(build_training_rows([run for run in runs if run.source != SOURCE]), shipped, rounds=12)
    profiles = shipped.with_values(fitted.values)
    errors = np.where(shipped.fixed, shipped.errors, fitted.error)
    own = [
        run.with_stack(profiles.select_stack(run.framework, None, run.case.release))
        for run in runs
        if run.source == SOURCE
    ]
    found = calibrate_on_each(own[:: len(own) // TAKEN], profiles, errors)
    assert all(one.own_after_pct <= 3.0 for one in found)
    before, after = mean(one.before_pct for one in found), mean(one.after_pct for one in found)
    assert before > 10.0 and after < 0.75 * before
    assert sum(one.after_pct < one.before_pct for one in found) >= 0.7 * len(found)
    assert all(len(one.moved) <= 9 for one in found)


def test_factors_are_put_on_the_values_that_a_run_reads(data):
    run = next(r for r in read_runs(data / "measured_runs.csv")[0] if r.source == SOURCE and r.step_time_s)
    profiles = Profiles.load_shipped()
    slower = scale_coefficients(profiles, run, {"matmul": 0.5})
    assert predict_runs_s([run], slower)[0] > 1.2 * predict_runs_s([run], profiles)[0]
    assert predict_runs_s([run], scale_coefficients(profiles, run, {}))[0] == predict_runs_s([run], profiles)[0]
