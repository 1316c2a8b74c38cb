"""Flows: TCP connections that plans open between zones, so that windows do not hold a wide line up."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from crosszone.cost.wan import EXPECTED, zone_paths
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.strategy import Communication
from crosszone.predict.site import transport_of

TOGETHER = 8
"""Ranks that fill a line together: a node's."""
MOST = 64
"""Sockets of a connection that NCCL allows."""


def with_flows(asked: Communication, cluster: Cluster, links: Mapping[tuple[int, int], ZoneLink]) -> Communication:
    """The options with as many connections a channel as fill every line between zones, unless a number is given. [W7]

    Eight ranks (or a zone's, where it has fewer) with their channels carry flows x one window a round trip each; the
    smallest power of two that reaches the rate of the widest line, at most 64.
    """
    if "flows" in asked.model_fields_set or not links:
        return asked
    one_flow = transport_of(asked.replace(flows=1), cluster)
    if one_flow.library == "gloo":  # has one connection between two ranks
        return asked
    paths = zone_paths(cluster, one_flow, links)
    ranks = min(TOGETHER, *(zone.gpus for zone in cluster.zones))
    one, wide = paths.group_bytes_per_s[EXPECTED], paths.limits.pair
    wide = np.minimum(wide, np.minimum(paths.limits.egress[:, None], paths.limits.ingress[None, :]))
    needed = max(float(wide[a, b] / (ranks * one[a, b])) for a, b in _ways(links))
    if not needed > 1:
        return asked
    return asked.replace(flows=min(MOST, 2 ** math.ceil(math.log2(min(needed, MOST)))))


def _ways(links: Mapping[tuple[int, int], ZoneLink]) -> list[tuple[int, int]]:
    return [*links, *((b, a) for a, b in links)]
