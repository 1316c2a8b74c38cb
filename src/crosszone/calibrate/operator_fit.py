"""Fits of operators to samples: a physical form each, and a correction where that helps on unseen sizes.

    found = fit_operator(samples, processors=132, correction=True)
    found.key, found.error_pct, found.unseen_pct

Errors are cross-validated twice: with random samples held out, and with whole sizes held out (hidden sizes of
GPUModeling25, shapes of weights, widths), which is what a model that was not sampled meets.

Corrections of an operator's form: small boosted trees of log(time / form), exported as text that numpy evaluates.

    trees = fitted_trees(signs_of(samples, processors), np.log(samples.time_us / form_us), Settings())
    trees.evaluate(signs_of(samples, processors))

Trees never see a raw time: outside of the samples they would hold it constant, while a form grows with the work.

Search for the best settings of a correction, as GPUModeling25 does for its regressors: a grid, cross-validated.

    for line in search(samples, processors=132).table[:3]: print(line.settings, line.error_pct)

A fifth of the samples is kept apart; each setting of the grid is scored on the rest with whole sizes held out, and the
best one is scored once on the fifth. The target is log(time / form), never a raw time. The grid holds what a profile
can carry: boosted trees and forests of few, small trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.operator_samples import Samples
from crosszone.cost.operator_forms import PRODUCTS, WORDS, Floats, signs, terms
from crosszone.cost.operator_profile import MOST_CORRECTION, OperatorFit, Part, Trees
from crosszone.extras import require_extra

MOST_TREES, MOST_LEAVES = 60, 8  # Larger ones would be no small correction, and fill the profile's file


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a correction is fitted."""

    regressor: Literal["boosted", "forest"] = "boosted"
    trees: int = 60
    leaves: int = 8
    rate: float = 0.15
    """Share of its residual that a tree takes away."""
    least: int = 3
    """Samples that a leaf has at least; more where there are many samples."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def signs_of(samples: Samples, processors: int) -> dict[str, Floats]:
    """What a correction looks at."""
    return signs(samples.op, samples.which, samples.sizes, WORDS[samples.dtype], processors)


def fitted_trees(found: Mapping[str, Floats], change: Floats, settings: Settings) -> Trees:
    """Trees of `change` = log(time / form). [K25]"""
    matrix = np.stack(list(found.values()), axis=-1)
    least = max(settings.least, len(change) // 300)
    made = _regressor(settings, least).fit(matrix, change)
    if settings.regressor == "forest":
        return _exported(list(found), 0.0, [one.tree_ for one in made.estimators_], 1.0 / settings.trees)
    base = float(made.init_.constant_.item())
    return _exported(list(found), base, [one.tree_ for one in made.estimators_[:, 0]], settings.rate)


def _regressor(settings: Settings, least: int) -> Any:
    require_extra("calibrate")
    from sklearn.ensemble import (  # type: ignore[import-untyped]
        GradientBoostingRegressor,
        RandomForestRegressor,
    )

    shape = {"max_leaf_nodes": settings.leaves, "min_samples_leaf": least, "random_state": 0}
    if settings.regressor == "forest":
        return RandomForestRegressor(n_estimators=settings.trees, **shape)
    return GradientBoostingRegressor(
        n_estimators=settings.trees, learning_rate=settings.rate, loss="huber", max_depth=None, **shape
    )


def _exported(names: list[str], base: float, trees: list[Any], scale: float) -> Trees:
    """The same trees as text; only signs that they look at are named."""
    used = sorted({int(sign) for tree in trees for sign in tree.feature if sign >= 0})
    number = {sign: at for at, sign in enumerate(used)}
    texts = tuple(" ".join(_words(tree, 0, number, scale)) for tree in trees)
    return Trees(signs=tuple(names[sign] for sign in used), base=float(f"{base:.4g}"), trees=texts)


def _words(tree: Any, at: int, number: Mapping[int, int], scale: float) -> list[str]:
    if tree.children_left[at] < 0:
        return [f"{scale * tree.value[at].item():.4f}".replace("0.", ".")]
    lower = _words(tree, tree.children_left[at], number, scale)
    upper = _words(tree, tree.children_right[at], number, scale)
    return [f"{number[int(tree.feature[at])]}:{tree.threshold[at]:.5g}", *lower, *upper]


# Operators with fewer samples than the first are cut into the second many parts.
FOLDS = ((150, 8), (3000, 4), (10**9, 3))
LEAST_SAMPLES = 12  # Fewer say nothing of an operator
LEAST_FOR_TREES = 40
LEAST_GAIN = 0.005  # A correction that takes away less of the error on unseen sizes is not worth its numbers
HALVES = "half of the samples"  # What is held out where all samples are of one size
ROUNDS = 4
SHARP = 0.02  # Relative errors below this count as squares, larger ones as absolute values
FLOORS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)  # Shares of the samples that may lie on the floor of launches
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
    require_extra("calibrate")
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
            factor = np.clip(trees.evaluate({n: v[out] for n, v in found.items()}), -MOST_CORRECTION, MOST_CORRECTION)
            mended[out] = predicted * np.exp(factor) / time_us[out] - 1
        if step is not None:
            step()
    return np.abs(plain), np.abs(mended) if settings is not None else np.abs(plain)


GRID: tuple[Settings, ...] = (
    *(
        Settings(trees=trees, leaves=leaves, rate=rate, least=least)
        for trees, leaves, rate, least in product((20, 40, 60), (4, 8), (0.1, 0.2), (3, 10))
    ),
    *(Settings(regressor="forest", trees=trees, leaves=8, least=least) for trees, least in product((30, 60), (3, 10))),
)
MOST_SEARCHED = 1500  # Samples a setting is scored on; more would take hours and change little


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One setting and its mean error on sizes that it had not seen."""

    settings: Settings
    error_pct: float


@dataclass(frozen=True, kw_only=True)
class Search:
    """All settings of one operator, best first."""

    table: tuple[Tried, ...]
    test_pct: float
    """Mean error of the best one on the fifth that no setting saw."""
    physical_pct: float
    """That of the form alone on the same fifth."""

    @property
    def best(self) -> Settings:
        """The setting with the least error."""
        return self.table[0].settings


def search(
    samples: Samples,
    processors: int,
    grid: tuple[Settings, ...] = GRID,
    progress: Callable[[], None] | None = None,
) -> Search:
    """Score every setting of the grid; ties go to the smaller correction."""
    order = np.random.default_rng(1).permutation(len(samples.time_us))[: round(MOST_SEARCHED * 1.25)]
    apart = order[: len(order) // 5]
    rest = samples.taken(np.sort(order[len(order) // 5 :]))
    tried = []
    for settings in grid:
        error = held_out_errors(rest, processors, "unseen", settings)[1].mean()
        tried.append(Tried(settings=settings, error_pct=round(100.0 * float(error), 3)))
        if progress is not None:
            progress()
    tried.sort(key=lambda one: (one.error_pct, one.settings.trees * one.settings.leaves))
    form, trees = _errors(rest, samples.taken(apart), processors, tried[0].settings)
    return Search(table=tuple(tried), test_pct=trees, physical_pct=form)


def _errors(rest: Samples, test: Samples, processors: int, settings: Settings) -> tuple[float, float]:
    matrix, names = matrix_of(rest, processors)
    form = fitted_form(matrix, names, rest.time_us, rest.op)
    trees = fitted_trees(signs_of(rest, processors), np.log(rest.time_us / form.time_us(matrix)), settings)
    predicted = form.time_us(matrix_of(test, processors)[0])
    change = np.clip(trees.evaluate(signs_of(test, processors)), -MOST_CORRECTION, MOST_CORRECTION)
    plain, mended = (float(np.abs(time / test.time_us - 1).mean()) for time in (predicted, predicted * np.exp(change)))
    return round(100 * plain, 3), round(100 * mended, 3)
