"""What the kernel sampler measures: points with their sizes in the order of importance, and the least work of each.

for point in plan()["kernels"]:
flops, traffic = counts(point)
"""

from __future__ import annotations

import argparse
import math
import random
import re
import statistics
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

COLUMNS = [
    "device", "torch", "dtype", "op", "pass", "mode", "m", "n", "k", "groups", "batch", "heads", "kv_heads", "head_dim",
    "seq", "tokens", "width", "vocab", "params", "layers", "hidden", "ffn", "recompute", "time_us", "spread_pct",
    "host_us", "memory_gib", "flops", "bytes", "roof_us", "reps", "sm_mhz", "power_w", "flag",
]  # fmt: skip
DIMS = COLUMNS[6:23]
DTYPES = ("bf16", "fp16", "fp8", "fp32")
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}
L2_BYTES = 64 << 20
MOST_MATMUL_FLOPS = 3e13
# How many shapes of each kind there are; a budget usually ends before.
COUNTS = {"bf16": 2000, "fp16": 250, "fp8": 500, "grouped": 300, "attention": 500, "simple": 160}
# Where in the budget each phase ends; time left at the end goes to the kernels that had to wait.
PHASE_ENDS = {"kernels": 0.66, "blocks": 0.84, "compiled": 1.0}

# hidden, ffn, heads, kv_heads, head_dim, vocab, gated: layers of published models, small to large
MODELS = (
    (768, 3072, 12, 12, 64, 50257, 0), (896, 4864, 14, 2, 64, 151936, 1), (1600, 6400, 25, 25, 64, 50257, 0),
    (1536, 8960, 12, 2, 128, 151936, 1), (2048, 5632, 32, 4, 64, 32000, 1), (2048, 8192, 32, 8, 64, 128256, 1),
    (2048, 16384, 8, 1, 256, 256000, 1), (2560, 10240, 32, 32, 80, 51200, 0), (3072, 8192, 32, 32, 96, 32064, 1),
    (3072, 8192, 24, 8, 128, 128256, 1), (3584, 18944, 28, 4, 128, 152064, 1), (4096, 11008, 32, 32, 128, 32000, 1),
    (4096, 14336, 32, 8, 128, 128256, 1), (5120, 13824, 40, 40, 128, 32000, 1), (5120, 27648, 40, 8, 128, 152064, 1),
    (6144, 24576, 64, 64, 96, 50432, 0), (6656, 17920, 52, 52, 128, 32000, 1), (7168, 20480, 56, 8, 128, 64000, 1),
    (8192, 28672, 64, 8, 128, 128256, 1), (12288, 49152, 96, 96, 128, 50257, 0),
    (14336, 57344, 112, 112, 128, 250880, 0),
    (16384, 53248, 128, 8, 128, 128256, 1),
)  # fmt: skip
MEMORY_BOUND = (
    "rmsnorm",
    "layernorm",
    "silu_mul",
    "gelu",
    "softmax",
    "rotary",
    "cross_entropy",
    "embedding",
    "residual_add",
)
EXPERTS = ((8, 4096, 14336), (16, 4096, 6400), (64, 2048, 1408), (64, 2048, 1024), (128, 2048, 768), (32, 7168, 2048))
TINY_MODELS = ((64, 128, 4, 2, 16, 97, 1), (48, 96, 3, 3, 16, 50, 0))
# hidden, ffn, heads, kv_heads, head_dim, vocab, layers, batch, seq of whole training steps
STEPS = (
    (768, 2048, 12, 12, 64, 32000, 12, 8, 1024), (2048, 8192, 32, 8, 64, 128256, 8, 2, 4096),
    (4096, 14336, 32, 8, 128, 128256, 4, 2, 4096), (896, 4864, 14, 2, 64, 151936, 12, 4, 2048),
    (2048, 5632, 32, 4, 64, 32000, 22, 4, 2048), (1024, 2816, 16, 16, 64, 50257, 24, 1, 1024),
    (3072, 8192, 24, 8, 128, 128256, 14, 1, 8192), (5120, 13824, 40, 40, 128, 32000, 4, 4, 2048),
    (1536, 8960, 12, 2, 128, 151936, 14, 16, 512), (8192, 28672, 64, 8, 128, 32000, 2, 1, 4096),
)  # fmt: skip
# part of the device's name: dense bf16, fp8 and fp32 TFLOP/s, memory GB/s (makers' data sheets)
DEVICE_PEAKS = {
    "GH200 144G": (989.5, 1979, 67, 4900), "GH200": (989.5, 1979, 67, 4000), "H200": (989.5, 1979, 67, 4800),
    "H100 PCIe": (756, 1513, 51, 2000), "H100 NVL": (835, 1671, 60, 3900), "H100": (989.5, 1979, 67, 3350),
    "H800 PCIe": (756, 1513, 51, 2000), "H800": (989.5, 1979, 67, 3350), "H20": (148, 296, 44, 4000),
    "B200": (2250, 4500, 80, 8000), "A100-SXM4-80GB": (312, 0, 19.5, 2039), "A100-SXM4-40GB": (312, 0, 19.5, 1555),
    "A100 80GB PCIe": (312, 0, 19.5, 1935), "A100-PCIE-40GB": (312, 0, 19.5, 1555), "A800": (312, 0, 19.5, 2039),
    "L40S": (362, 733, 91.6, 864), "L40": (181, 362, 90.5, 864), "L20": (119.5, 239, 59.8, 864),
    "L4": (121, 242, 30.3, 300), "A40": (149.7, 0, 37.4, 696), "A10": (125, 0, 31.2, 600), "V100": (125, 0, 15.7, 900),
    "MI300X": (1307, 2614, 163, 5300),
    "RTX 4090": (165, 330, 82.6, 1008), "RTX 3090": (71, 0, 35.6, 936),
}  # fmt: skip


class KernelPoint(NamedTuple):
    """One thing to time: an operator, a pass of it, and its sizes by column name."""

    dtype: str
    op: str
    what: str
    mode: str
    dims: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies it among points, as text, in the order of the columns."""
        dims = dict(self.dims)
        size = str(dims["bytes"]) if self.op == "copy" else ""
        return (self.dtype, self.op, self.what, self.mode, *(str(dims.get(name, "")) for name in DIMS), size)

    def assign_shard(self, parts: int) -> int:
        """Which of `parts` shards it belongs to, 1 to parts; all passes of one shape belong to the same."""
        return zlib.crc32(",".join((*self.key[:2], *self.key[3:])).encode()) % parts + 1


def plan(tiny: bool = False, grouped: bool = True, flash: bool = True) -> dict[str, list[KernelPoint]]:
    """All points in the order of importance, by phase; every prefix of a phase holds all its operators.

    `grouped`, `flash`: the device has such kernels; tiny points, which only try the code, are without the latter.
    """
    low, high = (4, 64) if tiny else (256, 32768)
    counts = {name: max(4, count // 40) if tiny else count for name, count in COUNTS.items()}
    flashes = (
        (7, _sample_attention("bf16", tiny, counts["attention"] // 2, "flash")),
        (1, _sample_attention("fp16", tiny, counts["fp16"] // 8, "flash")),
    )
    streams: list[tuple[float, Iterator[list[KernelPoint]]]] = [
        *(
            (weight, _sample_matmuls(dtype, tiny, counts[dtype]))
            for dtype, weight in (("bf16", 40), ("fp16", 5), ("fp8", 8))
        ),
        (8, _sample_grouped_matmuls(tiny, grouped, counts["grouped"])),
        (14, _sample_attention("bf16", tiny, counts["attention"])),
        (2, _sample_attention("fp16", tiny, counts["fp16"] // 4)),
        *(flashes if flash and not tiny else ()),
        *((3, _sample_memory_bound(op, low, high, tiny, counts["simple"])) for op in MEMORY_BOUND),
        (4, _sample_adamw(tiny, counts["simple"] // 2)),
        (2, _sample_copies(tiny, counts["simple"] // 2)),
    ]
    ranked = [
        ((at + 0.5) / weight, number, point)
        for number, (weight, stream) in enumerate(streams)
        for at, points in enumerate(stream)
        for point in points
    ]
    ranked.sort(key=lambda entry: entry[:2])
    kernels = list(dict.fromkeys(entry[2] for entry in ranked))
    return {"kernels": kernels, "blocks": _list_blocks("eager", tiny), "compiled": _list_blocks("compiled", tiny)}


def _list_points(dtype: str, op: str, passes: str, mode: str = "eager", **dims: Any) -> list[KernelPoint]:
    return [KernelPoint(dtype, op, what, mode, tuple(dims.items())) for what in passes.split()]


def _log_uniform(rng: random.Random, low: float, high: float, step: int = 1) -> int:
    value = math.exp(math.log(low) + rng.random() * math.log(high / low))
    return max(step, round(value / step) * step)


def _pick(rng: random.Random, options: Sequence[Any]) -> Any:
    return options[int(rng.random() * len(options))]


def list_linear_shapes(
    hidden: int, ffn: int, heads: int, kv_heads: int, head_dim: int, vocab: int, gated: int
) -> list[Any]:
    """Linear layers of one model as (outputs, inputs, sliced side): qkv, o, up, gate and up fused, down, head."""
    shapes = [((heads + 2 * kv_heads) * head_dim, hidden, 0), (hidden, heads * head_dim, 1), (ffn, hidden, 0)]
    return [*shapes, *([(2 * ffn, hidden, 0)] if gated else []), (hidden, ffn, 1), (vocab, hidden, 0)]


def _sample_matmuls(dtype: str, tiny: bool, count: int) -> Iterator[list[KernelPoint]]:
    """Layers of published models at tensor-parallel slices and token counts; each third a random shape."""
    rng = random.Random("matmul " + dtype)
    step, count_done = 16 if dtype == "fp8" else 1, 0
    while count_done < count:
        if count_done % 3 == 2:
            align = max(step, _pick(rng, (8, 8, 64, 64, 128)) if not tiny else 1)
            low, high = (4, 64) if tiny else (256, 32768)
            m, n, k = (_log_uniform(rng, low, high, align) for _ in range(3))
            n += 1 if count_done % 24 == 2 and step == 1 else 0
        else:
            n, k, side = _pick(rng, list_linear_shapes(*_pick(rng, TINY_MODELS if tiny else MODELS)))
            slices = _pick(rng, (1, 2) if tiny else (1, 2, 4, 8))
            n, k = (-(-n // slices), k) if side == 0 else (n, -(-k // slices))
            m = (8 if tiny else 512) << int(rng.random() * (3 if tiny else 7))
        if 2.0 * m * n * k > MOST_MATMUL_FLOPS or any(size % step for size in (m, n, k)):
            continue
        count_done += 1
        yield _list_points(dtype, "matmul", "fwd dgrad wgrad", m=m, n=n, k=k)


def _sample_grouped_matmuls(tiny: bool, grouped: bool, count: int) -> Iterator[list[KernelPoint]]:
    rng = random.Random("grouped")
    for at in range(count):
        experts, hidden, ffn = (4, 32, 64) if tiny else _pick(rng, EXPERTS)
        groups = max(2, experts // _pick(rng, (1, 2, 4, 8)))
        if at % 3 == 2 and not tiny:
            hidden, ffn = _log_uniform(rng, 1024, 8192, 64), _log_uniform(rng, 512, 16384, 64)
        n, k = _pick(rng, ((2 * ffn, hidden), (ffn, hidden), (hidden, ffn)))
        m = groups * (16 if tiny else _log_uniform(rng, max(32, 2048 / groups), 65536 / groups, 16))
        mode = "loop" if not grouped or at % 6 == 5 else "eager"
        if 2.0 * m * n * k <= MOST_MATMUL_FLOPS:
            yield _list_points("bf16", "grouped_matmul", "fwd dgrad wgrad", mode, groups=groups, m=m, n=n, k=k)


def _sample_attention(dtype: str, tiny: bool, count: int, mode: str = "eager") -> Iterator[list[KernelPoint]]:
    """Heads and lengths of published models; each mode has the first of the same shapes."""
    rng, count_done = random.Random("attention " + dtype), 0
    while count_done < count:
        head_dim = _pick(rng, (16, 32)) if tiny else _pick(rng, (64, 80, 96, 128, 128, 128, 192, 256))
        kv_heads = _pick(rng, (1, 2) if tiny else (1, 2, 4, 8, 8, 16, 32))
        heads = kv_heads * _pick(rng, (1, 2) if tiny else (1, 1, 2, 4, 5, 7, 8))
        seq = _pick(rng, (16, 32)) if tiny else _pick(rng, (512, 1024, 2048, 2048, 4096, 4096, 8192, 16384, 32768))
        if count_done % 3 == 2 and not tiny:
            seq = _log_uniform(rng, 384, 32768, 8)
        batch = 1 << int(rng.random() * (2 if tiny else 6))
        tokens = batch * seq
        if heads > 128 or not (tiny or 1024 <= tokens <= 65536) or 2.0 * tokens * seq * heads * head_dim > 1e13:
            continue
        count_done += 1
        dims = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "seq": seq}
        yield _list_points(dtype, "attention", "fwd bwd", mode, **dims)


def _sample_memory_bound(op: str, low: int, high: int, tiny: bool, count: int) -> Iterator[list[KernelPoint]]:
    """Memory-bound operators: published and random widths, 2**30 elements at the most."""
    rng, count_done, limit = random.Random(op), 0, 1 << (13 if tiny else 30)
    while count_done < count:
        hidden, ffn, heads, kv_heads, head_dim, vocab, _ = _pick(rng, TINY_MODELS if tiny else MODELS)
        tokens = _log_uniform(rng, low, 2 * high, 1 if count_done % 2 else min(64, low))
        width = {"softmax": tokens, "silu_mul": ffn, "gelu": ffn}.get(op, hidden) // _pick(rng, (1, 1, 2))
        if count_done % 3 == 2:
            width = _log_uniform(rng, low, high, 8)
        count_done += 1
        if op == "rotary":
            heads = max(1, _pick(rng, (heads, kv_heads, heads + kv_heads)) // _pick(rng, (1, 1, 2, 4)))
            sizes, elements = {"tokens": tokens, "heads": heads, "head_dim": head_dim}, tokens * heads * head_dim
        elif op == "cross_entropy":
            sizes, elements = {"tokens": tokens, "vocab": -(-vocab // _pick(rng, (1, 1, 2, 4)))}, tokens * vocab
        else:
            sizes, elements = {"tokens": tokens, "width": max(8, width)}, tokens * max(8, width)
            sizes.update({"vocab": vocab} if op == "embedding" else {})
        if elements > limit or sizes.get("vocab", 0) * sizes.get("width", 1) > 2 * limit:
            continue
        yield _list_points("bf16", op, "fwd" if op == "residual_add" else "fwd bwd", **sizes)
        if op == "rmsnorm" and count_done % 2:
            yield _list_points("bf16", op, "fwd bwd", "fused", **sizes)


def _sample_adamw(tiny: bool, count: int) -> Iterator[list[KernelPoint]]:
    rng = random.Random("adamw")
    for at in range(count):
        params = _log_uniform(rng, 100, 4000) if tiny else _log_uniform(rng, 1e6, 1.2e9, 1024)
        yield _list_points(("bf16", "fp32")[at % 2], "adamw", "step", params=params)


def _sample_copies(tiny: bool, count: int) -> Iterator[list[KernelPoint]]:
    rng = random.Random("copy")
    for _ in range(count):
        yield _list_points("bf16", "copy", "step", bytes=_log_uniform(rng, 4096, 8192 if tiny else 8e9, 512))


def _list_blocks(mode: str, tiny: bool) -> list[KernelPoint]:
    """Whole layers and whole training steps, small and large in turn."""
    if tiny:
        steps: Sequence[Any] = ((64, 128, 4, 2, 16, 97, 2, 2, 16),)
        variants = [steps[0]]
    else:
        steps = STEPS if mode == "eager" else STEPS[:4]
        extra = [(*shape[:6], *more) for shape in STEPS[:3] for more in ((shape[6] // 2, 1, 2048), (shape[6], 4, 2048))]
        variants = [*steps, *(extra if mode == "eager" else [])]
    points: list[KernelPoint] = []
    for at, (hidden, ffn, heads, kv_heads, head_dim, vocab, layers, batch, seq) in enumerate(variants):
        shape = {"batch": batch, "seq": seq, "hidden": hidden, "ffn": ffn, "heads": heads, "kv_heads": kv_heads}
        shape["head_dim"] = head_dim
        train_steps = [
            _list_points("bf16", "train_step", "step", mode, **shape, layers=layers, vocab=vocab, recompute=recompute)
            for recompute in (("none", "full") if mode == "eager" or at < 2 else ("none",))
        ]
        points += [
            *train_steps[0],
            *_list_points("bf16", "layer", "fwd bwd", mode, **shape),
            *(train_steps[1] if len(train_steps) > 1 else []),
        ]
    return points


def count_work(point: KernelPoint) -> tuple[float, float]:
    """The least floating-point operations and bytes of memory traffic that a point can do with."""
    dims: dict[str, Any] = dict(point.dims)
    size, forward = DTYPE_BYTES[point.dtype], point.what == "fwd"
    if point.op in ("matmul", "grouped_matmul"):
        m, n, k = dims["m"], dims["n"], dims["k"]
        operands = {"fwd": m * k + n * k * dims.get("groups", 1), "dgrad": m * n + n * k * dims.get("groups", 1)}
        read = operands.get(point.what, m * n + m * k)
        result = {"fwd": m * n, "dgrad": m * k}.get(point.what, n * k * dims.get("groups", 1))
        return 2.0 * m * n * k, float(size * read + max(2, size) * result)
    if point.op == "attention":
        rows, d_ = dims["batch"] * dims["seq"], dims["head_dim"]
        flops = (2.0 if forward else 5.0) * rows * dims["seq"] * dims["heads"] * d_
        return flops, float(size * rows * d_ * (2 if forward else 4) * (dims["heads"] + dims["kv_heads"]))
    if point.op in ("layer", "train_step"):
        return _count_block_work(point, dims)
    if point.op == "adamw":
        return 12.0 * dims["params"], float(7 * size * dims["params"])
    if point.op == "copy":
        return 0.0, float(dims["bytes"])
    elements = dims["tokens"] * (
        dims["heads"] * dims["head_dim"] if point.op == "rotary" else dims.get("width") or dims["vocab"]
    )
    if point.op == "embedding":
        return 0.0, float(size * (2 * elements if forward else elements + dims["vocab"] * dims["width"]))
    passes = {"silu_mul": (3, 5), "residual_add": (3, 3), "cross_entropy": (1, 2), "rotary": (2, 2)}
    work = {"silu_mul": (5, 10), "residual_add": (1, 1), "gelu": (8, 16), "rotary": (3, 3)}
    return float(work.get(point.op, (5, 8))[not forward]) * elements, float(
        size * elements * passes.get(point.op, (2, 3))[not forward]
    )


def _count_block_work(point: KernelPoint, dims: dict[str, Any]) -> tuple[float, float]:
    tokens, hidden, inner = dims["batch"] * dims["seq"], dims["hidden"], dims["heads"] * dims["head_dim"]
    weights = hidden * (2 * inner + 2 * dims["kv_heads"] * dims["head_dim"]) + 3 * hidden * dims["ffn"]
    linear, scores = 2.0 * tokens * weights, 2.0 * tokens * dims["seq"] * inner
    if point.op == "layer":
        if point.what == "fwd":
            return linear + scores, 2.0 * (weights + 2 * tokens * hidden)
        return 2 * linear + 2.5 * scores, 2.0 * (2 * weights + 3 * tokens * hidden)
    recompute_passes = 1 if dims["recompute"] == "full" else 0
    head, layers = 2.0 * tokens * hidden * dims["vocab"], dims["layers"]
    params = layers * weights + 2 * dims["vocab"] * hidden
    return layers * ((3 + recompute_passes) * linear + (3.5 + recompute_passes) * scores) + 3 * head, 2.0 * 10 * params


def compute_roof_us(point: KernelPoint, device: str) -> float | None:
    """Microseconds at the device's peak rates; None for a device whose rates are not known."""
    peaks = next((peaks for name, peaks in DEVICE_PEAKS.items() if re.search(rf"\b{name}\b", device)), None)
    if peaks is None:
        return None
    flops, traffic = count_work(point)
    tensor = point.op in ("matmul", "grouped_matmul", "attention", "layer", "train_step")
    peak = (peaks[1] if point.dtype == "fp8" else peaks[0]) if tensor else peaks[2]
    return max(flops / (peak or peaks[0]) / 1e6, traffic / peaks[3] / 1e3)


def summarize_times(times: Sequence[float]) -> tuple[float, float, int]:
    """Median, spread in % (p90 - p10 over the median) and count of times that are no outliers (over 4 deviations)."""
    median = statistics.median(times)
    deviation = 1.4826 * statistics.median(abs(value - median) for value in times)
    inliers = sorted(value for value in times if abs(value - median) <= max(4 * deviation, 0.01 * median)) or [median]
    median, last = statistics.median(inliers), len(inliers) - 1
    spread = inliers[round(0.9 * last)] - inliers[round(0.1 * last)]
    return median, 100 * spread / median if median else 0.0, len(inliers)


def flag_point(time_us: float, spread_pct: float, roof: float | None) -> str:
    """What is suspicious about a point, or nothing."""
    if roof is not None and time_us < 0.95 * roof:
        return "above_roof"
    return "noisy" if spread_pct > 10 else ""


def parse_duration(text: str) -> float:
    """Seconds of a budget such as 90, 90s, 10m or 1h."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in ("s", "m", "h") else (text, "s")
    try:
        value = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("'" + text + "' is not a time: give seconds, or 90s, 10m, 1h")
    return value


def list_operators() -> tuple[str, ...]:
    """Names of all operators."""
    return ("matmul", "grouped_matmul", "attention", *MEMORY_BOUND, "adamw", "copy", "layer", "train_step")
