"""[C9] to [C12]: the tiers of a cluster as rates of one GPU, one direction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.tiers import (
    Tier,
    figure,
    link_figures,
    nic_tier,
    node_tiers,
    ring_over,
    ring_tier,
    zone_uplinks,
)
from crosszone.inputs.cluster import Cluster, NodeGroup

A100 = {"count": 8, "gpus": 8, "gpu": "a100-80gb-sxm"}


def a100(**more: object) -> NodeGroup:
    return NodeGroup.model_validate(A100 | more)


def test_an_a100_node_in_bytes_per_second_and_direction():
    """[C9] NVLink 600 GB/s both ways: 300, of which 20 of every 25 are planned with; 200 Gbit/s: 25 GB/s x 0.95."""
    tiers = node_tiers(a100(nic_gbps_per_gpu=200))
    assert tiers.fast.bytes_per_s == pytest.approx(240e9)
    assert tiers.pcie.bytes_per_s == pytest.approx(16 * 16 * 128 / 130 / 8 * 1e9 * 0.762)
    assert tiers.nic.bytes_per_s == pytest.approx(23.75e9)
    assert tiers.node_nic_bytes_per_s == pytest.approx(190e9)
    assert not tiers.shared_nic


def test_a_nic_of_the_node_is_shared_by_its_gpus():
    """[C9] 400 Gbit/s for 8 GPUs: 50 GB/s x 0.95 / 8."""
    tiers = node_tiers(a100(nic_gbps=400))
    assert tiers.nic.bytes_per_s == pytest.approx(47.5e9 / 8)
    assert tiers.shared_nic


def test_a_nic_that_is_not_given_is_that_of_the_usual_machine_else_the_labelled_example():
    """[C9] DGX A100: 200 Gbit/s for each of eight, 200 GB/s a node; no machine is usual for L40S: 100 Gbit/s a node."""
    assert node_tiers(a100()).node_nic_bytes_per_s == pytest.approx(200e9 * 0.95)
    half = NodeGroup.model_validate({"gpus": 4, "gpu": "a100-80gb-sxm"})
    assert node_tiers(half).node_nic_bytes_per_s == pytest.approx(100e9 * 0.95)
    l40s = NodeGroup.model_validate({"gpus": 8, "gpu": "l40s"})
    assert node_tiers(l40s).node_nic_bytes_per_s == pytest.approx(12.5e9 * 0.95)


def test_tcp_inside_a_zone_is_slower_to_answer_than_rdma():
    """[C9]"""
    rdma, tcp = node_tiers(a100()).nic, node_tiers(a100(fabric="tcp")).nic
    assert tcp.latency_s > rdma.latency_s


def test_gpus_without_a_fast_link_talk_over_pcie():
    """[C9]"""
    tiers = node_tiers(a100(intra_link="pcie"))
    assert tiers.fast == tiers.pcie
    assert ring_tier(tiers, 8, 1, 8).bytes_per_s == pytest.approx(tiers.pcie.bytes_per_s)


def test_the_nics_of_all_local_members_carry_a_group():
    """[C10] 8 members with 25 GB/s each: 200 GB/s; one member has its own alone."""
    tiers = node_tiers(a100(nic_gbps_per_gpu=200))
    assert list(nic_tier(tiers, [1, 2, 8]).bytes_per_s) == pytest.approx([23.75e9, 47.5e9, 190e9])


def test_groups_side_by_side_divide_a_shared_nic():
    """[C10] 50 GB/s x 0.95: one group alone has all that PCIe lets it send, eight have an eighth each."""
    tiers = node_tiers(a100(nic_gbps=160))
    assert nic_tier(tiers, 1).bytes_per_s == pytest.approx(19e9 / 8)
    assert list(nic_tier(tiers, 1, groups=[1, 2, 8]).bytes_per_s) == pytest.approx([19e9, 19e9 / 2, 19e9 / 8])
    assert nic_tier(tiers, 8).bytes_per_s == pytest.approx(19e9)


def test_a_ring_runs_at_the_speed_of_what_it_must_cross():
    """[C11] Inside the node NVLink; beyond it 8 NICs, which are slower here; one GPU a node: its own NIC."""
    tiers = node_tiers(a100(nic_gbps_per_gpu=200))
    ring = ring_tier(tiers, [1, 2, 8, 16, 64, 8], [1, 2, 8, 8, 8, 1], [1, 2, 8, 8, 8, 1])
    assert list(ring.bytes_per_s) == pytest.approx([np.inf, 240e9, 240e9, 190e9, 190e9, 23.75e9])
    assert ring.latency_s[0] == 0


def test_a_ring_through_fast_nics_is_held_by_the_fast_link():
    """[C11] 8 NICs of 400 Gbit/s are 380 GB/s, more than NVLink's 240 (and PCIe lets 24 a GPU out: 192)."""
    tiers = node_tiers(a100(nic_gbps_per_gpu=400))
    assert ring_tier(tiers, 16, 8, 8).bytes_per_s == pytest.approx(8 * tiers.pcie.bytes_per_s)
    wide = tiers._replace(nic=Tier(47.5e9, tiers.nic.latency_s))
    assert ring_tier(wide, 16, 8, 8).bytes_per_s == pytest.approx(240e9)


def test_a_step_pays_the_mean_latency_of_the_ring_s_edges():
    """[C11] 16 ranks on 2 nodes: 14 edges inside at 3.4 us, 2 between at 14 us."""
    tiers = node_tiers(a100(nic_gbps_per_gpu=200))
    assert ring_tier(tiers, 16, 8, 8).latency_s == pytest.approx((14 * 3.4e-6 + 2 * 14e-6) / 16)


def test_a_rack_wide_domain_is_one_fast_link():
    """[C11] 72 GPUs of a rack in nodes of 4."""
    tiers = node_tiers(NodeGroup.model_validate({"count": 18, "gpus": 4, "gpu": "gb200", "nic_gbps_per_gpu": 400}))
    assert tiers.domain == 72
    assert ring_tier(tiers, 72, 72, 4).bytes_per_s == pytest.approx(900e9 * 0.802)
    assert ring_tier(tiers, 144, 72, 4).bytes_per_s == pytest.approx(min(900e9 * 0.802, 72 * tiers.nic.bytes_per_s))


def test_pairs_of_bridged_gpus_meet_over_pcie():
    """[C11] Domains of 2 in nodes of 8: 4 edges NVLink, 4 PCIe."""
    tiers = node_tiers(a100(nvlink_domain=2))
    ring = ring_tier(tiers, 8, 2, 8)
    assert ring.bytes_per_s == pytest.approx(tiers.pcie.bytes_per_s)
    assert ring_tier(tiers, 16, 2, 8).latency_s == pytest.approx((8 * 3.4e-6 + 6 * 5.7e-6 + 2 * 14e-6) / 16)
    assert ring.latency_s == pytest.approx((4 * 3.4e-6 + 4 * 5.7e-6) / 8)


def test_a_ring_of_unequal_edges_has_the_slowest_rate_and_the_mean_latency():
    """[C11]"""
    ring = ring_over((Tier(10.0, 1.0), 3), (Tier(5.0, 5.0), 1), (Tier(0.1, 99.0), 0))
    assert ring == Tier(5.0, 2.0)


@given(st.integers(1, 8), st.integers(1, 512), st.floats(1, 10))
def test_more_network_never_slows_a_ring(members, nodes, factor):
    """[C11]"""
    slow, fast = node_tiers(a100(nic_gbps_per_gpu=50.0)), node_tiers(a100(nic_gbps_per_gpu=50.0 * factor))
    n = members * nodes
    assert ring_tier(fast, n, members, members).bytes_per_s >= ring_tier(slow, n, members, members).bytes_per_s


@given(st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_groups_that_fill_a_node_use_its_nics_up_and_no_more(members, one_nic):
    """[C10] 8 / k groups of k members each."""
    tiers = node_tiers(a100(nic_gbps=160) if one_nic else a100(nic_gbps_per_gpu=20))
    assert 8 / members * nic_tier(tiers, members).bytes_per_s == pytest.approx(tiers.node_nic_bytes_per_s)


def test_uplinks_limit_both_ways_unless_the_downlink_is_its_own():
    """[C9] 10 Gbit/s: 1.25 GB/s of which 1448 in 1500 bytes are payload."""
    zones = [
        {"name": "a", "nodes": [A100], "uplink_gbps": 10},
        {"name": "b", "nodes": [A100], "uplink_gbps": 10, "downlink_gbps": 20},
        {"name": "c", "nodes": [A100]},
    ]
    out, into = zone_uplinks(Cluster.model_validate({"zones": zones, "default_link": {"rtt_ms": 10}}))
    assert list(out) == pytest.approx([1.25e9 * 1448 / 1500] * 2 + [np.inf], rel=1e-4)
    assert list(into) == pytest.approx([1.25e9 * 1448 / 1500, 2.5e9 * 1448 / 1500, np.inf], rel=1e-4)


def test_every_figure_names_its_origin_and_a_source_that_is_listed():
    sources = link_figures()["sources"]

    def walk(node):
        if isinstance(node, dict) and "value" in node:
            yield node
        elif isinstance(node, dict):
            for inner in node.values():
                yield from walk(inner)

    found = list(walk({key: value for key, value in link_figures().items() if key != "sources"}))
    assert len(found) >= 20
    assert {one["origin"] for one in found} <= {"measured", "source code", "standard", "assumed"}
    assert {one["source"] for one in found} == set(sources)
    assert figure("mathis") == pytest.approx(np.sqrt(1.5), rel=1e-4)
