"""Operator profiles made from samples: every operator fitted, and what the cost formulas take from it.

made = fitted_profile(read_samples([Path("samples.csv")]))
made.summary(); text_of(made); own_profile(made, "my-gpu")

Measured shapes that a GPU's operator profile keeps to score the step's formulas on (`cost/operator_checks.py`).

make_checks(read_samples([Path("samples.csv")]))["attention fp16"].time_us
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import yaml

from crosszone.calibrate.operator_coefficients import (
    LAUNCH_BOUND_US,
    Joined,
    coefficients_of,
    joined,
    stack_coefficients,
)
from crosszone.calibrate.operator_fit import LEAST_SAMPLES, Settings, fit_operator
from crosszone.calibrate.operator_samples import Read, Samples
from crosszone.cost.operator_checks import FORMULA_DIMS, MATMULS, CheckTable
from crosszone.cost.operator_forms import Floats
from crosszone.cost.operator_profile import OperatorProfile
from crosszone.cost.own_profiles import OwnProfile, now
from crosszone.inputs.catalogue import catalogue

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
