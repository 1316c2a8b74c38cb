"""Environments: probed and measured on their machines, filtered, removed, and put together to a cluster.

    probed = probe_environment(environment, make_machine("env-1", environment))
    probed.status, probed.gpus, probed.facts["software"]["torch"]

    link = measure_link(LinkEnd("env-1", address, machine), LinkEnd("env-2", other_address, other_machine))
    link.rtt_ms, link.gbps, link.gbps_back

build_cluster({"env-1": first, "env-2": second}, links)       -> {"zones": [...], "links": [...]} of a scenario

filter_environments(store.environments.all(), {"zone": ["beijing-a"], "gpu": ["cpu"]}, sort="uptime")
remove_environments(store, ["env-1", "env-2"])                none while a task runs in one of them
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from crosszone.cost.tiers import read_figure
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.inputs.catalogue import get_catalogue
from crosszone.inputs.catalogue.entries import OWN_SOURCE
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.inputs.gpu import CPU
from crosszone.run.machine import Local, Machine, Ssh
from crosszone.run.request import SCHEDULERS, get_source_id
from crosszone.store import Store
from crosszone.store.registered import Entry

GB_PER_GIB = 2**30 / 1e9
# How long a machine may take to answer: one without GPUs computes for some seconds to say how fast it is.
PROBE_WAIT_S = 150
_VENDOR_WORDS = ("NVIDIA ", "Tesla ", "GeForce ", "Quadro ", "AMD ", "Instinct ")


def make_machine(id: str, environment: Environment, sockets: Path | None = None) -> Machine:
    """The machine of an environment that can be asked; `MachineError` where only a scheduler reaches it."""
    if environment.runner == "local":
        return Local(name=id)
    if environment.runner != "ssh":
        raise MachineError(Notice(code="environment_scheduled", value=id, params={"runner": environment.runner}))
    if environment.address is None:
        raise MachineError(Notice(code="environment_no_address", field="address", value=id))
    return Ssh(
        name=id,
        address=environment.address,
        user=environment.ssh_user,
        port=environment.ssh_port,
        identity=environment.ssh_key,
        known_hosts=environment.known_hosts,
        sockets=sockets,
    )


def probe_environment(environment: Environment, machine: Machine) -> Environment:
    """The environment with what its machine says of itself; `MachineError` when it cannot be asked."""
    facts = machine.call(
        "survey.collect_facts", wait_s=PROBE_WAIT_S, folder=environment.workdir, python=environment.python
    )
    changes: dict[str, Any] = {"status": "running", "facts": facts, "cpus": facts["cpus"]}
    changes["memory_gb"] = round(facts["memory_gib"] * GB_PER_GIB, 3)
    if facts["uptime_s"] is not None:
        changes["since"] = round(facts["clock"] - facts["uptime_s"], 3)
    if facts["gpus"]:
        changes |= {"gpus": len(facts["gpus"]), "gpu": find_gpu_name(facts["gpus"][0]["name"]) or environment.gpu}
    interfaces = [name for name, address in facts["interfaces"].items() if address == environment.address]
    if interfaces:
        changes["interface"] = interfaces[0]
    return environment.replace(**changes)


def find_gpu_name(printed: str) -> str | None:
    """Name in the catalogue of a GPU as its driver prints it; None: the catalogue has none."""
    without_vendor = printed
    for vendor in _VENDOR_WORDS:
        without_vendor = without_vendor.replace(vendor, "")
    catalogue = get_catalogue(None)
    for spelling in (printed, without_vendor):
        entry = catalogue.find("gpus", spelling)
        if entry is not None:
            return str(entry.name)
    return None


LINK_TEST_S, LINK_TEST_STREAMS = 3.0, 4  # How long each direction is measured, with how many connections


class LinkEnd(NamedTuple):
    """One end of a link."""

    id: str
    address: str | None
    """Address the other end reaches it by."""
    machine: Machine


def measure_link(
    first: LinkEnd, second: LinkEnd, *, seconds: float = LINK_TEST_S, streams: int = LINK_TEST_STREAMS
) -> MeasuredLink:
    """Round-trip time and rates of a link in both directions; `MachineError` says which end failed and why."""
    forward = _measure_direction(first, second, seconds, streams)
    backward = _measure_direction(second, first, seconds, streams)
    return MeasuredLink(
        first=first.id,
        second=second.id,
        rtt_ms=forward["rtt_ms"],
        rtt_ms_least=min(forward["rtt_ms_least"], backward["rtt_ms_least"]),
        rtt_ms_most=max(forward["rtt_ms_most"], backward["rtt_ms_most"]),
        gbps=_read_gbps(forward),
        gbps_back=_read_gbps(backward),
        streams=streams,
        measured=time.time(),
    )


def _measure_direction(sender: LinkEnd, receiver: LinkEnd, seconds: float, streams: int) -> dict[str, Any]:
    """The sender connects while the receiver listens."""
    if receiver.address is None:
        raise MachineError(Notice(code="environment_no_address", field="address", value=receiver.id))
    port = receiver.machine.call("link.find_free_port", address=receiver.address)["port"]
    arguments = {"address": receiver.address, "port": port, "secret": secrets.token_hex(16), "streams": streams}
    with ThreadPoolExecutor(max_workers=1) as pool:
        listening = pool.submit(receiver.machine.call, "link.receive_link_test", wait_s=seconds + 60, **arguments)
        try:
            sender_report: dict[str, Any] = sender.machine.call(
                "link.send_link_test", seconds=seconds, wait_s=seconds + 60, **arguments
            )
        except MachineError:
            listening.exception()  # it gives up by itself; what the sender says is nearer to the cause
            raise
        return {**listening.result(), **sender_report}


def _read_gbps(direction: dict[str, Any]) -> float | None:
    return None if not direction["bit_s"] else round(direction["bit_s"] / 1e9, 6)


def build_cluster(environments: Mapping[str, Environment], links: Iterable[MeasuredLink] = ()) -> dict[str, Any]:
    """The cluster as a scenario writes it; environments keep their order, and so does the master if it comes first."""
    zones: dict[str, dict[str, Any]] = {}
    measured_links = list(links)
    for id, environment in environments.items():
        zone = zones.setdefault(environment.zone, {"name": environment.zone, "nodes": []})
        if environment.region is not None and zone.setdefault("region", environment.region) != environment.region:
            params = {"zone": environment.zone, "other": zone["region"]}
            raise InvalidError(
                Notice(code="zone_two_regions", field=f"{id}.region", value=environment.region, params=params)
            )
        group = _build_node_group(id, environment, _find_rate_in_zone(id, environments, measured_links))
        nodes = zone["nodes"]
        if environment.runner in SCHEDULERS and nodes and "hosts" not in group and {**nodes[-1], "count": 1} == group:
            nodes[-1]["count"] += 1  # equal nodes of a scheduler: one group, so one part of its job
        else:
            nodes.append(group)
    zone_links = [
        link
        for first, second in combinations(zones, 2)
        if (link := _merge_zone_links(first, second, environments, measured_links)) is not None
    ]
    return {"zones": list(zones.values()), **({"links": zone_links} if zone_links else {})}


def _build_node_group(id: str, environment: Environment, measured_gbps: float | None) -> dict[str, Any]:
    """One environment; a rate of its network that nobody gave or measured is assumed by the scenario, which says so."""
    if environment.gpus and environment.gpu is None:
        raise InvalidError(
            Notice(code="environment_no_gpu_kind", field=f"{id}.gpu", params={"count": environment.gpus})
        )
    kind = environment.gpu if environment.gpus else _describe_cpu(id, environment)
    group: dict[str, Any] = {"count": 1, "gpus": environment.processes, "gpu": kind}
    if not environment.gpus:
        group["fabric"] = "tcp"
    if environment.nic_gbps is not None or measured_gbps is not None:
        group["nic_gbps"] = environment.nic_gbps or measured_gbps
    if environment.cpus is not None:
        group["cpus"] = environment.cpus
    if environment.memory_gb is not None:
        group["memory_gib"] = environment.memory_gb / GB_PER_GIB
    if environment.address is not None:
        host = {"name": id, "address": environment.address}
        group["hosts"] = [host | ({"interface": environment.interface} if environment.interface else {})]
    return group


def _describe_cpu(id: str, environment: Environment) -> dict[str, Any]:
    """The CPU of an environment without GPUs as a GPU entry, from the rates that a probe measured."""
    rates = (environment.facts or {}).get("cpu") or {}
    peaks = {path: rates[f"{path}_tflops"] for path in ("fp32", "bf16") if rates.get(f"{path}_tflops")}
    memory_rate = rates.get("memory_gb_per_s")
    if not peaks or not memory_rate or environment.memory_gb is None:
        params = {"python": environment.python, "reason": rates.get("missing") or "-"}
        raise InvalidError(Notice(code="environment_cpu_unmeasured", field=f"{id}.gpus", value=id, params=params))
    return {
        "name": f"{CPU} {get_source_id(id)}",
        "architecture": CPU,
        "dense_tflops": {path: _round_rate(peak) for path, peak in peaks.items()},
        "memory_gib": environment.memory_gb / GB_PER_GIB,
        "memory_gb_per_s": _round_rate(memory_rate),
        "sources": {"default": OWN_SOURCE},
    }


def _round_rate(rate: float) -> float:
    """A rate with two digits: two measurements of one machine agree no further."""
    return float(f"{rate:.2g}")


def _find_rate_in_zone(id: str, environments: Mapping[str, Environment], links: list[MeasuredLink]) -> float | None:
    """The best rate that was measured between an environment and others of its zone; None: none was."""
    zone = {other for other in environments if environments[other].zone == environments[id].zone}
    zone_links = [link for link in links if id in (link.first, link.second) and zone >= {link.first, link.second}]
    rates = [rate for link in zone_links for rate in (link.gbps, link.gbps_back) if rate is not None]
    return _add_headers(max(rates)) if rates else None


def _add_headers(gbps: float) -> float:
    """The rate with packet headers, as scenarios state it, from a measured rate of payload."""
    return round(gbps / read_figure("tcp", "efficiency"), 6)


def _merge_zone_links(
    first: str, second: str, environments: Mapping[str, Environment], links: list[MeasuredLink]
) -> dict[str, Any] | None:
    """What the pairs of two zones found: the median round-trip time, and the best rate, for one path carries all."""
    zone_of = {end: environment.zone for id, environment in environments.items() for end in (id, get_source_id(id))}
    measurements = []
    for link in links:
        ends = (zone_of.get(link.first), zone_of.get(link.second))
        if ends == (first, second):
            measurements.append((link.rtt_ms, link.gbps, link.gbps_back))
        elif ends == (second, first):
            measurements.append((link.rtt_ms, link.gbps_back, link.gbps))
    if not measurements:
        return None
    merged: dict[str, Any] = {
        "between": [first, second],
        "rtt_ms": median(measurement[0] for measurement in measurements),
        "measured": True,
    }
    forward, backward = [
        [rate for measurement in measurements if (rate := measurement[column]) is not None] for column in (1, 2)
    ]
    for key, rates in (("gbps", forward), ("gbps_back", backward)):
        if rates:
            merged[key] = _add_headers(max(rates))
    return merged


Sort = Literal["name", "gpus", "uptime"]
_KEYS: Mapping[Sort, Callable[[Environment], Any]] = {
    "name": lambda environment: environment.name.casefold(),
    "gpus": lambda environment: environment.gpus,
    "uptime": lambda environment: None if environment.since is None else -environment.since,
}


def filter_environments(
    entries: Sequence[Entry[Environment]],
    allowed: Mapping[str, Collection[str]],
    *,
    sort: Sort | None = None,
    descending: bool = False,
) -> list[Entry[Environment]]:
    """Environments whose fields have allowed values (empty: any value), sorted.

    Small letters or capitals, it is the same; `cpu` as GPU kind: those without. Equal ones stay as they were
    registered, and those of which the order is not known come last.
    """
    matches = [
        entry
        for entry in entries
        if all(not wanted or _is_among(entry.value, field, wanted) for field, wanted in allowed.items())
    ]
    if sort is None:
        return matches[::-1] if descending else matches
    key = _KEYS[sort]
    sortable = [entry for entry in matches if key(entry.value) is not None]
    unsortable = [entry for entry in matches if key(entry.value) is None]
    return [*sorted(sortable, key=lambda entry: key(entry.value), reverse=descending), *unsortable]


def remove_environments(store: Store, ids: Sequence[str]) -> None:
    """Remove environments and the links measured between them; none of them while a task runs in one."""
    for id in ids:
        store.environments.get(id)
        for task in store.tasks.list_live():
            if id in task.request.get("distributedConfig", {}).get("nodeIds", ()):
                params = {"task": task.id, "name": task.name}
                raise InvalidError(Notice(code="environment_in_use", field="id", value=id, params=params))
    for id in ids:
        store.environments.remove(id)
    for link in store.measured_links.all():
        if link.value.first in ids or link.value.second in ids:
            store.measured_links.remove(link.id)


def _is_among(environment: Environment, field: str, wanted: Collection[str]) -> bool:
    value = CPU if field == "gpu" and not environment.gpus else getattr(environment, field)
    return value is not None and value.lower() in {name.lower() for name in wanted}
