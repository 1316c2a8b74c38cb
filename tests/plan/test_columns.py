"""The columns that the search looks up are those that the predictor makes of the same placed strategy."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.columns import LinkColumns
from crosszone.plan import bounds
from crosszone.plan.search import PlanSearch
from crosszone.predict.batch import Batch
from effort import examples
from plan.given import SHOWN_AS_FOUND, grids, problems

BEST_CASE = "boundary_fast"
"""The search takes the best case of it: which boundaries lie in a fast-link domain is known once ranks are placed."""


def searched(grid: Any, core: int, option: int) -> Batch:
    """The columns of one strategy, stage by stage, as the search has them."""
    kept = []

    def kept_step_s(batch: Batch, *_: Any) -> Any:
        kept.append(batch)
        return np.zeros(len(batch.counts))

    with patch.object(bounds, "bound_step_s", kept_step_s):
        grid.bound_per_stage_s(grid.search_nodes.take(np.array([core])), np.array([option]))
    (batch,) = kept
    return batch


def distinct_rows(columns: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """Every figure of every stage, each kind of replica once."""
    names = [f.name for f in fields(columns) if f.name != BEST_CASE]
    whole = np.stack([np.broadcast_to(getattr(columns, name), shape) for name in names])
    rows = np.unique(np.nan_to_num(whole.transpose(1, 0, 2), nan=-1.0, posinf=np.inf), axis=0)
    return {name: rows[:, at] for at, name in enumerate(names)}


def read(links: LinkColumns) -> LinkColumns:
    """The links without what is not read: how zones reduce, where no stage has replicas in several."""
    return links if np.max(links.dp_zones) > 1 else replace(links, flat=0.0)


def assert_same(found: Any, expected: Any, shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """The same figures for the same kinds of replicas, in any order."""
    ours, theirs = (distinct_rows(one, shape) for one, shape in zip((found, expected), shapes, strict=True))
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-12, atol=0, err_msg=name)


@pytest.mark.slow
@examples(40, phases=SHOWN_AS_FOUND)
@given(problems(gpus=10), st.data())
def test_columns_are_those_of_the_predictor(problem, data):
    """Work, GPUs and links of every stage of every kind of replica; boundaries inside a fast domain left out."""
    search = PlanSearch(problem, top=3)
    for _, grid in grids(search):
        core, leader = grid.pair_with_groups()
        for _ in range(3):
            at = data.draw(st.integers(0, len(core) - 1))
            _, options = grid.expand_groups(core[at : at + 1], leader[at : at + 1])
            option = options[data.draw(st.integers(0, len(options) - 1))]
            ours = searched(grid, int(core[at]), int(option))
            theirs = search.build_candidate(grid, int(core[at]), int(option)).predictor.batch
            shapes = (ours.counts.shape, theirs.counts.shape)
            assert_same(ours.work, theirs.work, shapes)
            assert_same(ours.gpu, theirs.gpu, shapes)
            assert_same(read(ours.links), read(theirs.links), shapes)
            assert_same(ours.model, theirs.model, shapes)
            assert_same(ours.stack, theirs.stack, shapes)
            assert np.array_equal(np.unique(ours.counts, axis=0), np.unique(theirs.counts, axis=0))


@examples(40, phases=SHOWN_AS_FOUND)
@given(problems(gpus=12), st.data())
def test_the_best_case_of_a_boundary_is_not_below_any_real_one(problem, data):
    """Where the search says that no boundary lies inside a fast-link domain, there is a replica of which none does."""
    search = PlanSearch(problem, top=3)
    for _, grid in grids(search):
        core, leader = grid.pair_with_groups()
        at = data.draw(st.integers(0, len(core) - 1))
        option = grid.expand_groups(core[at : at + 1], leader[at : at + 1])[1][0]
        ours = searched(grid, int(core[at]), int(option)).links.boundary_fast
        one = search.build_candidate(grid, int(core[at]), int(option))
        inside = one.predictor.batch.links.boundary_fast[:, : max(1, one.layout.pp - (not one.schedule.wraps))]
        assert one.layout.pp == 1 or np.max(inside, axis=1).min() <= np.max(ours)
