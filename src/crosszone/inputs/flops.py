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
    mlp: float
    router: float
    routed_experts: float
    shared_experts: float
    head: float

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
    expert = 2 * matrices * model.hidden * moe.ffn_hidden if moe else 0
    shared = 2 * matrices * model.hidden * moe.shared_ffn_hidden * moe.shared_experts if moe else 0
    return ForwardFlops(
        attention_projections=2.0 * model.layers * count_projection_parameters(model),
        attention_core=_count_attention_core_flops(model, seq_len, count_masked),
        mlp=2.0 * matrices * model.hidden * model.ffn_hidden * (model.layers - moe_layers),
        router=2.0 * model.hidden * moe.experts * moe_layers if moe else 0.0,
        routed_experts=1.0 * expert * moe.top_k * moe_layers if moe else 0.0,
        shared_experts=1.0 * shared * moe_layers if moe else 0.0,
        head=2.0 * model.embedding_rows * model.embedding_width + _count_head_projection_flops(model),
    )


def training_flops_per_token(model: Model, seq_len: int, *, count_masked: bool = False) -> float:
    """Operations of one token's forward and backward pass. [F1]"""
    return TRAINING_PASSES * forward_flops_per_token(model, seq_len, count_masked=count_masked).total


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
        core += (model.layers - full) * tokens_seen(seq_len, model.window.tokens, causal=causal)
    operations: float = per_token_seen * core
    return operations


def _count_head_projection_flops(model: Model) -> float:
    # into the residual stream and out of it again (OPT-350M); the look-up itself costs no operation
    projected = 2.0 * 2 * model.embedding_width * model.hidden if model.embedding_width != model.hidden else 0.0
    return projected + (2.0 * model.hidden * model.hidden if model.mlm_head else 0.0)
