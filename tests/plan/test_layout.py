"""Layouts put every rank on a GPU of its own, where they say."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import scenario, zone
from crosszone.inputs.strategy import Strategy
from crosszone.plan.layouts import REPLICAS_NEAR, STAGES_NEAR, Chain, StageMap, list_splits
from crosszone.plan.search import PlanSearch
from effort import examples
from plan.given import SHOWN_AS_FOUND, problems

TWO_ZONES = scenario(
    cluster={"zones": [zone("a", 4), zone("b", 2, count=2)], "default_link": {"gbps": 10, "rtt_ms": 5}}
).cluster


@examples(60, phases=SHOWN_AS_FOUND)
@given(problems(gpus=16), st.data())
def test_ranks_take_gpus_of_their_own_in_the_groups_of_the_layout(problem, data):
    """[R1] No GPU twice; every stage of every replica in its chain's node group; cells whole."""
    for space in PlanSearch(problem, top=1).spaces:
        if not space.layout_table.layouts:
            continue
        shape = data.draw(st.sampled_from(space.layout_table.layouts))
        layout, cluster = shape.stage_map, problem.cluster
        placement = layout.build_placement(cluster, shape.tp, shape.cp, shape.order)
        where, at = placement.locate_ranks(cluster), placement.compute_coordinates(strategy_of(shape))
        gpus = list(zip(where["group"].tolist(), where["node"].tolist(), where["gpu"].tolist(), strict=True))
        assert len(set(gpus)) == len(gpus) == shape.gpus == shape.tp * shape.cp * shape.pp * shape.dp
        rows = np.repeat(layout.groups, layout.shares, axis=0)
        assert (where["group"] == rows[at["dp"], at["pp"]]).all()
        counts = {g: int((where["group"] == g).sum()) for g in set(where["group"].tolist())}
        assert counts == {g: cells * shape.tp * shape.cp for g, cells in layout.cells.items()}
        assert all(counts[g] <= problem.groups[g].total_gpus for g in counts)


@examples(40, phases=SHOWN_AS_FOUND)
@given(problems(gpus=16), st.data())
def test_tensor_parallel_groups_stay_in_a_node_or_take_whole_ones(problem, data):
    """No TP group lies in more nodes than it needs."""
    for space in PlanSearch(problem, top=1).spaces:
        wide = [shape for shape in space.layout_table.layouts if shape.tp > 1]
        if not wide:
            continue
        shape = data.draw(st.sampled_from(wide))
        placement = shape.stage_map.build_placement(problem.cluster, shape.tp, shape.cp, shape.order)
        assert placement.list_remarks(problem.cluster, strategy_of(shape)) == []


def strategy_of(shape) -> Strategy:
    return Strategy(tp=shape.tp, cp=shape.cp, pp=shape.pp, dp=shape.dp)


@pytest.mark.parametrize(
    ("order", "groups"),
    [(REPLICAS_NEAR, [0, 0, 1, 0, 0, 1]), (STAGES_NEAR, [0, 0, 0, 0, 1, 1])],
)
def test_orders_number_replicas_or_stages_first(order, groups):
    """Two replicas in zone a, one in b, two stages: by hand."""
    layout = StageMap((Chain(2, ((0, 2),)), Chain(1, ((1, 2),))))
    placement = layout.build_placement(TWO_ZONES, 1, 1, order)
    assert placement.locate_ranks(TWO_ZONES)["group"].tolist() == groups


@pytest.mark.parametrize(
    ("chains", "crossing", "zones"),
    [
        ((Chain(4, ((0, 1),)),), "none", (0,)),
        ((Chain(2, ((0, 1),)), Chain(2, ((1, 1),))), "dp", (0, 1)),
        ((Chain(2, ((1, 2), (0, 2))),), "pp", (1, 0)),
        ((Chain(1, ((0, 2),)), Chain(1, ((0, 1), (1, 1)))), "both", (0, 1)),
    ],
)
def test_what_crosses_zones(chains, crossing, zones):
    """A chain through zones: the pipeline; chains in several: replicas."""
    layout = StageMap(chains)
    assert layout.find_crossing((0, 1)) == crossing
    assert layout.list_zones((0, 1)) == zones


shares = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(st.integers(1, 20), shares)
def test_splits_are_all_there_are(total, most):
    """Every way to add up to the total within the limits, once, against plain loops."""
    expected = [one for one in product(*(range(1, m + 1) for m in most)) if sum(one) == total]
    assert sorted(list_splits(total, most, 10_000)) == sorted(expected)


@given(st.integers(1, 40), st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 8))
def test_few_splits_add_up_and_the_first_is_even(total, most, limit):
    """At most so many; where they are not all, the first is within one of its share by proportion (if that is >= 1)."""
    found = list_splits(total, most, limit)
    assert len(found) <= limit
    assert bool(found) == (len(most) <= total <= sum(most))
    assert all(sum(one) == total and all(1 <= x <= m for x, m in zip(one, most, strict=True)) for one in found)
    assert len(set(found)) == len(found)
    exact = [total * m / sum(most) for m in most]
    if len(list_splits(total, most, limit + 1)) > limit and min(exact, default=0) >= 1:
        assert all(abs(x - y) <= 1 for x, y in zip(found[0], exact, strict=True))
