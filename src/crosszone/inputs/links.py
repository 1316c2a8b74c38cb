"""What is known of the path between two zones, and where each figure comes from.

A figure is taken from the first place that has it: the listed link, `default_link`, a published measurement
between the two regions, the distance (RTT), the sender's price list ($ per GB), and last a labelled example (rate).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.catalogue import Catalogue, catalogue
from crosszone.inputs.cluster import Cluster, Link, LinkFigures, Zone
from crosszone.inputs.region import (
    Band,
    MeasuredPair,
    Region,
    estimate_rtt_ms,
    estimate_same_region_rtt_ms,
    fibre_floor_ms,
    great_circle_km,
    load_routes,
)

Origin = Literal[
    "typed", "measured", "default_link", "published", "distance", "same region", "region price", "example", "unknown"
]
Figure = tuple[float | None, Origin]


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
    """Where gbps, gbps_back, rtt_ms, usd_per_gb and usd_per_gb_back come from."""
    sources: tuple[str, ...]
    """Source ids of a published measurement, if one was used."""


def build_zone_links(cluster: Cluster) -> dict[tuple[int, int], ZoneLink]:
    """The path of every pair of zones (by position, first < second)."""
    return dict(_build_zone_links(cluster, catalogue()))


@lru_cache(maxsize=16)
def _build_zone_links(cluster: Cluster, catalogue: Catalogue) -> dict[tuple[int, int], ZoneLink]:
    """Cached, because every change of a strategy is a scenario of its own over the same cluster."""
    listed = {link.pair: link for link in cluster.links}
    links = {}
    for first, second in cluster.zone_pairs:
        a, b = cluster.zones[first], cluster.zones[second]
        published = _find_published_pair(a, b, catalogue)
        sources = FigureSources(a, b, listed.get(frozenset((a.name, b.name))), cluster.default_link, published)
        links[first, second] = _build_zone_link(sources)
    return links


def list_link_notices(cluster: Cluster, links: dict[tuple[int, int], ZoneLink]) -> Iterator[Notice]:
    """What a user should know about the links: impossible, assumed and capped figures."""
    listed = {link.pair: index for index, link in enumerate(cluster.links)}
    for (first, second), link in links.items():
        index = listed.get(frozenset(link.between))
        field = "cluster.links" if index is None else f"cluster.links[{index}]"
        yield from _list_rtt_notices(link, field)
        yield from _list_rate_notices(link, field)
        yield from _list_cap_notices(cluster, link, first, second)
        straight = _compute_straight_km(cluster.zones[first], cluster.zones[second])
        if index is not None and cluster.links[index].km is not None and straight and (link.km or 0) < 0.98 * straight:
            params = {"pair": " - ".join(link.between), "circle": round(straight)}
            yield _build_notice("km_below_circle", f"{field}.km", link.km, "warning", **params)


def _list_rtt_notices(link: ZoneLink, field: str) -> Iterator[Notice]:
    route = {"pair": " - ".join(link.between), "km": round(link.km or 0)}
    typed = link.origins["rtt_ms"] in ("typed", "measured", "default_link")
    if typed and link.floor_ms is not None and link.rtt_ms.expected < link.floor_ms:
        where = "cluster.default_link" if link.origins["rtt_ms"] == "default_link" else field
        params = route | {"floor_ms": link.floor_ms}
        yield _build_notice("rtt_below_floor", f"{where}.rtt_ms", link.rtt_ms.expected, "warning", **params)
    if link.origins["rtt_ms"] == "distance":
        params = route | {"low": link.rtt_ms.low, "high": link.rtt_ms.high}
        yield _build_notice("rtt_from_distance", field, round(link.rtt_ms.expected, 2), "note", **params)


def _list_rate_notices(link: ZoneLink, field: str) -> Iterator[Notice]:
    if link.origins["gbps"] == "example":
        yield _build_notice("gbps_example", field, link.gbps, "warning", pair=" - ".join(link.between))
    elif link.origins["gbps_back"] == "example":
        yield _build_notice("gbps_example", field, link.gbps_back, "warning", pair=" - ".join(reversed(link.between)))


def _list_cap_notices(cluster: Cluster, link: ZoneLink, first: int, second: int) -> Iterator[Notice]:
    """That the uplink of the sender or the downlink of the receiver is slower than the link itself."""
    for sender, receiver, gbps in ((first, second, link.gbps), (second, first, link.gbps_back)):
        a, b = cluster.zones[sender], cluster.zones[receiver]
        into = "downlink_gbps" if b.downlink_gbps is not None else "uplink_gbps"
        caps = [(a.uplink_gbps, sender, "uplink_gbps"), (getattr(b, into), receiver, into)]
        slower = [(cap, zone, key) for cap, zone, key in caps if cap is not None and cap < gbps]
        if slower:
            cap, zone, key = min(slower)
            params = {"pair": f"{a.name} - {b.name}", "zone": cluster.zones[zone].name, "gbps": gbps}
            yield _build_notice("uplink_limits", f"cluster.zones[{zone}].{key}", cap, "note", **params)


@dataclass(frozen=True)
class FigureSources:
    """Every place a figure of one pair may come from."""

    first: Zone
    second: Zone
    listed: Link | None
    default: LinkFigures | None
    published: MeasuredPair | None

    def find_figure(self, key: str, *, back: bool = False) -> Figure:
        """The figure from the first place that has it; `back`: for traffic from the second zone to the first."""
        if self.listed is not None:
            # a file may list a pair in either order; zones of a pair are in the cluster's order
            is_backward = (self.listed.between[0] != self.first.name) != back
            backward = getattr(self.listed, f"{key}_back", None) if is_backward else None
            value = getattr(self.listed, key) if backward is None else backward
            if value is not None:
                return value, "measured" if self.listed.measured else "typed"
        if self.default is not None and getattr(self.default, key) is not None:
            return getattr(self.default, key), "default_link"
        if self.published is not None:
            backward = getattr(self.published, f"{key}_back", None) if back else None
            value = getattr(self.published, key, None) if backward is None else backward
            if value is not None:
                return value, "published"
        return None, "unknown"

    def find_rate(self, *, back: bool = False) -> tuple[float, Origin]:
        """Gbit/s of one direction; where none is given, a labelled example."""
        value, origin = self.find_figure("gbps", back=back)
        return (float(load_routes()["example_gbps"]), "example") if value is None else (value, origin)

    def find_price(self, *, back: bool = False) -> Figure:
        """$ per GB of one direction; where none is given, the sender's price to other regions of its provider."""
        value, origin = self.find_figure("usd_per_gb", back=back)
        a, b = self.first.region, self.second.region
        sender = b if back else a
        if value is not None or a is None or b is None or sender is None or sender.egress_usd_per_gb is None:
            return value, origin
        # clouds bill the sender, and this price is for another region of theirs: not to other providers, nor at home
        has_price = a.provider == b.provider and a != b
        return (sender.egress_usd_per_gb, "region price") if has_price else (None, "unknown")

    def find_rtt(self, km: float | None) -> tuple[Band, Origin]:
        """Round-trip time; `InvalidError` where no place has it."""
        value, origin = self.find_figure("rtt_ms")
        if value is not None:
            return Band.exact(value), origin
        a, b = self.first.region, self.second.region
        if a is not None and a == b and (self.listed is None or self.listed.km is None):
            return estimate_same_region_rtt_ms(), "same region"
        if km is not None:
            return estimate_rtt_ms(km), "distance"
        params = {"first": self.first.name, "second": self.second.name}
        raise InvalidError(Notice(code="rtt_unknown", field="cluster.links", params=params))


def _build_zone_link(sources: FigureSources) -> ZoneLink:
    km = (
        sources.listed.km
        if sources.listed and sources.listed.km is not None
        else _compute_straight_km(sources.first, sources.second)
    )
    (gbps, gbps_origin), (gbps_back, back_origin) = sources.find_rate(), sources.find_rate(back=True)
    (usd, usd_origin), (usd_back, usd_back_origin) = sources.find_price(), sources.find_price(back=True)
    rtt, rtt_origin = sources.find_rtt(km)
    published = "published" in (gbps_origin, back_origin, rtt_origin) and sources.published
    return ZoneLink(
        between=(sources.first.name, sources.second.name),
        gbps=gbps,
        gbps_back=gbps_back,
        rtt_ms=rtt,
        jitter_ms=sources.find_figure("jitter_ms")[0],
        loss_pct=sources.find_figure("loss_pct")[0] or 0.0,
        usd_per_gb=usd,
        usd_per_gb_back=usd_back,
        flow_gbps=sources.find_figure("flow_gbps")[0],
        km=km,
        floor_ms=None if km is None else fibre_floor_ms(km),
        origins={
            "gbps": gbps_origin,
            "gbps_back": back_origin,
            "rtt_ms": rtt_origin,
            "usd_per_gb": usd_origin,
            "usd_per_gb_back": usd_back_origin,
        },
        sources=published.source if published else (),
    )


def _compute_straight_km(a: Zone, b: Zone) -> float | None:
    if a.region is None or b.region is None:
        return None
    return great_circle_km(a.region.lat, a.region.lon, b.region.lat, b.region.lon)


def _find_published_pair(a: Zone, b: Zone, catalogue: Catalogue) -> MeasuredPair | None:
    """The published measurement between two regions, if both are the catalogue's own."""

    def is_built_in(region: Region | None) -> bool:
        # a region of the user's with a built-in name may lie elsewhere: what was measured is not about it
        return region is not None and catalogue.find("regions", region.name) == region

    if a.region is None or b.region is None or not (is_built_in(a.region) and is_built_in(b.region)):
        return None
    return catalogue.find_measured_pair(a.region.name, b.region.name)


def _build_notice(code: str, field: str, value: Any, level: Literal["warning", "note"], **params: Any) -> Notice:
    return Notice(code=code, field=field, value=value, level=level, params=params)
