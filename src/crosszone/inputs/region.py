"""Region: a named place on Earth with its electricity and its price of sending data.

Distances, and the round-trip times they allow.

Light in fibre sets a floor; real routes are longer by a factor that was measured between cloud regions
(`catalogue/routes.yaml`). An RTT from distance is therefore a band, never one number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict

from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Count, Name, NotNegative, Positive, Prose, Value

EARTH_RADIUS_KM = 6371.0088  # Mean radius (IUGG)


@dataclass(frozen=True)
class Band:
    """Low, expected and high value of something that is not known exactly."""

    low: float
    expected: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Band:
        """A value that was given, so has no width."""
        return cls(value, value, value)


@cache
def load_routes() -> dict[str, Any]:
    """The measured route factors and the labelled example values."""
    loaded: dict[str, Any] = read_shipped("crosszone.inputs.catalogue", "routes.yaml").value
    return loaded


def great_circle_km(lat_a: float, lon_a: float, lat_b: float, lon_b: float) -> float:
    """Shortest distance over the Earth's surface, km (haversine). [G1]"""
    phi_a, phi_b = math.radians(lat_a), math.radians(lat_b)
    half_lat, half_lon = (phi_b - phi_a) / 2, math.radians(lon_b - lon_a) / 2
    root = math.sin(half_lat) ** 2 + math.cos(phi_a) * math.cos(phi_b) * math.sin(half_lon) ** 2
    # rounding takes the root of antipodes above 1, which asin refuses
    return 2 * EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(root)))


def fibre_floor_ms(km: float) -> float:
    """Round-trip time of light in a straight fibre, ms: nothing is faster. [G2]"""
    return 2 * km * float(load_routes()["fibre_us_per_km"]) / 1000


def estimate_rtt_ms(km: float) -> Band:
    """Round-trip time over real routes: fibre floor x the route factor's p10, median and p90. [G3]

    Below the shortest measured distance the equipment at both ends is added instead. Where a range of distances
    has a smaller factor than the one before, the time stays at the end of that one: it never falls with distance.
    """
    band = _estimate_metro_rtt_ms(min(km, load_routes()["metro"]["to_km"]))
    for bucket in load_routes()["buckets"]:
        if km < bucket["from_km"]:
            break
        # beyond the longest measured distance the last factors go on
        floor = fibre_floor_ms(min(km, bucket["to_km"]) if bucket is not load_routes()["buckets"][-1] else km)
        band = Band(
            max(band.low, floor * bucket["p10"]),
            max(band.expected, floor * bucket["median"]),
            max(band.high, floor * bucket["p90"]),
        )
    return band


def _estimate_metro_rtt_ms(km: float) -> Band:
    floor, metro, shortest = fibre_floor_ms(km), load_routes()["metro"], load_routes()["buckets"][0]
    return Band(
        floor + metro["edge_low_ms"],
        floor * shortest["median"] + metro["edge_expected_ms"],
        floor * shortest["max"] + metro["edge_high_ms"],
    )


def estimate_same_region_rtt_ms() -> Band:
    """Round-trip time between availability zones of one region."""
    same = load_routes()["same_region"]
    return Band(same["low_ms"], same["expected_ms"], same["high_ms"])


class Region(Value):
    """A place: coordinates, and what depends on them."""

    name: Name = "custom"
    """The provider's own name, e.g. us-east-1, europe-west1, cn-beijing."""
    aliases: tuple[Name, ...] = ()
    """Other names it goes by."""
    provider: Name = "custom"
    """aws, gcp, azure, alibaba, ..., or city."""
    place: Prose = ""
    """Where that is."""
    place_zh: Prose = ""
    """Where that is, in Chinese."""
    lat: Annotated[float, Strict(), Field(ge=-90, le=90)]
    """Latitude, degrees."""
    lon: Annotated[float, Strict(), Field(ge=-180, le=180)]
    """Longitude, degrees."""
    carbon_g_per_kwh: NotNegative | None = None
    """Carbon intensity of its grid, g CO2 per kWh; null: not known."""
    egress_usd_per_gb: NotNegative | None = None
    """Price of sending to another region of the provider, $ per GB; null: not known."""
    source: Name | None = None
    """Where the coordinates come from."""
    carbon_source: Name | None = None
    """Where the carbon intensity comes from."""
    egress_source: Name | None = None
    """Where the price comes from."""


def _wrap_in_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class MeasuredPair(Value):
    """What somebody measured between two regions."""

    between: tuple[Name, Name]
    """The two regions."""
    rtt_ms: Positive | None = None
    """Round-trip time, ms."""
    gbps: Positive | None = None
    """Rate of many flows together, Gbit/s, one direction."""
    gbps_back: Positive | None = None
    """The same in the other direction, where it differs."""
    flow_gbps: Positive | None = None
    """Rate of a single flow, Gbit/s."""
    flows: Count | None = None
    """Flows that `gbps` was measured with."""
    source: Annotated[tuple[Name, ...], BeforeValidator(_wrap_in_tuple)]
    """Where the figures come from."""
    note: str = ""
    """How they were read."""
