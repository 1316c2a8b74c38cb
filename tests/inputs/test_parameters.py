"""[P1] Parameter counts: by hand for each kind of part, then against what publishers state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone import Model, catalogue, parameters
from crosszone.errors import InvalidError
from crosszone.inputs.catalogue import ModelEntry
from crosszone.inputs.value import parse


def tiny(**changes) -> Model:
    return parse(Model, {"layers": 2, "hidden": 8, "heads": 2, "ffn_hidden": 16, "vocab": 10} | changes)


def test_a_gated_decoder_counted_by_hand():
    parts = parameters(tiny()).parts
    assert parts["token_embedding"] == parts["head"] == 10 * 8
    assert parts["attention"] == 2 * 4 * 8 * 8
    assert parts["mlp"] == 2 * 3 * 8 * 16
    assert parts["norms"] == 2 * 2 * 8 + 8


def test_a_plain_mlp_has_two_matrices_and_its_biases():
    assert parameters(tiny(activation="gelu")).mlp == 2 * 2 * 8 * 16
    assert parameters(tiny(activation="gelu", bias=["mlp"])).mlp == 2 * (2 * 8 * 16 + 16 + 8)


def test_grouped_queries_shrink_keys_and_values_only():
    assert parameters(tiny(kv_heads=1)).attention == 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8)


def test_a_wide_head_widens_all_four_projections():
    assert parameters(tiny(head_dim=8)).attention == 2 * 4 * 8 * 16


def test_biases_sinks_and_query_key_norms_are_counted():
    more = parameters(tiny(bias=["qkv", "out"], attention_sinks=True, qk_norm="head")).attention
    assert more == 2 * (4 * 8 * 8 + 3 * 8 + 8 + 2 + 2 * 4)


def test_latent_attention_counted_by_hand():
    mla = {"q_lora_rank": 6, "kv_lora_rank": 4, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 5}
    counted = parameters(tiny(mla=mla))
    query, down, up, out = 8 * 6 + 6 * 2 * 5, 8 * (4 + 2), 4 * 2 * (3 + 5), 2 * 5 * 8
    assert counted.attention == 2 * (query + down + up + out)
    assert counted.norms == 2 * (2 * 8 + 6 + 4) + 8
    direct = parameters(tiny(mla=mla | {"q_lora_rank": None})).attention
    assert direct == 2 * (8 * 2 * 5 + down + up + out)


def test_experts_counted_by_hand_with_first_dense_and_shared():
    moe = {"experts": 4, "top_k": 2, "ffn_hidden": 6, "shared_experts": 1, "first_dense": 1}
    counted = parameters(tiny(moe=moe))
    assert counted.mlp == 3 * 8 * 16
    assert counted.router == 8 * 4
    assert counted.routed_experts == 4 * 3 * 8 * 6
    assert counted.shared_experts == 3 * 8 * 6
    assert counted.total - counted.active == 2 * 3 * 8 * 6


def test_a_mamba_layer_counted_by_hand():
    """[P1] 8 x 44 + 16 x 8 of the projections, 24 x (4 + 1) of the convolution, 3 x 4 and 16; one norm a block."""
    hybrid = {"pattern": "M-*", "mamba": {"heads": 4, "head_dim": 4, "state": 4}}
    counted = parameters(parse(Model, {"hidden": 8, "heads": 2, "ffn_hidden": 16, "vocab": 10} | hybrid))
    assert counted.mamba == 352 + 128 + 120 + 12 + 16
    assert counted.attention == 4 * 8 * 8 and counted.mlp == 3 * 8 * 16
    assert counted.norms == 3 * 8 + 8


def test_multi_token_prediction_is_counted_beside_the_total():
    """[P1] A layer with its two norms, 2 x 8 x 8 and three norms more; the same weights however often they are passed."""
    plain, more = parameters(tiny()), parameters(tiny(mtp_layers=2))
    layer = 4 * 8 * 8 + 3 * 8 * 16 + 2 * 8
    assert more.total == plain.total
    assert more.trained - more.total == 2 * (layer + 2 * 8 * 8 + 3 * 8)
    assert parameters(tiny(mtp_layers=2, mtp_shared=True)).mtp == more.mtp / 2


def test_deepseeks_module_is_as_large_as_its_weights_say():
    """[P1] 11.5B of its own beside 671B (README of the weights)."""
    assert parameters(catalogue().model("deepseek-v3")).mtp / 1e9 == pytest.approx(11.5, rel=0.01)


def test_every_other_layer_may_be_sparse():
    moe = {"experts": 4, "top_k": 1, "ffn_hidden": 6, "every": 2}
    assert parameters(tiny(layers=6, moe=moe)).mlp == 3 * 3 * 8 * 16


def test_tied_embeddings_have_no_head_and_learned_positions_have_a_table():
    counted = parameters(tiny(tied_embeddings=True, positions="learned", max_seq_len=5))
    assert counted.head == 0
    assert counted.position_embedding == 5 * 8


def test_padding_the_vocabulary_is_a_part_of_its_own():
    assert parameters(tiny(vocab_padded_to=16)).vocab_padding == 2 * 6 * 8
    assert parameters(tiny(vocab_padded_to=16, tied_embeddings=True)).vocab_padding == 6 * 8


def test_a_narrow_embedding_is_projected_in_and_out():
    counted = parameters(tiny(embedding_width=4))
    assert (counted.token_embedding, counted.head, counted.embedding_projection) == (40, 40, 2 * 4 * 8)


def test_bert_has_types_pooler_and_a_masked_language_head():
    counted = parameters(
        tiny(
            kind="encoder",
            norm="layernorm",
            token_types=2,
            pooler=True,
            mlm_head=True,
            embedding_norm=True,
            final_norm=False,
            tied_embeddings=True,
        )
    )
    assert counted.token_type_embedding == 16
    assert counted.pooler == 8 * 8 + 8
    assert counted.mlm_head == 8 * 8 + 8 + 16 + 10
    assert counted.norms == 2 * 2 * 16 + 16


@given(
    layers=st.integers(1, 8),
    heads=st.sampled_from([1, 2, 4, 8]),
    head_dim=st.integers(1, 16),
    ffn=st.integers(1, 64),
    vocab=st.integers(1, 100),
    experts=st.none() | st.integers(2, 8),
    gated=st.booleans(),
    tied=st.booleans(),
)
def test_parts_always_add_up_and_active_is_never_more_than_total(
    layers, heads, head_dim, ffn, vocab, experts, gated, tied
):
    moe = experts and {"experts": experts, "top_k": 1, "ffn_hidden": ffn}
    counted = parameters(
        tiny(
            layers=layers,
            heads=heads,
            head_dim=head_dim,
            ffn_hidden=ffn,
            vocab=vocab,
            moe=moe,
            activation="swiglu" if gated else "gelu",
            tied_embeddings=tied,
        )
    )
    assert sum(counted.parts.values()) == counted.total >= counted.active > 0


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # exact sums of the published weights (Hugging Face safetensors metadata, model papers)
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("mistral-7b", 7_241_732_096),
        ("qwen-2.5-7b", 7_615_616_512),
        ("gpt-2", 124_439_808),
        ("gpt-2-xl", 1_557_611_200),
        ("gemma-7b", 8_537_680_896),
        ("gpt-neox-20b", 20_554_567_680),
        ("bloom-176b", 176_247_271_424),
        ("phi-2", 2_779_683_840),
    ],
)
def test_well_known_models_are_counted_to_the_last_parameter(name, total):
    assert parameters(catalogue().model(name)).total == total


@pytest.mark.parametrize(
    ("name", "total_b", "digits"),
    [
        ("llama-2-7b", 6.738, 3),
        ("llama-2-13b", 13.016, 3),
        ("llama-2-70b", 68.977, 3),
        ("gpt-3-175b", 174.6, 1),
        ("mixtral-8x7b", 46.7, 1),
        ("deepseek-v3", 671, 0),
        ("nemotron-h-8b", 8.1, 1),
        ("nemotron-3-nano", 31.6, 1),
        ("mamba-2-2.7b", 2.703, 3),
    ],
)
def test_the_named_anchors_hold(name, total_b, digits):
    assert round(parameters(catalogue().model(name)).total / 1e9, digits) == total_b


@pytest.mark.parametrize(
    ("name", "active_b"),
    [("mixtral-8x7b", 12.9), ("deepseek-v3", 37), ("qwen-3-235b-a22b", 22), ("qwen-3-30b-a3b", 3.3), ("dbrx", 36)],
)
def test_active_parameters_are_those_published(name, active_b):
    assert parameters(catalogue().model(name)).active / 1e9 == pytest.approx(active_b, rel=0.02)


def entries() -> list[ModelEntry]:
    return [entry for entry in catalogue().entries("models") if isinstance(entry, ModelEntry)]


def test_every_published_count_is_met_within_one_percent():
    wrong = {}
    for entry in entries():
        if entry.published:
            total_b = parameters(entry.model).total / 1e9
            if abs(total_b / entry.published.total_b - 1) > 0.01:
                wrong[entry.name] = (total_b, entry.published.total_b)
    assert wrong == {}
    assert sum(1 for entry in entries() if entry.published) >= 60


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"layers": 0}, "layers", "must_be_at_least"),
        ({"hidden": -8}, "hidden", "must_be_at_least"),
        ({"heads": 3}, "", "hidden_over_heads"),
        ({"kv_heads": 3, "heads": 4}, "", "heads_over_kv_heads"),
        ({"vocab": 1.5}, "vocab", "must_be_whole"),
        ({"vocab": "ten"}, "vocab", "must_be_whole"),
        ({"layers": True}, "layers", "must_be_whole"),
        ({"activation": "swish"}, "activation", "not_one_of"),
        ({"positions": "learned"}, "", "learned_needs_length"),
        ({"vocab_padded_to": 9}, "", "vocab_padded_below"),
        ({"moe": {"experts": 4, "top_k": 5, "ffn_hidden": 4}}, "moe", "top_k_over_experts"),
        ({"moe": {"experts": 4, "top_k": 1, "ffn_hidden": 4, "first_dense": 3}}, "", "first_dense_over_layers"),
        ({"moe": {"experts": 4, "top_k": 1, "ffn_hidden": 4, "every": 3}}, "moe", "no_moe_layer"),
        ({"layer": 3}, "layer", "unknown_key"),
    ],
)
def test_impossible_models_are_refused_with_the_field_named(changes, field, code):
    with pytest.raises(InvalidError) as caught:
        tiny(**changes)
    assert (caught.value.notices[0].field, caught.value.notices[0].code) == (field, code)


def test_a_missing_field_is_named_with_what_to_add():
    with pytest.raises(InvalidError) as caught:
        parse(Model, {"hidden": 8, "heads": 2, "ffn_hidden": 16, "vocab": 10})
    notice = caught.value.notices[0]
    assert notice.message() == "layers is missing."
    assert notice.hint() == "Add `layers: ...`."
