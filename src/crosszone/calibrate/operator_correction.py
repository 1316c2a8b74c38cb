"""Corrections of an operator's form: small boosted trees of log(time / form), exported as text that numpy evaluates.

    trees = fitted_trees(signs_of(samples, processors), np.log(samples.time_us / form_us), Settings())
    trees.value(signs_of(samples, processors))

Trees never see a raw time: outside of the samples they would hold it constant, while a form grows with the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from crosszone.calibrate.operator_samples import Samples
from crosszone.cost.operator_forms import WORDS, Floats, signs
from crosszone.cost.operator_profile import Trees

MOST_TREES, MOST_LEAVES = 60, 8
"""Larger ones would be no small correction, and fill the profile's file."""


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
