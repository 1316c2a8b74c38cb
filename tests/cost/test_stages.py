"""[O8] [O9] [R4] Stages: which layers they hold, and what embedding and head add."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.worked import EXPERTS, cost, model, work
from crosszone.cost.stages import StageCost, build_stage_layers


def test_moe_layers_follow_the_dense_ones_in_model_order():
    """[R4] DeepSeek-V3: 61 layers, the first 3 dense; 16, 15, 15, 15 on four stages."""
    stages = build_stage_layers([16, 15, 15, 15], first_dense=3, moe_every=1, moe_layers=58)
    assert stages.dense.tolist() == [3, 0, 0, 0]
    assert stages.moe.tolist() == [13, 15, 15, 15]
    assert (stages.first.tolist(), stages.last.tolist()) == ([1, 0, 0, 0], [0, 0, 0, 1])


def test_every_second_layer_may_be_moe():
    """[R4] Layers 2, 4, 6, 8 of eight; 3 + 5 layers hold one and three of them."""
    stages = build_stage_layers([3, 5], first_dense=0, moe_every=2, moe_layers=4)
    assert (stages.dense.tolist(), stages.moe.tolist()) == ([2, 2], [1, 3])


def test_columns_of_a_shorter_pipeline_end_in_stages_that_do_not_exist():
    """[R4]"""
    stages = build_stage_layers([[2, 2, 0], [1, 1, 2]], first_dense=0, moe_every=1, moe_layers=0, stages=[[2], [3]])
    assert stages.last.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert stages.layers.tolist() == [[2, 2, 0], [1, 1, 2]]
    assert stages.present.tolist() == [[True, True, False], [True, True, True]]


def test_a_stage_at_either_end_may_hold_the_embedding_or_the_head_alone():
    """[R3] [R4] One layer on three stages: 0, 1, 0; the head is on the third, though the second has the last layer."""
    stages = build_stage_layers([[0, 1, 0, 0], [1, 1, 1, 1]], 0, 1, 0, stages=[[3], [4]])
    assert stages.first.tolist() == [[1, 0, 0, 0], [1, 0, 0, 0]]
    assert stages.last.tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]
    assert stages.present.tolist() == [[True, True, True, False], [True] * 4]


def test_runs_of_equal_stages_end_where_the_pipeline_does():
    """[R4] Stages 0, 2 x 1 and 0 layers, then padding, as the search has them."""
    stages = build_stage_layers([[0, 1, 0, 0]], 0, 1, 0, repeats=np.array([[1, 2, 1, 1]]), stages=[[4]])
    assert stages.present.tolist() == [[True, True, True, False]]
    assert stages.last.tolist() == [[0, 0, 1, 0]]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 5), st.integers(1, 3))
def test_all_layers_are_held_once_and_one_stage_has_each_end(counts, first_dense, every):
    """[R4]"""
    stages = build_stage_layers(counts, first_dense, every, moe_layers=1)
    assert stages.layers.tolist() == counts
    assert (stages.moe >= 0).all()
    assert (stages.dense >= 0).all()
    assert stages.first.sum() == stages.last.sum() == 1


def test_the_embedding_reads_and_writes_a_row_a_token():
    """[O8] 2 x 2 bytes x 16 tokens x 8 = 512 bytes at 100 bytes/s on the first stage; twice that backward."""
    per = StageCost(cost(elementwise=1.0), build_stage_layers([2, 2], 0, 1, 0))
    assert per.forward["embedding"].tolist() == pytest.approx([5.12, 0])
    assert per.backward["embedding"].tolist() == pytest.approx([10.24, 0])


def test_the_head_is_a_product_and_the_traffic_of_its_logits():
    """[O9] 2 x 16 x 8 x 64 = 16384 FLOP; 20 bytes x 16 x 64 logits = 204.8 s, a third of it forward."""
    per = StageCost(cost(head_traffic=20.0), build_stage_layers([2, 2], 0, 1, 0))
    assert per.forward["head"].tolist() == pytest.approx([0, 16.384 + 204.8 / 3])
    assert per.backward["head"].tolist() == pytest.approx([0, 2 * 16.384 + 2 * 204.8 / 3])


def test_a_vocabulary_that_is_no_multiple_of_eight_is_slower():
    """[O9] 63 words at twice the time: more than the 64 words of its neighbour."""
    stages = build_stage_layers([4], 0, 1, 0)
    odd, even = (StageCost(cost(model(vocab=v), unaligned=2.0), stages).forward["head"][0] for v in (63, 64))
    assert odd == pytest.approx(2 * 2 * 16 * 8 * 63 / 1000)
    assert odd > even


def test_tensor_parallelism_cuts_the_head():
    """[O9] Half of the words on each of two GPUs."""
    per = StageCost(cost(w=work(tp=2), head_traffic=20.0), build_stage_layers([4], 0, 1, 0))
    assert per.forward["head"][0] == pytest.approx(8.192 + 102.4 / 3)


def test_a_stage_is_its_layers_and_one_collective_at_each_end_of_the_model():
    """[X1] t = 2: a collective of 25.6 s; 2 x 2 a stage and pass, one more after the embedding and before the head."""
    per = StageCost(cost(w=work(tp=2)), build_stage_layers([2, 2], 0, 1, 0))
    assert per.forward["tp"].tolist() == pytest.approx([5 * 25.6, 4 * 25.6])
    assert per.backward["tp"].tolist() == pytest.approx([4 * 25.6, 5 * 25.6])
    assert per.forward["matmul"].tolist() == pytest.approx([2 * 8.192, 2 * 8.192])


def test_parts_of_a_stage_add_up():
    """[O7] Dense layers, MoE layers, recomputation, ends."""
    layer = cost(model(**EXPERTS), work(tp=2, ep=2, recompute=2), elementwise=1.0, head_traffic=3.0, permute=1.0)
    stages = build_stage_layers([3, 1], 1, 1, 3)
    per = StageCost(layer, stages)
    own = stages.dense * layer.dense.forward.total + stages.moe * layer.moe.forward.total
    ends = per.forward["embedding"] + per.forward["head"] + stages.first * layer.tp_exposed_s
    assert per.forward_s == pytest.approx(own + ends)
    back = stages.dense * layer.dense.backward_s + stages.moe * layer.moe.backward_s
    assert per.backward_s == pytest.approx(
        back + per.backward["embedding"] + per.backward["head"] + stages.last * layer.tp_exposed_s
    )
    assert np.all(per.backward["recompute"] > 0)
