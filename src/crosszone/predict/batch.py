"""Batch: a case (or many) as the columns that the cost formulas read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crosszone.cost.columns import (
    MXFP8,
    OFFLOAD,
    PATH_BITS,
    RECOMPUTE,
    ROWWISE,
    GpuColumns,
    LinkColumns,
    ModelColumns,
    Numbers,
    StackColumns,
    WorkColumns,
    gpu_columns,
    model_columns,
    stacked,
)
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.geography import routes
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.rules import Case
from crosszone.inputs.states import compute_precision, state_bytes
from crosszone.inputs.strategy import Communication, Strategy
from crosszone.schedule.orders import SPLIT, V_SHAPED, stages_in_order

GRADIENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
P2P_WAIT = {"none": 0, "sent": 1, "arrived": 2}
COMPRESSED_BYTES = {"fp16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5, "1-bit": 0.125}
"""Bytes of a gradient after compression; scales and indices are not counted."""
GATHERED_BYTES = {"int8": 1.0}
"""Bytes of a gathered weight after compression."""
ROUNDS = {"powersgd": 3.0}
"""Collectives of a bucket where it is more than one: what is not a matrix, then both factors, each after the other."""


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
    sparse: Numbers | None = None
    """Of these, those with experts; None: as the layers of the stages follow each other."""
    repeats: Numbers = 1.0
    """Equal stages in a row that each of them stands for."""


def layer_counts(layers: int, chunks: int) -> list[int]:
    """Layers dealt out evenly; those left over go to the stages after the first, which holds the embedding. [R3]"""
    base, extra = divmod(layers, chunks)
    first = 1 if extra < chunks - 1 else 0
    return [base + (first <= chunk < first + extra) for chunk in range(chunks)]


def chunk_layers(case: Case) -> list[int]:
    """Layers of each stage and chunk in pipeline order."""
    s = case.strategy
    return list(s.layers_per_stage or layer_counts(case.model.layers, s.pp * s.interleave))


def sparse_layers(model: Model, counts: Sequence[int]) -> list[int]:
    """Layers with experts among consecutive parts of the model that hold so many layers each. [R4]"""
    if model.moe is None:
        return [0] * len(counts)
    every, dense = model.moe.every, model.moe.first_dense
    below = [max(0, end - dense) // every for end in np.cumsum([0, *counts]).tolist()]
    found: list[int] = np.diff(below).tolist()
    return found


def stage_counts(case: Case) -> list[float]:
    """Layers of each stage, its chunks added up."""
    return stage_sums(case.strategy, chunk_layers(case))


def stage_sums(s: Strategy, of_chunks: Sequence[int]) -> list[float]:
    """A figure of each stage, that of its chunks, in pipeline order, added up."""
    held_by = stages_in_order(s.pipeline_schedule, s.pp, s.interleave)
    found: list[float] = np.bincount(held_by, weights=of_chunks, minlength=s.pp).tolist()
    return found


def work_columns(
    case: Case,
    framework: str,
    facts: Mapping[str, Any],
    dp_stride: int | None = None,
    shard_ranks: int | None = None,
) -> WorkColumns:
    """Job and strategy of one case; `dp_stride` and `shard_ranks`: as placed, where that is known."""
    s, job = case.strategy, case.job
    dp, zero = s.dp or 1, s.zero or 0
    states = state_bytes(job, framework=framework)
    path = PATH_BITS[compute_precision(job)]
    wire, word = wire_bytes(case, states.gradients), 4.0 if path == 32 else 2.0
    shard = facts.get("shard_group") or shard_ranks or _shard_ranks(case, dp)
    return WorkColumns(
        seq=job.seq_len,
        global_batch=job.global_batch,
        tp=s.tp,
        pp=s.pp,
        dp=dp,
        cp=s.cp,
        ep=s.ep,
        expert_tp=facts.get("expert_tp") or (1 if s.ep > 1 else s.tp),
        micro_batch=s.micro_batch,
        micro_batches=max(1.0, job.global_batch / (s.micro_batch * dp)),
        interleave=s.interleave,
        sequence_parallel=float(s.sequence_parallel),
        recompute=RECOMPUTE[s.recompute],
        zero=zero,
        shard_ranks=min(dp, shard),
        dp_stride=s.tp if dp_stride is None else dp_stride,
        path=_path(case, facts, path),
        weight_bytes=states.weights,
        gradient_bytes=states.gradients,
        wire_bytes=wire,
        optimizer_bytes=states.master + states.moments,
        overlap_tensor=float(s.communication.overlap_tensor),
        overlap_gradients=float(s.communication.overlap_gradients),
        overlap_parameters=float(s.communication.overlap_parameters),
        bucket_bytes=bucket_bytes(case, framework),
        bucket_room=bucket_room(case.model, s.communication.bucket_mb, framework, states.gradients),
        tree={"auto": 0.0, "ring": -1.0, "tree": 1.0}[s.communication.algorithm],
        rounds=ROUNDS.get(s.communication.compression, 1.0),
        word=word,
        gathered=GATHERED_BYTES.get(s.communication.weight_compression, word),
        folded=float(s.pipeline_schedule in V_SHAPED),
        ahead=float(job.global_batch if s.pipeline_schedule == "gpipe" else s.extra_warmup),
        split=float(s.pipeline_schedule in SPLIT),
        offload=OFFLOAD[s.offload],
        overlap=np.nan if s.communication.overlap is None else s.communication.overlap,
    )


def bucket_bytes(case: Case, framework: str) -> float:
    """Bytes of gradients that are reduced together: as asked for, else the framework's own; without one, a layer's."""
    s = case.strategy
    kept = state_bytes(case.job, framework=framework).gradients
    return float(buckets(case.model, s.communication.bucket_mb, framework, kept, s.tp, s.dp or 1))


def buckets(
    model: Model, asked_mb: float | None, framework: str, gradient_bytes: float, tp: Numbers, dp: Numbers
) -> Numbers:
    """The same for arrays of degrees; `gradient_bytes`: of one gradient as it is kept."""
    known = frameworks()[framework]
    if asked_mb is not None:
        return 1e6 * asked_mb
    if known.bucket_mb is not None:
        return 1e6 * known.bucket_mb
    if known.bucket_parameters_m is None:
        return gradient_bytes * parameters(model).total / model.layers / tp
    least = known.bucket_parameters_per_rank_m or 0.0
    return 1e6 * gradient_bytes * np.maximum(known.bucket_parameters_m, least * dp)


def bucket_room(model: Model, asked_mb: float | None, framework: str, gradient_bytes: float) -> float:
    """Bytes by which a bucket that was asked for is larger than the framework's own, where it is memory of its own."""
    if asked_mb is None or not frameworks()[framework].bucket_buffer:
        return 0.0
    return max(0.0, 1e6 * asked_mb - float(buckets(model, None, framework, gradient_bytes, 1, 1)))


def wire_bytes(case: Case, kept: float) -> float:
    """Bytes of a gradient on the wire."""
    return gradient_wire_bytes(case.model, case.strategy.communication, kept)


def gradient_wire_bytes(model: Model, c: Communication, kept: float) -> float:
    """Bytes of a gradient on the wire: its type, and what compression leaves of it. [V4]

    PowerSGD sends r (rows + columns) values of a matrix; the model's square matrices stand for all.
    """
    plain = GRADIENT_BYTES[c.gradient_dtype] if c.gradient_dtype else kept
    if c.compression == "powersgd":
        return min(plain, plain * 2.0 * (c.compression_rank or 1) / model.hidden)
    return min(plain, COMPRESSED_BYTES.get(c.compression, plain))


def _shard_ranks(case: Case, dp: int) -> int:
    """Replicas that share one set of states: all, or those of a zone or node (HSDP), all of which are in use."""
    s = case.strategy
    if s.shard_within == "zone":
        return max(1, dp // len(case.cluster.zones))
    if s.shard_within == "node":
        return max(1, min(group.gpus for _, group in case.cluster.groups()) // (s.tp * s.cp))
    return dp


def _path(case: Case, facts: Mapping[str, Any], path: int) -> int:
    if path != 8:
        return path
    recipe = facts.get("fp8_recipe")
    if case.job.precision == "mxfp8" or recipe == "blockwise":
        return MXFP8
    return ROWWISE if recipe == "rowwise" else path


def group_columns(group: NodeGroup, path: str, nodes: int) -> GpuColumns:
    """The GPUs of a node group with their links."""
    link = group.gpu.link.gb_per_s if group.fast_link and group.gpu.link else group.gpu.pcie.gb_per_s
    nic = (group.nic_gbps_node or float(routes()["example_nic_gbps"])) / group.gpus / 8.0
    return gpu_columns(
        group.gpu,
        path,
        link_bytes_per_s=1e9 * link,
        domain=group.local_gpus,
        fast_gpus=group.domain,
        node_gpus=group.gpus,
        nic_bytes_per_s=1e9 * nic,
        nodes=nodes,
    )


def stack_columns(settings: Mapping[str, Any], age: float) -> StackColumns:
    """A stack's switches as numbers."""
    return StackColumns(
        unfused=2.0 if settings.get("unfused") == "plain" else float(settings.get("unfused", False)),
        triton=float(settings.get("triton", False)),
        launch_added=float(settings.get("launch_added", False)),
        p2p_scatter=float(settings.get("p2p_scatter", False)),
        p2p_wait=float(P2P_WAIT[settings.get("p2p_wait", "none")]),
        release=age,
        graphed=float("graphed_from" in settings and age >= settings["graphed_from"] - settings["release_base"]),
    )


def batch_of(cases: Sequence[tuple[Case, str, Mapping[str, Any], Mapping[str, Any], float]]) -> Batch:
    """Cases with framework, facts, settings of their stack and its age, stacked into arrays."""
    models, works, gpus, stacks, counts = [], [], [], [], []
    for case, framework, facts, settings, age in cases:
        multiple = frameworks()[framework].vocab_multiple
        models.append(model_columns(case.model, vocab_multiple=multiple, tp=case.strategy.tp))
        works.append(work_columns(case, framework, facts))
        group = case.cluster.zones[0].nodes[0]
        columns = group_columns(group, compute_precision(case.job), group.count)
        link = columns.link_bytes_per_s * float(facts.get("link_share", 1.0))
        gpus.append(replace(columns, link_bytes_per_s=link))
        stacks.append(stack_columns(settings, age))
        counts.append(stage_counts(case))
    widest = max(len(c) for c in counts)
    padded = np.zeros((len(counts), widest))
    for row, c in enumerate(counts):
        padded[row, : len(c)] = c
    work, gpu = stacked(works), stacked(gpus)
    inside = work.tp * work.cp * work.dp * work.pp <= gpu.domain
    links = LinkColumns(boundary_fast=inside.astype(float))
    return Batch(model=stacked(models), work=work, gpu=gpu, stack=stacked(stacks), links=links, counts=padded)
