"""Groups that cross zones: which of them use which link."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import numpy as np

from crosszone.inputs.value import Value
from crosszone.predict.site import Site

Axis = Literal["pp", "dp"]


class CrossingGroups(Value):
    """Groups of one axis that send over one link between zones."""

    link: str
    """From zone to zone."""
    axis: Axis
    """pp: pipelines with neighbouring stages in both zones; dp: replicas of a stage in both."""
    groups: int
    """How many: rank groups of this axis."""
    ranks: int
    """Ranks of each."""


def crossing_groups(site: Site) -> tuple[CrossingGroups, ...]:
    """Groups of every axis over every link between zones; tensor, context and expert groups never cross. [A8]"""
    s = site.strategy
    names = [zone.name for zone in site.cluster.zones]
    counts: dict[tuple[int, int, Axis], int] = defaultdict(int)
    zones = site.zone[:, :, 0, 0]
    after = np.roll(zones, -1, axis=0)
    stages = s.pp if site.wraps else s.pp - 1
    for replica in range(zones.shape[1]):
        pairs = {
            (int(a), int(b)) for a, b in zip(zones[:stages, replica], after[:stages, replica], strict=True) if a != b
        }
        for a, b in pairs | {(b, a) for a, b in pairs}:
            counts[a, b, "pp"] += s.tp * s.cp
    ring = site.ring
    edges = list(zip(ring, (*ring[1:], ring[0]), strict=True)) if ring else []
    for stage in zones:
        here = set(stage.tolist())
        for a, b in edges:
            if a in here and b in here and a != b:
                counts[a, b, "dp"] += s.tp * s.cp
    ranks = {"pp": s.pp, "dp": s.dp or 1}
    return tuple(
        CrossingGroups(link=f"{names[a]} > {names[b]}", axis=axis, groups=count, ranks=ranks[axis])
        for (a, b, axis), count in sorted(counts.items())
    )
