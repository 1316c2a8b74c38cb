"""[C1] to [C8], [C13], [C14]: seconds, bytes and messages of collectives, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost import collectives as c
from crosszone.cost.tiers import Tier, read_figure
from effort import examples

GB = 1e9
LINK = Tier(1e9, 1e-3)


def ring_of(n, link=LINK, **layout):
    return c.Ring(ranks=np.asarray(n, dtype=float), link=link, **layout)


def seconds_of(op):
    def seconds(size, n, link):
        return op(np.asarray(size, dtype=float), ring_of(n, link)).seconds

    return seconds


def best_all_reduce_s(size, n, link):
    size, ring = np.asarray(size, dtype=float), ring_of(n, link)
    return c.choose_faster_s(c.all_reduce(size, ring), c.tree_all_reduce(size, ring))


ring_all_reduce_s, ring_reduce_scatter_s, ring_all_gather_s, tree_all_reduce_s, all_to_all_s = (
    seconds_of(op) for op in (c.all_reduce, c.reduce_scatter, c.all_gather, c.tree_all_reduce, c.all_to_all)
)
TIMES = [
    ring_all_reduce_s,
    ring_reduce_scatter_s,
    ring_all_gather_s,
    tree_all_reduce_s,
    best_all_reduce_s,
    all_to_all_s,
]
sizes = st.floats(1.0, 1e12)
ranks = st.integers(2, 100_000)
links = st.builds(Tier, st.floats(1e5, 1e12), st.floats(0, 1.0))


def test_a_ring_all_reduce_sends_each_byte_almost_twice():
    """[C2] 8 ranks, 8 GB, 1 GB/s, 1 ms: 14 steps of 1 GB and 1 ms."""
    assert ring_all_reduce_s(8 * GB, 8, LINK) == pytest.approx(14 * (1 + 0.001))


def test_reduce_scatter_and_all_gather_are_half_of_it():
    """[C1] 7 steps of 1 GB and 1 ms."""
    assert ring_reduce_scatter_s(8 * GB, 8, LINK) == pytest.approx(7 * 1.001)
    assert ring_all_gather_s(8 * GB, 8, LINK) == pytest.approx(7 * 1.001)


def test_a_tree_pays_latency_by_level():
    """[C3] 8 ranks: 3 levels up and down; each rank sends the tensor up and down. 9 ranks need a fourth level."""
    assert tree_all_reduce_s(8 * GB, 8, LINK) == pytest.approx(2 * 3 * 0.001 + 16)
    assert tree_all_reduce_s(8 * GB, 9, LINK) == pytest.approx(2 * 4 * 0.001 + 16)


def test_the_library_takes_the_tree_for_small_tensors_and_the_ring_for_large_ones():
    """[C4]"""
    small, large = best_all_reduce_s([1e3, 8 * GB], 64, LINK)
    assert small == tree_all_reduce_s(1e3, 64, LINK)
    assert large == ring_all_reduce_s(8 * GB, 64, LINK)


def test_an_all_to_all_keeps_a_rank_s_own_part():
    """[C5] 8 ranks: 7/8 of the bytes leave; 7 messages fit one batch of 8, 16 ranks need two."""
    assert read_figure("collective", "messages_at_once") == 8
    assert all_to_all_s(8 * GB, 8, LINK) == pytest.approx(0.001 + 7)
    assert all_to_all_s(8 * GB, 16, LINK) == pytest.approx(0.002 + 7.5)


def test_a_message_pays_latency_once():
    """[C6]"""
    assert c.send_message(GB, LINK).seconds == pytest.approx(1.001)


def test_a_hierarchical_all_reduce_crosses_zones_with_shards_only():
    """[C7] 8 GB, 4 ranks a zone at 100 GB/s, 2 zones at 1 GB/s shared by the 4 shards.

    Inside: 3 steps of 2 GB at 100 GB/s, twice. Across: 2 steps of 2 GB / 2 at 0.25 GB/s: as 2 (z-1)/z x 8 GB at 1 GB/s.
    """
    inside = c.reduce_scatter(8 * GB, ring_of(4, Tier(100 * GB, 0.0)))
    across = c.all_reduce(2 * GB, ring_of(2, Tier(GB / 4, 0.01)))
    together = c.zone_ring_pass(((8 * GB, 2.0),), 1.0, zone_ring(2.0, link=Tier(GB, 0.01)), passes=2.0)
    assert inside.seconds == pytest.approx(0.06)
    assert across.seconds == together.seconds == pytest.approx(8.0 + 2 * 0.01)
    assert (4 * across.sent_bytes, across.messages) == (together.bytes.zones, together.messages) == (8 * GB, 2)


def test_at_100_ms_a_tiny_tensor_takes_as_many_one_way_delays_as_steps():
    """[C2] RTT 100 ms, 1 KB over 4 ranks: 6 steps of 50 ms."""
    assert ring_all_reduce_s(1e3, 4, Tier(1.25e9, 0.05)) == pytest.approx(6 * 0.05, rel=1e-4)


def test_the_best_bucket_of_a_7b_gradient_over_a_gigabit_is_187_mb():
    """[C13] 14 GB, 1 Gbit/s, 20 ms: sqrt(14e9 x 1.25e8 x 0.02) = 187.08 MB."""
    assert c.best_bucket_bytes(14e9, Tier(1.25e8, 0.02)) == pytest.approx(187.08e6, rel=1e-4)


@given(st.floats(1e6, 1e11), st.floats(1e6, 1e10), st.floats(1e-4, 0.5), st.floats(0.2, 5))
def test_no_other_bucket_exposes_less(size, rate, latency, factor):
    """[C13]"""

    def exposed(bucket):
        return size / bucket * latency + bucket / rate

    best = np.sqrt(size * rate * latency)
    assert exposed(best) <= exposed(best * factor) * (1 + 1e-9)


def zone_ring(zones, members=None, link=LINK, tree=False):
    return c.ZoneRing(zones=zones, members=zones if members is None else members, link=link, tree=tree)


def zone_bytes(ring):
    return c.zone_ring_pass(((16 * GB, ring.members),), 1.0, ring, passes=2.0)


def test_bytes_a_zone_sends():
    """[C8] 16 ranks in 4 zones, 16 GB: flat ring 30, hierarchical 24; a chain sends all over each edge, each way."""
    assert zone_bytes(zone_ring(4.0, 16.0)).bytes.zones == 30 * GB
    assert zone_bytes(zone_ring(4.0)).bytes.zones == 24 * GB
    assert zone_bytes(zone_ring(4.0, tree=True)).bytes.zones == 16 * GB


def test_zones_pay_the_latency_of_the_edges_between_them():
    """[X7] 4 zones, 2 passes at 1 GB/s, 1 ms: 6 messages; a flat ring of 16 meets 30 edges, 4 in 16 between zones; a
    chain of 4 has 3 steps up and 3 down, and the middle zones send 16 GB to both sides. 5 buckets pay 5 times.
    """
    assert (zone_bytes(zone_ring(4.0)).messages, zone_bytes(zone_ring(4.0, 16.0)).messages) == (6, 7.5)
    assert zone_bytes(zone_ring(4.0)).seconds == pytest.approx(24.006)
    chain = zone_bytes(zone_ring(4.0, tree=True))
    assert (chain.messages, chain.seconds) == (6, pytest.approx(32.006))
    five = c.zone_ring_pass(((16 * GB, 4.0),), 1.0, zone_ring(4.0), passes=2.0, buckets=5.0)
    assert five.messages == 30


def test_one_zone_sends_nothing_out():
    """[C8]"""
    for tree in (False, True):
        cost = zone_bytes(zone_ring(1.0, tree=tree))
        assert (cost.seconds, cost.messages) == (0, 0)


def test_a_key_value_ring_hands_every_block_on():
    """[X4] 4 ranks with blocks of 2 GB: 3 blocks sent, 3 messages, 6 s at 1 GB/s; two nodes of two: half over each."""
    ring = ring_of(4, Tier(GB, 0.0), layout=c.Layout(4.0, 1.0, 2.0, 2.0, "context"), single=True)
    cost = c.ring_exchange(2 * GB, ring)
    assert (cost.seconds, cost.messages, cost.sent_bytes) == (6.0, 3.0, 6 * GB)
    assert cost.bytes == (3 * GB, 0.0, 3 * GB, 0.0)
    # the rank at a node's edge sends all it has over its one NIC
    assert cost.least_s(c.TierBytes(10 * GB, GB, GB))[:3] == (0.6, 6.0, 6.0)


def test_tokens_go_once_to_every_other_domain_with_one_of_their_experts():
    """[X3] 8 ranks, 4 a domain, top-1, 8 GB: 7/8 go to others inside, half to the other domain, there and back."""
    rates = c.TierBytes(10 * GB, GB, GB)
    sizes = {"top_k": 1.0, "ranks": 8.0, "ranks_per_domain": 4.0, "rates": rates}
    cost = c.expert_all_to_all(8 * GB, fast_gpus=4.0, **sizes)
    assert cost.bytes[:3] == pytest.approx((14 * GB, 0.0, 8 * GB))
    assert cost.seconds == pytest.approx(1.4 + 8.0)
    assert c.expert_all_to_all(8 * GB, fast_gpus=1.0, **sizes).bytes[:3] == pytest.approx((0.0, 14 * GB, 8 * GB))


@given(sizes, st.integers(1, 4096), st.integers(2, 100))
def test_zones_exchange_a_shard_not_the_gradient_of_every_gpu(size, per_zone, zones):
    """[C7] [C8] All ranks of a zone together send less than twice the gradient, however many they are."""
    of_one_rank = c.all_reduce(size / per_zone, ring_of(zones)).sent_bytes
    together = c.zone_ring_pass(((size, float(zones)),), 1.0, zone_ring(float(zones)), passes=2.0).bytes.zones
    assert per_zone * of_one_rank == pytest.approx(float(together))
    assert together < 2 * size


@examples(100)
@given(sizes, *(st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0, 64.0]) for _ in range(4)), links)
def test_bytes_by_kind_of_link_add_up_and_none_is_faster_than_the_ring(size, n, stride, fast, node, link):
    """[C14]"""
    layout = c.Layout(n, stride, min(fast, node), node)
    for op in (c.all_reduce, c.reduce_scatter, c.tree_all_reduce):
        cost = op(size, ring_of(n, link, layout=layout))
        assert sum(cost.bytes) == pytest.approx(float(cost.sent_bytes))
        assert cost.seconds >= cost.sent_bytes / link.bytes_per_s * (1 - 1e-12)
        assert cost.messages >= (n > 1)


@given(sizes, ranks, links, st.floats(1, 1e4), st.integers(1, 100))
def test_items_cost_what_their_bytes_cost_in_as_many_calls(size, n, link, count, calls):
    """[C2] The form for many stages is that of one tensor."""
    many = c.all_reduce(size, ring_of(n, link), items=count, calls=float(calls))
    assert many.sent_bytes == pytest.approx(float(c.all_reduce(size * count, ring_of(n, link)).sent_bytes))
    alone = c.all_reduce(size * count / calls, ring_of(n, link))
    assert many.seconds == pytest.approx(calls * float(alone.seconds))


@pytest.mark.parametrize("seconds", TIMES)
@given(sizes, links)
def test_one_rank_and_zero_bytes_cost_nothing(seconds, size, link):
    assert seconds(size, 1, link) == 0
    assert list(seconds([0, size], [8, 1], link)) == [0, 0]


@pytest.mark.parametrize("seconds", TIMES)
@given(sizes, ranks, links, st.floats(1, 10))
def test_fewer_bytes_more_bandwidth_and_less_latency_are_never_slower(seconds, size, n, link, factor):
    now = seconds(size, n, link)
    assert now > 0
    assert seconds(size / factor, n, link) <= now * (1 + 1e-12)
    assert seconds(size, n, Tier(link.bytes_per_s * factor, link.latency_s)) <= now * (1 + 1e-12)
    assert seconds(size, n, Tier(link.bytes_per_s, link.latency_s / factor)) <= now * (1 + 1e-12)


@pytest.mark.parametrize("seconds", TIMES)
@given(sizes, ranks, st.floats(1e5, 1e12), st.integers(1, 64))
def test_k_groups_on_one_link_take_k_times(seconds, size, n, rate, groups):
    """[C12]"""
    link = Tier(rate, 0.0)
    assert float(seconds(size, n, Tier(rate / groups, 0.0))) == pytest.approx(groups * float(seconds(size, n, link)))


@pytest.mark.parametrize("seconds", TIMES)
def test_arrays_give_what_single_calls_give(seconds):
    size, n = np.array([[1e6], [1e9]]), np.array([1, 2, 8])
    link = Tier(np.array([1e9, 2e9, 3e9]), np.array([0.0, 1e-3, 1e-6]))
    table = seconds(size, n, link)
    assert table.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert table[i, j] == seconds(size[i, 0], n[j], Tier(link.bytes_per_s[j], link.latency_s[j]))


def test_a_ring_leaves_each_node_once_and_each_domain_once():
    """[C14] 64 ranks on 8 nodes of 8 with NVLink: 8 of 64 edges cross the network. Without it: 56 cross PCIe. Two NVLink
    pairs in nodes of four: of 8 ranks' edges 2 leave a node, 2 more a pair, 4 stay.
    """
    assert c.Layout(64.0, 1.0, 8.0, 8.0).shares[:3] == pytest.approx((7 / 8, 0.0, 1 / 8))
    assert c.Layout(64.0, 1.0, 1.0, 8.0).shares[:3] == pytest.approx((0.0, 7 / 8, 1 / 8))
    assert c.Layout(8.0, 1.0, 2.0, 4.0).shares[:3] == pytest.approx((4 / 8, 2 / 8, 2 / 8))
    assert c.Layout(4.0, 2.0, 8.0, 8.0).shares[:3] == pytest.approx((1.0, 0.0, 0.0))
    assert c.Layout(8.0, 8.0, 8.0, 8.0).shares[:3] == pytest.approx((0.0, 0.0, 1.0))
    assert c.Layout(1.0, 1.0, 8.0, 8.0).shares[:3] == pytest.approx((0.0, 0.0, 0.0))


@examples(100)
@given(*(st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0, 64.0]) for _ in range(4)))
def test_the_shares_of_a_ring_are_its_whole_traffic(ranks, stride, fast, node):
    """[C14]"""
    shares = c.Layout(ranks, stride, min(fast, node), node).shares
    assert sum(shares) == pytest.approx(1.0 if ranks > 1 else 0.0)
    assert min(shares) >= 0
