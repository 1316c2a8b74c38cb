"""Measured shapes that a GPU's operator profile keeps, to score the step's formulas on (`cost/operator_checks.py`).

make_checks(read_samples([Path("samples.csv")]))["attention fp16"].time_us
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.operator_fit import SampledOperators, Samples
from crosszone.cost.operator_checks import FORMULA_DIMS, MATMULS, CheckTable
from crosszone.cost.operator_forms import Floats

LAUNCH_BOUND_US = 30.0  # Shorter kernels measure launches
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


def make_checks(read: SampledOperators) -> dict[str, CheckTable]:
    """Tables by operator and precision; operators and precisions with too few long kernels have none."""
    tables = {}
    for op, choices in PASSES.items():
        for dtype in ("bf16", "fp16", "fp8") if op == "matmul" else ("bf16", "fp16"):
            candidates = (join_passes(read, op, dtype, passes) for passes in choices)
            joined_passes = next((candidate for candidate in candidates if candidate is not None), None)
            table = None if joined_passes is None else thin_shapes(op, dtype, joined_passes)
            if table is not None:
                tables[f"{op} {dtype}"] = table
    return tables


def join_passes(read: SampledOperators, op: str, dtype: str, passes: tuple[str, ...]) -> JoinedPasses | None:
    """Shapes that were sampled in all of these passes."""
    if op == "unfused_attention":
        return join_unfused(read, dtype, passes)
    return join_samples(read.select_samples(op, dtype), passes)


def join_unfused(read: SampledOperators, dtype: str, passes: tuple[str, ...]) -> JoinedPasses | None:
    """Both batched matmuls and the causal softmax of one shape, their times added up pass by pass."""
    parts = [
        join_samples(read.select_samples(op, dtype), passes)
        for op in ("scores_matmul", "values_matmul", "causal_softmax")
    ]
    if None in parts:
        return None
    scores, values, softmax = (part for part in parts if part is not None)
    values_at = {shape: at for at, shape in enumerate(_list_shapes(values, ("batch", "seq", "head_dim")))}
    softmax_at = {shape: at for at, shape in enumerate(_list_shapes(softmax, ("tokens", "width")))}
    rows = []
    for at, (batch, seq, head_dim) in enumerate(_list_shapes(scores, ("batch", "seq", "head_dim"))):
        places = at, values_at.get((batch, seq, head_dim)), softmax_at.get((batch * seq, seq))
        if None not in places:
            rows.append(places)
    if not rows:
        return None
    first, second, third = np.array(rows).T
    times = {
        name: scores.times[name][first] + values.times[name][second] + softmax.times[name][third] for name in passes
    }
    return JoinedPasses({name: size[first] for name, size in scores.sizes.items()}, times, scores.group[first])


def _list_shapes(part: JoinedPasses, names: tuple[str, ...]) -> list[tuple[float, ...]]:
    return list(zip(*(part.sizes[name].tolist() for name in names), strict=True))


def thin_shapes(op: str, dtype: str, joined_passes: JoinedPasses) -> CheckTable | None:
    """Shapes evenly taken from all of them, in the order of their times; short kernels, which time launches, are not.

    Which ones are taken follows from the samples alone, whatever their order.
    """
    total_us = np.asarray(sum(joined_passes.times.values()))
    kernels = sum(MATMULS.get(name, 1.0) for name in joined_passes.times) * (3.0 if op == "unfused_attention" else 1.0)
    use = total_us > LAUNCH_BOUND_US * kernels
    if op in ("matmul", "grouped_matmul"):
        use &= (joined_passes.sizes["n"] % ALIGNED == 0) & (joined_passes.sizes["k"] % ALIGNED == 0)
    if use.sum() < LEAST_SHAPES:
        return None
    sizes = {name: joined_passes.sizes[name][use] for name in FORMULA_DIMS[op]}
    time_us = total_us[use]
    order = np.lexsort((*sizes.values(), time_us))
    sampled = order[np.unique(np.linspace(0, len(order) - 1, min(MOST_SHAPES, len(order))).round().astype(np.int64))]
    return CheckTable(
        op=op,
        dtype=dtype,
        passes=tuple(joined_passes.times),
        shapes=int(use.sum()),
        sizes={name: _round_values(size[sampled]) for name, size in sizes.items()},
        time_us=_round_values(time_us[sampled]),
    )


def _round_values(values: Floats) -> tuple[float, ...]:
    return tuple(float(f"{value:.7g}") for value in values)


@dataclass(frozen=True)
class JoinedPasses:
    """Samples of one shape in several passes: times added up."""

    sizes: dict[str, Floats]
    times: dict[str, Floats]
    group: npt.NDArray[np.int64]

    @property
    def total_s(self) -> Floats:
        """All passes together."""
        return np.asarray(sum(self.times.values())) * 1e-6


def join_samples(samples: Sequence[Samples], passes: Sequence[str]) -> JoinedPasses | None:
    """Shapes that were sampled in all passes; None: none was."""
    by_pass = {samples_of_pass.which: samples_of_pass for samples_of_pass in samples}
    if not all(name in by_pass for name in passes):
        return None
    first = by_pass[passes[0]]
    names = list(first.sizes)

    def list_shapes(samples_of_pass: Samples) -> list[tuple[float, ...]]:
        return list(zip(*(samples_of_pass.sizes[name].tolist() for name in names), strict=True))

    places = [dict(zip(list_shapes(by_pass[name]), range(10**9), strict=False)) for name in passes]
    common = [shape for shape in places[0] if all(shape in place for place in places)]
    if not common:
        return None
    at = [np.array([place[shape] for shape in common]) for place in places]
    return JoinedPasses(
        {name: first.sizes[name][at[0]] for name in names},
        {name: by_pass[name].time_us[index] for name, index in zip(passes, at, strict=True)},
        first.group[at[0]],
    )
