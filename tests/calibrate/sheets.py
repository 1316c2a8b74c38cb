"""Scenarios and small workbooks for the tests of sheets."""

from __future__ import annotations

import io
from typing import Any

from openpyxl import Workbook, load_workbook
from openpyxl.workbook.defined_name import DefinedName

from crosszone.inputs.scenario import Loaded, read_scenario

JOB = {"seq_len": 4096, "global_batch": 64, "framework": "megatron"}


def loaded(model: str, job: dict[str, Any], nodes: dict[str, Any], strategy: dict[str, Any]) -> Loaded:
    cluster = {"zones": [{"name": "a", "nodes": [nodes]}]}
    return read_scenario({"name": "t", "model": model, "job": JOB | job, "cluster": cluster, "strategy": strategy})


H100 = {"count": 4, "gpus": 8, "gpu": "h100-80gb-sxm", "nic_gbps_per_gpu": 400.0}
CASES = {
    "sharded weights, no pipeline": lambda: loaded(
        "llama-2-7b",
        {"framework": "fsdp", "tokens": 2.0e10},
        {"count": 1, "gpus": 8, "gpu": "a100-80gb-sxm"},
        {"micro_batch": 2, "zero": 3},
    ),
    "tensor and pipeline parallel": lambda: loaded(
        "llama-2-70b",
        {},
        H100,
        {"tp": 8, "pp": 4, "dp": 1, "micro_batch": 4, "sequence_parallel": True, "recompute": "selective"},
    ),
    "experts": lambda: loaded(
        "mixtral-8x7b",
        {"stack": "megatron-core@26.02"},
        H100,
        {
            "tp": 2,
            "pp": 2,
            "dp": 8,
            "ep": 8,
            "micro_batch": 1,
            "sequence_parallel": True,
            "recompute": "full",
            "zero": 1,
        },
    ),
    "latent attention, fp8, stages of different length": lambda: loaded(
        "deepseek-v2-lite",
        {"precision": "fp8", "global_batch": 16},
        H100,
        {"pp": 3, "dp": 8, "ep": 8, "micro_batch": 1, "zero": 1, "layers_per_stage": [8, 11, 8]},
    ),
    "old kernels over few micro-batches": lambda: loaded(
        "gpt-3-6.7b",
        {"stack": "megatron-lm-2021", "precision": "fp16", "global_batch": 2, "seq_len": 2048},
        {"count": 1, "gpus": 8, "gpu": "a100-80gb-sxm"},
        {"tp": 2, "pp": 4, "dp": 1, "micro_batch": 1, "recompute": "full"},
    ),
    "offloaded states": lambda: loaded(
        "llama-2-13b",
        {"framework": "deepspeed", "precision": "fp16", "seq_len": 2048},
        {"count": 2, "gpus": 8, "gpu": "v100-32gb-sxm", "nic_gbps": 100.0},
        {"micro_batch": 1, "recompute": "full", "zero": 3, "offload": "optimizer"},
    ),
}


def edited(data: bytes, changes: dict[str, Any]) -> bytes:
    """The workbook with other values or formulas in named cells."""
    book = load_workbook(io.BytesIO(data))
    for name, value in changes.items():
        sheet, _, cell = book.defined_names[name].attr_text.rpartition("!")
        book[sheet.strip("'")][cell.replace("$", "")] = value
    return _saved(book)


def without(data: bytes, name: str) -> bytes:
    """The workbook without one of its names."""
    book = load_workbook(io.BytesIO(data))
    del book.defined_names[name]
    return _saved(book)


PHASES = {
    "out_warm_up_s": 1.0,
    "out_forward_s": 1.0,
    "out_backward_s": 2.0,
    "out_steady_s": "=out_micro_batches*(out_forward_s+out_backward_s)",
    "out_cool_down_s": 2.0,
    "out_all_reduce_s": 0.5,
    "out_optimizer_s": 0.25,
    "out_weights_s": 0,
    "out_other_s": 0.25,
    "out_iteration_s": "=out_warm_up_s+out_steady_s+out_cool_down_s+out_all_reduce_s+out_optimizer_s+out_other_s",
    "out_micro_batches": 4,
}
"""A workbook of nothing but its answer: 1 + 4 x 3 + 2 + 1 = 16 s."""


def small(**changes: Any) -> bytes:
    """That workbook with some cells changed, or others added; None: left out."""
    book = Workbook()
    sheet = book.active
    sheet.title = "Output"
    for row, (name, value) in enumerate((PHASES | changes).items(), 1):
        if value is None:
            continue
        sheet.cell(row, 2, value)
        book.defined_names[name] = DefinedName(name, attr_text=f"Output!$B${row}")
    return _saved(book)


def _saved(book: Workbook) -> bytes:
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()
