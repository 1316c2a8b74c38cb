"""Rows of jobs timed part by part, and of their iterations, for tests."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

ROW = {
    "run_id": "one",
    "cluster": "perlmutter",
    "gpu": "A100-SXM4-80GB",
    "gpus_per_node": "4",
    "gpus": "128",
    "model": "GPT_20B",
    "n_layers": "44",
    "hidden": "6144",
    "heads": "64",
    "ffn_hidden": "24576",
    "activation": "gelu",
    "norm": "layernorm",
    "parallel_residual": "True",
    "attention": "unfused_causal_softmax",
    "tied_embeddings": "False",
    "seq": "2048",
    "vocab": "50257",
    "vocab_padded": "50688",
    "precision": "fp16",
    "zero_stage": "1",
    "recompute": "full_per_layer",
    "partition_activations": "False",
    "pp": "4",
    "mp": "4",
    "dp": "8",
    "micro_batch": "4",
    "n_micro": "16",
    "global_batch": "512",
    "layers_first": "11",
    "layers_middle": "12",
    "layers_last": "9",
    "iter_best_s": "17.0",
    "layer_fwd_first_us": "13000.0",
    "layer_fwd_middle_us": "12000.0",
    "layer_fwd_last_us": "11000.0",
    "p2p_send_first_us": "12000.0",
    "p2p_send_middle_us": "10000.0",
    "update_first_us": "5.0",
    "update_raw_first_us": "2000000.0",
}
"""A job on 128 GPUs, as a row of a CSV file."""
TIMED = {
    "stage_fwd_first_us": "100000",
    "stage_fwd_middle_us": "200000",
    "stage_fwd_last_us": "50000",
    "stage_bwd_first_us": "300000",
    "stage_bwd_middle_us": "600000",
    "stage_bwd_last_us": "100000",
    "mp_allreduce_first_us": "9000",
    "mp_allreduce_middle_us": "1000",
    "mp_allreduce_last_us": "1000",
    "p2p_send_first_us": "30000",
    "p2p_send_middle_us": "10000",
    "dp_allreduce_first_us": "2000000",
    "dp_allgather_first_us": "1000000",
    "update_raw_first_us": "1500000",
    "iter_best_s": "20",
}
"""What all its parts took."""


def written(path: Path, *rows: Mapping[str, str]) -> Path:
    """A CSV file of such jobs, each with some cells changed."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys((*ROW, *TIMED))))
        writer.writeheader()
        writer.writerows({**ROW, **row} for row in rows)
    return path


def iterations(folder: Path, *lines: str) -> Path:
    """A CSV file of iterations."""
    path = folder / "iterations.csv"
    path.write_text("run_id,iteration,iter_time_s,elapsed_s,kind\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path
