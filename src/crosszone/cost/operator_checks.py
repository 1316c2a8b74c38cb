"""Errors of the step's own formulas on kernels timed alone: what stands beside a prediction.

    tables = load_operator_profile("a100-80gb-sxm").checks
    compute_formula_errors(tables, gpu, coefficients)["attention"].error_pct

Each table holds measured shapes of one operator. Its formula is the one that a layer's cost calls
(`cost/layer.py`), with the coefficients of the prediction; the sampled fits of `operator_profile` are another model
and have no part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np
from pydantic import model_validator

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.columns import OLDER_FLASH
from crosszone.cost.layer import (
    BACKWARD_SCORE_BYTES,
    FORWARD_SCORE_BYTES,
    flash_attention_s,
    flash_share,
    grouped_share,
    matmul_s,
    traffic_s,
    unfused_attention_s,
)
from crosszone.cost.operator_forms import DTYPE_BYTES, Floats
from crosszone.inputs.flops import tokens_seen
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.value import Count, Name, NotNegative, Positive, Value, find_nearest_names, refuse

# Operators that the step has a formula for, with the sizes it reads. Norms and other elementwise operators have
# none: a layer counts their traffic together.
FORMULA_DIMS: dict[str, tuple[str, ...]] = {
    "matmul": ("m", "n", "k"),
    "grouped_matmul": ("groups", "m", "n", "k"),
    "attention": ("batch", "heads", "head_dim", "seq"),
    "unfused_attention": ("batch", "seq", "head_dim"),
    "cross_entropy": ("tokens", "vocab"),
    "copy": ("bytes",),
}
# What errors are summed up as.
FORMULA_FAMILIES = {
    "matmul": "matmul",
    "grouped_matmul": "grouped matmul",
    "attention": "attention",
    "unfused_attention": "unfused attention",
    "cross_entropy": "loss",
    "copy": "copy",
}
# A step counts the backward pass of a matmul as two forward ones. [O7]
MATMULS = {"fwd": 1.0, "dgrad": 1.0, "wgrad": 1.0, "bwd": 2.0}
LOSS_SHARE = {"fwd": 1.0 / 3.0, "bwd": 2.0 / 3.0}  # Of the loss's traffic. [O9]
FORMULA_PASSES = {
    "matmul": tuple(MATMULS),
    "grouped_matmul": tuple(MATMULS),
    "attention": ("fwd", "bwd"),
    "unfused_attention": ("fwd", "bwd"),
    "cross_entropy": ("fwd", "bwd"),
    "copy": ("step",),
}


class CheckTable(Value):
    """Measured shapes of one operator in one precision, all passes of a shape together."""

    op: Name
    """Operator (`FORMULA_DIMS`)."""
    dtype: Name
    """Precision of the kernels."""
    passes: tuple[Name, ...]
    """Passes whose times are added up."""
    shapes: Count
    """Measured shapes that these were taken from."""
    sizes: dict[Name, tuple[Positive, ...]]
    """Each size of every shape."""
    time_us: tuple[Positive, ...]
    """Measured time of every shape."""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        """Names are known, and every column has an entry for each shape."""
        passes = FORMULA_PASSES.get(self.op, ())
        for name, name_in_table, allowed in (
            ("op", self.op, tuple(FORMULA_DIMS)),
            ("dtype", self.dtype, tuple(DTYPE_BYTES)),
            *(("passes", pass_name, passes) for pass_name in self.passes),
        ):
            if name_in_table not in allowed:
                raise refuse(
                    "not_one_of",
                    name_in_table,
                    at=(name,),
                    allowed=allowed,
                    nearest=find_nearest_names(name_in_table, allowed)[:1],
                )
        for name in FORMULA_DIMS[self.op]:
            if len(self.sizes.get(name, ())) != len(self.time_us):
                raise refuse("missing_key", at=("sizes", name), key=name)
        return self


class OperatorError(Value):
    """How far off the step's formula of a family of operators is on kernels timed alone on this GPU."""

    error_pct: NotNegative
    """Mean of |formula / measured - 1| over the shapes."""
    unseen_pct: NotNegative | None = None
    """Null: the formula's few coefficients are not fitted shape by shape, so that no shape is unseen."""
    samples: Count
    """Measured shapes behind it."""


def formula_s(
    op: str,
    passes: Iterable[str],
    sizes: Mapping[str, Floats],
    dtype: str,
    gpu: Gpu,
    k: Coefficients,
    *,
    kernel: str = "flash",
) -> Floats:
    """Seconds that a step counts for some passes of an operator. [K64]

    `kernel`: that of attention, as `job.software.attention` names it. Rates are those of `LayerCost`.
    """
    s = {name: np.asarray(size, dtype=float) for name, size in sizes.items()}
    peak = 1e12 * (gpu.peak("bf16") or gpu.peak("fp16") or 0.0)
    memory = 1e9 * gpu.memory_gb_per_s
    memory_rate = k.memory * memory
    if op in ("matmul", "grouped_matmul"):
        rate = k.matmul_fp8 * 1e12 * (gpu.peak("fp8") or 0.0) if dtype == "fp8" else k.matmul * peak
        copies: Floats | float = 1.0
        if op == "grouped_matmul":
            copies = s["groups"]
            rate = rate * grouped_share(s["m"] / copies, k.grouped, k.grouped_ramp)
        matmul = matmul_s(s["m"], s["k"], s["n"], rate, k.tile / memory, copies)
        return np.asarray(sum(MATMULS[name] for name in passes) * matmul)
    if op == "attention":
        share = flash_share(s["head_dim"], s["seq"], k.flash_width, k.flash_ramp)
        keys_per_query = tokens_seen(s["seq"], None, causal=1.0)  # samplers time causal attention
        older = OLDER_FLASH.get(kernel, 0.0)
        kernel_share = (k.older_flash if older > 0 else 1.0) * (k.triton if older > 1 else 1.0)
        rate = kernel_share * share * k.flash * peak
        forward = flash_attention_s(s["batch"] * s["seq"], keys_per_query, 2.0 * s["heads"] * s["head_dim"], rate)
        return np.asarray(sum({"fwd": 1.0, "bwd": k.flash_backward}[name] for name in passes) * forward)
    if op == "unfused_attention":
        score_s = k.score_traffic * (k.plain_scores if kernel == "plain" else 1.0) / memory_rate
        scores = (s["batch"] * s["seq"], s["seq"], 2.0 * s["head_dim"], 1.0, k.batched * peak, score_s)
        times = {
            "fwd": unfused_attention_s(*scores, FORWARD_SCORE_BYTES),
            "bwd": 2.0 * unfused_attention_s(*scores, BACKWARD_SCORE_BYTES / 2.0),
        }
        return np.asarray(sum(times[name] for name in passes))
    if op == "cross_entropy":
        loss = traffic_s(k.head_traffic * s["tokens"] * s["vocab"], memory_rate)
        return np.asarray(sum(LOSS_SHARE[name] for name in passes) * loss)
    return np.asarray(traffic_s(s["bytes"], memory_rate))


def compute_formula_errors(
    tables: Iterable[CheckTable], gpu: Gpu, k: Coefficients, *, kernel: str = "flash"
) -> dict[str, OperatorError]:
    """Errors of the step's formulas by family of operators. [K64]"""
    errors_of: dict[str, list[Floats]] = {}
    for table in tables:
        arrays = {name: np.array(column) for name, column in table.sizes.items()}
        formula = formula_s(table.op, table.passes, arrays, table.dtype, gpu, k, kernel=kernel)
        error = np.abs(1e6 * formula / np.array(table.time_us) - 1.0)
        errors_of.setdefault(FORMULA_FAMILIES[table.op], []).append(error)
    return {
        family: OperatorError(
            error_pct=round(100.0 * float(np.concatenate(errors).mean()), 2),
            samples=sum(len(shape_errors) for shape_errors in errors),
        )
        for family, errors in errors_of.items()
    }
