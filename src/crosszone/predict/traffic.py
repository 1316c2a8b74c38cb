"""Traffic: bytes, messages, busy and exposed time of every kind of communication on every link, in one step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from crosszone.cost.layer import CONTEXT_BACKWARD
from crosszone.cost.record import is_recording, named, plain
from crosszone.inputs.cluster import NodeGroup
from crosszone.predict.breakdown import pace_setter
from crosszone.predict.cells import cell, row_of, scalar, top
from crosszone.predict.local_update import local_update_traffic
from crosszone.predict.prediction import Kind, Traffic

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor

FAST, NETWORK, BETWEEN_ZONES = "fast link", "network", "between zones"
Egress = dict[tuple[int, int], Any]
"""Bytes a step from zone to zone, by their places in the cluster."""


def traffic_of(p: Predictor, breakdown: dict[str, float]) -> tuple[tuple[Traffic, ...], Egress]:
    """Every kind of communication on every link, and bytes a step from zone to zone."""
    s = p.strategy
    found: list[Traffic] = []
    egress: Egress = defaultdict(float)
    if s.tp > 1:
        found.append(_tensor(p, breakdown["tensor"]))
    if s.cp > 1:
        found.append(_context(p, breakdown["context"]))
    if s.ep > 1:
        found += _expert(p, breakdown["expert"])
    if s.pp > 1:
        found += _pipeline(p, breakdown["pipeline"], egress)
    if (s.dp or 1) * s.cp > 1 or s.ep > 1:  # experts may have copies among the tensor-parallel ranks
        found += _replicas(p, breakdown, egress)
    if s.local_update:
        found += local_update_traffic(p, egress)
    return tuple(_named_row(at, row) for at, row in enumerate(found)) if is_recording() else tuple(found), dict(egress)


FIELDS = ("bytes_per_step", "messages", "busy_s", "exposed_s")
"""Figures of a row."""


def tier_of(link: str) -> str:
    """The tier a link belongs to."""
    return link if link in (FAST, NETWORK) else BETWEEN_ZONES


def _named_row(at: int, row: Traffic) -> Traffic:
    """The row with a name for each of its figures."""
    figures = {name: named(f"communication[{at}].{name}", getattr(row, name)) for name in FIELDS}
    return Traffic(kind=row.kind, link=row.link, **figures)


def _tensor(p: Predictor, exposed: float) -> Traffic:
    """Two collectives of a layer forward (one with a parallel residual) and two backward, again if recomputed.

    One more forward on the first stage (embedding) and one backward on the last (head). [X1]
    """
    s, t, w, m = p.strategy, p.step.times, p.batch.work, p.batch.model
    passes = (1 if p.case.model.parallel_residual else 2) * (2 if s.recompute == "full" else 1) + 2
    count = named("calls_of_layer", passes)
    size = 2.0 * (w.tp - 1) / w.tp * w.word * t.layer.tokens * m.hidden
    stage = pace_setter(p)
    layers, first, last = (cell(x, p.row, stage) for x in (t.layers.layers, t.layers.first, t.layers.last))
    each = named("micro_batches_of_replica", p.row_micro_batches) * (count * layers + first + last)
    return Traffic(
        kind="tensor",
        link=_inside(p, s.tp),
        bytes_per_step=w.tp * w.cp * _micro_batches(p) * (m.layers * count + 2) * size,
        messages=each,
        busy_s=each * cell(t.layer.tp_s, p.row, stage),
        exposed_s=exposed,
    )


def _context(p: Predictor, exposed: float) -> Traffic:
    """Keys and values of every layer round the ring, their gradients back, and once more where recomputed. [X4]"""
    s, w, layer = p.strategy, p.batch.work, p.step.times.layer
    passes = 1.0 + CONTEXT_BACKWARD + _repeated(p)
    layers = cell(p.step.times.layers.layers, p.row, pace_setter(p))
    calls = passes * named("micro_batches_of_replica", p.row_micro_batches) * layers
    return Traffic(
        kind="context",
        link=_inside(p, s.tp * s.cp),
        bytes_per_step=scalar(passes * p.batch.model.layers * layer.context_bytes * w.tp * w.cp * _micro_batches(p)),
        messages=calls * (w.cp - 1),
        busy_s=calls * top(layer.context_s, p.row),
        exposed_s=exposed,
    )


def _expert(p: Predictor, exposed: float) -> list[Traffic]:
    """Tokens to their experts and back, forward, backward and where recomputed: inside the domain, and beyond. [X3]"""
    w, m, layer = p.batch.work, p.batch.model, p.step.times.layer
    if p.case.model.moe is None:
        return []
    passes = 2.0 + _repeated(p)
    layers = cell(p.step.times.layers.moe, p.row, pace_setter(p))
    calls = passes * named("micro_batches_of_replica", p.row_micro_batches) * layers
    sent = layer.all_to_all
    total = calls * top(sent.seconds, p.row)
    return [
        Traffic(
            kind="expert",
            link=link,
            bytes_per_step=scalar(passes * m.moe_layers * size * w.tp * w.cp * _micro_batches(p)),
            messages=2.0 * calls,
            busy_s=calls * top(seconds, p.row),
            exposed_s=exposed * calls * top(seconds, p.row) / total if total else 0.0,
        )
        for link, size, seconds in ((FAST, sent.near_bytes, sent.near_s), (NETWORK, sent.far_bytes, sent.far_s))
        if np.max(plain(size)) > 0
    ]


def _repeated(p: Predictor) -> float:
    """Forward exchanges of a layer that full recomputation does once more."""
    return 1.0 if p.strategy.recompute == "full" else 0.0


@dataclass
class _Way:
    """What adds up on one link."""

    size: Any = 0.0
    messages: Any = 0.0
    busy_s: Any = 0.0
    late_s: Any = field(default=0.0)
    """Busy time and latency of the slowest replica: what the exposed time is shared out by."""


def _pipeline(p: Predictor, exposed: float, egress: Egress) -> list[Traffic]:
    """Activations over every boundary and their gradients back. [X8]"""
    s, site, t = p.strategy, p.site, p.step.times
    zones, names = site.zone[:, :, 0, 0].tolist(), [zone.name for zone in site.cluster.zones]
    w = p.batch.work
    ways: dict[str, _Way] = defaultdict(_Way)
    for stage in range(s.pp if site.wraps else s.pp - 1):
        rounds = s.interleave - (stage == s.pp - 1)
        busiest: dict[str, tuple[Any, Any]] = {}
        for kind, (replica, number) in enumerate(zip(*site.kinds, strict=True)):
            m = int(site.kind_micro_batches[kind])
            own: dict[str, tuple[Any, Any]] = {}
            row = p.row - p.slowest + kind
            some = rounds / s.interleave
            size = some * m * cell(t.send_bytes, row, stage) * w.tp * w.cp * int(number)
            times = some * cell(t.send, row, stage), some * cell(t.send_back, row, stage)
            late = rounds * cell(t.latency, row, stage)
            a, b = zones[stage][replica], zones[(stage + 1) % s.pp][replica]
            if a != b:
                links = f"{names[a]} > {names[b]}", f"{names[b]} > {names[a]}"
                egress[a, b] += size
                egress[b, a] += size
            else:
                links = (FAST, FAST) if site.boundary_fast(stage, replica) else (NETWORK, NETWORK)
            for link, time in zip(links, times, strict=True):
                ways[link].size += size
                busy, messages = own.get(link, (0.0, 0.0))
                own[link] = busy + m * time, messages + m * rounds
                if kind == p.slowest:
                    ways[link].late_s += m * (time + late)
            busiest |= {link: max(busiest.get(link, found), found, key=_plainly) for link, found in own.items()}
        for link, (busy, messages) in busiest.items():  # replicas send at the same time: those that take longest count
            ways[link].busy_s += busy
            ways[link].messages += messages
    total = named("late_all", sum(way.late_s for way in ways.values())) or 1.0
    return [
        Traffic(
            kind="pipeline",
            link=link,
            bytes_per_step=way.size,
            messages=way.messages,
            busy_s=way.busy_s,
            exposed_s=exposed * named("late_here", way.late_s, link=link) / total,
        )
        for link, way in ways.items()
    ]


def _plainly(pair: tuple[Any, Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def _replicas(p: Predictor, breakdown: dict[str, float], egress: Egress) -> list[Traffic]:
    """Gradients reduced and weights gathered among replicas, inside zones and between them. [X7]"""
    s, sent, row = p.strategy, p.step.times.sent, p.row
    own, every_one = named("micro_batches_of_replica", p.row_micro_batches), _micro_batches(p)
    each, mean = (own, every_one / (s.dp or 1)) if s.pp == 1 else (1, 1.0)
    zero = s.zero or 0
    several = bool(np.all(plain(sent.several)))
    scatters = zero >= 2 and (p.site.shard_ranks > 1 or s.dp == 1)
    scattered = each if scatters else 1
    gradients = _Exchange(
        inside_s=scattered * _less(sent.reduce, 0.0 if several else sent.wan_reduce, row)
        + _less(sent.outer, sent.wan_reduce if several else 0.0, row),
        inside_bytes=(mean if scatters else 1.0) * _sum(sent.reduce_bytes, row) + _sum(sent.outer_bytes, row),
        bus_s=scattered * _bus_s(p, sent.reduce_bytes),
        messages=scattered,
        wan_s=top(sent.wan_reduce, row),
        wan_bytes=top(sent.zone_reduce_bytes, row),
        wan_messages=1 if several else scattered,
        each_messages=top(sent.wan_reduce_messages, row),
    )
    gathered = 2 * each if zero >= 3 else 1
    weights = _Exchange(
        inside_s=gathered * _less(sent.gather, sent.wan_gather, row),
        inside_bytes=(2.0 * mean if zero >= 3 else 1.0) * _sum(sent.gather_bytes, row),
        bus_s=gathered * _bus_s(p, sent.gather_bytes),
        messages=gathered,
        wan_s=top(sent.wan_gather, row),
        wan_bytes=top(sent.zone_gather_bytes, row),
        wan_messages=gathered,
        each_messages=top(sent.wan_gather_messages, row),
    )
    kinds: dict[Kind, _Exchange] = {"gradients": gradients, "weights": weights}
    every = {"gradients": scattered * top(sent.reduce, row), "weights": gathered * top(sent.gather, row)}
    found = []
    for kind, one in kinds.items():  # what goes with every micro-batch shares the time it is exposed for
        part = every[kind] / (sum(every.values()) or 1.0) if zero >= 3 else float(kind == "gradients")
        found += one.traffic(p, kind, breakdown[kind] + breakdown["sharding"] * part, egress)
    return found


@dataclass(frozen=True, kw_only=True)
class _Exchange:
    """A kind of exchange among replicas in one step: inside the zones in all, and once between zones."""

    inside_s: Any
    inside_bytes: Any
    """Of one GPU of each stage, added up; the mean of all replicas."""
    bus_s: Any
    """Time of those bytes over the link inside, also where it is part of the time between zones (a flat ring)."""
    messages: Any
    wan_s: Any
    wan_bytes: Any
    """Of one zone."""
    wan_messages: Any
    """How often a step."""
    each_messages: Any
    """Messages of one rank each time, one after the other."""

    @property
    def seconds(self) -> Any:
        """All of a step."""
        return self.inside_s + self.wan_messages * self.wan_s

    def traffic(self, p: Predictor, kind: Kind, exposed: float, egress: Egress) -> list[Traffic]:
        """Its rows: inside the zones, and over every edge of the ring of zones."""
        site, w = p.site, p.batch.work
        across = self.wan_messages * self.wan_s
        share = across / self.seconds if self.seconds else 0.0
        found = []
        if self.inside_bytes > 0:
            found.append(
                Traffic(
                    kind=kind,
                    link=_inside(p, int(float(top(p.step.times.group.zone, p.row))) * p.placement_stride),
                    bytes_per_step=self.inside_bytes * w.tp * w.cp * w.dp,
                    messages=self.messages,
                    busy_s=max(self.inside_s, self.bus_s),
                    exposed_s=exposed * (1.0 - share),
                )
            )
        if across > 0:
            names = [zone.name for zone in site.cluster.zones]
            size = self.wan_bytes * self.wan_messages
            edges = _edges(p)
            for a, b in edges:
                egress[a, b] += size
                found.append(
                    Traffic(
                        kind=kind,
                        link=f"{names[a]} > {names[b]}",
                        bytes_per_step=size,
                        messages=self.wan_messages * self.each_messages,
                        busy_s=across,
                        exposed_s=exposed * share / len(edges),
                    )
                )
        return found


def _edges(p: Predictor) -> list[tuple[int, int]]:
    """Directions between zones that an exchange goes: round the ring, or along a chain of zones and back (a tree)."""
    s, ring = p.strategy, p.site.ring
    sharded = (s.zero or 0) > 0 and p.site.shard_ranks > 1
    if s.communication.algorithm == "tree" and not sharded:
        return [way for a, b in pairwise(ring) for way in ((a, b), (b, a))]
    return list(zip(ring, (*ring[1:], ring[0]), strict=True))


def _bus_s(p: Predictor, sizes: Any) -> Any:
    """Seconds of some bytes of each GPU over the bus of its zone, the slowest stage's."""
    return top(row_of(sizes, p.row) / row_of(p.step.times.group.zone_bus, p.row), 0)


def _sum(values: Any, row: int) -> Any:
    return scalar(row_of(values, row).sum())


def _less(values: Any, part: Any, row: int) -> Any:
    """The largest entry of a row without a part of it."""
    return top(row_of(values, row) - row_of(part, row), 0)


def _groups(p: Predictor) -> list[NodeGroup]:
    return [p.site.groups[g] for g in p.site.groups_in_use]


def _inside(p: Predictor, ranks: int) -> str:
    """The link of a group of so many ranks in a row."""
    return FAST if ranks <= min(g.domain for g in _groups(p)) else NETWORK


def _micro_batches(p: Predictor) -> Any:
    """Micro-batches of all replicas in a step."""
    return named("all_micro_batches", int(p.site.micro_batches.sum()))
