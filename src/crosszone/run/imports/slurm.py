"""Environments of a Slurm cluster: its nodes, each in the zone that its partition is."""

from __future__ import annotations

import re

from crosszone.inputs.environment import Environment, Status
from crosszone.run.imports.scheduler import printed
from crosszone.run.probe import gpu_kind

# Node, partition, CPUs, memory in MiB, generic resources, state; %R, for %P marks the default partition.
WORDS = ("sinfo", "--Node", "--noheader", "--format=%N|%R|%c|%m|%G|%T")
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:,(]+))?:(\d+)")
_UP = ("idle", "allocated", "mixed", "completing", "reserved")


def slurm_nodes() -> dict[str, Environment]:
    """What `sinfo` tells, by node; a node of several partitions stands in the first."""
    return nodes_in(printed(WORDS, missing="slurm_missing", failed="slurm_failed"))


def nodes_in(text: str) -> dict[str, Environment]:
    """The nodes of sinfo's lines."""
    found: dict[str, Environment] = {}
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 6 or parts[0] in found:
            continue
        name, partition, cpus, memory_mib, gres, state = parts
        kinds = _GPUS.findall(gres)
        up: Status = "running" if re.sub(r"[^a-z]", "", state.lower()) in _UP else "stopped"
        gpu = next((gpu_kind(kind) for kind, _ in kinds if kind), None)
        found[name] = Environment(
            name=name,
            type="slurm",
            status=up,
            zone=partition,
            runner="slurm",
            partition=partition,
            cpus=int(cpus.rstrip("+") or 1),
            memory_gb=round(float(memory_mib.rstrip("+")) * 2**20 / 1e9, 3),
            gpus=sum(int(count) for _, count in kinds),
            **({"gpu": gpu} if gpu else {}),
        )
    return found
