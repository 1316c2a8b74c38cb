"""Probe: ask an environment's machine what it is, and put what it says in the place of what was typed.

found = probed(environment, machine_of("env-1", environment))
found.status, found.gpus, found.facts["software"]["torch"]

Links: what lies between two environments, measured by their machines.

link = measured(("env-1", first, its_machine), ("env-2", second, its_machine))
link.rtt_ms, link.gbps, link.gbps_back
"""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from crosszone.errors import MachineError, Notice
from crosszone.inputs.catalogue import catalogue_of
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.run.machine import Local, Machine, Ssh

GB_PER_GIB = 2**30 / 1e9
# How long a machine may take to answer: one without GPUs computes for some seconds to say how fast it is.
WAIT_S = 150
_VENDOR_WORDS = ("NVIDIA ", "Tesla ", "GeForce ", "Quadro ", "AMD ", "Instinct ")


def machine_of(id: str, environment: Environment, sockets: Path | None = None) -> Machine:
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


def probed(environment: Environment, machine: Machine) -> Environment:
    """The environment with what its machine says of itself; `MachineError` when it cannot be asked."""
    facts = machine.call("survey.collect_facts", wait_s=WAIT_S, folder=environment.workdir, python=environment.python)
    changes: dict[str, Any] = {"status": "running", "facts": facts, "cpus": facts["cpus"]}
    changes["memory_gb"] = round(facts["memory_gib"] * GB_PER_GIB, 3)
    if facts["uptime_s"] is not None:
        changes["since"] = round(facts["clock"] - facts["uptime_s"], 3)
    if facts["gpus"]:
        changes |= {"gpus": len(facts["gpus"]), "gpu": find_gpu_name(facts["gpus"][0]["name"]) or environment.gpu}
    known = [name for name, address in facts["interfaces"].items() if address == environment.address]
    if known:
        changes["interface"] = known[0]
    return environment.replace(**changes)


def find_gpu_name(printed: str) -> str | None:
    """Name in the catalogue of a GPU as its driver prints it; None: the catalogue has none."""
    short = printed
    for word in _VENDOR_WORDS:
        short = short.replace(word, "")
    known = catalogue_of(None)
    for spelling in (printed, short):
        entry = known.find("gpus", spelling)
        if entry is not None:
            return str(entry.name)
    return None


SECONDS, STREAMS = 3.0, 4  # How long each direction is measured, with how many connections


class End(NamedTuple):
    """One end of a link."""

    id: str
    address: str | None
    """Address the other end reaches it by."""
    machine: Machine


def measured(first: End, second: End, *, seconds: float = SECONDS, streams: int = STREAMS) -> MeasuredLink:
    """Round-trip time and rates of a link in both directions; `MachineError` says which end failed and why."""
    there = _one_way(first, second, seconds, streams)
    back = _one_way(second, first, seconds, streams)
    return MeasuredLink(
        first=first.id,
        second=second.id,
        rtt_ms=there["rtt_ms"],
        rtt_ms_least=min(there["rtt_ms_least"], back["rtt_ms_least"]),
        rtt_ms_most=max(there["rtt_ms_most"], back["rtt_ms_most"]),
        gbps=_gbps(there),
        gbps_back=_gbps(back),
        streams=streams,
        measured=time.time(),
    )


def _one_way(sender: End, receiver: End, seconds: float, streams: int) -> dict[str, Any]:
    """The sender connects while the receiver listens."""
    if receiver.address is None:
        raise MachineError(Notice(code="environment_no_address", field="address", value=receiver.id))
    port = receiver.machine.call("link.find_free_port", address=receiver.address)["port"]
    asked = {"address": receiver.address, "port": port, "secret": secrets.token_hex(16), "streams": streams}
    with ThreadPoolExecutor(max_workers=1) as beside:
        listening = beside.submit(receiver.machine.call, "link.receive_link_test", wait_s=seconds + 60, **asked)
        try:
            sent: dict[str, Any] = sender.machine.call(
                "link.send_link_test", seconds=seconds, wait_s=seconds + 60, **asked
            )
        except MachineError:
            listening.exception()  # it gives up by itself; what the sender says is nearer to the cause
            raise
        return {**listening.result(), **sent}


def _gbps(way: dict[str, Any]) -> float | None:
    return None if not way["bit_s"] else round(way["bit_s"] / 1e9, 6)
