"""A valid settings.json for two ranks in two zones, to be changed: settings(model={"layers": 4}, job={...})."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

MODEL = {
    "name": "example",
    "kind": "decoder",
    "layers": 4,
    "hidden": 128,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 16,
    "ffn_hidden": 384,
    "vocab": 1000,
    "vocab_padded_to": None,
    "max_seq_len": 256,
    "activation": "swiglu",
    "positions": "rotary",
    "norm": "rmsnorm",
    "norms_per_layer": 2,
    "final_norm": True,
    "embedding_norm": False,
    "qk_norm": "none",
    "bias": [],
    "tied_embeddings": False,
    "embedding_width": 128,
    "mla": None,
    "window": None,
    "moe": None,
    "attention_sinks": False,
    "parallel_residual": False,
    "token_types": 0,
    "pooler": False,
    "mlm_head": False,
}
COMMUNICATION = {
    "overlap_gradients": True,
    "overlap_parameters": True,
    "overlap_tensor": False,
    "overlap": None,
    "gradient_dtype": None,
    "compression": "none",
    "compression_rank": None,
    "weight_compression": "none",
    "algorithm": "auto",
    "reduce": "hierarchical",
    "bucket_mb": None,
    "flows": 1,
    "congestion": "cubic",
    "socket_buffer_mb": None,
}
STRATEGY = {
    "tp": 1,
    "pp": 1,
    "dp": 2,
    "cp": 1,
    "ep": 1,
    "micro_batch": 2,
    "micro_batches": 2,
    "replica_micro_batches": [2, 2],
    "interleave": 1,
    "schedule": "1f1b",
    "chunk_layers": [4],
    "zero": 0,
    "shard_within": "all",
    "shard_ranks": 1,
    "sequence_parallel": False,
    "recompute": "none",
    "offload": "none",
    "communication": COMMUNICATION,
    "local_update": None,
}
SETTINGS = {
    "version": 1,
    "name": "two zones",
    "framework": "ddp",
    "zones": ["beijing-a", "shanghai-a"],
    "model": MODEL,
    "job": {"seq_len": 128, "global_batch": 8, "steps": 1000, "precision": "fp32", "optimizer": "adamw"},
    "training": {
        "lr": 3e-4,
        "min_lr": 3e-5,
        "warmup_steps": 100,
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "clip": 1.0,
        "seed": 1234,
        "checkpoint_every": 500,
        "keep": 2,
        "metrics_mib": 16,
        "outer_lr": 0.7,
        "outer_momentum": 0.9,
        "mask_share": 0.15,
    },
    "data": {"path": None, "tokenizer": None, "init_from": None},
    "strategy": STRATEGY,
    "order": ["tp", "cp", "dp", "pp"],
    "zone_of_rank": [0, 1],
    "node_of_rank": [0, 1],
    "timeout_minutes": 10,
    "predicted": {
        "step_s": {"low": 1.0, "expected": 2.0, "high": 3.0},
        "tokens_per_s": 512.0,
        "memory_gib": {"low": 1.0, "expected": 1.0, "high": 1.0},
    },
}


def settings(**changes: Any) -> dict[str, Any]:
    """The example with some values changed; a dict goes into the one that is there, key by key."""
    return _merged(copy.deepcopy(SETTINGS), changes)


def write_settings(folder: Path, **changes: Any) -> Path:
    """The same as a file in a folder."""
    path = folder / "settings.json"
    path.write_text(json.dumps(settings(**changes)), encoding="utf-8")
    return path


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        inner = base.get(key)
        base[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return base
