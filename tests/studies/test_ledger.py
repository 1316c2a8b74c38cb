"""The ledger: stored predictions of releases, scored on the runs that their fits had not seen."""

from __future__ import annotations

import csv
import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest

from conftest import ROOT
from crosszone import measured
from crosszone.calibrate.runs import read_runs
from crosszone.cost.profile import Profiles
from crosszone.predict.nearest_runs import RunIndex, read_run_index

HEADER = {"version": "9.9.9", "date": "2026-01-31", "commit": "abc", "seen": "rows that count of a.csv"}


@pytest.fixture(scope="module")
def ledger() -> ModuleType:
    """`benchmarks/ledger.py`, which is a program and no package."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("ledger_program", ROOT / "benchmarks" / "ledger.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "benchmarks"))
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def runs():
    return read_runs(measured.FOLDER / "measured_runs_h200.csv")[0]


def rows_of(ledger, runs, file="a.csv", doubtful=()):
    return [ledger.FileRow(run, run, file, run.id in doubtful) for run in runs]


def outcome(ledger, run, factor):
    """Predicted `factor` times the measured step, with a range of 10 % either way and the measured memory."""
    s = factor * run.step_time_s
    return ledger.Outcome(expected_s=s, low_s=0.9 * s, high_s=1.1 * s, memory_gib=2 * run.memory_gib)


def test_a_release_reads_as_it_was_written(ledger, runs):
    outcomes = {"scored": {run.id: outcome(ledger, run, 1.25) for run in runs}}
    release = ledger.Release(HEADER, outcomes, frozenset([runs[0].id]))
    text = ledger.format_release(release)
    again = ledger.read_release(text)
    assert (again.header, again.seen, again.version) == (HEADER, release.seen, "9.9.9")
    for run in runs:
        stored, written = again.outcomes["scored"][run.id], outcomes["scored"][run.id]
        assert stored.expected_s == pytest.approx(written.expected_s, rel=1e-3)
        assert stored.memory_gib == pytest.approx(written.memory_gib, rel=1e-3)
    assert ledger.format_release(again) == text


def test_first_contact_comes_before_what_is_scored_with_the_software_told(ledger, runs):
    outcomes = {
        "scored": {run.id: outcome(ledger, run, 1.1) for run in runs},
        "first_contact": {run.id: outcome(ledger, run, 1.5) for run in runs},
    }
    again = ledger.read_release(ledger.format_release(ledger.Release(HEADER, outcomes, frozenset())))
    scores = list(ledger.score_release(again, rows_of(ledger, runs)))
    assert [reading for reading, _, _ in scores] == ["first_contact", "first_contact", "scored", "scored"]
    assert [round(figures["mean %"]) for _, _, figures in scores] == [50, 50, 10, 10]


def test_errors_are_counted_by_hand(ledger, runs):
    """Factors 1.05, 0.85 and 1.5: 5, 15 and 50 %; the range of 10 % holds the first only; memory is twice as much."""
    three = runs[:3]
    outcomes = {run.id: outcome(ledger, run, factor) for run, factor in zip(three, (1.05, 0.85, 1.5), strict=True)}
    scores = ledger.score_outcomes(rows_of(ledger, three), outcomes)
    assert scores["rows"] == scores["memory rows"] == 3
    assert scores["mean %"] == pytest.approx(70 / 3)
    assert scores["median %"] == pytest.approx(15)
    assert scores["within 10 %"] == pytest.approx(100 / 3)
    assert scores["within 20 %"] == pytest.approx(200 / 3)
    assert scores["range holds %"] == pytest.approx(100 / 3)
    assert scores["memory mean %"] == pytest.approx(100)


def test_rows_that_the_fit_saw_are_scored_apart_and_doubtful_ones_not_at_all(ledger, runs):
    outcomes = {"scored": {run.id: outcome(ledger, run, 1.1) for run in runs}}
    seen, doubtful = {runs[0].id, runs[1].id}, {runs[2].id}
    release = ledger.Release(HEADER, outcomes, frozenset(seen))
    rows = rows_of(ledger, runs, doubtful=doubtful)
    counts = {group: figures["rows"] for _, group, figures in ledger.score_release(release, rows)}
    unseen = len(runs) - 3
    assert counts == {"**not seen**, without sweeps": unseen, "not seen, a.csv": unseen, "seen by the fit": 2}


def test_sweeps_stay_out_of_the_average(ledger, runs):
    outcomes = {"scored": {run.id: outcome(ledger, run, 1.1) for run in runs}}
    release = ledger.Release(HEADER, outcomes, frozenset())
    sweep = next(iter(ledger.read_rows_settings()["sweeps"]))
    rows = [*rows_of(ledger, runs[:2]), *rows_of(ledger, runs[2:], file=sweep)]
    counts = {group: figures["rows"] for _, group, figures in ledger.score_release(release, rows)}
    assert counts == {
        "**not seen**, without sweeps": 2,
        "not seen, a.csv": 2,
        f"not seen, {sweep}": len(runs) - 2,
    }


def test_rows_that_no_release_holds_are_predicted_now_and_said_so(ledger, runs):
    outcomes = {"scored": {run.id: outcome(ledger, run, 1.1) for run in runs[:5]}}
    release = ledger.Release(HEADER, outcomes, frozenset())
    text = ledger.format_scores([release], rows_of(ledger, runs), Profiles.load_shipped())
    now = [line for line in text if "predicted now" in line]
    assert len(now) == len(ledger.READINGS)
    assert all(f"| rows that no release holds | {len(runs) - 5} |" in line for line in now)


def test_a_file_without_releases_has_no_rows_to_score(ledger, runs):
    text = ledger.format_scores([], rows_of(ledger, runs[:2]), Profiles.load_shipped())
    assert "rows that no release holds | 2 |" in text[2]


def test_doubtful_rows_are_those_of_the_list_the_notes_and_the_groups(ledger):
    doubtful = ledger.find_doubtful(measured.FOLDER / "ultrascale_sweep.csv")
    with (measured.FOLDER / "ultrascale_sweep.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = {row["id"] for row in rows if "DOUBTFUL:" in row["notes"] or row["gpus"] == "512"}
    assert doubtful & {row["id"] for row in rows} == expected
    assert "sailor-0001" in ledger.find_doubtful(measured.FOLDER / "measured_runs.csv")


def test_every_release_of_the_ledger_can_be_read(ledger):
    releases = ledger.read_releases()
    assert releases
    for release in releases:
        assert {"version", "date", "commit", "seen"} <= set(release.header)
        assert release.seen
        for outcomes in release.outcomes.values():
            assert len(outcomes) > 2000
            assert all(0 < o.low_s <= o.expected_s <= o.high_s for o in outcomes.values())
    for path in (ROOT / "benchmarks" / "ledger").glob("*.csv"):
        assert path.stat().st_size < 400_000


def test_a_sweep_is_thinned_to_rows_that_cover_the_others(ledger):
    """Every row left out is nearer to one that was taken than those taken are to each other."""
    rows = [row for row in read_run_index().rows if row["id"].startswith("ultrascale")]
    index = RunIndex(rows)
    taken = ledger.thin_rows(rows, 12)
    assert len(taken) == 12
    assert max(rows, key=lambda row: float(row["mfu"])) in taken
    numbers = [rows.index(row) for row in taken]
    distances = np.array([index.measure_distances(index.describe_run(number)) for number in numbers])
    apart = distances[:, numbers][~np.eye(12, dtype=bool)].min()
    assert distances.min(axis=0).max() <= apart + 1e-9
    assert ledger.thin_rows(rows[:3], 12) == rows[:3]


def test_the_index_says_what_the_program_predicts(ledger, runs):
    """Utilisation and error of a row, from its measured seconds."""
    run = runs[0]
    profiles = Profiles.load_shipped()
    (predicted,) = ledger.predict_index_rows([ledger.FileRow(run, run, "measured_runs.csv", False)], profiles)
    row = ledger.build_index_row(run, predicted, profiles)
    assert float(row["error_pct"]) == pytest.approx(100 * (predicted.expected_s / run.step_time_s - 1), abs=0.05)
    assert float(row["tokens_per_s_per_gpu"]) == pytest.approx(run.tokens_per_s_per_gpu, rel=1e-3)
    assert float(row["mfu"]) * 989.4 == pytest.approx(float(row["tflops_per_gpu"]), rel=2e-3)


def test_near_runs_with_like_errors_show(ledger):
    """Sixty runs on a line whose errors follow their place, of two sources that take turns."""
    base = dict(read_run_index().rows[0])
    rows = [
        {**base, "id": f"{'ab'[number % 2]}-{number:04}", "gpus": str(2 ** (1 + number / 10)), "error_pct": str(number)}
        for number in range(60)
    ]
    text = ledger.check_metric(RunIndex(rows))
    pairs = {line.split(" | ")[0].removeprefix("| "): line for line in text if line.startswith("| ")}
    assert float(pairs["of different sources"].split("|")[3]) > 0.95
    residual, by_chance = (float(pairs["of other sources: all"].split("|")[column]) for column in (5, 6))
    assert residual < 0.1 * by_chance


def test_the_index_is_that_of_the_present_coefficients(ledger):
    """After a change of coefficients or of the files of runs: python benchmarks/ledger.py index."""
    profiles = Profiles.load_shipped()
    indexed = {row["id"]: row for row in read_run_index().rows}
    rows = [row for row in ledger.read_file_rows(measured.FOLDER / "measured_runs_2.csv") if row.counts]
    assert {row.run.id for row in rows} <= set(indexed), "run: python benchmarks/ledger.py index"
    sample = rows[::10]
    for row, predicted in zip(sample, ledger.predict_index_rows(sample, profiles), strict=True):
        assert ledger.build_index_row(row.run, predicted, profiles) == indexed[row.run.id], (
            "run: python benchmarks/ledger.py index"
        )
