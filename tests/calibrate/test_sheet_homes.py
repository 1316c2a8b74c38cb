"""A workbook looks a coefficient up where `predict` does: a GPU family may be for some stacks only."""

from __future__ import annotations

import pytest

from calibrate.sheets import loaded
from crosszone.calibrate.sheet import build_workbook, read_workbook
from crosszone.cost import own_profiles
from crosszone.cost.own_profiles import OwnProfile
from crosszone.predict.answer import answer
from effort import mostly_long

STACKS = ("hf-eager", "fsdp", "megatron-core")
"""Stacks of which the H200's own family is for the first two only."""


@pytest.fixture
def own():
    def given(*for_stacks):
        slow = {"value": 0.3, "error": 0.01, "origin": "measured"}
        gpus = {"h200-141gb-sxm": {"matmul": slow}}
        own_profiles.override_default(
            OwnProfile(name="mine", source="kernels", created="2026-11-16", gpus=gpus, for_stacks=for_stacks)
        )

    yield given
    own_profiles.override_default(None)


def on_h200(stack):
    nodes = {"count": 1, "gpus": 8, "gpu": "h200-141gb-sxm"}
    return loaded("llama-3-8b", {"framework": "ddp", "stack": stack}, nodes, {"micro_batch": 1})


def agree(data, scenario):
    found, prediction = read_workbook(data, "book.xlsx").figures, answer(scenario).prediction
    assert found["step_time_s"] == pytest.approx(prediction.step_time_s.expected, rel=1e-6)
    assert found["memory_gib"] == pytest.approx(prediction.memory_gib.peak.expected, rel=1e-6)
    for part, seconds in prediction.breakdown_s.items():
        assert found["breakdown_s"].get(part, 0.0) == pytest.approx(seconds, rel=1e-6, abs=1e-12), part
    return found["step_time_s"]


@pytest.mark.slow
@pytest.mark.parametrize("stack", mostly_long(STACKS, "hf-eager"))
def test_a_family_counts_for_its_stacks_only(stack):
    scenario = on_h200(stack)
    agree(build_workbook(scenario), scenario)


@pytest.mark.slow
@pytest.mark.parametrize("for_stacks", mostly_long([("hf-eager",), ("megatron-core",)], ("megatron-core",)))
def test_an_own_profile_counts_for_its_stacks_only(own, for_stacks):
    """One for Megatron-Core alone leads past the H200's family, which is not for it, to that of the H100."""
    shipped = {stack: answer(on_h200(stack)).prediction.step_time_s.expected for stack in STACKS}
    own(*for_stacks)
    for stack in STACKS:
        step = agree(build_workbook(on_h200(stack)), on_h200(stack))
        assert (step > 1.2 * shipped[stack]) is (stack in for_stacks)
