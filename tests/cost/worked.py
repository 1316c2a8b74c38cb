"""Columns with round numbers, for costs that can be worked out on paper.

A GPU of 1000 FLOP/s, 100 bytes/s of memory, 10 bytes/s of fast link among 8 and 1 byte/s of network; a model of four
layers, 8 wide, two heads of 4, MLP 16, 64 words; one micro-batch of one sample of 16 tokens. Coefficients are neutral
(shares 1, extras 0), so that a test turns on what it looks at.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.columns import GpuColumns, LinkColumns, ModelColumns, StackColumns, WorkColumns
from crosszone.cost.layer import LayerCost

MODEL = {
    "layers": 4, "moe_layers": 0, "first_dense": 0, "moe_every": 1, "hidden": 8, "heads": 2, "kv_heads": 2, "qk_dim": 4,
    "v_dim": 4, "latent": 0, "q_rank": 0, "kv_rank": 0, "rope_dim": 0, "ffn": 16, "matrices": 2, "experts": 0, "top_k": 0,
    "expert_ffn": 0, "shared_ffn": 0, "vocab": 64, "tied": 0, "causal": 1, "window": np.inf, "full_share": 1,
    "parallel_residual": 0, "written": 0, "sinks": 0, "attention_params": 256, "mlp_params": 256, "expert_params": 0,
    "shared_params": 0, "embedding_params": 512, "head_params": 512,
}  # fmt: skip
EXPERTS = {"moe_layers": 4, "experts": 4, "top_k": 2, "expert_ffn": 16, "expert_params": 256, "shared_params": 32}
WORK = {
    "seq": 16, "global_batch": 1, "interleave": 1, "sequence_parallel": 0, "recompute": 0, "zero": 0, "path": 16,
    "weight_bytes": 2, "gradient_bytes": 2, "grad_comm_bytes": 2, "optimizer_bytes": 12, "overlap_tensor": 0,
    "overlap_gradients": 0, "overlap_parameters": 0, "overlap": np.nan,
}  # fmt: skip
GPU = {
    "flops_16": 1000, "flops_path": 1000, "memory_bytes_per_s": 100, "link_bytes_per_s": 10, "domain": 8, "node_gpus": 8,
    "pcie_bytes_per_s": 32e9,
    "nic_bytes_per_s": 1, "nodes": 1,
}  # fmt: skip
NONE = (
    "tile", "elementwise", "cast", "head_traffic", "optimizer_traffic", "host_s", "collective_host_s", "tp_message_s",
    "nic_spread", "p2p_message_s", "shard_message_s", "dp_contention", "fsdp_contention", "permute", "moe_s",
    "release_decay", "cp_exposed", "step_s", "jitter", "selective_share", "flash_width", "flash_ramp", "written_out",
    "grouped_ramp", "mla_launch", "moe_launch", "cast_launch", "pipeline_host_s", "tp_node_s", "skew",
)  # fmt: skip


def model(**given: Any) -> ModelColumns:
    return ModelColumns(**(MODEL | given))


def work(**given: Any) -> WorkColumns:
    ones = {f.name: 1.0 if f.default is MISSING else f.default for f in fields(WorkColumns)}
    chosen = ones | WORK | given
    chosen.setdefault("shard_ranks", 1.0)
    if "shard_ranks" not in given:
        chosen["shard_ranks"] = chosen["dp"]
    if "dp_stride" not in given:
        chosen["dp_stride"] = chosen["tp"]
    return WorkColumns(**chosen)


def gpu(**given: Any) -> GpuColumns:
    return GpuColumns(**(GPU | given))


def stack(**given: Any) -> StackColumns:
    return StackColumns(**(dict.fromkeys((f.name for f in fields(StackColumns)), 0.0) | given))


def neutral(**given: Any) -> Coefficients:
    """Every share 1, every extra 0, the fused attention's backward pass twice its forward pass.

    Heads of 4 are padded to 32: a share of 8 makes up for that, so attention runs at 1000 FLOP/s too.
    """
    ones = dict.fromkeys((f.name for f in fields(Coefficients)), 1.0)
    return Coefficients(**(ones | dict.fromkeys(NONE, 0.0) | {"flash_backward": 2.0, "flash": 8.0} | given))


def cost(
    m: ModelColumns | None = None,
    w: WorkColumns | None = None,
    g: GpuColumns | None = None,
    s: StackColumns | None = None,
    **coefficients: Any,
) -> LayerCost:
    return LayerCost(m or model(), w or work(), g or gpu(), s or stack(), neutral(**coefficients))


def links(**given: Any) -> LinkColumns:
    return LinkColumns(**given)
