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
    mamba: int
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
    mtp: int
    """Layers of multi-token prediction: beside the total, as publishers state it without them."""

    @property
    def parts(self) -> dict[str, int]:
        """The parts, in the order a token meets them."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("inactive_experts", "mtp")}

    @property
    def total(self) -> int:
        """All parameters but those of multi-token prediction."""
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """Parameters a token meets: all but the experts it does not visit."""
        return self.total - self.inactive_experts

    @property
    def trained(self) -> int:
        """All parameters that are trained: those of multi-token prediction too."""
        return self.total + self.mtp


def parameters(model: Model) -> Parameters:
    """Count the parameters of a model by part. [P1]"""
    rows, width = model.vocab, model.embedding_width
    tables = 1 if model.tied_embeddings else 2
    projected = width != model.hidden
    moe, moe_layers = model.moe, model.moe_layers
    expert = count_expert_parameters(model)
    return Parameters(
        token_embedding=rows * width,
        vocab_padding=(model.embedding_rows - rows) * width * tables,
        position_embedding=(model.max_seq_len or 0) * model.hidden if model.positions == "learned" else 0,
        token_type_embedding=model.token_types * model.hidden,
        embedding_projection=2 * width * model.hidden if projected else 0,
        attention=model.attention_layers * count_attention_parameters(model),
        mamba=model.mamba_layers * count_mamba_parameters(model),
        mlp=model.mlp_layers * count_mlp_parameters(model, model.ffn_hidden),
        router=moe_layers * count_router_parameters(model),
        routed_experts=moe_layers * moe.experts * expert if moe else 0,
        shared_experts=moe_layers * count_shared_expert_parameters(model),
        norms=model.layers * count_layer_norm_parameters(model) + _count_outer_norm_parameters(model),
        pooler=(model.hidden + 1) * model.hidden if model.pooler else 0,
        mlm_head=_count_mlm_head_parameters(model),
        head=(0 if model.tied_embeddings else rows * width) + (rows if "head" in model.bias else 0),
        inactive_experts=moe_layers * (moe.experts - moe.top_k) * expert if moe else 0,
        mtp=model.mtp_distinct * count_mtp_parameters(model),
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


def count_mamba_parameters(model: Model) -> int:
    """Parameters of one Mamba-2 layer but its norm: projections, convolution, decay, skip, step and the gated norm."""
    mamba = model.mamba
    if mamba is None:
        return 0
    width_in = 2 * mamba.inner + mamba.state_projections + mamba.heads
    convolved = mamba.inner + mamba.state_projections
    projections = model.hidden * width_in + mamba.inner * model.hidden + mamba.proj_bias * (width_in + model.hidden)
    return projections + convolved * (mamba.conv + mamba.conv_bias) + 3 * mamba.heads + mamba.inner


def count_mlp_parameters(model: Model, ffn_hidden: int, hidden: int | None = None) -> int:
    """Parameters of one MLP (dense or one expert) of a given width, for tokens as wide as `hidden` (the model's)."""
    inner = 2 if model.gated else 1
    width = hidden or model.hidden
    bias = "mlp" in model.bias
    return (inner + 1) * width * ffn_hidden + bias * (inner * ffn_hidden + width)


def count_expert_parameters(model: Model) -> int:
    """Parameters of one routed expert."""
    return count_mlp_parameters(model, model.moe.ffn_hidden, model.moe.latent) if model.moe else 0


def count_mtp_parameters(model: Model) -> int:
    """Parameters of one layer of multi-token prediction: a layer, the projection of token and embedding, three norms.

    The layer is like the last one; a hybrid's is an attention and an expert (or MLP) block. Embedding and head are
    those of the model.
    """
    moe = model.moe
    if moe is None:
        inner = count_mlp_parameters(model, model.ffn_hidden)
    else:
        inner = moe.experts * count_expert_parameters(model)
        inner += count_router_parameters(model) + count_shared_expert_parameters(model)
    blocks = 1 if model.pattern is None else 2
    norms = blocks * count_layer_norm_parameters(model) + 3 * count_norm_parameters(model)
    return count_attention_parameters(model) + inner + 2 * model.hidden * model.hidden + norms


def count_router_parameters(model: Model) -> int:
    """Parameters of one MoE layer's router."""
    return (model.hidden + ("router" in model.bias)) * model.moe.experts if model.moe else 0


def count_shared_expert_parameters(model: Model) -> int:
    """Parameters of one MoE layer's shared experts, their gate, and the projections to the experts' width and back."""
    if not model.moe:
        return 0
    shared = model.moe.shared_experts * count_mlp_parameters(model, model.moe.shared_ffn_hidden)
    latent = 2 * model.hidden * (model.moe.latent or 0)
    return shared + model.moe.shared_gate * model.hidden + latent


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
