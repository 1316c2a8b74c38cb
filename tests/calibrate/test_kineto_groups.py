"""Which way of splitting a process group belongs to."""

from __future__ import annotations

import pytest

from crosszone.calibrate.kineto_events import (
    ProcessGroup,
    infer_dimension_from_name,
    infer_dimension_from_ranks,
    infer_dimension_from_use,
    parse_collective_name,
    parse_group_assignments,
)
from crosszone.errors import InvalidError


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("EMBEDDING_GROUP", "pipeline"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("CONTEXT_PARALLEL_GROUP", "context"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "experts"),
        ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tensor"),
        ("mesh_dp_shard", "data"),
        ("mesh_tp", "tensor"),
        ("mesh_pp", "pipeline"),
        ("mesh_cp", "context"),
        ("mesh_ep", "experts"),
        ("default_pg", None),
        ("undefined", None),
        ("", None),
    ],
)
def test_names_of_frameworks_tell_their_way(name, way):
    assert infer_dimension_from_name(name) == way


@pytest.mark.parametrize(
    ("ranks", "way"),
    [
        ((0, 1), "tensor"),
        ((0, 2), "context"),
        ((0, 4, 8, 12), "data"),
        ((0, 16, 32), "pipeline"),
        ((0, 2, 4, 6, 8, 10, 12, 14), "data"),
        ((0, 3), None),
        ((0,), None),
    ],
)
def test_ranks_tell_their_way_when_the_degrees_are_known(ranks, way):
    """[K44] tp 2, cp 2, dp 4, pp 3: neighbours lie 1, 2, 4 and 16 ranks apart; gradients go over dp and cp."""
    assert infer_dimension_from_ranks(ProcessGroup(ranks=ranks), {"tp": 2, "cp": 2, "dp": 4, "pp": 3}) == way


@pytest.mark.parametrize(
    ("uses", "way"),
    [
        ({("send", "forward"), ("send", "backward")}, "pipeline"),
        ({("all_to_all", "forward")}, "experts"),
        ({("all_reduce", "forward"), ("all_reduce", "backward")}, "tensor"),
        ({("reduce_scatter", "forward"), ("all_gather", "backward")}, "tensor"),
        ({("all_gather", "forward"), ("reduce_scatter", "backward")}, "data"),
        ({("all_reduce", "backward"), ("broadcast", "forward")}, "data"),
        ({("barrier", "forward")}, "other"),
        (set(), "other"),
    ],
)
def test_what_a_group_does_tells_its_likely_way(uses, way):
    """[K44]"""
    assert infer_dimension_from_use(uses) == way


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_SIMPLE_Sum_float", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("ncclDevKernel_SendRecv", "send"),
        ("all_to_allv", "all_to_all"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("something", ""),
    ],
)
def test_collectives_are_known_however_they_are_spelled(text, name):
    assert parse_collective_name(text) == name


def test_what_the_user_says_of_groups():
    assert parse_group_assignments(["3=tp", "My Group=dp", "x=other"]) == {
        "3": "tensor",
        "my group": "data",
        "x": "other",
    }
    for line in ("tp", "=tp", "3=zp"):
        with pytest.raises(InvalidError):
            parse_group_assignments([line])
