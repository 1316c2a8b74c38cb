"""Cross-validation: each row predicted by a fit that has not seen its source, its model, its GPU family or itself.

    found = cross_validate(rows, Profiles.load(), "source")
    found.scores["mape_pct"], found.scores["band_coverage_pct"]

Every fit starts from the priors. A stack (or GPU family) that no other row has is left at the common values.

Pairs: two strategies of one set-up, how their times were predicted to differ and how they did.

Widths of the bands, from rows predicted by fits that had not seen them.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.accuracy import (
    MOST_STRATEGIES,
    Outcome,
    ScoredRow,
    Scores,
    mean_times,
    row_band,
    scores,
    setup_of,
    strategy_of,
)
from crosszone.calibrate.fit import Training, Vector, beliefs, fit, start
from crosszone.calibrate.predicted import Steps, gpu_of
from crosszone.calibrate.runs import Run
from crosszone.cost.profile import Profiles
from crosszone.plan.comparison import chance_of

Kind = Literal["source", "model", "gpu", "row"]
Mask = npt.NDArray[np.bool_]
# Most parts that rows are dealt into; a part keeps all rows of a source (model, GPU family).
FOLDS: dict[Kind, int] = {"source": 100, "model": 20, "gpu": 100, "row": 10}
ROUNDS = 25
MOST_FITTED = 4000  # Rows of a long file that are used, evenly taken


@dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """Every row predicted by a fit without its part."""

    kind: Kind
    folds: int
    runs: tuple[Run, ...]
    predicted_s: Vector
    stack_known: Mask
    """Another part has rows of its stack."""
    gpu_known: Mask

    @cached_property
    def rows(self) -> list[ScoredRow]:
        """The rows with their predictions and bands."""
        found = []
        for at, run in enumerate(self.runs):
            step = float(self.predicted_s[at])
            low, high = row_band(run, bool(self.gpu_known[at]), bool(self.stack_known[at]))
            found.append(
                ScoredRow(
                    id=run.id,
                    source=run.source,
                    measured_s=run.step_time_s,
                    predicted_s=step,
                    low_s=low * step,
                    high_s=high * step,
                    complete=run.complete,
                    moe=run.moe,
                )
            )
        return found

    @cached_property
    def scores(self) -> Scores:
        """Errors over all rows."""
        return scores(self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: all rows, those with experts, and each source."""
        names = list(dict.fromkeys(row.source for row in self.rows))
        return {
            "kind": self.kind,
            "folds": self.folds,
            **self.scores,
            "moe": scores([row for row in self.rows if row.moe]),
            "by_source": [{"source": s, **scores([r for r in self.rows if r.source == s])} for s in names],
        }


def cross_validate(
    rows: Training,
    profiles: Profiles,
    kind: Kind,
    *,
    workers: int | None = None,
    progress: Callable[[], None] | None = None,
) -> CrossValidation | None:
    """Leave out one part of the rows after the other; None where there is only one part. [Q8]

    `progress` is called after each fit.
    """
    rows, parts = thinned(rows), parts_of(rows, profiles, kind)
    if len(parts) < 2:
        return None
    at_most = min(workers or os.cpu_count() or 1, len(parts))
    predicted = np.full(len(rows.runs), np.nan)
    stack_known, gpu_known = np.ones(len(rows.runs), dtype=bool), np.ones(len(rows.runs), dtype=bool)
    stacks = np.array([run.stack for run in rows.runs])
    gpus = np.array([profiles.gpu_profile(gpu_of(run))[0] for run in rows.runs])
    for left_out, found in zip(parts, _fits(rows, profiles, parts, at_most), strict=True):
        predicted[left_out] = found[left_out]
        stack_known[left_out] = np.isin(stacks[left_out], stacks[~left_out])
        gpu_known[left_out] = np.isin(gpus[left_out], gpus[~left_out])
        if progress:
            progress()
    return CrossValidation(
        kind=kind,
        folds=len(parts),
        runs=rows.runs,
        predicted_s=predicted,
        stack_known=stack_known,
        gpu_known=gpu_known,
    )


def parts_of(rows: Training, profiles: Profiles, kind: Kind) -> list[Mask]:
    """Which rows each fit leaves out."""
    return folds([_label(run, kind, profiles) for run in thinned(rows).runs], FOLDS[kind])


def thinned(rows: Training) -> Training:
    """All rows, or of a very long file so many as fits can take."""
    count = len(rows.runs)
    if count <= MOST_FITTED:
        return rows
    taken = np.linspace(0, count - 1, MOST_FITTED).astype(int)
    return Training(runs=tuple(rows.runs[i] for i in taken), weights=rows.weights[taken])


def folds(labels: Sequence[Hashable], most: int) -> list[Mask]:
    """Which rows each part leaves out: rows of a label stay together, large labels are dealt out first."""
    counts = Counter(labels)
    names = sorted(counts, key=lambda label: (-counts[label], str(label)))
    size = [0] * min(most, len(names))
    part: dict[Hashable, int] = {}
    for name in names:
        least = size.index(min(size))
        part[name] = least
        size[least] += counts[name]
    of_row = np.array([part[label] for label in labels])
    return [of_row == number for number in range(len(size))]


def _label(run: Run, kind: Kind, profiles: Profiles) -> Hashable:
    if kind == "source":
        return run.source
    if kind == "model":
        return run.case.model.name
    return profiles.gpu_profile(gpu_of(run))[0] if kind == "gpu" else run.id


_task: list[tuple[Steps, Vector, Profiles]] = []


def _fits(rows: Training, profiles: Profiles, parts: Sequence[Mask], workers: int) -> Any:
    if workers == 1:
        _begin(rows, profiles)
        yield from map(_without, parts)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(rows, profiles)) as pool:
        yield from pool.map(_without, parts)


def _begin(rows: Training, profiles: Profiles) -> None:
    steps = Steps(rows.runs, profiles)
    _task[:] = [(steps, rows.weights, profiles)]


def _without(left_out: Mask) -> Vector:
    """Predictions of all rows, in their order, by a fit without some."""
    ((steps, weights, profiles),) = _task
    believed = beliefs(profiles)
    weight = np.where(left_out, 0.0, weights)[steps.order]
    found = fit(steps, steps.index, steps.measured, start(profiles, believed), believed, weights=weight, rounds=ROUNDS)
    predicted = np.empty(len(steps.measured))
    predicted[steps.order] = steps.at(found.values)
    return predicted


Floats = npt.NDArray[np.float64]
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # Ends of the ranges of stated chances


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Every two strategies of each set-up, the one predicted faster first."""

    predicted: Floats
    """log(time of the second / time of the first), not below 0."""
    measured: Floats
    weight: Floats
    """2 / n of a pair among n strategies: they hold n - 1 independent differences, not n (n - 1) / 2."""
    setups: int


def pairs_of(one: CrossValidation) -> Pairs:
    """The pairs among rows that were predicted by fits without them; runs of the same strategy count as their mean."""
    outcomes = (
        Outcome(setup_of(run), strategy_of(run), run.step_time_s, float(said))
        for run, said in zip(one.runs, one.predicted_s, strict=True)
        if run.step_time_s
    )
    ratios, weights = [np.empty((0, 2))], [np.empty(0)]
    for means in mean_times(outcomes):
        logs = np.log(means[:MOST_STRATEGIES])
        first, second = np.triu_indices(len(logs), k=1)
        ratios.append(logs[second] - logs[first])
        weights.append(np.full(len(first), 2.0 / len(logs)))
    measured, predicted = np.concatenate(ratios).T
    turned = np.where(predicted < 0, -1.0, 1.0)
    weight = np.concatenate(weights)
    return Pairs(predicted=turned * predicted, measured=turned * measured, weight=weight, setups=len(weights) - 1)


def chance_bins(pairs: Pairs, spread: float) -> dict[str, Mapping[str, float | int | None]]:
    """Stated chances that the strategy predicted faster is faster, against how often it was, by stated chance. [W2]"""
    stated = np.array([chance_of(float(ratio), spread) for ratio in pairs.predicted])
    right = (1.0 + np.sign(pairs.predicted) * np.sign(pairs.measured)) / 2.0
    which = np.clip(np.searchsorted(BINS, stated, side="right") - 1, 0, len(BINS) - 2)
    found: dict[str, Mapping[str, float | int | None]] = {}
    for number, low in enumerate(BINS[:-1]):
        here = which == number
        some = bool(here.any())
        found[f"{100 * low:.0f}-{100 * BINS[number + 1]:.0f} %"] = {
            "pairs": int(here.sum()),
            "stated_pct": 100.0 * float(stated[here].mean()) if some else None,
            "right_pct": 100.0 * float(right[here].mean()) if some else None,
            "weighted_pct": 100.0 * float(np.average(right[here], weights=pairs.weight[here])) if some else None,
        }
    return found


OUTSIDE = 0.1  # Share of rows that may lie below the band, and above it
# Parts in the order in which they are found: each from rows that have it and none after it.
ORDER = ("base", "assumed", "moe", "stack", "gpu")
ONE_SD = 0.6827  # Share of a normal distribution within one standard deviation
# Weight of a row of an unseen source whose stack is known: some runs come from a site that was seen, some do not.
SITE_WEIGHT = 0.5
Widths = dict[str, dict[str, float]]


def step_widths(found: Sequence[CrossValidation]) -> Widths:
    """Log widths such that each kind of row lies below or above its band in one of ten cases. [Q6]

    Parts add in squares; each is the least that does, given those before it. Which rows tell of which part: unseen
    rows, models and sources (these half) of the first three, unseen sources of an unknown stack, unseen GPU families of
    a derived GPU.
    """
    error, weight, applies = _rows(found)
    widths: Widths = {}
    for number, part in enumerate(ORDER):
        later = ORDER[number + 1 :]
        mine = applies[part] & ~np.any([applies[name] for name in later], axis=0) if later else applies[part]
        known = ORDER[:number]
        widths[part] = {}
        for side, sign in (("low", -1.0), ("high", 1.0)):
            squares = np.zeros(int(mine.sum()))
            for name in known:
                squares += applies[name][mine] * widths[name][side] ** 2
            widths[part][side] = _solved(sign * error[mine], squares, weight[mine])
    return widths


def memory_width(rows: Sequence[ScoredRow]) -> dict[str, float]:
    """Log widths of memory over the rows that publish it."""
    error = np.array(
        [
            np.log(row.memory_gib_measured / row.memory_gib_predicted)
            for row in rows
            if row.memory_gib_measured and row.memory_gib_predicted and row.doubtful is None
        ]
    )
    none, one = np.zeros(len(error)), np.ones(len(error))
    return {"low": _solved(-error, none, one), "high": _solved(error, none, one)}


def pair_width(pairs: Pairs) -> float:
    """Standard deviation of the difference of two strategies' errors, from the size that 68 % of pairs stay below. [W2]

    The quantile and not the mean of squares: a few runs that went wrong would widen it for all.
    """
    size = np.abs(pairs.measured - pairs.predicted)
    order = np.argsort(size)
    share = np.cumsum(pairs.weight[order]) / pairs.weight.sum()
    return round(float(size[order[int(np.searchsorted(share, ONE_SD))]]), 4)


def _rows(found: Sequence[CrossValidation]) -> tuple[Floats, Floats, dict[str, npt.NDArray[np.bool_]]]:
    """log(measured / predicted) of the rows that tell of a part, their weights, and which parts they have."""
    errors, weights = [], []
    parts: dict[str, list[bool]] = {name: [] for name in ORDER}
    for one in found:
        for at, run in enumerate(one.runs):
            stack, gpu = not one.stack_known[at], not one.gpu_known[at]
            tells = gpu and not stack if one.kind == "gpu" else not gpu and (one.kind == "source" or not stack)
            if not tells:
                continue
            errors.append(float(np.log((run.step_time_s or np.nan) / one.predicted_s[at])))
            weights.append(SITE_WEIGHT if one.kind == "source" and not stack else 1.0)
            applies = {"base": True, "assumed": not run.complete, "moe": run.moe, "stack": stack, "gpu": gpu}
            for name, on in applies.items():
                parts[name].append(bool(on))
    return np.array(errors), np.array(weights), {name: np.array(on, dtype=bool) for name, on in parts.items()}


def _solved(beyond: Floats, squares: Floats, weight: Floats) -> float:
    """The least x >= 0 for which one row in ten (by weight) has beyond > sqrt(squares + x^2)."""
    if not len(beyond):
        return 0.0
    needed = np.sqrt(np.maximum(np.maximum(beyond, 0.0) ** 2 - squares, 0.0))
    order = np.argsort(needed)
    share = np.cumsum(weight[order]) / weight.sum()
    at = int(np.searchsorted(share, 1.0 - OUTSIDE))
    return round(float(needed[order[min(at, len(order) - 1)]]), 4)
