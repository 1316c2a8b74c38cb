"""Peak memory of one GPU of each pipeline stage, by part.

Arrays have a last axis of stages, as in `stages`; columns of length 1 there hold for all stages. The parts are those of
the moment at which the peak falls, so they add up to it.

Bytes that one transformer layer keeps of one micro-batch for its backward pass.

Memory coefficients of software stacks (`profiles/memory.yaml`), with origin and error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from crosszone.cost.columns import PATH_BITS, ModelColumns, Numbers, StackColumns, WorkColumns, is_used, join_columns
from crosszone.cost.mamba import count_kept_widths
from crosszone.cost.record import as_array, named, plain
from crosszone.cost.replicas import StageParameters, count_stage_parameters
from crosszone.cost.stages import StageLayers, add_mtp_layers
from crosszone.inputs.shipped import read_shipped


@dataclass(frozen=True, kw_only=True)
class MemoryCoefficients:
    """What a software stack keeps where the formulas leave a choice; numbers, or columns [n, 1]."""

    base_gib: Numbers
    """Context of the GPU, libraries and the allocator's reserve, as far as the source's figure counts them."""
    activations: Numbers
    """Kept activations over those that the formulas count."""
    working: Numbers
    """Temporaries of one layer's backward pass over the activations of that layer."""
    logit_bytes: Numbers
    """Bytes per logit of one micro-batch while the loss and its gradient are computed."""
    split_logit_bytes: Numbers
    """More of them where the vocabulary is split among tensor-parallel ranks."""
    norm_bytes: Numbers
    """Bytes that a norm keeps of each value, its output apart: its input (2); an RMSNorm in single operators more."""
    gated_copies: Numbers
    """Tensors of the MLP's width that a gated MLP keeps: gate, up, product."""
    plain_copies: Numbers
    """The same of a two-matrix MLP: before and after the activation function."""
    routed_copies: Numbers
    """Copies of the tokens at their experts: before and, where weighted afterwards, after the expert."""
    gathered_inputs: Numbers
    """Share of the inputs that sequence parallelism gathers that is kept gathered, where the host runs ahead."""
    gathered_ahead: Numbers
    """Micro-batches in flight, over the tensor-parallel ranks to the power of 3/4, at which half is kept; 0: all."""
    gathered_queue: Numbers
    """Most layers, over all micro-batches in flight, whose inputs are kept gathered."""
    gathered_work: Numbers
    """Teraflops of one layer's forward pass on a GPU above which the host runs ahead of a pipeline too."""
    dropout: Numbers
    """1: two dropout masks of a byte are kept in each layer."""
    selective_kept: Numbers
    """Share of a layer's activations that selective recomputation keeps; 1: it drops the scores only."""
    gradients_freed: Numbers
    """Share of the gradients that does not exist between the optimizer's step and the next backward pass."""
    gradients_as_sent: Numbers
    """1: gradients are summed in the type in which they are reduced (Megatron's buffers)."""
    gradient_copy_bytes: Numbers
    """Bytes per parameter of a second copy of the gradients, not sharded."""
    step_bytes: Numbers
    """Bytes per parameter of the local shard that the optimizer's step needs for a while."""
    reduce_bytes: Numbers
    """Bytes per parameter, not sharded, that reducing the gradients at the end of a step needs for a while."""
    step_kept: Numbers
    """1: the allocator keeps those bytes, too scattered for activations, and the measured figure counts them."""
    gathered_layers: Numbers
    """Layers of sharded weights that are gathered at once: the current one and those fetched ahead."""
    bucket_copy: Numbers
    """1: gradients are reduced in buckets of their own (DDP)."""


@cache
def read_memory_profiles() -> dict[str, Any]:
    """`memory.yaml`: `common` holds every field, `stacks` what differs."""
    loaded: dict[str, Any] = read_shipped("crosszone.cost", "profiles/memory.yaml").value
    return loaded


def read_memory_entries(stack: str) -> dict[str, dict[str, Any]]:
    """Value, origin, source and error of each field for a stack; an unknown stack takes the common ones."""
    profiles = read_memory_profiles()
    # a copy: `pop` must not change the cached file
    entries = dict(profiles["stacks"].get(stack, {}))
    like = entries.pop("like", None)
    return {**(read_memory_entries(like) if like else profiles["common"]), **entries}


def read_memory_coefficients(stack: str | Sequence[str]) -> MemoryCoefficients:
    """The coefficients of a stack (numbers) or of many (columns [n, 1]); an unknown stack takes the common ones."""
    if not isinstance(stack, str):
        by_stack = {name: read_memory_coefficients(name) for name in set(stack)}
        return join_columns([by_stack[name] for name in stack])
    entries = read_memory_entries(stack)
    return MemoryCoefficients(**{f.name: float(entries[f.name]["value"]) for f in fields(MemoryCoefficients)})


# Bytes per score of unfused attention: softmax 2, dropout mask 1, dropped scores 2 (Korthikanti et al. 2022).
SCORE_BYTES = 5.0


@dataclass(frozen=True, kw_only=True)
class LayerMemory:
    """Bytes of one layer and micro-batch on one GPU."""

    unrecomputed: Numbers
    """All activations that a backward pass reads."""
    retained: Numbers
    """What is kept after the forward pass; the rest is recomputed."""


def estimate_layer_memory(
    m: ModelColumns,
    w: WorkColumns,
    stack: StackColumns,
    k: MemoryCoefficients,
    in_flight: Numbers = 1.0,
    layers: Numbers = 1.0,
) -> tuple[LayerMemory, LayerMemory]:
    """Bytes of a dense and of an MoE layer of a stage with `layers`, `in_flight` micro-batches alive. [M3]

    Without tensor parallelism 34 s b h of a classic GPT layer (+ 5 a s^2 b of unfused scores), 10 + 24/t with it,
    34/t with sequence parallelism, 2 s b h when all is recomputed (Korthikanti et al. 2022, arXiv 2205.05198).
    """
    tokens = w.tokens
    gathered = _estimate_gathered_share(m, w, k, in_flight, layers)
    unsplit = _estimate_unsplit(m, w, k, gathered)
    block = tokens * (unsplit + _estimate_attention(m, w))
    if is_used(m.hybrid):  # a dense or MoE layer of a hybrid is one block: one norm, no attention
        block = np.where(as_array(m.hybrid) > 0, tokens * unsplit / 2.0, block)
    scores = np.where(as_array(stack.unfused) > 0, SCORE_BYTES * tokens * w.seq * m.heads / w.tp, 0.0)
    copies = np.where(as_array(m.matrices) > 2, k.gated_copies, k.plain_copies)
    dense = block + w.dtype_bytes * tokens * copies * m.ffn / w.tp
    moe = block + _estimate_experts(m, w, k, tokens, copies)
    entry = w.dtype_bytes * tokens * m.hidden * w.unsplit_share
    if is_used(m.hybrid):
        scores = np.where(as_array(m.hybrid) > 0, 0.0, scores)
    return _estimate_layer("dense", dense, scores, entry, w, k), _estimate_layer("moe", moe, scores, entry, w, k)


def estimate_block_memory(
    m: ModelColumns, w: WorkColumns, stack: StackColumns, k: MemoryCoefficients
) -> dict[str, LayerMemory]:
    """Bytes of a hybrid's attention block and of its Mamba-2 layer. [M20]"""
    # stacks whose gathers stay allocated [M11] have no hybrids
    tokens, norm = w.tokens, _estimate_unsplit(m, w, k, 0.0) / 2.0
    entry = w.dtype_bytes * tokens * m.hidden * w.unsplit_share
    scores = np.where(as_array(stack.unfused) > 0, SCORE_BYTES * tokens * w.seq * m.heads / w.tp, 0.0)
    attention = tokens * (norm + _estimate_attention(m, w))
    mamba = tokens * (norm + w.dtype_bytes * count_kept_widths(m, w))
    return {
        "attention": _estimate_layer("attention", attention, scores, entry, w, k),
        "mamba": _estimate_layer("mamba", mamba, 0.0, entry, w, k),
    }


def _estimate_layer(
    kind: str, activations: Numbers, scores: Numbers, entry: Numbers, w: WorkColumns, k: MemoryCoefficients
) -> LayerMemory:
    recompute = as_array(w.recompute)
    unrecomputed = named(f"memory.{kind}.whole", k.activations * (activations + scores))
    retained = np.where(recompute == 1, k.selective_kept * k.activations * activations, unrecomputed)
    return LayerMemory(
        unrecomputed=unrecomputed,
        retained=named(f"memory.{kind}.kept", np.where(recompute == 2, k.activations * entry, retained)),
    )


def _estimate_unsplit(m: ModelColumns, w: WorkColumns, k: MemoryCoefficients, gathered: Numbers) -> Numbers:
    """Bytes per token of what tensor parallelism leaves whole: norms, inputs of the matmuls, dropout masks."""
    share = w.unsplit_share
    norms = np.where(as_array(m.matrices) > 2, k.norm_bytes, w.dtype_bytes)
    inputs = share + gathered * (1.0 - share)
    # attention and MLP read one norm's output where their residual is parallel
    blocks = 2.0 - m.parallel_residual
    return m.hidden * (blocks * (norms * share + w.dtype_bytes * inputs) + 2.0 * k.dropout * share)


# How the share of gathered inputs that stay depends on tensor-parallel ranks and on micro-batches in flight [M11]:
# rounded exponents of a fit to nanotron's sweep; the two steep ones only say that it is nearly all or nearly none.
RANKS_EXPONENT, PASSES_EXPONENT, WORK_EXPONENT = 0.75, 5.0, 2.0


def _estimate_gathered_share(
    m: ModelColumns, w: WorkColumns, k: MemoryCoefficients, in_flight: Numbers, layers: Numbers
) -> Numbers:
    """Share of the inputs gathered over the sequence that a stage keeps gathered. [M11]

    Blocks that a collective on a stream of its own still uses are not given out again. The further the host runs ahead
    of the GPU, the more of them exist: over the whole pass without a pipeline; behind one, where the host waits for
    the next stage, over as many passes as are in flight, and only as far as the launch queue reaches.
    """
    if not np.any(as_array(k.gathered_inputs) > 0):
        return 0.0
    passes = np.maximum(in_flight, 1.0)
    layer_tflops = 2e-12 * w.tokens * (m.attention_params + m.mlp_params) / w.tp
    ahead = passes * (1.0 + (layer_tflops / k.gathered_work) ** WORK_EXPONENT)
    waits = (k.gathered_ahead * w.tp**RANKS_EXPONENT / ahead) ** PASSES_EXPONENT
    queued = np.minimum(1.0, k.gathered_queue / np.maximum(passes * layers, 1.0))
    share = k.gathered_inputs * queued * np.where(as_array(w.pp) > 1, 1.0 / (1.0 + waits), 1.0)
    return named("memory.gathered_share", share)


def _estimate_attention(m: ModelColumns, w: WorkColumns) -> Numbers:
    """Bytes per token of queries, keys, values and the core's output; with latent attention also of the latents."""
    query, value = m.heads * m.qk_dim / w.tp, m.heads * m.v_dim / w.tp
    # latent attention has keys and values for all heads once they are projected up
    groups = np.where(as_array(m.latent) > 0, m.heads / w.tp, np.maximum(m.kv_heads / w.tp, 1.0))
    latents = m.latent * (2.0 * m.q_rank + 2.0 * m.kv_rank + m.rope_dim)
    return w.dtype_bytes * (query + groups * (m.qk_dim + m.v_dim) + value + latents)


def _estimate_experts(
    m: ModelColumns, w: WorkColumns, k: MemoryCoefficients, tokens: Numbers, copies: Numbers
) -> Numbers:
    """Bytes of routed and shared experts: every token is copied to each of its experts. [M10]"""
    routed = tokens * m.top_k / w.tp * w.expert_tp
    permuted = k.routed_copies * w.dtype_bytes * routed * m.expert_hidden
    inner = w.dtype_bytes * copies * (routed * m.expert_ffn / w.expert_tp + tokens * m.shared_ffn / w.tp)
    router = 2.0 * w.dtype_bytes * tokens * w.unsplit_share * m.experts
    return permuted + inner + router


GIB = 2.0**30
HALF = 2.0  # Bytes of a 16-bit copy
# Parts that add up to the total.
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "working", "buffers", "base")
# When the peak can fall, by `StageMemory.moment`.
MOMENTS = ("loss", "backward", "end of backward", "optimizer step")


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """Bytes on one GPU of each stage at its peak, by part; 0 for a stage without layers."""

    weights: Numbers
    gradients: Numbers
    optimizer: Numbers
    """Master weights and moments."""
    activations: Numbers
    """Kept for the backward pass, all micro-batches in flight."""
    logits: Numbers
    working: Numbers
    """Recomputed layer, gradients of activations, gathered layers of sharded weights, temporaries of the optimizer."""
    buffers: Numbers
    """Buckets and messages of collectives."""
    base: Numbers
    """Context of the GPU, libraries, reserve of the allocator."""
    moment: Numbers
    """Index in `MOMENTS`."""
    host: Numbers
    """Bytes in host memory for this GPU (offload); not part of the total."""

    @property
    def total(self) -> Numbers:
        """All parts on the GPU."""
        return sum(getattr(self, part) for part in PARTS)


def count_micro_batches_in_flight(work: WorkColumns, stages: StageLayers) -> Numbers:
    """Micro-batches whose activations a stage holds at once in 1F1B, plain or interleaved. [M4]

    Stage s of p holds min(m, p - s). With v virtual stages it holds 2 (p - s - 1) + (v - 1) p + 1, each 1/v of its
    layers: p + (p - 1)/v micro-batches on the first stage.
    """
    m, p, v = (as_array(x) for x in (work.micro_batches, work.pp, work.interleave))
    s = np.arange(np.shape(stages.layers)[-1], dtype=float)
    later = np.maximum(p - s - 1.0, 0.0)
    chunks = np.where(v > 1, 2.0 * later + (v - 1.0) * p + 1.0, later + 1.0)
    return np.minimum(m, chunks / v)


def count_shard_ranks(w: WorkColumns) -> tuple[Numbers, Numbers]:
    """Ranks that share one set of states, of the shared weights and of the experts. [M2]"""
    shared = w.shard_ranks * w.cp
    copies = np.maximum(1.0, w.dp * w.cp * w.tp / (w.ep * w.expert_tp))
    return shared, np.minimum(copies, shared)


def is_cast(w: WorkColumns) -> Numbers:
    """Whether fp32 weights are cast for 16-bit (or narrower) matmuls: autocast, FSDP's mixed precision."""
    return (as_array(w.weight_bytes) > HALF) & (as_array(w.path) <= PATH_BITS["bf16"])


class _Peak:
    """What each stage holds all the time, and at each of the moments one of which is its peak. [M7]"""

    def __init__(
        self,
        model: ModelColumns,
        w: WorkColumns,
        stack: StackColumns,
        stages: StageLayers,
        k: MemoryCoefficients,
        in_flight: Numbers | None,
    ):
        params_per_rank = count_stage_parameters(model, w, stages)
        alive = named("in_flight", count_micro_batches_in_flight(w, stages) if in_flight is None else in_flight)
        self.states = states = _States(params_per_rank, w, k)
        once = _Transient(model, w, stages, k, params_per_rank)
        dense, moe = estimate_layer_memory(model, w, stack, k, alive, stages.layers)
        if is_used(model.mtp_layers):
            stages = add_mtp_layers(stages, model)
        micro_batch = stages.dense * dense.retained + stages.moe * moe.retained
        blocks = estimate_block_memory(model, w, stack, k) if stages.blocks else {}
        for kind, counts in stages.blocks.items():
            micro_batch = micro_batch + counts * blocks[kind].retained
        head = named(
            "memory.head_inputs", stages.last * 2.0 * w.dtype_bytes * w.tokens * model.hidden * w.unsplit_share
        )
        activations = named("memory.in_flight", alive * micro_batch) + head
        unrecomputed: Numbers = np.where(stages.moe > 0, moe.unrecomputed, dense.unrecomputed)
        retained: Numbers = np.where(stages.moe > 0, moe.retained, dense.retained)
        for kind, counts in stages.blocks.items():  # the largest block that a stage has
            is_larger = (as_array(counts) > 0) & (as_array(blocks[kind].unrecomputed) > unrecomputed)
            unrecomputed = np.where(is_larger, blocks[kind].unrecomputed, unrecomputed)
            retained = np.where(is_larger, blocks[kind].retained, retained)
        has_layers = plain(stages.layers) > 0
        if not has_layers.all():  # a stage at either end may hold the embedding or the head alone
            unrecomputed, retained = unrecomputed * has_layers, retained * has_layers
        temporaries = named("memory.temporaries", k.working * unrecomputed)
        recomputed = named("memory.recomputed", unrecomputed - retained)
        one_layer = once.gathered + once.layer + temporaries + recomputed
        other_micro_batches = named("memory.others_in_flight", np.maximum(alive - 1.0, 0.0) * micro_batch)
        before = states.gradients * np.where(as_array(w.micro_batches) <= 1, 1.0 - k.gradients_freed, 1.0)
        cached = named("memory.step_cached", k.step_kept * states.step)
        self.moments: tuple[tuple[Numbers, Numbers, Numbers, Numbers], ...] = (
            (before, activations, _estimate_logits(model, w, stages, k), once.gathered + once.head + cached),
            (before, activations, 0.0, one_layer + once.head + cached),
            (states.gradients, other_micro_batches + retained, 0.0, one_layer + once.embedding + cached),
            (states.gradients, 0.0, 0.0, states.step),
        )
        """Gradients, activations, logits and working memory: at the loss, the backward pass of the last layer, that of
        the first, and the optimizer's step."""
        self.present = stages.present
        # added to parts that hold for all stages (length 1): `np.choose` wants all of one shape
        self.none = np.zeros_like(activations)
        self.buffers = states.buckets + _estimate_messages(model, w)
        self.base = k.base_gib * GIB

    @property
    def totals(self) -> list[Numbers]:
        """All that is held only for a while, at each moment."""
        return [sum(moment) + self.none for moment in self.moments]


def estimate_stage_memory(
    model: ModelColumns,
    work: WorkColumns,
    stack: StackColumns,
    stages: StageLayers,
    k: MemoryCoefficients,
    in_flight: Numbers | None = None,
) -> StageBytes:
    """Peak memory of each stage, `in_flight` micro-batches alive (default: 1F1B). [M7]

    The peak is the largest of four moments: the loss (all activations, logits), the backward pass of the last layer
    (all activations, temporaries), that of the first layer (all gradients, few activations), the optimizer's step.
    """
    peak = _Peak(model, work, stack, stages, k, in_flight)
    chosen = np.argmax(np.stack(peak.totals), axis=0)

    def pick_at_peak(part: int) -> Numbers:
        return np.where(peak.present, np.choose(chosen, [moment[part] + peak.none for moment in peak.moments]), 0.0)

    def fill_stages(part: Numbers) -> Numbers:
        return np.where(peak.present, part + peak.none, 0.0)

    return StageBytes(
        weights=fill_stages(peak.states.weights),
        gradients=pick_at_peak(0),
        optimizer=fill_stages(peak.states.optimizer),
        activations=pick_at_peak(1),
        logits=pick_at_peak(2),
        working=pick_at_peak(3),
        buffers=fill_stages(peak.buffers),
        base=fill_stages(peak.base),
        moment=np.where(peak.present, chosen, 0),
        host=fill_stages(peak.states.host),
    )


def estimate_stage_peaks(*arguments: Any) -> tuple[Numbers, Numbers]:
    """Peak of each stage on its GPU and in its node, from the arguments of `estimate_stage_memory`. [M7]"""
    peak = _Peak(*arguments)
    states = peak.states
    at_most = np.maximum.reduce(peak.totals)
    total = states.weights + states.optimizer + peak.buffers + peak.base + at_most
    return np.where(peak.present, total, 0.0), np.where(peak.present, states.host, 0.0)


class _States:
    """Weights, gradients and optimizer states of each stage, sharded and offloaded. [M2] [M8]"""

    def __init__(self, params_per_rank: StageParameters, w: WorkColumns, k: MemoryCoefficients):
        zero, moved = as_array(w.zero), as_array(w.offload)
        ranks, expert_ranks = count_shard_ranks(w)
        local = named("parameters.local", params_per_rank.shared / ranks + params_per_rank.experts / expert_ranks)
        total = named("parameters.total", params_per_rank.total)
        optimizer = named("memory.optimizer", w.optimizer_bytes * np.where(zero >= 1, local, total))
        # ZeRO 2 of FSDP2 (reshard_after_forward=False): fp32 weights stay sharded, their 16-bit copy is whole [M6]
        sharded = (zero >= 3) | ((zero == 2) & is_cast(w))
        weights = named("memory.weights", w.weight_bytes * np.where(sharded, local, total))
        # a compressed gradient is narrower on the wire only: Megatron's buffers are fp32 or 16-bit
        sent_bytes = np.minimum(w.gradient_bytes, np.maximum(w.grad_comm_bytes, w.dtype_bytes))
        gradient_bytes = np.where(as_array(k.gradients_as_sent) > 0, sent_bytes, w.gradient_bytes)
        gradients = named("memory.gradients_kept", gradient_bytes * np.where(zero >= 2, local, total))
        # gradients summed in a wider type than they are computed in exist in both [M2]
        wider = np.where((zero < 2) & (as_array(w.grad_comm_bytes) > w.gradient_bytes), w.grad_comm_bytes, 0.0)
        away, all_away = moved >= 1, (moved >= 2) & (zero >= 3)
        copies = named("memory.gradient_copies", np.where(zero < 3, k.gradient_copy_bytes + wider, 0.0) * total)
        self.gradients = gradients + copies
        larger = named("memory.larger_bucket", np.minimum(w.bucket_room, w.gradient_bytes * total))
        self.buckets = np.where(
            as_array(w.dp) > 1, named("memory.bucket_copies", k.bucket_copy * gradients) + larger, 0.0
        )
        updated = named("memory.step", np.where(away, 0.0, k.step_bytes * np.where(zero >= 1, local, total)))
        self.step = updated + named("memory.reduce", np.where(as_array(w.dp) > 1, k.reduce_bytes * total, 0.0))
        self.optimizer = np.where(away, 0.0, optimizer)
        self.weights = np.where(all_away, 0.0, weights)
        reduced = w.gradient_bytes * np.where(zero >= 1, local, total)
        self.host = np.where(away, optimizer + reduced, 0.0) + np.where(all_away, weights, 0.0)


class _Transient:
    """Weights that are gathered and gradients that are whole for one layer at a time. [M6]

    ZeRO 3 gathers the current layer and those fetched ahead, embedding and head; in a pipeline it keeps the stage
    gathered, and its gradients whole, until the last micro-batch. fp32 weights that are cast for 16-bit products have
    a copy of 2 bytes. Where gradients are sharded or added to wider ones, those of one layer exist in 16 bit first.
    """

    def __init__(
        self,
        m: ModelColumns,
        w: WorkColumns,
        stages: StageLayers,
        k: MemoryCoefficients,
        params_per_rank: StageParameters,
    ):
        pipelined = as_array(w.pp) > 1
        zero = np.where(as_array(w.shard_ranks) * w.cp > 1, w.zero, 0)  # a single holder shards nothing
        head = stages.last * np.where(as_array(m.tied) > 0, m.embedding_params, m.head_params) / w.tp
        embedding = stages.first * m.embedding_params / w.tp
        dense = (m.attention_params + np.where(stages.dense > 0, m.mlp_params, m.shared_params)) / w.tp
        if stages.blocks:
            dense = np.maximum(dense, np.maximum(m.attention_block_params, m.mamba_params) / w.tp)
        experts = np.where(stages.moe > 0, m.experts * m.expert_params / (w.ep * w.expert_tp), 0.0)
        layers = np.minimum(k.gathered_layers, stages.layers) * (dense + experts)
        gathered = np.where(pipelined, params_per_rank.total, layers + params_per_rank.embedding)
        accumulated_bytes = np.where(
            pipelined & (as_array(w.micro_batches) > 1), w.grad_comm_bytes * params_per_rank.total, 0.0
        )
        copied = named("memory.cast_copy", np.where(is_cast(w), HALF * params_per_rank.total, 0.0))
        self.gathered = named(
            "memory.gathered", np.where(zero >= 3, w.dtype_bytes * gathered + accumulated_bytes, copied)
        )
        wider = np.maximum(w.gradient_bytes, w.grad_comm_bytes) > w.dtype_bytes
        bytes_per_param = np.where(zero >= 2, w.dtype_bytes + w.grad_comm_bytes, np.where(wider, w.dtype_bytes, 0.0))
        self.layer = named("memory.layer_gradients", bytes_per_param * (dense + np.where(zero >= 2, experts, 0.0)))
        self.head = named("memory.head_gradient", bytes_per_param * head)
        self.embedding = named("memory.embedding_gradient", bytes_per_param * embedding)


def _estimate_logits(m: ModelColumns, w: WorkColumns, stages: StageLayers, k: MemoryCoefficients) -> Numbers:
    """Logits of one micro-batch with their loss and gradient, on the last stage, cut by tensor parallelism. [M5]"""
    bytes_per_logit = k.logit_bytes + np.where(as_array(w.tp) > 1, k.split_logit_bytes, 0.0)
    if is_used(m.mtp_layers):  # each layer of multi-token prediction has a head and a loss of its own
        bytes_per_logit = bytes_per_logit * (1.0 + m.mtp_layers)
    return named("memory.logits", stages.last * bytes_per_logit * w.tokens * m.vocab / w.tp)


def _estimate_messages(m: ModelColumns, w: WorkColumns) -> Numbers:
    """Activations on their way: one sent and one received between stages, one gathered over the sequence. [M9]"""
    size = w.dtype_bytes * w.tokens * m.hidden
    gathered = np.where(as_array(w.sequence_parallel) > 0, 1.0 - 1.0 / w.tp, 0.0)
    sent = named("memory.messages", size * np.where(as_array(w.pp) > 1, 2.0 * w.unsplit_share, 0.0))
    return sent + named("memory.gathered_input", size * gathered)
