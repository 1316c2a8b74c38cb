"""Measured shapes that a GPU's operator profile keeps to score the step's formulas on (`cost/operator_checks.py`).

make_checks(read_samples([Path("samples.csv")]))["attention fp16"].time_us
"""

from __future__ import annotations

import numpy as np

from crosszone.calibrate.operator_coefficients import LAUNCH_BOUND_US, Joined, joined
from crosszone.calibrate.operator_samples import Read
from crosszone.cost.operator_checks import FORMULA_DIMS, MATMULS, CheckTable
from crosszone.cost.operator_forms import Floats

MOST_SHAPES = 48
"""Kept of each operator: their mean error is within a point or two of that over thousands of shapes."""
LEAST_SHAPES = 8
PASSES = {
    "matmul": (("fwd", "dgrad", "wgrad"), ("fwd", "bwd"), ("fwd",)),
    "grouped_matmul": (("fwd", "dgrad", "wgrad"), ("fwd",)),
    "attention": (("fwd", "bwd"), ("fwd",)),
    "unfused_attention": (("fwd", "bwd"), ("fwd",)),
    "cross_entropy": (("fwd", "bwd"),),
    "copy": (("step",),),
}
"""Passes that are added up: the first of these that were sampled."""
ALIGNED = 8
"""Of other columns the tensor cores are slower; a step has such a matmul in the head alone."""


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
