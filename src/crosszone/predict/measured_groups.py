"""Which groups of a strategy exchange over layouts that the profile in use has not timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crosszone.cost.measured_links import RING_OPS, Group, MeasuredLinks
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
    s, w, t = p.strategy, p.batch.work, p.step.times
    groups: dict[str, tuple[Any, Any]] = {
        "tensor": (w.tp, 1.0),
        "context": (w.cp, w.tp),
        "data": (t.group.zone, w.dp_stride),
        "expert": (t.group.experts if s.ep > 1 else 1.0, w.ep * w.expert_tp),
    }
    missing = [
        f"{name} ({_layout(ranks, stride, p)})"
        for name, (ranks, stride) in groups.items()
        if np.any(plain(ranks) > 1) and not _is_known(links, RING_OPS["all_reduce"], ranks, stride, p)
    ]
    fast = p.batch.links.boundary_fast
    inside = not p.site.crosses
    if s.pp > 1 and inside and not _is_known(links, ("send_recv",), 2.0, np.where(fast > 0, 1.0, _node_gpus(p)), p):
        missing.append("pipeline")
    if not missing:
        return []
    params = {"profile": p.profiles.own, "groups": ", ".join(missing)}
    return [Notice(code="collectives_unmeasured", level="note", params=params)]


def _is_known(links: MeasuredLinks, ops: tuple[str, ...], ranks: Any, stride: Any, p: Predictor) -> bool:
    known, _ = links.tier(ops, Group(ranks, stride, p.batch.gpu), 1.0, FREE)
    return bool(np.all(known | (np.asarray(plain(ranks)) <= 1)))


def _node_gpus(p: Predictor) -> Any:
    return p.batch.gpu.node_gpus


def _layout(ranks: Any, stride: Any, p: Predictor) -> str:
    """Nodes x GPUs of each, of the group that has most."""
    most, apart, gpus = (float(np.max(plain(x))) for x in (ranks, stride, _node_gpus(p)))
    local = min(max(gpus // apart, 1.0), most)
    return f"{-(-most // local):g} x {local:g}"
