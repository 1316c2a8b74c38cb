"""Traffic: bytes, messages, busy and exposed time of every kind of communication on every link, in one step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from crosszone.cost.collectives import CollectiveCost, TierBytes
from crosszone.cost.layer import CONTEXT_BACKWARD
from crosszone.cost.record import is_recording, named, plain
from crosszone.predict.batch import find_largest, get_cell, get_scalar, select_row
from crosszone.predict.breakdown import find_slowest_stage
from crosszone.predict.local_update import build_local_update_traffic
from crosszone.predict.placed_strategy import BETWEEN_ZONES, FAST, HOST, NETWORK
from crosszone.predict.prediction import Kind, Traffic

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor

TIERS = (FAST, HOST, NETWORK)  # Kinds of links inside a zone, as in `TierBytes`
Egress = dict[tuple[int, int], Any]  # Bytes a step from zone to zone, by their places in the cluster


def build_traffic(p: Predictor, breakdown: dict[str, float]) -> tuple[tuple[Traffic, ...], Egress]:
    """Every kind of communication on every link, and bytes a step from zone to zone."""
    s = p.strategy
    rows: list[Traffic] = []
    egress: Egress = defaultdict(float)
    if s.tp > 1:
        rows += _count_tensor(p, breakdown["tensor"])
    if s.cp > 1:
        rows += _count_context(p, breakdown["context"])
    if s.ep > 1:
        rows += _count_expert(p, breakdown["expert"])
    if s.pp > 1:
        rows += _count_pipeline(p, breakdown["pipeline"], egress)
    if (s.dp or 1) * s.cp > 1 or s.ep > 1:  # experts may have copies among the tensor-parallel ranks
        rows += _count_replicas(p, breakdown, egress)
    if s.local_update:
        rows += build_local_update_traffic(p, egress)
    return tuple(_name_figures(at, row) for at, row in enumerate(rows)) if is_recording() else tuple(rows), dict(egress)


FIELDS = ("bytes_per_step", "messages", "busy_s", "exposed_s")  # Figures of a row


def get_tier(link: str) -> str:
    """The tier a link belongs to."""
    return link if link in (FAST, HOST, NETWORK) else BETWEEN_ZONES


def _name_figures(at: int, row: Traffic) -> Traffic:
    """The row with a name for each of its figures."""
    figures = {name: named(f"communication[{at}].{name}", getattr(row, name)) for name in FIELDS}
    return Traffic(kind=row.kind, link=row.link, **figures)


def _group_by_tier(p: Predictor, figures: TierBytes, stage: int) -> dict[str, Any]:
    """Figures of a stage by kind of link."""
    return {link: get_cell(figure, p.row, stage) for link, figure in zip(TIERS, figures, strict=False)}


def _build_rows(
    kind: Kind, sizes: dict[str, Any], least_s: dict[str, Any], busy_s: Any, messages: Any, exposed_s: Any
) -> list[Traffic]:
    """A row for each kind of link that carries some of an exchange. [C14]

    All links of a ring work at the pace of the slowest, which is busy, and exposed, for as long as the exchange takes;
    the others for as long as their bytes need (`least_s`).
    """
    used = [link for link, size in sizes.items() if size > 0]
    slowest = max(used, key=lambda link: least_s[link], default=None)
    return [
        Traffic(
            kind=kind,
            link=link,
            bytes_per_step=sizes[link],
            messages=messages,
            busy_s=busy_s if link == slowest else np.minimum(busy_s, least_s[link]),
            exposed_s=exposed_s if link == slowest else 0.0,
        )
        for link in used
    ]


def _count_tensor(p: Predictor, exposed: float) -> list[Traffic]:
    """Two collectives of a layer forward (one with a parallel residual) and two backward, again if recomputed.

    A block of a hybrid has one of each. One more forward on the first stage (embedding) and one backward on the last
    (head). [X1]
    """
    t, w, m = p.step.times, p.batch.work, p.batch.model
    model = p.case.model
    back = 2 if model.pattern is None else 1
    forward = 1 if model.parallel_residual or model.pattern is not None else 2
    count = named("calls_of_layer", forward * (1 + _get_recompute_factor(p)) + back)
    stage = find_slowest_stage(p)
    layers, first, last = (get_cell(x, p.row, stage) for x in (t.cost.stages.layers, t.layers.first, t.layers.last))
    calls = named("micro_batches_of_replica", p.row_micro_batches) * (count * layers + first + last)
    all_calls = w.tp * w.cp * _count_micro_batches(p) * (_count_all_layers(p, m.layers) * count + 2)
    return _build_ring_rows(p, "tensor", t.layer.tensor, stage, calls, all_calls, calls, exposed)


def _count_all_layers(p: Predictor, layers: Any) -> Any:
    """Layers of a kind with those of multi-token prediction, which in a hybrid are two blocks each."""
    model = p.case.model
    return layers + model.mtp_layers * (1 if model.pattern is None else 2) if model.mtp_layers else layers


def _count_context(p: Predictor, exposed: float) -> list[Traffic]:
    """Keys and values of every layer round the ring, their gradients back, and once more where recomputed. [X4]"""
    w, cost = p.batch.work, p.step.times.layer.context
    stage = find_slowest_stage(p)
    passes = 1.0 + CONTEXT_BACKWARD + _get_recompute_factor(p)
    layers = get_cell(p.step.times.cost.stages.layers, p.row, stage)
    calls = passes * named("micro_batches_of_replica", p.row_micro_batches) * layers
    all_calls = passes * _count_all_layers(p, p.batch.model.layers) * w.tp * w.cp * _count_micro_batches(p)
    return _build_ring_rows(p, "context", cost, stage, calls, all_calls, calls * get_scalar(cost.messages), exposed)


def _build_ring_rows(
    p: Predictor,
    kind: Kind,
    cost: CollectiveCost,
    stage: int,
    calls: Any,
    all_calls: Any,
    messages: Any,
    exposed_s: Any,
) -> list[Traffic]:
    """Rows of an exchange that one rank of a stage makes `calls` times a step, and all ranks together `all_calls`."""
    sizes = _group_by_tier(p, cost.bytes, stage)
    least_s = _group_by_tier(p, cost.least_s(p.step.times.layer.tier_rates), stage)
    return _build_rows(
        kind,
        {link: all_calls * size for link, size in sizes.items()},
        {link: calls * seconds for link, seconds in least_s.items()},
        calls * get_cell(cost.seconds, p.row, stage),
        messages,
        exposed_s,
    )


def _count_expert(p: Predictor, exposed: float) -> list[Traffic]:
    """Tokens to their experts and back, forward, backward and where recomputed: inside the domain, and beyond. [X3]"""
    w, m, layer = p.batch.work, p.batch.model, p.step.times.layer
    if p.case.model.moe is None:
        return []
    stage = find_slowest_stage(p)
    passes = 2.0 + _get_recompute_factor(p)
    times = passes * named("micro_batches_of_replica", p.row_micro_batches)
    moe_layers = m.moe_layers + p.case.model.mtp_layers if p.case.model.mtp_layers else m.moe_layers
    every = passes * moe_layers * w.tp * w.cp * _count_micro_batches(p)
    cost, layers = layer.all_to_all, p.step.times.cost.stages.moe
    seconds = get_cell(cost.seconds, p.row, stage)
    return [
        Traffic(
            kind="expert",
            link=link,
            bytes_per_step=every * get_cell(size, p.row, stage),
            messages=times * get_scalar(cost.messages) * find_largest(layers, p.row),
            busy_s=times
            * find_largest(layers * took, p.row),  # of the stage that sends longest: not all may have experts
            exposed_s=exposed * get_cell(took, p.row, stage) / seconds,
        )
        for link, size, took in zip(TIERS, cost.bytes, cost.least_s(layer.expert_rates), strict=False)
        if get_cell(size, p.row, stage) > 0
    ]


def _get_recompute_factor(p: Predictor) -> float:
    """Forward exchanges of a layer that full recomputation does once more."""
    return 1.0 if p.strategy.recompute == "full" else 0.0


@dataclass
class _LinkTotals:
    """What adds up on one link."""

    size: Any = 0.0
    messages: Any = 0.0
    busy_s: Any = 0.0
    late_s: Any = field(default=0.0)
    """Busy time and latency of the slowest replica: what the exposed time is shared out by."""


def _count_pipeline(p: Predictor, exposed: float, egress: Egress) -> list[Traffic]:
    """Activations over every boundary and their gradients back. [X8]"""
    s, placed, t = p.strategy, p.placed, p.step.times
    zones, names = placed.zone[:, :, 0, 0].tolist(), [zone.name for zone in placed.cluster.zones]
    w = p.batch.work
    totals: dict[str, _LinkTotals] = defaultdict(_LinkTotals)
    for stage in range(s.pp if placed.wraps else s.pp - 1):
        rounds = s.interleave - (stage == s.pp - 1)
        busiest: dict[str, tuple[Any, Any]] = {}
        for kind, (replica, number) in enumerate(zip(*placed.replica_classes, strict=True)):
            m = int(placed.class_micro_batches[kind])
            per_link: dict[str, tuple[Any, Any]] = {}
            row = p.row - p.slowest + kind
            share = rounds / s.interleave
            all_messages = share * m * w.tp * w.cp * int(number)
            sizes = (
                all_messages * get_cell(t.send_bytes, row, stage),
                all_messages * get_cell(t.send_back_bytes, row, stage),
            )
            times = share * get_cell(t.send, row, stage), share * get_cell(t.send_back, row, stage)
            latency_s = rounds * get_cell(t.latency, row, stage)
            a, b = zones[stage][replica], zones[(stage + 1) % s.pp][replica]
            if a != b:
                links = f"{names[a]} > {names[b]}", f"{names[b]} > {names[a]}"
                egress[a, b] += sizes[0]
                egress[b, a] += sizes[1]
            else:
                links = (placed.boundary_link(stage, int(replica)),) * 2
            for link, time, size in zip(links, times, sizes, strict=True):
                totals[link].size += size
                busy, messages = per_link.get(link, (0.0, 0.0))
                per_link[link] = busy + m * time, messages + m * rounds
                if kind == p.slowest:
                    totals[link].late_s += m * (time + latency_s)
            busiest |= {link: max(busiest.get(link, seconds), seconds) for link, seconds in per_link.items()}
        for link, (busy, messages) in busiest.items():  # replicas send at the same time: those that take longest count
            totals[link].busy_s += busy
            totals[link].messages += messages
    total = named("late_all", sum(of_link.late_s for of_link in totals.values())) or 1.0
    return [
        Traffic(
            kind="pipeline",
            link=link,
            bytes_per_step=of_link.size,
            messages=of_link.messages,
            busy_s=of_link.busy_s,
            exposed_s=exposed * named("late_here", of_link.late_s, link=link) / total,
        )
        for link, of_link in totals.items()
    ]


def _count_replicas(p: Predictor, breakdown: dict[str, float], egress: Egress) -> list[Traffic]:
    """Gradients reduced and weights gathered among replicas, inside zones and between them. [X7]"""
    s, t, row = p.strategy, p.step.times, p.row
    sent = t.sent
    of_replica, of_all = named("micro_batches_of_replica", p.row_micro_batches), _count_micro_batches(p)
    gathers, mean = (of_replica, of_all / (s.dp or 1)) if s.pp == 1 else (1, 1.0)
    zero = s.zero or 0
    several = bool(np.all(plain(sent.several)))
    scatters = zero >= 2 and (p.placed.shard_ranks > 1 or s.dp == 1)
    scattered = gathers if scatters else 1
    gradients = _Exchange(
        inside_s=scattered * _subtract_part(sent.reduce, 0.0 if several else sent.wan_reduce, row)
        + _subtract_part(sent.outer, sent.wan_reduce if several else 0.0, row),
        inside=[
            *((mean if scatters else 1.0, cost.bytes) for cost in sent.reduced),
            *((1.0, cost.bytes) for cost in sent.outer_reduced),
        ],
        messages=scattered,
        wan_s=find_largest(sent.wan_reduce, row),
        wan_bytes=find_largest(sent.zone_reduce_bytes, row),
        wan_messages=1 if several else scattered,
        each_messages=find_largest(sent.wan_reduce_messages, row),
    )
    gathered = 2 * gathers if zero >= 3 else 1
    weights = _Exchange(
        inside_s=gathered * _subtract_part(sent.gather, sent.wan_gather, row),
        inside=[(2.0 * mean if zero >= 3 else 1.0, cost.bytes) for cost in sent.gathered],
        messages=gathered,
        wan_s=find_largest(sent.wan_gather, row),
        wan_bytes=find_largest(sent.zone_gather_bytes, row),
        wan_messages=gathered,
        each_messages=find_largest(sent.wan_gather_messages, row),
    )
    kinds: dict[Kind, _Exchange] = {"gradients": gradients, "weights": weights}
    every = {
        "gradients": scattered * find_largest(sent.reduce, row),
        "weights": gathered * find_largest(sent.gather, row),
    }
    rows = []
    for kind, exchange in kinds.items():  # what goes with every micro-batch shares the time it is exposed for
        part = every[kind] / (sum(every.values()) or 1.0) if zero >= 3 else float(kind == "gradients")
        rows += exchange.build_rows(p, kind, breakdown[kind] + breakdown["sharding"] * part, egress)
    return rows


@dataclass(frozen=True, kw_only=True)
class _Exchange:
    """A kind of exchange among replicas in one step: inside the zones in all, and once between zones."""

    inside_s: Any
    inside: list[tuple[Any, TierBytes]]
    """How often, and bytes of one GPU of each stage by kind of link: the mean of all replicas."""
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

    def build_rows(self, p: Predictor, kind: Kind, exposed: float, egress: Egress) -> list[Traffic]:
        """Its rows: inside the zones, and over every edge of the ring of zones."""
        placed, w = p.placed, p.batch.work
        across = self.wan_messages * self.wan_s
        share = across / self.seconds if self.seconds else 0.0
        stages = w.tp * w.cp * w.dp
        sizes, least, rates = {}, {}, p.step.times.layer.tier_rates
        for at, link in enumerate(TIERS):
            bytes_inside = sum(often * select_row(sent[at], p.row) for often, sent in self.inside)
            sizes[link] = stages * get_scalar(bytes_inside.sum())
            least[link] = find_largest(bytes_inside / select_row(rates[at], p.row), 0) if sizes[link] > 0 else 0.0
        # where a flat ring takes all its time between zones, its links inside are busy for their bytes all the same
        busy = np.maximum(self.inside_s, max(least.values()))
        rows = _build_rows(kind, sizes, least, busy, self.messages, exposed * (1.0 - share))
        if across > 0:
            names = [zone.name for zone in placed.cluster.zones]
            size = self.wan_bytes * self.wan_messages
            edges = _list_edges(p)
            for a, b in edges:
                egress[a, b] += size
                rows.append(
                    Traffic(
                        kind=kind,
                        link=f"{names[a]} > {names[b]}",
                        bytes_per_step=size,
                        messages=self.wan_messages * self.each_messages,
                        busy_s=across,
                        exposed_s=exposed * share / len(edges),
                    )
                )
        return rows


def _list_edges(p: Predictor) -> list[tuple[int, int]]:
    """Directions between zones that an exchange goes: round the ring, or along a chain of zones and back (a tree)."""
    s, ring = p.strategy, p.placed.ring
    sharded = (s.zero or 0) > 0 and p.placed.shard_ranks > 1
    if s.communication.algorithm == "tree" and not sharded:
        return [edge for a, b in pairwise(ring) for edge in ((a, b), (b, a))]
    return list(zip(ring, (*ring[1:], ring[0]), strict=True))


def _subtract_part(values: Any, part: Any, row: int) -> Any:
    """The largest entry of a row without a part of it."""
    return find_largest(select_row(values, row) - select_row(part, row), 0)


def _count_micro_batches(p: Predictor) -> Any:
    """Micro-batches of all replicas in a step."""
    return named("all_micro_batches", int(p.placed.micro_batches.sum()))
