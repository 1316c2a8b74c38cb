"""The space holds every legal strategy and no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import zone
from crosszone.inputs.job import state_bytes
from crosszone.inputs.rules import list_broken_rules, list_refusals
from crosszone.plan.candidates import Candidate
from crosszone.plan.options import FIELDS, GRADIENTS, MIN_TOKENS_PER_RANK, OVERLAPS
from crosszone.plan.problem import Problem
from crosszone.plan.search import PlanSearch
from crosszone.predict.step import check_step_length
from effort import examples, mostly_long
from plan.enumeration import beaten_alone, described, effects
from plan.given import SHOWN_AS_FOUND, candidates, grids, problem_of, problems

TINY = {"layers": 4, "hidden": 512, "heads": 4, "kv_heads": 2, "ffn_hidden": 2048, "vocab": 32000}
EXPERTS = TINY | {"moe": {"experts": 4, "top_k": 2, "ffn_hidden": 512}}
CLUSTERS = {
    "unequal zones": [zone("a", 2), zone("b", 2, uplink_gbps=5)],
    "equal zones": [zone("a", 2), zone("b", 2)],
    "two groups in a zone": [{"name": "a", "nodes": [*zone("a", 2)["nodes"], *zone("a", 1)["nodes"]]}, zone("b", 2)],
    "nodes of three": [zone("a", 3), zone("b", 1, count=2)],
}
SWAPS = {"equal zones": [{0: 1, 1: 0}]}
"""Renumberings of the node groups that change nothing."""
TALK = {"overlap_gradients": True, "reduce": "flat", "gradient_dtype": "fp32"}
SHARDED = {"offload": "none", "communication": TALK | {"overlap_parameters": True, "overlap_tensor": False}}
SETTLED: dict[str, dict[str, Any]] = {
    "ddp": {"communication": TALK},
    "horovod": {"communication": TALK},
    "deepspeed": {"zero": 1, "offload": "none", "communication": TALK | {"overlap_parameters": True}},
    "fsdp": {"zero": 3, "micro_batch": 1, **SHARDED},
    "megatron": {"zero": 1, **SHARDED},
}
"""Options pinned while degrees and layouts are counted, so that there are hundreds and not a million."""


def tiny(zones: list[Any], framework: str, model: dict[str, Any] = TINY, batch: int = 4, **pinned: Any) -> Problem:
    fields = {"name": "tiny", "model": model, "cluster": {"zones": zones, "default_link": {"gbps": 10, "rtt_ms": 5}}}
    return problem_of(
        fields | {"job": {"seq_len": 2 * MIN_TOKENS_PER_RANK, "global_batch": batch, "framework": framework}}, **pinned
    )


def all_candidates(search: PlanSearch) -> list[Candidate]:
    return [
        one
        for _, grid in grids(search)
        for one in candidates(search, grid, *grid.expand_groups(*grid.pair_with_groups()))
    ]


def assert_same_strategies(problem: Problem, swaps: list[dict[int, int]]) -> None:
    """What the strategies of the space come to is what those of plain loops come to.

    Where nothing is replicated the space has few ZeRO stages; those it leaves out must be no better.
    """
    search = PlanSearch(problem, top=1)
    found = {described(one.predictor, swaps): one.strategy for one in all_candidates(search)}
    assert found
    for space in search.spaces:
        wide = state_bytes(problem.job, framework=space.framework.name).gradients > 2
        expected = effects(problem, space.framework, wide, swaps, space.settings)
        left_out = {effect: strategy for effect, strategy in expected.items() if effect not in found}
        assert not [strategy for effect, strategy in left_out.items() if not beaten_alone(effect, found)], "missing"
        assert not [strategy for effect, strategy in found.items() if effect not in expected], "illegal"


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_long(CLUSTERS, "unequal zones", "two groups in a zone"))
@pytest.mark.parametrize("framework", SETTLED)
def test_every_degree_and_layout_is_in_the_space(name, framework):
    """Plain loops over degrees, ways through the node groups, schedules and micro-batches find the same strategies."""
    problem = tiny(CLUSTERS[name], framework, recompute="none", shard_within="all", **SETTLED[framework])
    assert_same_strategies(problem, SWAPS.get(name, []))


@pytest.mark.parametrize(
    ("framework", "degrees"),
    [
        ("ddp", {}),
        ("horovod", {}),
        pytest.param(*("deepspeed", {"pp": 1, "tp": 1, "dp": 4}), marks=pytest.mark.long),
        ("deepspeed", {"pp": 1, "tp": 1, "dp": 1}),
        pytest.param(*("deepspeed", {"pp": 2, "tp": 1, "recompute": "none"}), marks=pytest.mark.long),
        ("deepspeed", {"pp": 1, "tp": 2, "recompute": "full"}),
        ("fsdp", {"pp": 1, "tp": 1, "cp": 1, "dp": 4, "recompute": "none"}),
        pytest.param(
            *("fsdp", {"pp": 2, "tp": 2, "cp": 1, "schedule": "1f1b", "recompute": "full"}), marks=pytest.mark.long
        ),
        pytest.param(*("megatron", {"pp": 1, "tp": 1, "cp": 1, "dp": 4, "recompute": "none"}), marks=pytest.mark.long),
        ("megatron", {"pp": 1, "tp": 2, "cp": 1, "dp": 2, "recompute": "selective"}),
        pytest.param(
            *("megatron", {"pp": 2, "tp": 1, "cp": 1, "dp": 2, "schedule": "1f1b", "recompute": "none"}),
            marks=pytest.mark.long,
        ),
    ],
)
@pytest.mark.slow
def test_every_option_is_in_the_space(framework, degrees):
    """The same over all options of few degrees: sharding, recomputation, offload, types, overlap, reductions."""
    problem = tiny(CLUSTERS["unequal zones"], framework, micro_batch=1, **degrees)
    assert_same_strategies(problem, [])


@pytest.mark.parametrize("count", [1, 2])
def test_every_expert_degree_is_in_the_space(count):
    """Experts are shared out inside a zone: with two zones, groups that would cross are left out by both."""
    zones = [zone("ab"[i], 4 // count) for i in range(count)]
    pinned = SETTLED["megatron"] | {"pp": 1, "cp": 1, "micro_batch": 1, "recompute": "none", "shard_within": "all"}
    assert_same_strategies(tiny(zones, "megatron", EXPERTS, **pinned), [{0: 1, 1: 0}] if count == 2 else [])


@examples(40, phases=SHOWN_AS_FOUND)
@given(problems(gpus=12), st.data())
def test_every_strategy_is_legal(problem, data):
    """[R1] [R2] Rules, refusals of the framework, placement and zones of any strategy of the space."""
    search = PlanSearch(problem, top=1)
    for _, grid in grids(search):
        core, option = grid.expand_groups(*grid.pair_with_groups())
        at = np.array([data.draw(st.integers(0, len(core) - 1)) for _ in range(5)])
        for one in candidates(search, grid, core[at], option[at]):
            case, framework = one.predictor.case, grid.settings.framework
            assert list_broken_rules(case) == []
            assert list_refusals(case, framework) == []
            assert one.predictor.placed.placement.check(case.cluster, case.strategy) == []
            one.predictor.placed.check()
            assert check_step_length(case.strategy, case.job.global_batch) is None


@examples(25, phases=SHOWN_AS_FOUND)
@given(problems(gpus=8), st.data())
def test_options_left_out_are_no_better_than_one_that_stays(problem, data):
    """A row that is not `best` has one beside it, alike but for overlap and gradients, that is as fast and as lean."""
    search = PlanSearch(problem, top=1)
    for _, grid in grids(search):
        core = data.draw(st.integers(0, len(grid.search_nodes) - 1))
        table = grid.options[int(grid.search_nodes.traits[core])]
        beaten = np.flatnonzero(~table.undominated)
        if not len(beaten):
            continue
        row = int(beaten[data.draw(st.integers(0, len(beaten) - 1))])
        same = [name for name in FIELDS if name != GRADIENTS and name not in OVERLAPS]
        alike = np.flatnonzero(
            table.undominated & np.all([table.codes[n] == table.codes[n][row] for n in same], axis=0)
        )
        offset = grid.find_option_range(int(grid.search_nodes.traits[core]))[0]
        rows = np.array([row, *alike]) + offset
        one, *others = candidates(search, grid, np.full(len(rows), core), rows)
        needed = [margin(other) for other in others]
        assert any(
            other.step_s <= one.step_s * (1 + 1e-9) and more >= margin(one) - 1e-9
            for other, more in zip(others, needed, strict=True)
        )


def margin(one: Candidate) -> float:
    """GiB that the fullest GPU has left."""
    return one.predictor.memory.margin
