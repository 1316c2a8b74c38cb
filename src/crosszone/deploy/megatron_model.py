"""Megatron-LM's flags for an architecture, and a refusal for whatever its GPT model cannot be told.

Names and meanings were read in Megatron-LM d98e8a64: megatron/training/arguments.py, megatron/core/transformer/
transformer_config.py, gpt_builders.py, megatron/core/models/gpt/gpt_layer_specs.py, megatron/core/transformer/moe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crosszone.deploy.option import Option, option
from crosszone.errors import IllegalError, Notice
from crosszone.inputs.model import Model

NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
POSITIONS = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}
ACTIVATIONS = {"gelu": None, "swiglu": "--swiglu", "squared-relu": "--squared-relu"}
"""gelu is what it takes when nothing is said. --quick-geglu is a sigmoid in place of GELU, so no geglu."""
EPSILON = {"rmsnorm": 1e-5, "layernorm": 1e-5}
BIASES = {(): "none", ("qkv",): "qkv", ("mlp", "out", "qkv"): "all"}
"""Linear layers that can have a bias together."""
VOCAB_MULTIPLE = 128
AUX_LOSS = 0.01
"""Weight of the router's balancing loss that Megatron's help recommends to begin with."""


def architecture(model: Model, *, seq_len: int, tp: int, ep: int, language: str) -> tuple[Option, ...]:
    """Flags that make Megatron's GPT this model; `IllegalError` for what it cannot be."""
    require_gpt(model, tp=tp, ep=ep)
    return tuple(
        option("flag", name, value, language, key=f"megatron_{key}", **params)
        for name, value, key, params in _flags(model, seq_len, tp)
    )


def require_gpt(model: Model, *, tp: int, ep: int) -> None:
    """Refuse what Megatron's GPT model has no flag for, all of it at once."""
    broken = [
        Notice(code=code, field=f"model.{field}", value=value, params={"model": model.name, **params})
        for code, field, value, params in _missing(model, tp, ep)
    ]
    if broken:
        raise IllegalError(*broken)


def _missing(m: Model, tp: int, ep: int) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    lacks = "megatron_lacks"
    if m.kind == "encoder":
        yield "megatron_encoder", "kind", m.kind, {}
        return
    for field, known in (("activation", ACTIVATIONS), ("positions", POSITIONS), ("norm", NORMS)):
        if getattr(m, field) not in known:
            yield lacks, field, getattr(m, field), {"allowed": list(known)}
    for field, only in (
        ("norms_per_layer", 2),
        ("final_norm", True),
        ("embedding_norm", False),
        ("embedding_width", m.hidden),
        ("parallel_residual", False),
        ("token_types", 0),
        ("pooler", False),
        ("mlm_head", False),
    ):
        if getattr(m, field) != only:
            yield lacks, field, getattr(m, field), {"allowed": [only]}
    if m.qk_norm == "full":
        yield lacks, "qk_norm", m.qk_norm, {"allowed": ["none", "head"]}
    if _biases(m) is None:
        yield "megatron_bias", "bias", list(m.bias), {}
    elif m.moe and _biases(m) == "all" and ep == 1 and tp > 1:  # "Bias in Moe is only supported when ETP==1"
        yield "megatron_expert_bias", "bias", list(m.bias), {"tp": tp}
    if m.attention_sinks and m.mla:
        yield lacks, "attention_sinks", True, {"allowed": [False]}
    if m.vocab_padded_to is not None and m.vocab_padded_to % tp:
        yield "megatron_vocabulary", "vocab_padded_to", m.vocab_padded_to, {"tp": tp}


def _biases(m: Model) -> str | None:
    """Which linear layers have a bias: none, qkv or all; None for what cannot be told.

    With all of them the router has one too; on its own the router's is the correction that balances experts
    without a loss (DeepSeek-V3), which goes with sigmoid scores.
    """
    kinds = set(m.bias)
    if m.moe and kinds == {"router"}:
        return "router"
    if m.moe and kinds == {"qkv", "out", "mlp"}:
        return None
    return BIASES.get(tuple(sorted(kinds - {"router"} if m.moe and kinds >= {"qkv", "out", "mlp"} else kinds)))


def _flags(m: Model, seq_len: int, tp: int) -> Iterator[tuple[str, Any, str, dict[str, Any]]]:
    """Name, value, key of the sentence and its parameters."""

    def of(name: str, value: Any, field: str) -> tuple[str, Any, str, dict[str, Any]]:
        return name, value, "model", {"field": f"model.{field}"}

    yield of("--num-layers", m.layers, "layers")
    yield of("--hidden-size", m.hidden, "hidden")
    yield of("--ffn-hidden-size", m.ffn_hidden, "ffn_hidden")
    yield of("--num-attention-heads", m.heads, "heads")
    yield of("--kv-channels", m.v_head_dim, "mla.v_head_dim" if m.mla else "head_dim")
    if m.kv_heads != m.heads and not m.mla:
        yield of("--group-query-attention", True, "kv_heads")
        yield of("--num-query-groups", m.kv_heads, "kv_heads")
    activation = ACTIVATIONS[m.activation]
    if activation is not None:
        yield of(activation, True, "activation")
    biases = _biases(m)
    if m.activation == "squared-relu" and biases == "all":
        yield "--no-bias-gelu-fusion", True, "no_gelu_fusion", {}
    yield of("--normalization", NORMS[m.norm], "norm")
    yield "--norm-epsilon", EPSILON[m.norm], "norm_epsilon", {}
    if m.qk_norm == "head" or m.mla:  # of latent attention: the norms between its two projections
        yield of("--qk-layernorm", True, "mla" if m.mla else "qk_norm")
    if biases != "all":
        yield of("--disable-bias-linear", True, "bias")
    if biases == "qkv":
        yield of("--add-qkv-bias", True, "bias")
    yield of("--position-embedding-type", POSITIONS[m.positions], "positions")
    rows = m.max_seq_len if m.positions == "learned" and m.max_seq_len else seq_len
    yield "--max-position-embeddings", max(rows, seq_len), "max_positions", {}
    if not m.tied_embeddings:
        yield of("--untie-embeddings-and-output-weights", True, "tied_embeddings")
    if m.attention_sinks:
        yield of("--softmax-type", "learnable", "attention_sinks")
    if m.window is not None:
        yield "--window-size", f"{m.window.tokens - 1},0", "window", {"tokens": m.window.tokens}
        if m.window.full_every is not None:
            yield of("--window-attn-skip-freq", m.window.full_every, "window.full_every")
    yield "--attention-dropout", 0.0, "no_dropout", {}
    yield "--hidden-dropout", 0.0, "no_dropout", {}
    yield of("--vocab-size", m.vocab, "vocab")
    if m.vocab_padded_to is not None:
        yield of("--padded-vocab-size", m.vocab_padded_to, "vocab_padded_to")
    else:
        padded = -(-m.vocab // (VOCAB_MULTIPLE * tp)) * VOCAB_MULTIPLE * tp
        yield "--make-vocab-size-divisible-by", VOCAB_MULTIPLE, "vocab_multiple", {"tp": tp, "rows": padded}
    if m.mla is not None:
        yield from _latent(m)
    if m.moe is not None:
        yield from _experts(m)


def _latent(m: Model) -> Iterator[tuple[str, Any, str, dict[str, Any]]]:
    mla = m.mla
    assert mla is not None
    yield "--multi-latent-attention", True, "model", {"field": "model.mla"}
    sizes = {
        "--q-lora-rank": ("q_lora_rank", mla.q_lora_rank),
        "--kv-lora-rank": ("kv_lora_rank", mla.kv_lora_rank),
        "--qk-head-dim": ("qk_nope_head_dim", mla.qk_nope_head_dim),
        "--qk-pos-emb-head-dim": ("qk_rope_head_dim", mla.qk_rope_head_dim),
        "--v-head-dim": ("v_head_dim", mla.v_head_dim),
    }
    for name, (field, value) in sizes.items():
        if value is not None:
            yield name, value, "model", {"field": f"model.mla.{field}"}
    yield "--rope-type", "rope", "plain_rope", {}
    yield "--no-rope-fusion", True, "no_rope_fusion", {}


def _experts(m: Model) -> Iterator[tuple[str, Any, str, dict[str, Any]]]:
    moe = m.moe
    assert moe is not None
    yield "--num-experts", moe.experts, "model", {"field": "model.moe.experts"}
    yield "--moe-router-topk", moe.top_k, "model", {"field": "model.moe.top_k"}
    yield "--moe-ffn-hidden-size", moe.ffn_hidden, "model", {"field": "model.moe.ffn_hidden"}
    if moe.shared_experts:
        width = moe.shared_experts * moe.shared_ffn_hidden
        told = {"count": moe.shared_experts, "width": moe.shared_ffn_hidden}
        yield "--moe-shared-expert-intermediate-size", width, "shared_experts", told
        if moe.shared_gate:
            yield "--moe-shared-expert-gate", True, "model", {"field": "model.moe.shared_gate"}
    if m.moe_layers != m.layers:
        told = {"sparse": m.moe_layers, "layers": m.layers}
        yield "--moe-layer-freq", sparse_pattern(m), "moe_layers", told
    if _biases(m) == "router":
        yield "--moe-router-score-function", "sigmoid", "router_bias", {}
        yield "--moe-router-enable-expert-bias", True, "router_bias", {}
        yield "--moe-router-load-balancing-type", "none", "router_bias", {}
    else:
        if moe.top_k == 1:
            yield "--moe-router-pre-softmax", True, "router_top_1", {}
        yield "--moe-router-load-balancing-type", "aux_loss", "router_balance", {}
        yield "--moe-aux-loss-coeff", AUX_LOSS, "router_balance", {}
    yield "--moe-grouped-gemm", True, "grouped_gemm", {}
    yield "--moe-token-dispatcher-type", "alltoall", "dispatcher", {}


def sparse_pattern(m: Model) -> str:
    """The layers with experts (1) and without (0), as `--moe-layer-freq` takes them: `([0]*3+[1]*58)`."""
    moe = m.moe
    assert moe is not None
    rounds, rest = divmod(m.layers - moe.first_dense, moe.every)
    parts = [f"[0]*{moe.first_dense}"] if moe.first_dense else []
    parts.append(f"[1]*{rounds}" if moe.every == 1 else f"([0]*{moe.every - 1}+[1])*{rounds}")
    if rest:
        parts.append(f"[0]*{rest}")
    return f"({'+'.join(parts)})"
