"""Crossover: the rate between zones at which two plans are equally fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.cluster import Cluster, Link, Zone
from crosszone.inputs.links import ZoneLink, build_zone_links
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.predict.predict import build_predictor

MIN_FACTOR, MAX_FACTOR = 1e-3, 1e3  # Factors on the rates between which a crossover is looked for
SAMPLES = 13  # Factors that are tried first, two a decade, so that more than one crossover is seen
HALVINGS = 24  # Of half a decade: the factor is known to a ten-millionth
EQUAL_SHARE = 1e-9  # Share of a step below which two steps are equally long

Winner = Literal["one", "other"]
Links = dict[tuple[int, int], ZoneLink]


class Crossover(Value):
    """Where the faster of two plans changes; without a factor the same one is faster (or neither) at every rate."""

    factor: float | None
    """On all rates between zones, nearest to 1 where there are several."""
    gbps: dict[str, float]
    """Rate of every link at that factor, Gbit/s, by `from > to`."""
    below: Winner | None
    """The faster plan at lower rates; null: they are equal."""
    above: Winner | None
    """The faster plan at higher rates."""
    more: tuple[float, ...]
    """Further factors at which the faster plan changes; usually none."""


def find_crossover(scenario: Scenario, first: Scenario, second: Scenario) -> Crossover:
    """The factor on all rates between zones at which two plans take equally long, and what rates that makes. [W3]

    `first` and `second` say how the work of `scenario` is done: strategy, placement, framework; links and uplinks are
    the scenario's. Between 0.001 and 1000 times the rates, by halving on a logarithmic scale.
    """
    zones = len(scenario.cluster.zones)
    if zones < 2:
        raise InvalidError(Notice(code="crossover_one_zone", field="cluster.zones", value=zones))
    links = build_zone_links(scenario.cluster)

    def find_faster(exponent: float) -> int:
        """1 where `first` is faster at 10^exponent times the rates, -1 where `second` is, 0 where they are equal."""
        cluster = scale_zone_links(scenario.cluster, 10.0**exponent, links)
        first_s, theirs = (
            build_predictor(plan.replace(cluster=cluster)).step_time.expected for plan in (first, second)
        )
        return 0 if abs(first_s - theirs) <= EQUAL_SHARE * theirs else 1 if first_s < theirs else -1

    exponents = np.linspace(math.log10(MIN_FACTOR), math.log10(MAX_FACTOR), SAMPLES)
    winners = [
        (float(exponent_tried), won) for exponent_tried in exponents if (won := find_faster(float(exponent_tried)))
    ]
    flips = [(_bisect(find_faster, low, high), low[1], high[1]) for low, high in pairwise(winners) if low[1] != high[1]]
    if not flips:
        winner = _name_winner(winners[0][1]) if winners else None
        return Crossover(factor=None, gbps={}, below=winner, above=winner, more=())
    exponent, below, above = min(flips, key=lambda flip: abs(flip[0]))
    factor = 10.0**exponent
    return Crossover(
        factor=factor,
        gbps=_list_rates(links, factor),
        below=_name_winner(below),
        above=_name_winner(above),
        more=tuple(10.0 ** flip[0] for flip in flips if flip[0] != exponent),
    )


def scale_zone_links(cluster: Cluster, factor: float, links: Links | None = None) -> Cluster:
    """The cluster with all rates between zones times a factor: links, given or derived, uplinks and downlinks.

    What one connection can carry and round-trip times stay: a wider line does not change them.
    """
    listed = {link.pair: link for link in cluster.links}
    wider = []
    for path in (links or build_zone_links(cluster)).values():
        old = listed.get(frozenset(path.between)) or Link(between=path.between)
        forth_gbps, back_gbps = path.gbps * factor, path.gbps_back * factor
        if old.between != path.between:
            forth_gbps, back_gbps = back_gbps, forth_gbps
        wider.append(old.replace(gbps=forth_gbps, gbps_back=back_gbps))
    return cluster.replace(links=tuple(wider), zones=tuple(_scale_uplinks(zone, factor) for zone in cluster.zones))


def _scale_uplinks(zone: Zone, factor: float) -> Zone:
    limits = {"uplink_gbps": zone.uplink_gbps, "downlink_gbps": zone.downlink_gbps}
    scaled = {key: gbps * factor for key, gbps in limits.items() if gbps is not None}
    return zone.replace(**scaled) if scaled else zone


def _bisect(find_faster: Callable[[float], int], low: tuple[float, int], high: tuple[float, int]) -> float:
    """The exponent between two places with different winners at which the winner changes."""
    low_exponent, high_exponent = low[0], high[0]
    for _ in range(HALVINGS):
        middle = (low_exponent + high_exponent) / 2.0
        if find_faster(middle) == low[1]:
            low_exponent = middle
        else:
            high_exponent = middle
    return (low_exponent + high_exponent) / 2.0


def _list_rates(links: Links, factor: float) -> dict[str, float]:
    gbps = {}
    for path in links.values():
        a, b = path.between
        gbps[f"{a} > {b}"], gbps[f"{b} > {a}"] = path.gbps * factor, path.gbps_back * factor
    return gbps


def _name_winner(winner: int) -> Winner:
    return "one" if winner > 0 else "other"
