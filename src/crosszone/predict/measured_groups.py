"""Which groups of a strategy exchange over layouts that the profile in use has not timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crosszone.cost.measured_links import RING_OPS, Group
from crosszone.cost.record import plain
from crosszone.cost.tiers import FREE
from crosszone.errors import Notice

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor


def find_unmeasured(p: Predictor) -> list[Notice]:
    """A note of the groups whose layout no timed collective has: their links are the catalogue's. [C15]"""
    links = p.profiles.links
    if links is None:
        return []
    w, t, gpu = p.batch.work, p.step.times, p.batch.gpu
    ring = RING_OPS["all_reduce"]
    groups = [
        ("tensor", ring, Group(w.tp, 1.0, gpu)),
        ("context", RING_OPS["all_gather"], Group(w.cp, w.tp, gpu)),
        ("data", ring, Group(t.group.zone, w.dp_stride, gpu)),
        ("expert", ("all_to_all",), Group(w.ep, w.expert_tp, gpu)),
    ]
    if p.strategy.pp > 1 and not p.site.crosses:
        apart = np.where(p.batch.links.boundary_fast > 0, 1.0, gpu.node_gpus)
        groups.append(("pipeline", ("send_recv",), Group(2.0, apart, gpu)))
    missing = []
    for name, ops, group in groups:
        known, _ = links.tier(ops, group, 1.0, FREE)
        if not np.all(known | (np.asarray(plain(group.ranks)) <= 1)):
            nodes, local = (np.max(x) for x in group.layout)
            missing.append(f"{name} ({nodes:g} x {local:g})")
    if not missing:
        return []
    params = {"profile": p.profiles.own, "groups": ", ".join(missing)}
    return [Notice(code="collectives_unmeasured", level="note", params=params)]
