"""[O20] [O21] [M20] [R5] Blocks of hybrids and layers of multi-token prediction: by hand, then as properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import scenario
from cost.worked import cost, model, work
from crosszone.cost.columns import build_model_columns
from crosszone.cost.mamba import count_kept_widths, read_mamba_figures
from crosszone.cost.replicas import count_stage_parameters
from crosszone.cost.stages import StageCost, build_stage_layers
from crosszone.errors import IllegalError
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.value import parse
from crosszone.predict.batch import count_blocks, split_model_layers
from crosszone.predict.predict import build_predictor, predict
from effort import examples
from predict.given import MEGATRON, one_zone

MAMBA: dict[str, float] = {
    "hybrid": 1, "mamba_heads": 4, "mamba_inner": 16, "mamba_projected": 8, "mamba_state": 4, "mamba_groups": 1,
    "mamba_conv": 4, "mamba_chunk": 8,
}  # fmt: skip
"""Two heads of 4 channels more than the worked model is wide: 16 channels, states of 4, chunks of 8."""
TINY = {"hidden": 64, "heads": 4, "ffn_hidden": 128, "vocab": 512, "mamba": {"heads": 8, "head_dim": 16, "state": 16}}


def test_projections_of_a_mamba_layer_are_matmuls():
    """[O20] 16 tokens x 8 to 2 x 16 + 8 + 4 = 44 wide, and 16 back to 8: 2 x 16 x (8 x 44 + 16 x 8) = 15360 FLOP."""
    assert float(cost(model(**MAMBA)).blocks["mamba"].forward.matmul) == pytest.approx(15.36)


def test_tensor_parallelism_cuts_the_projections():
    """[O20] Half of each on two ranks."""
    assert float(cost(model(**MAMBA), work(tp=2)).blocks["mamba"].forward.matmul) == pytest.approx(7.68)


def test_the_core_is_its_chunks_and_its_states():
    """[O20] 2 x 16 tokens x (8 x (4 + 16) + 4 x 2 x 16) = 9216 FLOP, 9.216 s; its backward pass takes three times that."""
    layer = cost(model(**MAMBA), flash=1.0).blocks["mamba"]
    assert float(layer.forward.attention) == pytest.approx(9.216, rel=1e-6)
    assert float(layer.backward.attention) == pytest.approx(3 * 9.216, rel=1e-6)


def test_a_block_has_one_reduction_where_a_layer_has_two():
    """[R5] 25.6 s a collective: two a plain layer and pass, one a block."""
    plain = cost(w=work(tp=2)).dense
    hybrid = cost(model(**MAMBA), work(tp=2))
    for block in (hybrid.dense, *hybrid.blocks.values()):
        assert float(plain.forward.tp) == 2 * float(block.forward.tp) == pytest.approx(51.2)
        assert float(plain.backward.tp) == 2 * float(block.backward.tp)


def test_attention_and_mlp_of_a_hybrid_are_a_plain_layer_taken_apart():
    """[R5] Kernels of the attention block and of the MLP block add up to those of the layer that has both."""
    plain, hybrid = cost(elementwise=1.0), cost(model(**MAMBA), elementwise=1.0)
    for part in ("matmul", "attention", "elementwise"):
        blocks = getattr(hybrid.blocks["attention"].forward, part) + getattr(hybrid.dense.forward, part)
        assert float(blocks) == pytest.approx(float(getattr(plain.dense.forward, part)))


def test_what_a_mamba_layer_keeps():
    """[M20] 44 projected, 24 convolved, the core's and the gated output of 16: 100 values a token; half on two ranks."""
    assert count_kept_widths(model(**MAMBA), work()) == 100
    assert count_kept_widths(model(**MAMBA), work(tp=2)) == 50


def test_every_figure_has_its_reason():
    figures = read_mamba_figures()
    assert set(figures["kernels"]) == {"attention", "mlp", "mamba"} and "arXiv 2405.21060" in figures["source"]


def test_blocks_are_counted_in_the_order_of_the_pattern():
    """[R5] M-M*|EM-: two Mamba, one MLP and an attention block, then one of each other."""
    experts, (attention, mamba) = count_blocks("M-M*EM-", [4, 3])
    assert (experts.tolist(), attention.tolist(), mamba.tolist()) == ([0, 1], [1, 0], [2, 1])


@given(st.text("M*-E", min_size=1, max_size=40), st.data())
def test_each_block_is_on_one_stage(pattern, data):
    """[R5] However the pattern is cut."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pattern)), max_size=4)))
    counts = np.diff([0, *cuts, len(pattern)])
    experts, (attention, mamba) = count_blocks(pattern, counts)
    assert (experts.sum(), attention.sum(), mamba.sum()) == tuple(pattern.count(x) for x in "E*M")
    assert (experts + attention + mamba <= counts).all()


@pytest.mark.parametrize(
    "name", ["nemotron-h-8b", "nemotron-3-super", "mamba-2-2.7b", "deepseek-v3", "nemotron-3-nano"]
)
def test_stages_hold_all_parameters(name):
    """[M1] [P1] Those of one rank are those of the model, layers of multi-token prediction included."""
    m = catalogue().model(name)
    columns = build_model_columns(m)
    moe, blocks = (None, None) if m.pattern is None else count_blocks(m.pattern, [m.layers])
    stages = build_stage_layers(
        [m.layers], columns.first_dense, columns.moe_every, columns.moe_layers, moe_counts=moe, block_counts=blocks
    )
    parts = count_stage_parameters(columns, work(), stages)
    assert float(parts.total[0]) == pytest.approx(parameters(m).trained, rel=1e-6)


def test_a_layer_of_multi_token_prediction_is_a_layer_a_projection_and_a_head():
    """[O21] On the last stage: one more layer, 2 x 16 x 16 x 8 = 4096 FLOP of the projection, and the head once more."""
    stages = build_stage_layers([2, 2], 0, 1, 0)
    plain, more = StageCost(cost(), stages), StageCost(cost(model(mtp_layers=1.0)), stages)
    layer, head = float(cost().dense.forward_s), plain.forward["head"][1]
    assert more.forward_s[0] == plain.forward_s[0]
    assert more.forward_s[1] - plain.forward_s[1] == pytest.approx(layer + head + 4.096)


def test_layers_are_dealt_out_as_nvidia_does_it_for_deepseek():
    """[R3] The layouts Et*4|(t*4|)*14tmL and Et|(tt|)*30mL: a further token counts as two layers, the head as one."""
    deepseek = catalogue().model("deepseek-v3")
    assert split_model_layers(deepseek, 16) == [*[4] * 15, 1]
    assert split_model_layers(deepseek, 32) == [1, *[2] * 30, 0]
    assert split_model_layers(deepseek, 8) == [*[8] * 7, 5]


@given(st.integers(1, 200), st.integers(0, 3), st.data())
def test_all_layers_are_dealt_out(layers, mtp, data):
    """[R3]"""
    small = parse(Model, {"layers": layers, "hidden": 8, "heads": 2, "ffn_hidden": 8, "vocab": 8, "mtp_layers": mtp})
    counts = split_model_layers(small, data.draw(st.integers(1, layers)))
    assert sum(counts) == layers and min(counts) >= 0 and max(counts) - min(counts[:-1] or counts) <= 1


def hybrid(pattern: str, strategy: dict[str, Any], **changes: Any) -> Any:
    moe = {"moe": {"experts": 8, "top_k": 2, "ffn_hidden": 64, "latent": 32}} if "E" in pattern else {}
    fields = TINY | moe | {"pattern": pattern} | changes
    fields = fields if "M" in pattern else {key: value for key, value in fields.items() if key != "mamba"}
    return scenario(model=fields, strategy=strategy, job=MEGATRON | {"seq_len": 1024}, cluster=one_zone(8))


@examples(25)
@given(
    st.text("M*-E", min_size=4, max_size=12),
    st.sampled_from([{"tp": 1}, {"pp": 2}, {"pp": 2, "interleave": 2}, {"tp": 1, "zero": 1, "recompute": "full"}]),
    st.integers(0, 2),
)
def test_parts_of_any_hybrid_add_up_and_nothing_is_exposed_for_longer_than_it_takes(pattern, strategy, mtp):
    """[V3] Breakdown and traffic of any order of blocks, with and without multi-token prediction."""
    p = predict(hybrid(pattern, {"dp": 2, **strategy}, mtp_layers=mtp))
    assert sum(p.breakdown_s.values()) == pytest.approx(p.step_time_s.expected)
    assert p.memory_gib.peak.expected > 0
    for row in p.communication:
        assert row.exposed_s <= row.busy_s * (1 + 1e-9)


@examples(15)
@given(st.text("M*-", min_size=2, max_size=10), st.sampled_from("M*-"))
def test_one_block_more_takes_longer(pattern, block):
    """[R5]"""
    first, longer = (build_predictor(hybrid(text, {"dp": 8})).step_time.expected for text in (pattern, pattern + block))
    assert longer > first


@pytest.mark.parametrize(
    ("strategy", "code"),
    [({"tp": 4, "dp": 1}, "tp_over_mamba"), ({"cp": 2, "dp": 1}, "cp_with_mamba"), ({"tp": 1, "dp": 8}, None)],
)
def test_whole_heads_and_groups_of_a_mamba_layer_are_on_each_rank(strategy, code):
    """[R5] Eight heads in two groups: four ranks have no whole group each."""
    given_scenario = hybrid("M-M*", strategy, mamba=TINY["mamba"] | {"groups": 2})
    if code is None:
        assert predict(given_scenario).step_time_s.expected > 0
        return
    with pytest.raises(IllegalError) as caught:
        predict(given_scenario)
    assert code in {notice.code for notice in caught.value.notices}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"pattern": "M-", "layers": 3}, "pattern_length"),
        ({"pattern": "M-E"}, "pattern_lacks"),
        ({"pattern": "*-"}, "pattern_unused"),
        ({"layers": 2}, "mamba_without_pattern"),
        ({"pattern": "M*", "window": {"tokens": 8}}, "pattern_excludes"),
        ({"pattern": "M", "mamba": {"heads": 6, "head_dim": 4, "state": 4, "groups": 4}}, "mamba_heads_over_groups"),
    ],
)
def test_a_pattern_that_does_not_fit_its_model_is_refused(changes, code):
    with pytest.raises(Exception) as caught:
        parse(Model, TINY | changes)
    assert [notice.code for notice in caught.value.notices] == [code]
    assert caught.value.notices[0].message("zh") and caught.value.notices[0].hint()
