"""Fits of operators to samples: a physical form each, and a correction where that helps on unseen sizes.

    found = fit_operator(samples, processors=132, correction=True)
    found.key, found.error_pct, found.unseen_pct

Errors are cross-validated twice: with random samples held out, and with whole sizes held out (hidden sizes of
GPUModeling25, shapes of weights, widths), which is what a model that was not sampled meets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.operator_correction import Settings, fitted_trees, signs_of
from crosszone.calibrate.operator_samples import Samples
from crosszone.cost.operator_forms import PRODUCTS, WORDS, Floats, terms
from crosszone.cost.operator_profile import MOST_CORRECTION, OperatorFit, Part

FOLDS = ((150, 8), (3000, 4), (10**9, 3))
"""Operators with fewer samples than the first are cut into the second many parts."""
LEAST_SAMPLES = 12
"""Fewer say nothing of an operator."""
LEAST_FOR_TREES = 40
LEAST_GAIN = 0.005
"""A correction that takes away less of the error on unseen sizes is not worth its numbers."""
HALVES = "half of the samples"
"""What is held out where all samples are of one size."""
ROUNDS = 4
SHARP = 0.02
"""Relative errors below this count as squares, larger ones as absolute values."""
FLOORS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
"""Shares of the samples that may lie on the floor of launches."""
WELL_ABOVE = 1.15


@dataclass(frozen=True, kw_only=True)
class Form:
    """Coefficients of the terms of one operator."""

    names: tuple[str, ...]
    values: Floats
    floor_us: float

    def time_us(self, matrix: Floats) -> Floats:
        """Times of rows of terms. [K21]"""
        return np.maximum(matrix @ self.values, self.floor_us)


def fit_operator(
    samples: Samples, processors: int, *, correction: bool = True, settings: Settings | None = None
) -> OperatorFit:
    """The fit of one operator with its cross-validated errors."""
    told = settings or Settings()
    matrix, names = matrix_of(samples, processors)
    some = correction and len(samples.time_us) >= LEAST_FOR_TREES
    errors = {kind: held_out_errors(samples, processors, kind, told if some else None) for kind in ("random", "unseen")}
    form = fitted_form(matrix, names, samples.time_us, samples.op)
    better = some and errors["unseen"][1].mean() < errors["unseen"][0].mean() - LEAST_GAIN
    trees = None
    if better:
        trees = fitted_trees(signs_of(samples, processors), np.log(samples.time_us / form.time_us(matrix)), told)
    random, unseen = (errors[kind][1 if better else 0] for kind in ("random", "unseen"))
    return OperatorFit(
        op=samples.op,
        dtype=samples.dtype,
        which=samples.which,
        mode=samples.mode,
        coefficients={
            name: float(f"{value:.5g}") for name, value in zip(form.names, form.values, strict=True) if value > 0
        },
        floor_us=float(f"{form.floor_us:.4g}"),
        samples=len(samples.time_us),
        error_pct=_pct(random.mean()),
        median_pct=_pct(np.median(random)),
        unseen_pct=_pct(unseen.mean()),
        weighted_pct=_pct(np.average(unseen, weights=samples.time_us)),
        physical_pct=_pct(errors["random"][0].mean()),
        physical_unseen_pct=_pct(errors["unseen"][0].mean()),
        held_out=samples.held_out if len(np.unique(samples.group)) > 1 else HALVES,
        ranges={name: (float(value.min()), float(value.max())) for name, value in samples.sizes.items()},
        parts=_parts(samples, random, unseen),
        settings=told.as_dict() if better else {},
        correction=trees,
    )


def _pct(share: float) -> float:
    return round(100.0 * float(share), 2)


def _parts(samples: Samples, random: Floats, unseen: Floats) -> dict[str, Part]:
    names = sorted(set(samples.part.tolist()))
    if names == [samples.op]:
        return {}
    return {
        name: Part(
            samples=int(np.sum(samples.part == name)),
            error_pct=_pct(random[samples.part == name].mean()),
            unseen_pct=_pct(unseen[samples.part == name].mean()),
        )
        for name in names
    }


def matrix_of(samples: Samples, processors: int) -> tuple[Floats, tuple[str, ...]]:
    """The terms of all samples, a column each."""
    found = terms(samples.op, samples.which, samples.sizes, WORDS[samples.dtype], processors)
    return np.stack(list(found.values()), axis=-1), tuple(found)


def fitted_form(matrix: Floats, names: tuple[str, ...], time_us: Floats, op: str) -> Form:
    """Coefficients that are not negative, by relative error; operators that memory binds may have a floor. [K27]"""
    if op in PRODUCTS or op == "attention":
        return Form(names=names, values=not_negative(matrix, time_us), floor_us=0.0)
    best: tuple[float, Floats, float] | None = None
    for share in FLOORS:
        floor = float(np.quantile(time_us, share)) if share else 0.0
        above = time_us > WELL_ABOVE * floor
        if above.sum() < matrix.shape[1] + 3:
            continue
        values = not_negative(matrix[above], time_us[above])
        error = float(np.abs(np.maximum(matrix @ values, floor) / time_us - 1).mean())
        if best is None or error < best[0] - 1e-4:
            best = error, values, floor
    if best is None:
        best = 0.0, not_negative(matrix, time_us), 0.0
    return Form(names=names, values=best[1], floor_us=best[2])


def not_negative(matrix: Floats, time_us: Floats, importance: Floats | float = 1.0) -> Floats:
    """Least relative errors, squares made absolute values by weights. [K27]"""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    size = np.maximum(matrix.max(axis=0), 1e-12)
    shares = matrix / size / time_us[:, None]
    weight = np.ones(len(time_us)) * importance
    values = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        values, _rest = nnls(shares * weight[:, None], weight, maxiter=100 * matrix.shape[1])
        weight = importance / np.sqrt(np.maximum(np.abs(shares @ values - 1.0), SHARP))
    return np.asarray(values / size)


def folds_of(samples: Samples, kind: str) -> npt.NDArray[np.int64]:
    """Which part of the cross-validation holds a sample out; where there is but one size, each half in turn."""
    count = next(parts for below, parts in FOLDS if len(samples.time_us) < below)
    if kind == "random":
        return np.asarray(np.random.default_rng(0).permutation(len(samples.time_us)) % count)
    parts = np.asarray(samples.group % count)
    return parts if len(np.unique(parts)) > 1 else np.arange(len(parts)) % 2


def held_out_errors(
    samples: Samples, processors: int, kind: str, settings: Settings | None, step: Callable[[], None] | None = None
) -> tuple[Floats, Floats]:
    """Relative errors of each sample when held out: of the form, and with its correction. [K28]"""
    matrix, names = matrix_of(samples, processors)
    found = signs_of(samples, processors)
    time_us, folds = samples.time_us, folds_of(samples, kind)
    plain, mended = np.zeros(len(time_us)), np.zeros(len(time_us))
    for fold in np.unique(folds):
        out = folds == fold
        form = fitted_form(matrix[~out], names, time_us[~out], samples.op)
        predicted = form.time_us(matrix[out])
        plain[out] = predicted / time_us[out] - 1
        if settings is not None:
            change = np.log(time_us[~out] / form.time_us(matrix[~out]))
            trees = fitted_trees({name: value[~out] for name, value in found.items()}, change, settings)
            factor = np.clip(trees.value({n: v[out] for n, v in found.items()}), -MOST_CORRECTION, MOST_CORRECTION)
            mended[out] = predicted * np.exp(factor) / time_us[out] - 1
        if step is not None:
            step()
    return np.abs(plain), np.abs(mended) if settings is not None else np.abs(plain)
