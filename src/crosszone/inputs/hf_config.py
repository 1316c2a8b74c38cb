"""Import of a Hugging Face `config.json` as a `Model`.

    read_hf_config("Meta-Llama-3-8B/config.json")        Model(name='Meta-Llama-3-8B', layers=32, hidden=4096, ...)
    parse_hf_config({"model_type": "gpt2", ...})         Model(name='gpt2', layers=12, hidden=768, ...)

A family (`model_type`) is one row of `FAMILIES`: which key holds which field of the model, what the configuration class
of transformers assumes for a key that is left out, and what all its models share. The main sizes must be given, except
where published files leave them out (Gemma 3). Of a multimodal model only the text part is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.document import Document, FieldPath, format_field_path, read_document
from crosszone.inputs.model import GATED, Model
from crosszone.inputs.value import find_nearest_names, parse

Fields: TypeAlias = dict[str, Any]
_LLAMA_BIAS = {"attention_bias": ("qkv", "out"), "mlp_bias": ("mlp",)}


def read_hf_config(path: str | Path) -> Model:
    """Read a `config.json`; a file of another name gives the model its name, `config.json` the family's."""
    document = read_document(path)
    place = Path(path)
    stem = "" if place.stem == "config" else place.stem
    # what `value.Name` takes: printable, at most 100 characters
    name = "".join(c for c in stem if c.isprintable())[:100].strip(" -")
    return _build_model(document.value, name or None, document)


def parse_hf_config(config: Mapping[str, Any], name: str | None = None) -> Model:
    """Convert a parsed `config.json` to a model, by default named after its family."""
    return _build_model(config, name, None)


@dataclass(frozen=True, kw_only=True)
class ConfigFamily:
    """How the configurations of one `model_type` are read; fields of the model are dotted paths (`moe.experts`).

    keys:     field of the model -> key of the configuration
    defaults: key -> what transformers assumes when it is left out
    shared:   fields that all models of the family share
    bias:     key of a flag -> linear layers that have a bias when it is true (besides those in `shared`)
    activation, tied: kind of MLP, and whether the output head is the embedding table, when the file does not say
    adjust:   completes or corrects the fields where a table cannot
    """

    keys: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    bias: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _LLAMA_BIAS)
    activation: str = "swiglu"
    tied: bool = False
    adjust: Callable[[Config, Fields], None] | None = None


@dataclass(frozen=True)
class Config:
    """A configuration with the defaults of its family, and where it stands in a file."""

    values: Mapping[str, Any]
    family: str
    document: Document | None = None
    at: FieldPath = ()

    @property
    def row(self) -> ConfigFamily:
        """The family's row."""
        return FAMILIES[self.family]

    def find_spelling(self, key: str) -> str:
        """The key as this file spells it: transformers takes some keys under two names."""
        other = _ALSO.get(key, key)
        return other if key not in self.values and other in self.values else key

    def get(self, key: str) -> Any:
        """The value of a key; when it is left out, the family's default."""
        return self.values.get(self.find_spelling(key), self.row.defaults.get(key))

    def get_flag(self, key: str) -> bool:
        """The value of a key that is true or false; null stands for the default."""
        value = self.get(key) if self.get(key) is not None else self.row.defaults.get(key, False)
        if not isinstance(value, bool):
            raise self.build_error("must_be_flag", key, value)
        return value

    def get_list(self, key: str) -> list[Any]:
        """The value of a key that is a list; null stands for an empty one."""
        value = self.get(key) if self.get(key) is not None else []
        if not isinstance(value, list):
            raise self.build_error("must_be_list", key, value)
        return value

    def place_notice(self, notice: Notice, key: str) -> Notice:
        """The notice with a key of this configuration as its field, and the line of that key."""
        path = (*self.at, self.find_spelling(key)) if key else self.at
        located = replace(notice, field=format_field_path(path) or notice.field)
        return located.with_place(self.document.file, self.document.find_line(path)) if self.document else located

    def build_error(self, code: str, key: str, value: Any = None, /, **params: Any) -> InvalidError:
        """The error that a key of this configuration cannot have its value."""
        return InvalidError(self.place_notice(Notice(code=code, value=value, params=params), key))


def _build_model(values: Any, name: str | None, document: Document | None) -> Model:
    config = _build_config(values, document)
    fields = {"name": config.family if name is None else name, **_build_fields(config)}
    try:
        return parse(Model, fields)
    except InputError as error:
        raise type(error)(*(_translate_notice(config, notice) for notice in error.notices)) from None


def _build_config(values: Any, document: Document | None) -> Config:
    """The configuration with its family, which must be known; of a multimodal model the text part."""
    config = _open_part(values, "", Config({}, "", document))
    family, families = config.values.get("model_type"), sorted([*FAMILIES, *_TEXT_PARTS])
    if "model_type" not in config.values:
        raise config.build_error("hf_missing_key", "model_type", key="model_type", family="Hugging Face")
    if not isinstance(family, str) or family not in families:
        raise config.build_error("hf_unknown_family", "model_type", family, known=families)
    if family in FAMILIES:
        return replace(config, family=family)
    if "text_config" not in config.values:
        raise config.build_error("hf_missing_key", "text_config", key="text_config", family=family)
    text = _open_part(config.values["text_config"], "text_config", config)
    tied = {"tie_word_embeddings": config.values.get("tie_word_embeddings")}
    return replace(text, family=_TEXT_PARTS[family], values={**tied, **text.values})


def _open_part(values: Any, key: str, config: Config) -> Config:
    """The mapping under a key of a configuration as a configuration of its own; without a key, the whole file."""
    if not isinstance(values, Mapping):
        raise config.build_error("must_be_mapping", key, values)
    return replace(config, values=values, at=(*config.at, key) if key else ())


def _build_fields(config: Config) -> Fields:
    """The fields of the model, not yet checked; null means that the model's own default holds."""
    row = config.row
    fields: Fields = {"activation": row.activation, "tied_embeddings": row.tied}
    for path, key in row.keys.items():
        _set_field(fields, path, config.get(key))
    for path, value in row.shared.items():
        _set_field(fields, path, value)
    if config.get(row.keys.get("activation", "")) is not None:
        _set_activation(config, fields)
    if "window" in fields:
        _adjust_window(config, fields)
    if "moe" in fields:
        _adjust_moe(config, fields)
    if row.adjust:
        row.adjust(config, fields)
    flagged = [layer for key, layers in row.bias.items() if config.get_flag(key) for layer in layers]
    fields["bias"] = (*fields.get("bias", ()), *flagged)
    return fields


def _set_field(fields: Fields, path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for step in outer:
        fields = fields.setdefault(step, {})
    if value is not None:
        fields[last] = value


def _translate_notice(config: Config, notice: Notice) -> Notice:
    """A notice about a field of the model as one about the key of the configuration that it was read from."""
    key = config.row.keys.get(notice.field, "")
    if notice.code == "missing_key" and key:
        notice = Notice(code="hf_missing_key", params={"key": key, "family": config.family})
    return config.place_notice(notice, key)


def _set_activation(config: Config, fields: Fields) -> None:
    """Translate the name of the activation: in a gated MLP, silu means swiglu."""
    key, table = config.row.keys["activation"], _GATED if config.row.activation in GATED else _PLAIN
    name = config.get(key)
    if not isinstance(name, str) or name not in table:
        close = find_nearest_names(str(name)[:100], table)[:1] or sorted(table)[:1]
        raise config.build_error("not_one_of", key, name, allowed=sorted(table), nearest=close)
    fields["activation"] = table[name]


def _set_default_ffn(_: Config, fields: Fields) -> None:
    """The MLP is four times as wide as the model unless the file says otherwise."""
    hidden = fields.get("hidden")
    fields.setdefault("ffn_hidden", 4 * hidden if isinstance(hidden, int) else 1)  # a wrong width is reported as itself


def _adjust_window(config: Config, fields: Fields) -> None:
    """Keep the sliding window only if some layer uses it and a sequence can outgrow it."""
    window, defaults = fields["window"], config.row.defaults
    tokens, longest = window.get("tokens"), config.get("max_position_embeddings")
    unused = "use_sliding_window" in defaults and not config.get_flag("use_sliding_window")
    outgrown = not (isinstance(tokens, int) and isinstance(longest, int)) or tokens < longest
    kinds = config.get_list("layer_types")
    layers = len(kinds) or config.get("num_hidden_layers")
    full = kinds.count("full_attention") if kinds else config.get("max_window_layers")
    if isinstance(full, int) and isinstance(layers, int) and (kinds or "max_window_layers" in defaults):
        # Qwen2's first `max_window_layers` see everything (transformers, Qwen2Config); only how many matters here
        unused = unused or full >= layers
        window["full_every"] = layers // full if full > 0 else None
    if tokens is None or unused or not outgrown:
        del fields["window"]


def _adjust_moe(config: Config, fields: Fields) -> None:
    """Drop the experts when their number is null or 0; without a dense layer, the dense width is an expert's."""
    moe, key = fields["moe"], config.row.keys["moe.experts"]
    if config.find_spelling(key) in config.values and config.get(key) in (None, 0):
        del fields["moe"]
        return
    dense = config.get_list("mlp_only_layers")
    if dense:
        moe["first_dense"] = len(dense)
    # files of such models (Qwen-MoE) still state an intermediate_size that no layer has
    if moe.get("first_dense", 0) == 0 and moe.get("every", 1) == 1 and "ffn_hidden" in moe:
        fields["ffn_hidden"] = moe["ffn_hidden"]


def _adjust_falcon(config: Config, fields: Fields) -> None:
    """Key/value heads and norms of the first generation (7B: one each) and of the second (40B, 180B)."""
    second, parallel = config.get_flag("new_decoder_architecture"), config.get_flag("parallel_attn")
    fields["parallel_residual"] = parallel
    fields["positions"] = "alibi" if config.get_flag("alibi") else "rotary"
    if not second:
        fields.pop("kv_heads", None)
        _set_field(fields, "kv_heads", 1 if config.get_flag("multi_query") else None)
    fields["norms_per_layer"] = fields.get("norms_per_layer", 2 if second else 1) if parallel else 2
    _set_default_ffn(config, fields)


def _adjust_mpt(config: Config, fields: Fields) -> None:
    """Positions, heads and biases, some of which stand in a mapping of their own."""
    attention = _open_part(config.get("attn_config") or {}, "attn_config", config)
    learned = "learned" if config.get_flag("learned_pos_emb") else "none"
    fields["positions"] = "alibi" if attention.get_flag("alibi") else learned
    fields["qk_norm"] = "full" if attention.get_flag("qk_ln") else "none"
    if attention.get("attn_type") == "multiquery_attention":
        fields["kv_heads"] = 1
    hidden, ratio = fields.get("hidden"), config.get("expansion_ratio")
    fields["ffn_hidden"] = hidden * ratio if isinstance(hidden, int) and isinstance(ratio, int) else ratio
    if not config.get_flag("no_bias"):
        fields |= {"norm": "layernorm", "bias": _ALL}


# Letters of a pattern of blocks by the names that files give them.
_BLOCKS = {"mamba": "M", "mamba2": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-"}
_BLOCKS |= {"moe": "E"}


def _adjust_nemotron_h(config: Config, fields: Fields) -> None:
    """The pattern as text or as a list; MLP, experts and Mamba layers only where it has such blocks."""
    names = config.get_list("layers_block_type")
    pattern = "".join(_translate_block(config, "layers_block_type", name) for name in names)
    pattern = pattern or config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        fields["pattern"] = pattern = pattern.replace("|", "")
        fields.pop("layers", None)
        width = config.get("intermediate_size")
        if "-" in pattern and width is not None:
            fields["ffn_hidden"] = width
        if "E" not in pattern:
            fields.pop("moe", None)
        elif "moe" in fields:
            fields["bias"] = ("router",)  # the load-balancing correction
            fields["mtp_shared"] = bool(fields.get("mtp_layers"))
        if "M" not in pattern:
            fields.pop("mamba", None)
    fields["norms_per_layer"] = 1


def _translate_block(config: Config, key: str, name: Any) -> str:
    if not isinstance(name, str) or name not in _BLOCKS:
        close = find_nearest_names(str(name)[:100], _BLOCKS)[:1]
        raise config.build_error("not_one_of", key, name, allowed=sorted(_BLOCKS), nearest=close)
    return _BLOCKS[name]


def _adjust_mamba2(config: Config, fields: Fields) -> None:
    """Nothing but Mamba-2 layers."""
    layers = fields.pop("layers", None)
    fields["pattern"] = "M" * (layers if isinstance(layers, int) and 0 < layers <= MOST_BLOCKS else 0)
    _set_mamba_heads(config, fields, "expand")


def _set_mamba_heads(config: Config, fields: Fields, key: str) -> None:
    """Heads by the factor of expansion, where they are not given."""
    mamba, hidden, expand = fields["mamba"], fields.get("hidden"), config.get(key)
    width = mamba.get("head_dim")
    if mamba.get("heads") in (None, "auto") and all(isinstance(n, int) for n in (hidden, expand, width)) and width:
        mamba["heads"] = expand * hidden // width


def _adjust_bamba(config: Config, fields: Fields) -> None:
    """Each layer a Mamba-2 or an attention block, then an MLP: two blocks with a norm each."""
    attention, layers = config.get_list("attn_layer_indices"), fields.pop("layers", None)
    count = layers if isinstance(layers, int) and 0 < layers <= MOST_BLOCKS else 0
    fields["pattern"] = "".join("*-" if layer in attention else "M-" for layer in range(count))
    fields["norms_per_layer"] = 1
    _set_mamba_heads(config, fields, "mamba_expand")


def _adjust_granite_hybrid(config: Config, fields: Fields) -> None:
    """Each layer a Mamba-2 or an attention block, then experts with a shared one, or an MLP of that one's width."""
    kinds = config.get_list("layer_types")
    fields.pop("layers", None)
    experts, shared = config.get("num_local_experts"), config.get("shared_intermediate_size")
    block = "E" if experts else "-"
    fields["pattern"] = "".join(_translate_block(config, "layer_types", kind) + block for kind in kinds)
    fields["norms_per_layer"] = 1
    if experts and "moe" in fields:
        fields["moe"] |= {"shared_experts": 1, "shared_ffn_hidden": shared}
        fields["ffn_hidden"] = 1
    else:
        fields.pop("moe", None)
        fields["ffn_hidden"] = shared
    if "*" not in fields["pattern"]:
        fields["heads"] = 1
    rotary = config.get("position_embedding_type") == "rope"
    fields["positions"] = "rotary" if rotary else "none"
    _set_mamba_heads(config, fields, "mamba_expand")


MOST_BLOCKS = 10_000  # Blocks of a pattern, as `Model` takes them

# Other names of keys, as `attribute_map` of the configuration classes has them; those of experts differ by family.
_ALSO = (
    {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    | {"d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
    | {"n_positions": "max_position_embeddings", "hidden_size": "n_embed", "num_experts_per_tok": "experts_per_token"}
    | {"head_dim": "attention_head_dim"}
    | {"num_experts": "num_local_experts", "num_local_experts": "num_experts", "n_routed_experts": "num_local_experts"}
)

_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "quick_gelu")
_PLAIN = dict.fromkeys(_GELU, "gelu") | {"relu": "relu", "relu2": "squared-relu", "silu": "silu", "swish": "silu"}
_GATED = dict.fromkeys(_GELU, "geglu") | {"relu": "reglu", "silu": "swiglu", "swish": "swiglu"}

_SIZES = (
    {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads", "vocab": "vocab_size"}
    | {"ffn_hidden": "intermediate_size", "activation": "hidden_act", "max_seq_len": "max_position_embeddings"}
    | {"tied_embeddings": "tie_word_embeddings"}
)
_GPT2 = _SIZES | (
    {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "ffn_hidden": "n_inner", "max_seq_len": "n_positions"}
    | {"activation": "activation_function"}
)
_LLAMA = _SIZES | {"kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
_SLIDING = _LLAMA | {"window.tokens": "sliding_window"}
_GEMMA = _SLIDING | {"activation": "hidden_activation"}
_MOE = {"moe.top_k": "num_experts_per_tok", "moe.ffn_hidden": "moe_intermediate_size"}
_MIXTRAL = _SLIDING | _MOE | {"moe.experts": "num_local_experts", "moe.ffn_hidden": "intermediate_size"}
_QWEN_MOE = _SLIDING | _MOE | {"moe.experts": "num_experts", "moe.every": "decoder_sparse_step"}
_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_DEEPSEEK = _SIZES | _MOE | {f"mla.{key}": key for key in _MLA}
_DEEPSEEK |= {"moe.experts": "n_routed_experts", "moe.shared_experts": "n_shared_experts"}
_DEEPSEEK |= {"moe.first_dense": "first_k_dense_replace", "moe.every": "moe_layer_freq"}
_DEEPSEEK |= {"mtp_layers": "num_nextn_predict_layers"}

_NEMOTRON_H = _LLAMA | _MOE | {f"mamba.{field}": key for field, key in {
    "heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "state": "ssm_state_size", "groups": "n_groups",
    "conv": "conv_kernel", "chunk": "chunk_size", "conv_bias": "use_conv_bias", "proj_bias": "mamba_proj_bias",
}.items()}  # fmt: skip
_NEMOTRON_H |= {
    "activation": "mlp_hidden_act",
    "moe.experts": "n_routed_experts",
    "mtp_layers": "num_nextn_predict_layers",
}
_NEMOTRON_H |= {"moe.shared_experts": "n_shared_experts", "moe.latent": "moe_latent_size"}
_NEMOTRON_H |= {"moe.shared_ffn_hidden": "moe_shared_expert_intermediate_size"}
_BAMBA = _LLAMA | {f"mamba.{field}": f"mamba_{key}" for field, key in {
    "heads": "n_heads", "head_dim": "d_head", "state": "d_state", "groups": "n_groups", "conv": "d_conv",
    "chunk": "chunk_size", "conv_bias": "conv_bias", "proj_bias": "proj_bias",
}.items()}  # fmt: skip
_BAMBA_DEFAULTS = {"num_key_value_heads": 8, "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_d_state": 256}
_BAMBA_DEFAULTS |= {"mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_chunk_size": 256, "mamba_expand": 2}

_ALL = ("qkv", "out", "mlp")
_LAYERNORM = {"norm": "layernorm"}
_LEARNED = _LAYERNORM | {"positions": "learned"}
_QWEN = {"num_key_value_heads": 32, "use_sliding_window": False, "sliding_window": 4096}

_gelu = partial(ConfigFamily, activation="gelu")
_gelu_tied = partial(ConfigFamily, activation="gelu", tied=True)
_gemma = partial(ConfigFamily, activation="geglu", tied=True)

FAMILIES: dict[str, ConfigFamily] = {
    "bamba": ConfigFamily(keys=_BAMBA, defaults=_BAMBA_DEFAULTS, adjust=_adjust_bamba),
    "bert": _gelu_tied(
        keys=_SIZES | {"token_types": "type_vocab_size"},
        defaults={"max_position_embeddings": 512, "type_vocab_size": 2},
        shared=_LEARNED
        | {"kind": "encoder", "bias": _ALL, "embedding_norm": True, "final_norm": False}
        | {"pooler": True, "mlm_head": True},
    ),
    "bloom": _gelu_tied(
        keys={"layers": "n_layer", "hidden": "hidden_size", "heads": "n_head", "vocab": "vocab_size"}
        | {"max_seq_len": "seq_length", "tied_embeddings": "tie_word_embeddings"},
        shared=_LAYERNORM | {"positions": "alibi", "embedding_norm": True, "bias": _ALL},
        adjust=_set_default_ffn,
    ),
    "deepseek_v2": ConfigFamily(keys=_DEEPSEEK, defaults={"q_lora_rank": 1536, "n_shared_experts": 2}),
    "deepseek_v3": ConfigFamily(
        keys=_DEEPSEEK,
        defaults={"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3},
        shared={"bias": ("router",)},  # the load-balancing correction
    ),
    "falcon": _gelu_tied(
        keys=_SIZES
        | {"kv_heads": "num_kv_heads", "ffn_hidden": "ffn_hidden_size", "activation": "activation"}
        | {"norms_per_layer": "num_ln_in_parallel_attn"},
        defaults={"max_position_embeddings": 2048, "multi_query": True, "parallel_attn": True},
        shared=_LAYERNORM,
        bias={"bias": _ALL},
        adjust=_adjust_falcon,
    ),
    "gemma": _gemma(keys=_LLAMA, defaults={"num_key_value_heads": 16, "head_dim": 256}),
    "gemma2": _gemma(
        keys=_GEMMA,
        defaults={"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
        shared={"norms_per_layer": 4, "window.full_every": 2},
    ),
    "gemma3_text": _gemma(
        keys=_GEMMA | {"window.full_every": "sliding_window_pattern"},
        defaults={"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096}
        | {"sliding_window_pattern": 6, "max_position_embeddings": 131072}
        | {"num_attention_heads": 8, "vocab_size": 262208},  # the files of 4B and 12B leave these out
        shared={"norms_per_layer": 4, "qk_norm": "head"},
    ),
    "gpt2": _gelu_tied(
        keys=_GPT2, defaults={"n_positions": 1024}, shared=_LEARNED | {"bias": _ALL}, adjust=_set_default_ffn
    ),
    "gpt_neox": _gelu(
        keys=_SIZES | {"parallel_residual": "use_parallel_residual"},
        defaults={"use_parallel_residual": True, "attention_bias": True},
        shared=_LAYERNORM | {"bias": ("mlp",)},
    ),
    "gpt_oss": ConfigFamily(
        keys=_MIXTRAL,
        defaults={"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "attention_bias": True},
        shared={"window.full_every": 2, "attention_sinks": True, "bias": ("mlp", "router")},
    ),
    "gptj": _gelu(
        keys=_GPT2,
        defaults={"n_positions": 2048},
        shared=_LAYERNORM | {"norms_per_layer": 1, "parallel_residual": True, "bias": ("mlp", "head")},
        adjust=_set_default_ffn,
    ),
    "granitemoehybrid": ConfigFamily(
        keys=_BAMBA | _MOE | {"moe.experts": "num_local_experts", "moe.ffn_hidden": "intermediate_size"},
        defaults=_BAMBA_DEFAULTS | {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024},
        tied=True,
        adjust=_adjust_granite_hybrid,
    ),
    "llama": ConfigFamily(keys=_LLAMA),
    "llama4_text": ConfigFamily(  # attention in chunks counts as a window of that length
        keys=_MIXTRAL
        | {"ffn_hidden": "intermediate_size_mlp", "moe.every": "interleave_moe_layer_step"}
        | {"window.tokens": "attention_chunk_size", "window.full_every": "no_rope_layer_interval"},
        defaults={"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
        shared={"moe.shared_experts": 1},
    ),
    "mamba2": ConfigFamily(
        keys={"layers": "num_hidden_layers", "hidden": "hidden_size", "vocab": "vocab_size"}
        | {"tied_embeddings": "tie_word_embeddings", "mamba.heads": "num_heads", "mamba.head_dim": "head_dim"}
        | {"mamba.state": "state_size", "mamba.groups": "n_groups", "mamba.conv": "conv_kernel"}
        | {"mamba.chunk": "chunk_size", "mamba.conv_bias": "use_conv_bias", "mamba.proj_bias": "use_bias"},
        defaults={"head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 256, "expand": 2},
        shared={"positions": "none", "heads": 1, "ffn_hidden": 1, "norms_per_layer": 1},
        adjust=_adjust_mamba2,
    ),
    "mistral": ConfigFamily(keys=_SLIDING, defaults={"num_key_value_heads": 8, "sliding_window": 4096}),
    "mixtral": ConfigFamily(keys=_MIXTRAL, defaults={"num_key_value_heads": 8}),
    "mpt": _gelu_tied(
        keys={"layers": "n_layers", "hidden": "d_model", "heads": "n_heads", "vocab": "vocab_size"}
        | {"ffn_hidden": "expansion_ratio", "max_seq_len": "max_seq_len", "tied_embeddings": "tie_word_embeddings"},
        defaults={"expansion_ratio": 4, "max_seq_len": 2048, "learned_pos_emb": True, "alibi": True, "no_bias": True},
        shared={"norm": "layernorm-no-bias"},
        adjust=_adjust_mpt,
    ),
    "nemotron_h": ConfigFamily(
        keys=_NEMOTRON_H,
        defaults={"num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64}
        | {"ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 128},
        shared={"positions": "none"},
        activation="squared-relu",
        adjust=_adjust_nemotron_h,
    ),
    "nemotron": ConfigFamily(keys=_LLAMA, shared=_LAYERNORM, activation="squared-relu"),
    "opt": ConfigFamily(
        keys=_SIZES
        | {"ffn_hidden": "ffn_dim", "activation": "activation_function", "embedding_width": "word_embed_proj_dim"}
        | {"final_norm": "do_layer_norm_before"},
        defaults={"max_position_embeddings": 2048, "enable_bias": True},
        shared=_LEARNED,
        bias={"enable_bias": _ALL},
        activation="relu",
        tied=True,
    ),
    "phi": _gelu(
        keys=_SIZES | {"kv_heads": "num_key_value_heads"},
        shared=_LAYERNORM | {"norms_per_layer": 1, "parallel_residual": True, "bias": (*_ALL, "head")},
    ),
    "phi3": ConfigFamily(keys=_SLIDING),
    "qwen2": ConfigFamily(
        keys=_SLIDING, defaults=_QWEN | {"max_window_layers": 28}, shared={"bias": ("qkv",)}, bias={}
    ),
    "qwen2_moe": ConfigFamily(
        keys=_QWEN_MOE | {"moe.shared_ffn_hidden": "shared_expert_intermediate_size"},
        defaults=_QWEN | {"num_key_value_heads": 16, "shared_expert_intermediate_size": 5632, "qkv_bias": True},
        shared={"window.full_every": 2, "moe.shared_experts": 1, "moe.shared_gate": True},
        bias={"qkv_bias": ("qkv",)},
    ),
    "qwen3": ConfigFamily(
        keys=_SLIDING, defaults=_QWEN | {"head_dim": 128, "max_window_layers": 28}, shared={"qk_norm": "head"}
    ),
    "qwen3_moe": ConfigFamily(keys=_QWEN_MOE, defaults=_QWEN | {"num_key_value_heads": 4}, shared={"qk_norm": "head"}),
}
FAMILIES["kimi_k2"] = FAMILIES["deepseek_v3"]
_TEXT_PARTS = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
