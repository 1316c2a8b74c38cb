"""[A17] Goodput over the run, and each zone lost once."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import scenario
from crosszone.analyse.drill import Drill, compute_fetch_times, compute_share_with_zones, run_drill
from crosszone.cost.profile import Profiles
from crosszone.errors import InvalidError
from crosszone.plan.plan import Point
from crosszone.plan.planner import plan
from crosszone.plan.search import CancelledError
from crosszone.predict.predict import build_predictor
from crosszone.predict.run import compute_goodput_share
from predict.given import MEGATRON, one_zone, zones

JOB = MEGATRON | {"tokens": 1e10}
PRICED = {"usd_per_gpu_hour": 2.0}
YEAR_S = 365.25 * 86400
CHECKPOINT = 6_738_415_616 * 14
"""LLaMA-2-7B: weights 2, master weights 4, moments 8 bytes each."""
WIRE = 10e9 / 8 * 0.9653
"""Payload of 10 Gbit/s, bytes/s."""


@cache
def both() -> Drill:
    """Two equal zones near each other, one of eight GPUs each."""
    return run_drill(scenario(job=JOB, cluster=zones(2, 8, node=PRICED, gbps=400, rtt_ms=1, usd_per_gb=0.0)))


def lost(answer: Drill, zone: str) -> Any:
    return next(loss for loss in answer.losses if loss.zone == zone)


def test_the_best_interval_is_the_best_of_those_around_it():
    """[A17] w / i + i / (2 MTBF) is the same at k times and a k-th of the best interval, and least at 1."""
    shares = [one.share for one in both().intervals]
    intervals = [one.interval_s for one in both().intervals]
    assert shares[3] == both().goodput.share == max(shares)
    assert intervals[3] == both().goodput.interval_s
    assert shares[:3] == pytest.approx(shares[:3:-1])
    assert shares[:4] == sorted(shares[:4])


@given(write=st.floats(1, 1e3), mtbf=st.floats(1e4, 1e7), restart=st.floats(0, 3600), factor=st.floats(0.01, 100))
def test_no_interval_beats_youngs(write, mtbf, restart, factor):
    """[A17]"""
    best = (2 * write * mtbf) ** 0.5
    assert compute_goodput_share(write, best * factor, mtbf, restart) <= compute_goodput_share(
        write, best, mtbf, restart
    ) * (1 + 1e-12)


def test_a_plan_in_two_zones_falls_back_to_the_one_left():
    """[A17] Half the GPUs: the best plan of one zone; back after half an interval and 900 s, for the copy is there."""
    answer = both()
    assert set(answer.main.zones) == {"a", "b"}
    one = lost(answer, "b")
    alone = plan(scenario(job=JOB, cluster=one_zone(8, **PRICED)), top=1).plans[0].prediction
    assert one.used
    assert one.fits
    assert one.fallback.zones == ("a",)
    assert one.worth.tokens_per_s == pytest.approx(alone.tokens_per_s.expected)
    assert one.tokens_left_pct == pytest.approx(100 * one.worth.tokens_per_s / answer.worth.tokens_per_s)
    assert one.days_longer == pytest.approx(alone.run.days.expected - answer.main.prediction.run.days.expected)
    assert (one.lost_s, one.restart_s) == (answer.goodput.interval_s / 2, pytest.approx(900.0))
    assert one.back_after_s == pytest.approx(answer.goodput.interval_s / 2 + 900)
    assert one.usd_per_day == pytest.approx(8 * 2 * 24)
    assert one.usd_once == pytest.approx(32 * one.back_after_s / 3600)
    assert [(copy.zone, copy.fetch_s) for copy in one.copies] == [("a", 0.0)]
    assert one.told["code"] == "drill_falls_back"


def test_a_checkpoint_that_lies_elsewhere_is_fetched_over_the_line():
    """[A17] 94.3 GB at 10 Gbit/s x 0.9653: 78.2 s from c to the fallback in one zone; nothing if it lies there."""
    cluster = zones(3, 8, node=PRICED)
    answer = run_drill(scenario(job=JOB, cluster=cluster, strategy={"tp": 8, "pp": 1}), checkpoint_zone="c")
    (home,) = answer.main.zones
    one = lost(answer, home)
    (refuge,) = one.fallback.zones
    fetched = {copy.zone: copy.fetch_s for copy in one.copies}
    (other,) = set(fetched) - {refuge}
    assert fetched[refuge] == 0.0
    assert fetched[other] == pytest.approx(CHECKPOINT / WIRE, rel=1e-9)
    assert fetched[other] == pytest.approx(78.2, abs=0.1)
    assert one.back_after_s == pytest.approx(one.lost_s + 900 + fetched["c"])


def test_each_zone_fetches_the_stages_it_holds_and_transfers_share_the_uplink():
    """[A17] Four stages over b and c, eight layers each: half the checkpoint each, over two lines of 10 Gbit/s, together
    through an uplink of 10 Gbit/s; replicas in both take a whole one each.
    """
    fields: dict[str, Any] = zones(3, 8)
    strategy = {"tp": 2, "pp": 4, "dp": 2, "micro_batch": 1}
    blocks = [{"zone": "b", "count": 8}, {"zone": "c", "count": 8}]

    def seconds(order: list[str]) -> float:
        asked = scenario(job=MEGATRON, cluster=fields, strategy=strategy, placement={"order": order, "blocks": blocks})
        settled = build_predictor(asked)
        way = Point(
            framework="megatron",
            strategy=settled.strategy,
            placement=asked.placement,
            gpus=16,
            step_s=1.0,
            usd_per_step=1.0,
        )
        return compute_fetch_times(asked, way, CHECKPOINT, Profiles.load())["a"]

    across, apart = ["tp", "cp", "dp", "pp"], ["tp", "cp", "pp", "dp"]
    assert seconds(across) == pytest.approx(CHECKPOINT / 2 / WIRE)
    assert seconds(apart) == pytest.approx(CHECKPOINT / WIRE)
    fields["zones"][0]["uplink_gbps"] = 10.0
    assert seconds(across) == pytest.approx(CHECKPOINT / WIRE)
    assert seconds(apart) == pytest.approx(2 * CHECKPOINT / WIRE)


def test_the_only_copy_may_be_lost_with_its_zone():
    """[A17]"""
    asked = scenario(job=JOB, cluster=zones(2, 8, node=PRICED, gbps=400, rtt_ms=1))
    answer = run_drill(asked, checkpoint_zone="a", zone_failures_per_year=1.0)
    gone, kept = lost(answer, "a"), lost(answer, "b")
    assert (gone.back_after_s, gone.usd_once, gone.lost_hours_per_year) == (None, None, None)
    assert gone.told["code"] == "drill_checkpoint_lost"
    assert gone.fallback is not None
    assert kept.back_after_s is not None
    assert "drill_not_counted" in {note["code"] for note in answer.notes}


def test_a_zone_that_is_not_used_may_go():
    """[A17] A line of 1 Mbit/s: the plan lies in one zone, and losing the other changes nothing."""
    answer = run_drill(scenario(job=JOB, cluster=zones(2, 8, node=PRICED, gbps=0.001)))
    (home,) = answer.main.zones
    (other,) = {"a", "b"} - {home}
    one = lost(answer, other)
    assert (one.used, one.fits, one.tokens_left_pct, one.back_after_s) == (False, True, 100.0, 0.0)
    assert one.fallback == answer.main
    assert one.told["code"] == "drill_unused"
    assert answer.losses[-1] == one


def test_a_zone_without_which_nothing_fits_says_so():
    """[A17] 70B on 24 + 8 GPUs without offload: 8 x 80 GB cannot hold 69e9 x 18 bytes."""
    cluster = zones(2, 8, node=PRICED, gbps=100)
    cluster["zones"][0]["nodes"][0]["count"] = 3
    asked = scenario(model="llama-2-70b", job=JOB, cluster=cluster, strategy={"offload": "none", "pp": 4})
    first = run_drill(asked).losses[0]
    assert (first.zone, first.fits, first.tokens_left_pct, first.fallback) == ("a", False, 0.0, None)
    assert first.refusal[0]["code"] == "nothing_fits"
    assert first.told["code"] == "drill_nothing_left"


def test_the_only_zone_has_no_fallback():
    """[A17]"""
    (one,) = run_drill(scenario(job=JOB, cluster=one_zone(8))).losses
    assert (one.used, one.fits, one.told["code"]) == (True, False, "drill_nothing_left")


@given(rate=st.floats(0, 100))
def test_zones_that_fail_lower_the_share_as_arithmetic_says(rate):
    """[A17] 1 / (1 / share + rate x time lost / year)."""
    share = compute_share_with_zones(0.95, rate * 7200 / YEAR_S)
    assert share == pytest.approx(1 / (1 / 0.95 + rate * 7200 / YEAR_S))
    assert share <= 0.95 * (1 + 1e-12)


def test_a_rate_of_zone_failures_is_only_counted_where_it_is_given():
    """[A17] 12 a year, both zones in use: 12 x (sum of both times lost) of every year."""
    asked = scenario(job=JOB, cluster=zones(2, 8, node=PRICED, gbps=400, rtt_ms=1, usd_per_gb=0.0))
    answer = run_drill(asked, zone_failures_per_year=12.0)
    seconds = sum(loss.back_after_s for loss in answer.losses)
    assert answer.share == pytest.approx(1 / (1 / answer.goodput.share + 12 * seconds / YEAR_S))
    assert lost(answer, "a").lost_hours_per_year == pytest.approx(12 * lost(answer, "a").back_after_s / 3600)
    assert both().share == pytest.approx(both().goodput.share)
    assert "drill_no_rate" in {note["code"] for note in both().notes}
    assert "drill_no_rate" not in {note["code"] for note in answer.notes}


def test_a_plan_slower_than_its_fallback_is_remarked_upon():
    """[A17] dp 2 at tp 8 forces both zones over a line of 0.1 Gbit/s."""
    answer = run_drill(scenario(job=JOB, cluster=zones(2, 8, gbps=0.1), strategy={"tp": 8, "dp": 2}))
    assert lost(answer, "a").tokens_left_pct > 100
    assert "drill_slows" in {note["code"] for note in answer.notes}


def test_figures_it_rests_on_have_sources():
    """[A17] 0.64 failures per 1000 A100-days, measured; restart and storage assumed; the zones' rate given."""
    found = {one.name: one for one in both().assumptions}
    rate = found["failures_per_1000_gpu_days a100-80gb-sxm"]
    assert (rate.value, rate.origin, rate.source) == (0.64, "measured", "meta-rsc-reliability")
    assert (found["restart_s"].value, found["restart_s"].origin) == (900.0, "assumed")
    assert found["zone_failures_per_year"].origin == "given"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"zone_failures_per_year": -1.0}, "zone_failures_per_year"),
        ({"zone_failures_per_year": float("nan")}, "zone_failures_per_year"),
        ({"checkpoint_zone": "nowhere"}, "checkpoint_zone"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, field):
    """[A17]"""
    with pytest.raises(InvalidError) as refused:
        run_drill(scenario(job=JOB, cluster=zones(2, 8)), **options)
    assert refused.value.notices[0].field == field


def test_the_answer_survives_json_a_given_plan_is_drilled_and_a_cancelled_one_ends():
    """[A17]"""
    answer = both()
    assert Drill.model_validate_json(answer.model_dump_json()) == answer
    asked = scenario(job=JOB, cluster=zones(2, 8, node=PRICED, gbps=400, rtt_ms=1, usd_per_gb=0.0))
    second = plan(asked, top=2).plans[1]
    seen: list[tuple[str, int, int]] = []
    told = run_drill(asked, main=second, language="zh", progress=lambda *one: seen.append(one))
    assert told.main == second
    assert seen[-1] == ("zones", 2, 2)
    assert "失去" in told.losses[0].told["message"]
    with pytest.raises(CancelledError):
        run_drill(asked, cancelled=lambda: True)
