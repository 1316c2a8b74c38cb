"""A Hugging Face config.json becomes the same model as the catalogue's entry.

Counts are those of the published weights, as their pages print them, except where a comment says how a figure comes
about. Keys and defaults are those of the configuration classes of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosszone.errors import FileError, InputError, InvalidError, Notice
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.hf_config import FAMILIES, parse_hf_config, read_hf_config
from crosszone.inputs.model import Mla, Moe, Window
from crosszone.inputs.parameters import parameters

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hf"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))

# The keys that say how large a model is, as most families write them.
SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}


def fixture(name: str, **changes: Any) -> dict[str, Any]:
    config = json.loads((FIXTURES / f"{name}.json").read_text("utf-8"))
    return {**config, **changes}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def written(folder: Path, text: str) -> Path:
    path = folder / "config.json"
    path.write_text(text, "utf-8")
    return path


def refused(config: Any, code: str) -> Any:
    with pytest.raises(InvalidError) as caught:
        parse_hf_config(config)
    assert [notice.code for notice in caught.value.notices] == [code]
    return caught.value.notices[0]


# ---- the catalogue and the files agree


def test_there_are_fixtures_to_compare() -> None:
    assert len(NAMES) >= 25


@pytest.mark.parametrize("name", NAMES)
def test_a_file_gives_the_parameters_of_the_catalogue_entry(name: str) -> None:
    imported, expected = parameters(read_hf_config(FIXTURES / f"{name}.json")), parameters(catalogue().model(name))
    assert imported.total == pytest.approx(expected.total, rel=1e-3)
    assert imported.active == pytest.approx(expected.active, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_gives_the_architecture_of_the_catalogue_entry(name: str) -> None:
    imported, expected = read_hf_config(FIXTURES / f"{name}.json"), catalogue().model(name)
    alike = ["kind", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "attention"]
    alike += ["activation", "positions", "norm", "norms_per_layer", "qk_norm", "tied_embeddings", "parallel_residual"]
    alike += [
        "pattern",
        "mamba",
        "mtp_layers",
        "mla",
        "moe",
        "window",
        "attention_sinks",
        "embedding_width",
        "max_seq_len",
    ]
    assert {key: getattr(imported, key) for key in alike} == {key: getattr(expected, key) for key in alike}
    assert set(imported.bias) == set(expected.bias)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.2-1b", 1_235_814_400),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen-2.5-7b", 7_615_616_512),
        ("qwen-3-8b", 8_190_735_360),
        ("qwen-3-30b-a3b", 30_532_122_624),
        ("deepseek-v2-lite", 15_706_484_224),
        ("gemma-7b", 8_537_680_896),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-3-1b", 999_885_952),
        ("phi-2", 2_779_683_840),
        ("phi-3-mini", 3_821_079_552),
        ("gpt-2", 124_439_808),
        ("gpt-j-6b", 6_050_882_784),
        ("gpt-oss-20b", 20_914_757_184),
        ("bloom-176b", 176_247_271_424),
        ("mpt-7b", 6_649_286_656),
        ("nemotron-3-nano", 31_577_940_288),
    ],
)
def test_a_file_gives_the_count_of_the_published_weights(name: str, published: int) -> None:
    assert parameters(read_hf_config(FIXTURES / f"{name}.json")).total == published


# ---- single families, with the figures of their papers and model cards


def test_llama_3_8b_shares_8_key_value_heads_among_32() -> None:
    model = read_hf_config(FIXTURES / "llama-3-8b.json")
    assert (model.kv_heads, model.ffn_hidden, model.attention) == (8, 14336, "gqa")
    assert (model.activation, model.norm, model.positions, model.bias) == ("swiglu", "rmsnorm", "rotary", ())


MAMBA = {"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "hidden_act": "silu"}


def test_mamba_2_is_nothing_but_mamba_layers() -> None:
    """Sizes of state-spaces/mamba2-2.7b in the names of transformers; heads follow from the expansion."""
    sizes = {"hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50288, "n_groups": 1}
    model = parse_hf_config({"model_type": "mamba2", "tie_word_embeddings": True} | sizes)
    assert model.pattern == "M" * 64 and model.mamba is not None and model.mamba.heads == 80
    assert parameters(model).total == 2_702_599_680


def test_bamba_has_two_blocks_a_layer() -> None:
    """ibm-ai-platform/Bamba-9B: 9.78B."""
    config = SIZES | MAMBA | {"model_type": "bamba", "hidden_size": 4096, "intermediate_size": 14336}
    config |= {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    model = parse_hf_config(config | {"attn_layer_indices": [9, 18, 27]})
    assert model.layers == 64 and model.pattern is not None and model.pattern.startswith("M-" * 9 + "*-M-")
    assert parameters(model).total == 9_780_235_392


def test_granite_4_has_experts_after_each_mixer_or_an_mlp_where_there_are_none() -> None:
    """granite-4.0-h-tiny: 7B with 1B active."""
    kinds = (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4
    config = SIZES | MAMBA | {"model_type": "granitemoehybrid", "hidden_size": 1536, "num_hidden_layers": 40}
    config |= {"layer_types": kinds, "num_attention_heads": 12, "intermediate_size": 512, "vocab_size": 100352}
    config |= {"shared_intermediate_size": 1024, "num_local_experts": 64, "num_experts_per_tok": 6, "mamba_n_heads": 48}
    model = parse_hf_config(config)
    assert (model.mamba_layers, model.attention_layers, model.moe_layers) == (36, 4, 40)
    assert parameters(model).total == pytest.approx(6.94e9, rel=0.002)
    dense = parse_hf_config(config | {"num_local_experts": 0})
    assert dense.moe is None and dense.mlp_layers == 40 and dense.ffn_hidden == 1024


def test_nemotron_h_may_list_its_blocks_by_name() -> None:
    config = without(fixture("nemotron-3-nano"), "hybrid_override_pattern", "num_hidden_layers")
    names = {"M": "mamba", "E": "moe", "*": "attention"}
    pattern = fixture("nemotron-3-nano")["hybrid_override_pattern"]
    assert parse_hf_config(config | {"layers_block_type": [names[x] for x in pattern]}).pattern == pattern
    refused(config | {"layers_block_type": ["mamba", "rwkv"]}, "not_one_of")
    refused(config | {"layers_block_type": ["mamba", 7]}, "not_one_of")


def test_qwen_2_5_has_a_bias_on_queries_keys_and_values_only() -> None:
    assert read_hf_config(FIXTURES / "qwen-2.5-7b.json").bias == ("qkv",)


def test_mixtral_sends_a_token_to_2_of_8_experts_and_has_no_window() -> None:
    model = read_hf_config(FIXTURES / "mixtral-8x7b.json")
    assert model.moe == Moe(experts=8, top_k=2, ffn_hidden=14336)
    assert model.window is None


def test_qwen_3_moe_has_an_experts_width_where_the_file_prints_an_unused_one() -> None:
    model = read_hf_config(FIXTURES / "qwen-3-30b-a3b.json")
    assert (model.ffn_hidden, model.moe) == (768, Moe(experts=128, top_k=8, ffn_hidden=768))


def test_gpt_2_without_an_inner_width_has_four_times_the_hidden_one() -> None:
    model = read_hf_config(FIXTURES / "gpt-2.json")
    assert (model.ffn_hidden, model.positions, model.max_seq_len, model.tied_embeddings) == (
        3072,
        "learned",
        1024,
        True,
    )
    assert parse_hf_config(fixture("gpt-2", n_inner=1000)).ffn_hidden == 1000


def test_gpt_2_may_use_the_common_names_of_its_keys() -> None:
    config = without(fixture("gpt-2"), "n_embd", "n_layer", "n_head", "n_positions")
    config |= {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 1024}
    assert parameters(parse_hf_config(config)).total == 124_439_808


def test_falcon_7b_has_one_key_value_head_and_one_norm_while_falcon_40b_has_8_and_two() -> None:
    small, large = (read_hf_config(FIXTURES / f"falcon-{size}.json") for size in ("7b", "40b"))
    assert (small.kv_heads, small.norms_per_layer, small.attention) == (1, 1, "mqa")
    assert (large.kv_heads, large.norms_per_layer, large.attention) == (8, 2, "gqa")
    assert small.parallel_residual
    assert large.parallel_residual


def test_falcon_180b_has_its_published_count() -> None:
    config = fixture("falcon-40b", hidden_size=14848, num_hidden_layers=80, num_attention_heads=232)
    # The weights file has 179,522,565,120, with the tied output matrix of 65024 x 14848 stored once more.
    assert parameters(parse_hf_config(config)).total == 179_522_565_120 - 65_024 * 14_848


def test_falcon_rw_has_alibi_biases_and_blocks_one_after_the_other() -> None:
    config = fixture("falcon-7b", hidden_size=2048, num_attention_heads=32, num_hidden_layers=24, vocab_size=50304)
    config |= {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}
    model = parse_hf_config(config)
    assert (model.attention, model.positions, model.parallel_residual) == ("mha", "alibi", False)
    assert (model.norms_per_layer, set(model.bias)) == (2, {"qkv", "out", "mlp"})
    assert parameters(model).total == 1_311_625_216  # the size of tiiuae/falcon-rw-1b


def test_deepseek_v3_has_latent_attention_three_dense_layers_and_a_shared_expert() -> None:
    model = read_hf_config(FIXTURES / "deepseek-v3.json")
    assert model.mla == Mla(
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    assert model.moe == Moe(experts=256, top_k=8, ffn_hidden=2048, shared_experts=1, first_dense=3)
    assert (model.ffn_hidden, model.bias) == (18432, ("router",))


def test_kimi_k2_is_read_as_a_deepseek_v3_with_other_sizes() -> None:
    config = fixture("deepseek-v3", model_type="kimi_k2", num_attention_heads=64, num_key_value_heads=64)
    config |= {"n_routed_experts": 384, "first_k_dense_replace": 1, "vocab_size": 163840}
    assert parameters(parse_hf_config(config)).total == parameters(catalogue().model("kimi-k2")).total


def test_deepseek_with_no_number_of_experts_is_dense() -> None:
    model = parse_hf_config(fixture("deepseek-v2-lite", n_routed_experts=None))
    assert (model.moe, model.ffn_hidden) == (None, 10944)


def test_qwen_2_moe_has_a_gated_shared_expert_of_its_own_width() -> None:
    config = SIZES | {"model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 151936}
    config |= {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "num_experts": 64}
    config |= {"num_experts_per_tok": 8, "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480}
    model = parse_hf_config(config)
    assert model.moe == catalogue().model("qwen-2-57b-a14b").moe
    h, e, s = 3584, 2560, 20480
    attention = 2 * h * h + 2 * h * 512 + h + 2 * 512  # query and output, 4 key/value heads of 128, their biases
    experts = h * 64 + 64 * 3 * h * e + 3 * h * s + h  # router, routed, shared, gate
    assert parameters(model).total == 28 * (attention + experts + 2 * h) + 2 * 151936 * h + h
    assert parameters(model).total == pytest.approx(57.41e9, rel=1e-4)  # 57.41B in the Qwen2 announcement


def test_llama_4_maverick_has_experts_in_every_second_layer_and_attention_in_chunks() -> None:
    text = SIZES | {"hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "head_dim": 128}
    text |= {"num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 202048}
    text |= {"num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}
    text |= {"attention_chunk_size": 8192, "max_position_embeddings": 1_048_576}
    model, expected = (
        parse_hf_config({"model_type": "llama4", "text_config": text}),
        catalogue().model("llama-4-maverick"),
    )
    assert (model.moe, model.window, model.ffn_hidden) == (expected.moe, expected.window, 16384)
    assert parameters(model).total == parameters(expected).total


def test_gemma_3_4b_takes_from_the_class_what_its_text_config_leaves_out() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    model = parse_hf_config({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **text}})
    assert (model.heads, model.kv_heads, model.head_dim, model.vocab) == (8, 4, 256, 262208)
    assert (model.window, model.tied_embeddings) == (Window(tokens=1024, full_every=6), True)
    assert parameters(model).total == parameters(catalogue().model("gemma-3-4b")).total


def test_opt_350m_projects_a_narrow_embedding_and_has_no_final_norm() -> None:
    model = read_hf_config(FIXTURES / "opt-350m.json")
    assert (model.embedding_width, model.final_norm, model.activation) == (512, False, "relu")


def test_mpt_with_biases_and_without_alibi_has_learned_positions() -> None:
    model = parse_hf_config(fixture("mpt-7b", no_bias=False, attn_config={"alibi": False}))
    assert (model.positions, model.norm, set(model.bias)) == ("learned", "layernorm", {"qkv", "out", "mlp"})


# ---- what the classes assume for keys that are left out


@pytest.mark.parametrize("name", ["bert-large", "bloom-176b", "falcon-7b", "gemma-7b", "gpt-2", "mpt-7b", "opt-6.7b"])
def test_families_tied_by_default_stay_tied_when_the_file_is_silent_and_not_when_it_says_no(name: str) -> None:
    silent = without(fixture(name), "tie_word_embeddings")
    assert parse_hf_config(silent).tied_embeddings
    assert not parse_hf_config(silent | {"tie_word_embeddings": False}).tied_embeddings


@pytest.mark.parametrize("name", ["llama-3-8b", "mistral-7b", "qwen-3-8b", "gpt-j-6b", "gpt-neox-20b", "phi-2"])
def test_families_untied_by_default_stay_untied_when_the_file_is_silent(name: str) -> None:
    assert not parse_hf_config(without(fixture(name), "tie_word_embeddings")).tied_embeddings


@pytest.mark.parametrize(
    ("family", "kv_heads"),
    [("llama", 16), ("phi3", 16), ("nemotron", 16), ("mistral", 8), ("gemma2", 4), ("gemma", 16)],
)
def test_key_value_heads_left_out_are_those_of_the_class(family: str, kv_heads: int) -> None:
    assert parse_hf_config(without(SIZES, "num_key_value_heads") | {"model_type": family}).kv_heads == kv_heads


@pytest.mark.parametrize(("family", "head_dim"), [("llama", 64), ("gemma", 256), ("gemma2", 256), ("qwen3", 128)])
def test_the_head_width_left_out_is_that_of_the_class(family: str, head_dim: int) -> None:
    assert parse_hf_config(SIZES | {"model_type": family}).head_dim == head_dim


def test_null_key_value_heads_are_as_many_as_heads() -> None:
    assert parse_hf_config(fixture("mistral-7b", num_key_value_heads=None)).kv_heads == 32


def test_llama_biases_follow_their_flags() -> None:
    assert parse_hf_config(fixture("llama-3-8b", attention_bias=True)).bias == ("qkv", "out")
    assert parse_hf_config(fixture("llama-3-8b", mlp_bias=True)).bias == ("mlp",)


# ---- windows


def test_mistral_with_a_null_window_sees_everything() -> None:
    assert parse_hf_config(fixture("mistral-7b", sliding_window=None)).window is None


def test_mistral_silent_about_its_window_has_that_of_the_class() -> None:
    assert parse_hf_config(without(fixture("mistral-7b"), "sliding_window")).window == Window(tokens=4096)


def test_a_window_as_long_as_the_longest_sequence_is_none() -> None:
    assert parse_hf_config(fixture("phi-3-mini", sliding_window=4096)).window is None


def test_qwen_2_uses_its_window_only_when_told_to_and_only_after_the_first_layers() -> None:
    imported = fixture("qwen-2.5-7b", use_sliding_window=True, sliding_window=4096)
    assert parse_hf_config(fixture("qwen-2.5-7b", sliding_window=4096)).window is None
    assert parse_hf_config(imported).window is None  # its 28 first layers are all there are
    half = parse_hf_config(imported | {"max_window_layers": 14})
    assert (half.window, half.full_attention_layers) == (Window(tokens=4096, full_every=2), 14)
    assert parse_hf_config(imported | {"max_window_layers": 0}).window == Window(tokens=4096)


def test_a_list_of_layer_kinds_says_how_many_layers_see_everything() -> None:
    kinds = [*["sliding_attention"] * 5, "full_attention"] * 4 + ["sliding_attention"] * 2
    model = parse_hf_config(without(fixture("gemma-3-1b", layer_types=kinds), "sliding_window_pattern"))
    assert (model.window, model.full_attention_layers) == (Window(tokens=512, full_every=6), 4)
    assert parse_hf_config(fixture("gpt-oss-20b", layer_types=["full_attention"] * 24)).window is None


def test_a_context_of_a_million_tokens_is_imported() -> None:
    # Qwen2.5-7B-Instruct-1M was made for 1,010,000 tokens.
    model = parse_hf_config(fixture("qwen-2.5-7b", max_position_embeddings=1_010_000))
    assert model.max_seq_len == 1_010_000


# ---- names


def test_a_model_is_named_after_its_family_or_its_file(tmp_path: Path) -> None:
    config = fixture("llama-2-7b")
    assert parse_hf_config(config).name == "llama"
    assert parse_hf_config(config, "mine").name == "mine"
    assert read_hf_config(written(tmp_path, json.dumps(config))).name == "llama"
    (tmp_path / "ours-7b.json").write_text(json.dumps(config))
    assert read_hf_config(tmp_path / "ours-7b.json").name == "ours-7b"


def test_a_config_without_its_family_says_what_to_add() -> None:
    with pytest.raises(InputError) as caught:
        parse_hf_config(without(fixture("llama-2-7b"), "model_type"))
    assert caught.value.notices[0].code == "hf_missing_key"
    assert "model_type" in str(caught.value)


# ---- what cannot be imported


@pytest.mark.parametrize("family", ["mamba", "", None, 7, ["llama"], {"a": 1}])
def test_an_unknown_family_is_refused_with_the_known_ones(family: Any) -> None:
    notice = refused({"model_type": family}, "hf_unknown_family")
    assert (notice.field, notice.value) == ("model_type", family)
    assert {"llama", "gemma3", "gpt2"} <= set(notice.params["known"])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llama-3-8b", "hidden_size"),
        ("gpt-2", "n_embd"),
        ("mixtral-8x7b", "num_local_experts"),
        ("mpt-7b", "d_model"),
        ("deepseek-v3", "kv_lora_rank"),
        ("bloom-176b", "n_head"),
        ("falcon-7b", "num_attention_heads"),
    ],
)
def test_a_missing_size_is_named_by_its_key(name: str, key: str) -> None:
    config = without(fixture(name), key)
    notice = refused(config, "hf_missing_key")
    assert (notice.field, notice.params) == (key, {"key": key, "family": config["model_type"]})


def test_all_missing_sizes_are_named_at_once() -> None:
    with pytest.raises(InvalidError) as caught:
        parse_hf_config({"model_type": "llama"})
    missing = {notice.params["key"] for notice in caught.value.notices}
    assert missing == {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"}


def test_a_null_size_counts_as_missing() -> None:
    assert refused(fixture("llama-3-8b", vocab_size=None), "hf_missing_key").params["key"] == "vocab_size"


def test_a_multimodal_config_without_its_text_part_is_refused() -> None:
    assert refused({"model_type": "gemma3"}, "hf_missing_key").params == {"key": "text_config", "family": "gemma3"}
    assert refused({"model_type": "gemma3", "text_config": [1]}, "must_be_mapping").field == "text_config"


def test_a_wrong_field_of_a_text_part_is_named_with_its_path() -> None:
    config = {
        "model_type": "gemma3",
        "text_config": {"hidden_size": "x", "intermediate_size": 8, "num_hidden_layers": 1},
    }
    assert refused(config, "must_be_whole").field == "text_config.hidden_size"


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("num_hidden_layers", "thirty-two", "must_be_whole"),
        ("num_hidden_layers", 0, "must_be_at_least"),
        ("num_hidden_layers", 32.5, "must_be_whole"),
        ("vocab_size", [1], "must_be_whole"),
        ("hidden_size", 10**30, "must_be_at_most"),
        ("tie_word_embeddings", "no", "must_be_flag"),
        ("attention_bias", "no", "must_be_flag"),
        ("hidden_act", "sine", "not_one_of"),
        ("hidden_act", {}, "not_one_of"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_by_its_key(key: str, value: Any, code: str) -> None:
    config = fixture("llama-3-8b", head_dim=128, **{key: value})
    notice = refused(config, code)
    assert (notice.field, notice.value) == (key, value)


def test_layer_kinds_must_be_a_list() -> None:
    assert refused(fixture("gpt-oss-20b", layer_types="full"), "must_be_list").field == "layer_types"


def test_more_experts_a_token_than_there_are_is_refused() -> None:
    assert refused(fixture("mixtral-8x7b", num_experts_per_tok=9), "top_k_over_experts").params["experts"] == 8


@pytest.mark.parametrize("config", [None, [], "llama", 3])
def test_what_is_not_a_mapping_is_refused(config: Any) -> None:
    refused(config, "must_be_mapping")


def test_a_wrong_field_of_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(
        tmp_path, '{\n  "model_type": "gpt2",\n  "n_layer": "a",\n  "n_embd": 8,\n  "n_head": 2,\n  "vocab_size": 9\n}'
    )
    with pytest.raises(InvalidError) as caught:
        read_hf_config(path)
    notice = caught.value.notices[0]
    assert (notice.field, notice.file, notice.line) == ("n_layer", str(path), 3)


@pytest.mark.parametrize("text", ["", "[]", "[{}]", "null", '"llama"', "12"])
def test_a_file_that_holds_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        read_hf_config(written(tmp_path, text))
    assert [notice.code for notice in caught.value.notices] == ["must_be_mapping"]


def test_a_file_of_10_mb_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        read_hf_config(written(tmp_path, '{"model_type": "llama", "note": "' + "x" * 10_000_000 + '"}'))
    assert caught.value.notices[0].code == "file_too_large"


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        read_hf_config(tmp_path / "config.json")
    with pytest.raises(FileError):
        read_hf_config(written(tmp_path, '{"model_type": "llama",'))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
READ_KEYS = {
    "layer_types",
    "mlp_only_layers",
    "attn_config",
    "expansion_ratio",
    "use_sliding_window",
    "max_window_layers",
}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A whole file in which some of the keys a family reads hold anything."""
    config = fixture(draw(st.sampled_from(NAMES)))
    family = FAMILIES[config["model_type"]]
    keys = sorted({*family.keys.values(), *family.defaults, *family.bias, *READ_KEYS})
    return config | draw(st.dictionaries(st.sampled_from(keys), JSON, max_size=4))


@settings(deadline=None)
@given(configs())
def test_any_json_gives_a_model_or_sentences_in_both_languages(config: dict[str, Any]) -> None:
    notices: Sequence[Notice] = ()
    try:
        outcome = str(parameters(parse_hf_config(config)).total)
    except InputError as error:
        outcome, notices = str(error), error.notices
    assert outcome
    assert all(notice.message(language) for notice in notices for language in ("en", "zh"))
