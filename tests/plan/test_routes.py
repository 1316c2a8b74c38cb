"""Routes: every way through few node groups once, the best connected through many."""

from __future__ import annotations

from itertools import pairwise, permutations
from math import comb, factorial

import pytest
from hypothesis import given

from builders import scenario, zone
from crosszone.plan.layouts import ZoneGraph, build_zone_graph, list_zone_orders
from effort import examples
from plan.enumeration import groupings
from plan.given import problems


def ground(zones, **cluster) -> ZoneGraph:
    found = scenario(cluster={"zones": zones, **cluster})
    return build_zone_graph(found.cluster, found.links, "bf16")


def distinct(count: int) -> list:
    """Zones that no swap leaves as they are: different uplinks."""
    return [zone("abcd"[i], 1, uplink_gbps=i + 1) for i in range(count)]


def lah(n: int, k: int) -> int:
    """Ways to put n things into k ordered lists."""
    return comb(n - 1, k - 1) * factorial(n) // factorial(k)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_route_is_taken_once(count):
    """Sets of ordered paths over any of n groups: sum over sizes of C(n, s) times the Lah numbers of s."""
    found = list_zone_orders(ground(distinct(count), default_link={"gbps": 10, "rtt_ms": 5}))
    expected = sum(comb(count, size) * sum(lah(size, k) for k in range(1, size + 1)) for size in range(1, count + 1))
    assert len({tuple(sorted(route)) for route in found}) == len(found) == expected


def test_equal_zones_count_once():
    """Two equal zones: one alone, side by side, one path, each once; two distinct ones have two more."""
    link = {"gbps": 10, "rtt_ms": 5}
    assert set(list_zone_orders(ground([zone("a", 2), zone("b", 2)], default_link=link))) == {
        ((0,),),
        ((0,), (1,)),
        ((0, 1),),
    }
    assert set(list_zone_orders(ground(distinct(2), default_link=link))) == {
        ((0,),), ((1,),), ((0,), (1,)), ((0, 1),), ((1, 0),),
    }  # fmt: skip


def test_zones_with_other_links_are_not_equal():
    """Three equal zones, one link faster: only the two ends of that link may be swapped."""
    zones = [zone(name, 1) for name in "abc"]
    found = ground(
        zones, links=[{"between": ["a", "b"], "gbps": 100, "rtt_ms": 5}], default_link={"gbps": 10, "rtt_ms": 5}
    )
    assert found.symmetries == ((1, 0, 2),)
    whole = ground(zones, default_link={"gbps": 10, "rtt_ms": 5})
    assert sorted(whole.symmetries) == sorted(set(permutations(range(3))) - {(0, 1, 2)})


def test_a_link_faster_one_way_keeps_the_direction():
    """Swapping the ends of a link that is faster one way would change it."""
    link = {"between": ["a", "b"], "gbps": 100, "gbps_back": 10, "rtt_ms": 5}
    assert ground([zone("a", 1), zone("b", 1)], links=[link]).symmetries == ()


@examples(60)
@given(problems(gpus=12, pins=False))
def test_routes_are_all_ways_up_to_swaps(problem):
    """Small clusters: the same as plain loops, each class of swaps once."""
    here = problem.zone_graph
    if not here.try_all_orders:
        return
    found = problem.zone_orders

    def least(route):
        return min(
            tuple(sorted(route)), *(tuple(sorted(tuple(s[g] for g in path) for path in route)) for s in here.symmetries)
        ) if here.symmetries else tuple(sorted(route))  # fmt: skip

    assert sorted(least(route) for route in found) == sorted({least(one) for one in groupings(here.groups)})


def test_many_zones_go_side_by_side_and_in_a_row():
    """Ten zones on a line, neighbours near: whole sets of each size, and a path visits neighbours one after another."""
    zones = [zone(f"z{i}", 8) for i in range(10)]
    links = [{"between": [f"z{i}", f"z{i + 1}"], "gbps": 100, "rtt_ms": 1} for i in range(9)]
    found = list_zone_orders(ground(zones, links=links, default_link={"gbps": 1, "rtt_ms": 50}))
    assert len({tuple(sorted(route)) for route in found}) == len(found)
    sizes = {sum(len(path) for path in route) for route in found}
    assert sizes == set(range(1, 11))
    assert tuple((g,) for g in range(10)) in found
    (row,) = next(route for route in found if len(route) == 1 and len(route[0]) == 10)
    assert row in (tuple(range(10)), tuple(range(9, -1, -1)))


@pytest.mark.parametrize("count", [17, 100])
def test_very_many_zones_are_tried_in_chosen_sizes(count):
    found = list_zone_orders(ground([zone(f"z{i}", 1) for i in range(count)], default_link={"gbps": 10, "rtt_ms": 5}))
    assert len(found) < 400
    everything = tuple(range(count))
    assert tuple((g,) for g in everything) in found
    assert any(len(route) == 1 and tuple(sorted(route[0])) == everything for route in found)
    sizes = sorted({sum(map(len, route)) for route in found})
    assert sizes[:16] == list(range(1, 17))
    assert all(b <= a * 4 / 3 for a, b in pairwise(sizes[16:]))
    assert all(len(set(path)) == len(path) for route in found for path in route)
