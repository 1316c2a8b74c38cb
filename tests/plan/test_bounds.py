"""Every bound of the search is below the next closer one and below the simulation; its memory is the predictor's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.memory import GIB
from crosszone.plan.search import PlanSearch
from effort import examples
from plan.given import FRAMEWORKS, SHOWN_AS_FOUND, grids, problem_of, problems, seeded

NEAR = 1.0 + 1e-9
"""Rounding, relative."""


def checked(search: PlanSearch, number: int, grid: Any, core: int, leader: int, option: int) -> None:
    """One strategy under all bounds."""
    core_, leader_, option_ = (np.array([x]) for x in (core, leader, option))
    cores = grid.search_nodes.take(core_)
    lead, quick = grid.bound_groups_s(core_, leader_)[0], grid.bound_analytic_s(cores, option_)[0]
    tight, over = grid.bound_per_stage_s(cores, option_)[0], grid.find_over_bytes(core_, option_)[0]
    one = search.build_candidate(grid, core, option)
    stages = one.predictor.memory.stages
    lacks = max(stage.total - stage.limit for stage in stages) * GIB
    assert over == pytest.approx(lacks, rel=1e-9, abs=1e-9 * GIB)
    assert lead <= quick * NEAR
    assert quick <= tight * NEAR
    near = grid.bound_simulated_s(cores, option_)[0]
    assert tight <= near * NEAR * NEAR, "one rounding is taken off"
    assert near <= one.step_s * NEAR
    outlined = outline_of(search)
    shape = (number, int(grid.search_nodes.layout[core]))
    assert over > 0 or shape in outlined, "a strategy that fits, of a shape that was dropped"
    assert outlined.get(shape, 0.0) <= lead * NEAR


def outline_of(search: PlanSearch) -> dict[tuple[int, int], float]:
    """What each shape that may fit must take at least, by space and shape."""
    space, shape, _, bound = search._rank_layouts()
    return dict(zip(zip(space.tolist(), shape.tolist(), strict=True), bound.tolist(), strict=True))


def assert_leads_are_below(grid: Any) -> None:
    """The bound of a sort of options is below every option of it, over the whole grid."""
    core, leader = grid.pair_with_groups()
    lead = grid.bound_groups_s(core, leader)
    owner, option = grid.expand_groups(core, leader)
    counts = np.array(
        [grid.option_groups[t].counts[n] for t, n in zip(grid.search_nodes.traits[core], leader, strict=True)]
    )
    quick = grid.bound_analytic_s(grid.search_nodes.take(owner), option)
    assert (np.repeat(lead, counts) <= quick * NEAR).all()
    assert (grid.bound_nodes_s(np.arange(len(grid.search_nodes)))[core] <= lead * NEAR).all()


def draw_and_check(problem: Any, pick: Any, each: int) -> int:
    """Some strategies of every framework; how many there were."""
    search = PlanSearch(problem, top=3, prune=False)
    count = 0
    for number, grid in grids(search):
        core, leader = grid.pair_with_groups()
        assert_leads_are_below(grid)
        for _ in range(each):
            at = pick(len(core))
            _, options = grid.expand_groups(core[at : at + 1], leader[at : at + 1])
            checked(search, number, grid, int(core[at]), int(leader[at]), int(options[pick(len(options))]))
            count += 1
    return count


@pytest.mark.slow
@examples(40, phases=SHOWN_AS_FOUND)
@given(problems(gpus=8), st.data())
def test_no_bound_is_above_a_closer_one_or_the_simulation(problem, data):
    """[V3] [S12] Any strategy of any framework on one to three zones."""
    draw_and_check(problem, lambda size: data.draw(st.integers(0, size - 1)), each=4)


@pytest.mark.slow
@examples(15, phases=SHOWN_AS_FOUND)
@given(problems(gpus=24, zones=(2, 3)), st.data())
def test_no_bound_is_above_the_simulation_on_larger_clusters(problem, data):
    """[V3] [S12] Where not every layout is tried."""
    draw_and_check(problem, lambda size: data.draw(st.integers(0, size - 1)), each=3)


@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
def test_every_framework_is_drawn_from(framework):
    """[V3] A fixed cluster on which each framework has strategies, many of each looked at."""
    random = np.random.default_rng(0)
    problem = seeded(2, pins=False, framework=[framework], gpus=8, zones=(2,))
    assert draw_and_check(problem, lambda size: int(random.integers(size)), each=25) == 25


@pytest.mark.parametrize("framework", ["fsdp", "megatron"])
def test_a_sequence_that_cannot_be_split_bounds_as_well(framework):
    """[V3] 256 tokens over 3 or 6 ranks: no sequence parallelism, but tensor collectives may still overlap."""
    model = {"layers": 4, "hidden": 768, "heads": 6, "kv_heads": 3, "ffn_hidden": 3072, "vocab": 32000}
    job = {"seq_len": 256, "global_batch": 4, "framework": framework}
    zones = [{"name": "a", "nodes": [{"gpus": 6, "gpu": "a100-40gb-sxm"}]}]
    problem = problem_of({"name": "odd", "model": model, "job": job, "cluster": {"zones": zones}})
    for _, grid in grids(PlanSearch(problem, top=1)):
        assert {3, 6} <= set(grid.layout_table.tp.tolist())
        assert_leads_are_below(grid)
