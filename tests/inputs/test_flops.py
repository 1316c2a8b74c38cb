"""[F1] [F2] Operations per token against published formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone import Model, catalogue
from crosszone.inputs.flops import forward_flops_per_token, tokens_seen, training_flops_per_token
from crosszone.inputs.value import parse


def test_megatron_sc21_formula_is_met():
    """Narayanan et al. 2021, section 5.1: 96 B s l h^2 (1 + s/6h + V/16lh) FLOPs a step, recomputation counted.

    It counts masked scores, four passes of the layers (one of them recomputed) and three of the head.
    """
    model = catalogue().model("gpt-3-175b")
    layers, hidden, length, vocab = 96, 12288, 2048, 50257
    published = 96 * length * layers * hidden**2 * (1 + length / (6 * hidden) + vocab / (16 * layers * hidden))
    forward = forward_flops_per_token(model, length, count_masked=True)
    ours = length * (4 * (forward.total - forward.head) + 3 * forward.head)
    assert ours == pytest.approx(published, rel=1e-12)


def test_mosaicml_formula_is_met_for_a_model_without_embedding_gap():
    """MosaicML LLM Foundry: 6 N + 12 L h s per token with N the parameters; embedding rows tied to the head."""
    model = catalogue().model("mpt-7b")
    matmul_parameters = 32 * 12 * 4096**2 + 50432 * 4096
    expected = 6 * matmul_parameters + 12 * 32 * 4096 * 2048
    assert training_flops_per_token(model, 2048, count_masked=True) == pytest.approx(expected, rel=1e-9)


def test_a_causal_token_sees_half_of_the_sequence():
    assert tokens_seen(4096, None, causal=True) == 2048
    assert tokens_seen(4096, None, causal=False) == 4096


def test_a_window_caps_what_a_token_sees():
    assert tokens_seen(8192, 4096, causal=True) == 4096 - 4096**2 / (2 * 8192)
    assert tokens_seen(2048, 4096, causal=True) == 1024
    assert tokens_seen(8192, 4096, causal=False) == 4096


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_window_never_adds_work(length, window):
    assert 0 < tokens_seen(length, window, causal=True) <= tokens_seen(length, None, causal=True)


def test_half_of_gemma_2_layers_see_the_window_only():
    model = catalogue().model("gemma-2-9b")
    core = forward_flops_per_token(model, 8192).attention_core
    per_layer = 2 * model.heads * 2 * model.head_dim
    assert core == per_layer * 21 * (4096 + (4096 - 4096**2 / 16384))


def test_only_the_visited_experts_cost_operations():
    forward = forward_flops_per_token(catalogue().model("mixtral-8x7b"), 4096)
    assert forward.routed_experts == 32 * 2 * 2 * 3 * 4096 * 14336
    assert forward.router == 32 * 2 * 4096 * 8
    assert forward.mlp == 0


def test_latent_attention_scores_are_192_and_128_wide():
    forward = forward_flops_per_token(catalogue().model("deepseek-v3"), 4096)
    assert forward.attention_core == 61 * 2 * 128 * (192 + 128) * 2048


def test_an_encoder_sees_the_whole_sequence():
    forward = forward_flops_per_token(catalogue().model("bert-large"), 512)
    assert forward.attention_core == 24 * 4 * 1024 * 512


def test_six_operations_per_parameter_and_token_is_nearly_right_for_a_short_sequence():
    model = catalogue().model("llama-2-70b")
    assert training_flops_per_token(model, 1) == pytest.approx(6 * 68.7e9, rel=0.01)


HYBRID = {"pattern": "M*-", "hidden": 8, "heads": 2, "ffn_hidden": 16, "vocab": 10,
    "mamba": {"heads": 4, "head_dim": 4, "state": 4, "chunk": 8}}  # fmt: skip


def test_a_mamba_layer_is_counted_by_hand():
    """[F3] Projections 2 x 8 x (44 + 16), convolution 2 x 4 x 24; core 2 x 8 x (4 + 16) inside a chunk, 4 x 4 x 16 states."""
    flops = forward_flops_per_token(parse(Model, HYBRID), 64)
    assert flops.mamba_projections == 960 + 192
    assert flops.mamba_core == 320 + 256
    assert flops.attention_projections == 2 * 4 * 64
    assert flops.mlp == 2 * 3 * 8 * 16


def test_a_further_token_costs_a_layer_a_projection_and_a_head():
    """[F4] Two layers and one of multi-token prediction: half of the layers once more, 4 x 64, and 2 x 10 x 8."""
    fields = {"layers": 2, "hidden": 8, "heads": 2, "ffn_hidden": 16, "vocab": 10}
    plain = forward_flops_per_token(parse(Model, fields), 64)
    more = forward_flops_per_token(parse(Model, fields | {"mtp_layers": 1}), 64)
    assert more.total - plain.total == more.mtp == (plain.total - plain.head) / 2 + 256 + 160


def test_experts_in_a_latent_width_and_the_way_there_and_back():
    """[F1] Two experts of 6 at a width of 4: 2 x 2 x 3 x 4 x 6, and 2 x 2 x 8 x 4 for both projections."""
    moe = {"experts": 4, "top_k": 2, "ffn_hidden": 6, "latent": 4}
    flops = forward_flops_per_token(parse(Model, HYBRID | {"pattern": "ME", "moe": moe}), 64)
    assert flops.routed_experts == 288 and flops.shared_experts == 128
