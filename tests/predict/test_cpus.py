"""Ranks that compute on CPUs talk over Gloo; a trial's speed scales what is computed, and only that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.gloo import gloo_all_reduce_s
from crosszone.inputs.parameters import parameters
from effort import examples
from predict.given import DDP, one_zone, placed, predicted, zones

CPU = {"name": "cpu", "architecture": "cpu", "memory_gib": 256, "memory_gb_per_s": 20, "dense_tflops": {"bf16": 0.1}}
FLAT = {"dp": 2, "communication": {"reduce": "flat", "overlap_gradients": False, "bucket_mb": 1000}}
MODEL = {"layers": 4, "hidden": 1024, "heads": 8, "vocab": 32000, "ffn_hidden": 4096}


def in_zones(count: int, gpu: dict, **link: float):
    where = zones(count, 1, node={"gpu": gpu}, **link)
    return predicted(FLAT | {"dp": count}, model=MODEL, job=DDP | {"global_batch": 2 * count}, cluster=where)


def test_gradients_of_two_cpus_take_the_time_of_gloos_all_reduce():
    found = in_zones(2, CPU, gbps=1, rtt_ms=20)
    predictor = placed(FLAT, model=MODEL, job=DDP | {"global_batch": 4}, cluster=zones(2, 1, node={"gpu": CPU}))
    assert predictor.placed.transport.library == "gloo"
    size = 4.0 * parameters(predictor.case.model).total
    whole = gloo_all_reduce_s(size, 2, 0.0201, 1e9 / 8 * 1448 / 1500)
    assert found.breakdown_s["gradients"] == pytest.approx(float(whole), rel=0.02)


@examples(30)
@given(st.sampled_from([2, 3, 4]), st.floats(0.05, 20), st.floats(0.5, 200), st.floats(1.0, 20))
def test_gloo_is_never_quicker_on_a_slower_line(count, gbps, rtt_ms, factor):
    here = in_zones(count, CPU, gbps=gbps, rtt_ms=rtt_ms).step_time_s.expected
    assert here <= in_zones(count, CPU, gbps=gbps / factor, rtt_ms=rtt_ms).step_time_s.expected * (1 + 1e-9)
    assert here <= in_zones(count, CPU, gbps=gbps, rtt_ms=rtt_ms * factor).step_time_s.expected * (1 + 1e-9)


def test_a_step_takes_one_over_its_speed_where_nothing_is_exchanged():
    alone = {"dp": 1, "micro_batch": 1}
    at = {
        speed: predicted(alone, cluster=one_zone(1, speed=speed), job=DDP | {"global_batch": 4}) for speed in (1, 0.5)
    }
    plain = predicted(alone, cluster=one_zone(1), job=DDP | {"global_batch": 4})
    assert at[1].step_time_s.expected == pytest.approx(plain.step_time_s.expected)
    assert at[0.5].step_time_s.expected == pytest.approx(2 * plain.step_time_s.expected)


def test_a_cpu_has_no_measured_profile_until_it_was_tried():
    codes = [w["code"] for w in in_zones(2, CPU).warnings]
    assert "profile_derived" in codes
    where = zones(2, 1, node={"gpu": CPU, "speed": 0.3})
    tried = predicted(FLAT, model=MODEL, job=DDP | {"global_batch": 4}, cluster=where)
    assert "profile_derived" not in [w["code"] for w in tried.warnings]
    assert tried.basis.low > in_zones(2, CPU).basis.low  # a narrower band
