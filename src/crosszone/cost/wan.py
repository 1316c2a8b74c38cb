"""Links between zones: what a group gets of them, and what an exchange between all zones takes.

A round-trip time may be a band, so figures come as arrays of three: RTT low, expected and high.

TCP between zones: what one connection carries, what several carry together, and how a cold one starts.

Rates are bytes/s of payload, times seconds; all arguments may be arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone.cost.collectives import CollectiveCost, Ring, TierBytes, all_reduce
from crosszone.cost.gloo import gloo_all_reduce_s, gloo_bytes_per_s
from crosszone.cost.record import as_floats, with_entries
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, Floats, Numbers, Tier, read_figure, zone_uplinks
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.links import ZoneLink, build_zone_links

Congestion = Literal["reno", "cubic", "bbr"]


def default_window_bytes() -> float:
    """Payload one connection keeps in flight on a host with Linux defaults. [T1]"""
    return window_bytes(read_figure("window", "buffer_bytes"))


def window_bytes(buffer_bytes: float) -> float:
    """Payload that fits a socket buffer; the rest of it is the kernel's bookkeeping. [T1]"""
    return buffer_bytes * read_figure("window", "payload_share")


def window_bytes_per_s(rtt_s: Numbers, window: Numbers | None = None) -> Floats:
    """Rate a window allows: it is sent once per round trip. [T1]"""
    in_flight = default_window_bytes() if window is None else window
    return _divide_rate(in_flight, rtt_s)


def loss_bytes_per_s(rtt_s: Numbers, loss: Numbers, congestion: Congestion = "cubic") -> Floats:
    """Rate random loss (a share of packets, 0 to 1) allows one connection; inf without loss. [T2]

    Reno: 1.22 packets a round trip / sqrt(loss). CUBIC: its own response where that is more (long fat paths), else as
    Reno. BBR does not slow down for loss below its limit; above it, as Reno.
    """
    rtt, p = as_floats(rtt_s), as_floats(loss)
    # `where` works out both sides: a loss of 0 must not be divided by
    safe = np.where(p > 0, p, 1.0)
    packets = read_figure("mathis") / np.sqrt(safe)
    if congestion == "cubic":
        c, beta = read_figure("cubic", "packets_per_s3"), read_figure("cubic", "kept_after_loss")
        response = (c * (3 + beta) / (4 * (1 - beta))) ** 0.25
        packets = np.maximum(packets, response * (rtt / safe) ** 0.75)
    rate = _divide_rate(packets * read_figure("packet", "payload_bytes"), rtt)
    unhurt = p <= (read_figure("bbr", "loss_limit") if congestion == "bbr" else 0.0)
    return np.where(unhurt, np.inf, rate)


def flow_bytes_per_s(
    rtt_s: Numbers,
    loss: Numbers = 0.0,
    congestion: Congestion = "cubic",
    window: Numbers | None = None,
    cap_bytes_per_s: Numbers = np.inf,
) -> Floats:
    """Rate of one connection on an idle link: the least of window, loss and the provider's cap. [T3]"""
    allowed = np.minimum(window_bytes_per_s(rtt_s, window), loss_bytes_per_s(rtt_s, loss, congestion))
    return as_floats(np.minimum(allowed, as_floats(cap_bytes_per_s)))


def aggregate_bytes_per_s(link_bytes_per_s: Numbers, flows: Numbers, flow: Numbers, loss: Numbers = 0.0) -> Floats:
    """Rate of several connections together: n times one, at most the link less what is lost and sent again. [T4]"""
    link = as_floats(link_bytes_per_s) * (1 - as_floats(loss))
    return as_floats(np.minimum(link, as_floats(flows) * as_floats(flow)))


def slow_start_s(size_bytes: Numbers, rtt_s: Numbers, bytes_per_s: Numbers, idle_s: Numbers = np.inf) -> Floats:
    """Seconds the first message of a burst takes longer than on a warm connection. [T6]

    The window starts at 10 packets and doubles each round trip until it fills the path. `idle_s`: silence before the
    message; an idle window is halved once per retransmission timeout, down to those 10 packets (inf: a new connection).
    """
    size, rtt = as_floats(size_bytes), as_floats(rtt_s)
    rate, idle = as_floats(bytes_per_s), as_floats(idle_s)
    path = np.maximum(rate * rtt, 1.0)
    initial = read_figure("window", "initial_packets") * read_figure("packet", "payload_bytes")
    halvings = np.floor(np.minimum(idle / (rtt + read_figure("window", "retransmit_floor_s")), 64.0))
    start = np.minimum(np.maximum(path * 0.5**halvings, initial), path)
    doublings = np.ceil(np.log2(path / start))
    needed = np.ceil(np.log2(size / start + 1)) - 1
    rounds = np.maximum(np.minimum(doublings, needed), 0.0)
    return as_floats(np.maximum(rounds * rtt - start * (2**rounds - 1) / rate, 0.0))


def _divide_rate(amount: Numbers, seconds: Numbers) -> Floats:
    """Amount over seconds; no time at all, or next to none, is no limit."""
    value, time = as_floats(amount), as_floats(seconds)
    with np.errstate(over="ignore"):
        return np.where(time > 0, value / np.where(time > 0, time, 1.0), np.inf)


# Who sends: NCCL over sockets, Gloo, or a library that sends without asking (MPI's eager protocol).
Library = Literal["nccl", "gloo", "eager"]

EXPECTED = 1  # Place of the expected RTT in the arrays of three
EXACT_RING_ZONES = 8  # Zones up to which every ring is tried
RING_POWER = 8  # Power that makes the sum of a long ring's edges behave like its slowest edge


@dataclass(frozen=True, kw_only=True)
class WanTransport:
    """How a group's ranks talk across zones."""

    library: Library = "nccl"
    flows: int = 1
    """TCP connections per channel."""
    channels: int | None = None
    """Channels of a group; None: 1, and NCCL's own number for NCCL."""
    congestion: Congestion = "cubic"
    window_bytes: float | None = None
    """Payload in flight per connection; None: what Linux defaults allow."""

    @property
    def connections(self) -> int:
        """TCP connections of one group over one path."""
        return self.flows * self._channels

    @property
    def _channels(self) -> int:
        if self.channels is not None:
            return self.channels
        return int(read_figure("nccl_sockets", "channels")) if self.library == "nccl" else 1

    def group_bytes_per_s(self, rtt_s: Numbers, loss: Numbers = 0.0, flow_cap_bytes_per_s: Numbers = np.inf) -> Floats:
        """Rate one group's connections allow on an idle path of any width. [T11]"""
        flow = flow_bytes_per_s(rtt_s, loss, self.congestion, self.window_bytes, flow_cap_bytes_per_s)
        return as_floats(self.connections * flow)

    def latency_s(self, rtt_s: Numbers) -> Floats:
        """Seconds a message pays: one way, or a round trip where the receiver must ask first (Gloo). [T11]"""
        one_way = hosts_rtt_s(rtt_s) / 2
        return as_floats(one_way * (2 if self.library == "gloo" else 1))


class Limits(NamedTuple):
    """Bytes/s that all traffic together may reach; inf: no limit."""

    egress: Floats
    """Out of each zone."""
    ingress: Floats
    """Into each zone."""
    pair: Floats
    """From each zone (row) to each other (column)."""


class Paths(NamedTuple):
    """Every way from one zone (row) to another (column)."""

    limits: Limits
    group_bytes_per_s: Floats
    """[3, zones, zones] What one group's connections carry on an idle path."""
    rtt_s: Floats
    """[3, zones, zones] Round-trip time."""


def hosts_rtt_s(rtt_s: Numbers) -> Floats:
    """Round-trip time with what the hosts at both ends add, each way. [T11]"""
    return as_floats(as_floats(rtt_s) + 2 * read_figure("tcp", "latency_us") * 1e-6)


def build_wan_tier(
    link: ZoneLink,
    transport: WanTransport | None = None,
    *,
    groups: Numbers = 1,
    back: bool = False,
    cap_bytes_per_s: Numbers = np.inf,
) -> Tier:
    """The link as one of `groups` groups that share it sees it; arrays end in low, expected, high RTT. [C12] [T11]

    `back`: from the second zone to the first. `cap_bytes_per_s`: what both zones' uplinks leave for all groups.
    """
    how, rtt = transport or WanTransport(), _rtt_s(link)
    loss, cap = link.loss_pct / 100, _payload_rate(link.flow_gbps)
    everything = np.minimum(_payload_rate(link.gbps_back if back else link.gbps), as_floats(cap_bytes_per_s))
    share = (everything / as_floats(groups))[..., np.newaxis]
    rate = aggregate_bytes_per_s(share, 1, how.group_bytes_per_s(rtt, loss, cap), loss)
    if how.library == "gloo":
        rate = gloo_bytes_per_s(rtt, rate)
    return Tier(rate, how.latency_s(rtt))


def build_zone_paths(
    cluster: Cluster,
    transport: WanTransport | None = None,
    links: Mapping[tuple[int, int], ZoneLink] | None = None,
) -> Paths:
    """Every path between the zones of a cluster, with the zones' uplinks. [T11]"""
    how, zone_link_table = transport or WanTransport(), build_zone_links(cluster) if links is None else links
    zones = len(cluster.zones)
    pairs, groups, rtts = [], [], []
    for (a, b), link in zone_link_table.items():
        loss, rtt = link.loss_pct / 100, _rtt_s(link)
        group = how.group_bytes_per_s(rtt, loss, _payload_rate(link.flow_gbps))
        pairs += [((a, b), _payload_rate(link.gbps) * (1 - loss)), ((b, a), _payload_rate(link.gbps_back) * (1 - loss))]
        groups += [((slice(None), a, b), group), ((slice(None), b, a), group)]
        rtts += [((slice(None), a, b), rtt), ((slice(None), b, a), rtt)]
    egress, ingress = zone_uplinks(cluster)
    limits = Limits(egress, ingress, with_entries(np.full((zones, zones), np.inf), pairs))
    everywhere = (3, zones, zones)
    return Paths(limits, with_entries(np.full(everywhere, np.inf), groups), with_entries(np.zeros(everywhere), rtts))


def fair_rates(senders: npt.ArrayLike, receivers: npt.ArrayLike, limits: Limits, caps: Numbers = np.inf) -> Floats:
    """Bytes/s of flows that run at the same time: each gets a fair share of its tightest limit (max-min). [T12]

    All rates rise together; a flow stops where one of its limits is used up or at its own cap, and the others go on.
    """
    a, b, zones = np.asarray(senders, dtype=int), np.asarray(receivers, dtype=int), len(limits.egress)
    remaining = np.concatenate([limits.egress, limits.ingress, np.ravel(limits.pair)]).astype(float)
    uses = np.stack([a, zones + b, 2 * zones + a * zones + b], axis=1)
    flow_caps = np.broadcast_to(as_floats(caps), a.shape)
    rates, rising = np.zeros(a.shape), np.ones(a.shape, dtype=bool)
    while rising.any():
        users = np.bincount(uses[rising].ravel(), minlength=len(remaining))
        share = np.where(users > 0, remaining / np.maximum(users, 1), np.inf)
        step = min(share[uses[rising]].min(), (flow_caps - rates)[rising].min())
        if np.isinf(step):
            rates[rising] = np.inf
            break
        full = share <= step
        rates[rising] += step
        # exactly 0: what rounding leaves of a full limit would make one more round, and another
        remaining = np.where(full, 0.0, remaining - step * users)
        rising &= ~(full[uses].any(axis=1) | (flow_caps - rates <= 0.0))
    return rates


def drain_s(
    sizes_bytes: npt.ArrayLike, senders: npt.ArrayLike, receivers: npt.ArrayLike, limits: Limits, caps: Numbers = np.inf
) -> Floats:
    """Seconds until each of several transfers that start together is done; who is done leaves its share. [T12]"""
    remaining = np.array(sizes_bytes, dtype=float)
    a, b = np.asarray(senders, dtype=int), np.asarray(receivers, dtype=int)
    flow_caps, done, now = np.broadcast_to(as_floats(caps), remaining.shape), np.zeros(remaining.shape), 0.0
    moving = remaining > 0
    while moving.any():
        rates = fair_rates(a[moving], b[moving], limits, flow_caps[moving])
        needed = remaining[moving] / rates
        now += needed.min()
        remaining[moving] = np.where(needed <= needed.min(), 0.0, remaining[moving] - rates * needed.min())
        done[moving & (remaining <= 0)] = now
        moving = remaining > 0
    return done


def find_ring_order(seconds: npt.ArrayLike) -> tuple[int, ...]:
    """Order of zones whose ring has the fastest slowest edge, and the shortest sum among those. [T13]

    `seconds[a, b]`: what a step from a to b takes. Every order is tried up to 8 zones; beyond, a good one is improved
    by turning parts of it round.
    """
    cost = as_floats(seconds)
    # both directions alike: turning part of a ring round (2-opt) reverses its edges
    cost = np.maximum(cost, cost.T)
    zones = len(cost)
    if zones <= EXACT_RING_ZONES:
        orders = np.array([(0, *order) for order in permutations(range(1, zones))])
        edges = cost[orders, np.roll(orders, -1, axis=1)]
        # lexsort sorts by its last key first
        best = np.lexsort((edges.sum(axis=1), edges.max(axis=1)))[0]
        return tuple(int(zone) for zone in orders[best])
    # over the largest edge first, for the 8th power of seconds in other units would overflow or vanish
    return _improve_ring(_build_nearest_ring(cost), (cost / max(cost.max(), 1e-300)) ** RING_POWER)


def estimate_zone_exchange(
    size_bytes: Numbers,
    paths: Paths,
    transport: WanTransport | None = None,
    *,
    groups: int = 1,
    order: Sequence[int] | None = None,
    nic_bytes_per_s: float = np.inf,
) -> CollectiveCost:
    """What it takes until all zones hold the sum of `size_bytes`; `groups` ranks of each exchange shards. [T14]

    A ring over the zones (`order`; None: the best), with what its edges get of pairs and uplinks. `nic_bytes_per_s`:
    what one rank can send. The last axis of the seconds is low, expected, high RTT; bytes are those a zone sends, 2
    (z-1)/z of the size, whether its ranks send shards or one leader sends all.
    """
    how, zones = transport or WanTransport(), len(paths.limits.egress)
    size = as_floats(size_bytes)
    if zones == 1:
        return CollectiveCost(seconds=np.zeros((*size.shape, 3)), item_bytes=0.0 * size, steps=0.0, parts=TierBytes())
    if order is None:
        order = find_best_ring_order(float(size.max(initial=0.0)), paths, how, groups=groups)
    link = build_ring_tier(paths, how, order, groups=groups, nic_bytes_per_s=nic_bytes_per_s)
    ring = Ring(ranks=float(len(order)), link=link)
    cost = all_reduce(size[..., np.newaxis], ring)
    cost = replace(cost, parts=TierBytes(zones=cost.sent_bytes[..., 0]), calls=1.0 * (size > 0))
    if how.library != "gloo":
        return cost
    at, after = np.asarray(order, dtype=int), np.roll(order, -1)
    answers = []
    for band in range(3):
        rates = _estimate_edge_rates(paths, at, after, band, groups, nic_bytes_per_s)
        rtt = hosts_rtt_s(paths.rtt_s[band, at, after])
        all_reduce_s = gloo_all_reduce_s(size[..., np.newaxis] / groups, len(at), rtt, rates / groups)
        answers.append(all_reduce_s.max(axis=-1))
    return replace(cost, seconds=np.stack(answers, axis=-1))


def build_ring_tier(
    paths: Paths, transport: WanTransport, order: Sequence[int], *, groups: int = 1, nic_bytes_per_s: float = np.inf
) -> Tier:
    """The ring over zones as one link that `groups` ranks of a zone share; arrays are low, expected, high RTT. [T14]

    The slowest edge's rate, and the mean latency: a message handed round meets every edge once. [C11]
    """
    at, after = np.asarray(order, dtype=int), np.roll(order, -1)
    tiers = []
    for band in range(3):
        rates = _estimate_edge_rates(paths, at, after, band, groups, nic_bytes_per_s)
        latency = transport.latency_s(paths.rtt_s[band, at, after])
        tiers.append(Tier(reduce(np.minimum, rates), sum(latency) / len(order)))
    return Tier(np.stack([t.bytes_per_s for t in tiers]), np.stack([t.latency_s for t in tiers]))


def _estimate_edge_rates(
    paths: Paths, at: npt.NDArray[np.int_], after: npt.NDArray[np.int_], band: int, groups: int, nic_bytes_per_s: float
) -> Floats:
    """What all groups together get of each edge of the ring.

    A zone sends to one other and takes from one other, so no two edges share an uplink, a downlink or a pair: the fair
    share of each (`fair_rates`) is its tightest limit.
    """
    alone = np.minimum(paths.group_bytes_per_s[band, at, after], nic_bytes_per_s)
    egress, ingress, pair = paths.limits
    limits = np.minimum(np.minimum(egress[at], ingress[after]), pair[at, after])
    rates: Floats = np.minimum(limits, groups * alone)
    return rates


def find_best_ring_order(
    size_bytes: float, paths: Paths, transport: WanTransport, *, groups: int = 1
) -> tuple[int, ...]:
    """The order of zones in which exchanging so many bytes meets the slowest edge as rarely as it can. [T13]"""
    egress, ingress, pair = paths.limits
    rate = np.minimum(np.minimum(pair, groups * paths.group_bytes_per_s[EXPECTED]), egress[:, np.newaxis])
    rate = np.minimum(rate, ingress[np.newaxis, :])
    return find_ring_order(transport.latency_s(paths.rtt_s[EXPECTED]) + size_bytes / len(egress) / rate)


def _payload_rate(gbps: float | None) -> float:
    """Bytes/s of payload."""
    return np.inf if gbps is None else gbps * BYTES_PER_S_PER_GBPS * read_figure("tcp", "efficiency")


def _rtt_s(link: ZoneLink) -> Floats:
    """Low, expected and high round-trip time; jitter widens the high end."""
    band = link.rtt_ms
    milliseconds: Floats = np.stack([band.low, band.expected, band.high + (link.jitter_ms or 0.0)])
    return milliseconds * 1e-3


def _build_nearest_ring(cost: Floats) -> tuple[int, ...]:
    """A ring that always goes on to the nearest zone not yet seen."""
    order, far = [0], cost + np.diag(np.full(len(cost), np.inf))
    for _ in range(len(cost) - 1):
        reach = far[order[-1]].copy()
        reach[order] = np.inf
        order.append(int(reach.argmin()))
    return tuple(order)


def _improve_ring(order: tuple[int, ...], weight: Floats) -> tuple[int, ...]:
    """The ring after turning round parts of it as long as that lowers the sum of its edges' weights (2-opt)."""
    ring = np.array(order)
    for _ in range(len(ring) ** 2):
        after = np.roll(ring, -1)
        now = weight[ring, after]
        new = weight[np.ix_(ring, ring)] + weight[np.ix_(after, after)]
        gain = np.triu(now[:, np.newaxis] + now[np.newaxis, :] - new, k=1)
        first, last = np.unravel_index(gain.argmax(), gain.shape)
        # between rings that are equally long rounding alone would go on for ever
        if gain[first, last] <= 1e-12 * now.sum():
            break
        ring[first + 1 : last + 1] = ring[first + 1 : last + 1][::-1]
    return tuple(int(zone) for zone in ring)
