"""Operator profiles made from samples: every operator fitted, and what the cost formulas take from it.

    profile = fit_operator_profile(read_samples([Path("samples.csv")]))
    profile.summarize(); format_profile(profile); build_own_profile(profile, "my-gpu")

Coefficients of the cost formulas, each with its error, and what a software stack adds to its operators:

    finder = find_coefficients(read, gpu)
    finder.values["matmul"].value, finder.values["flash"].error
    find_stack_coefficients(finder)["eager"]["elementwise"].value

The formulas are those of `cost/layer.py`, not the forms of single operators: there the backward pass of a matmul is
twice the forward one, so all three matmuls of a layer are fitted together. An error is the standard error of the
logarithm when whole sizes are left out in turn (jackknife).

A sampled layer is its matmuls and its attention by these formulas with the coefficients measured on the same GPU; the
rest is traffic of small kernels (*elementwise*), and of a training step also the loss (*head_traffic*) and a fixed time
(*step_s*). Host times are measured. Layers and steps that the host slows down do not count for the traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from crosszone.calibrate.operator_fit import (
    LEAST_SAMPLES,
    CorrectionSettings,
    SampledOperators,
    Samples,
    fit_operator,
    solve_non_negative,
)
from crosszone.calibrate.operator_shapes import LAUNCH_BOUND_US, JoinedPasses, join_samples, make_checks
from crosszone.cost.coefficients import Coefficient
from crosszone.cost.layer import (
    HEAD_BLOCK,
    RESIDUAL_PASSES,
    flash_attention_s,
    flash_share,
    grouped_share,
    matmul_s,
)
from crosszone.cost.operator_forms import DTYPE_BYTES, Floats
from crosszone.cost.operator_profile import OperatorProfile
from crosszone.cost.own_profiles import OwnProfile, format_now
from crosszone.cost.profile import Profiles
from crosszone.extras import require_extra
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.flops import tokens_seen
from crosszone.inputs.gpu import Gpu

BLOCKS = ("layer", "train_step")  # Sampled to see what a stack adds; they have no form of their own
# Coefficients of the cost formulas that samples of operators can determine.
DETERMINABLE = (
    *("matmul", "matmul_fp8", "tile", "grouped", "batched", "unaligned", "flash", "flash_width", "flash_ramp"),
    *("flash_backward", "memory", "score_traffic", "optimizer_traffic", "head_traffic"),
)
NEOX_STACKS = ("gpt-neox", "gpt-neox-partitioned", "gpt-neox-flash", "gpt-neox-flash-partitioned")
# Stacks whose other coefficients were fitted beside kernels timed alone: what samples determine is for these.
FOR_STACKS = ("hf-eager", "hf-compile", "ddp", "fsdp", *NEOX_STACKS)


def select_fittable(read: SampledOperators) -> list[Samples]:
    """Operators with samples enough."""
    return [samples for samples in read.samples if samples.op not in BLOCKS and len(samples.time_us) >= LEAST_SAMPLES]


def fit_operator_profile(
    read: SampledOperators,
    *,
    correction: bool = True,
    settings: Mapping[str, CorrectionSettings] | None = None,
    source: str = "",
    progress: Callable[[], None] | None = None,
) -> OperatorProfile:
    """The profile of a GPU; what the samples do not determine is not in it, and its notes say so."""
    gpu = catalogue().gpu(read.gpu)
    operators = {}
    for samples in select_fittable(read):
        chosen = (settings or {}).get(samples.key)
        operators[samples.key] = fit_operator(samples, read.processors, correction=correction, settings=chosen)
        if progress is not None:
            progress()
    finder = find_coefficients(read, gpu)
    stacks = find_stack_coefficients(finder)
    too_few = [samples.key for samples in read.samples if samples.op not in BLOCKS and samples.key not in operators]
    if too_few:
        finder.notes.append(f"fewer than {LEAST_SAMPLES} samples, not fitted: {', '.join(too_few)}")
    return OperatorProfile(
        gpu=gpu.name,
        device=read.device,
        source=source or read.source,
        processors=read.processors,
        samples=read.used_rows,
        left_out=read.left_out,
        operators=operators,
        coefficients=finder.values,
        stack_coefficients=stacks,
        notes=tuple(finder.notes),
        checks=make_checks(read),
    )


def list_undetermined(profile: OperatorProfile) -> list[str]:
    """Coefficients that samples can determine and these do not: the shipped values stay."""
    return [name for name in DETERMINABLE if name not in profile.coefficients]


def build_own_profile(profile: OperatorProfile, name: str) -> OwnProfile:
    """The same as an own profile, which predictions use: the coefficients of the GPU.

    What whole layers add to their kernels (`stack_coefficients`) is not in it: a single layer in a loop is launched
    otherwise than within a model, and stacks fitted to whole steps are closer.
    """
    notes = [*profile.notes]
    if list_undetermined(profile):
        notes.append("kept: " + ", ".join(list_undetermined(profile)))
    return OwnProfile(
        name=name,
        source=f"samples of operators: {profile.source}",
        created=format_now(),
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


def format_profile(profile: OperatorProfile) -> str:
    """The profile as its file holds it: figures of a kind on one line, a tree on one line."""
    plain: dict[str, Any] = profile.model_dump(mode="json", exclude_defaults=True)
    head = (
        f"# Times of single operators on {profile.gpu}: physical forms (us; docs/formulas.md, operators from samples)\n"
        "# and small corrections, made by `crosszone calibrate fit`. Errors are means over held-out samples, in %;\n"
        "# unseen: whole sizes held out. Coefficients: what the cost formulas take from the samples.\n"
        "# Checks: some measured shapes, on which the formulas of a predicted step are scored.\n"
    )
    return head + yaml.dump(plain, Dumper=_CompactDumper, sort_keys=False, allow_unicode=True, width=10_000)


class _CompactDumper(yaml.SafeDumper):
    """Mappings and lists of plain numbers and words go on one line, texts of trees on one line each."""

    def represent_mapping(self, tag: Any, mapping: Any, flow_style: bool | None = None) -> Any:
        """A node; on one line where only numbers, words and pairs are in it."""
        node = super().represent_mapping(tag, mapping, flow_style)
        node.flow_style = all(
            isinstance(value_node, yaml.ScalarNode) or _is_pair(value_node) for _, value_node in node.value
        )
        return node

    def represent_sequence(self, tag: Any, sequence: Any, flow_style: bool | None = None) -> Any:
        """A node; on one line where only words are in it."""
        node = super().represent_sequence(tag, sequence, flow_style)
        node.flow_style = not any(" " in getattr(value_node, "value", "") for value_node in node.value)
        return node


def _is_pair(node: yaml.Node) -> bool:
    return isinstance(node, yaml.SequenceNode) and bool(node.flow_style) and len(node.value) == 2


LARGE_MB = 200.0  # Tensors that no cache holds
JACKKNIFE_PARTS = 10  # Parts that the jackknife leaves out in turn
LEAST_ERROR = 0.005
ODD_HEAD_COLUMNS = 16_000  # Matmuls with as many odd columns are heads
WEIGHT_TRAFFIC = 6.0  # As in `cost/replicas.py`: bytes of the optimizer's step beside its states
# Moments, master weights and gradients of a parameter: fp32; all in bf16; fp16 with fp32 master and moments.
STATE_BYTES = {"fp32": 12.0, "bf16": 6.0, "fp16": 14.0}
# As in `cost/layer.py`: traffic of a score of unfused attention, forward (12) and backward (20).
SCORE_BYTES = 32.0

Estimate = Callable[[npt.NDArray[np.bool_]], Floats]  # Values fitted to the samples that are marked


def estimate_with_errors(estimate: Estimate, group: npt.NDArray[np.int64]) -> list[tuple[float, float]]:
    """Values with the standard error of their logarithms, from leaving out whole sizes in turn. [K29]

    Where all samples are of one size, samples are left out instead.
    """
    all_samples = np.ones(len(group), dtype=bool)
    values = estimate(all_samples)
    sizes, number = np.unique(group, return_inverse=True)
    part_of = (number if len(sizes) > 1 else np.arange(len(group))) % JACKKNIFE_PARTS
    parts = [estimate(part_of != part) for part in np.unique(part_of)]
    logs = np.log(np.maximum(np.array(parts), 1e-12))
    count = len(parts)
    spread = np.sqrt((count - 1) / count * np.sum((logs - logs.mean(axis=0)) ** 2, axis=0))
    return [(float(value), max(LEAST_ERROR, float(error))) for value, error in zip(values, spread, strict=True)]


def _estimate_median(values: Floats, group: npt.NDArray[np.int64]) -> tuple[float, float]:
    """The median with its error."""
    return estimate_with_errors(lambda mask: np.array([np.median(values[mask])]), group)[0]


class CoefficientFinder:
    """Coefficients found so far; what is not yet there is taken from the shipped profile."""

    def __init__(self, read: SampledOperators, gpu: Gpu):
        self.read, self.gpu = read, gpu
        self.values: dict[str, Coefficient] = {}
        self.notes: list[str] = []
        self.optimizers: dict[str, float] = {}
        """Seconds a parameter by precision of the optimizer."""
        self._shipped = Profiles.load_shipped().select(gpu, "generic").coefficients
        self.memory_rate = gpu.memory_gb_per_s * 1e9

    def get_value(self, name: str) -> float:
        """The measured value, else the shipped one."""
        return self.values[name].value if name in self.values else float(getattr(self._shipped, name))

    def set_value(self, name: str, value: float, error: float) -> None:
        """A measured value."""
        set_measured(self.values, name, value, error)

    @property
    def byte_s(self) -> float:
        """Seconds that a matmul adds per byte of its operands (coefficient *tile*)."""
        return self.get_value("tile") / self.memory_rate

    @property
    def bytes_per_s(self) -> float:
        """Rate of memory-bound kernels."""
        return self.get_value("memory") * self.memory_rate

    def get_peak(self, dtype: str | None) -> float | None:
        """Dense peak in FLOP/s; None where it, or the precision, is not known."""
        tflops = None if dtype is None else getattr(self.gpu.dense_tflops, dtype)
        return None if tflops is None else tflops * 1e12

    def find_main_dtype(self, op: str) -> str | None:
        """The 16-bit precision with more samples."""
        count = {
            dtype: sum(len(samples.time_us) for samples in self.read.select_samples(op, dtype))
            for dtype in ("bf16", "fp16")
        }
        best = max(count, key=lambda t: count[t])
        return best if count[best] else None


def set_measured(coefficients: dict[str, Coefficient], name: str, value: float, error: float) -> None:
    """Add a measured value where it is one; a fit that ended at 0 says nothing."""
    if value > 0:
        coefficients[name] = Coefficient(value=float(f"{value:.4g}"), error=float(f"{error:.2g}"), origin="measured")


def find_coefficients(read: SampledOperators, gpu: Gpu) -> CoefficientFinder:
    """All coefficients that the samples determine."""
    finder = CoefficientFinder(read, gpu)
    for step in (
        _fit_memory,
        _fit_matmuls,
        _fit_fp8_matmuls,
        _fit_grouped_gemms,
        _fit_unaligned_matmuls,
        _fit_flash,
        _fit_batched_matmuls,
        _fit_optimizer,
        _fit_loss,
    ):
        step(finder)
    return finder


def _note_error(finder: CoefficientFinder, name: str, predicted: Floats, measured: Floats) -> None:
    error = 100.0 * float(np.abs(predicted / measured - 1).mean())
    finder.notes.append(f"{name}: the cost formula is off by {error:.1f} % in the mean of {len(measured)} shapes")


def _fit_memory(finder: CoefficientFinder) -> None:
    """The rate of large copies, else of additions and activations. [O4]"""
    for op, passes in (("copy", 1.0), ("residual_add", 3.0), ("gelu", 2.0)):
        for samples in finder.read.select_samples(op, which="step" if op == "copy" else "fwd"):
            size = samples.sizes["bytes"] if op == "copy" else samples.sizes["tokens"] * samples.sizes["width"]
            traffic = size * (1.0 if op == "copy" else passes * DTYPE_BYTES[samples.dtype])
            large = traffic > LARGE_MB * 1e6
            if large.sum() < 5:
                continue
            share = traffic[large] / (samples.time_us[large] * 1e-6) / finder.memory_rate
            finder.set_value("memory", *_estimate_median(share, samples.group[large]))
            return


def _fit_matmuls(finder: CoefficientFinder) -> None:
    """Efficiency and tile of aligned matmuls, all three passes together. [O1]"""
    joined_passes, peak = _join_matmul_passes(finder, "matmul")
    if joined_passes is None or peak is None:
        return
    s, total = joined_passes.sizes, joined_passes.total_s
    use = (s["n"] % 8 == 0) & (s["k"] % 8 == 0) & (total > 3e-6 * LAUNCH_BOUND_US)
    if use.sum() < 10:
        return
    m, n, k, time_s = s["m"][use], s["n"][use], s["k"][use], total[use]
    matrix = np.stack([6.0 * m * n * k / peak, 6.0 * (m * k + k * n + m * n) / finder.memory_rate], axis=-1)

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        inverse, tile = solve_non_negative(matrix[mask], time_s[mask])
        return np.array([1.0 / inverse, tile])

    (share, share_error), (tile, tile_error) = estimate_with_errors(fit, joined_passes.group[use])
    finder.set_value("matmul", share, share_error)
    finder.set_value("tile", tile, tile_error)
    _note_error(finder, "matmul", matrix @ np.array([1 / share, tile]), time_s)


def _join_matmul_passes(finder: CoefficientFinder, op: str) -> tuple[JoinedPasses | None, float | None]:
    """A matmul forward and backward (three matmuls, or two timings that hold them), and the peak of its precision."""
    dtype = finder.find_main_dtype(op)
    samples = finder.read.select_samples(op, dtype) if dtype else []
    joined_passes = join_samples(samples, ("fwd", "dgrad", "wgrad")) or join_samples(samples, ("fwd", "bwd"))
    return joined_passes, finder.get_peak(dtype)


def _fit_fp8_matmuls(finder: CoefficientFinder) -> None:
    """Efficiency of fp8 matmuls, with the tile of 16-bit ones; what was sampled of the three passes is used. [O1]"""
    peak, samples_by_pass = finder.get_peak("fp8"), finder.read.select_samples("matmul", "fp8")
    if peak is None or not samples_by_pass:
        return
    time_s = np.concatenate([samples.time_us for samples in samples_by_pass]) * 1e-6
    m, n, k = (np.concatenate([samples.sizes[name] for samples in samples_by_pass]) for name in ("m", "n", "k"))
    group = np.concatenate([samples.group for samples in samples_by_pass])
    tile_s = matmul_s(m, k, n, np.inf, finder.byte_s)
    use = (time_s > 1e-6 * LAUNCH_BOUND_US) & (time_s > 1.05 * tile_s)
    if use.sum() < 10:
        return
    ideal = 2.0 * m * n * k / peak
    _fit_share(finder, "matmul_fp8", time_s[use], tile_s[use], ideal[use], group[use])


def _fit_grouped_gemms(finder: CoefficientFinder) -> None:
    """Rate of grouped GEMMs over dense ones, with many tokens for each expert. [O6]"""
    joined_passes, peak = _join_matmul_passes(finder, "grouped_matmul")
    if joined_passes is None or peak is None:
        return
    s, total = joined_passes.sizes, joined_passes.total_s
    tile_s = 3.0 * matmul_s(s["m"], s["k"], s["n"], np.inf, finder.byte_s, s["groups"])
    use = (total > 3e-6 * LAUNCH_BOUND_US) & (total > 1.05 * tile_s)
    if use.sum() < 10:
        return
    tokens_per_expert = s["m"] / s["groups"]
    reached = finder.get_value("matmul") * grouped_share(tokens_per_expert, 1.0, finder.get_value("grouped_ramp"))
    ideal = 6.0 * s["m"] * s["n"] * s["k"] / (reached * peak)
    _fit_share(finder, "grouped", total[use], tile_s[use], ideal[use], joined_passes.group[use])


def _fit_share(
    finder: CoefficientFinder, name: str, time_s: Floats, tile_s: Floats, ideal_s: Floats, group: npt.NDArray[np.int64]
) -> None:
    """Share of the ideal rate that matmuls reach once the time of their tiles is taken off."""

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        return np.array([1.0 / np.median((time_s - tile_s)[mask] / ideal_s[mask])])

    (share, error), *_ = estimate_with_errors(fit, group)
    finder.set_value(name, share, error)
    _note_error(finder, name, ideal_s / share + tile_s, time_s)


def _fit_unaligned_matmuls(finder: CoefficientFinder) -> None:
    """Time of matmuls with an odd number of columns over aligned ones. [O9]"""
    joined_passes, peak = _join_matmul_passes(finder, "matmul")
    if joined_passes is None or peak is None:
        return
    s = joined_passes.sizes
    aligned = 3.0 * matmul_s(s["m"], s["k"], s["n"], finder.get_value("matmul") * peak, finder.byte_s)
    odd = (s["n"] % 2 == 1) & (s["k"] % 8 == 0) & (joined_passes.total_s > 3e-6 * LAUNCH_BOUND_US)
    heads = odd & (s["n"] >= ODD_HEAD_COLUMNS)
    use = heads if heads.sum() >= 4 else odd
    if use.sum() < 4:
        return
    ratio = (joined_passes.total_s / aligned)[use]
    finder.set_value("unaligned", *_estimate_median(ratio, joined_passes.group[use]))


def _fit_flash(finder: CoefficientFinder) -> None:
    """Rate of fused attention by head width and length, and its backward pass. [O2] [O11]"""
    require_extra("calibrate")
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    dtype = finder.find_main_dtype("attention")
    peak = finder.get_peak(dtype)
    forward = finder.read.select_samples("attention", dtype, "fwd") if dtype else []
    if not forward or peak is None:
        return
    is_whole_block = forward[0].sizes["head_dim"] % HEAD_BLOCK == 0
    samples = forward[0].select(is_whole_block & (forward[0].time_us > LAUNCH_BOUND_US))
    if len(samples.time_us) < 12:
        return
    s, time_s = samples.sizes, samples.time_us * 1e-6
    tokens, width = s["batch"] * s["seq"], 2.0 * s["heads"] * s["head_dim"]

    def predict_forward_s(p: Floats) -> Floats:
        flash, wide, ramp = np.exp(p)
        share = flash_share(s["head_dim"], s["seq"], wide, ramp)
        return np.asarray(
            flash_attention_s(tokens, tokens_seen(s["seq"], None, causal=1.0), width, share * flash * peak)
        )

    start = np.log([0.5, 80.0, 400.0])
    limits = (np.log([0.05, 1.0, 1.0]), np.log([1.0, 2000.0, 5000.0]))

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        def compute_residual(p: Floats) -> Floats:
            return np.asarray(np.log(predict_forward_s(p) / time_s)[mask])

        return np.asarray(np.exp(least_squares(compute_residual, start, bounds=limits, loss="soft_l1", f_scale=0.05).x))

    values = estimate_with_errors(fit, samples.group)
    for name, (value, error) in zip(("flash", "flash_width", "flash_ramp"), values, strict=True):
        finder.set_value(name, value, error)
    _note_error(finder, "flash", predict_forward_s(np.log([value for value, _ in values])), time_s)
    joined_passes = join_samples(finder.read.select_samples("attention", dtype), ("fwd", "bwd"))
    if joined_passes is not None:
        use = joined_passes.times["fwd"] > LAUNCH_BOUND_US
        if use.sum() >= 5:
            ratio = (joined_passes.times["bwd"] / joined_passes.times["fwd"])[use]
            finder.set_value("flash_backward", *_estimate_median(ratio, joined_passes.group[use]))


def _fit_batched_matmuls(finder: CoefficientFinder) -> None:
    """Batched matmuls of unfused attention and the traffic of its scores, both passes together. [O3]"""
    dtype = finder.find_main_dtype("scores_matmul")
    peak = finder.get_peak(dtype)
    parts = [
        join_samples(finder.read.select_samples(op, dtype), ("fwd", "bwd")) for op in ("scores_matmul", "values_matmul")
    ]
    softmax = join_samples(finder.read.select_samples("causal_softmax", dtype), ("fwd", "bwd"))
    if peak is None or parts[0] is None or parts[1] is None:
        return
    rates, traffic = [], []
    for part in parts:
        assert part is not None
        s = part.sizes
        use = (s["head_dim"] % 8 == 0) & (part.total_s > 2e-6 * LAUNCH_BOUND_US)
        if use.sum() < 5:
            return
        scores = (s["batch"] * s["seq"] ** 2)[use]
        matrix = np.stack([6.0 * scores * s["head_dim"][use] / peak, scores], axis=-1)
        time_s = part.total_s[use]

        def fit_part(mask: npt.NDArray[np.bool_], x: Floats = matrix, t: Floats = time_s) -> Floats:
            return _solve_below_peak(x[mask], t[mask])

        estimates = estimate_with_errors(fit_part, part.group[use])
        rates.append((1.0 / estimates[0][0], estimates[0][1]))
        traffic.append(estimates[1][0])
    share = 2.0 / sum(1.0 / value for value, _ in rates)
    finder.set_value("batched", share, float(np.mean([error for _, error in rates])))
    if softmax is None:
        return
    cells = softmax.sizes["tokens"] * softmax.sizes["width"]
    large = cells * 2.0 > LARGE_MB * 1e6
    if large.sum() < 5:
        return
    per_score = softmax.total_s[large] / cells[large]

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        seconds = float(np.median(per_score[mask])) + sum(traffic)
        return np.array([seconds * finder.get_value("memory") * finder.memory_rate / SCORE_BYTES])

    finder.set_value("score_traffic", *estimate_with_errors(fit, softmax.group[large])[0])


def _solve_below_peak(matrix: Floats, time_s: Floats) -> Floats:
    """Seconds per ideal second and per score; arithmetic no faster than the peak."""
    values = solve_non_negative(matrix, time_s)
    if values[0] >= 1.0:
        return values
    return np.array([1.0, max(0.0, float(np.median((time_s - matrix[:, 0]) / matrix[:, 1])))])


def _fit_optimizer(finder: CoefficientFinder) -> None:
    """Bytes per parameter of an optimizer whose states take 16 bytes. [O10]"""
    values: list[tuple[float, float]] = []
    for dtype, states in STATE_BYTES.items():
        for samples in finder.read.select_samples("adamw", dtype):
            large = samples.sizes["params"] > 5e7
            if large.sum() < 5:
                continue
            matrix = np.stack(
                [np.ones(large.sum()), samples.sizes["layers"][large], samples.sizes["params"][large]], axis=-1
            )
            time_s, rate = samples.time_us[large] * 1e-6, finder.bytes_per_s

            def fit(mask: npt.NDArray[np.bool_], x: Floats = matrix, t: Floats = time_s) -> Floats:
                return solve_non_negative(x[mask], t[mask])[2:]

            (per_parameter, error), *_ = estimate_with_errors(fit, samples.group[large])
            value = (per_parameter * rate - WEIGHT_TRAFFIC) / (states / 16.0)
            finder.notes.append(f"adamw {dtype}: {per_parameter * rate:.1f} bytes a parameter")
            finder.optimizers[dtype] = per_parameter
            values.append((value, error))
    if values:
        logs = np.log([max(value, 1e-9) for value, _ in values])
        spread = float(np.std(logs)) if len(values) > 1 else 0.0
        finder.set_value("optimizer_traffic", float(np.exp(logs.mean())), max(spread, *(error for _, error in values)))


def _fit_loss(finder: CoefficientFinder) -> None:
    """Bytes per logit of the loss, both passes. [O9]"""
    dtype = finder.find_main_dtype("cross_entropy")
    joined_passes = join_samples(finder.read.select_samples("cross_entropy", dtype), ("fwd", "bwd")) if dtype else None
    if joined_passes is None:
        return
    cells = joined_passes.sizes["tokens"] * joined_passes.sizes["vocab"]
    large = cells * 2.0 > LARGE_MB * 1e6
    if large.sum() < 5:
        return
    moved = joined_passes.total_s[large] * finder.get_value("memory") * finder.memory_rate / cells[large]
    finder.set_value("head_traffic", *_estimate_median(moved, joined_passes.group[large]))


HOST_BOUND = 0.7  # Share of its time that the host may launch while the GPU is the brake
LEAST_BLOCKS, LEAST_STEPS = 4, 5
GATED = 3.0  # Matrices of the sampled MLP


@dataclass(frozen=True)
class LinearSums:
    """Layers and steps as sums: known seconds, and what is multiplied by the coefficients that are looked for."""

    predicted_s: Floats
    matrix: Floats
    """Columns: seconds per unit of elementwise, of head_traffic, of step_s."""
    time_s: Floats
    group: npt.NDArray[np.int64]


def find_stack_coefficients(finder: CoefficientFinder) -> dict[str, dict[str, Coefficient]]:
    """elementwise, head_traffic, optimizer_traffic, host_s, host_backward and step_s by mode (eager, compiled)."""
    modes = sorted({samples.mode for samples in finder.read.samples if samples.op in ("layer", "train_step")})
    return {mode: coefficients for mode in modes if (coefficients := _find_mode_coefficients(finder, mode))}


def _find_mode_coefficients(finder: CoefficientFinder, mode: str) -> dict[str, Coefficient]:
    coefficients: dict[str, Coefficient] = {}
    parts = [
        part
        for op, sum_parts in (("layer", _sum_layers), ("train_step", _sum_steps))
        for dtype, samples_of_dtype in _group_by_dtype(finder, op, mode).items()
        if (part := sum_parts(finder, mode, dtype, samples_of_dtype)) is not None
    ]
    if parts:
        blocks = LinearSums(
            *(np.concatenate([getattr(samples, name) for samples in parts]) for name in LinearSums.__annotations__)
        )
        _fit_traffic(finder, mode, blocks, coefficients)
    layers = {samples.which: samples for samples in finder.read.select_samples("layer", mode=mode)}
    if all(which in layers and np.isfinite(layers[which].host_us).any() for which in ("fwd", "bwd")):
        for name, value, error in _measure_host(layers["fwd"], layers["bwd"]):
            set_measured(coefficients, name, value, error)
    if "bf16" in finder.optimizers and finder.read.select_samples("train_step", "bf16", mode=mode):
        traffic = (finder.optimizers["bf16"] * finder.bytes_per_s - WEIGHT_TRAFFIC) / (STATE_BYTES["bf16"] / 16)
        set_measured(coefficients, "optimizer_traffic", traffic, 0.03)
    return coefficients


def _group_by_dtype(finder: CoefficientFinder, op: str, mode: str) -> dict[str, list[Samples]]:
    """Samples by precision; a precision of which the GPU's rate or the optimizer's states are not known is noted."""
    samples_by_dtype: dict[str, list[Samples]] = {}
    for samples in finder.read.select_samples(op, mode=mode):
        peaks = finder.get_peak(samples.dtype), finder.get_peak(_get_attention_dtype(samples.dtype))
        if None in peaks or (op == "train_step" and samples.dtype not in STATE_BYTES):
            missing = "peak rate" if None in peaks else "size of optimizer states"
            finder.notes.append(f"{samples.key}: not used, no {missing} of {samples.dtype} is known")
        else:
            samples_by_dtype.setdefault(samples.dtype, []).append(samples)
    return samples_by_dtype


def _get_attention_dtype(dtype: str) -> str:
    """The precision of attention and of what is between the matmuls."""
    return "bf16" if dtype == "fp8" else dtype


def _fit_traffic(
    finder: CoefficientFinder, mode: str, blocks: LinearSums, coefficients: dict[str, Coefficient]
) -> None:
    count = len(blocks.time_s)
    steps = int(np.sum(blocks.matrix[:, 2] > 0))
    if count < LEAST_BLOCKS:
        return
    columns = [0] if steps < LEAST_STEPS else [0, 1, 2]
    remaining_s = np.maximum(blocks.time_s - blocks.predicted_s, 0.01 * blocks.time_s)
    weight = remaining_s / blocks.time_s

    def fit(mask: npt.NDArray[np.bool_]) -> Floats:
        return solve_non_negative(blocks.matrix[mask][:, columns], remaining_s[mask], weight[mask])

    values = estimate_with_errors(fit, blocks.group)
    for name, (value, error) in zip(("elementwise", "head_traffic", "step_s"), values, strict=False):
        set_measured(coefficients, name, value, min(error, 1.0))
    total = blocks.predicted_s + blocks.matrix[:, columns] @ np.array([value for value, _ in values])
    error = 100 * float(np.abs(total / blocks.time_s - 1).mean())
    finder.notes.append(f"{mode}: {count} layers and steps within {error:.1f} % in the mean (fitted to them)")


def _measure_host(forward: Samples, backward: Samples) -> list[tuple[str, float, float]]:
    """Launch time of a layer forward, and backward over forward."""
    launch, back = forward.host_us[np.isfinite(forward.host_us)], backward.host_us[np.isfinite(backward.host_us)]
    ratio = float(np.median(back) / np.median(launch))
    error = [float(np.std(np.log(seconds)) / np.sqrt(len(seconds))) for seconds in (launch, back)]
    return [
        ("host_s", float(np.median(launch)) * 1e-6, max(0.02, error[0])),
        ("host_backward", ratio, max(0.02, float(np.hypot(error[0], error[1])))),
    ]


def _sum_layers(finder: CoefficientFinder, _mode: str, dtype: str, samples: list[Samples]) -> LinearSums | None:
    """Forward and backward passes of whole layers."""
    joined_passes = join_samples(samples, ("fwd", "bwd"))
    if joined_passes is None:
        return None
    by_pass = {samples_of_pass.which: samples_of_pass for samples_of_pass in samples}
    matmuls_s, attention_s, traffic_s = predict_layer_parts(finder, joined_passes.sizes, dtype)
    predicted_s = 3.0 * matmuls_s + (1.0 + finder.get_value("flash_backward")) * attention_s
    time_s = joined_passes.total_s
    launch = np.nanmedian(by_pass["fwd"].host_us) + np.nanmedian(by_pass["bwd"].host_us) if len(by_pass) == 2 else 0.0
    use = ~(1e-6 * launch > HOST_BOUND * time_s)
    matrix = np.stack([3.0 * traffic_s, np.zeros_like(traffic_s), np.zeros_like(traffic_s)], axis=-1)
    return _select_blocks(predicted_s, matrix, time_s, joined_passes.sizes["hidden"], use)


def _sum_steps(finder: CoefficientFinder, mode: str, dtype: str, samples: list[Samples]) -> LinearSums | None:
    """Whole training steps: layers, embedding, head, loss and optimizer."""
    first = samples[0]
    s, time_s = first.sizes, first.time_us * 1e-6
    dtype_bytes, rate = DTYPE_BYTES[dtype], finder.bytes_per_s
    recompute = first.recompute.astype(float)
    matmuls_s, attention_s, traffic_s = predict_layer_parts(finder, s, dtype)
    tokens = s["batch"] * s["seq"]
    odd = np.where((s["vocab"] % 8 != 0) & (mode != "compiled"), finder.get_value("unaligned"), 1.0)
    head_s = odd * matmul_s(tokens, s["hidden"], s["vocab"], _get_matmul_rate(finder, dtype), finder.byte_s)
    weights = s["hidden"] * 2.0 * s["head_dim"] * (s["heads"] + s["kv_heads"]) + GATED * s["hidden"] * s["ffn"]
    params = s["layers"] * weights + 2.0 * s["vocab"] * s["hidden"]
    default_parameter_s = (finder.get_value("optimizer_traffic") * STATE_BYTES[dtype] / 16.0 + WEIGHT_TRAFFIC) / rate
    optimizer_s = params * finder.optimizers.get(dtype, default_parameter_s)
    layers_s = s["layers"] * (
        (3.0 + recompute) * matmuls_s + (1.0 + recompute + finder.get_value("flash_backward")) * attention_s
    )
    embedding_s = 3.0 * 2.0 * dtype_bytes * tokens * s["hidden"] / rate
    matrix = np.stack(
        [(3.0 + recompute) * s["layers"] * traffic_s + embedding_s, tokens * s["vocab"] / rate, np.ones_like(tokens)],
        axis=-1,
    )
    use = ~(1e-6 * first.host_us > HOST_BOUND * time_s)
    predicted_s = layers_s + 3.0 * head_s + optimizer_s
    return _select_blocks(predicted_s, matrix, time_s, s["hidden"], use)


def _select_blocks(
    predicted_s: Floats, matrix: Floats, time_s: Floats, hidden: Floats, use: npt.NDArray[np.bool_]
) -> LinearSums | None:
    return LinearSums(predicted_s[use], matrix[use], time_s[use], hidden[use].astype(np.int64)) if use.any() else None


def _get_matmul_rate(finder: CoefficientFinder, dtype: str) -> float:
    peak = finder.get_peak(dtype)
    assert peak is not None  # _group_by_dtype left the others out
    return finder.get_value("matmul_fp8" if dtype == "fp8" else "matmul") * peak


def predict_layer_parts(finder: CoefficientFinder, s: dict[str, Floats], dtype: str) -> tuple[Floats, Floats, Floats]:
    """Seconds of a layer's matmuls, of its attention, and of its traffic at *elementwise* 1, forward. [O7]"""
    tokens, hidden, ffn = s["batch"] * s["seq"], s["hidden"], s["ffn"]
    query, key_value = s["heads"] * s["head_dim"], 2.0 * s["kv_heads"] * s["head_dim"]
    rate, byte_s = _get_matmul_rate(finder, dtype), finder.byte_s
    shapes = ((hidden, query + key_value), (query, hidden), (hidden, (GATED - 1.0) * ffn), (ffn, hidden))
    matmuls_s = sum(matmul_s(tokens, inner, columns, rate, byte_s) for inner, columns in shapes)
    share = flash_share(s["head_dim"], s["seq"], finder.get_value("flash_width"), finder.get_value("flash_ramp"))
    peak = finder.get_peak(_get_attention_dtype(dtype)) or 0.0
    tokens_attended = tokens_seen(s["seq"], None, causal=1.0)
    attention_s = flash_attention_s(tokens, tokens_attended, 2.0 * query, share * finder.get_value("flash") * peak)
    moved_bytes = (
        DTYPE_BYTES[_get_attention_dtype(dtype)]
        * tokens
        * (RESIDUAL_PASSES * hidden + 2.0 * (query + 2.0 * key_value) + GATED * ffn)
    )
    return np.asarray(matmuls_s), np.asarray(attention_s), moved_bytes / finder.bytes_per_s
