"""Cross-validation: each row predicted by a fit that has not seen its source, its model, its GPU family or itself.

    found = cross_validate(rows, Profiles.load(), "source")
    found.scores["mape_pct"], found.scores["band_coverage_pct"]

Every fit starts from the priors. A stack (or GPU family) that no other row has is left at the common values.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.accuracy import ScoredRow, Scores, row_band, scores
from crosszone.calibrate.fit import Training, Vector, beliefs, fit, start
from crosszone.calibrate.predicted import Steps, gpu_of
from crosszone.calibrate.runs import Run
from crosszone.cost.profile import Profiles

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
