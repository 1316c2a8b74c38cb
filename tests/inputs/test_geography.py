"""[G1] [G2] [G3] Distances, the light-in-fibre floor, and RTT bands from measured route factors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone import Region, catalogue
from crosszone.inputs.region import estimate_rtt_ms, fibre_floor_ms, great_circle_km, load_routes

latitude, longitude = st.floats(-90, 90), st.floats(-180, 180)


def km(first: str, second: str) -> float:
    a, b = catalogue().region(first), catalogue().region(second)
    return great_circle_km(a.lat, a.lon, b.lat, b.lon)


def test_a_quarter_of_the_globe_is_a_quarter_of_its_circumference():
    assert great_circle_km(0, 0, 0, 90) == pytest.approx(2 * math.pi * 6371.0088 / 4, rel=1e-12)
    assert great_circle_km(90, 0, -90, 0) == pytest.approx(math.pi * 6371.0088, rel=1e-12)


def test_a_pair_across_the_date_line_takes_the_short_way():
    assert great_circle_km(0, 179, 0, -179) == pytest.approx(222.39, abs=0.01)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("cn-beijing", "cn-shanghai", 1068), ("cn-shanghai", "cn-shenzhen", 1213), ("cn-beijing", "cn-shenzhen", 1945)],
)
def test_the_chinese_cities_are_as_far_apart_as_known(first, second, expected):
    assert km(first, second) == pytest.approx(expected, rel=0.005)


@given(latitude, longitude, latitude, longitude)
def test_distance_is_symmetric_and_at_most_half_the_globe(lat_a, lon_a, lat_b, lon_b):
    forth, back = great_circle_km(lat_a, lon_a, lat_b, lon_b), great_circle_km(lat_b, lon_b, lat_a, lon_a)
    assert forth == pytest.approx(back, abs=1e-6)
    assert 0 <= forth <= math.pi * 6371.0088 + 1e-6


def test_a_thousand_kilometres_cost_five_milliseconds_one_way():
    assert 4.9 <= fibre_floor_ms(1000) / 2 <= 5.0


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        # fibre 4.9 us/km both ways x median route factor of 420 AWS pairs: 2.24, 1.83, 1.68, 1.70 by distance
        (1068, 23.4),
        (1213, 26.6),
        (1945, 34.9),
        (914, 20.1),
        (6000, 2 * 6000 * 0.0049 * 1.68),
        (12000, 2 * 12000 * 0.0049 * 1.70),
    ],
)
def test_the_expected_rtt_is_the_median_of_measured_routes(distance, expected):
    assert estimate_rtt_ms(distance).expected == pytest.approx(expected, abs=0.06)


@given(st.floats(0, 20037))
def test_an_rtt_from_distance_is_a_band_above_the_floor(distance):
    band = estimate_rtt_ms(distance)
    assert fibre_floor_ms(distance) <= band.low < band.expected < band.high


@given(st.floats(0, 20037), st.floats(0, 20037))
def test_farther_is_never_quicker(one, other):
    shorter, longer = estimate_rtt_ms(min(one, other)), estimate_rtt_ms(max(one, other))
    assert (shorter.low, shorter.expected, shorter.high) <= (longer.low, longer.expected, longer.high)
    assert shorter.low <= longer.low and shorter.expected <= longer.expected and shorter.high <= longer.high


def test_the_band_of_long_routes_is_the_measured_p10_to_p90():
    bucket = load_routes()["buckets"][-1]
    band = estimate_rtt_ms(10000)
    assert band.low == pytest.approx(98 * bucket["p10"])
    assert band.high == pytest.approx(98 * bucket["p90"])
    assert 1.3 < bucket["p10"] < bucket["median"] < bucket["p90"] < 2.6


def test_two_sites_in_one_city_are_about_a_millisecond_apart():
    band = estimate_rtt_ms(30)
    assert 0.3 < band.low < band.expected < 1.5 < band.high < 3


def test_bands_hold_up_on_the_measured_pairs_of_the_catalogue():
    """DT-FM's pings and Azure's list are mostly main routes, shorter than the average of all pairs: they sit low in the
    band, some just below its p10; hardly any may leave the measured minimum and maximum."""
    inside = outside = total = 0
    for pair in catalogue().list_measured_pairs():
        distance = km(*pair.between)
        if pair.rtt_ms is None or distance < 200:
            continue
        band = estimate_rtt_ms(distance)
        total += 1
        inside += band.low <= pair.rtt_ms <= band.high
        bucket = next(b for b in load_routes()["buckets"] if distance < b["to_km"])
        outside += not bucket["min"] * 0.99 <= pair.rtt_ms / fibre_floor_ms(distance) <= bucket["max"] * 1.01
    assert total >= 50
    assert inside / total >= 0.6
    assert outside / total <= 0.1


def test_regions_lie_where_their_names_say():
    def region(name: str) -> Region:
        return catalogue().region(name)

    assert 38 < region("us-east-1").lat < 40
    assert -79 < region("us-east-1").lon < -76
    assert 50 < region("europe-west1").lat < 51
    assert 115 < region("cn-beijing").lon < 118
    assert region("ap-southeast-2").lat < -33
