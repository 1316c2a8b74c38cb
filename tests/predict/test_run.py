"""[E1] [E2] [E3] The whole run: length, failures, money, energy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.predict.predict import build_prediction
from crosszone.predict.run import read_power_figures
from effort import examples
from predict.given import MEGATRON, one_zone, placed, predicted, traffic, zones

JOB = MEGATRON | {"tokens": 1e10}
STEPS = 38147
"""1e10 / (64 x 4096) = 38146.97."""
APART = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "a", "count": 8}, {"zone": "b", "count": 8}]}


def test_goodput_counts_checkpoints_and_failures():
    """[E1] 16 A100 fail 16 x 0.64 / 1000 times a day: 97.66 days apart, 2343.75 h. A checkpoint of 6.738e9 x (2 + 4 + 8) bytes =
    94.3 GB by two nodes at 2 GB/s each takes 23.6 s; Young: sqrt(2 x 23.6 x 8437500) = 19951 s; a failure costs half of that
    and 900 s.
    """
    good = predicted({"tp": 8, "dp": 2}, job=JOB).run.goodput
    assert good.mtbf_hours == pytest.approx(2343.75)
    assert good.checkpoint_gb == pytest.approx(94.338, rel=1e-4)
    assert good.checkpoint_s == pytest.approx(23.584, rel=1e-4)
    assert good.interval_s == pytest.approx(math.sqrt(2 * 23.584 * 8437500), rel=1e-4)
    assert good.lost_per_failure_s == pytest.approx(good.interval_s / 2 + 900)
    assert good.share == pytest.approx(1 / (1 + 23.584 / 19949 + (19949 / 2 + 900) / 8437500), rel=1e-5)


def test_more_gpus_fail_more_often():
    """[E1] Four times the GPUs, a quarter of the time between failures, a lower share."""
    few, many = (predicted({"tp": 8, "dp": d}, job=JOB, cluster=one_zone(8 * d)).run.goodput for d in (1, 4))
    assert many.mtbf_hours == pytest.approx(few.mtbf_hours / 4)
    assert many.share < 1


def test_a_run_costs_its_hours_times_its_price():
    """[E2] 16 GPUs at $2 an hour; nothing crosses zones."""
    got = predicted({"tp": 8, "dp": 2}, job=JOB, cluster=one_zone(16, usd_per_gpu_hour=2.0))
    hours = STEPS * got.step_time_s.expected / 3600 / got.run.goodput.share
    assert got.run.steps == STEPS
    assert got.run.usd_per_hour == 32.0
    assert got.run.gpu_hours.expected == pytest.approx(16 * hours)
    assert got.run.usd.expected == pytest.approx(32 * hours)
    assert got.run.usd_egress == 0.0


@examples(15)
@given(st.floats(0.1, 50), st.floats(0, 1))
def test_price_and_egress_change_the_total_as_arithmetic_says(price, per_gb):
    """[E2] F63: total = GPU-hours x price + bytes a step x steps x price of a GB, both ways of the line."""
    cluster = zones(2, 8, node={"usd_per_gpu_hour": price}, usd_per_gb=per_gb)
    got = predicted({"tp": 8, "dp": 2}, job=JOB, cluster=cluster, placement=APART)
    sent = sum(row.bytes_per_step for row in got.communication if ">" in row.link)
    assert got.run.usd_egress == pytest.approx(sent * STEPS / 1e9 * per_gb)
    assert got.run.usd.expected == pytest.approx(got.run.gpu_hours.expected * price + got.run.usd_egress)


def test_gradients_of_a_7b_model_over_a_line_cost_what_they_weigh():
    """[E2] 27 GB each way a step, 38147 steps, $0.02 a GB: $41,200."""
    got = predicted({"tp": 8, "dp": 2}, job=JOB, cluster=zones(2, 8), placement=APART)
    assert sum(row.bytes_per_step for row in traffic(got, "gradients").values() if ">" in row.link) == pytest.approx(
        54e9, rel=0.01
    )
    assert got.run.usd_egress == pytest.approx(41_200, rel=0.01)


def test_each_way_of_a_line_has_its_own_price():
    """[E2] $0.02 there, $0.10 back: the mean for the ring of two zones."""
    cluster = zones(2, 8)
    cluster["links"] = [{"between": ["a", "b"], "gbps": 10, "rtt_ms": 20, "usd_per_gb": 0.02, "usd_per_gb_back": 0.10}]
    got = predicted({"tp": 8, "dp": 2}, job=JOB, cluster=cluster, placement=APART)
    assert got.run.usd_egress == pytest.approx(41_200 * 3, rel=0.01)


def test_power_is_that_of_the_gpus_with_their_hosts_and_site():
    """[E3] 16 x 400 W x (0.25 + 0.7 x busy share + 0.35) x PUE 1.2; energy is power times hours, carbon at 500 g/kWh."""
    cluster = one_zone(16)
    cluster["zones"][0] |= {"pue": 1.2, "carbon_g_per_kwh": 500}
    got = predicted({"tp": 8, "dp": 2}, job=JOB, cluster=cluster)
    figures = read_power_figures()
    busy = (
        figures["idle_share"]
        + (figures["busy_share"] - figures["idle_share"]) * got.shares["compute"]
        + figures["host_share"]
    )
    assert (figures["idle_share"], figures["busy_share"], figures["host_share"]) == (0.25, 0.95, 0.35)
    assert got.run.kw == pytest.approx(6.4 * busy * 1.2)
    assert got.run.kwh.expected == pytest.approx(got.run.kw * got.run.days.expected * 24)
    assert got.run.co2_kg.expected == pytest.approx(got.run.kwh.expected * 0.5)


def test_gpus_that_wait_draw_less():
    """[E3] The same 16 GPUs over a slow line compute a smaller share of the time."""
    near, far = (
        predicted({"tp": 8, "dp": 2}, job=JOB),
        predicted({"tp": 8, "dp": 2}, job=JOB, cluster=zones(2, 8), placement=APART),
    )
    assert far.run.kw < near.run.kw


def test_a_job_without_a_length_has_a_price_an_hour_and_no_total():
    """[E2]"""
    run = predicted({"tp": 8, "dp": 2}).run
    assert run.usd_per_hour == pytest.approx(16 * 3.4309)
    assert run.steps is run.days is run.usd is run.kwh is None


def test_a_range_of_the_step_is_a_range_of_days_and_money():
    """[E2]"""
    got = predicted({"tp": 8, "dp": 2}, job=JOB)
    for whole in (got.run.days, got.run.gpu_hours, got.run.usd, got.run.kwh):
        assert whole.low / whole.expected == pytest.approx(got.step_time_s.low / got.step_time_s.expected)
        assert whole.high / whole.expected == pytest.approx(got.step_time_s.high / got.step_time_s.expected)
    assert got.tokens_per_s.low < got.tokens_per_s.expected < got.tokens_per_s.high


def test_every_number_names_its_formula_and_inputs():
    """[V6] The record of the step holds its parts, that of MFU recomputes it."""
    p = placed({"tp": 8, "dp": 2}, job=JOB)
    got = build_prediction(p)
    assert sum(got.records["step_time_s"].inputs.values()) == pytest.approx(got.step_time_s.expected)
    mfu = got.records["mfu"].inputs
    assert mfu["model_flops"] / mfu["step_time_s"] / mfu["peak_flops"] == pytest.approx(got.mfu.expected)
