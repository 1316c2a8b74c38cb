"""Blocks of hybrids: a Mamba-2 layer and attention alone, what they cost on one GPU and what they keep.

A block has a norm, a residual and a tensor-parallel reduction of its own, where a plain layer has two of each. Dense
MLPs and experts are worked out by `LayerCost`; what differs about them in a hybrid, and its other two blocks, stand
here. The core of a Mamba-2 layer is the chunked form of state-space duality (arXiv 2405.21060).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from crosszone.cost.columns import ModelColumns, Numbers, WorkColumns
from crosszone.cost.layer import (
    RESIDUAL_PASSES,
    LayerParts,
    LayerScope,
    flash_attention_s,
    longer_s,
    matmul_s,
    traffic_s,
)
from crosszone.cost.record import as_array, named
from crosszone.inputs.shipped import read_shipped

if TYPE_CHECKING:
    from crosszone.cost.layer import LayerCost


@cache
def read_mamba_figures() -> dict[str, Any]:
    """`mamba.yaml`: kernels, passes over memory, kept tensors."""
    figures: dict[str, Any] = read_shipped("crosszone.cost", "mamba.yaml").value
    return figures


@dataclass(frozen=True, kw_only=True)
class HybridBlocks:
    """Parts and scopes of a hybrid's blocks, and what is left of attention in its dense and MoE layers."""

    parts: dict[str, LayerParts]
    scopes: dict[str, LayerScope]
    rest: LayerParts
    """What a dense or MoE layer has beside its MLP: of a plain model attention, of a hybrid a norm and a residual."""
    rest_scope: LayerScope


def build_hybrid_blocks(cost: LayerCost, attention: LayerParts) -> HybridBlocks:
    """The blocks of hybrids among the models of `cost`; the others keep their attention in every layer. [R5]"""
    hybrid = as_array(cost.model.hybrid) > 0
    residual_s = _estimate_residual_s(cost)
    nothing = LayerParts(
        matmul=0.0, attention=0.0, attention_back=0.0, elementwise=residual_s, routing=0.0, ep=0.0, wait=0.0
    )
    alone = replace(attention, elementwise=attention.elementwise - residual_s)
    rest = LayerParts(
        **{
            name: np.where(hybrid, getattr(nothing, name), getattr(attention, name))
            for name in ("matmul", "attention", "attention_back", "elementwise", "routing", "ep", "wait")
        }
    )
    kernels = read_mamba_figures()["kernels"]
    layer = kernels["attention"] + kernels["mlp"]

    def build_scope(launches: Numbers, *, has_context: Numbers) -> LayerScope:
        count = np.where(hybrid, 1.0, 2.0 - cost.model.parallel_residual)
        return LayerScope(
            collectives=count,
            collectives_back=np.where(hybrid, 1.0, 2.0),
            launches=np.where(hybrid, launches / layer, 1.0),
            context=has_context,
        )

    return HybridBlocks(
        parts={"attention": alone, "mamba": estimate_mamba_parts(cost, residual_s)},
        scopes={
            "attention": build_scope(kernels["attention"], has_context=1.0),
            "mamba": build_scope(kernels["mamba"], has_context=0.0),
        },
        rest=rest,
        rest_scope=build_scope(kernels["mlp"], has_context=np.where(hybrid, 0.0, 1.0)),
    )


def _estimate_residual_s(cost: LayerCost) -> Numbers:
    """Norm and residual of one block: half of those of a layer with two."""
    passes = named("residual_passes", RESIDUAL_PASSES) / 2.0 * cost.model.hidden * cost.unsplit_share
    return traffic_s(cost.elementwise * cost.work.dtype_bytes * cost.tokens * passes, cost.memory_rate)


def estimate_mamba_parts(cost: LayerCost, residual_s: Numbers) -> LayerParts:
    """Projections in and out, convolution, the chunked core and the gated norm of a Mamba-2 layer. [O20]

    The core is bound by its matmuls (inside chunks, and for the states) or by its traffic, that of states included.
    """
    m, w, k, tokens, figures = cost.model, cost.work, cost.k, cost.tokens, read_mamba_figures()
    inner, convolved = m.mamba_inner / w.tp, (m.mamba_inner + m.mamba_projected) / w.tp
    projected = (2.0 * m.mamba_inner + m.mamba_projected + m.mamba_heads) / w.tp
    matmul = named("matmul.mamba_in_s", matmul_s(tokens, m.hidden, projected, cost.linear_rate, cost.byte_s))
    matmul = matmul + named("matmul.mamba_out_s", matmul_s(tokens, inner, m.hidden, cost.linear_rate, cost.byte_s))
    # kernels of the core are written in Triton, and run in 16 bit whatever the projections do
    rate = k.flash * k.older_flash * k.triton * cost.flops_16
    inside_s = flash_attention_s(tokens, m.mamba_chunk, m.mamba_projected / 2.0 / w.tp + inner, rate)
    states_s = flash_attention_s(tokens, m.mamba_state, 2.0 * inner, rate)
    passes = figures["passes"]
    states = figures["state_passes"] * figures["state_bytes"] * m.mamba_state * inner / m.mamba_chunk
    moved = w.dtype_bytes * (passes["core"] * inner + m.mamba_projected / w.tp) + states
    core_s = k.mamba * longer_s(inside_s + states_s, traffic_s(cost.elementwise * tokens * moved, cost.memory_rate))
    swept = w.dtype_bytes * (passes["convolution"] * convolved + passes["gate"] * inner)
    cast = cost.cast * tokens * (m.hidden + inner)
    around_s = traffic_s(k.mamba * cost.elementwise * tokens * swept + cast, cost.memory_rate)
    return LayerParts(
        matmul=matmul,
        attention=named("mamba_core_s", core_s),
        attention_back=named("mamba_core_back_s", figures["backward"] * core_s),
        elementwise=named("elementwise.mamba_s", residual_s + around_s),
        routing=0.0,
        ep=0.0,
        wait=0.0,
    )


def count_kept_widths(m: ModelColumns, w: WorkColumns) -> Numbers:
    """Values per token that a Mamba-2 layer keeps for its backward pass, beside norm and residual. [M20]"""
    kept = read_mamba_figures()["kept"]
    projected = 2.0 * m.mamba_inner + m.mamba_projected + m.mamba_heads
    convolved = m.mamba_inner + m.mamba_projected
    around = kept["projected"] * projected + kept["convolved"] * convolved
    return (around + (kept["core"] + kept["gated"]) * m.mamba_inner) / w.tp
