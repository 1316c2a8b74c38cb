"""[T1] to [T10] against transfers measured between emulated zones."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosszone.calibrate.rig import LAYERS, MACHINE, RigReport, read_rig, rig_report
from crosszone.errors import FileError, InputError

HEAD = "experiment,zones,ranks_per_zone,rtt_ms,link_mbit,zone_egress_mbit,op,bytes,unit,median,best"


@pytest.fixture
def report(data: Path) -> RigReport:
    return rig_report(data / "crosszone_rig.csv")


def written(folder: Path, *rows: str) -> Path:
    path = folder / "rig.csv"
    path.write_text("\n".join((HEAD, *rows)) + "\n", encoding="utf-8")
    return path


def test_all_reduces_are_predicted_within_five_percent_of_the_best_run(report):
    """[T8] The median over every all-reduce row of the file, none left out."""
    found = report.of("all_reduce")
    assert found.rows == found.predicted == 111
    assert found.median_best_pct is not None and found.median_best_pct <= 5
    assert found.median_median_pct is not None and found.median_median_pct <= 7


@pytest.mark.parametrize("experiment", ["base2", "base3"])
def test_two_and_three_zones_are_predicted_within_ten_percent_nine_times_in_ten(report, experiment):
    """[T8]"""
    (found,) = [s for s in report.summaries if (s.experiment, s.op) == (experiment, "all_reduce")]
    assert found.rows == 42
    assert found.p90_best_pct is not None and found.p90_best_pct <= 10


def test_messages_back_and_forth_are_predicted_within_five_percent_of_the_best_run(report):
    """[T9]"""
    found = report.of("p2p_one_way")
    assert found.median_best_pct is not None and found.median_best_pct <= 5


def test_ranks_that_share_a_zone_s_uplink_are_predicted_within_ten_percent_of_the_best_run(report):
    """[T8] [T10] Flat ring, shards, one leader, many groups, sends: 2 and 4 ranks a zone."""
    shared = [result for result in report.results if result.row.experiment == "contention"]
    assert len(shared) == 12
    assert all(result.error_best_pct is not None and abs(result.error_best_pct) <= 10 for result in shared)


def test_the_order_of_schemes_on_a_shared_uplink_is_the_measured_one(report):
    """[T8] Shards no slower than the flat ring, many whole groups slowest; sends of whole tensors are another traffic."""
    for per_zone in (2, 4):
        rows = {
            r.row.op: r for r in report.results if r.row.experiment == "contention" and r.row.ranks_per_zone == per_zone
        }
        schemes = ["hier_shard", "flat_ring", "many_groups"]
        assert sorted(schemes, key=lambda op: rows[op].row.median) == schemes
        assert sorted(schemes, key=lambda op: rows[op].predicted or 0) == schemes


def test_a_pause_costs_what_slow_start_says(report):
    """[T6] Reno after one second of silence: three times the warm time for 1 MiB."""
    idle = [r for r in report.results if r.row.experiment == "cc_reno_ssai1_idle1s"]
    assert len(idle) == 2
    assert all(abs(r.error_best_pct or 99) <= 10 for r in idle)


def test_steps_whose_compute_is_measured_are_predicted_within_ten_percent(report):
    """[T8] DDP with one bucket, 16-bit gradients, accumulation."""
    steps = [r for r in report.results if r.row.op in ("ddp_bucket25", "ddp_fp16_hook", "ddp_accum4_no_sync")]
    assert len(steps) == 3
    assert all(abs(r.error_median_pct or 99) <= 10 for r in steps)


def test_windows_cap_streams_as_measured(report):
    """[T1] [T4]"""
    streams = [r for r in report.results if r.row.experiment.startswith("iperf3 window")]
    assert len(streams) == 3
    assert all(abs(r.error_median_pct or 99) <= 5 for r in streams)


def test_what_cannot_be_predicted_says_why(report):
    reasons = {r.row.op: r.reason for r in report.results if r.predicted is None}
    assert reasons["ddp_powersgd_r4"] == reasons["ddp_bucket2.5"] == LAYERS
    assert any(r.reason == MACHINE for r in report.results if "rate=inf" in r.row.experiment)
    assert all(r.reason for r in report.results if r.predicted is None)
    assert not report.skipped


def test_unequal_hops_are_read_one_by_one(tmp_path):
    rows, _ = read_rig(written(tmp_path, "h,3,1,24/35/27,300/100/200,,all_reduce,1024,s,0.14,0.139"))
    assert rows[0].rtt_s == (0.024, 0.035, 0.027)
    assert rows[0].bytes_per_s[1] == pytest.approx(100e6 / 8 * 1448 / 1500, rel=1e-4)


@pytest.mark.parametrize(
    "bad",
    [
        "x,two,1,20,500,,all_reduce,1024,s,0.1,0.1",
        "x,2,1,nan,500,,all_reduce,1024,s,0.1,0.1",
        "x,2,1,20,0,,all_reduce,1024,s,0.1,0.1",
        "x,2,1,20,500,,all_reduce,1024,s,0,0.1",
        "x,2,1,20,500,,all_reduce,-1,s,0.1,0.1",
        "x,2,1,20/20/20,500/500,,all_reduce,1,s,0.1,0.1",
        "x,2,1,20",
        "x,2,1,20,500,,all_reduce,1024,s,0.1,1e-320",
        "x,2,1,20,500,,all_reduce,1e308,s,0.1,0.1",
    ],
)
def test_a_bad_row_is_skipped_with_its_line_and_reason(tmp_path, bad):
    good = "base,2,1,20,500,,all_reduce,1024,s,0.0449,0.0408"
    report = rig_report(written(tmp_path, bad, good))
    assert [line for line, reason in report.skipped if reason] == [2]
    assert [result.row.line for result in report.results] == [3]


def test_an_operation_nobody_knows_is_not_guessed(tmp_path):
    report = rig_report(written(tmp_path, "base,2,1,20,500,,gossip,1024,s,0.1,0.1"))
    assert report.results[0].predicted is None
    assert report.results[0].reason


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError):
        read_rig(path)
    with pytest.raises(FileError):
        read_rig(tmp_path / "nowhere.csv")


def test_a_stream_that_nothing_limits_is_the_machines_own(tmp_path):
    """No rate and no distance: what is left is how fast the machine copies, and no error is made up."""
    report = rig_report(written(tmp_path, "x,2,1,0,inf,,tcp cubic x1,0,mbit,900,"))
    assert [result.reason for result in report.results] == [MACHINE]
    assert report.summaries[0].median_median_pct is None
