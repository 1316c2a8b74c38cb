"""Operator profiles made from samples: every operator fitted, and what the cost formulas take from it.

made = fitted_profile(read_samples([Path("samples.csv")]))
made.summary(); text_of(made); own_profile(made, "my-gpu")

Measured shapes that a GPU's operator profile keeps to score the step's formulas on (`cost/operator_checks.py`).

make_checks(read_samples([Path("samples.csv")]))["attention fp16"].time_us

Coefficients of the cost formulas, each with its error, and what a software stack adds to its operators:

found = coefficients_of(read, gpu)
found.values["matmul"].value, found.values["flash"].error
stack_coefficients(found)["eager"]["elementwise"].value

The formulas are those of `cost/layer.py`, not the forms of single operators: there the backward pass of a matmul is
twice the forward one, so all three matmuls of a layer are fitted together. An error is the standard error of the
logarithm when whole sizes are left out in turn (jackknife).

A sampled layer is its matmuls and its attention by these formulas with the coefficients measured on the same GPU; the
rest is traffic of small kernels (*elementwise*), and of a training step also the loss (*head_traffic*) and a fixed time
(*step_s*). Host times are measured. Layers and steps that the host slows down do not count for the traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from crosszone.calibrate.operator_fit import LEAST_SAMPLES, Read, Samples, Settings, fit_operator, not_negative
from crosszone.cost.coefficients import Coefficient
from crosszone.cost.layer import HEAD_BLOCK, RESIDUAL_PASSES, flash_attention_s, flash_share, matmul_s
from crosszone.cost.operator_checks import FORMULA_DIMS, MATMULS, CheckTable
from crosszone.cost.operator_forms import DTYPE_BYTES, Floats
from crosszone.cost.operator_profile import OperatorProfile
from crosszone.cost.own_profiles import OwnProfile, now
from crosszone.cost.profile import Profiles
from crosszone.extras import require_extra
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.flops import tokens_seen
from crosszone.inputs.gpu import Gpu

# Kept of each operator: their mean error is within a point or two of that over thousands of shapes.
MOST_SHAPES = 48
LEAST_SHAPES = 8
# Passes that are added up: the first of these that were sampled.
PASSES = {
    "matmul": (("fwd", "dgrad", "wgrad"), ("fwd", "bwd"), ("fwd",)),
    "grouped_matmul": (("fwd", "dgrad", "wgrad"), ("fwd",)),
    "attention": (("fwd", "bwd"), ("fwd",)),
    "unfused_attention": (("fwd", "bwd"), ("fwd",)),
    "cross_entropy": (("fwd", "bwd"),),
    "copy": (("step",),),
}
ALIGNED = 8  # Of other columns the tensor cores are slower; a step has such a matmul in the head alone


def make_checks(read: Read) -> dict[str, CheckTable]:
    """Tables by operator and precision; operators and precisions with too few long kernels have none."""
    tables = {}
    for op, choices in PASSES.items():
        for dtype in ("bf16", "fp16", "fp8") if op == "matmul" else ("bf16", "fp16"):
            found = (join_passes(read, op, dtype, passes) for passes in choices)
            both = next((one for one in found if one is not None), None)
            table = None if both is None else thin_shapes(op, dtype, both)
            if table is not None:
                tables[f"{op} {dtype}"] = table
    return tables


def join_passes(read: Read, op: str, dtype: str, passes: tuple[str, ...]) -> Joined | None:
    """Shapes that were sampled in all of these passes."""
    if op == "unfused_attention":
        return join_unfused(read, dtype, passes)
    return joined(read.of(op, dtype), passes)


def join_unfused(read: Read, dtype: str, passes: tuple[str, ...]) -> Joined | None:
    """Both batched matmuls and the causal softmax of one shape, their times added up pass by pass."""
    parts = [joined(read.of(op, dtype), passes) for op in ("scores_matmul", "values_matmul", "causal_softmax")]
    if None in parts:
        return None
    scores, values, softmax = (part for part in parts if part is not None)
    values_at = {shape: at for at, shape in enumerate(_shapes(values, ("batch", "seq", "head_dim")))}
    softmax_at = {shape: at for at, shape in enumerate(_shapes(softmax, ("tokens", "width")))}
    rows = []
    for at, (batch, seq, head_dim) in enumerate(_shapes(scores, ("batch", "seq", "head_dim"))):
        places = at, values_at.get((batch, seq, head_dim)), softmax_at.get((batch * seq, seq))
        if None not in places:
            rows.append(places)
    if not rows:
        return None
    first, second, third = np.array(rows).T
    times = {
        name: scores.times[name][first] + values.times[name][second] + softmax.times[name][third] for name in passes
    }
    return Joined({name: size[first] for name, size in scores.sizes.items()}, times, scores.group[first])


def _shapes(part: Joined, names: tuple[str, ...]) -> list[tuple[float, ...]]:
    return list(zip(*(part.sizes[name].tolist() for name in names), strict=True))


def thin_shapes(op: str, dtype: str, both: Joined) -> CheckTable | None:
    """Shapes evenly taken from all of them, in the order of their times; short kernels, which time launches, are not.

    Which ones are taken follows from the samples alone, whatever their order.
    """
    total_us = np.asarray(sum(both.times.values()))
    kernels = sum(MATMULS.get(name, 1.0) for name in both.times) * (3.0 if op == "unfused_attention" else 1.0)
    use = total_us > LAUNCH_BOUND_US * kernels
    if op in ("matmul", "grouped_matmul"):
        use &= (both.sizes["n"] % ALIGNED == 0) & (both.sizes["k"] % ALIGNED == 0)
    if use.sum() < LEAST_SHAPES:
        return None
    sizes = {name: both.sizes[name][use] for name in FORMULA_DIMS[op]}
    time_us = total_us[use]
    order = np.lexsort((*sizes.values(), time_us))
    taken = order[np.unique(np.linspace(0, len(order) - 1, min(MOST_SHAPES, len(order))).round().astype(np.int64))]
    return CheckTable(
        op=op,
        dtype=dtype,
        passes=tuple(both.times),
        shapes=int(use.sum()),
        sizes={name: _numbers(size[taken]) for name, size in sizes.items()},
        time_us=_numbers(time_us[taken]),
    )


def _numbers(values: Floats) -> tuple[float, ...]:
    return tuple(float(f"{value:.7g}") for value in values)


BLOCKS = ("layer", "train_step")  # Sampled to see what a stack adds; they have no form of their own
# Coefficients of the cost formulas that samples of operators can tell.
DETERMINABLE = (
    *("matmul", "matmul_fp8", "tile", "grouped", "batched", "unaligned", "flash", "flash_width", "flash_ramp"),
    *("flash_backward", "memory", "score_traffic", "optimizer_traffic", "head_traffic"),
)
NEOX_STACKS = ("gpt-neox", "gpt-neox-partitioned", "gpt-neox-flash", "gpt-neox-flash-partitioned")
# Stacks whose other coefficients were fitted beside kernels timed alone: what samples tell is for these.
FOR_STACKS = ("hf-eager", "hf-compile", "ddp", "fsdp", *NEOX_STACKS)


def fittable(read: Read) -> list[Samples]:
    """Operators with samples enough."""
    return [one for one in read.samples if one.op not in BLOCKS and len(one.time_us) >= LEAST_SAMPLES]


def fitted_profile(
    read: Read,
    *,
    correction: bool = True,
    settings: Mapping[str, Settings] | None = None,
    source: str = "",
    progress: Callable[[], None] | None = None,
) -> OperatorProfile:
    """The profile of a GPU; what the samples do not tell is not in it, and its notes say so."""
    gpu = catalogue().gpu(read.gpu)
    operators = {}
    for one in fittable(read):
        chosen = (settings or {}).get(one.key)
        operators[one.key] = fit_operator(one, read.processors, correction=correction, settings=chosen)
        if progress is not None:
            progress()
    found = coefficients_of(read, gpu)
    stacks = stack_coefficients(found)
    few = [one.key for one in read.samples if one.op not in BLOCKS and one.key not in operators]
    if few:
        found.notes.append(f"fewer than {LEAST_SAMPLES} samples, not fitted: {', '.join(few)}")
    return OperatorProfile(
        gpu=gpu.name,
        device=read.device,
        source=source or read.source,
        processors=read.processors,
        samples=read.used,
        left_out=read.left_out,
        operators=operators,
        coefficients=found.values,
        stack_coefficients=stacks,
        notes=tuple(found.notes),
        checks=make_checks(read),
    )


def kept(profile: OperatorProfile) -> list[str]:
    """Coefficients that samples can tell and these do not: the shipped values stay."""
    return [name for name in DETERMINABLE if name not in profile.coefficients]


def own_profile(profile: OperatorProfile, name: str) -> OwnProfile:
    """The same as an own profile, which predictions use: what kernels tell of the GPU.

    What whole layers add to their kernels (`stack_coefficients`) is not in it: a single layer in a loop is launched
    otherwise than within a model, and stacks fitted to whole steps are closer.
    """
    notes = [*profile.notes]
    if kept(profile):
        notes.append("kept: " + ", ".join(kept(profile)))
    return OwnProfile(
        name=name,
        source=f"samples of operators: {profile.source}",
        created=now(),
        gpus={profile.gpu: dict(profile.coefficients)} if profile.coefficients else {},
        for_stacks=FOR_STACKS,
        notes=tuple(notes),
        scores={
            "operators": {
                key: {"samples": fit.samples, "error_pct": fit.error_pct, "unseen_pct": fit.unseen_pct}
                for key, fit in profile.operators.items()
            }
        },
    )


def text_of(profile: OperatorProfile) -> str:
    """The profile as its file holds it: figures of a kind on one line, a tree on one line."""
    plain: dict[str, Any] = profile.model_dump(mode="json", exclude_defaults=True)
    head = (
        f"# Times of single operators on {profile.gpu}: physical forms (us; docs/formulas.md, operators from samples)\n"
        "# and small corrections, made by `crosszone calibrate fit`. Errors are means over held-out samples, in %;\n"
        "# unseen: whole sizes held out. Coefficients: what the cost formulas take from the samples.\n"
        "# Checks: some measured shapes, on which the formulas of a predicted step are scored.\n"
    )
    return head + yaml.dump(plain, Dumper=_Lines, sort_keys=False, allow_unicode=True, width=10_000)


class _Lines(yaml.SafeDumper):
    """Mappings and lists of plain numbers and words go on one line, texts of trees on one line each."""

    def represent_mapping(self, tag: Any, mapping: Any, flow_style: bool | None = None) -> Any:
        """A node; on one line where only numbers, words and pairs are in it."""
        node = super().represent_mapping(tag, mapping, flow_style)
        node.flow_style = all(isinstance(one, yaml.ScalarNode) or _pair(one) for _, one in node.value)
        return node

    def represent_sequence(self, tag: Any, sequence: Any, flow_style: bool | None = None) -> Any:
        """A node; on one line where only words are in it."""
        node = super().represent_sequence(tag, sequence, flow_style)
        node.flow_style = not any(" " in getattr(one, "value", "") for one in node.value)
        return node


def _pair(node: yaml.Node) -> bool:
    return isinstance(node, yaml.SequenceNode) and bool(node.flow_style) and len(node.value) == 2


LAUNCH_BOUND_US = 30.0  # Shorter kernels measure launches
LARGE_MB = 200.0  # Tensors that no cache holds
CUTS = 10  # Parts that the jackknife leaves out in turn
LEAST_ERROR = 0.005
ODD_ROWS = 16_000  # Products with as many odd columns are heads
WEIGHT_TRAFFIC = 6.0  # As in `cost/replicas.py`: bytes of the optimizer's step beside its states
# Moments, master weights and gradients of a parameter: fp32; all in bf16; fp16 with fp32 master and moments.
STATE_BYTES = {"fp32": 12.0, "bf16": 6.0, "fp16": 14.0}
# As in `cost/layer.py`: traffic of a score of unfused attention, forward (12) and backward (20).
SCORE_BYTES = 32.0

Estimate = Callable[[npt.NDArray[np.bool_]], Floats]  # Values fitted to the samples that are marked


@dataclass(frozen=True)
class Joined:
    """Samples of one shape in several passes: times added up."""

    sizes: dict[str, Floats]
    times: dict[str, Floats]
    group: npt.NDArray[np.int64]

    @property
    def total_s(self) -> Floats:
        """All passes together."""
        return np.asarray(sum(self.times.values())) * 1e-6


def joined(samples: Sequence[Samples], passes: Sequence[str]) -> Joined | None:
    """Shapes that were sampled in all passes; None: none was."""
    by_pass = {one.which: one for one in samples}
    if not all(name in by_pass for name in passes):
        return None
    first = by_pass[passes[0]]
    names = list(first.sizes)

    def shapes(one: Samples) -> list[tuple[float, ...]]:
        return list(zip(*(one.sizes[name].tolist() for name in names), strict=True))

    places = [dict(zip(shapes(by_pass[name]), range(10**9), strict=False)) for name in passes]
    common = [shape for shape in places[0] if all(shape in place for place in places)]
    if not common:
        return None
    at = [np.array([place[shape] for shape in common]) for place in places]
    return Joined(
        {name: first.sizes[name][at[0]] for name in names},
        {name: by_pass[name].time_us[index] for name, index in zip(passes, at, strict=True)},
        first.group[at[0]],
    )


def estimated(estimate: Estimate, group: npt.NDArray[np.int64]) -> list[tuple[float, float]]:
    """Values with the standard error of their logarithms, from leaving out whole sizes in turn. [K29]

    Where all samples are of one size, samples are left out instead.
    """
    every = np.ones(len(group), dtype=bool)
    whole = estimate(every)
    sizes, number = np.unique(group, return_inverse=True)
    cuts = (number if len(sizes) > 1 else np.arange(len(group))) % CUTS
    parts = [estimate(cuts != cut) for cut in np.unique(cuts)]
    logs = np.log(np.maximum(np.array(parts), 1e-12))
    count = len(parts)
    spread = np.sqrt((count - 1) / count * np.sum((logs - logs.mean(axis=0)) ** 2, axis=0))
    return [(float(value), max(LEAST_ERROR, float(error))) for value, error in zip(whole, spread, strict=True)]


def _median(values: Floats, group: npt.NDArray[np.int64]) -> tuple[float, float]:
    """The median with its error."""
    return estimated(lambda mask: np.array([np.median(values[mask])]), group)[0]


class Found:
    """Coefficients found so far; what is not yet there is taken from the shipped profile."""

    def __init__(self, read: Read, gpu: Gpu):
        self.read, self.gpu = read, gpu
        self.values: dict[str, Coefficient] = {}
        self.notes: list[str] = []
        self.optimizers: dict[str, float] = {}
        """Seconds a parameter by precision of the optimizer."""
        self._shipped = Profiles.shipped().select(gpu, "generic").coefficients
        self.memory_rate = gpu.memory_gb_per_s * 1e9

    def now(self, name: str) -> float:
        """The measured value, else the shipped one."""
        return self.values[name].value if name in self.values else float(getattr(self._shipped, name))

    def put(self, name: str, value: float, error: float) -> None:
        """A measured value."""
        if value > 0:
            self.values[name] = Coefficient(value=float(f"{value:.4g}"), error=float(f"{error:.2g}"), origin="measured")

    def peak(self, dtype: str) -> float | None:
        """Dense peak in FLOP/s."""
        tflops = getattr(self.gpu.dense_tflops, dtype)
        return None if tflops is None else tflops * 1e12

    def main_dtype(self, op: str) -> str | None:
        """The 16-bit precision with more samples."""
        count = {t: sum(len(one.time_us) for one in self.read.of(op, t)) for t in ("bf16", "fp16")}
        best = max(count, key=lambda t: count[t])
        return best if count[best] else None


def coefficients_of(read: Read, gpu: Gpu) -> Found:
    """All coefficients that the samples determine."""
    found = Found(read, gpu)
    for step in (_memory, _products, _fp8, _grouped, _unaligned, _flash, _batched, _optimizer, _loss):
        step(found)
    return found


def _note(found: Found, name: str, predicted: Floats, measured: Floats) -> None:
    error = 100.0 * float(np.abs(predicted / measured - 1).mean())
    found.notes.append(f"{name}: the cost formula is off by {error:.1f} % in the mean of {len(measured)} shapes")


def _memory(found: Found) -> None:
    """The rate of large copies, else of additions and activations. [O4]"""
    for op, passes in (("copy", 1.0), ("residual_add", 3.0), ("gelu", 2.0)):
        for one in found.read.of(op, which="step" if op == "copy" else "fwd"):
            size = one.sizes["bytes"] if op == "copy" else one.sizes["tokens"] * one.sizes["width"]
            traffic = size * (1.0 if op == "copy" else passes * DTYPE_BYTES[one.dtype])
            large = traffic > LARGE_MB * 1e6
            if large.sum() < 5:
                continue
            share = traffic[large] / (one.time_us[large] * 1e-6) / found.memory_rate
            found.put("memory", *_median(share, one.group[large]))
            return


def _products(found: Found) -> None:
    """Efficiency and tile of aligned products, all three passes together. [O1]"""
    dtype = found.main_dtype("matmul")
    peak = found.peak(dtype) if dtype else None
    both = _passes(found, "matmul", dtype) if dtype else None
    if both is None or peak is None:
        return
    s, total = both.sizes, both.total_s
    use = (s["n"] % 8 == 0) & (s["k"] % 8 == 0) & (total > 3e-6 * LAUNCH_BOUND_US)
    if use.sum() < 10:
        return
    m, n, k, time_s = s["m"][use], s["n"][use], s["k"][use], total[use]
    matrix = np.stack([6.0 * m * n * k / peak, 6.0 * (m * k + k * n + m * n) / found.memory_rate], axis=-1)

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        inverse, tile = not_negative(matrix[mask], time_s[mask])
        return np.array([1.0 / inverse, tile])

    (share, share_error), (tile, tile_error) = estimated(fit, both.group[use])
    found.put("matmul", share, share_error)
    found.put("tile", tile, tile_error)
    _note(found, "matmul", matrix @ np.array([1 / share, tile]), time_s)


def _passes(found: Found, op: str, dtype: str | None, mode: str = "eager") -> Joined | None:
    """A product forward and backward: three products, or two timings that hold them."""
    samples = found.read.of(op, dtype, mode=mode)
    return joined(samples, ("fwd", "dgrad", "wgrad")) or joined(samples, ("fwd", "bwd"))


def _fp8(found: Found) -> None:
    """Efficiency of fp8 products, with the tile of 16-bit ones; what was sampled of the three passes is used. [O1]"""
    peak, one = found.peak("fp8"), found.read.of("matmul", "fp8")
    if peak is None or not one:
        return
    time_s = np.concatenate([each.time_us for each in one]) * 1e-6
    m, n, k = (np.concatenate([each.sizes[name] for each in one]) for name in ("m", "n", "k"))
    group = np.concatenate([each.group for each in one])
    extra = matmul_s(m, k, n, np.inf, found.now("tile") / found.memory_rate)
    use = (time_s > 1e-6 * LAUNCH_BOUND_US) & (time_s > 1.05 * extra)
    if use.sum() < 10:
        return
    ideal = 2.0 * m * n * k / peak

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        return np.array([1.0 / np.median((time_s - extra)[use][mask] / ideal[use][mask])])

    (share, error), *_ = estimated(fit, group[use])
    found.put("matmul_fp8", share, error)
    _note(found, "matmul_fp8", (ideal / share + extra)[use], time_s[use])


def _grouped(found: Found) -> None:
    """Rate of grouped products over dense ones. [O6]"""
    dtype = found.main_dtype("grouped_matmul")
    both = _passes(found, "grouped_matmul", dtype) if dtype else None
    peak = found.peak(dtype) if dtype else None
    if both is None or peak is None:
        return
    s, total = both.sizes, both.total_s
    extra = 3.0 * matmul_s(s["m"], s["k"], s["n"], np.inf, found.now("tile") / found.memory_rate, s["groups"])
    use = (total > 3e-6 * LAUNCH_BOUND_US) & (total > 1.05 * extra)
    if use.sum() < 10:
        return
    ideal = 6.0 * s["m"] * s["n"] * s["k"] / (found.now("matmul") * peak)

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        return np.array([1.0 / np.median((total - extra)[use][mask] / ideal[use][mask])])

    (share, error), *_ = estimated(fit, both.group[use])
    found.put("grouped", share, error)
    _note(found, "grouped", (ideal / share + extra)[use], total[use])


def _unaligned(found: Found) -> None:
    """Time of products with an odd number of columns over aligned ones. [O9]"""
    dtype = found.main_dtype("matmul")
    both = _passes(found, "matmul", dtype) if dtype else None
    peak = found.peak(dtype) if dtype else None
    if both is None or peak is None:
        return
    s = both.sizes
    aligned = 3.0 * matmul_s(s["m"], s["k"], s["n"], found.now("matmul") * peak, found.now("tile") / found.memory_rate)
    odd = (s["n"] % 2 == 1) & (s["k"] % 8 == 0) & (both.total_s > 3e-6 * LAUNCH_BOUND_US)
    heads = odd & (s["n"] >= ODD_ROWS)
    use = heads if heads.sum() >= 4 else odd
    if use.sum() < 4:
        return
    ratio = (both.total_s / aligned)[use]
    found.put("unaligned", *_median(ratio, both.group[use]))


def _flash(found: Found) -> None:
    """Rate of fused attention by head width and length, and its backward pass. [O2] [O11]"""
    require_extra("calibrate")
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    dtype = found.main_dtype("attention")
    peak = found.peak(dtype) if dtype else None
    forward = found.read.of("attention", dtype, "fwd") if dtype else []
    if not forward or peak is None:
        return
    usual = forward[0].sizes["head_dim"] % HEAD_BLOCK == 0
    one = forward[0].taken(usual & (forward[0].time_us > LAUNCH_BOUND_US))
    if len(one.time_us) < 12:
        return
    s, time_s = one.sizes, one.time_us * 1e-6
    tokens, width = s["batch"] * s["seq"], 2.0 * s["heads"] * s["head_dim"]

    def formula(p: Floats) -> Floats:
        flash, wide, ramp = np.exp(p)
        share = flash_share(s["head_dim"], s["seq"], wide, ramp)
        return np.asarray(
            flash_attention_s(tokens, tokens_seen(s["seq"], None, causal=1.0), width, share * flash * peak)
        )

    start = np.log([0.5, 80.0, 400.0])
    limits = (np.log([0.05, 1.0, 1.0]), np.log([1.0, 2000.0, 5000.0]))

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        def rest(p: Floats) -> Floats:
            return np.asarray(np.log(formula(p) / time_s)[mask])

        return np.asarray(np.exp(least_squares(rest, start, bounds=limits, loss="soft_l1", f_scale=0.05).x))

    values = estimated(fit, one.group)
    for name, (value, error) in zip(("flash", "flash_width", "flash_ramp"), values, strict=True):
        found.put(name, value, error)
    _note(found, "flash", formula(np.log([value for value, _ in values])), time_s)
    both = joined(found.read.of("attention", dtype), ("fwd", "bwd"))
    if both is not None:
        use = both.times["fwd"] > LAUNCH_BOUND_US
        if use.sum() >= 5:
            found.put("flash_backward", *_median((both.times["bwd"] / both.times["fwd"])[use], both.group[use]))


def _batched(found: Found) -> None:
    """Batched products of unfused attention and the traffic of its scores, both passes together. [O3]"""
    dtype = found.main_dtype("scores_matmul")
    peak = found.peak(dtype) if dtype else None
    parts = [joined(found.read.of(op, dtype), ("fwd", "bwd")) for op in ("scores_matmul", "values_matmul")]
    softmax = joined(found.read.of("causal_softmax", dtype), ("fwd", "bwd"))
    if peak is None or parts[0] is None or parts[1] is None:
        return
    rates, traffic = [], []
    for one in parts:
        assert one is not None
        s = one.sizes
        use = (s["head_dim"] % 8 == 0) & (one.total_s > 2e-6 * LAUNCH_BOUND_US)
        if use.sum() < 5:
            return
        scores = (s["batch"] * s["seq"] ** 2)[use]
        matrix = np.stack([6.0 * scores * s["head_dim"][use] / peak, scores], axis=-1)
        time_s = one.total_s[use]

        def fit_one(mask: npt.NDArray[np.bool_], x: Floats = matrix, t: Floats = time_s) -> Floats:
            return _below_peak(x[mask], t[mask])

        both = estimated(fit_one, one.group[use])
        rates.append((1.0 / both[0][0], both[0][1]))
        traffic.append(both[1][0])
    share = 2.0 / sum(1.0 / value for value, _ in rates)
    found.put("batched", share, float(np.mean([error for _, error in rates])))
    if softmax is None:
        return
    cells = softmax.sizes["tokens"] * softmax.sizes["width"]
    large = cells * 2.0 > LARGE_MB * 1e6
    if large.sum() < 5:
        return
    per_score = softmax.total_s[large] / cells[large]

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        seconds = float(np.median(per_score[mask])) + sum(traffic)
        return np.array([seconds * found.now("memory") * found.memory_rate / SCORE_BYTES])

    found.put("score_traffic", *estimated(fit, softmax.group[large])[0])


def _below_peak(matrix: Floats, time_s: Floats) -> Floats:
    """Seconds per ideal second and per score; arithmetic no faster than the peak."""
    values = not_negative(matrix, time_s)
    if values[0] >= 1.0:
        return values
    return np.array([1.0, max(0.0, float(np.median((time_s - matrix[:, 0]) / matrix[:, 1])))])


def _optimizer(found: Found) -> None:
    """Bytes per parameter of an optimizer whose states take 16 bytes. [O10]"""
    values: list[tuple[float, float]] = []
    for dtype, states in STATE_BYTES.items():
        for one in found.read.of("adamw", dtype):
            large = one.sizes["params"] > 5e7
            if large.sum() < 5:
                continue
            matrix = np.stack([np.ones(large.sum()), one.sizes["layers"][large], one.sizes["params"][large]], axis=-1)
            time_s, rate = one.time_us[large] * 1e-6, found.now("memory") * found.memory_rate

            def fit(mask: npt.NDArray[np.bool_], x: Floats = matrix, t: Floats = time_s) -> Floats:
                return not_negative(x[mask], t[mask])[2:]

            (per_parameter, error), *_ = estimated(fit, one.group[large])
            value = (per_parameter * rate - WEIGHT_TRAFFIC) / (states / 16.0)
            found.notes.append(f"adamw {dtype}: {per_parameter * rate:.1f} bytes a parameter")
            found.optimizers[dtype] = per_parameter
            values.append((value, error))
    if values:
        logs = np.log([max(value, 1e-9) for value, _ in values])
        apart = float(np.std(logs)) if len(values) > 1 else 0.0
        found.put("optimizer_traffic", float(np.exp(logs.mean())), max(apart, *(error for _, error in values)))


def _loss(found: Found) -> None:
    """Bytes per logit of the loss, both passes. [O9]"""
    dtype = found.main_dtype("cross_entropy")
    both = joined(found.read.of("cross_entropy", dtype), ("fwd", "bwd")) if dtype else None
    if both is None:
        return
    cells = both.sizes["tokens"] * both.sizes["vocab"]
    large = cells * 2.0 > LARGE_MB * 1e6
    if large.sum() < 5:
        return
    moved = both.total_s[large] * found.now("memory") * found.memory_rate / cells[large]
    found.put("head_traffic", *_median(moved, both.group[large]))


HOST_BOUND = 0.7  # Share of its time that the host may launch while the GPU is the brake
LEAST_BLOCKS, LEAST_STEPS = 4, 5
GATED = 3.0  # Matrices of the sampled MLP


Put = Callable[[str, float, float], None]  # Takes a coefficient's name, value and error


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
    word, rate = DTYPE_BYTES[dtype], found.now("memory") * found.memory_rate
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
    moved = (
        DTYPE_BYTES[_wide(dtype)] * tokens * (RESIDUAL_PASSES * hidden + 2.0 * (query + 2.0 * key_value) + GATED * ffn)
    )
    return np.asarray(products), np.asarray(attention), moved / (found.now("memory") * found.memory_rate)
