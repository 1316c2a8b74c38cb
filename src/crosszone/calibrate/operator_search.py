"""Search for the best settings of a correction, as GPUModeling25 does for its regressors: a grid, cross-validated.

    for line in search(samples, processors=132).table[:3]: print(line.settings, line.error_pct)

A fifth of the samples is kept apart; each setting of the grid is scored on the rest with whole sizes held out, and the
best one is scored once on the fifth. The target is log(time / form), never a raw time. The grid holds what a profile
can carry: boosted trees and forests of few, small trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from crosszone.calibrate.operator_correction import Settings, fitted_trees, signs_of
from crosszone.calibrate.operator_fit import fitted_form, held_out_errors, matrix_of
from crosszone.calibrate.operator_samples import Samples
from crosszone.cost.operator_profile import MOST_CORRECTION

GRID: tuple[Settings, ...] = (
    *(
        Settings(trees=trees, leaves=leaves, rate=rate, least=least)
        for trees, leaves, rate, least in product((20, 40, 60), (4, 8), (0.1, 0.2), (3, 10))
    ),
    *(Settings(regressor="forest", trees=trees, leaves=8, least=least) for trees, least in product((30, 60), (3, 10))),
)
MOST_SEARCHED = 1500
"""Samples a setting is scored on; more would take hours and change little."""


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
    change = np.clip(trees.value(signs_of(test, processors)), -MOST_CORRECTION, MOST_CORRECTION)
    plain, mended = (float(np.abs(time / test.time_us - 1).mean()) for time in (predicted, predicted * np.exp(change)))
    return round(100 * plain, 3), round(100 * mended, 3)
