"""Connections of plans across zones."""

from __future__ import annotations

import pytest

from builders import scenario
from crosszone.inputs.strategy import Communication
from crosszone.plan.planner import plan
from crosszone.plan.problem import choose_flows
from predict.given import MEGATRON, one_zone, zones


def flows(cluster: dict, **asked) -> int:
    given = scenario(cluster=cluster)
    return choose_flows(Communication(**asked), given.cluster, given.links).flows


def test_as_many_connections_as_fill_the_line():
    """[W7] 100 Gbit/s x 0.9653 are 12.07 GB/s; 8 ranks x 2 channels x 3.15 MB a 25 ms round trip 2.01 GB/s: 6 of them, 8."""
    assert flows(zones(2, 8, gbps=100, rtt_ms=25)) == 8
    assert flows(zones(2, 8, gbps=10, rtt_ms=25)) == 1
    assert flows(zones(2, 2, gbps=25, rtt_ms=25)) == 8  # two ranks in place of eight
    assert flows(zones(2, 8, gbps=100, rtt_ms=0.1)) == 1


def test_what_is_given_stays_and_one_zone_needs_none():
    assert flows(zones(2, 8, gbps=100, rtt_ms=25), flows=3) == 3
    assert flows(one_zone(8)) == 1
    assert flows(zones(2, 8, gbps=10_000, rtt_ms=300)) == 64  # no more than NCCL opens


@pytest.mark.parametrize(("pinned", "expected"), [({}, 8), ({"communication": {"flows": 2}}, 2)])
def test_a_plan_across_zones_says_how_many(pinned, expected):
    """[W7] B06: the number is part of the strategy."""
    strategy = {"tp": 8, "pp": 1, "dp": 2} | pinned
    given = scenario(job=MEGATRON, cluster=zones(2, 8, gbps=100, rtt_ms=25), strategy=strategy)
    best = plan(given, top=1, local_updates=False).plans[0]
    assert best.crossing == "dp" and best.strategy.communication.flows == expected
