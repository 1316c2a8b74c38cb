"""Site: the cluster that some environments make up, with the links measured between them: part of a scenario.

cluster_of({"env-1": first, "env-2": second}, links)       -> {"zones": [...], "links": [...]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from statistics import median
from typing import Any

from crosszone.cost.tiers import figure
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.environment import Environment
from crosszone.inputs.measured_link import MeasuredLink
from crosszone.run.probe import GB_PER_GIB


def cluster_of(chosen: Mapping[str, Environment], links: Iterable[MeasuredLink] = ()) -> dict[str, Any]:
    """The cluster as a scenario writes it; environments keep their order, and so does the master if it comes first."""
    zones: dict[str, dict[str, Any]] = {}
    for id, one in chosen.items():
        zone = zones.setdefault(one.zone, {"name": one.zone, "nodes": []})
        if one.region is not None and zone.setdefault("region", one.region) != one.region:
            params = {"zone": one.zone, "other": zone["region"]}
            raise InvalidError(Notice(code="zone_two_regions", field=f"{id}.region", value=one.region, params=params))
        zone["nodes"].append(_node_group(id, one))
    between = [
        found
        for first, second in combinations(zones, 2)
        if (found := _zone_link(first, second, chosen, list(links))) is not None
    ]
    return {"zones": list(zones.values()), **({"links": between} if between else {})}


def _node_group(id: str, one: Environment) -> dict[str, Any]:
    """One environment; a rate of its network that nobody gave is assumed by the scenario, which says so."""
    if not one.gpus or one.gpu is None:
        raise InvalidError(Notice(code="environment_no_gpu_kind", field=f"{id}.gpu", params={"count": one.gpus}))
    group: dict[str, Any] = {"count": 1, "gpus": one.gpus, "gpu": one.gpu}
    if one.nic_gbps is not None:
        group["nic_gbps"] = one.nic_gbps
    if one.cpus is not None:
        group["cpus"] = one.cpus
    if one.memory_gb is not None:
        group["memory_gib"] = one.memory_gb / GB_PER_GIB
    if one.address is not None:
        host = {"name": id, "address": one.address}
        group["hosts"] = [host | ({"interface": one.interface} if one.interface else {})]
    return group


def _zone_link(
    first: str, second: str, chosen: Mapping[str, Environment], links: list[MeasuredLink]
) -> dict[str, Any] | None:
    """What the pairs of two zones found: the median round-trip time, and the best rate, for one path carries all."""
    zone = {id: one.zone for id, one in chosen.items()}
    ways = []
    for link in links:
        ends = (zone.get(link.first), zone.get(link.second))
        if ends == (first, second):
            ways.append((link.rtt_ms, link.gbps, link.gbps_back))
        elif ends == (second, first):
            ways.append((link.rtt_ms, link.gbps_back, link.gbps))
    if not ways:
        return None
    found: dict[str, Any] = {"between": [first, second], "rtt_ms": median(way[0] for way in ways), "measured": True}
    there, back = [[rate for way in ways if (rate := way[place]) is not None] for place in (1, 2)]
    for key, rates in (("gbps", there), ("gbps_back", back)):
        if rates:
            found[key] = round(max(rates) / figure("tcp", "efficiency"), 6)  # a scenario gives rates with headers
    return found
