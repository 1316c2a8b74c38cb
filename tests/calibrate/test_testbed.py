"""[T1] to [T10] against transfers measured between emulated zones."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosszone.calibrate.testbed import (
    REASON_COMPUTE,
    REASON_MACHINE,
    REASON_OTHER_JOB,
    EqualLayersJob,
    ExchangeVariant,
    TransferReport,
    build_transfer_report,
    count_bucket_layers,
    predict_step_s,
    read_transfers,
    read_variants,
)
from crosszone.errors import FileError, InputError

HEAD = "experiment,zones,ranks_per_zone,rtt_ms,link_mbit,zone_egress_mbit,op,bytes,unit,median,best"


@pytest.fixture
def report(data: Path) -> TransferReport:
    return build_transfer_report(data / "crosszone_rig.csv")


def written(folder: Path, *rows: str) -> Path:
    path = folder / "rig.csv"
    path.write_text("\n".join((HEAD, *rows)) + "\n", encoding="utf-8")
    return path


def test_all_reduces_are_predicted_within_five_percent_of_the_best_run(report):
    """[T8] The median over every all-reduce row of the file, none left out."""
    found = report.summarize_op("all_reduce")
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
    found = report.summarize_op("p2p_one_way")
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


def test_every_variant_of_a_step_is_predicted_within_ten_percent_of_its_measurement(report):
    """[A24] One bucket, small buckets, 16-bit gradients, PowerSGD, accumulation, local steps: compute is measured."""
    steps = {r.row.op: r for r in report.results if r.row.op.startswith(("ddp_", "localsgd"))}
    assert steps.keys() == read_variants().keys() and len(steps) == 6
    assert all(abs(r.error_median_pct or 99) <= 10 for r in steps.values())


def test_variants_that_reduce_gradients_come_in_the_measured_order(report):
    """[A24] PowerSGD, 16-bit, small buckets, one bucket, four steps of compute."""
    steps = [r for r in report.results if r.row.op.startswith("ddp_")]
    assert sorted(steps, key=lambda r: r.row.median) == sorted(steps, key=lambda r: r.predicted or 0)


def test_a_layer_that_reaches_the_cap_closes_its_bucket():
    """[A24] 2.25 MiB a layer: two are more than 2.5 MiB, eight less than 25; without a cap each is alone."""
    assert count_bucket_layers(8, 2.25, 2.5) == [2, 2, 2, 2]
    assert count_bucket_layers(8, 2.25, 25) == [8]
    assert count_bucket_layers(3, 2.25, 0) == [1, 1, 1]
    assert count_bucket_layers(5, 2.25, 2.5) == [2, 2, 1]


def test_buckets_wait_for_their_layers_and_for_each_other():
    """[A24] 4 layers of 1 s backward and 4 bytes, compute 6 s, 1 s a byte of all-reduce, copies for free.

    Two a bucket: ready after 4 and 6 s, each 8 s of link, so over after 12 and 20; one bucket: 6 + 16.
    """
    job = EqualLayersJob(
        gradient_bytes=16, layers=4, matrix=(1, 1), backward_s_per_layer=1.0, memory_bytes_per_s=float("inf")
    )

    def seconds(cap_bytes: float, **other: float) -> float:
        return predict_step_s(
            job, ExchangeVariant(bucket_mib=cap_bytes / 2**20, passes=1, **other), 6.0, lambda size: size
        )

    assert seconds(5) == 20
    assert seconds(99) == 22
    assert seconds(99, wire_bytes=2) == 14
    assert seconds(99, rank=1) == 6 + 16 + 16
    assert seconds(99, steps=4) == 18 + 22
    assert seconds(0, steps=8, after=True, mean=True) == (8 * 6 + 16) / 8


def test_a_step_of_another_job_or_without_its_compute_is_not_guessed(tmp_path):
    """[A24]"""
    compute = "ddp,2,1,20,200,,local_nosync,18874368,s,0.28,0.27"
    other = build_transfer_report(written(tmp_path, compute, "ddp,2,1,20,200,,ddp_bucket25,1000,s,1.2,1.2"))
    alone = build_transfer_report(written(tmp_path, "ddp,2,1,20,200,,ddp_bucket25,18874368,s,1.2,1.2"))
    assert other.results[-1].reason == alone.results[-1].reason == REASON_OTHER_JOB


def test_windows_cap_streams_as_measured(report):
    """[T1] [T4]"""
    streams = [r for r in report.results if r.row.experiment.startswith("iperf3 window")]
    assert len(streams) == 3
    assert all(abs(r.error_median_pct or 99) <= 5 for r in streams)


def test_what_cannot_be_predicted_says_why(report):
    reasons = {r.row.op: r.reason for r in report.results if r.predicted is None}
    assert reasons["local_nosync"] == REASON_COMPUTE
    assert any(r.reason == REASON_MACHINE for r in report.results if "rate=inf" in r.row.experiment)
    assert all(r.reason for r in report.results if r.predicted is None)
    assert not report.skipped


def test_unequal_hops_are_read_one_by_one(tmp_path):
    rows, _ = read_transfers(written(tmp_path, "h,3,1,24/35/27,300/100/200,,all_reduce,1024,s,0.14,0.139"))
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
    report = build_transfer_report(written(tmp_path, bad, good))
    assert [line for line, reason in report.skipped if reason] == [2]
    assert [result.row.line for result in report.results] == [3]


def test_an_operation_nobody_knows_is_not_guessed(tmp_path):
    report = build_transfer_report(written(tmp_path, "base,2,1,20,500,,gossip,1024,s,0.1,0.1"))
    assert report.results[0].predicted is None
    assert report.results[0].reason


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError):
        read_transfers(path)
    with pytest.raises(FileError):
        read_transfers(tmp_path / "nowhere.csv")


def test_a_stream_that_nothing_limits_is_the_machines_own(tmp_path):
    """No rate and no distance: what is left is how fast the machine copies, and no error is made up."""
    report = build_transfer_report(written(tmp_path, "x,2,1,0,inf,,tcp cubic x1,0,mbit,900,"))
    assert [result.reason for result in report.results] == [REASON_MACHINE]
    assert report.summaries[0].median_median_pct is None
