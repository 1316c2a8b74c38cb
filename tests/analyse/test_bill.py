"""[A15] The bill: lines that add up, and what more money buys."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given

from builders import scenario
from crosszone.analyse.bill import Bill, build_bill, list_trades
from crosszone.plan.plan import apply_plan
from crosszone.plan.planner import plan
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.predict.run import predict_goodput
from effort import examples
from predict.given import MEGATRON, one_zone, placed, predictors, zones

JOB = MEGATRON | {"tokens": 1e10}
TOKENS = 64 * 4096
STEPS = 38147
"""1e10 / (64 x 4096) = 38146.97."""
PADDED_GB = (6_738_415_616 + 2 * 768 * 4096) * 4 / 1e9
"""LLaMA-2-7B in fp32 with its vocabulary padded from 32000 to 32768 (128 x tp 8), embedding and head."""
APART = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "a", "count": 8}, {"zone": "b", "count": 8}]}


@examples(25)
@given(predictors())
def test_lines_add_up_to_the_totals_of_the_run(p):
    """[A15] Money, egress, GPU-hours, energy and carbon; and the same money by hour, step and token."""
    got, run = build_bill(p), build_prediction(p).run
    assert math.fsum(line.usd for line in got.gpus) + run.usd_egress == pytest.approx(run.usd.expected, rel=1e-12)
    assert math.fsum(line.usd for line in got.egress) == pytest.approx(run.usd_egress, rel=1e-12)
    assert math.fsum(line.gpu_hours for line in got.gpus) == pytest.approx(run.gpu_hours.expected, rel=1e-12)
    assert math.fsum(line.usd_per_hour for line in got.gpus) == pytest.approx(run.usd_per_hour, rel=1e-12)
    assert math.fsum(line.kwh for line in got.energy) == pytest.approx(run.kwh.expected, rel=1e-12)
    assert got.usd_per_step * run.steps == pytest.approx(run.usd.expected, rel=1e-12)
    assert got.usd_per_hour * run.days.expected * 24 == pytest.approx(run.usd.expected, rel=1e-12)
    assert got.usd_per_million_tokens * run.steps * TOKENS / 1e6 == pytest.approx(run.usd.expected, rel=1e-12)
    assert (got.usd, got.gpu_hours, got.kwh, got.co2_kg) == (run.usd, run.gpu_hours, run.kwh, run.co2_kg)
    assert Bill.model_validate_json(got.model_dump_json()) == got


def test_a_step_over_two_zones_costs_its_gpus_and_27_gb_each_way():
    """[A15] 16 GPUs x $2 x step / goodput / 3600, and twice 26.98 GB of fp32 gradients x $0.02."""
    p = placed({"tp": 8, "dp": 2}, job=JOB, cluster=zones(2, 8, node={"usd_per_gpu_hour": 2.0}), placement=APART)
    got, run = build_bill(p), build_prediction(p).run
    gpus = 32.0 * p.step_time.expected / run.goodput.share / 3600
    assert [(line.link, line.usd_per_step) for line in got.egress] == [
        ("a > b", pytest.approx(PADDED_GB * 0.02, rel=1e-6)),
        ("b > a", pytest.approx(PADDED_GB * 0.02, rel=1e-6)),
    ]
    assert got.usd_gpus_per_step == pytest.approx(gpus)
    assert got.usd_per_step == pytest.approx(gpus + 2 * PADDED_GB * 0.02, rel=1e-6)
    assert got.usd_egress == pytest.approx(2 * PADDED_GB * 0.02 * STEPS, rel=1e-6)
    assert got.steps_per_hour == pytest.approx(32.0 / gpus)


def test_prices_say_where_they_come_from():
    """[A15] Typed for one zone, from the catalogue with its source for the other; both directions' own price."""
    cluster = zones(2, 8)
    cluster["zones"][0]["nodes"][0]["usd_per_gpu_hour"] = 1.5
    cluster["links"] = [{"between": ["b", "a"], "gbps": 10, "rtt_ms": 20, "usd_per_gb": 0.01, "usd_per_gb_back": 0.07}]
    got = build_bill(placed({"tp": 8, "dp": 2}, cluster=cluster, placement=APART))
    first, second = got.gpus
    assert (first.usd_per_gpu_hour, first.origin, first.source, first.usd_per_hour) == (1.5, "typed", None, 12.0)
    assert (second.usd_per_gpu_hour, second.origin, second.source) == (3.4309, "catalogue", "skypilot-aws-2026")
    assert [(line.link, line.usd_per_gb, line.origin) for line in got.egress] == [
        ("a > b", 0.07, "typed"),
        ("b > a", 0.01, "typed"),
    ]


def test_a_price_that_is_not_known_is_named_and_not_nothing():
    """[A15] b to a has a price, a to b has none: the line says so, and the sums hold GPUs only, as the run's do."""
    cluster = zones(2, 8, usd_per_gb=None)
    cluster["links"] = [{"between": ["a", "b"], "gbps": 10, "rtt_ms": 20, "usd_per_gb_back": 0.02}]
    p = placed({"tp": 8, "dp": 2}, job=JOB, cluster=cluster, placement=APART)
    got = build_bill(p)
    there, back = got.egress
    assert (there.usd_per_gb, there.usd, there.origin) == (None, None, "unknown")
    assert back.usd == pytest.approx(PADDED_GB * 0.02 * STEPS, rel=1e-6)
    assert got.unpriced == ("a > b",)
    assert got.usd_egress is got.usd_egress_per_step is None
    assert got.usd_egress_known_per_step == pytest.approx(PADDED_GB * 0.02, rel=1e-6)
    assert got.usd == build_prediction(p).run.usd
    assert [warning["code"] for warning in got.warnings] == ["egress_price_unknown"]


def test_a_gpu_without_a_price_has_hours_and_no_dollars():
    """[A15]"""
    got = build_bill(placed({"tp": 8, "dp": 2}, job=JOB, cluster=one_zone(16, gpu="h800-80gb-sxm")))
    assert got.gpus[0].origin == "unknown"
    assert got.gpus[0].gpu_hours > 0
    assert got.usd_per_hour is got.usd_per_million_tokens is got.usd is None
    assert "h800-80gb-sxm" in got.warnings[0]["message"]


def test_energy_and_carbon_are_each_zones_own():
    """[A15] Equal GPUs, PUE 1 and 1.5, 100 and 600 g/kWh: energy 1 : 1.5, carbon 1 : 9."""
    cluster = zones(2, 8)
    cluster["zones"][0] |= {"pue": 1.0, "carbon_g_per_kwh": 100}
    cluster["zones"][1] |= {"pue": 1.5, "carbon_g_per_kwh": 600}
    p = placed({"tp": 8, "dp": 2}, job=JOB, cluster=cluster, placement=APART)
    first, second = build_bill(p).energy
    assert second.kwh / first.kwh == pytest.approx(1.5)
    assert second.co2_kg / first.co2_kg == pytest.approx(9.0)
    assert first.co2_kg + second.co2_kg == pytest.approx(build_prediction(p).run.co2_kg.expected)
    assert first.kwh_per_step * STEPS == pytest.approx(first.kwh)


def test_a_zone_without_carbon_leaves_its_line_open():
    """[A15]"""
    cluster = zones(2, 8)
    cluster["zones"][0] |= {"carbon_g_per_kwh": 100}
    got = build_bill(placed({"tp": 8, "dp": 2}, job=JOB, cluster=cluster, placement=APART))
    assert got.energy[0].co2_kg == pytest.approx(got.energy[0].kwh * 0.1)
    assert got.energy[1].co2_kg is got.co2_kg is None


def test_a_job_without_a_length_has_prices_but_no_total():
    """[A15]"""
    got = build_bill(placed({"tp": 8, "dp": 2}), language="zh")
    assert got.usd_per_hour == pytest.approx(16 * 3.4309)
    assert got.usd is got.gpus[0].usd is got.energy[0].kwh is None
    assert [warning["code"] for warning in got.warnings] == ["bill_no_length"]
    assert "任务未给出长度" in got.warnings[0]["message"]


def test_each_step_along_the_front_says_what_a_day_more_buys():
    """[A15] $ a day of a point: $ of a step x 86400 x goodput / step; the faster plan costs more and gains its speed."""
    asked = scenario(job=MEGATRON, cluster=one_zone(32, usd_per_gpu_hour=2.0), strategy={"tp": 8})
    front = plan(asked, front=True, top=1).front
    got = list_trades(asked, front)
    assert len(got) == len(front) - 1 > 0

    def per_day(point):
        p = build_predictor(apply_plan(asked, point))
        return point.usd_per_step * 86400 * predict_goodput(p.placed, p.framework.name).share / point.step_s

    for trade, (faster, slower) in zip(got, reversed(list(pairwise(front))), strict=True):
        assert trade.usd_per_day == pytest.approx(per_day(slower))
        assert trade.usd_per_day_more == pytest.approx(per_day(faster) - per_day(slower))
        assert trade.usd_per_day_more > 0
        assert trade.faster_pct == pytest.approx(100 * (slower.step_s / faster.step_s - 1))
        assert trade.faster_pct > 0
    assert got[0].gpus < got[0].faster_gpus
    assert f"{got[0].faster_pct:.1f} %" in got[0].told["message"]


def test_sixteen_gpus_in_place_of_eight_cost_384_dollars_a_day_more():
    """[A15] 8 more GPUs at $2 an hour, 24 hours; nothing crosses zones."""
    asked = scenario(job=MEGATRON, cluster=one_zone(16, usd_per_gpu_hour=2.0), strategy={"tp": 8})
    (one,) = [trade for trade in list_trades(asked, plan(asked, front=True, top=1).front) if trade.faster_gpus == 16]
    assert one.gpus == 8
    assert one.usd_per_day == pytest.approx(384.0)
    assert one.usd_per_day_more == pytest.approx(384.0)
    assert "+$384 a day" in one.told["message"]
