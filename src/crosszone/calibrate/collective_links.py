"""What fitted collectives say of a scenario's links: figures to type in their place, with their names and units.

    told = link_figures(fits)
    told.between[("a", "b")]                 # ZoneFigures(bytes_per_s, latency_s, ...)
    told.network["a"], told.inside["a"]      # of a zone; "" where the samples name no zone

Between zones messages are looked at first, inside a zone rings: the op that training sends over such a link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from crosszone.calibrate.collective_fit import LinkFit
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, figure

RING_OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send_recv")
"""Ops that show the links inside a zone, the most telling first."""
ZONE_OPS = ("send_recv", "all_reduce", "reduce_scatter", "all_gather", "all_to_all")
"""Ops that show the way between zones, the most telling first."""
TOGETHER_MORE = 1.25
"""Rate of all groups over that of one from which one group counts as held back by its connections."""
DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class ZoneFigures:
    """One way from a zone to another."""

    latency_s: float | None
    """Of one message, library included; None: the sizes do not show it."""
    bytes_per_s: float | None
    """All groups together; None: the sizes do not show it."""
    group_bytes_per_s: float | None
    """One group alone."""
    held_back: bool
    """One group alone reaches far less than all together."""
    backend: str
    op: str


@dataclass(frozen=True, kw_only=True)
class RingFigures:
    """Rings of a zone, inside a node or over nodes."""

    bytes_per_s: float
    """Inside a node: of one GPU. Over nodes: of one node, all its groups together."""
    gpu_bytes_per_s: float
    """Of one GPU that takes part."""
    latency_s: float | None
    """Of one step; None: the sizes do not show it."""
    backend: str
    op: str
    nodes: int
    gpus_per_node: int
    groups: int


@dataclass(frozen=True, kw_only=True)
class LinkFigures:
    """All that fits say of links."""

    between: dict[tuple[str, str], ZoneFigures] = field(default_factory=dict)
    network: dict[str, RingFigures] = field(default_factory=dict)
    inside: dict[str, RingFigures] = field(default_factory=dict)


def link_figures(fits: Iterable[LinkFit]) -> LinkFigures:
    """The figures of every link that the fits show. [K12]"""
    fits = list(fits)
    ways = dict.fromkeys(fit.where.scope for fit in fits if fit.where.scope not in ("node", "network"))
    between = {}
    for scope in ways:
        first, second = scope.split(">")
        between[first, second] = _way([fit for fit in fits if fit.where.scope == scope])
        turned = f"{second}>{first}"
        if turned not in ways:  # collectives go both ways at once
            both = [fit for fit in fits if fit.where.scope == scope and fit.where.op != "send_recv"]
            if both:
                between[second, first] = _way(both)
    return LinkFigures(between=between, network=_rings(fits, "network"), inside=_rings(fits, "node"))


def rtt_ms(there: ZoneFigures, back: ZoneFigures | None) -> float | None:
    """Round-trip time that gives these latencies in the model: both ways less what the hosts add. [K12]"""
    other = there if back is None or back.latency_s is None else back
    first = other if there.latency_s is None else there
    if first.latency_s is None or other.latency_s is None:
        return None
    hosts_s = 2 * figure("tcp", "latency_us") * 1e-6
    return rounded(max(0.0, first.latency_s + other.latency_s - hosts_s) * 1e3)


def gbps(bytes_per_s: float, fabric: str = "tcp") -> float:
    """Gbit/s of a link whose payload rate is this. [K12]"""
    return rounded(bytes_per_s / BYTES_PER_S_PER_GBPS / figure(fabric, "efficiency"))


def flow_gbps(way: ZoneFigures) -> float | None:
    """Gbit/s of one connection, where one group alone shows it. [K12]"""
    if way.group_bytes_per_s is None:
        return None
    connections = figure("nccl_sockets", "channels") if way.backend == "nccl" else 1.0
    return gbps(way.group_bytes_per_s / connections)


def rounded(value: float) -> float:
    """Four digits: more were not measured."""
    return float(f"{value:.{DIGITS}g}")


def _way(fits: Sequence[LinkFit]) -> ZoneFigures:
    op = next(op for op in ZONE_OPS if any(fit.where.op == op for fit in fits))
    same = [fit for fit in fits if fit.where.op == op]
    alone = [fit for fit in same if fit.where.groups == 1]
    rates = [fit.where.groups * fit.bytes_per_s for fit in same if fit.bytes_per_s is not None and fit.rate_known]
    single = [fit.bytes_per_s for fit in alone if fit.bytes_per_s is not None and fit.rate_known]
    shown = [fit.latency_s for fit in alone or same if fit.latency_known]
    one, all_of_them = max(single, default=None), max(rates, default=None)
    return ZoneFigures(
        latency_s=min(shown, default=None),
        bytes_per_s=all_of_them,
        group_bytes_per_s=one,
        held_back=one is not None and all_of_them is not None and all_of_them > TOGETHER_MORE * one,
        backend=same[0].where.backend,
        op=op,
    )


def _rings(fits: Sequence[LinkFit], scope: str) -> dict[str, RingFigures]:
    here = [fit for fit in fits if fit.where.scope == scope and fit.rate_known]
    found = {}
    for zone in dict.fromkeys(fit.where.zone for fit in here):
        ours = [fit for fit in here if fit.where.zone == zone]
        op = next(op for op in RING_OPS if any(fit.where.op == op for fit in ours))
        same = [fit for fit in ours if fit.where.op == op]
        best = max(same, key=_node_rate if scope == "network" else _widest)
        found[zone] = _ring(best, scope)
    return found


def _widest(fit: LinkFit) -> tuple[float, ...]:
    """Rings of most GPUs of a node, alone, over the largest sizes: nearest to what training sends."""
    return (fit.where.gpus_per_node, -fit.where.groups, fit.high_bytes)


def _node_rate(fit: LinkFit) -> float:
    """What all groups of a node reach together: groups of one kind lie side by side on the same nodes."""
    return (fit.bytes_per_s or 0.0) * fit.where.groups


def _ring(fit: LinkFit, scope: str) -> RingFigures:
    where, rate = fit.where, fit.bytes_per_s or 0.0
    node: Callable[[LinkFit], float] = _node_rate if scope == "network" else lambda one: one.bytes_per_s or 0.0
    return RingFigures(
        bytes_per_s=node(fit),
        gpu_bytes_per_s=rate / where.gpus_per_node if scope == "network" else rate,
        latency_s=fit.latency_s if fit.latency_known else None,
        backend=where.backend,
        op=where.op,
        nodes=where.nodes,
        gpus_per_node=where.gpus_per_node,
        groups=where.groups,
    )
