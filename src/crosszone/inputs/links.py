"""What is known of the path between two zones, and where each figure comes from.

A figure is taken from the first place that has it: the listed link, `default_link`, a published measurement
between the two regions, the distance (RTT only), and last a labelled example (rate only).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.catalogue import Catalogue, catalogue_of
from crosszone.inputs.cluster import Cluster, Link, LinkFigures
from crosszone.inputs.geography import (
    Band,
    fibre_floor_ms,
    great_circle_km,
    routes,
    rtt_from_distance_ms,
    rtt_same_region_ms,
)
from crosszone.inputs.region import MeasuredPair

Origin = Literal[
    "typed", "measured", "default_link", "published", "distance", "same region", "region price", "example", "unknown"
]


@dataclass(frozen=True, kw_only=True)
class ZoneLink:
    """The path between two zones; `gbps_back` and `usd_per_gb_back` run from the second to the first."""

    between: tuple[str, str]
    gbps: float
    gbps_back: float
    rtt_ms: Band
    jitter_ms: float | None
    loss_pct: float
    usd_per_gb: float | None
    usd_per_gb_back: float | None
    flow_gbps: float | None
    km: float | None
    floor_ms: float | None
    origins: dict[str, Origin]
    """Where gbps, rtt_ms and usd_per_gb come from."""
    sources: tuple[str, ...]
    """Source ids of a published measurement, if one was used."""


def zone_links(cluster: Cluster, catalogue: Catalogue | None = None) -> dict[tuple[int, int], ZoneLink]:
    """The path of every pair of zones (by position, first < second)."""
    known = catalogue or catalogue_of(None)
    listed = {link.pair: link for link in cluster.links}
    found = {}
    for first, second in cluster.pairs():
        pair = frozenset((cluster.zones[first].name, cluster.zones[second].name))
        found[first, second] = _zone_link(cluster, first, second, listed.get(pair), known)
    return found


def link_notices(cluster: Cluster, links: dict[tuple[int, int], ZoneLink]) -> list[Notice]:
    """What a user should know about the links: impossible and assumed figures."""
    notices = []
    listed = {link.pair: index for index, link in enumerate(cluster.links)}
    for link in links.values():
        index = listed.get(frozenset(link.between))
        field = "cluster.links" if index is None else f"cluster.links[{index}]"
        pair = " - ".join(link.between)
        typed = link.origins["rtt_ms"] in ("typed", "measured", "default_link")
        if typed and link.floor_ms is not None and link.rtt_ms.expected < link.floor_ms:
            params = {"pair": pair, "km": round(link.km or 0), "floor_ms": link.floor_ms}
            notices.append(_notice("rtt_below_floor", f"{field}.rtt_ms", link.rtt_ms.expected, "warning", **params))
        if link.origins["rtt_ms"] == "distance":
            params = {"pair": pair, "km": round(link.km or 0), "low": link.rtt_ms.low, "high": link.rtt_ms.high}
            notices.append(_notice("rtt_from_distance", field, round(link.rtt_ms.expected, 2), "note", **params))
        if link.origins["gbps"] == "example":
            notices.append(_notice("gbps_example", field, link.gbps, "warning", pair=pair))
    return notices


def _zone_link(cluster: Cluster, first: int, second: int, listed: Link | None, catalogue: Catalogue) -> ZoneLink:
    a, b = cluster.zones[first], cluster.zones[second]
    turned = listed is not None and listed.between[0] != a.name
    given: list[tuple[LinkFigures, Origin]] = []
    if listed:
        given.append((listed, "measured" if listed.measured else "typed"))
    if cluster.default_link:
        given.append((cluster.default_link, "default_link"))
    published = catalogue.measured_pair(a.region.name, b.region.name) if a.region and b.region else None

    km = listed.km if listed and listed.km is not None else None
    if km is None and a.region and b.region:
        km = great_circle_km(a.region.lat, a.region.lon, b.region.lat, b.region.lon)
    same_region = a.region is not None and a.region == b.region and (listed is None or listed.km is None)

    gbps, gbps_origin = _first("gbps", given, published)
    if gbps is None:
        gbps, gbps_origin = float(routes()["example_gbps"]), "example"
    gbps_back = _back(listed, "gbps_back", gbps_origin, published.gbps_back if published else None) or gbps
    if turned:
        gbps, gbps_back = gbps_back, gbps

    rtt, rtt_origin = _rtt(given, published, km, same_region)
    if rtt is None:
        raise InvalidError(
            Notice(code="rtt_unknown", field="cluster.links", value=None, params={"first": a.name, "second": b.name})
        )
    usd, usd_origin = _first("usd_per_gb", given, None)
    usd_back = _back(listed, "usd_per_gb_back", usd_origin, None)
    usd_back = usd if usd_back is None else usd_back
    if turned:
        usd, usd_back = usd_back, usd
    if usd_origin == "unknown":
        usd = a.region.egress_usd_per_gb if a.region else None
        usd_back = b.region.egress_usd_per_gb if b.region else None
        usd_origin = "region price" if usd is not None and usd_back is not None else "unknown"
    jitter, _ = _first("jitter_ms", given, None)
    loss, _ = _first("loss_pct", given, None)
    flow, _ = _first("flow_gbps", given, published)
    return ZoneLink(
        between=(a.name, b.name),
        gbps=gbps,
        gbps_back=gbps_back,
        rtt_ms=rtt,
        jitter_ms=jitter,
        loss_pct=loss or 0.0,
        usd_per_gb=usd,
        usd_per_gb_back=usd_back,
        flow_gbps=flow,
        km=km,
        floor_ms=None if km is None else fibre_floor_ms(km),
        origins={"gbps": gbps_origin, "rtt_ms": rtt_origin, "usd_per_gb": usd_origin},
        sources=published.source if published and "published" in (gbps_origin, rtt_origin) else (),
    )


def _first(
    key: str, given: list[tuple[LinkFigures, Origin]], published: MeasuredPair | None
) -> tuple[float | None, Origin]:
    for figures, origin in given:
        value: float | None = getattr(figures, key)
        if value is not None:
            return value, origin
    value = getattr(published, key, None) if published else None
    return (value, "published") if value is not None else (None, "unknown")


def _back(listed: Link | None, key: str, origin: Origin, published: float | None) -> float | None:
    if listed is not None and getattr(listed, key) is not None:
        typed: Any = getattr(listed, key)
        return float(typed)
    return published if origin == "published" else None


def _rtt(
    given: list[tuple[LinkFigures, Origin]], published: MeasuredPair | None, km: float | None, same_region: bool
) -> tuple[Band | None, Origin]:
    value, origin = _first("rtt_ms", given, published)
    if value is not None:
        return Band.exact(value), origin
    if same_region:
        return rtt_same_region_ms(), "same region"
    if km is not None:
        return rtt_from_distance_ms(km), "distance"
    return None, "unknown"


def _notice(code: str, field: str, value: Any, level: Literal["warning", "note"], **params: Any) -> Notice:
    return Notice(code=code, field=field, value=value, level=level, params=params)
