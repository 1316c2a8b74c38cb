"""Floating-point operations a token costs, part by part. [F1]

A multiply-add is two operations. Model FLOPs: what the architecture needs, without recomputation.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from crosszone.inputs.model import Model
from crosszone.inputs.parameters import count_projection_parameters

# Forward, and backward for inputs and for weights: each as many operations as the forward pass.
TRAINING_PASSES = 3


@dataclass(frozen=True, kw_only=True)
class ForwardFlops:
    """Operations of the forward pass per token, by part."""

    attention_projections: float
    attention_core: float
    mamba_projections: float
    mamba_core: float
    mlp: float
    router: float
    routed_experts: float
    shared_experts: float
    head: float
    mtp: float

    @property
    def parts(self) -> dict[str, float]:
        """The parts, in the order a token meets them."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def total(self) -> float:
        """All operations of the forward pass."""
        return sum(self.parts.values())


def forward_flops_per_token(model: Model, seq_len: int, *, count_masked: bool = False) -> ForwardFlops:
    """Operations of one token's forward pass in a sequence of `seq_len` tokens. [F1]

    A causal token sees half of the sequence on average; `count_masked` counts the masked half too, as
    most published figures do.
    """
    moe, moe_layers = model.moe, model.moe_layers
    matrices = 3 if model.gated else 2
    expert = 2 * matrices * (moe.latent or model.hidden) * moe.ffn_hidden if moe else 0
    shared = 2 * matrices * model.hidden * moe.shared_ffn_hidden * moe.shared_experts if moe else 0
    latent = 4 * model.hidden * (moe.latent or 0) if moe else 0
    return ForwardFlops(
        attention_projections=2.0 * model.attention_layers * count_projection_parameters(model),
        attention_core=_count_attention_core_flops(model, seq_len, count_masked),
        mamba_projections=1.0 * model.mamba_layers * count_mamba_projection_flops(model),
        mamba_core=1.0 * model.mamba_layers * count_ssd_flops(model),
        mlp=2.0 * matrices * model.hidden * model.ffn_hidden * model.mlp_layers,
        router=2.0 * model.hidden * moe.experts * moe_layers if moe else 0.0,
        routed_experts=1.0 * expert * moe.top_k * moe_layers if moe else 0.0,
        shared_experts=1.0 * (shared + latent) * moe_layers if moe else 0.0,
        head=2.0 * model.embedding_rows * model.embedding_width + _count_head_projection_flops(model),
        mtp=model.mtp_layers * _count_mtp_flops(model, seq_len, count_masked) if model.mtp_layers else 0.0,
    )


def training_flops_per_token(model: Model, seq_len: int, *, count_masked: bool = False) -> float:
    """Operations of one token's forward and backward pass. [F1]"""
    return TRAINING_PASSES * forward_flops_per_token(model, seq_len, count_masked=count_masked).total


def count_mamba_projection_flops(model: Model) -> int:
    """Operations of a token in one Mamba-2 layer's projections in and out, and in its convolution. [F3]"""
    mamba = model.mamba
    if mamba is None:
        return 0
    width_in = 2 * mamba.inner + mamba.state_projections + mamba.heads
    convolution = 2 * mamba.conv * (mamba.inner + mamba.state_projections)
    return 2 * model.hidden * (width_in + mamba.inner) + convolution


def count_ssd_flops(model: Model) -> int:
    """Operations of a token in one Mamba-2 layer's core: 2 (Q N G + Q e H) inside a chunk, 4 N e H for the states. [F3]

    Chunks of Q tokens, states of N, heads H of width e, groups G (Dao and Gu 2024, arXiv 2405.21060, section 6).
    """
    mamba = model.mamba
    if mamba is None:
        return 0
    inside = mamba.chunk * (mamba.groups * mamba.state + mamba.inner)
    return 2 * (inside + 2 * mamba.state * mamba.inner)


def _count_mtp_flops(model: Model, seq_len: int, count_masked: bool) -> float:
    """Operations of one layer of multi-token prediction with its projection and its head. [F4]"""
    one_layer: dict[str, Any] = {"layers": 1, "mtp_layers": 0, "token_types": 0}
    if model.pattern is not None:
        pattern = "*E" if model.moe else "*-"
        one_layer |= {"pattern": pattern, "layers": 2, "mamba": None}
    elif model.moe:
        one_layer["moe"] = model.moe.replace(first_dense=0, every=1)
    layer = forward_flops_per_token(model.replace(**one_layer), seq_len, count_masked=count_masked)
    return layer.total + 2.0 * 2 * model.hidden * model.hidden


def tokens_seen(seq_len: Any, window: Any, *, causal: Any) -> Any:
    """Tokens a query meets on average: s, s/2 if causal, w - w^2 / 2s within a causal window w. [F2]

    Numbers or arrays; no window: None.
    """
    if window is None:
        reach = seq_len
    else:
        # here, not at the top: loading NumPy takes a third of `scenario check`, which needs no arrays
        import numpy as np

        reach = np.minimum(window, seq_len)
    # the window fills up over its first w tokens, which see w / 2 on average: w - w^2 / 2s [F2]
    return reach - causal * reach * reach / (2.0 * seq_len)


def _count_attention_core_flops(model: Model, seq_len: int, count_masked: bool) -> float:
    causal = model.causal and not count_masked
    per_token_seen = 2.0 * model.heads * (model.qk_head_dim + model.v_head_dim)
    full = model.full_attention_layers
    core = full * tokens_seen(seq_len, None, causal=causal)
    if model.window:
        core += (model.attention_layers - full) * tokens_seen(seq_len, model.window.tokens, causal=causal)
    operations: float = per_token_seen * core
    return operations


def _count_head_projection_flops(model: Model) -> float:
    # into the residual stream and out of it again (OPT-350M); the look-up itself costs no operation
    projected = 2.0 * 2 * model.embedding_width * model.hidden if model.embedding_width != model.hidden else 0.0
    return projected + (2.0 * model.hidden * model.hidden if model.mlm_head else 0.0)
