"""Physical forms of single operators: what a time is a sum of, for fits to samples of a GPU.

    build_basis_terms("matmul", "fwd", {"m": 8192, "n": 4096, "k": 4096}, 2, 132)
    {"launch": 1.0, "gflop": 274.9, ..., "mb": 134.2, ...}

A time is the sum of coefficient x term over the terms, at least `floor`; no coefficient is negative, so a larger
operator of one class (aligned or not) never takes less. Terms are launches, GFLOP (plain, and padded to whole waves of
tiles), MB (all, and what exceeds the cache). Sizes are numbers or arrays that broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Sizes = Mapping[str, Floats]

# Operators that are matrix multiplications; the last two are the batched ones of unfused attention.
MATMUL_OPS = ("matmul", "grouped_matmul", "scores_matmul", "values_matmul")
# Sizes that an operator has.
DIMS: dict[str, tuple[str, ...]] = {
    "matmul": ("m", "n", "k"),
    "grouped_matmul": ("groups", "m", "n", "k"),
    "scores_matmul": ("batch", "seq", "head_dim"),
    "values_matmul": ("batch", "seq", "head_dim"),
    "attention": ("batch", "heads", "kv_heads", "head_dim", "seq"),
    "rmsnorm": ("tokens", "width"),
    "layernorm": ("tokens", "width"),
    "residual_add": ("tokens", "width"),
    "silu_mul": ("tokens", "width"),
    "gelu": ("tokens", "width"),
    "softmax": ("tokens", "width"),
    "causal_softmax": ("tokens", "width"),
    "mask_fill": ("tokens", "width"),
    "rotary": ("tokens", "heads", "head_dim"),
    "cross_entropy": ("tokens", "vocab"),
    "embedding": ("tokens", "width", "vocab"),
    "adamw": ("params", "layers"),
    "copy": ("bytes",),
    "layer": ("batch", "seq", "hidden", "ffn", "heads", "kv_heads", "head_dim"),
    "train_step": ("batch", "seq", "hidden", "ffn", "heads", "kv_heads", "head_dim", "layers", "vocab"),
}
# Sizes that may be left out: a number, or the size they are taken from. Layers are groups of tensors.
OPTIONAL = {("attention", "kv_heads"): "heads", ("adamw", "layers"): 1.0}
# What a table sums operators up as.
FAMILIES = {
    "matmul": "matmul",
    "grouped_matmul": "grouped matmul",
    "scores_matmul": "batched matmul",
    "values_matmul": "batched matmul",
    "attention": "attention",
    "rmsnorm": "norm",
    "layernorm": "norm",
    "residual_add": "elementwise",
    "silu_mul": "elementwise",
    "gelu": "elementwise",
    "mask_fill": "elementwise",
    "softmax": "softmax",
    "causal_softmax": "softmax",
    "rotary": "rotary",
    "cross_entropy": "loss",
    "embedding": "embedding",
    "adamw": "optimizer",
    "copy": "copy",
}
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}  # Bytes of a value
TILES = ((128, 128), (128, 256), (256, 128))  # Output tiles of common matmul kernels
HEAD_BLOCK, MOST_BLOCKS = 32, 8  # Heads are computed in blocks of this width, up to 256 wide
HOT_GFLOP = 100.0  # Matmuls beyond this many run long enough for the GPU to lower its clock
QUERY_TILE = 128  # Queries that one block of a fused attention kernel takes
LONG_ROW = 1024  # A softmax over longer rows is another kernel
# With more of them torch sorts tokens before it adds the gradient of an embedding (ATen's Embedding.cu).
SORTED_TOKENS = 3072
CACHE_MB = 50.0  # Tensors below about this stay in the cache of a recent GPU between kernels
_PASSES = {"fwd": (2.0, 1.0), "bwd": (3.0, 2.0), "step": (2.0, 1.0)}


@dataclass(frozen=True, kw_only=True)
class OperatorWork:
    """The least an operator has to do: operations and bytes. [K20]"""

    gflop: Floats
    mb: Floats


def count_work(op: str, which: str, sizes: Sizes, dtype_bytes: float) -> OperatorWork:
    """GFLOP and MB of an operator; each operand is read once, each result written once. [K20]"""
    s = {name: np.asarray(value, dtype=float) for name, value in sizes.items()}
    if op in MATMUL_OPS:
        batch, m, n, k = get_matmul_shape(op, s)
        copies = s["groups"] if op == "grouped_matmul" else batch
        repeats = 2.0 if which == "bwd" else 1.0
        row_batches = batch if op != "grouped_matmul" else 1.0
        traffic = row_batches * m * k + copies * k * n + row_batches * m * n
        return OperatorWork(gflop=repeats * 2e-9 * row_batches * m * n * k, mb=repeats * 1e-6 * dtype_bytes * traffic)
    if op == "attention":
        heads = s["batch"] * s["heads"]
        scores = s["seq"] * (s["seq"] + 1.0) / 2.0
        # five matmuls (scores once more, and the gradients of v, p, q and k) where the forward pass has two
        repeats = 2.5 if which == "bwd" else 1.0
        values = s["batch"] * s["seq"] * s["head_dim"] * (2.0 * s["heads"] + 2.0 * s["kv_heads"])
        return OperatorWork(
            gflop=repeats * 4e-9 * heads * scores * s["head_dim"], mb=repeats * 1e-6 * dtype_bytes * values
        )
    return OperatorWork(gflop=np.zeros(1), mb=1e-6 * _count_traffic(op, which, s, dtype_bytes))


def _count_traffic(op: str, which: str, s: Sizes, dtype_bytes: float) -> Floats:
    """Bytes of an operator that memory binds. [K20]"""
    if op == "copy":
        return s["bytes"]
    if op == "adamw":
        return 10.0 * dtype_bytes * s["params"] if dtype_bytes > 2 else 14.0 * s["params"]
    if op == "cross_entropy":
        return (1.0 if which == "fwd" else 2.0) * dtype_bytes * s["tokens"] * s["vocab"]
    if op == "embedding":
        table = 0.0 if which == "fwd" else s["vocab"] * s["width"]
        return dtype_bytes * (2.0 * s["tokens"] * s["width"] + table)
    if op == "rotary":
        return 4.0 * dtype_bytes * s["tokens"] * s["heads"] * s["head_dim"]
    passes = _PASSES[which][0] + (1.0 if op in ("residual_add", "silu_mul") else 0.0)
    return passes * dtype_bytes * s["tokens"] * s["width"]


def get_matmul_shape(op: str, s: Sizes) -> tuple[Floats, Floats, Floats, Floats]:
    """Batch, m, n, k of a matmul."""
    ones = np.ones(1)
    if op == "scores_matmul":
        return s["batch"], s["seq"], s["seq"], s["head_dim"]
    if op == "values_matmul":
        return s["batch"], s["seq"], s["head_dim"], s["seq"]
    return ones, s["m"], s["n"], s["k"]


def build_basis_terms(op: str, which: str, sizes: Sizes, dtype_bytes: float, processors: int) -> dict[str, Floats]:
    """The terms of an operator's time. [K21]"""
    s = {name: np.asarray(value, dtype=float) for name, value in sizes.items()}
    least_work = count_work(op, which, s, dtype_bytes)
    basis: dict[str, Floats] = {"launch": np.ones(np.broadcast(*s.values()).shape)}
    if op in MATMUL_OPS:
        basis |= _build_matmul_terms(op, which, s, least_work, processors)
    elif op == "attention":
        basis |= _build_attention_terms(s, least_work, processors)
    else:
        basis["mb"] = least_work.mb
        basis["mb_uncached"] = np.maximum(least_work.mb - CACHE_MB, 0.0)
        basis |= _build_memory_terms(op, which, s, least_work, dtype_bytes)
    return {name: np.broadcast_to(value, basis["launch"].shape) for name, value in basis.items()}


def _build_memory_terms(
    op: str, which: str, s: Sizes, least_work: OperatorWork, dtype_bytes: float
) -> dict[str, Floats]:
    """Rows and tables of an operator that memory binds: what each costs beyond its bytes. [K24]"""
    if op == "copy":
        return {}
    if op == "adamw":
        return {"layers": s["layers"]}
    basis = {"krow": 1e-3 * s["tokens"]}
    if op == "embedding":
        basis |= {"mb_table": 1e-6 * dtype_bytes * s["vocab"] * s["width"], "kwidth": 1e-3 * s["width"]}
        basis["kvocab"] = 1e-3 * s["vocab"]
        if which == "bwd":
            is_sorted = s["tokens"] > SORTED_TOKENS
            basis |= {"sorted": np.where(is_sorted, 1.0, 0.0)}
            basis["mb_sorted"] = np.where(is_sorted, 1e-6 * dtype_bytes * s["tokens"] * s["width"], 0.0)
    if op in ("softmax", "causal_softmax"):
        is_long = s["width"] > LONG_ROW
        basis |= {
            "mb_long": np.where(is_long, least_work.mb, 0.0),
            "krow_long": np.where(is_long, 1e-3 * s["tokens"], 0.0),
        }
    return basis


def _build_matmul_terms(op: str, which: str, s: Sizes, least_work: OperatorWork, processors: int) -> dict[str, Floats]:
    """Operations plain and in whole waves of tiles; operands and result; what rows that are no
    multiple of 8 (even) or of 2 (odd) add. [K22]
    """
    batch, m, n, k = get_matmul_shape(op, s)
    rows = m / s["groups"] if op == "grouped_matmul" else m
    matmuls = s["groups"] if op == "grouped_matmul" else batch
    outputs = _list_matmuls(which, rows, n, k)
    result = np.sum([2e-6 * matmuls * output[0] * output[1] for output in outputs], axis=0)
    basis = {"gflop": least_work.gflop, "mb": least_work.mb, "mb_result": result}
    basis["gflop_hot"] = np.maximum(least_work.gflop - HOT_GFLOP, 0.0)
    for tall, wide in TILES:
        waves = [_count_wave_gflop(*output, matmuls, tall, wide, processors) for output in outputs]
        basis[f"gflop_{tall}x{wide}"] = np.sum(waves, axis=0)
    if op == "grouped_matmul":
        basis["groups"] = matmuls
        wave_gflop = [_count_wave_gflop(*output, np.ones(1), *TILES[1], processors) for output in outputs]
        basis["gflop_each"] = matmuls * np.sum(wave_gflop, axis=0)
    flat = [_count_wave_gflop(output[0], output[1], np.ones(1), matmuls, *TILES[1], processors) for output in outputs]
    basis["mtile"] = 1e3 * np.sum(flat, axis=0)
    aligned = np.minimum(count_factors_of_two(n), count_factors_of_two(k))
    if op in ("scores_matmul", "values_matmul"):
        basis["mb_scores"] = 2e-6 * batch * s["seq"] * s["seq"]
    classes = {"odd": aligned < 1, "even": (aligned >= 1) & (aligned < 3), "coarse": (aligned >= 3) & (aligned < 6)}
    for name, mask in (classes | {"rows": count_factors_of_two(rows) < 6}).items():
        basis[f"gflop_{name}"] = np.where(mask, least_work.gflop, 0.0)
        basis[f"mb_{name}"] = np.where(mask, least_work.mb, 0.0)
    return basis


def _list_matmuls(which: str, m: Floats, n: Floats, k: Floats) -> list[tuple[Floats, Floats, Floats]]:
    """Rows, columns and depth of the matmuls of a pass; sizes are those of the forward one."""
    return {
        "fwd": [(m, n, k)],
        "dgrad": [(m, k, n)],
        "wgrad": [(k, n, m)],
        "bwd": [(m, k, n), (k, n, m)],
    }[which]


def _count_wave_gflop(
    rows: Floats, columns: Floats, depth: Floats, matmuls: Floats, tall: int, wide: int, processors: int
) -> Floats:
    """GFLOP of a matmul whose tiles fill all processors in every wave. [K22]"""
    tiles = matmuls * np.ceil(rows / tall) * np.ceil(columns / wide)
    return 2e-9 * np.ceil(tiles / processors) * processors * tall * wide * depth


def _build_attention_terms(s: Sizes, least_work: OperatorWork, processors: int) -> dict[str, Floats]:
    """Operations for each block of 32 columns that heads have, in whole waves of queries. [K23]

    A head of 96 has three blocks: gflop_1, gflop_2 and gflop_3 are what each of them takes, so that each may have its
    own rate and wider heads still never take less.
    """
    unit = least_work.gflop / s["head_dim"] * HEAD_BLOCK
    blocks = np.ceil(s["head_dim"] / HEAD_BLOCK)
    thread_blocks = s["batch"] * s["heads"] * np.ceil(s["seq"] / QUERY_TILE)
    wave_padding = np.ceil(thread_blocks / processors) * processors / thread_blocks
    basis = {f"gflop_{at}": np.where(blocks >= at, unit, 0.0) for at in range(1, MOST_BLOCKS + 1)}
    padded = unit * blocks
    basis["gflop_ragged"] = np.where(s["head_dim"] % HEAD_BLOCK != 0, padded, 0.0)
    basis["gflop_waves"] = padded * wave_padding
    basis["gflop_row"] = 1e-9 * QUERY_TILE * s["batch"] * s["heads"] * s["seq"] * blocks * HEAD_BLOCK
    basis["gflop_last"] = 4e-9 * QUERY_TILE * s["seq"] * blocks * HEAD_BLOCK * processors
    basis["gflop_pairs"] = padded * np.ceil(thread_blocks / (2 * processors)) * 2 * processors / thread_blocks
    basis["gflop_hot"] = np.maximum(padded - HOT_GFLOP, 0.0)
    basis["mb"] = least_work.mb
    return basis


def build_features(op: str, which: str, sizes: Sizes, dtype_bytes: float, processors: int) -> dict[str, Floats]:
    """What a correction of log(time / form) looks at: sizes in octaves, alignment, filling of the last wave. [K25]"""
    s = {name: np.asarray(sizes[name], dtype=float) for name in DIMS[op]}
    least_work = count_work(op, which, s, dtype_bytes)
    features = {f"log_{name}": np.log2(value) for name, value in s.items()}
    features["log_mb"] = np.log2(least_work.mb)
    if op in MATMUL_OPS:
        batch, m, n, k = get_matmul_shape(op, s)
        rows = m / s["groups"] if op == "grouped_matmul" else m
        matmuls = s["groups"] if op == "grouped_matmul" else batch
        features["log_gflop"] = np.log2(least_work.gflop)
        features["log_ratio"] = np.log2(n / k)
        for name, value in (("m", rows), ("n", n), ("k", k)):
            features[f"twos_{name}"] = count_factors_of_two(value)
        unpadded_gflop = least_work.gflop / (2.0 if which == "bwd" else 1.0)
        for at, output in enumerate(_list_matmuls(which, rows, n, k)):
            features[f"fill_{at}"] = _count_wave_gflop(*output, matmuls, 128, 256, processors) / unpadded_gflop
    elif op == "attention":
        thread_blocks = s["batch"] * s["heads"] * np.ceil(s["seq"] / QUERY_TILE)
        features["log_gflop"] = np.log2(least_work.gflop)
        features["log_lanes"] = np.log2(thread_blocks)
        features["twos_head_dim"] = count_factors_of_two(s["head_dim"])
        features["last_block"] = s["head_dim"] % HEAD_BLOCK
        features["fill_0"] = np.ceil(thread_blocks / processors) * processors / thread_blocks
    elif "width" in s:
        features["twos_width"] = count_factors_of_two(s["width"])
    size = np.broadcast(*features.values()).shape
    return {name: np.broadcast_to(value, size) for name, value in features.items()}


def count_factors_of_two(value: Floats) -> Floats:
    """How often 2 divides a size, at most 8 times."""
    integers = np.asarray(value, dtype=np.int64)
    return np.asarray(np.sum([(integers % 2**power) == 0 for power in range(1, 9)], axis=0), dtype=float)
