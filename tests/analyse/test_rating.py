"""[A18] [A19] A plan at p50 and p95, what makes it uncertain, and what limits each link."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from builders import zone
from crosszone.analyse.rating import DOUBTS, LinkUse, Rating, _build_poisson_draws, _build_skewed_draws, build_rating
from crosszone.predict.predict import build_prediction
from crosszone.predict.predictor import Predictor
from effort import examples
from predict.given import MEGATRON, placed, predictors, zones

JOB = MEGATRON | {"tokens": 1e10}
APART = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "a", "count": 8}, {"zone": "b", "count": 8}]}
BEYOND = 1.6448536 / 1.2815516
"""Standard deviations to p95 over those to p90."""


def across(strategy: dict[str, Any] | None = None, **link: Any) -> Predictor:
    """Two zones of eight GPUs whose replicas exchange gradients over the line."""
    cluster = zones(2, 8, **{"jitter_ms": 0.0} | link)
    return placed({"tp": 8, "dp": 2} | (strategy or {}), job=JOB, cluster=cluster, placement=APART)


def far(**link: Any) -> Predictor:
    """The same in Beijing and Shanghai, the round-trip time left to the distance."""
    found = [zone("a", region="cn-beijing"), zone("b", region="cn-shanghai")]
    for one in found:
        one["nodes"][0]["nic_gbps_per_gpu"] = 200
    cluster = {"zones": found, "default_link": {"gbps": 10, "jitter_ms": 0.0} | link}
    return placed({"tp": 8, "dp": 2}, job=JOB, cluster=cluster, placement=APART)


def test_without_any_doubt_p95_is_p50_is_the_prediction():
    """[A18] Typed round-trip time, no jitter, no loss, the profile taken as it is."""
    p = across()
    got = build_rating(p, doubts=["rtt", "jitter", "loss"])
    assert got.step_s.p95 == got.step_s.p50 == got.expected_s == p.step_time.expected
    assert got.days.p95 == got.days.p50 == pytest.approx(build_prediction(p).run.days.expected)
    assert (got.largest, got.told["code"]) == (None, "rating_certain")


def test_the_profiles_error_alone_is_a_known_factor():
    """[A18] p95 = step x high^(1.645 / 1.2816); tokens/s falls by it, days grow by it."""
    p = placed({"tp": 8, "dp": 2}, job=JOB)
    got = build_rating(p)
    expected = p.step_time.expected
    assert got.step_s.p50 == pytest.approx(expected, rel=1e-12)
    # p95 comes from drawn values, which cut the tail: 1.3 % of the logarithm, whatever the width
    assert math.log(got.step_s.p95 / expected) == pytest.approx(BEYOND * math.log(p.factors[1]), rel=2e-2)
    assert got.tokens_per_s.p50 / got.tokens_per_s.p95 == pytest.approx(got.step_s.p95 / got.step_s.p50)
    assert got.days.p95 / got.days.p50 == pytest.approx(got.step_s.p95 / got.step_s.p50)
    assert (got.largest, got.links) == ("profile", ())


def test_one_uncertain_round_trip_time_is_its_own_quantile():
    """[A18] The step grows with it, so p95 of the step is the step at p95 of the band: median x (high / median)^1.2835."""
    p = far()
    band = p.placed.links[0, 1].rtt_ms
    assert band.low < band.expected < band.high
    got = build_rating(p, doubts=["rtt"])
    late = far(rtt_ms=band.expected * (band.high / band.expected) ** BEYOND).step_time.expected
    assert got.step_s.p50 == pytest.approx(p.step_time.expected, rel=1e-9)
    assert got.step_s.p95 == pytest.approx(late, rel=2e-3)
    assert got.largest == "rtt"
    assert "rtt_ms" in got.told["hint"]


def test_jitter_moves_a_step_and_averages_out_over_a_run():
    """[A18] 30 +- 10 ms over a thin window: p95 of the step is that at 30 + 16.4 ms; days stay."""
    p = across(rtt_ms=30.0, jitter_ms=10.0, gbps=400)
    got = build_rating(p, doubts=["jitter"])
    late = across(rtt_ms=30.0 + 16.448536, gbps=400).step_time.expected
    assert got.step_s.p50 == pytest.approx(p.step_time.expected, rel=1e-9)
    assert late > 1.02 * p.step_time.expected
    assert got.step_s.p95 == pytest.approx(late, rel=5e-3)
    assert got.days.p95 == got.days.p50
    assert got.largest == "jitter"


def test_jitter_that_is_not_given_is_taken_from_a_source_and_said():
    """[A18] 0.25 ms; a typed one, even 0, is taken as it is."""
    got = build_rating(across(jitter_ms=None), doubts=["jitter"])
    assert [note["code"] for note in got.notes] == ["jitter_assumed"]
    assert "skyplane-grid-2022" in got.notes[0]["message"]
    assert {one.doubt for one in got.doubts if one.present} == {"jitter"}
    assert build_rating(across(), doubts=["jitter"]).notes == ()


def test_lost_packets_come_by_chance():
    """[A18] Mean 2: e^-2 = 13.5 % of steps lose none, 27.1 % one; mean 1e6: standard deviation 1000."""
    few, many = _build_poisson_draws(2.0, 10_000), _build_poisson_draws(1e6, 10_000)
    assert (few == 0).mean() == pytest.approx(math.exp(-2), abs=2e-4)
    assert (few == 1).mean() == pytest.approx(2 * math.exp(-2), abs=2e-4)
    assert few.mean() == pytest.approx(2.0, rel=1e-3)
    assert (many.mean(), many.std()) == (pytest.approx(1e6), pytest.approx(1000.0, rel=1e-2))
    assert _build_poisson_draws(0.0, 3).tolist() == [0.0, 0.0, 0.0]


def test_loss_widens_a_step_that_its_connections_limit():
    """[A18] 0.01 % of some 37 million packets: 3700 +- 61 of them."""
    got = build_rating(across(loss_pct=0.01, rtt_ms=50.0), doubts=["loss"])
    assert got.step_s.p95 > got.step_s.p50 == pytest.approx(got.expected_s, rel=1e-3)
    assert got.largest == "loss"


def test_a_skewed_draw_has_its_median_and_one_in_ten_beyond_each_end():
    """[A18]"""
    even = np.array([-1.2815516, 0.0, 1.2815516])
    assert _build_skewed_draws(even, 2.0, 3.0, 9.0) == pytest.approx([2.0, 3.0, 9.0])


@pytest.mark.slow
def test_what_each_doubt_adds_is_what_is_gone_without_it():
    """[A18] Each is switched off in turn; the largest stands first."""
    got = build_rating(far(jitter_ms=3.0, loss_pct=0.001))
    assert [one.widens_s for one in got.doubts] == sorted((one.widens_s for one in got.doubts), reverse=True)
    by = {one.doubt: one for one in got.doubts}
    assert {doubt for doubt, one in by.items() if one.present} == {"profile", "rtt", "jitter", "loss"}
    without = build_rating(far(jitter_ms=3.0, loss_pct=0.001), doubts=["rtt", "jitter", "loss"])
    assert by["profile"].p95_without_s == pytest.approx(without.step_s.p95)
    assert by["profile"].widens_s == pytest.approx(got.step_s.p95 - without.step_s.p95)


@examples(8)
@given(predictors())
def test_p95_is_never_below_p50_and_p50_is_near_the_prediction(p):
    """[A18] Skewed errors move the middle a little; jitter, which only ever delays, may move it further."""
    got = build_rating(p)
    calm = build_rating(p, doubts=[doubt for doubt in DOUBTS if doubt != "jitter"])
    assert got.step_s.p95 >= got.step_s.p50 > 0
    assert got.tokens_per_s.p95 <= got.tokens_per_s.p50
    assert got.days.p95 >= got.days.p50
    assert calm.step_s.p50 == pytest.approx(got.expected_s, rel=0.02)
    assert Rating.model_validate_json(got.model_dump_json()) == got
    for use in got.links:
        limits = [use.flows_gbps, use.link_gbps, use.uplink_gbps, use.nic_gbps]
        assert use.carries_gbps == min(limit for limit in limits if limit is not None)


def uses(p: Predictor) -> dict[str, LinkUse]:
    return {use.link: use for use in build_rating(p, doubts=[]).links}


def test_connections_of_all_ranks_fill_a_short_line():
    """[A19] 8 ranks x 2 channels x 1 connection, 3 MiB of window once in 20 ms: 1.258 Gbit/s each, 20.1 together, above
    the 9.653 of payload of 10 Gbit/s.
    """
    use = uses(across())["a > b"]
    assert (use.ranks, use.flows, use.kinds) == (8, 16, ("gradients",))
    assert use.flow_gbps == pytest.approx(3 * 2**20 * 8 / 0.020 / 1e9)
    assert use.flows_gbps == pytest.approx(16 * use.flow_gbps)
    assert (use.limited_by, use.carries_gbps, use.flows_to_fill) == ("link", pytest.approx(9.653), 1)


def test_a_long_line_waits_for_windows_until_there_are_more_connections():
    """[A19] At 100 ms 16 connections carry 4.03 Gbit/s; 9.653 / 4.027 = 2.4, so 3 a channel fill it."""
    use = uses(across(rtt_ms=100.0))["a > b"]
    assert (use.limited_by, use.flows_to_fill) == ("flow", 3)
    assert use.carries_gbps == pytest.approx(16 * 3 * 2**20 * 8 / 0.1 / 1e9)
    filled = uses(across({"communication": {"flows": 3}}, rtt_ms=100.0))["a > b"]
    assert (filled.limited_by, filled.flows) == ("link", 48)


def test_a_providers_ceiling_on_one_connection_counts():
    """[A19] 0.1 Gbit/s a connection, 0.0965 of payload, 16 of them."""
    use = uses(across(flow_gbps=0.1))["b > a"]
    assert (use.limited_by, use.carries_gbps) == ("flow", pytest.approx(16 * 0.09653))


def test_a_shared_uplink_and_thin_network_cards_limit_too():
    """[A19] An uplink of 5 Gbit/s out of a; then cards of 0.5 Gbit/s for each of the 8 GPUs."""
    cluster = zones(2, 8, jitter_ms=0.0)
    cluster["zones"][0]["uplink_gbps"] = 5.0
    cluster["zones"][0]["downlink_gbps"] = 50.0
    found = uses(placed({"tp": 8, "dp": 2}, job=JOB, cluster=cluster, placement=APART))
    assert (found["a > b"].limited_by, found["a > b"].carries_gbps) == ("uplink", pytest.approx(5 * 0.9653))
    assert found["b > a"].limited_by == "link"
    thin = placed({"tp": 8, "dp": 2}, job=JOB, cluster=zones(2, 8, node={"nic_gbps_per_gpu": 0.5}), placement=APART)
    use = uses(thin)["a > b"]
    carried = thin.placed.crossings.get_ring_link(thin.placed.ring, thin.placed.zone_ranks).bytes_per_s[1]
    assert (use.limited_by, use.carries_gbps) == ("nic", pytest.approx(float(carried) * 8 / 1e9))
    assert 0.8 * 8 * 0.5 < use.carries_gbps <= 8 * 0.5


@pytest.mark.parametrize("link", [{}, {"rtt_ms": 100.0}, {"flow_gbps": 0.1}, {"loss_pct": 0.1}])
def test_what_a_link_carries_is_what_the_prediction_takes_it_to_carry(link):
    """[A19] The ring of zones and the boundary of a pipeline, bytes/s of payload."""
    ring = across(**link)
    carried = ring.placed.crossings.get_ring_link(ring.placed.ring, ring.placed.zone_ranks).bytes_per_s[1]
    assert uses(ring)["a > b"].carries_gbps == pytest.approx(float(carried) * 8 / 1e9)
    boundary = placed({"tp": 4, "cp": 2, "pp": 2}, job=JOB, cluster=zones(2, 8, **{"jitter_ms": 0.0} | link))
    use = uses(boundary)["a > b"]
    rate, _ = boundary.placed.crossings.get_boundary(0, 1, use.ranks)
    assert (use.kinds, use.ranks) == (("pipeline",), 8)
    assert use.carries_gbps == pytest.approx(float(rate[1]) * use.ranks * 8 / 1e9)
