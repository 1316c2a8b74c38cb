"""Fit named coefficients to measured steps: robust least squares on log(predicted / measured) with weak priors.

A coefficient is fitted in its logarithm, so it stays positive. A row reads one value of each field, so one evaluation
per field gives the derivatives for all homes of that field at once.

Priors: what is believed of each fitted coefficient before a run is seen (`priors.yaml`).

Training: the rows that profiles are fitted to, and the fit itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
