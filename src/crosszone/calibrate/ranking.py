"""Ranking: does the strategy predicted best turn out best, and are pairs ordered rightly?"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.runs import Run

APART = 1.05
"""Pairs whose measured times differ by less are not counted: repeated runs differ as much."""
MOST_STRATEGIES = 2000
"""Strategies of one group that are compared in pairs."""
LEAST_RANKED = 3
"""Strategies of a group whose order is worth a correlation."""
MANY = 5
"""Strategies of a group among which the best is not found by luck."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: what it has in common with others, its strategy, and its times."""

    setup: Hashable
    strategy: Hashable
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How well strategies of equal set-ups are ranked; None: there is nothing to rank."""

    groups: int
    strategies: int
    mean_regret: float | None
    """Measured time of the strategy predicted best over that of the best."""
    max_regret: float | None
    pairs: int
    """Pairs more than 5 % apart."""
    pairs_right_pct: float | None
    spearman: float | None
    """Mean rank correlation of groups of three and more."""


def setup_of(run: Run) -> tuple[Hashable, ...]:
    """What runs must have in common to differ only in their strategy."""
    case, model = run.case, run.case.model
    group = case.cluster.zones[0].nodes[0]
    return (
        run.source,
        run.stack,
        run.release,
        model.name,
        model.layers,
        model.hidden,
        model.heads,
        group.gpu.name,
        case.cluster.gpus,
        case.job.global_batch,
        case.job.seq_len,
        case.job.precision,
        case.job.fp8_recipe,
    )


def strategy_of(run: Run) -> tuple[Hashable, ...]:
    """The strategy, in words that compare."""
    return (str(run.case.strategy),)


def ranking(outcomes: Iterable[Outcome], least: int = 2) -> Ranking:
    """Regret, ordered pairs and rank correlation over groups of `least` or more strategies. [Q7]

    Regret is the measured time of the strategy predicted fastest over that of the fastest: 1 is the best choice. Runs
    of the same strategy count as their mean.
    """
    regrets, correlations, strategies, pairs, right = [], [], 0, 0, 0
    for means in mean_times(outcomes, least):
        measured, predicted = means[:, 0], means[:, 1]
        strategies += len(measured)
        regrets.append(float(measured[np.argmin(predicted)] / measured.min()))
        some = slice(MOST_STRATEGIES)
        apart, ordered = _pairs(measured[some], predicted[some])
        pairs, right = pairs + apart, right + ordered
        if len(measured) >= LEAST_RANKED:
            correlations.append(spearman(measured, predicted))
    return Ranking(
        groups=len(regrets),
        strategies=strategies,
        mean_regret=float(np.mean(regrets)) if regrets else None,
        max_regret=max(regrets, default=None),
        pairs=pairs,
        pairs_right_pct=100.0 * right / pairs if pairs else None,
        spearman=float(np.mean(correlations)) if correlations else None,
    )


def mean_times(outcomes: Iterable[Outcome], least: int = 2) -> Iterator[npt.NDArray[np.float64]]:
    """Measured and predicted mean time of each strategy ([strategies, 2]), of set-ups that have `least` or more."""
    groups: dict[Hashable, dict[Hashable, list[Outcome]]] = {}
    for one in outcomes:
        groups.setdefault(one.setup, {}).setdefault(one.strategy, []).append(one)
    for group in groups.values():
        if len(group) >= least:
            times = [[(o.measured_s, o.predicted_s) for o in same] for same in group.values()]
            yield np.array([np.mean(same, axis=0) for same in times])


def spearman(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    """Rank correlation, 1 to -1; equal values share their mean rank; 0 where one side is all equal."""
    a, b = (_ranks(x) - (len(x) - 1) / 2 for x in (one, other))
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size else 0.0


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    order = np.sort(values)
    below, up_to = np.searchsorted(order, values, "left"), np.searchsorted(order, values, "right")
    return (below + up_to - 1) / 2.0


def _pairs(measured: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64]) -> tuple[int, int]:
    """Pairs that are apart, and those of them that are predicted in the right order."""
    slower = measured[:, None] > APART * measured[None, :]
    right = slower & (predicted[:, None] > predicted[None, :])
    return int(slower.sum()), int(right.sum())
