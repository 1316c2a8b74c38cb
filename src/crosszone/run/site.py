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
from crosszone.inputs.catalogue.entries import OWN_SOURCE
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.inputs.gpu import CPU
from crosszone.run.probe import GB_PER_GIB
from crosszone.run.request import SCHEDULERS, source_of


def cluster_of(chosen: Mapping[str, Environment], links: Iterable[MeasuredLink] = ()) -> dict[str, Any]:
    """The cluster as a scenario writes it; environments keep their order, and so does the master if it comes first."""
    zones: dict[str, dict[str, Any]] = {}
    known = list(links)
    for id, one in chosen.items():
        zone = zones.setdefault(one.zone, {"name": one.zone, "nodes": []})
        if one.region is not None and zone.setdefault("region", one.region) != one.region:
            params = {"zone": one.zone, "other": zone["region"]}
            raise InvalidError(Notice(code="zone_two_regions", field=f"{id}.region", value=one.region, params=params))
        group, nodes = _node_group(id, one, _rate_inside(id, chosen, known)), zone["nodes"]
        if one.runner in SCHEDULERS and nodes and "hosts" not in group and {**nodes[-1], "count": 1} == group:
            nodes[-1]["count"] += 1  # equal nodes of a scheduler: one group, so one part of its job
        else:
            nodes.append(group)
    between = [
        found
        for first, second in combinations(zones, 2)
        if (found := _zone_link(first, second, chosen, known)) is not None
    ]
    return {"zones": list(zones.values()), **({"links": between} if between else {})}


def _node_group(id: str, one: Environment, measured_gbps: float | None) -> dict[str, Any]:
    """One environment; a rate of its network that nobody gave or measured is assumed by the scenario, which says so."""
    if one.gpus and one.gpu is None:
        raise InvalidError(Notice(code="environment_no_gpu_kind", field=f"{id}.gpu", params={"count": one.gpus}))
    kind = one.gpu if one.gpus else _cpu(id, one)
    group: dict[str, Any] = {"count": 1, "gpus": one.processes, "gpu": kind}
    if not one.gpus:
        group["fabric"] = "tcp"
    if one.nic_gbps is not None or measured_gbps is not None:
        group["nic_gbps"] = one.nic_gbps or measured_gbps
    if one.cpus is not None:
        group["cpus"] = one.cpus
    if one.memory_gb is not None:
        group["memory_gib"] = one.memory_gb / GB_PER_GIB
    if one.address is not None:
        host = {"name": id, "address": one.address}
        group["hosts"] = [host | ({"interface": one.interface} if one.interface else {})]
    return group


def _cpu(id: str, one: Environment) -> dict[str, Any]:
    """The CPU of an environment without GPUs as the device that computes: what a probe measured, nothing else."""
    found = (one.facts or {}).get("cpu") or {}
    peaks = {path: found[f"{path}_tflops"] for path in ("fp32", "bf16") if found.get(f"{path}_tflops")}
    rate = found.get("memory_gb_per_s")
    if not peaks or not rate or one.memory_gb is None:
        params = {"python": one.python, "reason": found.get("missing") or "-"}
        raise InvalidError(Notice(code="environment_cpu_unmeasured", field=f"{id}.gpus", value=id, params=params))
    return {
        "name": f"{CPU} {source_of(id)}",
        "architecture": CPU,
        "dense_tflops": {path: _rounded(peak) for path, peak in peaks.items()},
        "memory_gib": one.memory_gb / GB_PER_GIB,
        "memory_gb_per_s": _rounded(rate),
        "sources": {"default": OWN_SOURCE},
    }


def _rounded(rate: float) -> float:
    """Two digits: what two measurements of one machine agree on."""
    return float(f"{rate:.2g}")


def _rate_inside(id: str, chosen: Mapping[str, Environment], links: list[MeasuredLink]) -> float | None:
    """The best rate that was measured between an environment and others of its zone; None: none was."""
    zone = {one for one in chosen if chosen[one].zone == chosen[id].zone}
    near = [link for link in links if id in (link.first, link.second) and zone >= {link.first, link.second}]
    rates = [rate for link in near for rate in (link.gbps, link.gbps_back) if rate is not None]
    return _with_headers(max(rates)) if rates else None


def _with_headers(gbps: float) -> float:
    """A measured rate of payload as a scenario gives rates."""
    return round(gbps / figure("tcp", "efficiency"), 6)


def _zone_link(
    first: str, second: str, chosen: Mapping[str, Environment], links: list[MeasuredLink]
) -> dict[str, Any] | None:
    """What the pairs of two zones found: the median round-trip time, and the best rate, for one path carries all."""
    zone = {known: one.zone for id, one in chosen.items() for known in (id, source_of(id))}
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
            found[key] = _with_headers(max(rates))
    return found
