"""[V3] [V7] [S10] Parts of a prediction add up: step, communication, memory, timeline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from crosszone.predict.breakdown import COMMUNICATION, COMPUTE, HOST, find_bottleneck
from crosszone.predict.predict import build_prediction
from crosszone.predict.predictor import Predictor
from effort import examples
from predict.given import FSDP, MEGATRON, one_zone, placed, predicted, predictors, traffic, zones

NOTHING = dict.fromkeys((*COMPUTE, *COMMUNICATION, *HOST, "bubble"), 0.0)
KINDS = {
    "tensor": ("tensor",),
    "context": ("context",),
    "expert": ("expert",),
    "pipeline": ("pipeline",),
    "local update": ("local_update",),
}


@examples(80)
@given(predictors())
def test_parts_of_a_step_add_up_and_none_is_negative(p: Predictor):
    """[V3]"""
    got = build_prediction(p)
    step = got.step_time_s.expected
    assert sum(got.breakdown_s.values()) == pytest.approx(step, rel=1e-9)
    assert min(got.breakdown_s.values()) >= 0
    assert sum(got.shares.values()) == pytest.approx(1.0)
    assert got.bottleneck == max(got.shares, key=lambda name: got.shares[name])


@pytest.mark.slow
@examples(60)
@given(predictors())
def test_exposed_communication_is_that_of_the_breakdown(p: Predictor):
    """[V3] Rows of one kind add up to its part; a link is never exposed for longer than it is busy or waited for."""
    got = build_prediction(p)
    shown = dict.fromkeys(KINDS, 0.0) | {"replicas": 0.0}
    for row in got.communication:
        shown[row.kind if row.kind in KINDS else "replicas"] += row.exposed_s
        assert row.bytes_per_step > 0
        assert row.busy_s > 0
        assert row.exposed_s >= 0
        if row.kind in ("tensor", "gradients", "weights"):
            assert row.exposed_s <= row.busy_s * (1 + 1e-9)
    parts = got.breakdown_s
    for kind, names in KINDS.items():
        assert shown[kind] == pytest.approx(sum(parts[name] for name in names), rel=1e-9, abs=1e-12)
    assert shown["replicas"] == pytest.approx(
        parts["gradients"] + parts["weights"] + parts["sharding"], rel=1e-6, abs=1e-9
    )


@examples(40)
@given(predictors())
def test_memory_parts_add_up_and_the_fullest_stage_decides(p: Predictor):
    """[M1]"""
    memory = p.memory
    for stage in memory.stages:
        assert sum(stage.parts.values()) == pytest.approx(stage.total)
        assert min(stage.parts.values()) >= 0
    assert sum(stage.layers for stage in memory.stages) == 32
    worst = memory.stages[memory.worst_stage]
    assert memory.peak.expected == worst.total == pytest.approx(memory.limit - memory.margin)
    assert memory.fits == all(stage.total <= stage.limit for stage in memory.stages)
    assert memory.peak.low < memory.peak.expected < memory.peak.high


@examples(40)
@given(predictors())
def test_the_timeline_ends_with_the_step_and_lanes_are_busy_or_idle(p: Predictor):
    """[S10] F78: the last span ends with the step; spans of a lane do not overlap; spans and idle time are the step."""
    timeline = p.timeline()
    step = p.step_time.expected
    assert timeline.step_s == pytest.approx(step, rel=1e-12)
    assert timeline.busy_s + timeline.idle_s == pytest.approx(np.full(len(timeline.lanes), step))
    assert (timeline.idle_s >= -1e-9 * step).all()
    for lane in range(len(timeline.lanes)):
        mine = timeline.lane == lane
        order = np.argsort(timeline.start_s[mine], kind="stable")
        start, end = timeline.start_s[mine][order], timeline.end_s[mine][order]
        assert (start[1:] >= end[:-1] - 1e-9 * step).all()


def test_a_timeline_shows_each_stage_each_link_and_the_update():
    """[S10] Four stages in two zones, two replicas each: forward, backward, sends, gradients, optimizer, weights."""
    p = placed({"tp": 8, "pp": 2, "dp": 2, "zero": 1}, cluster=zones(2, 16))
    timeline = p.timeline()
    names = [lane.name for lane in timeline.lanes]
    assert names[:2] == ["stage 0 (a)", "stage 1 (b)"]
    assert {lane.group for lane in timeline.lanes} == {"stages", "links", "gradients", "host"}
    trace = timeline.to_trace("two zones")
    kinds = [span.kind for span in trace.spans]
    assert {"forward", "backward", "send", "gradients", "optimizer", "parameters", "other"} <= set(kinds)
    assert kinds.count("forward") == kinds.count("backward") == 2 * 32
    assert trace.steps[0].end_s == p.step_time.expected


def test_one_gpu_communicates_nothing_and_still_updates():
    """[V3] F50: t = p = d = 1: no row, no part of communication, an optimizer's time."""
    got = predicted({"dp": 1}, model={"like": "llama-2-7b", "layers": 2}, cluster=one_zone(1))
    assert got.communication == ()
    assert all(got.breakdown_s[name] == 0 for name in COMMUNICATION)
    assert got.breakdown_s["bubble"] == pytest.approx(0, abs=1e-9)
    assert got.breakdown_s["optimizer"] > 0
    assert got.run.usd_egress in (None, 0.0)


def test_each_degree_alone_has_its_own_communication_and_no_other():
    """[V3] t, c, p and d, eight GPUs each."""
    wanted = {
        "tp": {"tensor"}, "cp": {"context", "gradients"}, "pp": {"pipeline"}, "dp": {"gradients"},
    }  # fmt: skip
    for axis, kinds in wanted.items():
        got = predicted({"dp": 1} | {axis: 8}, cluster=one_zone(8))
        assert {row.kind for row in got.communication} == kinds


def test_the_class_that_takes_most_of_the_step_is_its_bottleneck():
    """[V7] 6 s of products and 3 s of sends: compute, two thirds; swapped numbers swap the label."""
    kind, shares = find_bottleneck(NOTHING | {"matmul": 6.0, "pipeline": 3.0})
    assert (kind, shares["compute"], shares["communication"]) == ("compute", pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert find_bottleneck(NOTHING | {"matmul": 3.0, "pipeline": 6.0})[0] == "communication"
    assert find_bottleneck(NOTHING | {"matmul": 3.0, "bubble": 6.0})[0] == "pipeline"
    assert find_bottleneck(NOTHING | {"matmul": 3.0, "host": 6.0})[0] == "host"


def test_a_slow_line_is_bound_by_communication_and_one_zone_with_a_big_batch_by_compute():
    """[V7] F53: 7B gradients over 1 Gbit/s take minutes a step; eight GPUs on one NVLink domain compute."""
    far = predicted({"tp": 8, "dp": 2}, cluster=zones(2, 8, gbps=1), placement=two_halves())
    near = predicted({"dp": 8, "zero": 3, "micro_batch": 4}, job=FSDP | {"global_batch": 512}, cluster=one_zone(8))
    assert (far.bottleneck, near.bottleneck) == ("communication", "compute")
    assert far.shares["communication"] > 0.8
    assert near.shares["compute"] > 0.8


def test_few_micro_batches_on_many_stages_wait_for_each_other():
    """[V7] p = 8, m = 1: each stage works an eighth of the time."""
    got = predicted({"tp": 1, "pp": 8, "dp": 1}, job=MEGATRON | {"global_batch": 1}, cluster=one_zone(8))
    assert got.bottleneck == "pipeline"
    assert got.shares["pipeline"] > 0.7


def test_the_pipeline_of_equal_stages_waits_p_minus_one_over_m():
    """[V3] F45: p = 4, no head to speak of (a small vocabulary): bubble / own work = 3/16, with two chunks 3/32, and sends
    are part of the step.
    """
    model = {"like": "llama-2-7b", "vocab": 128}
    job = MEGATRON | {"global_batch": 16}
    for chunks, share in ((1, 3 / 16), (2, 3 / 32)):
        got = predicted({"tp": 2, "pp": 4, "dp": 1, "interleave": chunks}, model=model, job=job, cluster=one_zone(8))
        parts = got.breakdown_s
        tail = ("gradients", "weights", "optimizer", "local_update", "fixed", "jitter", "bubble")
        own = sum(value for name, value in parts.items() if name not in tail)
        assert parts["bubble"] / own == pytest.approx(share, rel=0.05)
        assert parts["pipeline"] > 0
        assert traffic(got, "pipeline")


def two_halves() -> dict:
    """Replicas as the axis that crosses zones."""
    return {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "a", "count": 8}, {"zone": "b", "count": 8}]}
