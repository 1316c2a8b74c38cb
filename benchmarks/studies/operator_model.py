"""Which model of a GPU's kernels predicts whole steps better: `python benchmarks/studies/operator_model.py`.

Two models are compared: the step's formulas with coefficients (cost/layer.py), and kernels sampled alone (physical
forms with boosted trees, cost/profiles/operators/*.yaml) in their place, forward, gradient of the inputs and gradient
of the weights each with its own time. Everything else is the same: rows, free coefficients, priors, fit and folds.
Steps are scored by the closed form that fits use. The table goes into RESULTS.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # results.py lies beside the other benchmarks

from crosszone import measured
from crosszone.calibrate.fit import (
    ROUNDS,
    PriorArrays,
    Vector,
    assign_folds,
    build_prior_arrays,
    draw_start_values,
    fit,
    read_doubtful_reasons,
    select_usable_runs,
)
from crosszone.calibrate.predicted import StepBatches, get_gpu
from crosszone.calibrate.runs import MeasuredRun, read_runs
from crosszone.cost import layer as layer_module
from crosszone.cost.layer import Layer, LayerCost, matmul_s
from crosszone.cost.operator_profile import OperatorProfile, load_operator_profile
from crosszone.cost.profile import Profiles
from crosszone.inputs.flops import tokens_seen
from crosszone.predict import step as step_module
from results import write_section

BENCHMARKS = Path(__file__).resolve().parents[1]
A100, H200 = "a100-80gb-sxm", "h200-141gb-sxm"
HF_STACKS = ("hf-eager", "hf-compile")
PATH_16_BITS = 16.0
ALIGNED_COLUMNS = 8.0
"""torch.compile pads matmuls to multiples of this."""
MODEL_FOLDS = 8
"""Parts that the models of the A100 rows are dealt into: a fit of them takes a quarter of a minute."""
FUSED_PASSES = 1.4
"""Prior of `score_traffic`: at it the sampled softmax counts once."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model of the kernels."""

    name: str
    sampled: bool = False
    """Matmuls and attention take the times of sampled kernels."""
    scaled: bool = False
    """Sampled times are divided by the stack's coefficient over the samples': kernels in a step may be slower."""
    from_samples: bool = False
    """The GPU's coefficients are those that `calibrate fit` finds in the samples, and not fitted to steps."""


class SampledLayer(LayerCost):
    """A layer whose matmuls and attention take the times of kernels sampled alone."""

    profile: ClassVar[OperatorProfile]
    variant: ClassVar[Variant]
    active: ClassVar[SampledLayer]
    remembered: ClassVar[dict[Any, Any]] = {}
    """Kernel times by shapes: a fit changes coefficients, never shapes."""

    def __init__(self, *columns: Any):
        type(self).active = self
        self.dtype = "bf16" if "matmul bf16 fwd" in self.profile.operators else "fp16"
        self.backward_excess: Any = 0.0
        """Half of the backward matmuls' time beyond the forward's, of the part that is being computed."""
        super().__init__(*columns)

    def kernel_s(self, op: str, which: str, **sizes: Any) -> Any:
        """Seconds of a sampled kernel; of shapes that are not there, 0."""
        arrays = np.broadcast_arrays(*(np.asarray(size, dtype=float) for size in sizes.values()))
        key = (self.profile.gpu, op, which, *(array.tobytes() for array in arrays))
        if key not in self.remembered:
            present = np.all([array > 0 for array in arrays], axis=0)
            positive_sizes = {name: np.maximum(array, 1.0) for name, array in zip(sizes, arrays, strict=True)}
            kernel = self.profile.fit(op, self.dtype, which)
            time_s = 1e-6 * kernel.time_us(positive_sizes, self.profile.processors).reshape(arrays[0].shape)
            self.remembered[key] = np.where(present, time_s, 0.0)
        return self.remembered[key]

    def backward_matmul_s(self, op: str, **sizes: Any) -> Any:
        """Both gradients of a matmul."""
        if f"{op} {self.dtype} bwd" in self.profile.operators:
            return self.kernel_s(op, "bwd", **sizes)
        return self.kernel_s(op, "dgrad", **sizes) + self.kernel_s(op, "wgrad", **sizes)

    def slowdown(self, name: str) -> Any:
        """Time of a kernel within the step over alone: 1, or what the fitted coefficient says."""
        return self.profile.coefficients[name].value / getattr(self.k, name) if self.variant.scaled else 1.0

    def sampled_matmul_s(self, rows: Any, inner: Any, columns: Any, rate: Any, byte_s: Any, copies: Any = 1.0) -> Any:
        """In place of `matmul_s`; grouped matmuls and other precisions, which were not sampled, stay formulas."""
        formula = matmul_s(rows, inner, columns, rate, byte_s, copies)
        if not np.isscalar(copies):
            return formula
        sizes = {"m": rows, "n": columns, "k": inner}
        slowdown = self.slowdown("matmul")
        forward = slowdown * self.kernel_s("matmul", "fwd", **sizes)
        backward = slowdown * self.backward_matmul_s("matmul", **sizes)
        is_sampled = np.asarray(self.work.path) == PATH_16_BITS
        self.backward_excess = self.backward_excess + np.where(is_sampled, backward / 2.0 - forward, 0.0)
        return np.where(is_sampled, forward, formula)

    def _estimate_attention(self) -> Any:
        self.backward_excess = 0.0
        block = super()._estimate_attention()
        self.block_excess = self.backward_excess
        m, w, k = self.model, self.work, self.k
        batch, heads = w.micro_batch / w.cp, m.heads / w.tp
        sizes = {"batch": batch, "heads": heads, "kv_heads": np.maximum(m.kv_heads / w.tp, 1.0)}
        sizes |= {"head_dim": (m.qk_dim + m.v_dim) / 2.0, "seq": w.seq}
        visible_tokens = tokens_seen(w.seq, m.window, causal=m.causal)
        share = visible_tokens / tokens_seen(w.seq, None, causal=1.0)  # kernels were sampled causal
        share = share / np.where(self.stack.older_flash > 1, k.older_flash * k.triton, 1.0) * self.slowdown("flash")
        forward = share * self.kernel_s("attention", "fwd", **sizes)
        longer_backward = k.flash_backward / self.profile.coefficients["flash_backward"].value
        back = share * self.kernel_s("attention", "bwd", **sizes) * (longer_backward if self.variant.scaled else 1.0)
        unfused = self.stack.unfused > 0
        if "scores_matmul fp16 fwd" in self.profile.operators:
            slower = self.slowdown("batched")
            passes = k.score_traffic / FUSED_PASSES * np.where(self.plain_softmax, k.plain_scores, 1.0)
            lanes = {"batch": batch * heads, "seq": w.seq, "head_dim": sizes["head_dim"]}
            cells = {"tokens": batch * heads * w.seq, "width": w.seq}
            plainly, plainly_back = (
                slower
                * (self.kernel_s("scores_matmul", which, **lanes) + self.kernel_s("values_matmul", which, **lanes))
                + passes * self.kernel_s("causal_softmax", which, **cells)
                for which in ("fwd", "bwd")
            )
            forward, back = np.where(unfused, plainly, forward), np.where(unfused, plainly_back, back)
        else:
            forward = np.where(unfused, block.attention, forward)
            back = np.where(unfused, block.attention_back, back)
        return replace(block, attention=forward, attention_back=back)

    def _estimate_dense_layer(self, block: Any) -> Any:
        self.backward_excess = self.block_excess
        return super()._estimate_dense_layer(block)

    def _estimate_moe_layer(self, block: Any) -> Any:
        self.backward_excess = self.block_excess
        return super()._estimate_moe_layer(block)

    def _sum_layer(self, kind: str, parts: Any, scope: Any = None) -> Layer:
        """Forward and recomputation of the forward kernels, the backward pass of the backward ones."""
        forward = super()._sum_layer(kind, parts, scope)
        backward = super()._sum_layer(kind, replace(parts, matmul=parts.matmul + self.backward_excess), scope)
        return replace(forward, backward=backward.backward)

    def _estimate_head(self) -> tuple[Any, Any]:
        """A step counts the head's forward matmul three times: here a third of its three kernels."""
        m, k = self.model, self.k
        columns = m.vocab / self.work.tp
        kernel = self.profile.fit("matmul", self.dtype, "fwd")
        odd_sampled = any(name.endswith("_odd") for name in kernel.coefficients)
        pads = np.asarray(k.unaligned) == 1.0
        if odd_sampled:
            columns = np.where(pads, np.ceil(columns / ALIGNED_COLUMNS) * ALIGNED_COLUMNS, columns)
            slower: Any = 1.0
        else:
            slower = np.where(np.asarray(m.vocab) % ALIGNED_COLUMNS == 0, 1.0, k.unaligned)
        self.backward_excess = 0.0
        forward = self.sampled_matmul_s(self.tokens, m.hidden, columns, k.matmul * self.flops_16, self.byte_s)
        product = forward + 2.0 / 3.0 * self.backward_excess
        return product * slower, super()._estimate_head()[1]


@contextmanager
def use_kernels(variant: Variant, gpu: str) -> Iterator[None]:
    """Steps predicted meanwhile take their kernels from this model."""
    if not variant.sampled:
        yield
        return
    profile = load_operator_profile(gpu)
    assert profile is not None
    SampledLayer.profile, SampledLayer.variant = profile, variant
    sampled = partial(call_active, "sampled_matmul_s")
    with patch.object(layer_module, "matmul_s", sampled), patch.object(step_module, "LayerCost", SampledLayer):
        yield


def call_active(name: str, *arguments: Any) -> Any:
    """A method of the layer that is being computed, in place of a function of the module."""
    return getattr(SampledLayer.active, name)(*arguments)


def predict_left_out(
    runs: Sequence[MeasuredRun],
    profiles: Profiles,
    priors: PriorArrays,
    parts: Sequence[Mask],
    variant: Variant,
    gpu: str,
) -> Vector:
    """Seconds of each run by a fit that has not seen its part; nan where no part leaves it out."""
    with use_kernels(variant, gpu):
        steps = StepBatches(runs, profiles)
        predicted = np.full(len(runs), np.nan)
        begin = draw_start_values(profiles, priors)
        for left_out in parts:
            weight = np.where(left_out, 0.0, 1.0)[steps.order]
            fitted = fit(steps, steps.index, steps.measured, begin, priors, weights=weight, rounds=ROUNDS)
            all_predicted = np.empty(len(runs))
            all_predicted[steps.order] = steps.predict_at(fitted.values)
            predicted[left_out] = all_predicted[left_out]
    return predicted


def take_samples_coefficients(profiles: Profiles, gpu: str) -> Profiles:
    """The profiles with the GPU family's coefficients as its sampled kernels tell them, no longer fitted to steps."""
    profile = load_operator_profile(gpu)
    assert profile is not None
    family = next(name for name, entry in profiles.gpus.items() if gpu in entry["gpus"])
    coefficients = {name: coefficient.model_dump() for name, coefficient in profile.coefficients.items()}
    entry = profiles.gpus[family]
    gpus = {**profiles.gpus, family: {**entry, "coefficients": entry["coefficients"] | coefficients}}
    return Profiles(profiles.home("common"), gpus, profiles.stacks)


def score(predicted: Vector, runs: Sequence[MeasuredRun]) -> Mapping[str, float]:
    """Rows, mean and median error, bias, rows within 10 %; rows nobody left out do not count."""
    error = 100.0 * (predicted / np.array([run.step_time_s for run in runs], dtype=float) - 1.0)
    error = error[np.isfinite(error)]
    size = np.abs(error)
    return {
        "rows": len(error),
        "mean %": float(size.mean()),
        "median %": float(np.median(size)),
        "bias %": float(error.mean()),
        "within 10 %": float(100.0 * (size <= 10.0).mean()),
    }


H200_VARIANTS = (
    Variant(name="formulas with coefficients"),
    Variant(
        name="sampled kernels", sampled=True, scaled=True
    ),  # the scale is that of masks which compiled models write
)
A100_VARIANTS = (
    Variant(name="formulas, coefficients fitted to steps"),
    Variant(name="formulas, coefficients from the samples", from_samples=True),
    Variant(name="sampled kernels", sampled=True),
    Variant(name="sampled kernels, rates fitted", sampled=True, scaled=True),
)


def compare_h200() -> list[tuple[str, str, Mapping[str, float]]]:
    """Hugging Face steps: stacks fitted to the fit rows and scored on the check rows; then whole models left out."""
    profiles = Profiles.load_shipped()
    files = [BENCHMARKS / "measured/fit/h200_steps.csv", measured.FOLDER / "measured_runs_h200.csv"]
    fitted = [run for path in files for run in select_usable_runs(read_runs(path)[0], {}) if run.stack in HF_STACKS]
    check = select_usable_runs(read_runs(BENCHMARKS / "measured/check/h200_steps.csv")[0], {})
    runs = [*fitted, *check]
    priors = build_prior_arrays(profiles)
    is_of_stacks = np.array([home in [f"stack {name}" for name in HF_STACKS] for home, _ in profiles.names])
    priors = replace(priors, free=priors.free & is_of_stacks)
    is_check = np.arange(len(runs)) >= len(fitted)
    models = [run.case.model.name.split("[")[0] for run in runs]
    tables = {"check rows": [is_check], "whole models": assign_folds(models, 100)}
    return [
        (title, variant.name, score(predict_left_out(runs, profiles, priors, parts, variant, H200), runs))
        for title, parts in tables.items()
        for variant in H200_VARIANTS
    ]


def compare_a100() -> list[tuple[str, str, Mapping[str, float]]]:
    """Published steps on A100 and A800: every free coefficient fitted to the other rows of these GPUs."""
    main_file = measured.FOLDER / "measured_runs.csv"
    shipped = Profiles.load_shipped()
    runs = select_usable_runs(read_runs(main_file)[0], read_doubtful_reasons(main_file, None))
    runs = [run for run in runs if shipped.find_family(get_gpu(run)) == ("a100", True)]
    sources, models = [run.source for run in runs], [run.case.model.name for run in runs]
    tables = {"whole sources": assign_folds(sources, 100), "whole models": assign_folds(models, MODEL_FOLDS)}
    lines = []
    for title, parts in tables.items():
        for variant in A100_VARIANTS:
            profiles = take_samples_coefficients(shipped, A100) if variant.from_samples else shipped
            predicted = predict_left_out(runs, profiles, build_prior_arrays(profiles), parts, variant, A100)
            lines.append((title, variant.name, score(predicted, runs)))
            if title == "whole sources":
                source_of_run = np.array(sources)
                for source in dict.fromkeys(sources):
                    source_runs = [run for run in runs if run.source == source]
                    of_source = predicted[source_of_run == source]
                    lines.append((f"source {source}", variant.name, score(of_source, source_runs)))
    return lines


def write_table(first: str, lines: Sequence[tuple[str, str, Mapping[str, float]]]) -> list[str]:
    """Lines of a Markdown table."""
    names = list(lines[0][2])
    text = [f"| {first} | kernels | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for title, variant, values in lines:
        cells = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in values.values())
        text.append(f"| {title} | {variant} | {' | '.join(cells)} |")
    return [*text, ""]


def main() -> None:
    """Both tables."""
    text = [
        "`python benchmarks/studies/operator_model.py`: errors of whole steps left out of the fit, by the model of the "
        "kernels; rows, free coefficients, priors and folds are the same.",
        "",
        *write_table("H200, Hugging Face: left out", compare_h200()),
    ]
    a100 = sorted(compare_a100(), key=lambda line: line[0].startswith("source "))
    text += write_table("A100, published runs: left out", [line for line in a100 if not line[0].startswith("source ")])
    by_source = [line for line in a100 if line[0].startswith("source ")]
    by_source.sort(key=lambda line: line[0])
    text += write_table(
        "A100, whole sources left out: source", [(t.removeprefix("source "), v, s) for t, v, s in by_source]
    )
    write_section("Operator model", "\n".join(text))


if __name__ == "__main__":
    main()
