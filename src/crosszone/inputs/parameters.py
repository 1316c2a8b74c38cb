"""How many parameters a model has, part by part. [P1]"""

from __future__ import annotations

from dataclasses import dataclass, fields

from crosszone.inputs.model import Model


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameter counts by part; they add up to `total` exactly."""

    token_embedding: int
    vocab_padding: int
    position_embedding: int
    token_type_embedding: int
    embedding_projection: int
    attention: int
    mlp: int
    router: int
    routed_experts: int
    shared_experts: int
    norms: int
    pooler: int
    mlm_head: int
    head: int
    inactive_experts: int
    """Of the routed experts: those a token does not visit (not a part of its own)."""

    @property
    def parts(self) -> dict[str, int]:
        """The parts, in the order a token meets them."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "inactive_experts"}

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """Parameters a token meets: all but the experts it does not visit."""
        return self.total - self.inactive_experts


def parameters(model: Model) -> Parameters:
    """Count the parameters of a model by part. [P1]"""
    rows, width = model.vocab, model.embedding_width
    tables = 1 if model.tied_embeddings else 2
    projected = width != model.hidden
    moe, moe_layers = model.moe, model.moe_layers
    expert = count_mlp_parameters(model, moe.ffn_hidden) if moe else 0
    return Parameters(
        token_embedding=rows * width,
        vocab_padding=(model.embedding_rows - rows) * width * tables,
        position_embedding=(model.max_seq_len or 0) * model.hidden if model.positions == "learned" else 0,
        token_type_embedding=model.token_types * model.hidden,
        embedding_projection=2 * width * model.hidden if projected else 0,
        attention=model.layers * count_attention_parameters(model),
        mlp=(model.layers - moe_layers) * count_mlp_parameters(model, model.ffn_hidden),
        router=moe_layers * count_router_parameters(model),
        routed_experts=moe_layers * moe.experts * expert if moe else 0,
        shared_experts=moe_layers * count_shared_expert_parameters(model),
        norms=model.layers * count_layer_norm_parameters(model) + _count_outer_norm_parameters(model),
        pooler=(model.hidden + 1) * model.hidden if model.pooler else 0,
        mlm_head=_count_mlm_head_parameters(model),
        head=(0 if model.tied_embeddings else rows * width) + (rows if "head" in model.bias else 0),
        inactive_experts=moe_layers * (moe.experts - moe.top_k) * expert if moe else 0,
    )


def count_attention_parameters(model: Model) -> int:
    """Parameters of one layer's attention: projections, their biases, sinks and query/key norms."""
    projections = count_projection_parameters(model)
    if model.mla:
        return projections
    h, heads, kv, e = model.hidden, model.heads, model.kv_heads, model.head_dim
    bias = ("qkv" in model.bias) * (heads + 2 * kv) * e + ("out" in model.bias) * h
    # over single heads all heads of a layer share one weight of their width (Qwen3); OLMo's is over all of them
    norms = {"none": 0, "head": 2 * e, "full": (heads + kv) * e}[model.qk_norm]
    return projections + bias + norms + model.attention_sinks * heads


def count_projection_parameters(model: Model) -> int:
    """Weights of one layer's projections to queries, keys and values, and of the output projection."""
    h, heads, mla = model.hidden, model.heads, model.mla
    if mla is None:
        return 2 * h * heads * model.head_dim + 2 * h * model.kv_heads * model.head_dim
    query_width = heads * model.qk_head_dim
    query = (h + query_width) * mla.q_lora_rank if mla.q_lora_rank else h * query_width
    down = h * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return query + down + up + heads * mla.v_head_dim * h


def count_mlp_parameters(model: Model, ffn_hidden: int) -> int:
    """Parameters of one MLP (dense or one expert) of a given width."""
    inner = 2 if model.gated else 1
    bias = "mlp" in model.bias
    return (inner + 1) * model.hidden * ffn_hidden + bias * (inner * ffn_hidden + model.hidden)


def count_router_parameters(model: Model) -> int:
    """Parameters of one MoE layer's router."""
    return (model.hidden + ("router" in model.bias)) * model.moe.experts if model.moe else 0


def count_shared_expert_parameters(model: Model) -> int:
    """Parameters of one MoE layer's shared experts and their gate."""
    if not model.moe:
        return 0
    shared = model.moe.shared_experts * count_mlp_parameters(model, model.moe.shared_ffn_hidden)
    return shared + model.moe.shared_gate * model.hidden


def count_norm_parameters(model: Model) -> int:
    """Parameters of one norm over the residual width."""
    return model.hidden * (2 if model.norm == "layernorm" else 1)


def count_layer_norm_parameters(model: Model) -> int:
    """Parameters of one layer's norms, those of the latent projections included."""
    latent = (model.mla.q_lora_rank or 0) + model.mla.kv_lora_rank if model.mla else 0
    return model.norms_per_layer * count_norm_parameters(model) + latent


def _count_outer_norm_parameters(model: Model) -> int:
    return (model.final_norm + model.embedding_norm) * count_norm_parameters(model)


def _count_mlm_head_parameters(model: Model) -> int:
    if not model.mlm_head:
        return 0
    return (model.hidden + 1) * model.hidden + count_norm_parameters(model) + model.vocab
