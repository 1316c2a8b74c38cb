"""Peak memory of one GPU of each pipeline stage, by part.

Arrays have a last axis of stages, as in `stages`; columns of length 1 there hold for all stages. The parts are those of
the moment at which the peak falls, so they add up to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crosszone.cost.columns import PATH_BITS, ModelColumns, Numbers, StackColumns, WorkColumns
from crosszone.cost.memory_layer import layer_memory, tokens_held, undivided
from crosszone.cost.memory_profile import MemoryCoefficients
from crosszone.cost.record import as_array, named
from crosszone.cost.replicas import StageParameters, stage_parameters
from crosszone.cost.stages import StageLayers

GIB = 2.0**30
HALF = 2.0
"""Bytes of a 16-bit copy."""
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "working", "buffers", "base")
"""Parts that add up to the total."""
MOMENTS = ("loss", "backward", "end of backward", "optimizer step")
"""When the peak can fall, by `StageMemory.moment`."""


@dataclass(frozen=True, kw_only=True)
class StageMemory:
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

    @property
    def peak(self) -> Numbers:
        """The fullest stage of each strategy."""
        return self.total.max(axis=-1)

    def gib(self) -> dict[str, Numbers]:
        """The parts and their total in GiB."""
        return {part: getattr(self, part) / GIB for part in (*PARTS, "total")}


def micro_batches_in_flight(work: WorkColumns, stages: StageLayers) -> Numbers:
    """Micro-batches whose activations a stage holds at once in 1F1B, plain or interleaved. [M4]

    Stage s of p holds min(m, p - s). With v chunks it holds 2 (p - s - 1) + (v - 1) p + 1 of them, each 1/v of its
    layers: p + (p - 1)/v micro-batches on the first stage.
    """
    m, p, v = (as_array(x) for x in (work.micro_batches, work.pp, work.interleave))
    s = np.arange(np.shape(stages.layers)[-1], dtype=float)
    later = np.maximum(p - s - 1.0, 0.0)
    chunks = np.where(v > 1, 2.0 * later + (v - 1.0) * p + 1.0, later + 1.0)
    return np.minimum(m, chunks / v)


def shards(w: WorkColumns) -> tuple[Numbers, Numbers]:
    """Ranks that share one set of states, of the shared weights and of the experts. [M2]"""
    shared = w.shard_ranks * w.cp
    copies = np.maximum(1.0, w.dp * w.cp * w.tp / (w.ep * w.expert_tp))
    return shared, np.minimum(copies, shared)


def casts(w: WorkColumns) -> Numbers:
    """Whether fp32 weights are cast for 16-bit (or narrower) products: autocast, FSDP's mixed precision."""
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
        held = stage_parameters(model, w, stages)
        alive = named("in_flight", micro_batches_in_flight(w, stages) if in_flight is None else in_flight)
        self.states = states = _States(held, w, k)
        once = _Transient(model, w, stages, k, held)
        dense, moe = layer_memory(model, w, stack, k)
        micro_batch = stages.dense * dense.kept + stages.moe * moe.kept
        head = named("memory.head_inputs", stages.last * 2.0 * w.word * tokens_held(w) * model.hidden * undivided(w))
        activations = named("memory.in_flight", alive * micro_batch) + head
        whole: Numbers = np.where(stages.moe > 0, moe.whole, dense.whole)
        kept: Numbers = np.where(stages.moe > 0, moe.kept, dense.kept)
        temporaries = named("memory.temporaries", k.working * whole)
        recomputed = named("memory.recomputed", whole - kept)
        one_layer = once.gathered + once.layer + temporaries + recomputed
        others = named("memory.others_in_flight", np.maximum(alive - 1.0, 0.0) * micro_batch)
        freed = (as_array(k.gradients_freed) > 0) & (as_array(w.micro_batches) <= 1)
        before = np.where(freed, 0.0, states.gradients)
        cached = named("memory.step_cached", k.step_kept * states.step)
        self.moments: tuple[tuple[Numbers, Numbers, Numbers, Numbers], ...] = (
            (before, activations, _logits(model, w, stages, k), once.gathered + once.head + cached),
            (before, activations, 0.0, one_layer + once.head + cached),
            (states.gradients, others + kept, 0.0, one_layer + once.embedding + cached),
            (states.gradients, 0.0, 0.0, states.step),
        )
        """Gradients, activations, logits and working memory: at the loss, the backward pass of the last layer, that of
        the first, and the optimizer's step."""
        self.present = stages.layers > 0
        self.none = np.zeros_like(activations)
        self.buffers = states.buckets + _messages(model, w)
        self.base = k.base_gib * GIB

    @property
    def totals(self) -> list[Numbers]:
        """All that is held only for a while, at each moment."""
        return [sum(moment) + self.none for moment in self.moments]


def stage_memory(
    model: ModelColumns,
    work: WorkColumns,
    stack: StackColumns,
    stages: StageLayers,
    k: MemoryCoefficients,
    in_flight: Numbers | None = None,
) -> StageMemory:
    """Peak memory of each stage, `in_flight` micro-batches alive (default: 1F1B). [M7]

    The peak is the largest of four moments: the loss (all activations, logits), the backward pass of the last layer
    (all activations, temporaries), that of the first layer (all gradients, few activations), the optimizer's step.
    """
    peak = _Peak(model, work, stack, stages, k, in_flight)
    chosen = np.argmax(np.stack(peak.totals), axis=0)

    def at_peak(part: int) -> Numbers:
        return np.where(peak.present, np.choose(chosen, [moment[part] + peak.none for moment in peak.moments]), 0.0)

    def always(part: Numbers) -> Numbers:
        return np.where(peak.present, part + peak.none, 0.0)

    return StageMemory(
        weights=always(peak.states.weights),
        gradients=at_peak(0),
        optimizer=always(peak.states.optimizer),
        activations=at_peak(1),
        logits=at_peak(2),
        working=at_peak(3),
        buffers=always(peak.buffers),
        base=always(peak.base),
        moment=np.where(peak.present, chosen, 0),
        host=always(peak.states.host),
    )


def stage_peaks(*given: Any) -> tuple[Numbers, Numbers]:
    """Peak of each stage on its GPU and in its node, given what `stage_memory` takes: its parts added up. [M7]"""
    peak = _Peak(*given)
    states = peak.states
    at_most = np.maximum.reduce(peak.totals)
    total = states.weights + states.optimizer + peak.buffers + peak.base + at_most
    return np.where(peak.present, total, 0.0), np.where(peak.present, states.host, 0.0)


class _States:
    """Weights, gradients and optimizer states of each stage, sharded and offloaded. [M2] [M8]"""

    def __init__(self, held: StageParameters, w: WorkColumns, k: MemoryCoefficients):
        zero, moved = as_array(w.zero), as_array(w.offload)
        ranks, expert_ranks = shards(w)
        local = named("parameters.local", held.shared / ranks + held.experts / expert_ranks)
        total = named("parameters.total", held.total)
        optimizer = named("memory.optimizer", w.optimizer_bytes * np.where(zero >= 1, local, total))
        sharded = (zero >= 3) | ((zero == 2) & casts(w))
        weights = named("memory.weights", w.weight_bytes * np.where(sharded, local, total))
        gradients = named("memory.gradients_kept", w.gradient_bytes * np.where(zero >= 2, local, total))
        wider = np.where((zero < 2) & (as_array(w.wire_bytes) > w.gradient_bytes), w.wire_bytes, 0.0)
        away, all_away = moved >= 1, (moved >= 2) & (zero >= 3)
        copies = named("memory.gradient_copies", np.where(zero < 3, k.gradient_copy_bytes + wider, 0.0) * total)
        self.gradients = gradients + copies
        larger = named("memory.larger_bucket", np.minimum(w.bucket_room, w.gradient_bytes * total))
        self.buckets = np.where(
            as_array(w.dp) > 1, named("memory.bucket_copies", k.bucket_copy * gradients) + larger, 0.0
        )
        self.step = named("memory.step", np.where(away, 0.0, k.step_bytes * np.where(zero >= 1, local, total)))
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
        self, m: ModelColumns, w: WorkColumns, stages: StageLayers, k: MemoryCoefficients, held: StageParameters
    ):
        pipelined = as_array(w.pp) > 1
        zero = np.where(as_array(w.shard_ranks) * w.cp > 1, w.zero, 0)  # a single holder shards nothing
        head = stages.last * np.where(as_array(m.tied) > 0, m.embedding_params, m.head_params) / w.tp
        embedding = stages.first * m.embedding_params / w.tp
        dense = (m.attention_params + np.where(stages.dense > 0, m.mlp_params, m.shared_params)) / w.tp
        experts = np.where(stages.moe > 0, m.experts * m.expert_params / (w.ep * w.expert_tp), 0.0)
        layers = np.minimum(k.gathered_layers, stages.layers) * (dense + experts)
        gathered = np.where(pipelined, held.total, layers + held.embedding)
        whole = np.where(pipelined & (as_array(w.micro_batches) > 1), w.wire_bytes * held.total, 0.0)
        copied = named("memory.cast_copy", np.where(casts(w), HALF * held.total, 0.0))
        self.gathered = named("memory.gathered", np.where(zero >= 3, w.word * gathered + whole, copied))
        wider = np.maximum(w.gradient_bytes, w.wire_bytes) > w.word
        each = np.where(zero >= 2, w.word + w.wire_bytes, np.where(wider, w.word, 0.0))
        self.layer = named("memory.layer_gradients", each * (dense + np.where(zero >= 2, experts, 0.0)))
        self.head = named("memory.head_gradient", each * head)
        self.embedding = named("memory.embedding_gradient", each * embedding)


def _logits(m: ModelColumns, w: WorkColumns, stages: StageLayers, k: MemoryCoefficients) -> Numbers:
    """Logits of one micro-batch with their loss and gradient, on the last stage, cut by tensor parallelism. [M5]"""
    each = k.logit_bytes + np.where(as_array(w.tp) > 1, k.split_logit_bytes, 0.0)
    return named("memory.logits", stages.last * each * tokens_held(w) * m.vocab / w.tp)


def _messages(m: ModelColumns, w: WorkColumns) -> Numbers:
    """Activations on their way: one sent and one received between stages, one gathered over the sequence. [M9]"""
    size = w.word * tokens_held(w) * m.hidden
    gathered = np.where(as_array(w.sequence_parallel) > 0, 1.0 - 1.0 / w.tp, 0.0)
    sent = named("memory.messages", size * np.where(as_array(w.pp) > 1, 2.0 * undivided(w), 0.0))
    return sent + named("memory.gathered_input", size * gathered)
