"""Probe: ask an environment's machine what it is, and put what it says in the place of what was typed.

found = probed(environment, machine_of("env-1", environment))
found.status, found.gpus, found.facts["software"]["torch"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crosszone.errors import MachineError, Notice
from crosszone.inputs.catalogue import catalogue_of
from crosszone.inputs.environment import Environment
from crosszone.run.machine import Local, Machine, Ssh

GB_PER_GIB = 2**30 / 1e9
WAIT_S = 150
"""How long a machine may take to answer: one without GPUs computes for some seconds to say how fast it is."""
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
    facts = machine.call("survey.facts", wait_s=WAIT_S, folder=environment.workdir, python=environment.python)
    changes: dict[str, Any] = {"status": "running", "facts": facts, "cpus": facts["cpus"]}
    changes["memory_gb"] = round(facts["memory_gib"] * GB_PER_GIB, 3)
    if facts["uptime_s"] is not None:
        changes["since"] = round(facts["clock"] - facts["uptime_s"], 3)
    if facts["gpus"]:
        changes |= {"gpus": len(facts["gpus"]), "gpu": gpu_kind(facts["gpus"][0]["name"]) or environment.gpu}
    known = [name for name, address in facts["interfaces"].items() if address == environment.address]
    if known:
        changes["interface"] = known[0]
    return environment.replace(**changes)


def gpu_kind(printed: str) -> str | None:
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
