"""Columns: the numbers the cost formulas read, one entry a strategy (or a run).

Each field is a number or an array; all of them broadcast, so that one prediction is a batch of one and a search
is the same code over a million. `join_columns` makes arrays of many single columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from crosszone.cost.record import as_array, named
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import (
    count_attention_parameters,
    count_expert_parameters,
    count_layer_norm_parameters,
    count_mamba_parameters,
    count_mlp_parameters,
    count_norm_parameters,
    count_router_parameters,
    count_shared_expert_parameters,
)

Numbers = Any  # A float or a NumPy array of floats; everything broadcasts

RECOMPUTE = {"none": 0, "selective": 1, "full": 2}
OFFLOAD = {"none": 0, "optimizer": 1, "optimizer+weights": 2}
PATH_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp4": 4}
# fp8 with block scales, and with one scale per row: codes of their own beside the bits of the path.
# Below 16, for `path < 16` means that inputs are cast, and other than 4 and 8, for these are looked for by number.
MXFP8, ROWWISE = 7, 6
# Attention kernels of `job.software.attention`; others are the fused kernel of the GPU's vendor.
OLDER_FLASH = {"flash-2": 1.0, "triton": 2.0}
UNFUSED = {"softmax": 1.0, "plain": 2.0}
REFERENCE_RELEASE = 25.75  # Release that coefficients of MoE layers stand for

Column = TypeVar("Column")


def is_used(values: Numbers) -> bool:
    """Whether some model has it: a number is asked without NumPy, for most columns of one prediction are numbers."""
    return bool(values > 0) if isinstance(values, int | float) else bool(np.any(as_array(values) > 0))


@dataclass(frozen=True, kw_only=True)
class ModelColumns:
    """What a layer, the embedding and the head are made of."""

    layers: Numbers
    moe_layers: Numbers
    first_dense: Numbers
    moe_every: Numbers
    hidden: Numbers
    heads: Numbers
    kv_heads: Numbers
    qk_dim: Numbers
    v_dim: Numbers
    latent: Numbers
    """1 for latent attention (MLA)."""
    q_rank: Numbers
    kv_rank: Numbers
    rope_dim: Numbers
    ffn: Numbers
    matrices: Numbers
    """Matrices of an MLP: 2, gated 3."""
    experts: Numbers
    top_k: Numbers
    expert_ffn: Numbers
    shared_ffn: Numbers
    vocab: Numbers
    tied: Numbers
    causal: Numbers
    window: Numbers
    """Tokens of the window; inf: none."""
    full_share: Numbers
    """Share of the layers that see the whole sequence."""
    parallel_residual: Numbers
    written: Numbers
    """Of RMSNorm and rotary positions, which share it has: what stacks without fused kernels write out."""
    sinks: Numbers
    attention_params: Numbers
    """Parameters of one layer's attention and norms."""
    mlp_params: Numbers
    expert_params: Numbers
    shared_params: Numbers
    """Shared experts and router of one layer."""
    embedding_params: Numbers
    head_params: Numbers
    """Head and final norm; a tied head has none of its own."""
    expert_projection: Numbers = 0.0
    """Width that tokens are projected to for the experts; 0: they are not."""
    hybrid: Numbers = 0.0
    """1: layers are blocks of one kind each, so that a dense or MoE one has no attention."""
    attention_layers: Numbers = 0.0
    """Of a hybrid: its attention blocks."""
    attention_block_params: Numbers = 0.0
    mamba_layers: Numbers = 0.0
    mamba_params: Numbers = 0.0
    mamba_heads: Numbers = 0.0
    mamba_inner: Numbers = 0.0
    """Width of all heads of a Mamba layer."""
    mamba_projected: Numbers = 0.0
    """Width of the state's projections B and C of all groups."""
    mamba_state: Numbers = 0.0
    mamba_groups: Numbers = 0.0
    mamba_conv: Numbers = 0.0
    mamba_chunk: Numbers = 1.0
    mtp_layers: Numbers = 0.0
    """Layers of multi-token prediction that are computed."""
    mtp_distinct: Numbers = 0.0
    """Of them, those with weights of their own."""
    mtp_params: Numbers = 0.0
    """Projection and norms of one of them, beside its layer."""

    @property
    def expert_hidden(self) -> Numbers:
        """Width of tokens at their experts: hidden, or that of LatentMoE."""
        if not is_used(self.expert_projection):
            return self.hidden
        return np.where(as_array(self.expert_projection) > 0, self.expert_projection, self.hidden)


@dataclass(frozen=True, kw_only=True)
class WorkColumns:
    """Job and strategy: degrees, batch, precision, sharding, options as numbers."""

    seq: Numbers
    global_batch: Numbers
    tp: Numbers
    pp: Numbers
    dp: Numbers
    cp: Numbers
    ep: Numbers
    expert_tp: Numbers
    micro_batch: Numbers
    micro_batches: Numbers
    interleave: Numbers
    sequence_parallel: Numbers
    recompute: Numbers
    """0 none, 1 selective, 2 full."""
    zero: Numbers
    shard_ranks: Numbers
    """Replicas that share one set of states."""
    dp_stride: Numbers
    """Ranks from one replica of a stage to the next, context-parallel ranks counted as replicas."""
    path: Numbers
    """Bits of the linear layers' tensor path: 32, 16, 8, 4 (7, 6: fp8 with block or row scales)."""
    weight_bytes: Numbers
    gradient_bytes: Numbers
    grad_comm_bytes: Numbers
    """Bytes of a gradient on the wire."""
    optimizer_bytes: Numbers
    """Master weights and moments."""
    overlap_tensor: Numbers
    overlap_gradients: Numbers
    overlap_parameters: Numbers
    bucket_bytes: Numbers = np.inf
    """Gradients that are reduced together."""
    bucket_room: Numbers = 0.0
    """Bytes of memory that a bucket takes beyond the usual one, where it is memory of its own."""
    tree: Numbers = 0.0
    """How gradients are all-reduced: 0 as is quicker (between zones in a ring), 1 in a tree, -1 in a ring."""
    rounds: Numbers = 1.0
    """Collectives one after the other for each bucket."""
    dtype_bytes: Numbers = 2.0
    """Bytes of an activation value."""
    param_comm_bytes: Numbers = 2.0
    """Bytes of a parameter on the wire when sharded weights are gathered."""
    v_shaped: Numbers = 0.0
    """1: the schedule is V-shaped, so that the head lies on the first stage."""
    extra_warmup: Numbers = 0.0
    """Micro-batches more in flight than 1F1B has."""
    splits_weight_grad: Numbers = 0.0
    """1: the weights' half of the backward pass may come later."""
    overlap_window: Numbers = 1.0
    """Factor on the passes that may hide a reduction or a gather: more than 1 for a bound of slower ones."""
    fills: Numbers = 1.0
    """0: filling and draining the pipeline is left out, for a bound of any schedule."""
    offload: Numbers = 0.0
    """0 none, 1 optimizer states in host memory, 2 weights too."""
    overlap: Numbers
    """Share of what could hide that does, 0 to 1; nan: as the profile says."""

    @property
    def tokens(self) -> Numbers:
        """Tokens of a micro-batch on one GPU, before sequence parallelism."""
        return named("tokens", self.micro_batch * self.seq / self.cp)

    @property
    def unsplit_share(self) -> Numbers:
        """Share of what tensor parallelism leaves whole that a GPU holds: 1/t with sequence parallelism."""
        return np.where(as_array(self.sequence_parallel) > 0, 1.0 / self.tp, 1.0)


@dataclass(frozen=True, kw_only=True)
class GpuColumns:
    """Datasheet of the GPU and its links."""

    flops_16: Numbers
    """Dense 16-bit peak, FLOP/s."""
    flops_path: Numbers
    """Dense peak of the linear layers' path, FLOP/s."""
    memory_bytes_per_s: Numbers
    link_bytes_per_s: Numbers
    """Fast link (or PCIe), one direction."""
    pcie_bytes_per_s: Numbers
    """To host memory, one direction."""
    domain: Numbers
    """GPUs that reach each other without the network: over the fast link, or over PCIe in a node."""
    fast_gpus: Numbers = 1.0
    """Of these, those that the fast link joins (1: there is none)."""
    node_gpus: Numbers
    nic_bytes_per_s: Numbers
    """Network per GPU, one direction."""
    nodes: Numbers
    code: Numbers = 0.0
    """Stands for the GPU kind: what was measured of a kind is looked up by it."""


@dataclass(frozen=True, kw_only=True)
class LinkColumns:
    """Where groups cross zones, and what links the stages; arrays may have a last axis of stages."""

    dp_zones: Numbers = 1.0
    """Zones that the replicas of a stage lie in."""
    synchronous: Numbers = 1.0
    """0: zones do not reduce gradients with each other every step (local updates)."""
    wan_bytes_per_s: Numbers = np.inf
    """Rate of a zone's exchange with the next one in the ring of zones, all its groups together."""
    wan_latency_s: Numbers = 0.0
    """Latency of one step of that ring."""
    gloo: Numbers = 0.0
    """1: ranks talk over Gloo, so that latency is a round trip."""
    flat: Numbers = 0.0
    """1: one ring over all replicas in place of a hierarchy."""
    boundary_fast: Numbers = 0.0
    """The boundary after a stage lies inside a fast-link domain; 2: it may, so the faster way counts (a bound)."""
    boundary_bytes_per_s: Numbers = np.inf
    """Rate of one GPU over that boundary, forward, where it crosses zones; inf: it does not."""
    boundary_back_bytes_per_s: Numbers = np.inf
    boundary_latency_s: Numbers = 0.0
    boundary_perfect: Numbers = 0.0
    """1: sends cost nothing (to tell what links cost)."""
    slowest_bytes_per_s: Numbers = np.inf
    """Rate over the slowest boundary between zones, where stages stand for others whose boundaries are not given."""


@dataclass(frozen=True, kw_only=True)
class StackColumns:
    """What a software stack does, as switches (1: yes), and how old it is."""

    unfused: Numbers
    """Attention as two matmuls and a softmax."""
    older_flash: Numbers
    """The fused attention was made for an older generation of GPUs (FlashAttention 2): 1; written in Triton: 2."""
    launch_added: Numbers
    """Every launch waits for the GPU, so launches add to its time."""
    p2p_scatter: Numbers
    """Pipeline sends are cut among the tensor-parallel ranks."""
    release: Numbers
    """Years from `REFERENCE_RELEASE`, which the coefficients of MoE layers stand for."""
    compiled: Numbers = 0.0
    """A compiler fused elementwise operators."""
    graphs: Numbers = 0.0
    """CUDA graphs: 0 none, 1 of attention and router, 2 of the whole iteration."""
    fused_dispatch: Numbers = 0.0
    """Tokens are sorted while they are sent (DeepEP, HybridEP)."""
    expert_overlap: Numbers = 0.0
    """Exchange of experts runs beside the other micro-batch."""
    context_kind: Numbers = 0.0
    """What goes along the sequence: 0 keys and values in a ring, 1 heads for sequence, 2 keys and values gathered."""
    attention_fp8: Numbers = 0.0
    """The attention core runs in fp8."""
    by_module: Numbers = 0.0
    """Selective recomputation computes the modules again that are named below, and nothing else."""
    recompute_core: Numbers = 0.0
    recompute_mla_up: Numbers = 0.0
    recompute_mlp: Numbers = 0.0
    recompute_moe: Numbers = 0.0
    recompute_act: Numbers = 0.0
    recompute_norm: Numbers = 0.0
    p2p_wait: Numbers = 0.0
    """A stage waits for its send to another zone: 1 until it is out, 2 until it has arrived; 0: goes on beside it."""
    p2p_both_ends: Numbers = 0.0
    """A message between stages holds its receiver as long as its sender (a blocking send meets a blocking receive)."""
    p2p_mask: Numbers = 0.0
    """Activations take the attention mask along to the next stage."""
    partitioned: Numbers = 0.0
    """Activations kept for recomputation are cut among the tensor-parallel ranks, and gathered before it."""
    zero1_all_reduce: Numbers = 0.0
    """Gradients are all-reduced with ZeRO 1 too, where a reduce-scatter would do."""


def build_model_columns(model: Model, *, vocab_multiple: int = 1, tp: int = 1) -> ModelColumns:
    """The columns of one model, its vocabulary padded to a multiple of `vocab_multiple` x `tp`."""
    moe, mla, window = model.moe, model.mla, model.window
    rows = model.embedding_rows
    if model.vocab_padded_to is None and vocab_multiple > 1:
        unit = vocab_multiple * tp
        # Megatron-LM's make-vocab-size-divisible-by: each tensor-parallel rank has equally many rows (frameworks.yaml)
        rows = -(-rows // unit) * unit
    width = model.embedding_width
    positions = (model.max_seq_len or 0) * model.hidden if model.positions == "learned" else 0
    return ModelColumns(
        layers=model.layers,
        moe_layers=model.moe_layers,
        first_dense=moe.first_dense if moe else 0,
        moe_every=moe.every if moe else 1,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        qk_dim=model.qk_head_dim,
        v_dim=model.v_head_dim,
        latent=float(mla is not None),
        q_rank=(mla.q_lora_rank or 0) if mla else 0,
        kv_rank=mla.kv_lora_rank if mla else 0,
        rope_dim=mla.qk_rope_head_dim if mla else 0,
        ffn=model.ffn_hidden if model.mlp_layers else 0,
        matrices=3 if model.gated else 2,
        experts=moe.experts if moe else 0,
        top_k=moe.top_k if moe else 0,
        expert_ffn=moe.ffn_hidden if moe else 0,
        shared_ffn=moe.shared_experts * moe.shared_ffn_hidden if moe else 0,
        vocab=rows,
        tied=float(model.tied_embeddings),
        causal=float(model.causal),
        # inf, not 0 or nan: min(sequence, window) is then the sequence without a branch
        window=float(window.tokens) if window else np.inf,
        full_share=model.full_attention_layers / max(1, model.attention_layers),
        parallel_residual=float(model.parallel_residual),
        written=((model.norm == "rmsnorm") + (model.positions == "rotary")) / 2.0,
        sinks=float(model.attention_sinks),
        attention_params=count_layer_norm_parameters(model)
        + (0 if model.pattern else count_attention_parameters(model)),
        mlp_params=count_mlp_parameters(model, model.ffn_hidden),
        expert_params=count_expert_parameters(model),
        shared_params=count_shared_expert_parameters(model) + count_router_parameters(model),
        embedding_params=rows * width + positions + model.token_types * model.hidden,
        head_params=(0 if model.tied_embeddings else rows * width) + count_norm_parameters(model),
        expert_projection=(moe.latent or 0) if moe else 0,
        **(_build_hybrid_columns(model) if model.pattern else {}),
        **(_build_mtp_columns(model) if model.mtp_layers else {}),
    )


def _build_hybrid_columns(model: Model) -> dict[str, Numbers]:
    """Columns that only models of different blocks have."""
    mamba, norms = model.mamba, count_layer_norm_parameters(model)
    columns: dict[str, Numbers] = {
        "hybrid": 1.0,
        "attention_layers": model.attention_layers,
        "attention_block_params": count_attention_parameters(model) + norms,
    }
    if mamba is not None:
        columns |= {
            "mamba_layers": model.mamba_layers,
            "mamba_params": count_mamba_parameters(model) + norms,
            "mamba_heads": mamba.heads,
            "mamba_inner": mamba.inner,
            "mamba_projected": mamba.state_projections,
            "mamba_state": mamba.state,
            "mamba_groups": mamba.groups,
            "mamba_conv": mamba.conv,
            "mamba_chunk": mamba.chunk,
        }
    return columns


def _build_mtp_columns(model: Model) -> dict[str, Numbers]:
    """Columns that only models with multi-token prediction have."""
    return {
        "mtp_layers": model.mtp_layers,
        "mtp_distinct": model.mtp_distinct,
        "mtp_params": 2 * model.hidden * model.hidden + 3 * count_norm_parameters(model),
    }


def join_columns(columns: Sequence[Column]) -> Column:
    """Many single columns as one whose fields are arrays [n, 1]: strategies first, stages last."""
    first = columns[0]
    names = [f.name for f in fields(first)]  # type: ignore[arg-type]
    return type(first)(**{name: np.array([[getattr(c, name)] for c in columns], dtype=float) for name in names})


def select_columns(columns: Mapping[int, Column], at: npt.NDArray[np.int64]) -> Column:
    """One column whose fields are arrays: of each entry of `at`, the columns of that number."""
    numbers = sorted(columns)
    place = np.searchsorted(numbers, at)
    first = columns[numbers[0]]
    names = [f.name for f in fields(first)]  # type: ignore[arg-type]
    return type(first)(**{n: np.stack([1.0 * getattr(columns[i], n) for i in numbers])[place] for n in names})


def build_gpu_columns(gpu: Gpu, path: str, **links: float) -> GpuColumns:
    """The columns of one GPU kind for a compute precision; `links` are the figures of its node and network."""
    # GPUs before Ampere have no bf16 path, CPUs may have neither
    half = gpu.peak("bf16") or gpu.peak("fp16") or gpu.peak("fp32") or 0.0
    return GpuColumns(
        flops_16=1e12 * half,
        flops_path=1e12 * (gpu.peak(path) or half),
        memory_bytes_per_s=1e9 * gpu.memory_gb_per_s,
        pcie_bytes_per_s=1e9 * gpu.pcie.gb_per_s,
        **links,
    )
