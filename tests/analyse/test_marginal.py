"""[A16] What one more of something brings, and what a zone is worth."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import A100, scenario
from crosszone.analyse.cluster_changes import drop_count_pins, drop_planned_fields, find_next_faster_gpu, list_changes
from crosszone.analyse.marginal import ORDER, Marginal, Worth, _Gain, compare_marginal
from crosszone.errors import IllegalError
from crosszone.inputs.catalogue import catalogue
from crosszone.plan.planner import plan
from crosszone.plan.search import CancelledError
from effort import examples
from predict.given import MEGATRON, one_zone, zones

pytestmark = pytest.mark.slow

PRICED = {"usd_per_gpu_hour": 2.0}
JOB = MEGATRON | {"tokens": 1e10}


def variants(answer: Marginal, kind: str) -> dict[str, Any]:
    return {one.target: one for one in answer.variants if one.kind == kind}


@cache
def near() -> Marginal:
    """Two zones of eight GPUs over a wide line that costs nothing."""
    return compare_marginal(scenario(job=JOB, cluster=zones(2, 8, node=PRICED, gbps=400, rtt_ms=1, usd_per_gb=0.0)))


def best_tokens(**changed: Any) -> float:
    return plan(scenario(job=JOB, **changed), top=1, local_updates=False).plans[0].prediction.tokens_per_s.expected


def test_a_node_more_brings_what_the_best_plan_with_it_does_for_its_price():
    """[A16] One node of eight at $2: + $16 an hour, $384 a day; return = tokens/s gained / 16; worth = gain x 16."""
    answer = compare_marginal(scenario(job=JOB, cluster=one_zone(8, **PRICED)), kinds=["node"])
    (one,) = answer.variants
    before, after = best_tokens(cluster=one_zone(8, **PRICED)), best_tokens(cluster=one_zone(16, **PRICED))
    assert answer.base.usd_per_hour == 16.0
    assert (one.target, one.worth.gpus, one.freed) == ("a", 16, False)
    assert one.tokens_pct == pytest.approx(100 * (after / before - 1))
    assert one.step_pct == pytest.approx(100 * (before / after - 1))
    assert (one.usd_per_hour_more, one.usd_per_day_more) == (pytest.approx(16.0), pytest.approx(384.0))
    assert one.tokens_per_s_per_usd_hour == pytest.approx((after - before) / 16.0)
    assert one.worth_usd_per_hour == pytest.approx((after / before - 1) * 16.0)
    assert one.days_saved == pytest.approx(answer.base.days - one.worth.days)
    assert one.verdict == "buys"
    assert 0.5 < one.chance_faster <= 1.0
    assert "$384 a day" in one.advice["message"]


def test_more_rate_on_the_line_is_worth_what_it_gains_less_its_egress():
    """[A16] 10 to 20 Gbit/s; the plan is the one for that cluster, and the rent of the line is not known."""
    pinned = {"tp": 8, "dp": 2}
    cluster = zones(2, 8, node=PRICED)
    answer = compare_marginal(scenario(job=JOB, cluster=cluster, strategy=pinned), kinds=["link", "links"])
    (one,) = answer.variants
    after = best_tokens(cluster=zones(2, 8, node=PRICED, gbps=20), strategy=pinned)
    assert one.worth.tokens_per_s == pytest.approx(after)
    assert (one.verdict, one.price_known, one.tokens_per_s_per_usd_hour) == ("faster", False, None)
    gained = after / answer.base.tokens_per_s - 1
    more = one.worth.usd_per_hour - answer.base.usd_per_hour
    assert more > 0
    assert one.worth_usd_per_hour == pytest.approx(gained * answer.base.usd_per_hour - more)
    assert "marginal_lines_unpriced" in {note["code"] for note in answer.notes}


def test_a_zone_behind_a_thin_line_costs_nothing_to_drop():
    """[A16] Eight GPUs at $2 that no plan can use: $384 a day saved, and the first row."""
    answer = compare_marginal(scenario(job=JOB, cluster=zones(2, 8, node=PRICED, gbps=0.001)))
    first = answer.variants[0]
    assert (first.kind, first.verdict) == ("drop", "saves")
    assert first.usd_per_day_more == pytest.approx(-384.0)
    assert first.advice["code"] == "marginal_drop_free"
    assert "$384 a day saved" in first.advice["message"]
    assert answer.base.gpus == 8
    assert [note["code"] for note in answer.notes if "idle" in note["message"]] == ["marginal_held"]


def test_a_zone_that_a_pin_makes_a_plan_use_slows_it_down():
    """[A16] dp 2 at tp 8 forces both zones; without b, and without the pin, the step is shorter."""
    cluster = zones(2, 8, node=PRICED, gbps=0.1)
    answer = compare_marginal(scenario(job=JOB, cluster=cluster, strategy={"tp": 8, "dp": 2}))
    one = variants(answer, "drop")["b"]
    alone = best_tokens(cluster=one_zone(8, **PRICED), strategy={"tp": 8})
    assert one.freed
    assert one.advice["code"] == "marginal_drop_slows"
    assert one.tokens_pct_as_pinned == pytest.approx(100 * (alone / answer.base.tokens_per_s - 1))
    assert one.tokens_pct_as_pinned > 100
    assert variants(answer, "unpin")["strategy"].tokens_pct == pytest.approx(one.tokens_pct_as_pinned)
    assert answer.freed.tokens_per_s == pytest.approx(alone)
    assert "marginal_freed" in {note["code"] for note in answer.notes}


def test_pins_that_do_not_fix_the_number_of_gpus_stay():
    """[A16] A node more is planned without dp, but with tp; more rate with both."""
    asked = scenario(job=JOB, cluster=one_zone(8), strategy={"tp": 4, "dp": 2, "micro_batch": 1})
    assert drop_count_pins(asked).strategy.pinned == {"tp", "micro_batch"}
    assert drop_count_pins(scenario(job=JOB, cluster=one_zone(8), strategy={"tp": 4})) is None
    settled = {"tp": 4, "dp": 2, "micro_batch": 1, "replica_micro_batches": [40, 24]}
    assert drop_planned_fields(scenario(cluster=one_zone(8), strategy=settled)).strategy.pinned == {
        "tp",
        "dp",
        "micro_batch",
    }
    assert drop_count_pins(scenario(cluster=one_zone(8), strategy=settled)).strategy.pinned == {"tp", "micro_batch"}


def test_every_change_is_tried_once():
    """[A16] Three zones: three nodes, three copies of each link to copy, three links and all, another GPU
    in each and in all, three drops.
    """
    cluster = zones(3, 8)
    cluster["links"] = [{"between": ["c", "a"], "gbps": 40, "gbps_back": 50, "rtt_ms": 5}]
    cluster["zones"][1]["uplink_gbps"] = 7.0
    found = list(list_changes(scenario(cluster=cluster)))
    kinds = [one.kind for one in found]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "node": 3, "zone": 6, "link": 3, "links": 1, "uplink": 1, "gpu": 4, "drop": 3,
    }  # fmt: skip
    by = {(one.kind, one.target): one.make() for one in found if one.kind != "zone"}
    assert by["node", "b"].zones[1].nodes[0].count == 2
    (wider,) = by["link", "a - c"].links
    assert (wider.between, wider.gbps, wider.gbps_back) == (("c", "a"), 50.0, 60.0)
    assert {link.pair: link.gbps for link in by["links", ""].links} == {
        frozenset("ab"): 20.0, frozenset("bc"): 20.0, frozenset("ac"): 50.0,
    }  # fmt: skip
    assert by["uplink", "b"].zones[1].uplink_gbps == 17.0
    assert [zone.nodes[0].gpu.name for zone in by["gpu", "a"].zones] == ["h100-80gb-sxm", A100, A100]
    assert {zone.nodes[0].gpu.name for zone in by["gpu", "a, b, c"].zones} == {"h100-80gb-sxm"}
    assert [zone.name for zone in by["drop", "a"].zones] == ["b", "c"]
    assert by["drop", "a"].links == ()


def test_a_new_zone_is_linked_like_the_best_and_the_median_link():
    """[A16] Of 40, 10 and 2 Gbit/s the best is 40, the median 10."""
    cluster = zones(3, 8)
    cluster["links"] = [
        {"between": ["a", "c"], "gbps": 40, "rtt_ms": 5, "usd_per_gb": 0.01},
        {"between": ["a", "b"], "gbps": 2},
    ]
    best, median = [one for one in list_changes(scenario(cluster=cluster)) if (one.kind, one.target) == ("zone", "a")]
    links = [link for link in best.make().links if "a-2" in link.between]
    assert {link.between for link in links} == {("a", "a-2"), ("b", "a-2"), ("c", "a-2")}
    assert {(link.gbps, link.rtt_ms, link.usd_per_gb) for link in links} == {(40.0, 5.0, 0.01)}
    links = [link for link in median.make().links if "a-2" in link.between]
    assert {(link.gbps, link.rtt_ms, link.usd_per_gb) for link in links} == {(10.0, 20.0, 0.02)}
    assert "a - c (40 Gbit/s, 5 ms)" in best.notice.message()


@pytest.mark.parametrize(
    ("gpu", "faster"),
    [
        ("a100-40gb-sxm", "a100-80gb-sxm"),
        ("a100-80gb-sxm", "h100-80gb-sxm"),
        ("h100-80gb-sxm", "h200-141gb-sxm"),
        ("h200-141gb-sxm", "b200-sxm"),
        ("gb300", None),
    ],
)
def test_the_next_gpu_is_the_least_that_is_faster_of_its_vendor_and_form(gpu, faster):
    """[A16] Higher bf16 peak, or the same with faster memory; with a price."""
    found = find_next_faster_gpu(catalogue().gpu(gpu), "bf16")
    assert (found.name if found else None) == faster


def test_a_zone_without_which_nothing_fits_is_kept_and_says_why():
    """[A16] 70B on 24 + 8 GPUs without offload: 8 x 80 GB cannot hold 69e9 x 18 bytes."""
    cluster = zones(2, 8, node=PRICED, gbps=100)
    cluster["zones"][0]["nodes"][0]["count"] = 3
    pinned = {"offload": "none", "pp": 4}
    asked = scenario(model="llama-2-70b", job=JOB, cluster=cluster, strategy=pinned)
    one = variants(compare_marginal(asked, kinds=["drop"]), "drop")["a"]
    assert (one.verdict, one.worth, one.tokens_pct) == ("refused", None, None)
    assert one.refusal[0]["code"] == "nothing_fits"
    assert one.advice["code"] == "marginal_drop_needed"


@pytest.mark.parametrize(
    ("tokens", "usd", "verdict", "code"),
    [
        (1900.0, 32.0, "buys", "marginal_buys"),
        (1900.0, 16.0, "saves", "marginal_faster_as_dear"),
        (1900.0, 12.0, "saves", "marginal_saves"),
        (1000.0, 12.0, "saves", "marginal_same_for_less"),
        (1000.0, 16.0, "nothing", "marginal_nothing"),
        (1000.0, 32.0, "worse", "marginal_idle"),
        (900.0, 12.0, "cheaper", "marginal_cheaper"),
        (900.0, 16.0, "worse", "marginal_worse"),
        (1900.0, None, "faster", "marginal_faster"),
        (900.0, None, "worse", "marginal_worse"),
    ],
)
def test_a_verdict_weighs_speed_against_money(tokens, usd, verdict, code):
    """[A16] Before: 1000 tokens/s at $16 an hour. With 1900 at $32: 56 tokens/s for each $, worth $14.4, 5 % dearer."""
    (change,) = [one for one in list_changes(scenario(cluster=one_zone(8))) if one.kind == "node"]
    gain = _Gain(change, worth(1000.0, 16.0), worth(tokens, usd), None)
    assert (gain.verdict, gain.advice.code) == (verdict, code)
    if usd == 32.0 and tokens == 1900.0:
        assert (gain.tokens_per_usd, gain.affordable_usd) == (pytest.approx(56.25), pytest.approx(14.4))
        assert gain.token_price_change == pytest.approx(1 / 19)


def worth(tokens: float, usd: float | None) -> Worth:
    per_million = None if usd is None else usd / tokens / 3600 * 1e6
    prices = {"usd_per_hour": usd, "usd_per_hour_in_use": usd, "usd_per_million_tokens": per_million}
    about = {"plan": "", "zones": ("a",), "gpus": 8, "gpus_held": 8, "days": None, "unpriced": ()}
    return Worth(step_s=1e6 / tokens, tokens_per_s=tokens, **prices, **about)


def test_a_scenario_without_any_plan_is_refused():
    """[A16]"""
    with pytest.raises(IllegalError):
        compare_marginal(scenario(model="llama-2-70b", cluster=one_zone(1), strategy={"offload": "none"}))


def test_without_prices_there_is_speed_and_no_return():
    """[A16] No price of an H800 is known."""
    answer = compare_marginal(scenario(job=JOB, cluster=zones(2, 8, node={"gpu": "h800-80gb-sxm"}, gbps=100, rtt_ms=1)))
    assert "marginal_unpriced" in {note["code"] for note in answer.notes}
    assert {one.tokens_per_s_per_usd_hour for one in answer.variants} == {None}
    assert {one.verdict for one in answer.variants} <= {"faster", "worse", "nothing"}
    assert variants(answer, "node")["a"].tokens_pct >= 0
    assert all("$" not in one.advice["message"] for one in answer.variants)


def test_rows_stand_in_order_of_return():
    """[A16]"""
    places = [ORDER.index(one.verdict) for one in near().variants]
    assert places == sorted(places)
    returns = [one.tokens_per_s_per_usd_hour for one in near().variants if one.verdict == "buys"]
    assert len(returns) > 2
    assert returns == sorted(returns, reverse=True)


def test_a_zone_may_be_kept_for_time_or_dropped_for_money():
    """[A16] Half the GPUs at $16 an hour less; a token costs $16 / tokens against $32 / tokens."""
    answer = near()
    one = variants(answer, "drop")["b"]
    alone = best_tokens(cluster=one_zone(8, **PRICED))
    assert one.tokens_pct == pytest.approx(100 * (alone / answer.base.tokens_per_s - 1))
    assert one.usd_per_hour_more == pytest.approx(-16.0)
    days = one.worth.days / answer.base.days  # with failures, which fewer GPUs have fewer of
    assert one.usd_per_million_tokens_pct == pytest.approx(100 * (0.5 * days - 1))
    assert (one.verdict == "cheaper") == (one.usd_per_million_tokens_pct < 0)
    assert one.chance_faster < 0.01


@pytest.mark.parametrize(("pinned", "worthwhile"), [({"tp": 8, "dp": 2}, True), ({}, False)])
def test_egress_may_eat_what_a_wider_line_gains(pinned, worthwhile):
    """[A16] The same plan sends as many bytes a token, so going faster makes a token cheaper; from 20 to 30 Gbit/s the planner,
    asked for time, turns from the pipeline to gradients over the line, which at $0.02 a GB costs more than the GPUs.
    """
    cluster = zones(2, 8, node=PRICED, **({} if pinned else {"gbps": 20, "rtt_ms": 1}))
    answer = compare_marginal(scenario(job=JOB, cluster=cluster, strategy=pinned or None), kinds=["link"])
    (one,) = answer.variants
    assert one.verdict == "faster"
    assert (one.worth_usd_per_hour > 0) == (one.usd_per_million_tokens_pct < 0) == worthwhile
    assert one.advice["code"] == ("marginal_worth" if worthwhile else "marginal_egress_eats")


def test_the_answer_survives_json_and_is_told_in_both_languages():
    """[A16]"""
    assert Marginal.model_validate_json(near().model_dump_json()) == near()
    told = compare_marginal(scenario(job=JOB, cluster=one_zone(8, **PRICED)), kinds=["node"], language="zh")
    assert "增加一个节点" in told.variants[0].change["message"]


def test_progress_is_told_and_a_cancelled_one_ends():
    """[A16]"""
    seen: list[tuple[str, int, int]] = []
    asked = scenario(job=JOB, cluster=one_zone(8, **PRICED))
    compare_marginal(asked, kinds=["node", "gpu"], progress=lambda *told: seen.append(told))
    assert seen == [("variants", 0, 2), ("variants", 1, 2), ("variants", 2, 2)]
    with pytest.raises(CancelledError):
        compare_marginal(asked, cancelled=lambda: True)


@pytest.mark.slow
@examples(6)
@given(gbps=st.sampled_from([0.1, 10, 200]), price=st.floats(0.5, 10), batch=st.sampled_from([32, 64]))
def test_more_of_anything_is_never_slower_and_less_never_faster(gbps, price, batch):
    """[A16] The planner may leave idle what is added; figures agree with each other."""
    cluster = zones(2, 4, node={"usd_per_gpu_hour": price}, gbps=gbps)
    answer = compare_marginal(scenario(job=MEGATRON | {"global_batch": batch}, cluster=cluster, strategy={"tp": 4}))
    for one in answer.variants:
        if one.worth is None:
            continue
        assert one.tokens_pct * (-1 if one.kind == "drop" else 1) >= -0.2
        assert (1 + one.tokens_pct / 100) * (1 + one.step_pct / 100) == pytest.approx(1)
        assert one.usd_per_hour_more == pytest.approx(one.worth.usd_per_hour - answer.base.usd_per_hour)
        assert one.usd_per_day_more == pytest.approx(24 * one.usd_per_hour_more)
