"""One log on published runs: calibrate on each row of a source in turn and predict its other rows.

    rows = each_row(runs, profiles, errors)
    rows[0].before_pct, rows[0].after_pct            # mean error of the other rows, before and after

The profiles must not have seen the source (`training.refit` without it); `errors` are that fit's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.predicted import Steps, gpu_of, predicted_s
from crosszone.calibrate.runs import Run
from crosszone.calibrate.single_run_estimate import MODEL, PROMISE, Estimate, beliefs_of, estimate
from crosszone.cost.profile import Profiles

Vector = npt.NDArray[np.float64]
LOOKS = 3  # Times at most that the simulated step is compared with its closed form


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What calibrating on one row does to the others of its source (mean absolute errors of the step, %)."""

    id: str
    own_before_pct: float
    own_after_pct: float
    """The row itself."""
    before_pct: float
    after_pct: float
    scaled_pct: float
    """The other rows: as they were, with the coefficients moved, and with the total scaled by the row."""
    near_before_pct: float | None
    near_after_pct: float | None
    """Those of them with the same model on as many GPUs: other strategies on the same cluster."""
    moved: dict[str, float]
    """Factor of each coefficient that moved."""


def factored(profiles: Profiles, run: Run, factors: Mapping[str, float]) -> Profiles:
    """The profiles with the coefficients that a run reads times a factor."""
    return profiles.with_values(_values(profiles, _places(profiles, run), factors))


def calibrated(run: Run, profiles: Profiles, errors: Vector) -> Estimate:
    """What the measured step of one run says of the coefficients.

    The closed form of the step is moved, times what the simulated step differs from it; that is looked up again
    with the coefficients found.
    """
    family, measured = profiles.gpu_profile(gpu_of(run))
    believed = beliefs_of(profiles, [family], run.stack, gpu_measured=measured, errors=errors)
    steps, places = Steps([run], profiles), _places(profiles, run)
    target = run.step_time_s or 0.0
    before = simulated = float(predicted_s([run], profiles)[0])
    ratio = before / float(steps.at(profiles.values)[0])
    for _ in range(LOOKS):

        def at(factors: Mapping[str, float], ratio: float = ratio) -> list[float]:
            return [ratio * float(steps.at(_values(profiles, places, factors))[0])]

        found = estimate(at, believed, [target], [MODEL])
        there = factored(profiles, run, found.factors)
        simulated = float(predicted_s([run], there)[0])
        if abs(simulated / target - 1.0) <= PROMISE:
            break
        ratio = simulated / float(steps.at(there.values)[0])
    return replace(found, before=(before,), after=(simulated,))


def each_row(
    runs: Sequence[Run], profiles: Profiles, errors: Vector, *, progress: Callable[[], None] | None = None
) -> list[Choice]:
    """Calibrate on each row in turn; the others are those that read the same coefficients."""
    before, measured = predicted_s(runs, profiles), np.array([run.step_time_s for run in runs], dtype=float)
    homes = [(profiles.gpu_profile(gpu_of(run))[0], run.stack) for run in runs]
    found = []
    for at, run in enumerate(runs):
        others = np.array([home == homes[at] and k != at for k, home in enumerate(homes)])
        if not others.any():
            continue
        near = others & np.array([alike(run) == alike(other) for other in runs])
        learned = calibrated(run, profiles, errors)
        after = predicted_s(runs, factored(profiles, run, learned.factors))
        scaled = before * measured[at] / before[at]
        wrong = {name: 100.0 * np.abs(p / measured - 1.0) for name, p in _named(before, after, scaled).items()}
        found.append(
            Choice(
                id=run.id,
                own_before_pct=float(wrong["before"][at]),
                own_after_pct=float(wrong["after"][at]),
                before_pct=float(wrong["before"][others].mean()),
                after_pct=float(wrong["after"][others].mean()),
                scaled_pct=float(wrong["scaled"][others].mean()),
                near_before_pct=float(wrong["before"][near].mean()) if near.any() else None,
                near_after_pct=float(wrong["after"][near].mean()) if near.any() else None,
                moved=learned.factors,
            )
        )
        if progress:
            progress()
    return found


def _places(profiles: Profiles, run: Run) -> dict[str, int]:
    """Where each coefficient of a run stands among the values."""
    index = profiles.index([profiles.gpu_profile(gpu_of(run))[0]], [run.stack])
    return {field: int(at[0, 0]) for field, at in index.items()}


def _values(profiles: Profiles, places: Mapping[str, int], factors: Mapping[str, float]) -> Vector:
    values = np.array(profiles.values, dtype=float)
    for field, factor in factors.items():
        values[places[field]] *= factor
    return values


def alike(run: Run) -> tuple[str, int]:
    """What runs of one model on one cluster have in common."""
    return run.case.model.name, run.case.strategy.ranks


def _named(before: Vector, after: Vector, scaled: Vector) -> dict[str, Vector]:
    return {"before": before, "after": after, "scaled": scaled}
