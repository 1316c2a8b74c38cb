"""Bytes that one transformer layer keeps of one micro-batch for its backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crosszone.cost.columns import ModelColumns, Numbers, StackColumns, WorkColumns
from crosszone.cost.memory_profile import MemoryCoefficients
from crosszone.cost.record import as_array, named

SCORE_BYTES = 5.0
"""Bytes per score of unfused attention: softmax 2, dropout mask 1, dropped scores 2 (Korthikanti et al. 2022)."""


@dataclass(frozen=True, kw_only=True)
class LayerMemory:
    """Bytes of one layer and micro-batch on one GPU."""

    whole: Numbers
    """All activations that a backward pass reads."""
    kept: Numbers
    """What is kept after the forward pass; the rest is recomputed."""


def tokens_held(work: WorkColumns) -> Numbers:
    """Tokens of a micro-batch on this GPU, before sequence parallelism."""
    return named("tokens", work.micro_batch * work.seq / work.cp)


def undivided(work: WorkColumns) -> Numbers:
    """Share of what tensor parallelism leaves whole that a GPU holds: 1/t with sequence parallelism."""
    return np.where(as_array(work.sequence_parallel) > 0, 1.0 / work.tp, 1.0)


def layer_memory(
    m: ModelColumns, w: WorkColumns, stack: StackColumns, k: MemoryCoefficients
) -> tuple[LayerMemory, LayerMemory]:
    """Bytes of a dense and of an MoE layer. [M3]

    Without tensor parallelism 34 s b h of a classic GPT layer (+ 5 a s^2 b of unfused scores), 10 + 24/t with it,
    34/t with sequence parallelism, 2 s b h when all is recomputed (Korthikanti et al. 2022, arXiv 2205.05198).
    """
    tokens = tokens_held(w)
    block = tokens * (_outer(m, w, k) + _attention(m, w))
    scores = np.where(as_array(stack.unfused) > 0, SCORE_BYTES * tokens * w.seq * m.heads / w.tp, 0.0)
    copies = np.where(as_array(m.matrices) > 2, k.gated_copies, k.plain_copies)
    dense = block + w.word * tokens * copies * m.ffn / w.tp
    sparse = block + _experts(m, w, k, tokens, copies)
    entry = w.word * tokens * m.hidden * undivided(w)
    return _layer("dense", dense, scores, entry, w, k), _layer("moe", sparse, scores, entry, w, k)


def _layer(
    kind: str, most: Numbers, scores: Numbers, entry: Numbers, w: WorkColumns, k: MemoryCoefficients
) -> LayerMemory:
    recompute = as_array(w.recompute)
    whole = named(f"memory.{kind}.whole", k.activations * (most + scores))
    kept = np.where(recompute == 1, k.selective_kept * k.activations * most, whole)
    return LayerMemory(
        whole=whole, kept=named(f"memory.{kind}.kept", np.where(recompute == 2, k.activations * entry, kept))
    )


def _outer(m: ModelColumns, w: WorkColumns, k: MemoryCoefficients) -> Numbers:
    """Bytes per token of what tensor parallelism leaves whole: norms, inputs of the products, dropout masks."""
    share = undivided(w)
    norms = np.where(as_array(m.matrices) > 2, k.norm_bytes, w.word)
    inputs = np.where(as_array(k.gathered_inputs) > 0, 1.0, share)
    blocks = 2.0 - m.parallel_residual
    return m.hidden * (blocks * (norms * share + w.word * inputs) + 2.0 * k.dropout * share)


def _attention(m: ModelColumns, w: WorkColumns) -> Numbers:
    """Bytes per token of queries, keys, values and the core's output; with latent attention also of the latents."""
    query, value = m.heads * m.qk_dim / w.tp, m.heads * m.v_dim / w.tp
    groups = np.where(as_array(m.latent) > 0, m.heads / w.tp, np.maximum(m.kv_heads / w.tp, 1.0))
    latents = m.latent * (2.0 * m.q_rank + 2.0 * m.kv_rank + m.rope_dim)
    return w.word * (query + groups * (m.qk_dim + m.v_dim) + value + latents)


def _experts(m: ModelColumns, w: WorkColumns, k: MemoryCoefficients, tokens: Numbers, copies: Numbers) -> Numbers:
    """Bytes of routed and shared experts: every token is copied to each of its experts. [M10]"""
    routed = tokens * m.top_k / w.tp * w.expert_tp
    permuted = k.routed_copies * w.word * routed * m.hidden
    inner = w.word * copies * (routed * m.expert_ffn / w.expert_tp + tokens * m.shared_ffn / w.tp)
    router = 2.0 * w.word * tokens * undivided(w) * m.experts
    return permuted + inner + router
