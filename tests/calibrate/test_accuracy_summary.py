"""The figures of the page on accuracy: [Q13] ranges scaled to other shares, and whether they are of this release."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crosszone
from crosszone import measured
from crosszone.calibrate.accuracy import ScoredRow
from crosszone.calibrate.first_contact import (
    NOMINAL_PCT,
    build_error_group,
    compute_coverage,
    predict_sample,
    read_summary,
    scale_range,
)
from crosszone.calibrate.runs import read_runs
from crosszone.cost.profile import Profiles
from effort import examples

ROW = ScoredRow(id="a", source="s", measured_s=10.0, predicted_s=10.0, low_s=8.0, high_s=15.0)
SHARES = st.floats(1.0, 99.9)


def test_a_range_of_eighty_percent_is_scaled_by_quantiles():
    """[Q13] 1.6449 / 1.2816 = 1.2835 standard deviations as many hold 90 %: 10 x 0.8^1.2835 and 10 x 1.5^1.2835."""
    assert scale_range(ROW, 80.0) == pytest.approx((8.0, 15.0))
    assert scale_range(ROW, 90.0) == pytest.approx((10.0 * 0.8**1.2835, 10.0 * 1.5**1.2835), rel=1e-4)
    assert scale_range(ROW, 90.0) == pytest.approx((7.510, 16.83), rel=1e-3)


@given(share=SHARES, more=SHARES)
@examples(50)
def test_a_range_that_is_to_hold_more_holds_the_other(share, more):
    """[Q13]"""
    (low, high), (wider_low, wider_high) = (scale_range(ROW, x) for x in sorted((share, more)))
    assert wider_low <= low <= 10.0 <= high <= wider_high
    assert math.log(10.0 / low) / math.log(high / 10.0) == pytest.approx(math.log(1.25) / math.log(1.5))


@given(st.lists(st.floats(5.0, 20.0), min_size=1, max_size=30))
@examples(50)
def test_wider_ranges_hold_no_fewer_rows(measured_s):
    coverage = compute_coverage([replace(ROW, measured_s=seconds) for seconds in measured_s])
    assert tuple(part.nominal_pct for part in coverage) == NOMINAL_PCT
    inside = [part.inside_pct for part in coverage]
    assert inside == sorted(inside)
    assert 0.0 <= inside[0] <= inside[-1] <= 100.0
    assert coverage[1].inside_pct == pytest.approx(100.0 * sum(8.0 <= s <= 15.0 for s in measured_s) / len(measured_s))


def test_no_rows_have_no_coverage():
    assert compute_coverage([]) == ()
    with pytest.raises(ValueError, match="run a has no prediction"):
        scale_range(replace(ROW, predicted_s=None), 90.0)


def test_errors_of_a_group_are_those_of_its_rows():
    """Predicted 10 s, measured 8 and 12.5 s: errors of +25 and -20 %; the second lies inside 8 to 15 s, so does 8 s."""
    group = build_error_group("g", [replace(ROW, measured_s=8.0), replace(ROW, measured_s=12.5)])
    assert (group.rows, group.mean_pct, group.median_pct) == (2, pytest.approx(22.5), pytest.approx(22.5))
    assert group.bias_pct == pytest.approx(2.5)
    assert (group.inside_pct, group.width_pct) == (100.0, pytest.approx(70.0))


def test_the_figures_that_come_with_the_program_are_of_its_coefficients():
    summary = read_summary()
    assert summary.release == crosszone.__version__
    expected = {run.id: run for run in summary.sample}
    files = ("measured_runs.csv", "measured_runs_2.csv")
    runs = [run for name in files for run in read_runs(measured.FOLDER / name, as_user=True)[0] if run.id in expected]
    assert len(runs) == len(expected) >= 5
    for sample in predict_sample(runs, Profiles.load_shipped()):
        stored = expected[sample.id]
        assert (sample.step_s, sample.low_s, sample.high_s) == pytest.approx(
            (stored.step_s, stored.low_s, stored.high_s), rel=1e-3
        ), "run: .venv/bin/python benchmarks/accuracy.py --quick"


def test_first_contact_comes_first_and_groups_hold_every_run():
    readings = read_summary().readings
    assert [reading.kind for reading in readings] == [
        "first_contact",
        "first_contact_left_out",
        "new_sources",
        "left_out",
        "fitted",
    ]
    for reading in readings:
        assert [part.nominal_pct for part in reading.coverage] == list(NOMINAL_PCT)
        for groups in (reading.by_gpu, reading.by_source):
            assert sum(group.rows for group in groups) == reading.total.rows
        mean = sum(group.rows * group.mean_pct for group in reading.by_source) / reading.total.rows
        assert mean == pytest.approx(reading.total.mean_pct, rel=1e-2)
        at_80 = next(part.inside_pct for part in reading.coverage if part.nominal_pct == 80.0)
        assert at_80 == pytest.approx(reading.total.inside_pct)
        by_name = {group.name: group.rows for group in reading.by_knowledge}
        assert by_name["dense"] + by_name["moe"] == reading.total.rows
