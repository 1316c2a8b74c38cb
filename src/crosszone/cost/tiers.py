"""Links as rates: a link's bytes/s in one direction and its latency, and the figures of `links.yaml`.

Every field may be an array, so that many groups are looked at in one call.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from crosszone.inputs.cluster import Cluster
from crosszone.inputs.shipped import read_shipped

Numbers: TypeAlias = float | npt.ArrayLike  # A number or an array of them
Floats: TypeAlias = npt.NDArray[np.float64]

BYTES_PER_S_PER_GBPS = 1e9 / 8
BYTES_PER_S_PER_GB_PER_S = 1e9


class Tier(NamedTuple):
    """A link: payload bytes/s in one direction, and seconds a message pays on top, library included."""

    bytes_per_s: Any
    latency_s: Any


FREE = Tier(np.inf, 0.0)  # A link that costs nothing: where there is none to cross


@cache
def read_link_figures() -> dict[str, Any]:
    """The figures of links.yaml with their origin and source."""
    loaded: dict[str, Any] = read_shipped("crosszone.cost", "links.yaml").value
    return loaded


def read_figure(*path: str) -> float:
    """One figure of links.yaml by its keys, such as "rdma", "latency_us"."""
    value: Any = read_link_figures()
    for key in path:
        value = value[key]
    return float(value["value"])


def zone_uplinks(cluster: Cluster) -> tuple[Floats, Floats]:
    """Bytes/s of payload each zone can send out and take in; inf: only the links between zones limit it. [C9]"""
    payload = read_figure("tcp", "efficiency") * BYTES_PER_S_PER_GBPS
    out = [np.inf if zone.uplink_gbps is None else zone.uplink_gbps * payload for zone in cluster.zones]
    into = [
        up if zone.downlink_gbps is None else zone.downlink_gbps * payload
        for zone, up in zip(cluster.zones, out, strict=True)
    ]
    return np.array(out), np.array(into)
