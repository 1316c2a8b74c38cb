"""Fit named coefficients to measured steps: robust least squares on log(predicted / measured) with weak priors.

A coefficient is fitted in its logarithm, so it stays positive. A row reads one value of each field, so one evaluation
per field gives the derivatives for all homes of that field at once.

Priors: what is believed of each fitted coefficient before a run is seen (`priors.yaml`).

Training: the rows that profiles are fitted to.

Cross-validation: each row predicted by a fit that has not seen its source, its model, its GPU family or itself.

    result = cross_validate(rows, Profiles.load(), "source")
    result.scores["mape_pct"], result.scores["band_coverage_pct"]

Every fit starts from the priors. A stack (or GPU family) that no other row has keeps the common values.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.accuracy import ScoredRow, Scores, compute_row_band, summarize_errors
from crosszone.calibrate.predicted import StepBatches, get_gpu
from crosszone.calibrate.runs import Run, read_doubtful
from crosszone.cost.coefficients import COMMON
from crosszone.cost.profile import Profiles
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Positive, Value, parse

Vector = npt.NDArray[np.float64]
Index = Mapping[str, npt.NDArray[np.int64]]
# Predicted seconds of every row from the columns of each field.
Predict = Callable[[Mapping[str, Vector]], Vector]

STEP = 1e-3  # Relative change of a coefficient in a finite difference
PATIENCE = 3  # Rounds without progress after which the fit stops
PROGRESS = 5e-5  # Share of the cost that a round has to win to count as progress
SMALLEST = 1e-12
TRIES = 10  # Dampings tried in a round


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """What is believed of each value before the fit; one entry a value."""

    free: npt.NDArray[np.bool_]
    """The others keep their start."""
    centre: Vector
    sd: Vector
    """Standard deviation of the logarithm."""
    anchor: npt.NDArray[np.int64]
    """Place of the value that is the centre instead (a stack's value lies about the common one); -1: `centre`."""
    lower: Vector
    upper: Vector


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fitted values, and one standard error of each coefficient's logarithm (0: not free)."""

    values: Vector
    error: Vector
    cost: float
    rounds: int


def fit(
    predict: Predict,
    index: Index,
    measured: Vector,
    start: Vector,
    beliefs: Beliefs,
    *,
    weights: Vector | None = None,
    scale: float = 0.03,
    rounds: int = 60,
) -> Fit:
    """The values that minimise the robust error of the rows and the distance from what is believed. [Q3]

    sum of w x 2 (sqrt(1 + (r / scale)^2) - 1) + sum of ((log value - log centre) / sd)^2 with r = log(predicted /
    measured): quadratic for errors below `scale`, linear above, so a wrong row pulls no harder than a poor one. The
    centre of a value with an anchor is the anchor's value in the same fit. `index` says which value each row reads.
    """
    task = _Task(predict, index, np.log(measured), start, beliefs, weights, scale)
    theta = task.first
    damping, r = 1e-2, task.residual(theta)
    cost, done, slow = task.cost(r, theta), 0, 0
    normal, slope = task.normal(theta, r)
    while done < rounds and slow < PATIENCE:
        done += 1
        held = ((theta <= task.lower) & (slope > 0)) | ((theta >= task.upper) & (slope < 0))
        able = np.flatnonzero(~held)
        inner = normal[np.ix_(able, able)]
        before = cost
        for _ in range(TRIES):
            change = np.zeros_like(theta)
            change[able] = np.linalg.solve(inner + damping * np.diag(np.diag(inner)), -slope[able])
            shorter = min(1.0, 1.0 / max(SMALLEST, float(np.abs(change).max(initial=0.0))))
            trial = np.clip(theta + shorter * change, task.lower, task.upper)
            trial_r = task.residual(trial)
            trial_cost = task.cost(trial_r, trial)
            if trial_cost < cost:
                theta, r, cost, damping = trial, trial_r, trial_cost, max(1e-7, damping / 4)
                break
            damping *= 3
        normal, slope = task.normal(theta, r)
        slow = slow + 1 if before - cost < PROGRESS * before else 0
    error = np.zeros(len(start))
    error[task.at] = np.sqrt(np.diag(np.linalg.inv(normal)))
    return Fit(values=task.values(theta), error=error, cost=cost, rounds=done)


class _Task:
    """One fit's cost and its derivatives in the logarithms of the free values."""

    def __init__(
        self,
        predict: Predict,
        index: Index,
        target: Vector,
        start: Vector,
        beliefs: Beliefs,
        weights: Vector | None,
        scale: float,
    ):
        self.predict, self.index, self.target, self.start, self.scale = predict, index, target, start, scale
        self.weight = np.ones(len(target)) if weights is None else weights
        self.at = np.flatnonzero(beliefs.free)
        self.column = np.full(len(start), -1)
        self.column[self.at] = np.arange(len(self.at))
        self.lower, self.upper = (np.log(np.maximum(b[self.at], SMALLEST)) for b in (beliefs.lower, beliefs.upper))
        self.first = np.clip(np.log(np.maximum(start[self.at], SMALLEST)), self.lower, self.upper)
        anchor = beliefs.anchor[self.at]
        tied = (anchor >= 0) & (self.column[anchor] >= 0)
        self.away = np.eye(len(self.at))
        """away @ theta - middle: distance of each value from its centre."""
        self.away[np.flatnonzero(tied), self.column[anchor[tied]]] -= 1.0
        centre = np.where(anchor >= 0, start[anchor], beliefs.centre[self.at])
        self.middle = np.where(tied, 0.0, np.log(np.maximum(centre, SMALLEST)))
        self.sharpness = 1.0 / beliefs.sd[self.at] ** 2

    def values(self, theta: Vector) -> Vector:
        values = self.start.copy()
        values[self.at] = np.exp(theta)
        return values

    def residual(self, theta: Vector) -> Vector:
        values = self.values(theta)
        return np.log(self.predict({f: values[i] for f, i in self.index.items()})) - self.target

    def cost(self, r: Vector, theta: Vector) -> float:
        far = self.away @ theta - self.middle
        rows = self.weight * 2.0 * (np.sqrt(1.0 + (r / self.scale) ** 2) - 1.0)
        return float(rows.sum() + (self.sharpness * far**2).sum())

    def normal(self, theta: Vector, r: Vector) -> tuple[Vector, Vector]:
        """Gauss-Newton matrix and half the gradient."""
        j = self._jacobian(theta, r)
        robust = self.weight / np.sqrt(1.0 + (r / self.scale) ** 2) / self.scale**2
        pulled = j * robust[:, None]
        far = self.away @ theta - self.middle
        drawn = self.away * self.sharpness[:, None]
        return pulled.T @ j + drawn.T @ self.away, pulled.T @ r + drawn.T @ far

    def _jacobian(self, theta: Vector, r: Vector) -> Vector:
        j = np.zeros((len(r), len(self.at)))
        values = self.values(theta)
        base = {f: values[i] for f, i in self.index.items()}
        for field, at in self.index.items():
            columns = self.column[at[:, 0]]
            used = np.flatnonzero(columns >= 0)
            if not len(used):
                continue
            moved = np.log(self.predict({**base, field: base[field] * (1.0 + STEP)})) - self.target
            j[used, columns[used]] += (moved[used] - r[used]) / np.log1p(STEP)
        return j


SPREAD = 0.3  # How much the homes of a coefficient differ where priors.yaml does not say


class Prior(Value):
    """One prior, as priors.yaml explains it."""

    value: Positive
    sd: Positive | None = None
    spread: Positive = SPREAD
    lower: Positive
    upper: Positive
    why: str


@cache
def priors() -> dict[str, Prior]:
    """Prior by field."""
    document = read_shipped("crosszone.calibrate", "priors.yaml")
    found: dict[str, Any] = document.value["fields"]
    return {name: parse(Prior, entry, document, at=("fields", name)) for name, entry in found.items()}


def beliefs(profiles: Profiles) -> Beliefs:
    """The priors of every fitted value of the profiles; a family's or stack's value lies about the common one. [Q4]

    log own ~ N(log common, spread), log common ~ N(log prior, sd): homes with few rows stay near what the others say,
    and one without rows is the common value.
    """
    known = priors()
    free = ~profiles.fixed
    centre, sd = np.ones(len(free)), np.ones(len(free))
    lower, upper = np.full(len(free), 1e-12), np.full(len(free), 1e12)
    anchor = np.full(len(free), -1)
    for at, (home, field) in enumerate(profiles.names):
        if not free[at]:
            continue
        prior = known[field]
        common = profiles.place[COMMON, field]
        own = home != COMMON
        centre[at], lower[at], upper[at] = prior.value, prior.lower, prior.upper
        sd[at] = prior.spread if own or prior.sd is None else prior.sd
        if own and free[common]:
            anchor[at] = common
    return Beliefs(free=free, centre=centre, sd=sd, anchor=anchor, lower=lower, upper=upper)


def start(profiles: Profiles, beliefs: Beliefs, spread: float = 0.0, seed: int = 0) -> Vector:
    """Where a fit starts: the priors, or values strewn about them by `spread` (of the logarithm)."""
    strewn = np.random.default_rng(seed).normal(0.0, 1.0, len(profiles.values)) * spread * beliefs.sd
    return np.where(
        beliefs.free, np.clip(beliefs.centre * np.exp(strewn), beliefs.lower, beliefs.upper), profiles.values
    )


ALSO_WEIGHT = 0.3  # Weight of a row of a file that would otherwise outnumber the others
DOUBTFUL = "doubtful_rows.csv"


@dataclass(frozen=True, kw_only=True)
class Training:
    """Rows to fit to, with their weights."""

    runs: tuple[Run, ...]
    weights: Vector

    def without(self, left_out: Iterable[bool]) -> Training:
        """Those that are not left out."""
        kept = ~np.fromiter(left_out, dtype=bool, count=len(self.runs))
        runs = tuple(run for run, keep in zip(self.runs, kept, strict=True) if keep)
        return Training(runs=runs, weights=self.weights[kept])


def usable(runs: Iterable[Run], doubtful: Collection[str]) -> list[Run]:
    """Runs with a measured time that contradict no neighbour and repeat no earlier row."""
    return [run for run in runs if run.step_time_s and run.id not in doubtful and run.duplicate_of is None]


def training(runs: Sequence[Run], also: Sequence[Run] = ()) -> Training:
    """Rows that count fully, and rows that count less."""
    weights = np.concatenate([np.ones(len(runs)), np.full(len(also), ALSO_WEIGHT)])
    return Training(runs=(*runs, *also), weights=weights)


def doubtful_of(runs: Path, given: Path | None) -> dict[str, str]:
    """Reasons by id: of the file given, else of doubtful_rows.csv beside the runs, else none."""
    path = given or runs.with_name(DOUBTFUL)
    return read_doubtful(path) if given or path.exists() else {}


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
            low, high = compute_row_band(run, bool(self.gpu_known[at]), bool(self.stack_known[at]))
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
        return summarize_errors(self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: all rows, those with experts, and each source."""
        names = list(dict.fromkeys(row.source for row in self.rows))
        return {
            "kind": self.kind,
            "folds": self.folds,
            **self.scores,
            "moe": summarize_errors([row for row in self.rows if row.moe]),
            "by_source": [{"source": s, **summarize_errors([r for r in self.rows if r.source == s])} for s in names],
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
    gpus = np.array([profiles.gpu_profile(get_gpu(run))[0] for run in rows.runs])
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
    return profiles.gpu_profile(get_gpu(run))[0] if kind == "gpu" else run.id


_task: list[tuple[StepBatches, Vector, Profiles]] = []


def _fits(rows: Training, profiles: Profiles, parts: Sequence[Mask], workers: int) -> Any:
    if workers == 1:
        _begin(rows, profiles)
        yield from map(_without, parts)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(rows, profiles)) as pool:
        yield from pool.map(_without, parts)


def _begin(rows: Training, profiles: Profiles) -> None:
    steps = StepBatches(rows.runs, profiles)
    _task[:] = [(steps, rows.weights, profiles)]


def _without(left_out: Mask) -> Vector:
    """Predictions of all rows, in their order, by a fit without some."""
    ((steps, weights, profiles),) = _task
    believed = beliefs(profiles)
    weight = np.where(left_out, 0.0, weights)[steps.order]
    found = fit(steps, steps.index, steps.measured, start(profiles, believed), believed, weights=weight, rounds=ROUNDS)
    predicted = np.empty(len(steps.measured))
    predicted[steps.order] = steps.predict_at(found.values)
    return predicted
