"""Links of a run measured by component: those of its cluster where they were measured, else the catalogue's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from crosszone.cost.tiers import BYTES_PER_S_PER_GB_PER_S, Tier, node_tiers, ring_tier
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.shipped import read_shipped

SECONDS_PER_US = 1e-6


@dataclass(frozen=True, kw_only=True)
class ClusterProfile:
    """What was measured of one cluster: its links by topology, coefficients of its GPU, constants of its jobs."""

    name: str
    gpus: Mapping[str, str]
    """Catalogue names of GPUs by the names that logs give them, in lower case."""
    all_reduce: Mapping[str, Mapping[tuple[int, int], Tier]]
    """Links of rings by what is sent (`activations`, `gradients`), then by (nodes, GPUs of each)."""
    send: Mapping[tuple[int, int], Tier]
    coefficients: Mapping[str, float]
    constants: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Where the groups of a job lie, as (nodes, GPUs of each): tensor ranks innermost, then replicas, then stages."""

    tensor: tuple[int, int]
    replicas: tuple[int, int]
    stages: tuple[int, int]
    """Two neighbours in the pipeline: (1, 2) inside a node, else (2, 1)."""


@dataclass(frozen=True, kw_only=True)
class RunLinks:
    """The links of one job, as one GPU sees them."""

    tensor: Tier
    replicas: Tier
    stages: Tier
    measured: bool
    """All of them were measured on that cluster, in this topology."""


def groups(t: int, d: int, node_gpus: int) -> Groups:
    """The groups of a job with t tensor-parallel ranks and d replicas on nodes of `node_gpus`. [K1]

    A group whose neighbours are `stride` ranks apart has node_gpus // stride of them on a node (at least one).
    """
    return Groups(
        tensor=_spread(t, 1, node_gpus),
        replicas=_spread(d, t, node_gpus),
        stages=(1, 2) if 2 * t * d <= node_gpus else (2, 1),
    )


def run_links(cluster: str, group: NodeGroup, t: int, d: int) -> RunLinks:
    """The links a job runs over: measured ones of its cluster, else rates of the catalogue. [K1]"""
    where = groups(t, d, group.gpus)
    known = cluster_profile(cluster)
    tiers = node_tiers(group)

    def ring(kind: str, place: tuple[int, int]) -> tuple[Tier, bool]:
        table = known.all_reduce.get(kind, {}) if known else {}
        nodes, gpus = place
        if place in table or nodes * gpus == 1:
            return table.get(place, tiers.fast), True
        like = [measured for measured in table if measured[1] == gpus and measured[0] > 1]
        if nodes > 1 and like:
            return table[min(like, key=lambda measured: abs(measured[0] - nodes))], False
        members = min(gpus, group.domain)
        return ring_tier(tiers, nodes * gpus, members, gpus), False

    tensor, tensor_known = ring("activations", where.tensor)
    replicas, replicas_known = ring("gradients", where.replicas)
    sends = known.send if known else {}
    between = sends.get(where.stages, tiers.fast if where.stages == (1, 2) else tiers.nic)
    measured = tensor_known and replicas_known and where.stages in sends
    return RunLinks(tensor=tensor, replicas=replicas, stages=between, measured=measured)


def cluster_profile(name: str) -> ClusterProfile | None:
    """What was measured of the cluster of that name, or None."""
    return _profiles().get(name.lower())


def norm_passes() -> dict[str, float]:
    """Passes over the residual stream that the norms of a layer take more, forward and backward, where not fused."""
    return {key: float(one["value"]) for key, one in _file()["unfused_norm_passes"].items()}


def kernels(way: str, unfused_norm: bool, flash: bool) -> float:
    """Kernels of one layer, forward or backward with recomputation, of this stack. [K7]"""
    counts = _file()["layer_kernels"][way]
    return float(counts["plain"] + unfused_norm * counts["unfused_norm"] + flash * counts["flash"])


@cache
def _profiles() -> dict[str, ClusterProfile]:
    return {name: _profile(name, entry) for name, entry in _file()["clusters"].items()}


@cache
def _file() -> dict[str, Any]:
    loaded: dict[str, Any] = read_shipped("crosszone.calibrate", "clusters.yaml").value
    return loaded


def _profile(name: str, entry: Mapping[str, Any]) -> ClusterProfile:
    return ClusterProfile(
        name=name,
        gpus=entry["gpus"],
        all_reduce={kind: _tiers(rows) for kind, rows in entry["all_reduce"].items()},
        send=_tiers(entry["send"]),
        coefficients={key: float(one["value"]) for key, one in entry["coefficients"].items()},
        constants={key: float(one["value"]) for key, one in entry["constants"].items()},
    )


def _tiers(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], Tier]:
    return {
        (row["nodes"], row["gpus"]): Tier(
            row["gb_per_s"] * BYTES_PER_S_PER_GB_PER_S, row["latency_us"] * SECONDS_PER_US
        )
        for row in rows
    }


def _spread(ranks: int, stride: int, node_gpus: int) -> tuple[int, int]:
    local = max(1, min(ranks, node_gpus // stride))
    return -(-ranks // local), local
