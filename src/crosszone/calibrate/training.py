"""Training: the rows that profiles are fitted to, and the fit itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crosszone.calibrate.fit import Fit, Vector, fit
from crosszone.calibrate.predicted import Steps
from crosszone.calibrate.priors import beliefs, start
from crosszone.calibrate.runs import Run, read_doubtful
from crosszone.cost.profile import Profiles

ALSO_WEIGHT = 0.3
"""Weight of a row of a file that would otherwise outnumber the others."""
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


def refit(rows: Training, profiles: Profiles, *, strewn: float = 0.0, rounds: int = 60) -> Fit:
    """Fit every coefficient that has a prior; `strewn` starts elsewhere, which must not matter."""
    steps = Steps(rows.runs, profiles)
    believed = beliefs(profiles)
    begin = start(profiles, believed, strewn)
    return fit(steps, steps.index, steps.measured, begin, believed, weights=rows.weights[steps.order], rounds=rounds)


def refit_stacks(runs: Sequence[Run], profiles: Profiles, known: Collection[str]) -> Fit:
    """Fit only the coefficients of the stacks that `known` lacks; all others keep their values."""
    own = {f"stack {run.stack}" for run in runs if run.stack not in known}
    believed = beliefs(profiles)
    mine = np.array([home in own for home, _ in profiles.names])
    believed = replace(believed, free=believed.free & mine)
    steps = Steps([run for run in runs if f"stack {run.stack}" in own], profiles)
    return fit(steps, steps.index, steps.measured, profiles.values.copy(), believed)


def doubtful_of(runs: Path, given: Path | None) -> dict[str, str]:
    """Reasons by id: of the file given, else of doubtful_rows.csv beside the runs, else none."""
    path = given or runs.with_name(DOUBTFUL)
    return read_doubtful(path) if given or path.exists() else {}
