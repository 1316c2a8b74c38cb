"""Batch: placed cases as the columns that the cost formulas read. What is predicted, planned, scored or fitted.

Entries of arrays [rows, stages] whose axes may be missing or of length 1; recorded arrays give recorded entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from crosszone.cost.columns import (
    MXFP8,
    OFFLOAD,
    OLDER_FLASH,
    PATH_BITS,
    RECOMPUTE,
    REFERENCE_RELEASE,
    ROWWISE,
    UNFUSED,
    GpuColumns,
    LinkColumns,
    ModelColumns,
    Numbers,
    StackColumns,
    WorkColumns,
    build_gpu_columns,
)
from crosszone.cost.measured_links import CollectiveTimings, encode_gpu
from crosszone.cost.record import Recorded, as_array, pick, plain
from crosszone.cost.stages import StageLayers, build_stage_layers
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.job import Job, find_compute_path, state_bytes
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.rules import Case
from crosszone.inputs.software import SettledSoftware
from crosszone.inputs.strategy import Communication, Strategy
from crosszone.schedule.orders import SPLITS_WEIGHT_GRAD, V_SHAPED, list_stages_in_order

GRADIENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
# Settings of a stack that are switches, by the names of their columns.
FLAGS = ("p2p_both_ends", "p2p_mask", "partitioned", "zero1_all_reduce")
P2P_WAIT = {"none": 0, "sent": 1, "arrived": 2}
# Bytes of a gradient after compression; scales and indices are not counted.
COMPRESSED_BYTES = {"fp16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5, "1-bit": 0.125}
GATHERED_BYTES = {"int8": 1.0}  # Bytes of a gathered weight after compression
# Collectives of a bucket where it is more than one: what is not a matrix, then both factors, each after the other.
ROUNDS = {"powersgd": 3.0}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Everything a step's cost depends on; arrays have strategies first and stages last."""

    model: ModelColumns
    work: WorkColumns
    gpu: GpuColumns
    stack: StackColumns
    links: LinkColumns
    counts: Numbers
    """Layers of each stage."""
    moe_counts: Numbers | None = None
    """Of these, those with experts; None: as the layers of the stages follow each other."""
    block_counts: tuple[Numbers, Numbers] | None = None
    """Of hybrids: attention blocks and Mamba-2 layers of each stage."""
    pattern: str | None = None
    """Of one hybrid: its blocks in order, to count those of virtual stages."""
    repeats: Numbers = 1.0
    """Equal stages in a row that each of them stands for."""
    measured: CollectiveTimings | None = None
    """Links inside zones as they were timed; None: those of the catalogue."""

    def build_stage_layers(self) -> StageLayers:
        """Dense and MoE layers of each stage."""
        kinds = (self.model.first_dense, self.model.moe_every, self.model.moe_layers)
        v_shaped, stages = self.work.v_shaped, self.work.pp
        counts = (self.repeats, v_shaped, self.moe_counts, stages, self.block_counts)
        return build_stage_layers(self.counts, *kinds, *counts)

    def build_chunk_layers(self, chunks: Numbers) -> StageLayers:
        """The same of virtual stages that hold `chunks` layers each, in pipeline order."""
        counts, m = np.atleast_2d(np.asarray(chunks, dtype=float)), self.model
        moe_counts, block_counts = count_blocks(self.pattern, counts) if self.pattern else (None, None)
        kinds = (m.first_dense, m.moe_every, m.moe_layers)
        return build_stage_layers(counts, *kinds, moe_counts=moe_counts, block_counts=block_counts)


def count_blocks(pattern: str, counts: Numbers) -> tuple[Numbers, tuple[Numbers, Numbers]]:
    """Expert blocks, and attention and Mamba ones, of consecutive parts of a hybrid with so many layers each. [R5]"""
    ends = np.cumsum(np.asarray(counts), axis=-1).astype(np.int64)
    starts = ends - np.asarray(counts).astype(np.int64)
    letters = np.array(list(pattern))

    def count(letter: str) -> Numbers:
        below = np.concatenate([[0.0], np.cumsum(letters == letter)])
        return below[np.minimum(ends, len(letters))] - below[np.minimum(starts, len(letters))]

    return count("E"), (count("*"), count("M"))


# Work at the end of the last virtual stage, in layers, where a model predicts several tokens: its head, and a layer
# and a head for each further token. NVIDIA's layouts of DeepSeek-V3 count so: 61 + 1 + 2 slots, 15 x 4 and 1 on 16.
HEAD_SLOTS, MTP_SLOTS = 1, 2


def count_tail_slots(model: Model) -> int:
    """Layers that the end of a model's last virtual stage counts for when layers are dealt out; 0: only a head."""
    return HEAD_SLOTS + MTP_SLOTS * model.mtp_layers if model.mtp_layers else 0


def split_model_layers(model: Model, chunks: int) -> list[int]:
    """Layers of each virtual stage where the strategy does not say. [R3]"""
    tail = count_tail_slots(model)
    if not tail or chunks == 1 or chunks > model.layers:
        return split_layers(model.layers, chunks)
    counts = split_layers(model.layers + tail, chunks)
    counts[-1] -= tail
    while counts[-1] < 0:  # the tail is worth more than a stage: the longest stages give layers back
        longest = max(range(chunks - 1), key=lambda chunk: counts[chunk])
        counts[longest] -= 1
        counts[-1] += 1
    return counts


def split_layers(layers: int, chunks: int) -> list[int]:
    """Layers dealt out evenly; those left over go to the stages after the first, which holds the embedding. [R3]

    Where `chunks` divides layers + 2 this is the split that counts embedding and head as a layer each.
    """
    base, extra = divmod(layers, chunks)
    first = 1 if extra < chunks - 1 else 0
    return [base + (first <= chunk < first + extra) for chunk in range(chunks)]


def list_virtual_stage_layers(case: Case) -> list[int]:
    """Layers of each virtual stage in pipeline order."""
    s = case.strategy
    return list(s.layers_per_stage or split_model_layers(case.model, s.pp * s.interleave))


def count_moe_layers(model: Model, counts: Sequence[int]) -> list[int]:
    """Layers with experts among consecutive parts of the model that hold so many layers each. [R4]"""
    if model.moe is None:
        return [0] * len(counts)
    if model.pattern is not None:
        blocks: list[int] = count_blocks(model.pattern, counts)[0].astype(int).tolist()
        return blocks
    every, dense = model.moe.every, model.moe.first_dense
    below = [max(0, end - dense) // every for end in np.cumsum([0, *counts]).tolist()]
    moe_layers: list[int] = np.diff(below).tolist()
    return moe_layers


def count_stage_blocks(case: Case) -> tuple[Numbers, Numbers] | None:
    """Attention blocks and Mamba-2 layers of each stage of a hybrid; None: the model is none. [R5]"""
    pattern = case.model.pattern
    if pattern is None:
        return None
    _, (attention, mamba) = count_blocks(pattern, list_virtual_stage_layers(case))
    return tuple(np.array(sum_virtual_stages(case.strategy, counts)) for counts in (attention, mamba))  # type: ignore[return-value]


def count_stage_layers(case: Case) -> list[float]:
    """Layers of each stage, its virtual stages added up."""
    return sum_virtual_stages(case.strategy, list_virtual_stage_layers(case))


def sum_virtual_stages(s: Strategy, of_chunks: Sequence[int]) -> list[float]:
    """A figure of each stage: that of its virtual stages, in pipeline order, added up."""
    held_by = list_stages_in_order(s.pipeline_schedule, s.pp, s.interleave)
    sums: list[float] = np.bincount(held_by, weights=of_chunks, minlength=s.pp).tolist()
    return sums


def build_job_columns(model: Model, job: Job, framework: str, c: Communication) -> dict[str, Numbers]:
    """Columns of work that neither degrees nor placement change: the same for every strategy of a search."""
    states = state_bytes(job, framework=framework)
    path = PATH_BITS[find_compute_path(job)]
    dtype_bytes = 4.0 if path == 32 else 2.0
    return {
        "seq": job.seq_len,
        "global_batch": job.global_batch,
        "path": _tensor_path(job, path),
        "weight_bytes": states.weights,
        "gradient_bytes": states.gradients,
        "optimizer_bytes": states.master + states.moments,
        "bucket_room": compute_bucket_excess_bytes(model, c.bucket_mb, framework, states.gradients),
        "tree": {"auto": 0.0, "ring": -1.0, "tree": 1.0}[c.algorithm],
        "rounds": ROUNDS.get(c.compression, 1.0),
        "dtype_bytes": dtype_bytes,
        "param_comm_bytes": GATHERED_BYTES.get(c.weight_compression, dtype_bytes),
        "overlap": np.nan if c.overlap is None else c.overlap,
    }


def build_work_columns(case: Case, framework: str, *, dp_stride: int, shard_ranks: int) -> WorkColumns:
    """Job and strategy of one placed case; `dp_stride` and `shard_ranks` follow from its placement."""
    s, job, c = case.strategy, case.job, case.strategy.communication
    common = build_job_columns(case.model, job, framework, c)
    return WorkColumns(
        **common,
        tp=s.tp,
        pp=s.pp,
        dp=case.dp,
        cp=s.cp,
        ep=s.ep,
        expert_tp=s.expert_slices,
        micro_batch=s.micro_batch,
        micro_batches=max(1.0, job.global_batch / (s.micro_batch * case.dp)),
        interleave=s.interleave,
        sequence_parallel=float(s.sequence_parallel),
        recompute=RECOMPUTE[s.recompute],
        zero=s.zero or 0,
        shard_ranks=shard_ranks,
        dp_stride=dp_stride,
        grad_comm_bytes=count_grad_comm_bytes(case.model, c, common["gradient_bytes"]),
        overlap_tensor=float(c.overlap_tensor),
        overlap_gradients=float(c.overlap_gradients),
        overlap_parameters=float(c.overlap_parameters),
        bucket_bytes=compute_bucket_bytes(case.model, c.bucket_mb, framework, common["gradient_bytes"], s.tp, case.dp),
        v_shaped=float(s.pipeline_schedule in V_SHAPED),
        # GPipe: all micro-batches in flight; the global batch is never less than their number
        extra_warmup=float(job.global_batch if s.pipeline_schedule == "gpipe" else s.extra_warmup),
        splits_weight_grad=float(s.pipeline_schedule in SPLITS_WEIGHT_GRAD),
        offload=OFFLOAD[s.offload],
    )


def get_bucket_bytes(case: Case, framework: str) -> float:
    """Bytes of gradients that are reduced together: as asked for, else the framework's own; without one, a layer's."""
    s = case.strategy
    gradient_bytes = state_bytes(case.job, framework=framework).gradients
    return float(compute_bucket_bytes(case.model, s.communication.bucket_mb, framework, gradient_bytes, s.tp, case.dp))


def compute_bucket_bytes(
    model: Model, asked_mb: float | None, framework: str, gradient_bytes: float, tp: Numbers, dp: Numbers
) -> Numbers:
    """The same for arrays of degrees; `gradient_bytes`: of one gradient as it is kept."""
    capabilities = load_frameworks()[framework]
    if asked_mb is not None:
        return 1e6 * asked_mb
    if capabilities.bucket_mb is not None:
        return 1e6 * capabilities.bucket_mb
    if capabilities.bucket_parameters_m is None:
        return gradient_bytes * parameters(model).total / model.layers / tp
    # Megatron-LM: max(40M, 1M x dp) parameters, as --ddp-bucket-size says (frameworks.yaml)
    least = capabilities.bucket_parameters_per_rank_m or 0.0
    return 1e6 * gradient_bytes * np.maximum(capabilities.bucket_parameters_m, least * dp)


def compute_bucket_excess_bytes(model: Model, asked_mb: float | None, framework: str, gradient_bytes: float) -> float:
    """Bytes by which a bucket that was asked for is larger than the framework's own, where it is memory of its own."""
    if asked_mb is None or not load_frameworks()[framework].bucket_buffer:
        return 0.0
    return max(0.0, 1e6 * asked_mb - float(compute_bucket_bytes(model, None, framework, gradient_bytes, 1, 1)))


def count_grad_comm_bytes(model: Model, c: Communication, kept_share: float) -> float:
    """Bytes of a gradient on the wire: its type, and what compression leaves of it. [V4]

    PowerSGD sends r (rows + columns) values of a matrix; the model's square matrices stand for all.
    """
    uncompressed = GRADIENT_BYTES[c.gradient_dtype] if c.gradient_dtype else kept_share
    if c.compression == "powersgd":
        return min(uncompressed, uncompressed * 2.0 * (c.compression_rank or 1) / model.hidden)
    return min(uncompressed, COMPRESSED_BYTES.get(c.compression, uncompressed))


def _tensor_path(job: Job, path: int) -> int:
    """The tensor path with its scales: blocks and rows cost time of their own."""
    if path != PATH_BITS["fp8"]:
        return path
    if job.precision == "mxfp8" or job.fp8_recipe == "blockwise":
        return MXFP8
    return ROWWISE if job.fp8_recipe == "rowwise" else path


def build_group_columns(group: NodeGroup, path: str, nodes: int) -> GpuColumns:
    """The GPUs of a node group with their links."""
    link = group.gpu.link.gb_per_s if group.fast_link and group.gpu.link else group.gpu.pcie.gb_per_s
    nic = group.network_gbps_node / group.gpus / 8.0
    return build_gpu_columns(
        group.gpu,
        path,
        link_bytes_per_s=1e9 * link,
        domain=group.local_gpus,
        fast_gpus=group.domain,
        node_gpus=group.gpus,
        nic_bytes_per_s=1e9 * nic,
        nodes=nodes,
        code=encode_gpu(group.gpu.name),
    )


GRAPHS = {"partial-graph": 1.0, "full-graph": 2.0}
CONTEXT_KINDS = {"ring": 0.0, "all-to-all": 1.0, "all-gather": 2.0}
# Modules that selective recomputation may name, by the column that says so.
RECOMPUTE_COLUMNS = {
    "core_attn": "recompute_core",
    "mla_up_proj": "recompute_mla_up",
    "mlp": "recompute_mlp",
    "shared_experts": "recompute_mlp",
    "moe": "recompute_moe",
    "moe_act": "recompute_act",
    "layernorm": "recompute_norm",
}


def build_stack_columns(settings: Mapping[str, Any], software: SettledSoftware) -> StackColumns:
    """A stack's habits and the switches of its software as numbers."""
    modules = software["recompute_modules"]
    return StackColumns(
        unfused=UNFUSED.get(software["attention"], 0.0),
        older_flash=OLDER_FLASH.get(software["attention"], 0.0),
        launch_added=float(software["launch"] == "blocking"),
        compiled=float(software["launch"] == "compiled"),
        graphs=GRAPHS.get(software["launch"], 0.0),
        fused_dispatch=float(software["dispatcher"] in ("deepep", "hybridep")),
        expert_overlap=float(software["expert_overlap"]),
        context_kind=CONTEXT_KINDS[software["context_exchange"]],
        attention_fp8=float(software["attention_precision"] == "fp8"),
        by_module=float(modules is not None),
        **{column: 1.0 for module in modules or () if (column := RECOMPUTE_COLUMNS[module])},
        release=software.release - REFERENCE_RELEASE,
        p2p_scatter=float(settings.get("p2p_scatter", False)),
        p2p_wait=float(P2P_WAIT[settings.get("p2p_wait", "none")]),
        **{name: float(settings.get(name, False)) for name in FLAGS},
    )


def join_batches(batches: Sequence[Batch]) -> Batch:
    """The rows of several batches as one; shorter pipelines are padded with stages that hold no layer."""
    stages = max(np.shape(batch.counts)[-1] for batch in batches)

    def join(values: Sequence[Any], *, padding: float | None = None) -> Numbers:
        """[rows, 1], or [rows, stages] where stages differ; `padding`: of absent stages, else as the last one."""
        tables = [
            np.broadcast_to(v, (len(b.counts), (1, *np.shape(v))[-1])) for v, b in zip(values, batches, strict=True)
        ]
        if padding is None and all(table.shape[1] == 1 for table in tables):
            return np.concatenate(tables)
        absent = [(len(table), stages - table.shape[1]) for table in tables]
        # absent stages hold no layer, so that their figures count for nothing, but they are worked with all the same
        last = [table[:, -1:] if padding is None else padding for table in tables]
        wide = [np.hstack([t, np.broadcast_to(x, shape)]) for t, x, shape in zip(tables, last, absent, strict=True)]
        return np.concatenate(wide)

    def join_columns(name: str) -> Any:
        columns = [getattr(batch, name) for batch in batches]
        return type(columns[0])(**{f.name: join([getattr(c, f.name) for c in columns]) for f in fields(columns[0])})

    def join_blocks() -> tuple[Numbers, Numbers]:
        pairs = [batch.block_counts or (np.zeros((1, 1)), np.zeros((1, 1))) for batch in batches]
        attention, mamba = zip(*pairs, strict=True)
        return join(attention, padding=0.0), join(mamba, padding=0.0)

    return Batch(
        **{name: join_columns(name) for name in ("model", "work", "gpu", "stack", "links")},
        counts=join([batch.counts for batch in batches], padding=0.0),
        moe_counts=join([batch.moe_counts for batch in batches], padding=0.0),
        block_counts=join_blocks() if any(batch.block_counts is not None for batch in batches) else None,
    )


def get_scalar(value: Any) -> Any:
    """A plain number as a float; a recorded one is returned unchanged."""
    return value if isinstance(value, Recorded) else float(value)


def get_cell(values: Any, row: int, stage: Any) -> Any:
    """One entry; `stage` may be recorded (`place_of_largest`)."""
    if not np.ndim(values):
        return get_scalar(values)
    if isinstance(stage, Recorded):
        entries = select_row(values, row)
        return pick(stage, list(entries)) if len(entries) > 1 else get_scalar(entries[0])
    rows, stages = values.shape
    return get_scalar(values[row if rows > 1 else 0, stage if stages > 1 else 0])


def select_row(values: Any, row: int) -> Any:
    """One row, as an array of stages."""
    array = np.atleast_2d(as_array(values))
    return array[row if len(array) > 1 else 0]


def find_largest(values: Any, row: int) -> Any:
    """The largest entry of one row."""
    return get_scalar(np.max(select_row(values, row)))


def place_of_largest(values: Any) -> Any:
    """Where the largest is: a number, or recorded where inputs that may change decide it."""
    if isinstance(values, Recorded) and values.tape.all_branches and len(values) > 1:
        recorded: Any = values
        return np.argmax(recorded)
    return int(np.argmax(plain(values)))
