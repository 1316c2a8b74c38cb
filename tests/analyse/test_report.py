"""The communication report: parts add up, formulas work out, labels are the right way round."""

from __future__ import annotations

import pytest
from hypothesis import given

from arithmetic import worked_out
from builders import scenario
from crosszone.analyse.communication import build_communication_report, classify_boundness, list_crossing_groups
from crosszone.analyse.communication import merge_zones as together
from crosszone.predict.predict import build_prediction, build_predictor
from effort import examples
from predict.given import MEGATRON, one_zone, placed, predictors, zones

APART = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": z, "count": 8} for z in "ab"]}


@examples(60)
@given(predictors())
def test_lines_add_up_and_their_formulas_work_out(p):
    """[A1] F75, F83: kinds, tiers and links each hold all bytes; every formula with numbers gives the bytes of its row."""
    prediction = build_prediction(p)
    report = build_communication_report(p, prediction)
    total = sum(line.bytes_per_step for line in report.lines)
    for sums in (report.kinds, report.tiers):
        assert sum(one.bytes_per_step for one in sums) == pytest.approx(total, rel=1e-9)
        assert sum(one.share for one in sums) == pytest.approx(1.0 if total else 0.0, abs=1e-9)
    between = sum(one.bytes_per_step for one in report.tiers if one.name == "between zones")
    assert sum(link.bytes_per_step for link in report.links) == pytest.approx(between, rel=1e-9)
    for link in report.links:
        assert sum(link.kinds.values()) == pytest.approx(link.bytes_per_step, rel=1e-9)
        assert link.kinds[link.dominant] == max(link.kinds.values())
    for line in report.lines:
        assert worked_out(line.worked) == pytest.approx(line.bytes_per_step, rel=1e-9), line
    rows = {(row.kind, row.link): row for row in prediction.communication}
    assert {(line.kind, line.link) for line in report.lines} - {("checkpoint", "storage")} == set(rows)


@examples(30)
@given(predictors())
def test_exposed_and_compute_are_those_of_the_step(p):
    """[A1] F49: what is exposed of all kinds is what the breakdown says of communication; nothing is counted twice."""
    report = build_communication_report(p)
    assert report.exposed_s + report.compute_s <= report.step_s * (1 + 1e-9)
    assert report.communication_share == pytest.approx(report.exposed_s / report.step_s)
    if report.compute_to_communication is not None:
        assert report.compute_to_communication == pytest.approx(report.compute_s / report.exposed_s)


@pytest.mark.parametrize(
    ("compute", "communication", "label"),
    [
        (1.0, 9.0, "communication-bound"),
        (1.0, 1.01, "communication-bound"),
        (1.0, 0.99, "balanced"),
        (4.0, 1.01, "balanced"),
        (4.0, 0.99, "compute-bound"),
        (1.0, 0.0, "compute-bound"),
    ],
)
def test_labels_are_not_swapped(compute, communication, label):
    """[A5] F53: communication-bound is where communication takes longer than compute."""
    assert classify_boundness(compute, communication) == label


def test_groups_that_cross_are_counted_by_hand():
    """[A8] Two zones of 8 GPUs, t = 2, p = 2, d = 4 with the pipeline across: 4 replicas x 2 ranks both ways; with the
    replicas across: 2 stages x 2 ranks over the ring a > b, b > a.
    """
    across = placed(
        {"tp": 2, "pp": 2, "dp": 4}, cluster=zones(2, 8), placement=APART | {"order": ["tp", "cp", "dp", "pp"]}
    )
    found = {(one.link, one.axis): (one.groups, one.ranks) for one in list_crossing_groups(across.placed)}
    assert found == {("a > b", "pp"): (8, 2), ("b > a", "pp"): (8, 2)}
    beside = placed({"tp": 2, "pp": 2, "dp": 4}, cluster=zones(2, 8), placement=APART)
    found = {(one.link, one.axis): (one.groups, one.ranks) for one in list_crossing_groups(beside.placed)}
    assert found == {("a > b", "dp"): (4, 4), ("b > a", "dp"): (4, 4)}
    assert list_crossing_groups(placed({"tp": 8, "dp": 2}).placed) == ()


def test_one_zone_has_no_other_to_be_compared_with():
    """[A2] F52: inside one zone only as many GPUs alone are left; one GPU alone is as good as itself."""
    report = build_communication_report(placed({"dp": 1}, cluster=one_zone(1)))
    assert report.scaling.one_zone is None
    assert report.scaling.one_gpu == pytest.approx(1.0, rel=1e-6)
    assert report.links == () and report.groups == ()


def test_efficiency_is_throughput_over_that_of_the_smaller_world():
    """[A2] F52: tokens/s over the same 16 GPUs in one zone, and over 16 times one GPU."""
    strategy = {"tp": 8, "dp": 2}
    p = placed(strategy, cluster=zones(2, 8), placement=APART)
    scaling = build_communication_report(p).scaling
    near = placed(strategy, cluster=together(p.placed.cluster).model_dump(mode="json", exclude_unset=True))
    assert scaling.one_zone == pytest.approx(near.step_s[1] / p.step_s[1], rel=1e-6)
    alone = build_predictor(
        scenario(strategy={"dp": 1}, job=MEGATRON | {"global_batch": 4}, cluster=one_zone(1, nic_gbps_per_gpu=200))
    )
    each = 4 * 4096 / alone.step_s[1]
    own = 64 * 4096 / p.step_s[1]
    assert scaling.one_gpu == pytest.approx(own / (16 * each), rel=1e-3)
    assert scaling.one_zone < 1 and scaling.one_gpu < 1


def test_zones_that_are_not_used_do_not_matter_to_the_efficiency():
    """[A2] The GPUs in use are those that are put together; a plan inside one zone has nothing to be compared with.

    The release is stated: else it is the usual one of the cluster's newest GPU, idle or not, for a cluster has one.
    """
    job = MEGATRON | {"software": {"release": "23.10"}}
    place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": z, "count": 8} for z in "bc"]}
    found = []
    for gpu in ("a100-80gb-sxm", "h100-80gb-sxm"):
        cluster = zones(3, 8)
        cluster["zones"][0]["nodes"][0]["gpu"] = gpu
        found.append(
            build_communication_report(placed({"tp": 8, "dp": 2}, cluster=cluster, placement=place, job=job)).scaling
        )
    assert found[0] == found[1] and found[0].one_zone < 1
    alone = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "c", "count": 8}]}
    assert (
        build_communication_report(placed({"tp": 8, "dp": 1}, cluster=zones(3, 8), placement=alone)).scaling.one_zone
        is None
    )


def test_checkpoints_are_shared_out_over_the_steps_between_two():
    """[A9] Size x step / interval; they stop the job and are no part of what a step exposes."""
    p = placed({"tp": 8, "dp": 2})
    found = build_prediction(p)
    report = build_communication_report(p, found)
    (line,) = [line for line in report.lines if line.kind == "checkpoint"]
    good = found.run.goodput
    assert line.bytes_per_step == pytest.approx(good.checkpoint_gb * 1e9 * found.step_time_s.expected / good.interval_s)
    assert report.exposed_s == pytest.approx(sum(row.exposed_s for row in found.communication))
