"""Crossover: the rate between zones at which two plans are equally fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.cluster import Cluster, Link, Zone
from crosszone.inputs.links import ZoneLink, zone_links
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.predict.predict import predictor

LEAST, MOST = 1e-3, 1e3  # Factors on the rates between which a crossover is looked for
PLACES = 13  # Factors that are tried first, two a decade, so that more than one crossover is seen
HALVINGS = 24  # Of half a decade: the factor is known to a ten-millionth
EQUAL = 1e-9  # Share of a step below which two steps are equally long

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


def find_crossover(scenario: Scenario, one: Scenario, other: Scenario) -> Crossover:
    """The factor on all rates between zones at which two plans take equally long, and what rates that makes. [W3]

    `one` and `other` say how the work of `scenario` is done: strategy, placement, framework; links and uplinks are the
    scenario's. Between 0.001 and 1000 times the rates, by halving on a logarithmic scale.
    """
    zones = len(scenario.cluster.zones)
    if zones < 2:
        raise InvalidError(Notice(code="crossover_one_zone", field="cluster.zones", value=zones))
    links = zone_links(scenario.cluster)

    def faster(exponent: float) -> int:
        """1 where `one` is faster at 10^exponent times the rates, -1 where `other` is, 0 where they are equal."""
        cluster = scale_zone_links(scenario.cluster, 10.0**exponent, links)
        mine, theirs = (predictor(plan.replace(cluster=cluster)).step_time.expected for plan in (one, other))
        return 0 if abs(mine - theirs) <= EQUAL * theirs else 1 if mine < theirs else -1

    places = np.linspace(math.log10(LEAST), math.log10(MOST), PLACES)
    seen = [(float(place), won) for place in places if (won := faster(float(place)))]
    flips = [(_between(faster, low, high), low[1], high[1]) for low, high in pairwise(seen) if low[1] != high[1]]
    if not flips:
        winner = _name(seen[0][1]) if seen else None
        return Crossover(factor=None, gbps={}, below=winner, above=winner, more=())
    exponent, below, above = min(flips, key=lambda flip: abs(flip[0]))
    factor = 10.0**exponent
    return Crossover(
        factor=factor,
        gbps=_rates(links, factor),
        below=_name(below),
        above=_name(above),
        more=tuple(10.0 ** flip[0] for flip in flips if flip[0] != exponent),
    )


def scale_zone_links(cluster: Cluster, factor: float, links: Links | None = None) -> Cluster:
    """The cluster with all rates between zones times a factor: links, given or derived, uplinks and downlinks.

    What one connection can carry and round-trip times stay: a wider line does not change them.
    """
    listed = {link.pair: link for link in cluster.links}
    wider = []
    for path in (links or zone_links(cluster)).values():
        old = listed.get(frozenset(path.between)) or Link(between=path.between)
        there, back = path.gbps * factor, path.gbps_back * factor
        if old.between != path.between:
            there, back = back, there
        wider.append(old.replace(gbps=there, gbps_back=back))
    return cluster.replace(links=tuple(wider), zones=tuple(_uplinked(zone, factor) for zone in cluster.zones))


def _uplinked(zone: Zone, factor: float) -> Zone:
    limits = {"uplink_gbps": zone.uplink_gbps, "downlink_gbps": zone.downlink_gbps}
    given = {key: gbps * factor for key, gbps in limits.items() if gbps is not None}
    return zone.replace(**given) if given else zone


def _between(faster: Callable[[float], int], low: tuple[float, int], high: tuple[float, int]) -> float:
    """The exponent between two places with different winners at which the winner changes."""
    left, right = low[0], high[0]
    for _ in range(HALVINGS):
        middle = (left + right) / 2.0
        if faster(middle) == low[1]:
            left = middle
        else:
            right = middle
    return (left + right) / 2.0


def _rates(links: Links, factor: float) -> dict[str, float]:
    found = {}
    for path in links.values():
        a, b = path.between
        found[f"{a} > {b}"], found[f"{b} > {a}"] = path.gbps * factor, path.gbps_back * factor
    return found


def _name(winner: int) -> Winner:
    return "one" if winner > 0 else "other"
