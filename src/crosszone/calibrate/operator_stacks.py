"""What a software stack adds to its operators: fitted to sampled whole layers and training steps.

    stack_coefficients(coefficients_of(read, gpu))["eager"]["elementwise"].value

A layer is its products and its attention by the formulas of the cost model with the coefficients measured on the same
GPU; the rest is traffic of small kernels (*elementwise*), and of a step also the loss (*head_traffic*) and a fixed time
(*step_s*). Times of the host are measured ones. Layers and steps that the host brakes do not count for the traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.operator_coefficients import STATE_BYTES, WEIGHT_TRAFFIC, Found, estimated, joined
from crosszone.calibrate.operator_fit import not_negative
from crosszone.calibrate.operator_samples import Samples
from crosszone.cost.coefficients import Coefficient
from crosszone.cost.layer import RESIDUAL_PASSES, flash_attention_s, flash_share, matmul_s
from crosszone.cost.operator_forms import WORDS, Floats
from crosszone.inputs.flops import tokens_seen

HOST_BOUND = 0.7
"""Share of its time that the host may launch while the GPU is the brake."""
LEAST_BLOCKS, LEAST_STEPS = 4, 5
GATED = 3.0
"""Matrices of the sampled MLP."""


Put = Callable[[str, float, float], None]
"""Takes a coefficient's name, value and error."""


@dataclass(frozen=True)
class Blocks:
    """Layers and steps as sums: known seconds, and what is multiplied by the coefficients that are looked for."""

    known_s: Floats
    matrix: Floats
    """Columns: seconds per unit of elementwise, of head_traffic, of step_s."""
    time_s: Floats
    group: npt.NDArray[np.int64]


def stack_coefficients(found: Found) -> dict[str, dict[str, Coefficient]]:
    """elementwise, head_traffic, optimizer_traffic, host_s, host_backward and step_s by mode (eager, compiled)."""
    modes = sorted({one.mode for one in found.read.samples if one.op in ("layer", "train_step")})
    return {mode: made for mode in modes if (made := _of_mode(found, mode))}


def _of_mode(found: Found, mode: str) -> dict[str, Coefficient]:
    made: dict[str, Coefficient] = {}

    def put(name: str, value: float, error: float) -> None:
        if value > 0:
            made[name] = Coefficient(value=float(f"{value:.4g}"), error=float(f"{error:.2g}"), origin="measured")

    parts = [
        part
        for op, summed in (("layer", _layers), ("train_step", _steps))
        for dtype, some in _by_dtype(found, op, mode).items()
        if (part := summed(found, mode, dtype, some)) is not None
    ]
    if parts:
        blocks = Blocks(*(np.concatenate([getattr(one, name) for one in parts]) for name in Blocks.__annotations__))
        _traffic(found, mode, blocks, put)
    layers = {one.which: one for one in found.read.of("layer", mode=mode)}
    if all(which in layers and np.isfinite(layers[which].host_us).any() for which in ("fwd", "bwd")):
        for name, value, error in _host(layers["fwd"], layers["bwd"]):
            put(name, value, error)
    if "bf16" in found.optimizers and found.read.of("train_step", "bf16", mode=mode):
        rate = found.now("memory") * found.memory_rate
        put("optimizer_traffic", (found.optimizers["bf16"] * rate - WEIGHT_TRAFFIC) / (STATE_BYTES["bf16"] / 16), 0.03)
    return made


def _by_dtype(found: Found, op: str, mode: str) -> dict[str, list[Samples]]:
    """Samples by precision; a precision of which the GPU's rate or the optimizer's states are not known is noted."""
    some: dict[str, list[Samples]] = {}
    for one in found.read.of(op, mode=mode):
        peaks = found.peak(one.dtype), found.peak(_wide(one.dtype))
        if None in peaks or (op == "train_step" and one.dtype not in STATE_BYTES):
            what = "peak rate" if None in peaks else "size of optimizer states"
            found.notes.append(f"{one.key}: not used, no {what} of {one.dtype} is known")
        else:
            some.setdefault(one.dtype, []).append(one)
    return some


def _wide(dtype: str) -> str:
    """The precision of attention and of what is between the products."""
    return "bf16" if dtype == "fp8" else dtype


def _traffic(found: Found, mode: str, blocks: Blocks, put: Put) -> None:
    count = len(blocks.time_s)
    steps = int(np.sum(blocks.matrix[:, 2] > 0))
    if count < LEAST_BLOCKS:
        return
    columns = [0] if steps < LEAST_STEPS else [0, 1, 2]
    rest = np.maximum(blocks.time_s - blocks.known_s, 0.01 * blocks.time_s)
    weight = rest / blocks.time_s

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        return not_negative(blocks.matrix[mask][:, columns], rest[mask], weight[mask])

    values = estimated(fit, blocks.group)
    for name, (value, error) in zip(("elementwise", "head_traffic", "step_s"), values, strict=False):
        put(name, value, min(error, 1.0))
    total = blocks.known_s + blocks.matrix[:, columns] @ np.array([value for value, _ in values])
    error = 100 * float(np.abs(total / blocks.time_s - 1).mean())
    found.notes.append(f"{mode}: {count} layers and steps within {error:.1f} % in the mean (fitted to them)")


def _host(forward: Samples, backward: Samples) -> list[tuple[str, float, float]]:
    """Launch time of a layer forward, and backward over forward."""
    launch, back = forward.host_us[np.isfinite(forward.host_us)], backward.host_us[np.isfinite(backward.host_us)]
    ratio = float(np.median(back) / np.median(launch))
    apart = [float(np.std(np.log(one)) / np.sqrt(len(one))) for one in (launch, back)]
    return [
        ("host_s", float(np.median(launch)) * 1e-6, max(0.02, apart[0])),
        ("host_backward", ratio, max(0.02, float(np.hypot(apart[0], apart[1])))),
    ]


def _layers(found: Found, _mode: str, dtype: str, samples: list[Samples]) -> Blocks | None:
    """Forward and backward passes of whole layers."""
    both = joined(samples, ("fwd", "bwd"))
    if both is None:
        return None
    host = {one.which: one for one in samples}
    products, attention, traffic = layer_parts(found, both.sizes, dtype)
    known = 3.0 * products + (1.0 + found.now("flash_backward")) * attention
    time_s = both.total_s
    launch = np.nanmedian(host["fwd"].host_us) + np.nanmedian(host["bwd"].host_us) if len(host) == 2 else 0.0
    use = ~(1e-6 * launch > HOST_BOUND * time_s)
    matrix = np.stack([3.0 * traffic, np.zeros_like(traffic), np.zeros_like(traffic)], axis=-1)
    return _blocks(known, matrix, time_s, both.sizes["hidden"], use)


def _steps(found: Found, mode: str, dtype: str, samples: list[Samples]) -> Blocks | None:
    """Whole training steps: layers, embedding, head, loss and optimizer."""
    one = samples[0]
    s, time_s = one.sizes, one.time_us * 1e-6
    word, rate = WORDS[dtype], found.now("memory") * found.memory_rate
    again = one.again.astype(float)
    products, attention, traffic = layer_parts(found, s, dtype)
    tokens = s["batch"] * s["seq"]
    odd = np.where((s["vocab"] % 8 != 0) & (mode != "compiled"), found.now("unaligned"), 1.0)
    byte_s = found.now("tile") / found.memory_rate
    head = odd * matmul_s(tokens, s["hidden"], s["vocab"], _rate(found, dtype), byte_s)
    weights = s["hidden"] * 2.0 * s["head_dim"] * (s["heads"] + s["kv_heads"]) + GATED * s["hidden"] * s["ffn"]
    params = s["layers"] * weights + 2.0 * s["vocab"] * s["hidden"]
    usual = (found.now("optimizer_traffic") * STATE_BYTES[dtype] / 16.0 + WEIGHT_TRAFFIC) / rate
    update = params * found.optimizers.get(dtype, usual)
    layers = s["layers"] * ((3.0 + again) * products + (1.0 + again + found.now("flash_backward")) * attention)
    looked_up = 3.0 * 2.0 * word * tokens * s["hidden"] / rate
    matrix = np.stack(
        [(3.0 + again) * s["layers"] * traffic + looked_up, tokens * s["vocab"] / rate, np.ones_like(tokens)], axis=-1
    )
    use = ~(1e-6 * one.host_us > HOST_BOUND * time_s)
    known = layers + 3.0 * head + update
    return _blocks(known, matrix, time_s, s["hidden"], use)


def _blocks(known: Floats, matrix: Floats, time_s: Floats, hidden: Floats, use: npt.NDArray[np.bool_]) -> Blocks | None:
    return Blocks(known[use], matrix[use], time_s[use], hidden[use].astype(np.int64)) if use.any() else None


def _rate(found: Found, dtype: str) -> float:
    peak = found.peak(dtype)
    assert peak is not None  # _by_dtype left the others out
    return found.now("matmul_fp8" if dtype == "fp8" else "matmul") * peak


def layer_parts(found: Found, s: dict[str, Floats], dtype: str) -> tuple[Floats, Floats, Floats]:
    """Seconds of a layer's products, of its attention, and of its traffic at *elementwise* 1, forward. [O7]"""
    tokens, hidden, ffn = s["batch"] * s["seq"], s["hidden"], s["ffn"]
    query, key_value = s["heads"] * s["head_dim"], 2.0 * s["kv_heads"] * s["head_dim"]
    rate, byte_s = _rate(found, dtype), found.now("tile") / found.memory_rate
    shapes = ((hidden, query + key_value), (query, hidden), (hidden, (GATED - 1.0) * ffn), (ffn, hidden))
    products = sum(matmul_s(tokens, inner, columns, rate, byte_s) for inner, columns in shapes)
    share = flash_share(s["head_dim"], s["seq"], found.now("flash_width"), found.now("flash_ramp"))
    peak = found.peak(_wide(dtype)) or 0.0
    seen = tokens_seen(s["seq"], None, causal=1.0)
    attention = flash_attention_s(tokens, seen, 2.0 * query, share * found.now("flash") * peak)
    moved = WORDS[_wide(dtype)] * tokens * (RESIDUAL_PASSES * hidden + 2.0 * (query + 2.0 * key_value) + GATED * ffn)
    return np.asarray(products), np.asarray(attention), moved / (found.now("memory") * found.memory_rate)
