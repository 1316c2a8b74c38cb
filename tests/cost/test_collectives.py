"""[C1] to [C8], [C13]: seconds and bytes of collectives, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost import collectives as c
from crosszone.cost.tiers import Tier, figure, shared
from effort import examples

GB = 1e9
LINK = Tier(1e9, 1e-3)
TIMES = [
    c.ring_all_reduce_s,
    c.ring_reduce_scatter_s,
    c.ring_all_gather_s,
    c.tree_all_reduce_s,
    c.best_all_reduce_s,
    c.all_to_all_s,
]
sizes = st.floats(1.0, 1e12)
ranks = st.integers(2, 100_000)
links = st.builds(Tier, st.floats(1e5, 1e12), st.floats(0, 1.0))


def test_a_ring_all_reduce_sends_each_byte_almost_twice():
    """[C2] 8 ranks, 8 GB, 1 GB/s, 1 ms: 14 steps of 1 GB and 1 ms."""
    assert c.ring_all_reduce_s(8 * GB, 8, LINK) == pytest.approx(14 * (1 + 0.001))


def test_reduce_scatter_and_all_gather_are_half_of_it():
    """[C1] 7 steps of 1 GB and 1 ms."""
    assert c.ring_reduce_scatter_s(8 * GB, 8, LINK) == pytest.approx(7 * 1.001)
    assert c.ring_all_gather_s(8 * GB, 8, LINK) == pytest.approx(7 * 1.001)


def test_a_tree_pays_latency_by_level():
    """[C3] 8 ranks: 3 levels up and down; each rank sends the tensor up and down. 9 ranks need a fourth level."""
    assert c.tree_all_reduce_s(8 * GB, 8, LINK) == pytest.approx(2 * 3 * 0.001 + 16)
    assert c.tree_all_reduce_s(8 * GB, 9, LINK) == pytest.approx(2 * 4 * 0.001 + 16)


def test_the_library_takes_the_tree_for_small_tensors_and_the_ring_for_large_ones():
    """[C4]"""
    small, large = c.best_all_reduce_s([1e3, 8 * GB], 64, LINK)
    assert small == c.tree_all_reduce_s(1e3, 64, LINK)
    assert large == c.ring_all_reduce_s(8 * GB, 64, LINK)


def test_an_all_to_all_keeps_a_rank_s_own_part():
    """[C5] 8 ranks: 7/8 of the bytes leave; 7 messages fit one batch of 8, 16 ranks need two."""
    assert figure("collective", "messages_at_once") == 8
    assert c.all_to_all_s(8 * GB, 8, LINK) == pytest.approx(0.001 + 7)
    assert c.all_to_all_s(8 * GB, 16, LINK) == pytest.approx(0.002 + 7.5)


def test_a_message_pays_latency_once():
    """[C6]"""
    assert c.send_s(GB, LINK) == pytest.approx(1.001)


def test_a_hierarchical_all_reduce_crosses_zones_with_shards_only():
    """[C7] 8 GB, 4 ranks a zone at 100 GB/s, 2 zones at 1 GB/s shared by the 4 shards.

    Inside: 3 steps of 2 GB at 100 GB/s, twice. Across: 2 steps of 2 GB / 2 at 0.25 GB/s: as 2 (z-1)/z x 8 GB at 1 GB/s.
    """
    parts = c.hierarchical_all_reduce_s(8 * GB, 4, Tier(100 * GB, 0.0), 2, shared(Tier(GB, 0.01), 4))
    assert parts.reduce_scatter_s == parts.all_gather_s == pytest.approx(0.06)
    assert parts.all_reduce_s == pytest.approx(8.0 + 2 * 0.01)
    assert parts.total_s == pytest.approx(8.14)


def test_at_100_ms_a_tiny_tensor_takes_as_many_one_way_delays_as_steps():
    """[C2] RTT 100 ms, 1 KB over 4 ranks: 6 steps of 50 ms."""
    assert c.ring_all_reduce_s(1e3, 4, Tier(1.25e9, 0.05)) == pytest.approx(6 * 0.05, rel=1e-4)


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


def test_bytes_a_zone_sends():
    """[C8] 16 ranks in 4 zones, 16 GB: contiguous ring 30, interleaved 4 x 30, hierarchical 24, chain of trees 32."""
    assert c.ring_all_reduce_bytes(16 * GB, 16) == 30 * GB
    assert c.flat_ring_egress_bytes(16 * GB, 16, 4) == 30 * GB
    assert c.flat_ring_egress_bytes(16 * GB, 16, 4, crossings=4) == 120 * GB
    assert c.hierarchical_egress_bytes(16 * GB, 4) == 24 * GB
    assert list(c.tree_egress_bytes(16 * GB, [1, 2, 4])) == [0, 16 * GB, 32 * GB]


def test_one_zone_sends_nothing_out():
    """[C8]"""
    assert c.flat_ring_egress_bytes(GB, 16, 1) == c.hierarchical_egress_bytes(GB, 1) == c.tree_egress_bytes(GB, 1) == 0


def test_a_pipeline_boundary_carries_activations_whatever_the_model_weighs():
    """[C8] 4 Mi tokens x 8192 x 2 bytes = 64 GiB each way; without sequence parallelism all 8 tensor ranks send them."""
    assert c.pipeline_egress_bytes(4 * 2**20, 8192, 2) == 64 * 2**30
    assert c.pipeline_egress_bytes(4 * 2**20, 8192, 2, copies=8) == 512 * 2**30


@given(sizes, st.integers(1, 4096), st.integers(2, 100))
def test_zones_exchange_a_shard_not_the_gradient_of_every_gpu(size, per_zone, zones):
    """[C7] [C8] All ranks of a zone together send less than twice the gradient, however many they are."""
    of_one_rank = c.ring_all_reduce_bytes(size / per_zone, zones)
    assert per_zone * of_one_rank == pytest.approx(float(c.hierarchical_egress_bytes(size, zones)))
    assert c.hierarchical_egress_bytes(size, zones) < 2 * size


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
    assert seconds(size, n, shared(link, groups)) == pytest.approx(groups * float(seconds(size, n, link)))


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
    assert c.ring_tier_shares(64.0, 1.0, 8.0, 8.0) == pytest.approx((7 / 8, 0.0, 1 / 8))
    assert c.ring_tier_shares(64.0, 1.0, 1.0, 8.0) == pytest.approx((0.0, 7 / 8, 1 / 8))
    assert c.ring_tier_shares(8.0, 1.0, 2.0, 4.0) == pytest.approx((4 / 8, 2 / 8, 2 / 8))
    assert c.ring_tier_shares(4.0, 2.0, 8.0, 8.0) == pytest.approx((1.0, 0.0, 0.0))
    assert c.ring_tier_shares(8.0, 8.0, 8.0, 8.0) == pytest.approx((0.0, 0.0, 1.0))
    assert c.ring_tier_shares(1.0, 1.0, 8.0, 8.0) == pytest.approx((0.0, 0.0, 0.0))


@examples(100)
@given(*(st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0, 64.0]) for _ in range(4)))
def test_the_shares_of_a_ring_are_its_whole_traffic(ranks, stride, fast, node):
    """[C14]"""
    shares = c.ring_tier_shares(ranks, stride, min(fast, node), node)
    assert sum(shares) == pytest.approx(1.0 if ranks > 1 else 0.0)
    assert min(shares) >= 0
