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

from crosszone.calibrate.accuracy import ScoredRow, Scores, build_scored_row, summarize_errors, summarize_sources
from crosszone.calibrate.predicted import StepBatches, get_gpu
from crosszone.calibrate.runs import MeasuredRun, read_doubtful
from crosszone.cost.coefficients import COMMON, RATES, Knowledge, compute_band_factors
from crosszone.cost.profile import Profiles
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Positive, Value, parse

Vector = npt.NDArray[np.float64]
Index = Mapping[str, npt.NDArray[np.int64]]
# Predicted seconds of every row from the columns of each field.
Predict = Callable[[Mapping[str, Vector]], Vector]

RELATIVE_STEP = 1e-3  # Relative change of a coefficient in a finite difference
MOST_SLOW_ROUNDS = 3  # Rounds without progress after which the fit stops
LEAST_PROGRESS = 5e-5  # Share of the cost that a round has to win to count as progress
SMALLEST = 1e-12
MOST_DAMPINGS = 10  # Dampings tried in a round


@dataclass(frozen=True, kw_only=True)
class PriorArrays:
    """What is believed of each value before the fit; one entry a value."""

    free: npt.NDArray[np.bool_]
    """The others keep their start."""
    centre: Vector
    sd: Vector
    """Standard deviation of the logarithm."""
    anchor: npt.NDArray[np.int64]
    """Place of the value that is the centre instead (a stack's value lies about the common one); -1: `centre`."""
    shift: Vector
    """Logarithm of what a value is expected to be over its anchor: rates of a GPU with less power."""
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
    prior_arrays: PriorArrays,
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
    problem = _LeastSquares(predict, index, np.log(measured), start, prior_arrays, weights, scale)
    theta = problem.start_theta
    damping, residual = 1e-2, problem.compute_residual(theta)
    cost, finished_rounds, slow_rounds = problem.compute_cost(residual, theta), 0, 0
    normal, gradient = problem.compute_normal_equations(theta, residual)
    while finished_rounds < rounds and slow_rounds < MOST_SLOW_ROUNDS:
        finished_rounds += 1
        at_limit = ((theta <= problem.lower) & (gradient > 0)) | ((theta >= problem.upper) & (gradient < 0))
        movable = np.flatnonzero(~at_limit)
        movable_normal = normal[np.ix_(movable, movable)]
        before = cost
        for _ in range(MOST_DAMPINGS):
            change = np.zeros_like(theta)
            change[movable] = np.linalg.solve(
                movable_normal + damping * np.diag(np.diag(movable_normal)), -gradient[movable]
            )
            step_scale = min(1.0, 1.0 / max(SMALLEST, float(np.abs(change).max(initial=0.0))))
            trial = np.clip(theta + step_scale * change, problem.lower, problem.upper)
            trial_residual = problem.compute_residual(trial)
            trial_cost = problem.compute_cost(trial_residual, trial)
            if trial_cost < cost:
                theta, residual, cost, damping = trial, trial_residual, trial_cost, max(1e-7, damping / 4)
                break
            damping *= 3
        normal, gradient = problem.compute_normal_equations(theta, residual)
        slow_rounds = slow_rounds + 1 if before - cost < LEAST_PROGRESS * before else 0
    error = np.zeros(len(start))
    error[problem.at] = np.sqrt(np.diag(np.linalg.inv(normal)))
    return Fit(values=problem.expand_values(theta), error=error, cost=cost, rounds=finished_rounds)


class _LeastSquares:
    """One fit's cost and its derivatives in the logarithms of the free values."""

    def __init__(
        self,
        predict: Predict,
        index: Index,
        target: Vector,
        start: Vector,
        prior_arrays: PriorArrays,
        weights: Vector | None,
        scale: float,
    ):
        self.predict, self.index, self.target, self.start, self.scale = predict, index, target, start, scale
        self.weight = np.ones(len(target)) if weights is None else weights
        self.at = np.flatnonzero(prior_arrays.free)
        self.column = np.full(len(start), -1)
        self.column[self.at] = np.arange(len(self.at))
        self.lower, self.upper = (
            np.log(np.maximum(b[self.at], SMALLEST)) for b in (prior_arrays.lower, prior_arrays.upper)
        )
        self.start_theta = np.clip(np.log(np.maximum(start[self.at], SMALLEST)), self.lower, self.upper)
        anchor = prior_arrays.anchor[self.at]
        is_tied = (anchor >= 0) & (self.column[anchor] >= 0)
        self.prior_matrix = np.eye(len(self.at))
        """prior_matrix @ theta - prior_offset: distance of each value from its centre."""
        self.prior_matrix[np.flatnonzero(is_tied), self.column[anchor[is_tied]]] -= 1.0
        centre = np.where(anchor >= 0, start[anchor], prior_arrays.centre[self.at])
        shift = prior_arrays.shift[self.at]
        self.prior_offset = np.where(is_tied, shift, np.log(np.maximum(centre, SMALLEST)) + shift)
        self.prior_precision = 1.0 / prior_arrays.sd[self.at] ** 2

    def expand_values(self, theta: Vector) -> Vector:
        """All values of the profiles; those that are not free keep their start."""
        values = self.start.copy()
        values[self.at] = np.exp(theta)
        return values

    def compute_residual(self, theta: Vector) -> Vector:
        values = self.expand_values(theta)
        return np.log(self.predict({f: values[i] for f, i in self.index.items()})) - self.target

    def compute_cost(self, residual: Vector, theta: Vector) -> float:
        prior_distance = self.prior_matrix @ theta - self.prior_offset
        row_costs = self.weight * 2.0 * (np.sqrt(1.0 + (residual / self.scale) ** 2) - 1.0)
        return float(row_costs.sum() + (self.prior_precision * prior_distance**2).sum())

    def compute_normal_equations(self, theta: Vector, residual: Vector) -> tuple[Vector, Vector]:
        """Gauss-Newton matrix and half the gradient."""
        jacobian = self._compute_jacobian(theta, residual)
        robust_weight = self.weight / np.sqrt(1.0 + (residual / self.scale) ** 2) / self.scale**2
        weighted_jacobian = jacobian * robust_weight[:, None]
        prior_distance = self.prior_matrix @ theta - self.prior_offset
        weighted_prior = self.prior_matrix * self.prior_precision[:, None]
        return (
            weighted_jacobian.T @ jacobian + weighted_prior.T @ self.prior_matrix,
            weighted_jacobian.T @ residual + weighted_prior.T @ prior_distance,
        )

    def _compute_jacobian(self, theta: Vector, residual: Vector) -> Vector:
        jacobian = np.zeros((len(residual), len(self.at)))
        values = self.expand_values(theta)
        base = {f: values[i] for f, i in self.index.items()}
        for field, at in self.index.items():
            columns = self.column[at[:, 0]]
            used = np.flatnonzero(columns >= 0)
            if not len(used):
                continue
            moved_residual = np.log(self.predict({**base, field: base[field] * (1.0 + RELATIVE_STEP)})) - self.target
            jacobian[used, columns[used]] += (moved_residual[used] - residual[used]) / np.log1p(RELATIVE_STEP)
        return jacobian


FRAMEWORK_SPREAD = 0.15  # How much frameworks differ: their homes hold what all of their stacks have in common
USUAL_SPREAD = 0.18  # How much the homes of a coefficient differ where priors.yaml does not say


class Prior(Value):
    """One prior, as priors.yaml explains it."""

    value: Positive
    sd: Positive | None = None
    spread: Positive = USUAL_SPREAD
    lower: Positive
    upper: Positive
    why: str


@cache
def read_priors() -> dict[str, Prior]:
    """Prior by field."""
    document = read_shipped("crosszone.calibrate", "priors.yaml")
    entries: dict[str, Any] = document.value["fields"]
    return {name: parse(Prior, entry, document, at=("fields", name)) for name, entry in entries.items()}


def is_framework(profiles: Profiles, scope: str) -> bool:
    """The home of a framework as a whole: the default stack, which others are like."""
    kind, _, name = scope.partition(" ")
    return kind == "stack" and any(entry.get("like") == name for entry in profiles.stacks.values())


def build_prior_arrays(profiles: Profiles) -> PriorArrays:
    """The priors of every fitted value of the profiles; a family's or stack's value lies about the common one. [Q4]

    log own ~ N(log common, spread), log common ~ N(log prior, sd): homes with few rows stay near what the others say,
    and one without rows is the common value.
    """
    priors = read_priors()
    free = ~profiles.fixed
    centre, sd = np.ones(len(free)), np.ones(len(free))
    lower, upper = np.full(len(free), 1e-12), np.full(len(free), 1e12)
    anchor, shift = np.full(len(free), -1), np.zeros(len(free))
    for at, (scope, field) in enumerate(profiles.names):
        if not free[at]:
            continue
        prior = priors[field]
        has_own_scope = scope != COMMON
        # a stack lies about the stack it is like (its framework's), that one about the common value
        parent = next(
            profiles.place[home, field] for home in profiles.list_ancestors(scope) if (home, field) in profiles.place
        )
        centre[at], lower[at], upper[at] = prior.value, prior.lower, prior.upper
        sd[at] = prior.spread if has_own_scope or prior.sd is None else prior.sd
        if is_framework(profiles, scope):
            sd[at] = min(sd[at], FRAMEWORK_SPREAD)
        if has_own_scope and free[parent]:
            anchor[at] = parent
        if scope.startswith("gpu ") and field in RATES:
            power_share = profiles.gpus[scope.removeprefix("gpu ")].get("power_share", 1.0)
            shift[at] = np.log(power_share) / 3.0  # power grows with the cube of the clock
    return PriorArrays(free=free, centre=centre, sd=sd, anchor=anchor, shift=shift, lower=lower, upper=upper)


def draw_start_values(profiles: Profiles, prior_arrays: PriorArrays, spread: float = 0.0, seed: int = 0) -> Vector:
    """Where a fit starts: the priors, or values strewn about them by `spread` (of the logarithm)."""
    deviation = np.random.default_rng(seed).normal(0.0, 1.0, len(profiles.values)) * spread * prior_arrays.sd
    return np.where(
        prior_arrays.free,
        np.clip(prior_arrays.centre * np.exp(deviation), prior_arrays.lower, prior_arrays.upper),
        profiles.values,
    )


SECONDARY_WEIGHT = 0.03  # Weight of a row of a file that would otherwise outnumber the others
# A source with more rows than this counts less for each: many rows of one site are no independent witnesses.
FULL_WEIGHT_ROWS, SOURCE_BALANCE = 30, 0.6
DOUBTFUL_FILE = "doubtful_rows.csv"


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """Rows to fit to, with their weights."""

    runs: tuple[MeasuredRun, ...]
    weights: Vector

    def drop(self, left_out: Iterable[bool]) -> TrainingRows:
        """Those that are not left out."""
        is_kept = ~np.fromiter(left_out, dtype=bool, count=len(self.runs))
        runs = tuple(run for run, keep in zip(self.runs, is_kept, strict=True) if keep)
        return TrainingRows(runs=runs, weights=self.weights[is_kept])


def select_usable_runs(runs: Iterable[MeasuredRun], doubtful: Collection[str]) -> list[MeasuredRun]:
    """Runs with a measured time that contradict no neighbour and repeat no earlier row."""
    return [
        run
        for run in runs
        if run.step_time_s
        and run.id not in doubtful
        and run.duplicate_of is None
        and not run.facts.get("doubtful")
        and len(run.case.cluster.gpu_kinds) == 1  # a fit reads the coefficients of one family for each row
    ]


def build_training_rows(runs: Sequence[MeasuredRun], secondary_runs: Sequence[MeasuredRun] = ()) -> TrainingRows:
    """Rows with their weights: less for each row of a large source, and of secondary files. [Q3]"""
    rows_of = Counter(run.source for run in runs)
    balanced = [min(1.0, (FULL_WEIGHT_ROWS / rows_of[run.source]) ** SOURCE_BALANCE) for run in runs]
    weights = np.concatenate([balanced, np.full(len(secondary_runs), SECONDARY_WEIGHT)])
    return TrainingRows(runs=(*runs, *secondary_runs), weights=weights)


def read_doubtful_reasons(runs: Path, doubtful_path: Path | None) -> dict[str, str]:
    """Reasons by id: of the file given, else of doubtful_rows.csv beside the runs, else none."""
    path = doubtful_path or runs.with_name(DOUBTFUL_FILE)
    return read_doubtful(path) if doubtful_path or path.exists() else {}


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
    runs: tuple[MeasuredRun, ...]
    predicted_s: Vector
    stack_known: Mask
    """Another part has rows of its stack."""
    gpu_known: Mask

    @cached_property
    def rows(self) -> list[ScoredRow]:
        """The rows with their predictions and bands."""
        rows = []
        for index, run in enumerate(self.runs):
            low, high = compute_band_factors(self.describe_knowledge(index))
            step_s = float(self.predicted_s[index])
            rows.append(build_scored_row(run, step_s, low * step_s, high * step_s))
        return rows

    def describe_knowledge(self, index: int) -> Knowledge:
        """What the fit without it knew of a row."""
        run = self.runs[index]
        return Knowledge(
            software_stated=run.stack is not None,
            stack_measured=run.stack is None or bool(self.stack_known[index]),
            gpu_measured=bool(self.gpu_known[index]),
            moe=run.moe,
            stated=run.complete or run.stack is None,
        )

    @cached_property
    def scores(self) -> Scores:
        """Errors over all rows."""
        return summarize_errors(self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: all rows, those with experts, and each source."""
        return {
            "kind": self.kind,
            "folds": self.folds,
            **self.scores,
            "moe": summarize_errors([row for row in self.rows if row.moe]),
            "by_source": summarize_sources(self.rows),
        }


def cross_validate(
    rows: TrainingRows,
    profiles: Profiles,
    kind: Kind,
    *,
    targets: Sequence[MeasuredRun] | None = None,
    workers: int | None = None,
    progress: Callable[[], None] | None = None,
) -> CrossValidation | None:
    """Leave out one part of the rows after the other; None where there is only one part. [Q8]

    `targets`: the runs that are predicted, each by the fit without its part (default: the rows themselves); the same
    runs entered as a user would are what first contact is scored on. `progress` is called after each fit.
    """
    rows = thin_rows(rows)
    runs = rows.runs if targets is None else tuple(targets)
    parts = list_held_out_parts(rows, profiles, kind)
    if len(parts) < 2:
        return None
    of_rows, of_runs = ([_get_label(run, kind, profiles) for run in side] for side in (rows.runs, runs))
    masks = [(_select_labels(of_rows, part), _select_labels(of_runs, part)) for part in parts]
    worker_count = min(workers or os.cpu_count() or 1, len(parts))
    predicted = np.full(len(runs), np.nan)
    stack_known, gpu_known = np.ones(len(runs), dtype=bool), np.ones(len(runs), dtype=bool)
    # a run that names no stack takes its framework's, which is always there
    stacks = np.array([run.stack or "" for run in rows.runs])
    gpus = np.array([profiles.find_family(get_gpu(run))[0] for run in rows.runs])
    stacks_of_runs = np.array([run.stack or "" for run in runs])
    gpus_of_runs = np.array([profiles.find_family(get_gpu(run))[0] for run in runs])
    fits = _iterate_fits(rows, runs, profiles, [held_out for held_out, _ in masks], worker_count)
    for (held_out, held_out_runs), fold_predicted_s in zip(masks, fits, strict=True):
        predicted[held_out_runs] = fold_predicted_s[held_out_runs]
        stack_known[held_out_runs] = np.isin(stacks_of_runs[held_out_runs], stacks[~held_out])
        gpu_known[held_out_runs] = np.isin(gpus_of_runs[held_out_runs], gpus[~held_out])
        if progress:
            progress()
    return CrossValidation(
        kind=kind,
        folds=len(parts),
        runs=runs,
        predicted_s=predicted,
        stack_known=stack_known,
        gpu_known=gpu_known,
    )


def list_held_out_masks(rows: TrainingRows, profiles: Profiles, kind: Kind) -> list[Mask]:
    """The same as rows."""
    labels = [_get_label(run, kind, profiles) for run in thin_rows(rows).runs]
    return [_select_labels(labels, part) for part in list_held_out_parts(rows, profiles, kind)]


def _select_labels(labels: Sequence[Hashable], part: Collection[Hashable]) -> Mask:
    return np.fromiter((label in part for label in labels), dtype=bool, count=len(labels))


def list_held_out_parts(rows: TrainingRows, profiles: Profiles, kind: Kind) -> list[set[Hashable]]:
    """Which sources (models, GPU families, rows) each fit leaves out."""
    return deal_labels([_get_label(run, kind, profiles) for run in thin_rows(rows).runs], FOLDS[kind])


def thin_rows(rows: TrainingRows) -> TrainingRows:
    """All rows, or of a very long file so many as fits can take."""
    count = len(rows.runs)
    if count <= MOST_FITTED:
        return rows
    sampled_rows = np.linspace(0, count - 1, MOST_FITTED).astype(int)
    return TrainingRows(runs=tuple(rows.runs[i] for i in sampled_rows), weights=rows.weights[sampled_rows])


def assign_folds(labels: Sequence[Hashable], most_folds: int) -> list[Mask]:
    """Which rows each part leaves out: rows of a label stay together."""
    return [_select_labels(labels, part) for part in deal_labels(labels, most_folds)]


def deal_labels(labels: Sequence[Hashable], most_folds: int) -> list[set[Hashable]]:
    """Labels that each part leaves out: large labels are dealt out first."""
    counts = Counter(labels)
    names = sorted(counts, key=lambda label: (-counts[label], str(label)))
    size = [0] * min(most_folds, len(names))
    parts: list[set[Hashable]] = [set() for _ in size]
    for name in names:
        smallest = size.index(min(size))
        parts[smallest].add(name)
        size[smallest] += counts[name]
    return parts


FURTHER_ROWS = "x-"  # Before the name of a source in files of further rows of it


def _get_label(run: MeasuredRun, kind: Kind, profiles: Profiles) -> Hashable:
    if kind == "source":
        return run.source.removeprefix(FURTHER_ROWS)
    if kind == "model":
        return run.case.model.name
    return profiles.find_family(get_gpu(run))[0] if kind == "gpu" else run.id


_worker_state: list[tuple[StepBatches, StepBatches, Vector, Profiles]] = []


def _iterate_fits(
    rows: TrainingRows, runs: Sequence[MeasuredRun], profiles: Profiles, held_out_masks: Sequence[Mask], workers: int
) -> Any:
    if workers == 1:
        _initialize_worker(rows, runs, profiles)
        yield from map(_predict_without, held_out_masks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_initialize_worker, initargs=(rows, runs, profiles)) as pool:
        yield from pool.map(_predict_without, held_out_masks)


def _initialize_worker(rows: TrainingRows, runs: Sequence[MeasuredRun], profiles: Profiles) -> None:
    steps = StepBatches(rows.runs, profiles)
    targets = steps if runs is rows.runs else StepBatches(runs, profiles)
    _worker_state[:] = [(steps, targets, rows.weights, profiles)]


def _predict_without(held_out: Mask) -> Vector:
    """Predictions of the runs, in their order, by a fit without some rows."""
    ((steps, targets, weights, profiles),) = _worker_state
    prior_arrays = build_prior_arrays(profiles)
    weight = np.where(held_out, 0.0, weights)[steps.order]
    fitted = fit(
        steps,
        steps.index,
        steps.measured,
        draw_start_values(profiles, prior_arrays),
        prior_arrays,
        weights=weight,
        rounds=ROUNDS,
    )
    predicted = np.empty(len(targets.measured))
    predicted[targets.order] = targets.predict_at(fitted.values)
    return predicted
