"""At which rate between zones the better plan changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import scenario
from crosszone import InputError, Scenario
from crosszone.inputs.links import build_zone_links
from crosszone.plan.crossover import Crossover, find_crossover, scale_zone_links
from crosszone.predict.predict import build_predictor
from effort import examples
from predict.given import FSDP, one_zone, zones

PARAMETERS = 6_738_415_616
EXCHANGE_S = 4 * PARAMETERS / (10e9 / 8 * 0.9653)
"""Of 4 bytes a parameter between two zones over 10 Gbit/s."""


def plan(cluster: dict[str, Any], *, steps: int | None = None, overlap: float | None = None) -> Scenario:
    """Replicas in two zones that reduce every step, or average every so many and recompute."""
    strategy: dict[str, Any] = {"zero": 3, "shard_within": "zone", "dp": 16}
    strategy["communication"] = {"flows": 16, "overlap": overlap}
    if steps:
        strategy |= {"local_update": {"steps": steps}, "recompute": "full"}
    return scenario(job=FSDP, cluster=cluster, strategy=strategy)


def seconds(plan: Scenario, factor: float) -> float:
    return build_predictor(plan.replace(cluster=scale_zone_links(plan.cluster, factor))).step_time.expected


def test_the_flip_is_where_two_lines_meet():
    """[W3] A + X / f against B + X / (100 f): f = 0.99 X / (B - A), with X = 22.3 s over 10 Gbit/s."""
    cluster = zones(rtt_ms=1)
    every, rarely = plan(cluster, overlap=0.0), plan(cluster, steps=100, overlap=0.0)
    a, b = seconds(every, 1) - EXCHANGE_S, seconds(rarely, 1) - EXCHANGE_S / 100
    found = find_crossover(every, every, rarely)
    assert found.factor == pytest.approx(0.99 * EXCHANGE_S / (b - a), rel=0.01)
    assert found.gbps == {"a > b": pytest.approx(10 * found.factor), "b > a": pytest.approx(10 * found.factor)}
    assert (found.below, found.above, found.more) == ("other", "one", ())


@pytest.mark.slow
@examples(8)
@given(st.sampled_from([2, 10, 100]), st.sampled_from([1, 10, 100]), st.sampled_from([None, 0.0]))
def test_local_updates_win_below_the_flip_and_synchronous_steps_above(steps, gbps, overlap):
    """[W3] Equal at the flip; on either side the advantage keeps its sign; the order of the plans only swaps names."""
    cluster = zones(gbps=gbps, rtt_ms=1)
    every, rarely = plan(cluster, overlap=overlap), plan(cluster, steps=steps, overlap=overlap)
    found, turned = find_crossover(every, every, rarely), find_crossover(every, rarely, every)
    assert seconds(every, found.factor) == pytest.approx(seconds(rarely, found.factor), rel=1e-5)
    for factor in (0.01, 0.5, 0.9):
        assert seconds(every, factor * found.factor) > seconds(rarely, factor * found.factor)
    for factor in (1.1, 2.0):
        assert seconds(every, factor * found.factor) < seconds(rarely, factor * found.factor)
    assert turned.factor == pytest.approx(found.factor, rel=1e-6)
    assert (turned.below, turned.above) == ("one", "other")


def test_the_rate_at_the_flip_does_not_depend_on_the_rate_now():
    """[W3] Ten times the rate now, a tenth of the factor."""
    slow, quick = (zones(gbps=gbps, rtt_ms=1) for gbps in (1, 10))
    rates = [find_crossover(plan(c), plan(c), plan(c, steps=100)).gbps["a > b"] for c in (slow, quick)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-5)


def test_without_a_flip_the_winner_is_named():
    """[W3] 300 ms apart the connections, not the line, hold gradients up: averaging rarely wins at any rate."""
    cluster = zones(rtt_ms=300)
    found = find_crossover(plan(cluster), plan(cluster), plan(cluster, steps=100))
    assert (found.factor, found.gbps, found.below, found.above) == (None, {}, "other", "other")
    same = find_crossover(plan(cluster), plan(cluster), plan(cluster))
    assert (same.factor, same.below, same.above) == (None, None, None)
    assert Crossover.model_validate_json(found.model_dump_json()) == found


def test_every_rate_between_zones_is_scaled_and_nothing_else():
    """[W3] Listed the other way round, by default, one way only, and uplinks; RTT, price and flows stay."""
    cluster = zones(3, flow_gbps=5)
    cluster["links"] = [{"between": ["b", "a"], "gbps": 4, "gbps_back": 3, "rtt_ms": 7}]
    cluster["zones"][0] |= {"uplink_gbps": 8}
    cluster["zones"][1] |= {"uplink_gbps": 8, "downlink_gbps": 6}
    before = scenario(cluster=cluster).cluster
    after = scale_zone_links(before, 10)
    old, new = build_zone_links(before), build_zone_links(after)
    assert [(path.gbps, path.gbps_back) for path in new.values()] == [(30, 40), (100, 100), (100, 100)]
    assert [(z.uplink_gbps, z.downlink_gbps) for z in after.zones] == [(80, None), (80, 60), (None, None)]
    for pair, path in new.items():
        kept = [(p.rtt_ms, p.usd_per_gb, p.flow_gbps, p.loss_pct) for p in (path, old[pair])]
        assert kept[0] == kept[1]


def test_derived_rates_are_scaled_too():
    """[W3] Nothing given: the labelled example rate of the path, times the factor."""
    cluster = zones()
    cluster["default_link"] = {"rtt_ms": 20}
    before = scenario(cluster=cluster).cluster
    old, new = build_zone_links(before)[0, 1], build_zone_links(scale_zone_links(before, 0.5))[0, 1]
    assert old.origins["gbps"] == "example" and new.gbps == pytest.approx(0.5 * old.gbps)


def test_one_zone_has_no_rate_to_change():
    """[W3]"""
    alone = scenario(job=FSDP, cluster=one_zone(), strategy={"dp": 16})
    with pytest.raises(InputError) as error:
        find_crossover(alone, alone, alone)
    assert [notice.code for notice in error.value.notices] == ["crossover_one_zone"]
