"""Where each figure of a link comes from, and what is flagged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import fields, scenario, zone
from crosszone import InputError, load_scenario
from crosszone.inputs.scenario import list_scenario_notices, read_scenario


def two(first: str | None, second: str | None, **cluster):
    zones = [zone("a", **({"region": first} if first else {})), zone("b", **({"region": second} if second else {}))]
    return scenario(cluster={"zones": zones, **cluster})


def only(found):
    return found.links[0, 1]


def test_a_typed_link_is_taken_as_it_is():
    link = only(two("cn-beijing", "cn-shanghai", links=[{"between": ["a", "b"], "gbps": 10, "rtt_ms": 25}]))
    assert (link.gbps, link.rtt_ms.low, link.rtt_ms.high) == (10, 25, 25)
    assert (link.origins["gbps"], link.origins["rtt_ms"], link.origins["usd_per_gb"]) == ("typed", "typed", "unknown")


def test_a_measured_link_is_shown_as_measured():
    link = only(two(None, None, links=[{"between": ["a", "b"], "gbps": 9.4, "rtt_ms": 26.1, "measured": True}]))
    assert link.origins["rtt_ms"] == link.origins["gbps"] == "measured"


def test_an_unlisted_pair_takes_the_default_link():
    link = only(two("cn-beijing", "cn-shanghai", default_link={"gbps": 2, "rtt_ms": 30}))
    assert (link.gbps, link.rtt_ms.expected, link.origins["gbps"]) == (2, 30, "default_link")


def test_a_published_measurement_comes_before_the_distance():
    """Skyplane's grid, 2022: us-east-1 to us-west-2 68.3 ms and 4.35 Gbit/s over 64 connections."""
    for ends in (("us-east-1", "us-west-2"), ("us-west-2", "us-east-1")):
        link = only(two(*ends))
        assert (link.rtt_ms.expected, link.gbps) == (68.3, 4.35)
        assert link.origins["rtt_ms"] == "published"
        assert "skyplane-grid-2022" in link.sources


def test_a_rate_that_differs_by_direction_turns_with_the_zones():
    """Skyplane's grid: AWS us-east-1 to GCP us-east4 4.8 Gbit/s, 7.1 back."""
    there, back = only(two("us-east-1", "us-east4")), only(two("us-east4", "us-east-1"))
    assert (there.gbps, there.gbps_back) == (4.8, 7.1)
    assert (back.gbps, back.gbps_back) == (7.1, 4.8)


def test_typed_directions_follow_the_order_of_between():
    link = {"between": ["b", "a"], "gbps": 1, "gbps_back": 2, "usd_per_gb": 0.1, "usd_per_gb_back": 0.2, "rtt_ms": 5}
    path = only(two(None, None, links=[link]))
    assert (path.gbps, path.gbps_back, path.usd_per_gb, path.usd_per_gb_back) == (2, 1, 0.2, 0.1)


def test_without_a_measurement_the_rtt_comes_from_the_distance_with_its_band_and_the_rate_is_an_example():
    two_zones = two("cn-beijing", "cn-shanghai")
    link = only(two_zones)
    assert link.origins["rtt_ms"] == "distance"
    assert link.rtt_ms.low < link.rtt_ms.expected < link.rtt_ms.high
    assert link.origins["gbps"] == "example"
    codes = [notice.code for notice in list_scenario_notices(two_zones)]
    assert "gbps_example" in codes
    assert "rtt_from_distance" in codes


def test_typed_kilometres_stand_for_the_route():
    link = only(two(None, None, links=[{"between": ["a", "b"], "km": 1000, "gbps": 1}]))
    assert link.rtt_ms.expected == pytest.approx(9.8 * 2.24)
    assert link.floor_ms == pytest.approx(9.8)


@pytest.mark.parametrize(("rtt_ms", "flagged"), [(10.4, True), (10.5, False), (25, False)])
def test_a_typed_rtt_below_the_light_in_fibre_floor_is_flagged(rtt_ms, flagged):
    """Beijing - Shanghai is 1067 km: 2 x 1067 x 4.9 us = 10.46 ms."""
    two_zones = two("cn-beijing", "cn-shanghai", links=[{"between": ["a", "b"], "gbps": 1, "rtt_ms": rtt_ms}])
    notices = [n for n in list_scenario_notices(two_zones) if n.code == "rtt_below_floor"]
    assert bool(notices) == flagged
    if flagged:
        assert notices[0].level == "warning"
        assert notices[0].field == "cluster.links[0].rtt_ms"
        assert "10.46" in notices[0].message("en")
        assert "10.46" in notices[0].message("zh")


def test_zones_of_one_region_are_availability_zones():
    link = only(two("us-east-1", "us-east-1"))
    assert (link.rtt_ms.low, link.rtt_ms.high, link.origins["rtt_ms"]) == (0.25, 3.37, "same region")


def test_prices_come_from_the_sending_region():
    link = only(two("us-east-1", "ap-northeast-1"))
    assert link.usd_per_gb == pytest.approx(0.02, abs=0.011)
    assert link.usd_per_gb_back == pytest.approx(0.09)
    assert link.origins["usd_per_gb"] == "region price"


def test_prices_hold_only_between_regions_of_one_provider():
    assert only(two("us-east-1", "us-east-1")).usd_per_gb is None
    assert only(two("us-east-1", "us-east4")).usd_per_gb is None


def test_an_assumed_rate_is_told_for_the_way_it_is_assumed():
    two_zones = two("cn-beijing", "cn-shanghai", links=[{"between": ["b", "a"], "gbps_back": 7, "rtt_ms": 30}])
    link = only(two_zones)
    assert (link.gbps, link.gbps_back) == (7, 1)
    assert (link.origins["gbps"], link.origins["gbps_back"]) == ("typed", "example")
    notices = [n for n in list_scenario_notices(two_zones) if n.code == "gbps_example"]
    assert [(n.value, n.params["pair"]) for n in notices] == [(1, "b - a")]


def test_a_place_of_ones_own_has_no_published_measurement():
    moved = {"name": "us-east-1", "lat": 0.0, "lon": 0.0}
    link = only(scenario(cluster={"zones": [zone("a", region=moved), zone("b", region="eu-west-1")]}))
    assert link.origins["rtt_ms"] == "distance"


def test_kilometres_below_the_great_circle_are_flagged():
    two_zones = two("us-east-1", "ap-southeast-1", links=[{"between": ["a", "b"], "km": 1, "gbps": 1}])
    assert "km_below_circle" in [n.code for n in list_scenario_notices(two_zones)]


def test_a_default_link_below_the_floor_is_flagged_where_it_stands():
    two_zones = two("cn-beijing", "cn-shanghai", default_link={"gbps": 1, "rtt_ms": 1})
    assert [n.field for n in list_scenario_notices(two_zones) if n.code == "rtt_below_floor"] == [
        "cluster.default_link.rtt_ms"
    ]


def test_an_uplink_slower_than_its_link_is_told():
    zones = [
        zone("a", region="cn-beijing", uplink_gbps=5),
        zone("b", region="cn-shanghai", downlink_gbps=3, uplink_gbps=8),
    ]
    two_zones = scenario(cluster={"zones": zones, "links": [{"between": ["a", "b"], "gbps": 10, "rtt_ms": 30}]})
    notices = [
        (n.params["pair"], n.field, n.value) for n in list_scenario_notices(two_zones) if n.code == "uplink_limits"
    ]
    assert notices == [("a - b", "cluster.zones[1].downlink_gbps", 3), ("b - a", "cluster.zones[0].uplink_gbps", 5)]


def test_no_default_is_random():
    assert two("cn-beijing", "cn-shenzhen").links == two("cn-beijing", "cn-shenzhen").links


def test_a_pair_of_which_nothing_is_known_is_refused_with_a_remedy():
    with pytest.raises(InputError) as caught:
        load_scenario(fields(cluster={"zones": [zone("a"), zone("b")]}))
    assert caught.value.notices[0].code == "rtt_unknown"
    assert "region" in caught.value.notices[0].hint()


@given(st.permutations(["cn-beijing", "us-east-1", "eu-west-1", "ap-southeast-1"]))
def test_the_order_of_zones_changes_no_figure(order):
    two_zones = scenario(cluster={"zones": [zone(name, region=name) for name in order]})
    figures = {
        frozenset(link.between): (link.rtt_ms, round(link.km, 6), {link.gbps, link.gbps_back})
        for link in two_zones.links.values()
    }
    again = scenario(cluster={"zones": [zone(name, region=name) for name in sorted(order)]})
    assert figures == {
        frozenset(link.between): (link.rtt_ms, round(link.km, 6), {link.gbps, link.gbps_back})
        for link in again.links.values()
    }


def test_every_pair_of_ten_zones_has_a_link():
    zones = [zone(f"z{n}", region={"lat": n * 5.0, "lon": n * 10.0}) for n in range(10)]
    loaded, *_ = read_scenario(fields(cluster={"zones": zones}))
    assert len(loaded.links) == 45
