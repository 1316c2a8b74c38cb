"""What a transformer layer costs on one GPU: forward, backward and recomputation, by part; and what an operator does.

Every function takes numbers or arrays that broadcast: [strategies, 1], or [strategies, stages] where GPUs differ by
stage. Peaks and memory rates come from the datasheet, the shares of them that are reached from the profile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.collectives import (
    CollectiveCost,
    Layout,
    Ring,
    TierBytes,
    all_gather,
    all_reduce,
    expert_all_to_all,
    ring_exchange,
    ring_rate,
)
from crosszone.cost.columns import (
    MXFP8,
    PATH_BITS,
    ROWWISE,
    GpuColumns,
    ModelColumns,
    Numbers,
    StackColumns,
    WorkColumns,
    is_used,
)
from crosszone.cost.measured_links import RING_OPS, CollectiveTimings, Group
from crosszone.cost.record import as_array, named
from crosszone.cost.tiers import Tier
from crosszone.inputs.flops import tokens_seen


def matmul_s(
    rows: Numbers, inner: Numbers, columns: Numbers, flop_per_s: Numbers, byte_s: Numbers, copies: Numbers = 1.0
) -> Numbers:
    """Seconds of `rows x inner` times `inner x columns`: arithmetic plus a share of its traffic. [O1]

    2 M K N / (efficiency x peak) + tile x (M K + copies K N + M N) x 2 bytes / memory rate; `byte_s` is tile / rate.
    The second term makes small M, K or N costly; `copies` weight matrices of a grouped GEMM share the rows.
    """
    # a width of 0 says that the model has no such matmul; its other operand would still count as traffic
    exists = (as_array(inner) > 0) & (as_array(columns) > 0)
    traffic = rows * inner + copies * inner * columns + rows * columns
    return np.where(exists, 2.0 * rows * inner * columns / flop_per_s + 2.0 * traffic * byte_s, 0.0)


def flash_attention_s(tokens: Numbers, keys_per_query: Numbers, width: Numbers, flop_per_s: Numbers) -> Numbers:
    """Seconds of the fused attention core: 2 T n (e_qk + e_v) a / rate. [O2]

    `keys_per_query` counts only the tokens that are not masked; `width`: heads x (query + value width) on this GPU.
    """
    return 2.0 * tokens * keys_per_query * width / flop_per_s


def flash_share(head: Numbers, seq: Numbers, width: Numbers, ramp: Numbers) -> Numbers:
    """Rate of the fused attention over that of heads 128 wide and long sequences. [O11]

    Heads are padded to a multiple of 32, and wide ones feed tensor cores better: d (1 + width / 128) / (pad + width);
    short sequences leave part of the GPU idle: s / (s + ramp).
    """
    padded = np.ceil(as_array(head) / HEAD_BLOCK) * HEAD_BLOCK
    return head * (1.0 + width / USUAL_HEAD) / (padded + width) * seq / (seq + ramp)


# Heads are computed in blocks of this width; *flash* is the share reached with heads of that one.
HEAD_BLOCK, USUAL_HEAD = 32.0, 128.0


def grouped_share(tokens_per_expert: Numbers, share: Numbers, ramp: Numbers) -> Numbers:
    """Rate of grouped matmuls over dense ones: share x n / (n + ramp) with n tokens of each expert. [O6]"""
    return share * tokens_per_expert / (tokens_per_expert + ramp)


def unfused_attention_s(
    tokens: Numbers,
    seq: Numbers,
    width: Numbers,
    heads: Numbers,
    flop_per_s: Numbers,
    score_byte_s: Numbers,
    score_bytes: Numbers,
) -> Numbers:
    """Seconds of attention as two batched matmuls and a softmax: masked scores are computed too. [O3]

    2 T s (e_qk + e_v) a / rate, plus `score_bytes` of traffic for each of the T s a scores.
    """
    return 2.0 * tokens * seq * width / flop_per_s + tokens * seq * heads * score_bytes * score_byte_s


def traffic_s(size_bytes: Numbers, bytes_per_s: Numbers) -> Numbers:
    """Seconds of an operator that is bound by memory: bytes read and written over the rate reached. [O4]"""
    return size_bytes / bytes_per_s


def longer_s(first_s: Numbers, second_s: Numbers, sharpness: float = 6.0) -> Numbers:
    """The longer of two that run side by side, rounded where they are about equal. [O5]

    (x^n + y^n)^(1/n): never below the longer one; 12 % above it where both are equal and n = 6.
    """
    top = np.maximum(first_s, second_s)
    low = np.minimum(first_s, second_s)
    # the ratio's power, not the powers themselves: times may be as large as inputs of 1e18 make them, and x^6 overflows
    ratio = low / np.maximum(top, 1e-30)
    return top * (1.0 + ratio**sharpness) ** (1.0 / sharpness)


# Traffic of one score of unfused attention: score, mask, softmax and dropout, each written and read; and gradients.
FORWARD_SCORE_BYTES, BACKWARD_SCORE_BYTES = 12.0, 20.0
# Reads and writes of the residual stream by a layer's norms, residual additions and dropouts when these are fused.
RESIDUAL_PASSES = 10.0
NORM_PASSES = 4.0  # Of these, those of the two norms, each of which reads and writes the stream
# Share of an MLP's elementwise traffic that is its activation: the rest are the inputs and outputs of its matmuls.
ACTIVATION_SHARE = 0.5
# Times the keys and values go round in the backward pass: themselves, and their gradients.
CONTEXT_BACKWARD = 2.0
# Traffic of one value of a routed token: copied to its expert's place and back, in 16 bit, indices counted in.
ROUTED_BYTES = 16.0


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Seconds of one pass through one layer, by part; `host` is what launches add to the GPU's time."""

    matmul: Numbers
    attention: Numbers
    elementwise: Numbers
    routing: Numbers
    tp: Numbers
    ep: Numbers
    cp: Numbers
    host: Numbers

    @property
    def gpu(self) -> Numbers:
        """Kernels and exposed communication."""
        return self.matmul + self.attention + self.elementwise + self.routing + self.tp + self.ep + self.cp

    @property
    def total(self) -> Numbers:
        """All parts."""
        return self.gpu + self.host


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One kind of layer: its passes, and what recomputation adds to the backward pass."""

    forward: Pass
    backward: Pass
    recompute: Numbers
    """Kernels of the forward pass that run once more."""
    recompute_comm_s: dict[str, Numbers]
    """Exchanges of the forward pass that are done once more (tp, ep, cp)."""

    @property
    def recompute_s(self) -> Numbers:
        """All that recomputation adds to the backward pass."""
        return self.recompute + sum(self.recompute_comm_s.values())

    @property
    def forward_s(self) -> Numbers:
        """The forward pass."""
        return self.forward.total

    @property
    def backward_s(self) -> Numbers:
        """The backward pass with its recomputation."""
        return self.backward.total + self.recompute_s

    @property
    def weight_s(self) -> Numbers:
        """Of that: the matmuls for the weights' gradients."""
        # a backward pass has two equal matmuls for each forward one: for the inputs and for the weights
        return self.backward.matmul / 2.0


@dataclass(frozen=True, kw_only=True)
class LayerTotals:
    """A layer of which only the totals are kept."""

    forward_s: Numbers
    backward_s: Numbers
    weight_s: Numbers

    @classmethod
    def from_layer(cls, layer: Layer | LayerTotals) -> LayerTotals:
        """The totals of a layer."""
        return cls(forward_s=layer.forward_s, backward_s=layer.backward_s, weight_s=layer.weight_s)

    def select(self, pick: Callable[[Numbers], Numbers]) -> LayerTotals:
        """Those of many strategies."""
        return LayerTotals(**{f.name: pick(getattr(self, f.name)) for f in fields(self)})


# Figures beside the layers' that a step is made of.
SELECTED = (
    "tokens",
    "memory_rate",
    "pcie_rate",
    "link_rate",
    "nic_rate",
    "unsplit_share",
    "tp_exposed_s",
    "embedding_s",
    "head_s",
    "loss_s",
    "mtp_s",
)


@dataclass(frozen=True, kw_only=True)
class LayerScope:
    """What a block has of a layer's collectives and launches, where it is not a whole layer."""

    collectives: Numbers
    """Tensor-parallel reductions of the forward pass, and of the backward pass."""
    collectives_back: Numbers
    launches: Numbers
    """Share of a layer's launches."""
    context: Numbers
    """1: it exchanges keys and values along the sequence."""


@dataclass(frozen=True, kw_only=True)
class LayerParts:
    """Forward parts of a layer before overlap and launches."""

    matmul: Numbers
    attention: Numbers
    attention_back: Numbers
    elementwise: Numbers
    routing: Numbers
    ep: Numbers
    wait: Numbers
    again: dict[str, Numbers] = field(default_factory=dict)
    """Seconds of the modules that selective recomputation may name, by the column that names them."""


class LayerCost:
    """The cost of a dense and of an MoE layer for a batch of strategies.

    LayerCost(model, work, gpu, stack, k).dense.forward.total
    """

    def __init__(
        self,
        model: ModelColumns,
        work: WorkColumns,
        gpu: GpuColumns,
        stack: StackColumns,
        k: Coefficients,
        measured: CollectiveTimings | None = None,
    ):
        self.model, self.work, self.gpu, self.stack, self.k = model, work, gpu, stack, k
        self.measured = measured
        self.tokens = work.tokens
        # `matmul_s` counts 2 bytes a value, so that half of the real size is left to count here
        self.byte_s = k.tile / gpu.memory_bytes_per_s * work.dtype_bytes / 2.0
        self.memory_rate = named("rate.memory", k.memory * gpu.memory_bytes_per_s)
        self.pcie_rate = named("rate.pcie", k.pcie * gpu.pcie_bytes_per_s)
        self.link_rate = named("rate.link", k.link * gpu.link_bytes_per_s)
        """Bytes/s that collectives reach over the fast link, or PCIe where there is none. [X1]"""
        self.linear_rate = named("rate.linear", self._select_linear_rate())
        self.flops_16 = np.where(as_array(work.path) == PATH_BITS["fp32"], gpu.flops_path, gpu.flops_16)
        """Peak of attention and head, which stay in 16 bit; an fp32 job runs them in fp32 too."""
        spread = 1.0 + k.nic_spread * np.log2(np.maximum(gpu.nodes, 1.0))
        self.nic_rate = named("rate.network", k.nic * gpu.nic_bytes_per_s / spread)
        """Bytes/s a GPU's share of the network reaches, less over many nodes. [X2]"""
        path = as_array(work.path)
        recipe = np.where(path == MXFP8, k.mxfp8_cast, np.where(path == PATH_BITS["fp4"], k.nvfp4_cast, 1.0))
        self.cast = np.where(path < 16, k.cast * recipe, 0.0) * self.work.dtype_bytes
        """Bytes moved to quantise one value that goes into a linear layer."""
        self.unsplit_share = work.unsplit_share
        lanes = work.micro_batch * model.heads / work.tp
        self.plain_softmax = (as_array(stack.unfused) > 1) | ((as_array(stack.unfused) > 0) & (lanes % 4 != 0))
        """The fused softmax kernel wants a multiple of four score matrices; without it more and longer kernels run."""
        self.elementwise = k.elementwise * np.where(as_array(stack.compiled) > 0, k.compiled, 1.0)
        """Traffic of elementwise operators over that of fused kernels."""
        self.tp_s = named("tp_collective_s", self.tensor.seconds)
        exposed = np.where(as_array(work.overlap_tensor) > 0, k.tp_exposed, 1.0)
        self.tp_exposed_s = named("tp_exposed_s", exposed * self.tp_s)
        block, scope = self._estimate_attention(), None
        self.blocks: dict[str, Layer | LayerTotals] = {}
        """Of hybrids: attention alone, and a Mamba-2 layer."""
        if is_used(model.hybrid):
            # here, not at the top: its blocks are made of this module's operators
            from crosszone.cost.mamba import build_hybrid_blocks

            hybrid = build_hybrid_blocks(self, block)
            block, scope = hybrid.rest, hybrid.rest_scope
            self.blocks = {
                kind: self._sum_layer(kind, parts, hybrid.scopes[kind]) for kind, parts in hybrid.parts.items()
            }
        self.dense: Layer | LayerTotals = self._sum_layer("dense", self._estimate_dense_layer(block), scope)
        self.moe: Layer | LayerTotals = (
            self._sum_layer("moe", self._estimate_moe_layer(block), scope)
            if np.any(as_array(model.moe_layers) > 0)
            else self.dense
        )
        looked_up = self.elementwise * 2.0 * self.work.dtype_bytes * self.tokens * model.hidden
        self.embedding_s = named("embedding_s", traffic_s(looked_up, self.memory_rate))
        """Look-up: a row read and written for each token. [O8]"""
        self.head_s, self.loss_s = self._estimate_head()
        """The head's forward matmul, and the traffic of logits and loss over both passes. [O9]"""
        self.mtp_s = self._estimate_mtp_s()
        """Projection of token and embedding of one layer of multi-token prediction, forward. [O21]"""

    @property
    def complete_layers(self) -> dict[str, Layer]:
        """The kinds of layers with their parts; `select_strategies` leaves these out."""
        layers = {"dense": self.dense, "moe": self.moe, **self.blocks}
        complete = {kind: layer for kind, layer in layers.items() if isinstance(layer, Layer)}
        if len(complete) < len(layers):
            raise TypeError("the parts of selected layers are not kept")
        return complete

    def select_strategies(self, at: npt.NDArray[np.int64], work: WorkColumns) -> LayerCost:
        """The costs of many strategies, of which each one's layer is number `at` of these; parts are left out.

        Layers of many strategies are alike: they differ in tp, cp, ep, micro-batch, recomputation and little else.
        `at` is an array [strategies], or [strategies, stages] where stages lie on different GPUs.
        """

        def pick(value: Numbers) -> Numbers:
            # an axis of length 1 holds for all strategies, as it is
            if not (isinstance(value, np.ndarray) and value.ndim == 2 and len(value) > 1):
                return value
            return value[at] if at.ndim == 1 else value[:, 0][at]

        # past __init__, which would work all layers out once more
        other = object.__new__(LayerCost)
        other.model, other.stack, other.measured = self.model, self.stack, self.measured
        for name in SELECTED:
            setattr(other, name, pick(getattr(self, name)))
        dense, moe = self._totals
        other.dense = dense.select(pick)
        other.moe = other.dense if moe is dense else moe.select(pick)
        other.blocks = {kind: LayerTotals.from_layer(layer).select(pick) for kind, layer in self.blocks.items()}
        for name in ("gpu", "k"):  # figures of GPUs, where they differ
            columns = getattr(self, name)
            wide = {f.name: pick(v) for f in fields(columns) if isinstance(v := getattr(columns, f.name), np.ndarray)}
            setattr(other, name, replace(columns, **wide) if wide else columns)
        other.work = work
        return other

    @cached_property
    def _totals(self) -> tuple[LayerTotals, LayerTotals]:
        """The dense and the MoE layer without their parts."""
        dense = LayerTotals.from_layer(self.dense)
        return dense, dense if self.moe is self.dense else LayerTotals.from_layer(self.moe)

    def _estimate_head(self) -> tuple[Numbers, Numbers]:
        """The head stays in 16 bit; rows that are no multiple of 8 lose the tensor cores' alignment. [O9]"""
        m, k = self.model, self.k
        rows = m.vocab / self.work.tp
        aligned = np.where(as_array(m.vocab) % 8 == 0, 1.0, k.unaligned)
        product = matmul_s(self.tokens, m.hidden, rows, k.matmul * self.flops_16, self.byte_s)
        loss = traffic_s(k.head_traffic * self.tokens * rows, self.memory_rate)
        return named("head_s", product * aligned), named("loss_s", loss)

    def _estimate_mtp_s(self) -> Numbers:
        """2 h to h, cut by tensor parallelism; 0 without multi-token prediction. [O21]"""
        m = self.model
        if not is_used(m.mtp_layers):
            return 0.0
        seconds = matmul_s(self.tokens, 2.0 * m.hidden, m.hidden / self.work.tp, self.linear_rate, self.byte_s)
        return named("matmul.mtp_s", np.where(as_array(m.mtp_layers) > 0, seconds, 0.0))

    def _select_linear_rate(self) -> Numbers:
        """FLOP/s of the linear layers in the job's precision."""
        k, path = self.k, as_array(self.work.path)
        fp8 = k.matmul_fp8 * np.where(path == MXFP8, k.mxfp8, np.where(path == ROWWISE, k.rowwise, 1.0))
        share = np.where(path >= 16, k.matmul, np.where(path == 4, k.matmul_fp8 * k.nvfp4, fp8))
        return share * self.gpu.flops_path

    def _estimate_attention(self) -> LayerParts:
        """Projections and core of the attention, norms and residuals of the layer. [O2] [O3]"""
        m, w, k, tokens = self.model, self.work, self.k, self.tokens
        t = w.tp
        query = m.heads * m.qk_dim
        # more ranks than KV heads: each holds a copy of one (`rules.check_heads`)
        key_value = np.maximum(m.kv_heads / t, 1.0) * (m.qk_dim + m.v_dim)
        value = m.heads * m.v_dim
        is_standard = 1.0 - m.latent
        direct = is_standard + m.latent * (as_array(m.q_rank) == 0)
        # the down-projections of latent attention are whole on every rank: all heads read the latents
        projections = {
            "qkv": (m.hidden, direct * query / t + is_standard * key_value),
            "query_down": (m.hidden, m.latent * m.q_rank),
            "query_up": (m.latent * m.q_rank, query / t),
            "kv_down": (m.hidden, m.latent * (m.kv_rank + m.rope_dim)),
            "kv_up": (m.latent * m.kv_rank, m.heads * (m.qk_dim - m.rope_dim + m.v_dim) / t),
            "out": (value / t, m.hidden),
        }
        matmul = sum(
            named(f"matmul.{name}_s", matmul_s(tokens, inner, columns, self.linear_rate, self.byte_s))
            for name, (inner, columns) in projections.items()
        )
        self._mla_up_s = m.latent * sum(
            matmul_s(tokens, *projections[name], self.linear_rate, self.byte_s) for name in ("query_up", "kv_up")
        )
        width = m.heads * (m.qk_dim + m.v_dim) / t
        windowed = tokens_seen(w.seq, m.window, causal=m.causal)
        full_keys = tokens_seen(w.seq, None, causal=m.causal)
        keys_per_query = named("tokens_seen", m.full_share * full_keys + (1 - m.full_share) * windowed)
        older = as_array(self.stack.older_flash)
        kernel = np.where(older > 0, k.older_flash * np.where(older > 1, k.triton, 1.0), 1.0)
        kernel = np.where((older == 0) & (as_array(self.stack.attention_fp8) > 0), k.flash_fp8, kernel)
        reach = m.full_share * w.seq + (1 - m.full_share) * np.minimum(w.seq, m.window)
        # heads of latent attention are wider for queries and keys than for values
        share = named("head_share", flash_share((m.qk_dim + m.v_dim) / 2.0, reach, k.flash_width, k.flash_ramp))
        kernel = kernel * np.where(as_array(m.sinks) > 0, k.sink_rate, 1.0)
        flash_s = flash_attention_s(tokens, keys_per_query, width, kernel * share * k.flash * self.flops_16)
        passes = k.score_traffic * np.where(self.plain_softmax, k.plain_scores, 1.0)
        score_s = passes / self.memory_rate
        # tensor cores want rows of 16 bytes: a head that is no multiple of 8 wide falls back to slower kernels
        aligned = np.where(as_array(m.qk_dim) % 8 == 0, 1.0, k.unaligned_heads)
        scores = (tokens, w.seq, width, m.heads / t, k.batched * self.flops_16 / aligned, score_s)
        unfused_s = unfused_attention_s(*scores, named("score_bytes", FORWARD_SCORE_BYTES))
        # twice half of the bytes: the factor is for the matmuls, two for each forward one, the bytes are counted whole
        unfused_back_s = 2.0 * unfused_attention_s(*scores, named("score_bytes", BACKWARD_SCORE_BYTES / 2.0))
        unfused = as_array(self.stack.unfused) > 0
        inner_width = query / t + 2 * key_value
        passes_over = named("residual_passes", RESIDUAL_PASSES) * m.hidden * self.unsplit_share
        traffic = self.work.dtype_bytes * tokens * (passes_over + 2.0 * inner_width)
        written_out = k.written_out * m.written * self.work.dtype_bytes * tokens * m.hidden * self.unsplit_share
        cast = self.cast * tokens * (m.hidden + value / t)
        return LayerParts(
            matmul=matmul,
            attention=np.where(unfused, unfused_s, flash_s),
            attention_back=np.where(unfused, unfused_back_s, k.flash_backward * flash_s),
            elementwise=named(
                "elementwise.attention_s", traffic_s(self.elementwise * traffic + written_out + cast, self.memory_rate)
            ),
            routing=0.0,
            ep=0.0,
            wait=0.0,
        )

    def _estimate_dense_layer(self, block: LayerParts) -> LayerParts:
        """The attention block followed by a dense MLP."""
        m, w, tokens = self.model, self.work, self.tokens
        inner = m.ffn / w.tp
        up = named("matmul.up_s", matmul_s(tokens, m.hidden, (m.matrices - 1) * inner, self.linear_rate, self.byte_s))
        down = named("matmul.down_s", matmul_s(tokens, inner, m.hidden, self.linear_rate, self.byte_s))
        cast = self.cast * tokens * (m.hidden + inner)
        traffic = self.elementwise * self.work.dtype_bytes * tokens * m.matrices * inner + cast
        return LayerParts(
            matmul=block.matmul + up + down,
            attention=block.attention,
            attention_back=block.attention_back,
            elementwise=block.elementwise + named("elementwise.mlp_s", traffic_s(traffic, self.memory_rate)),
            routing=0.0,
            ep=0.0,
            wait=0.0,
            again={
                "recompute_mlp": up + down,
                "recompute_act": ACTIVATION_SHARE
                * traffic_s(self.elementwise * self.work.dtype_bytes * tokens * m.matrices * inner, self.memory_rate),
            },
        )

    def _estimate_moe_layer(self, block: LayerParts) -> LayerParts:
        """The attention block followed by routed and shared experts. [O6]"""
        m, w, k, tokens = self.model, self.work, self.k, self.tokens
        routed = named("routed_tokens", tokens * m.top_k / w.tp * w.expert_tp)
        local = m.experts / w.ep
        inner = m.expert_ffn / w.expert_tp
        # a model without experts has none here; its matmuls of no width take no time at any rate but 0
        tokens_per_expert = np.where(as_array(local) > 0, routed / np.maximum(local, 1e-9), 1.0)
        rate = self.linear_rate * grouped_share(tokens_per_expert, k.grouped, k.grouped_ramp)
        up = named(
            "matmul.expert_up_s", matmul_s(routed, m.expert_hidden, (m.matrices - 1) * inner, rate, self.byte_s, local)
        )
        down = named("matmul.expert_down_s", matmul_s(routed, inner, m.expert_hidden, rate, self.byte_s, local))
        shared_inner = m.shared_ffn / w.tp
        shared_up = matmul_s(tokens, m.hidden, (m.matrices - 1) * shared_inner, self.linear_rate, self.byte_s)
        shared_down = matmul_s(tokens, shared_inner, m.hidden, self.linear_rate, self.byte_s)
        shared = named("matmul.shared_up_s", shared_up) + named("matmul.shared_down_s", shared_down)
        if is_used(m.expert_projection):  # LatentMoE: every token to the experts' width and back
            down_s = matmul_s(tokens, m.hidden, m.expert_projection, self.linear_rate, self.byte_s)
            up_s = matmul_s(tokens, m.expert_projection, m.hidden, self.linear_rate, self.byte_s)
            shared = shared + named("matmul.latent_s", down_s + up_s)
        width = m.matrices * (routed * inner + tokens * shared_inner)
        cast = self.cast * (routed * (m.expert_hidden + inner) + tokens * shared_inner)
        moved_bytes = self.elementwise * self.work.dtype_bytes * width + cast
        age = named("release_factor", np.exp(-k.release_decay * self.stack.release))
        passes = age * k.permute * np.where(as_array(self.stack.fused_dispatch) > 0, k.fused_dispatch, 1.0)
        permuted = passes * named("routed_bytes", ROUTED_BYTES) * tokens * m.top_k * m.expert_hidden / w.tp
        exposed = k.a2a_exposed * np.where(as_array(self.stack.expert_overlap) > 0, k.expert_overlap, 1.0)
        return LayerParts(
            matmul=block.matmul + up + down + shared,
            attention=block.attention,
            attention_back=block.attention_back,
            elementwise=block.elementwise + named("elementwise.experts_s", traffic_s(moved_bytes, self.memory_rate)),
            routing=traffic_s(permuted, self.memory_rate),
            ep=exposed * self.all_to_all.seconds,
            wait=age * k.moe_s,
            again={
                "recompute_moe": up + down + traffic_s(permuted, self.memory_rate) + exposed * self.all_to_all.seconds,
                "recompute_mlp": shared,
                "recompute_act": ACTIVATION_SHARE
                * traffic_s(self.elementwise * self.work.dtype_bytes * width, self.memory_rate),
            },
        )

    @property
    def tier_rates(self) -> TierBytes:
        """Bytes/s of one GPU over the fast link, PCIe and the network."""
        return TierBytes(self.link_rate, self.k.link * self.gpu.pcie_bytes_per_s, self.nic_rate, np.inf)

    @property
    def expert_rates(self) -> TierBytes:
        """The same in an all-to-all, which is slower than a ring on the same links. [X3]"""
        return TierBytes(*(self.k.a2a_rate * rate for rate in self.tier_rates))

    @cached_property
    def all_to_all(self) -> CollectiveCost:
        """Dispatch and combine of the tokens of one pass through an MoE layer. [X3]"""
        m, w, g = self.model, self.work, self.gpu
        size, timed = self.work.dtype_bytes * self.tokens * m.expert_hidden / w.tp, None
        if self.measured is not None:
            group = Group(w.ep, w.expert_tp, g)
            timed = self.measured.find_tier(("all_to_all",), group, size * m.top_k, Tier(self.link_rate, 0.0))
        return expert_all_to_all(
            size,
            timed=timed,
            top_k=m.top_k,
            ranks=w.ep,
            ranks_per_domain=np.clip(g.domain / w.expert_tp, 1.0, w.ep),
            fast_gpus=g.fast_gpus,
            rates=self.expert_rates,
        )

    @cached_property
    def tensor(self) -> CollectiveCost:
        """One tensor-parallel all-reduce (or gather and scatter) of the activations. [X1]"""
        g, t = self.gpu, self.work.tp
        rate = ring_rate(t, 1.0, g.domain, self.link_rate, self.nic_rate)
        layout = Layout(t, 1.0, g.fast_gpus, g.domain, "tensor")
        size = self.work.dtype_bytes * self.tokens * self.model.hidden
        is_measured, link = self.find_ring_link(
            "all_reduce", t, 1.0, size, Tier(rate, named("tensor_hop", layout.hop_s))
        )
        further_nodes = np.ceil(t / np.minimum(g.domain, t)) - 1.0
        fixed_s = self.k.tp_message_s + self.k.tp_node_s * further_nodes
        start_s = np.where(is_measured, 0.0, fixed_s) if np.any(is_measured) else fixed_s
        ring = Ring(ranks=t, link=link, layout=layout, start_s=start_s)
        return all_reduce(size, ring, calls=1.0)

    def find_ring_link(self, op: str, ranks: Numbers, stride: Numbers, size_bytes: Numbers, otherwise: Tier) -> Any:
        """Whether a ring of such ranks was timed, and its link: as timed, else `otherwise`. [C15]"""
        if self.measured is None:
            return False, otherwise
        return self.measured.find_tier(RING_OPS[op], Group(ranks, stride, self.gpu), size_bytes, otherwise)

    @cached_property
    def saved_gather(self) -> CollectiveCost:
        """Gather of the activations kept in parts before they are recomputed, where the stack cuts them. [X9]"""
        link = self.tensor.ring.link if self.tensor.ring else Tier(self.link_rate, 0.0)
        ring = Ring(ranks=self.work.tp, link=link, layout=self.tensor.ring.layout if self.tensor.ring else None)
        return all_gather(self.stack.partitioned * self.work.dtype_bytes * self.tokens * self.model.hidden, ring)

    def _sum_layer(self, kind: str, parts: LayerParts, scope: LayerScope | None = None) -> Layer:
        """Forward, backward and recomputation with launches and exposed collectives; `scope`: of a block. [O7]"""
        w, k = self.work, self.k
        full, selective = as_array(w.recompute) == 2, as_array(w.recompute) == 1
        count, count_back = 2.0 - self.model.parallel_residual, 2.0
        tp = self.tp_exposed_s
        cp, cp_back = (
            self._estimate_context_s(parts.attention),
            self._estimate_context_s(parts.attention_back, CONTEXT_BACKWARD),
        )
        launches = 1.0
        if scope is not None:
            count, count_back, launches = scope.collectives, scope.collectives_back, scope.launches
            cp, cp_back = cp * scope.context, cp_back * scope.context
        launch = named(f"{kind}.launch_s", self._estimate_launch_s(kind, parts, count, launches))
        forward = Pass(
            matmul=named(f"{kind}.forward.matmul", parts.matmul),
            attention=named(f"{kind}.forward.attention", parts.attention),
            elementwise=named(f"{kind}.forward.elementwise", parts.elementwise),
            routing=named(f"{kind}.forward.routing", parts.routing),
            tp=named(f"{kind}.forward.tp", count * tp),
            ep=named(f"{kind}.forward.ep", parts.ep),
            cp=named(f"{kind}.forward.cp", cp),
            host=0.0,
        )
        kernels_s = forward.matmul + forward.attention + forward.elementwise + forward.routing
        # fused attention keeps no scores: its backward kernel computes them once more anyway
        core = np.where(self.stack.unfused > 0, forward.attention, 0.0)
        part = core + k.selective_share * forward.matmul + (k.selective_share > 0) * forward.elementwise
        by_module = as_array(self.stack.by_module) > 0
        if np.any(by_module):
            part = np.where(by_module, self._sum_modules(parts, forward), part)
        recompute = named(f"{kind}.recompute", np.where(full, kernels_s, 0.0) + np.where(selective, part, 0.0))
        recompute_comm_s = {name: np.where(full, getattr(forward, name), 0.0) for name in ("tp", "ep", "cp")}
        if np.any(as_array(self.stack.partitioned) > 0):
            recompute_comm_s["tp"] = recompute_comm_s["tp"] + np.where(full, self.saved_gather.seconds, 0.0)
        backward = Pass(
            matmul=named(f"{kind}.backward.matmul", 2.0 * forward.matmul),
            attention=named(f"{kind}.backward.attention", parts.attention_back),
            elementwise=named(f"{kind}.backward.elementwise", 2.0 * forward.elementwise),
            routing=named(f"{kind}.backward.routing", 2.0 * parts.routing),
            tp=named(f"{kind}.backward.tp", count_back * tp),
            ep=named(f"{kind}.backward.ep", parts.ep),
            cp=named(f"{kind}.backward.cp", cp_back),
            host=0.0,
        )
        recompute_s = recompute + sum(recompute_comm_s.values())
        kernels_back = named(f"{kind}.backward.kernels", backward.gpu + recompute_s)
        # full recomputation launches the forward pass's kernels once more
        host_back = self._estimate_host_s(kernels_back, (k.host_backward + full) * launch)
        host = self._estimate_host_s(named(f"{kind}.forward.kernels", forward.gpu), launch)
        return Layer(
            forward=replace(forward, host=named(f"{kind}.forward.host", host)),
            backward=replace(backward, host=named(f"{kind}.backward.host", host_back)),
            recompute=recompute,
            recompute_comm_s=recompute_comm_s,
        )

    def _estimate_launch_s(
        self, kind: str, parts: LayerParts, collectives: Numbers, launches: Numbers = 1.0
    ) -> Numbers:
        """Launch time of a forward pass: kernels of this kind of layer, but for those in graphs or compiled. [O7]"""
        k, m, stack, t = self.k, self.model, self.stack, self.work.tp
        kernels = launches * (1.0 + m.written * (k.written_out_launch - 1.0))
        kernels = kernels * np.where(self.plain_softmax, k.plain_launch, 1.0)
        kernels = kernels + m.latent * k.mla_launch + np.where(as_array(self.work.path) < 16, k.cast_launch, 0.0)
        if kind == "moe":
            kernels = kernels + k.moe_launch
        graphs = as_array(stack.graphs)
        left = np.where(graphs > 1, k.full_graph, np.where(graphs > 0, k.partial_graph, 1.0))
        left = left * np.where(as_array(stack.compiled) > 0, k.compiled_launch, 1.0)
        in_pipeline = np.where(as_array(self.work.pp) > 1, k.pipeline_host_s, 0.0)
        ranks = (collectives * k.collective_host_s + in_pipeline) * (t - 1.0)
        return left * (k.host_s * kernels + ranks) + np.where(graphs > 1, k.full_graph, 1.0) * parts.wait

    def _sum_modules(self, parts: LayerParts, forward: Pass) -> Numbers:
        """Seconds of the modules that selective recomputation names. [O7]"""
        stack = self.stack
        again = {"recompute_core": forward.attention, "recompute_mla_up": self._mla_up_s, **parts.again}
        again["recompute_norm"] = NORM_PASSES / RESIDUAL_PASSES * forward.elementwise
        return sum(getattr(stack, column) * seconds for column, seconds in again.items())

    def _estimate_host_s(self, gpu_s: Numbers, launch_s: Numbers) -> Numbers:
        """What launches add: all of them where each one waits, else only what is longer than the kernels."""
        return np.where(self.stack.launch_added > 0, launch_s, longer_s(gpu_s, launch_s) - gpu_s)

    def _estimate_context_s(self, attention_s: Numbers, passes: float = 1.0) -> Numbers:
        """Exposed part of the exchange along the sequence: a ring hides below attention, others go before it. [X4]"""
        exchange = passes * self.context.seconds
        hidden = np.maximum(0.0, exchange - attention_s) + self.k.cp_exposed * exchange
        exposed = np.where(as_array(self.stack.context_kind) > 0, exchange, hidden)
        return np.where(as_array(self.work.cp) > 1, np.minimum(exchange, exposed), 0.0)

    @cached_property
    def context(self) -> CollectiveCost:
        """What one GPU sends along the sequence in one pass through a layer, hidden or not. [X4]"""
        m, w, g = self.model, self.work, self.gpu
        kv = np.where(m.latent > 0, m.heads / w.tp, np.maximum(m.kv_heads / w.tp, 1.0)) * (m.qk_dim + m.v_dim)
        near = w.tp * w.cp <= g.domain
        link = Tier(np.where(near, self.link_rate, self.nic_rate), 0.0)
        # each rank hands its block to the next over one connection, so no further NIC of the node helps
        heads = m.heads / w.tp * (m.qk_dim + m.v_dim)
        # heads for sequence: queries, keys, values and the output, of which each other rank gets 1/c
        swapped = (heads + kv) / w.cp
        size = self.work.dtype_bytes * self.tokens * np.where(as_array(self.stack.context_kind) == 1, swapped, kv)
        _, link = self.find_ring_link("all_gather", w.cp, w.tp, size * w.cp, link)
        ring = Ring(ranks=w.cp, link=link, layout=Layout(w.cp, w.tp, g.fast_gpus, g.domain, "context"), single=True)
        return ring_exchange(size, ring)
