"""[C9] [C10]: links as rates, one direction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.collectives import ring_rate
from crosszone.cost.tiers import read_figure, read_link_figures, zone_uplinks
from crosszone.inputs.cluster import Cluster, NodeGroup

A100 = {"count": 8, "gpus": 8, "gpu": "a100-80gb-sxm"}


def a100(**more: object) -> NodeGroup:
    return NodeGroup.model_validate(A100 | more)


def test_a_nic_that_is_not_given_is_that_of_the_usual_machine_else_the_labelled_example():
    """[C9] DGX A100: 200 Gbit/s for each of eight; no machine is usual for L40S: 100 Gbit/s a node."""
    assert a100().network_gbps_node == 1600
    assert NodeGroup.model_validate({"gpus": 4, "gpu": "a100-80gb-sxm"}).network_gbps_node == 800
    assert NodeGroup.model_validate({"gpus": 8, "gpu": "l40s"}).network_gbps_node == 100


def test_the_nics_of_all_local_members_carry_a_group():
    """[C10] 8 members of a node with 25 GB/s each: 200 GB/s; one member has its own alone; at most the fast link."""
    assert ring_rate(np.array([16.0, 64.0]), 1.0, 8.0, 240e9, 25e9).tolist() == [200e9, 200e9]
    assert float(ring_rate(2.0, 8.0, 8.0, 240e9, 25e9)) == 25e9
    assert float(ring_rate(16.0, 1.0, 8.0, 240e9, 50e9)) == 240e9


@given(st.integers(1, 8), st.integers(1, 512), st.floats(1, 10))
def test_more_network_never_slows_a_ring(members, nodes, factor):
    """[C10]"""
    slow, fast = (ring_rate(float(members * nodes), 1.0, float(members), 240e9, nic) for nic in (6e9, 6e9 * factor))
    assert fast >= slow


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
    sources = read_link_figures()["sources"]

    def walk(node):
        if isinstance(node, dict) and "value" in node:
            yield node
        elif isinstance(node, dict):
            for inner in node.values():
                yield from walk(inner)

    found = list(walk({key: value for key, value in read_link_figures().items() if key != "sources"}))
    assert len(found) >= 20
    assert {one["origin"] for one in found} <= {"measured", "source code", "standard", "assumed"}
    assert {one["source"] for one in found} == set(sources)
    assert read_figure("mathis") == pytest.approx(np.sqrt(1.5), rel=1e-4)
