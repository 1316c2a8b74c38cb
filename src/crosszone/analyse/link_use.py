"""Link use: how many connections a plan opens over each link between zones, what they carry, and what limits them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, figure
from crosszone.cost.wan import Transport, flow_bytes_per_s
from crosszone.inputs.value import Value
from crosszone.predict.batch import group_columns
from crosszone.predict.predict import Predictor
from crosszone.predict.prediction import Kind, Traffic
from crosszone.predict.site import Site

ROUNDING = 1e-9
Limit = Literal["flow", "link", "uplink", "nic"]


class LinkUse(Value):
    """What one kind of exchange does over one directed link; rates are payload, Gbit/s."""

    link: str
    """The two zones in the direction of the traffic."""
    kinds: tuple[Kind, ...]
    """What is exchanged: the pipeline, or what goes round the ring of zones."""
    ranks: int
    """Ranks that send side by side."""
    flows: int
    """TCP connections open in all."""
    flow_gbps: float | None
    """What one connection carries at most: window, loss and the provider's cap; null: no limit."""
    flows_gbps: float | None
    """What all connections carry at most; null: no limit."""
    link_gbps: float
    """Rate of the link."""
    uplink_gbps: float | None
    """The sender's uplink or the receiver's downlink, whichever is less; null: no limit."""
    nic_gbps: float | None
    """All those ranks' network cards; null: not looked at for a pipeline's boundary."""
    carries_gbps: float
    """The least of them: what the link carries while its uplink has no other traffic."""
    limited_by: Limit
    """Which one that is."""
    flows_to_fill: int | None
    """Connections a channel (`communication.flows`) from which on they do not limit; null: the library does, however
    many."""


def link_uses(p: Predictor, rows: Iterable[Traffic]) -> Iterator[LinkUse]:
    """Every directed link between zones that a step uses. [A19]"""
    names = [zone.name for zone in p.site.cluster.zones]
    places = {f"{a} > {b}": (x, y) for x, a in enumerate(names) for y, b in enumerate(names) if x != y}
    kinds: dict[tuple[str, bool], list[Kind]] = {}
    for row in rows:
        if row.link in places:
            kinds.setdefault((row.link, row.kind == "pipeline"), []).append(row.kind)
    for (link, pipeline), used in sorted(kinds.items()):
        yield _use(p.site, link, places[link], tuple(dict.fromkeys(used)), pipeline=pipeline)


def _use(site: Site, link: str, place: tuple[int, int], kinds: tuple[Kind, ...], *, pipeline: bool) -> LinkUse:
    (a, b), how, limits = place, site.transport, site.crossings.paths.limits
    path = site.links[min(a, b), max(a, b)]
    ranks = _boundary_ranks(site, a, b) if pipeline else site.ring_ranks
    rtt, loss = path.rtt_ms.expected * 1e-3, path.loss_pct / 100.0
    cap = np.inf if path.flow_gbps is None else path.flow_gbps * BYTES_PER_S_PER_GBPS * figure("tcp", "efficiency")
    flow = float(flow_bytes_per_s(rtt, loss, how.congestion, how.window_bytes, cap))

    def together(transport: Transport) -> float:
        return ranks * float(transport.group_bytes_per_s(rtt, loss, cap))

    nic = np.inf
    if not pipeline:
        slowest = min(float(group_columns(group, "bf16", 1).nic_bytes_per_s) for _, group in site.cluster.groups())
        nic = ranks * slowest
    rates: dict[Limit, float] = {
        "link": float(limits.pair[a, b]),
        "uplink": float(min(limits.egress[a], limits.ingress[b])),
        "nic": nic,
        "flow": together(how),
    }
    least = min(rates, key=lambda name: rates[name])
    wire = min(rates["link"], rates["uplink"], rates["nic"])
    enough = max(1, math.ceil(wire / (ranks * how.connections / how.flows * flow)))
    fills = together(replace(how, flows=enough)) >= wire * (1.0 - ROUNDING)
    return LinkUse(
        link=link,
        kinds=kinds,
        ranks=ranks,
        flows=ranks * how.connections,
        flow_gbps=_gbps(flow),
        flows_gbps=_gbps(rates["flow"]),
        link_gbps=rates["link"] / BYTES_PER_S_PER_GBPS,
        uplink_gbps=_gbps(rates["uplink"]),
        nic_gbps=_gbps(nic),
        carries_gbps=rates[least] / BYTES_PER_S_PER_GBPS,
        limited_by=least,
        flows_to_fill=enough if fills else None,
    )


def _boundary_ranks(site: Site, a: int, b: int) -> int:
    """Ranks whose activations or gradients cross between two zones, as the predictor shares the link."""
    here = site.zone[:, :, 0, 0]
    after = np.roll(here, -1, axis=0)
    if not site.wraps:
        here, after = here[:-1], after[:-1]
    pairs = int((((here == a) & (after == b)) | ((here == b) & (after == a))).sum())
    return pairs * site.strategy.tp * site.strategy.cp


def _gbps(bytes_per_s: float) -> float | None:
    return bytes_per_s / BYTES_PER_S_PER_GBPS if math.isfinite(bytes_per_s) else None
