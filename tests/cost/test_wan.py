"""[C11] [T11] to [T14]: links between zones, shared fairly, and exchanges over them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import zone
from crosszone.cost.gloo import gloo_all_reduce_s
from crosszone.cost.wan import (
    Limits,
    Paths,
    WanTransport,
    build_ring_tier,
    build_wan_tier,
    build_zone_paths,
    drain_s,
    estimate_zone_exchange,
    fair_rates,
    find_best_ring_order,
    find_ring_order,
    hosts_rtt_s,
)
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.links import ZoneLink, build_zone_links
from effort import examples

GBIT = 1e9 / 8 * 0.9653
HOSTS = 50e-6
WIDE = WanTransport(window_bytes=1e12, channels=1000)


def cluster(zones: int = 2, **link: object) -> Cluster:
    names = "abcdefghijkl"[:zones]
    return Cluster.model_validate({"zones": [zone(name) for name in names], "default_link": link})


def the_link(**link: object) -> ZoneLink:
    return build_zone_links(cluster(2, **link))[0, 1]


def limits(zones: int, egress: float = np.inf, ingress: float = np.inf, pair: float = np.inf) -> Limits:
    return Limits(np.full(zones, egress), np.full(zones, ingress), np.full((zones, zones), pair))


def zone_exchange_s(*args, **options):
    return estimate_zone_exchange(*args, **options).seconds


def test_two_channels_of_nccl_do_not_fill_10_gbit_over_25_ms():
    """[T11] 4 MiB of buffer is 3 MiB of payload in flight, on one connection a channel: 2 x 3 MiB / 25 ms."""
    tier = build_wan_tier(the_link(gbps=10, rtt_ms=25))
    assert tier.bytes_per_s.tolist() == pytest.approx([2 * 0.75 * 2**22 / 0.025] * 3)
    assert tier.latency_s.tolist() == pytest.approx([0.0125 + HOSTS] * 3)


def test_more_connections_help_until_the_link_is_full():
    """[T11] Two connections a channel carry 6 MiB a round trip, whatever NCCL's own buffer is; 64 would fill the link."""
    tier = build_wan_tier(the_link(gbps=100, rtt_ms=25), WanTransport(flows=2))
    assert tier.bytes_per_s[1] == pytest.approx(2 * 2 * 0.75 * 2**22 / 0.025)
    assert build_wan_tier(the_link(gbps=100, rtt_ms=25), WanTransport(flows=64)).bytes_per_s[1] == pytest.approx(
        100 * GBIT
    )


def test_groups_share_the_link():
    """[C12] [T11] 10 Gbit/s for 1, 8 and 64 groups."""
    tier = build_wan_tier(the_link(gbps=10, rtt_ms=1), groups=[1, 8, 64])
    assert tier.bytes_per_s[:, 1].tolist() == pytest.approx([10 * GBIT, 10 * GBIT / 8, 10 * GBIT / 64])


def test_a_provider_s_cap_on_one_flow_counts_per_connection():
    """[T11] 5 Gbit/s a flow, two channels of one connection: 10 of 100 Gbit/s."""
    link = the_link(gbps=100, rtt_ms=1, flow_gbps=5)
    assert build_wan_tier(link, WanTransport(window_bytes=1e9)).bytes_per_s[1] == pytest.approx(10 * GBIT, rel=1e-3)


def test_loss_slows_cubic_and_hardly_bbr():
    """[T11] 0.1 % loss, 20 ms: cubic 2 x 22.4 Mbit/s; bbr 99.9 % of the gigabit."""
    link = the_link(gbps=1, rtt_ms=20, loss_pct=0.1)
    tuned = {"window_bytes": 1e9, "channels": 2}
    assert build_wan_tier(link, WanTransport(congestion="cubic", **tuned)).bytes_per_s[1] == pytest.approx(
        44.86e6 / 8, rel=1e-3
    )
    assert build_wan_tier(link, WanTransport(congestion="bbr", **tuned)).bytes_per_s[1] == pytest.approx(0.999 * GBIT)


def test_an_rtt_from_distance_gives_a_band():
    """[T11] The longer the round trip, the later and slower."""
    far = Cluster.model_validate({"zones": [zone("a", region="cn-beijing"), zone("b", region="cn-shenzhen")]})
    tier = build_wan_tier(build_zone_links(far)[0, 1])
    assert tier.latency_s[0] < tier.latency_s[1] < tier.latency_s[2]
    assert tier.bytes_per_s[0] >= tier.bytes_per_s[1] >= tier.bytes_per_s[2]


def test_jitter_widens_the_high_end():
    """[T11]"""
    tier = build_wan_tier(the_link(gbps=1, rtt_ms=20, jitter_ms=4))
    assert tier.latency_s.tolist() == pytest.approx([0.01 + HOSTS, 0.01 + HOSTS, 0.012 + HOSTS])


def test_gloo_asks_first_so_a_message_costs_a_round_trip():
    """[T11] And its two segments in flight hold the rate: 2 MiB / (50 ms + 8.69 ms)."""
    tier = build_wan_tier(the_link(gbps=1, rtt_ms=50), WanTransport(library="gloo", window_bytes=1e9))
    assert tier.latency_s[1] == pytest.approx(0.05 + 2 * HOSTS)
    assert tier.bytes_per_s[1] == pytest.approx(2 * 2**20 / (0.05 + 2**20 / GBIT))
    assert build_wan_tier(the_link(gbps=1, rtt_ms=50), WanTransport(library="eager")).latency_s[1] == pytest.approx(
        0.025 + HOSTS
    )


def test_the_way_back_may_have_its_own_rate():
    """[T11]"""
    zones = [zone("a"), zone("b")]
    link = {"between": ["a", "b"], "gbps": 1, "gbps_back": 2, "rtt_ms": 10}
    found = build_zone_links(Cluster.model_validate({"zones": zones, "links": [link]}))[0, 1]
    there, back = (build_wan_tier(found, WIDE, back=back).bytes_per_s[1] for back in (False, True))
    assert (there, back) == pytest.approx((GBIT, 2 * GBIT))
    assert build_zone_paths(Cluster.model_validate({"zones": zones, "links": [link]})).limits.pair[1, 0] == back


def test_fair_shares_by_hand():
    """[T12] Zone c takes in 6, so its two flows get 3 each; the third flow gets the 7 that zone a has left."""
    both = Limits(np.array([10.0, 9.0, 9.0]), np.array([9.0, 9.0, 6.0]), np.full((3, 3), 100.0))
    assert fair_rates([0, 0, 1], [1, 2, 2], both).tolist() == [7, 3, 3]
    assert fair_rates([0, 0, 1], [1, 2, 2], both, caps=[2, 1, 99]).tolist() == [2, 1, 5]


def test_a_flow_without_any_limit_is_free():
    """[T12]"""
    assert fair_rates([0, 1], [1, 0], limits(2)).tolist() == [np.inf, np.inf]


@st.composite
def flows_and_limits(draw):
    zones = draw(st.integers(2, 6))
    some = st.floats(0.1, 1e3)
    a, b, pair = (draw(st.lists(some, min_size=k, max_size=k)) for k in (zones, zones, zones * zones))
    ends = st.tuples(st.integers(0, zones - 1), st.integers(1, zones - 1))
    flows = draw(st.lists(ends, min_size=1, max_size=12))
    senders = np.array([source for source, _ in flows])
    receivers = np.array([(source + step) % zones for source, step in flows])
    caps = np.array(draw(st.lists(some | st.just(np.inf), min_size=len(flows), max_size=len(flows))))
    return senders, receivers, Limits(np.array(a), np.array(b), np.array(pair).reshape(zones, zones)), caps


@examples(200)
@given(flows_and_limits())
def test_rates_keep_every_limit_and_each_flow_has_a_limit_it_cannot_ask_more_of(case):
    """[T12] Max-min: a flow below its cap meets a full limit in which no other flow gets more than it does."""
    a, b, most, caps = case
    rates = fair_rates(a, b, most, caps)
    groups = [(most.egress[z], a == z) for z in range(len(most.egress))]
    groups += [(most.ingress[z], b == z) for z in range(len(most.egress))]
    groups += [(most.pair[x, y], (a == x) & (b == y)) for x, y in zip(a, b, strict=True)]
    for limit, members in groups:
        assert rates[members].sum() <= limit * (1 + 1e-9)
    assert (rates <= caps * (1 + 1e-12)).all()
    for flow, rate in enumerate(rates):
        held = [
            rates[members].sum() >= limit * (1 - 1e-9) and rate >= rates[members].max() * (1 - 1e-9)
            for limit, members in groups
            if members[flow]
        ]
        assert rate >= caps[flow] * (1 - 1e-9) or any(held)


def test_who_is_done_leaves_its_share():
    """[T12] 10 and 30 bytes over one link of 10/s: both at 5/s for 2 s, then 20 bytes at 10/s."""
    assert drain_s([10, 30, 0], [0, 0, 0], [1, 1, 1], limits(2, pair=10.0)).tolist() == pytest.approx([2, 4, 0])


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=8), st.floats(1, 1e3))
def test_a_shared_link_is_busy_until_all_bytes_are_through(sizes, rate):
    """[T12] The last one ends at total bytes / rate, whatever the order."""
    many = [0] * len(sizes)
    ends = drain_s(sizes, many, [1] * len(sizes), limits(2, egress=rate))
    assert ends.max() == pytest.approx(sum(sizes) / rate)


def test_a_ring_over_zones_leaves_the_slowest_edge_out():
    """[T13] Four zones; a - b is slow: the ring a c b d never takes it."""
    seconds = np.ones((4, 4))
    seconds[0, 1] = seconds[1, 0] = 50
    ring = find_ring_order(seconds)
    assert {ring.index(0) % 2, ring.index(1) % 2} in ({0}, {1})


def test_a_ring_of_three_takes_every_edge_and_of_one_none():
    """[T13]"""
    assert find_ring_order(np.ones((3, 3))) == (0, 1, 2)
    assert find_ring_order(np.zeros((1, 1))) == (0,)


@examples(30)
@given(st.integers(9, 40), st.integers(0, 10**6))
def test_a_long_ring_visits_every_zone_and_beats_the_order_of_names(zones, seed):
    """[T13]"""
    cost = np.random.default_rng(seed).random((zones, zones))
    cost = np.maximum(cost, cost.T)
    ring = np.array(find_ring_order(cost))
    assert sorted(ring) == list(range(zones))
    named = np.arange(zones)
    assert cost[ring, np.roll(ring, -1)].max() <= cost[named, np.roll(named, -1)].max()


def test_two_zones_exchange_a_gradient_once_each_way():
    """[T14] 14 GB, 10 Gbit/s, 20 ms: 2 steps of 7 GB and 10 ms; 8 ranks' connections are enough to fill the link."""
    paths = build_zone_paths(cluster(2, gbps=10, rtt_ms=20))
    seconds = zone_exchange_s(14e9, paths, groups=8)
    assert seconds.tolist() == pytest.approx([2 * (7e9 / (10 * GBIT) + 0.01 + HOSTS)] * 3)


def test_at_100_ms_a_tiny_exchange_takes_one_way_delays_only():
    """[T14] Three zones: 4 steps of 50 ms."""
    assert zone_exchange_s(1e3, build_zone_paths(cluster(3, gbps=10, rtt_ms=100)))[1] == pytest.approx(0.2, rel=2e-3)


def test_an_uplink_slower_than_the_link_sets_the_pace():
    """[T14]"""
    zones = [zone("a", uplink_gbps=2), zone("b")]
    slow = Cluster.model_validate({"zones": zones, "default_link": {"gbps": 10, "rtt_ms": 1}})
    seconds = zone_exchange_s(1e9, build_zone_paths(slow, WIDE), WIDE)
    assert seconds[1] == pytest.approx(2 * (0.5e9 / (2 * GBIT) + 0.0005 + HOSTS))


def test_a_rank_s_nic_bounds_what_its_shard_gets():
    """[T14] One leader with a NIC of 1 GB/s, then four such ranks, before a link of 100 Gbit/s."""
    paths = build_zone_paths(cluster(2, gbps=100, rtt_ms=0.1), WIDE)
    leader, four = (zone_exchange_s(8e9, paths, WIDE, groups=k, nic_bytes_per_s=1e9)[1] for k in (1, 4))
    assert leader == pytest.approx(8, rel=1e-3)
    assert four == pytest.approx(2, rel=1e-3)


def test_gloo_exchanges_by_its_own_protocol():
    """[T14] 4 shards share the gigabit."""
    how = WanTransport(library="gloo", window_bytes=1e9)
    seconds = zone_exchange_s(64 * 2**20, build_zone_paths(cluster(3, gbps=1, rtt_ms=50), how), how, groups=4)
    assert seconds[1] == gloo_all_reduce_s(16 * 2**20, 3, hosts_rtt_s(0.05), GBIT / 4)


def test_the_ring_that_is_chosen_is_the_fastest_of_all():
    """[T13] [T14] Four zones with unequal links."""
    rng = np.random.default_rng(7)
    rtt = rng.uniform(0.005, 0.2, (4, 4))
    rtt = np.broadcast_to(np.maximum(rtt, rtt.T), (3, 4, 4))
    pair = rng.uniform(1e7, 1e9, (4, 4))
    pair = np.minimum(pair, pair.T)
    paths = Paths(Limits(np.full(4, np.inf), np.full(4, np.inf), pair), np.full((3, 4, 4), np.inf), rtt)
    how = WanTransport(library="gloo")
    chosen = zone_exchange_s(1e9, paths, how, order=find_best_ring_order(1e9, paths, how))[1]
    others = [zone_exchange_s(1e9, paths, how, order=order)[1] for order in [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)]]
    assert chosen == min(others)


def test_a_ring_over_zones_has_the_slowest_rate_and_the_mean_latency():
    """[C11] Edges of 1, 10 and 10 Gbit/s; 10, 2.5 and 2.5 ms one way."""
    slow = {"between": ["a", "b"], "gbps": 1, "rtt_ms": 20}
    zones = {"zones": [zone(name) for name in "abc"], "links": [slow], "default_link": {"gbps": 10, "rtt_ms": 5}}
    tier = build_ring_tier(build_zone_paths(Cluster.model_validate(zones), WIDE), WIDE, (0, 1, 2))
    assert tier.bytes_per_s[1] == pytest.approx(GBIT)
    assert tier.latency_s[1] == pytest.approx(5e-3 + HOSTS)


def test_one_zone_exchanges_nothing():
    """[T14]"""
    assert zone_exchange_s([1e9, 2e9], build_zone_paths(cluster(1))).tolist() == [[0, 0, 0], [0, 0, 0]]


@given(st.floats(1, 1e12), st.integers(2, 6), st.floats(0.1, 400), st.floats(0.1, 300), st.integers(1, 64))
@examples(50)
def test_more_bandwidth_less_delay_and_fewer_bytes_are_never_slower(size, zones, gbps, rtt, groups):
    """[T14]"""
    now = zone_exchange_s(size, build_zone_paths(cluster(zones, gbps=gbps, rtt_ms=rtt)), groups=groups)
    wider = zone_exchange_s(size, build_zone_paths(cluster(zones, gbps=2 * gbps, rtt_ms=rtt)), groups=groups)
    nearer = zone_exchange_s(size, build_zone_paths(cluster(zones, gbps=gbps, rtt_ms=rtt / 2)), groups=groups)
    fewer = zone_exchange_s(size / 2, build_zone_paths(cluster(zones, gbps=gbps, rtt_ms=rtt)), groups=groups)
    for better in (wider, nearer, fewer):
        assert (better <= now * (1 + 1e-9)).all()
