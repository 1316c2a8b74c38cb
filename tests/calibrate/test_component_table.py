"""[K60] [K61] The table of component errors, the shares of an iteration, and the table of stability."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from component_rows import TIMED, iterations, written
from crosszone.calibrate.components import (
    SHARE_NAMES,
    TABLE_PARTS,
    ComponentScores,
    build_component_table,
    compute_iteration_shares,
    score_components,
)
from crosszone.calibrate.components_read import read_components
from crosszone.calibrate.stability import read_stability_table
from crosszone.cost.profile import Profiles
from crosszone.errors import FileError, InputError
from crosszone.text import LANGUAGES, label


@cache
def profiles() -> Profiles:
    return Profiles.load()


def scored(folder: Path, *rows: dict[str, str]) -> ComponentScores:
    path = written(folder / "jobs.csv", *({**TIMED, **row} for row in rows))
    runs, skipped = read_components(path)
    return score_components(runs, profiles(), skipped)


def test_errors_are_signed_by_job_and_absolute_in_the_mean(tmp_path):
    """[K60] One set-up measured at half and at twice what is predicted: +100 % and -50 %, 75 % in the mean."""
    once = scored(tmp_path, {}).runs[0].predicted
    halves = {"run_id": "fast", "iter_best_s": str(once.step / 2)}
    doubles = {"run_id": "slow", "iter_best_s": str(once.step * 2)}
    table = build_component_table(scored(tmp_path, halves, doubles), "en")
    step = table.rows[-1]
    assert (step.part, [job.fastest for job in table.jobs]) == ("step", [True, False])
    assert step.errors_pct == pytest.approx((100.0, -50.0))
    assert step.means["perlmutter"].all_pct == pytest.approx(75.0)
    assert step.means["perlmutter"].fastest_pct == pytest.approx(100.0)
    assert [row.part for row in table.rows] == list(TABLE_PARTS)


def test_the_slowest_stage_is_the_largest_of_the_measured_ones(tmp_path):
    """[K60] 100, 200 and 50 ms: the middle one."""
    found = {row.part: row for row in build_component_table(scored(tmp_path, {}), "en").rows}
    assert found["slowest_fwd"].measured_s == (pytest.approx(0.2),)
    assert found["slowest_bwd"].measured_s == (pytest.approx(0.6),)


def test_each_cluster_has_its_own_mean(tmp_path):
    """[K60] A job on each of two clusters."""
    vista = {"run_id": "two", "cluster": "vista", "gpu": "GH200-120GB", "gpus_per_node": "1"}
    table = build_component_table(scored(tmp_path, {}, vista), "en")
    assert table.clusters == ("perlmutter", "vista")
    for row in table.rows:
        for at, cluster in enumerate(table.clusters):
            assert row.means[cluster].all_pct == (
                None if row.errors_pct[at] is None else pytest.approx(abs(row.errors_pct[at]))
            )


def test_a_part_that_is_not_stated_is_an_empty_cell(tmp_path):
    found = {
        row.part: row
        for row in build_component_table(
            scored(tmp_path, {"p2p_send_first_us": "", "p2p_send_middle_us": ""}), "en"
        ).rows
    }
    assert found["p2p_send"].errors_pct == (None,)
    assert found["p2p_send"].means["perlmutter"].all_pct is None


def test_an_update_shorter_than_the_all_gather_in_it_is_not_scored(tmp_path):
    found = {
        row.part: row for row in build_component_table(scored(tmp_path, {"update_raw_first_us": "999999"}), "en").rows
    }
    assert found["update"].errors_pct == (None,)
    assert found["dp_allgather"].errors_pct != (None,)


@pytest.mark.parametrize("language", LANGUAGES)
def test_components_are_named_in_the_readers_language(tmp_path, language):
    table = build_component_table(scored(tmp_path, {}), language)
    assert [row.name for row in table.rows] == [label(f"component_{part}", language) for part in TABLE_PARTS]


def test_shares_by_hand(tmp_path):
    """[K61] 16 micro-batches of the middle stage, 12 layers, parallel residual, a sum of 1 ms, 20 s in all.

    Sums: forward 12, backward 24 and 12 again = 48 ms. Forward 16 (200 - 12) = 3.008 s, backward 16 (600 - 36) =
    9.024 s, sums 0.768 s, messages 16 x 2 x 10 ms = 0.32 s, gradients 2 s, update 1.5 s; 3.38 s are left.
    """
    (one,) = compute_iteration_shares(scored(tmp_path, {}), "en")
    seconds = (3.008, 9.024, 0.768, 0.32, 2.0, 1.5, 3.38)
    assert one.measured_pct == pytest.approx(dict(zip(SHARE_NAMES, (5 * s for s in seconds), strict=True)))


def test_shares_add_up_to_the_whole(tmp_path):
    """[K61] Also where parts are longer than the iteration: nothing is negative."""
    for cells in ({}, {"iter_best_s": "1"}, {"mp_allreduce_middle_us": "90000", "mp_allreduce_last_us": "90000"}):
        (one,) = compute_iteration_shares(scored(tmp_path, cells), "en")
        for found in (one.measured_pct, one.predicted_pct):
            assert sum(found.values()) == pytest.approx(100.0)
            assert min(found.values()) >= 0


def test_a_job_that_states_too_little_has_predicted_shares_only(tmp_path):
    (one,) = compute_iteration_shares(scored(tmp_path, {"dp_allreduce_first_us": ""}), "en")
    assert one.measured_pct is None
    assert sum(one.predicted_pct.values()) == pytest.approx(100.0)


# --- stability


def test_stability_by_hand(tmp_path):
    """2, 3 and 4 s: mean 3, deviation 1, the mean 50 % above the fastest; the first and a profiler's are left out."""
    lines = ("a,1,9,9,warmup", "a,2,2,2,steady", "a,3,3,3,steady", "a,4,4,4,steady", "a,5,30,90,profiler_dump")
    (row,) = read_stability_table(iterations(tmp_path, *lines))
    told = row.as_dict()
    assert (told["count"], told["min_s"], told["max_s"], told["mean_s"], told["std_s"]) == (3, 2, 4, 3, 1)
    assert (told["mean_to_min_pct"], told["best_step"], told["left_out"]) == (50, 2, 2)


def test_a_job_without_steady_iterations_has_no_row(tmp_path):
    assert read_stability_table(iterations(tmp_path, "a,1,9,9,warmup")) == []


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("a,2,-3,3,steady", "iter_time_s"),
        ("a,2,nan,3,steady", "iter_time_s"),
        ("a,2,1e99,3,steady", "iter_time_s"),
        ("a,2,fast,3,steady", "iter_time_s"),
        ("a,two,3,3,steady", "iteration"),
        ("a,1,3,3,steady", "iteration"),
        (",2,3,3,steady", "run_id"),
        ("a,2,3,3,steady,more", "run_id"),
        ("a", "iteration"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, line, column):
    """The third line of the file, after the header and one good row."""
    with pytest.raises(InputError) as caught:
        read_stability_table(iterations(tmp_path, "a,1,2,2,steady", line))
    (notice,) = caught.value.notices
    assert (notice.code, notice.field, notice.line) == ("iterations_row", column, 3)
    assert "3" in notice.message("en") and column in notice.message("zh")


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_stability_table(path)
    assert caught.value.notices[0].code == "runs_columns"
    with pytest.raises(FileError):
        read_stability_table(tmp_path / "none.csv")


# --- against the measured jobs


def test_quiet_jobs_of_both_clusters_are_met(data):
    """Targets against the fastest iteration: 3 % on Perlmutter over all jobs, 4 % on Vista over the fastest of each set-up."""
    runs, skipped = read_components(data / "gpumodeling25" / "runs.csv")
    table = build_component_table(score_components(runs, profiles(), skipped), "en")
    step = table.rows[-1].means
    assert step["perlmutter"].all_pct <= 3
    assert step["vista"].fastest_pct <= 4
    limits = {"p2p_send": 6, "update": 7, "mp_allreduce": 5, "dp_allgather": 14, "layer_fwd": 5, "layer_bwd": 4}
    for row in table.rows:
        for mean in row.means.values():
            assert mean.fastest_pct is None or mean.fastest_pct <= limits.get(row.part, 100)


def test_the_measured_stability_is_the_published_one(data):
    """Means and extremes of the log that the jobs' own table states."""
    with (data / "gpumodeling25" / "runs.csv").open(encoding="utf-8", newline="") as file:
        stated = {row["run_id"]: row for row in csv.DictReader(file) if row["iter_log_min_s"]}
    found = {row.id: row.stability for row in read_stability_table(data / "gpumodeling25" / "iterations.csv")}
    assert set(found) == set(stated)
    for name, row in stated.items():
        one = found[name]
        assert one.count == int(row["log_iters_steady"])
        for key in ("min", "max", "mean"):
            assert getattr(one, f"{key}_s") == pytest.approx(float(row[f"iter_log_{key}_s"]), rel=1e-4)
