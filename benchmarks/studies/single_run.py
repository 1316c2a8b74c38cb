"""Single-run calibration on published runs: calibrate on one row of a source that no fit has seen, predict its others.

    python benchmarks/studies/single_run.py [DATA] [--only vTrain BLOOM InternEvo]

Every row takes its turn. The profiles are fitted anew without the source. `named`: the software's stack is known (what
it fuses, what it overlaps), not its coefficients; `default`: the newcomer's case, the default stack of its framework.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # results.py lies beside the other benchmarks

from refit import fit_profiles

from crosszone import measured
from crosszone.calibrate.coefficient_estimate import (
    EXPLAINED_ERROR,
    MODEL_ERROR,
    SingleRunEstimate,
    build_priors,
    estimate_coefficients,
)
from crosszone.calibrate.fit import Fit, build_training_rows, read_doubtful_reasons, select_usable_runs
from crosszone.calibrate.predicted import StepBatches, get_gpu, predict_runs_s
from crosszone.calibrate.runs import MeasuredRun, read_runs
from crosszone.cost.profile import Profiles
from results import RESULTS, write_section

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


def scale_coefficients(profiles: Profiles, run: MeasuredRun, factors: Mapping[str, float]) -> Profiles:
    """The profiles with the coefficients that a run reads times a factor."""
    return profiles.with_values(_scale_values(profiles, _locate_coefficients(profiles, run), factors))


def calibrate_on(run: MeasuredRun, profiles: Profiles, errors: Vector) -> SingleRunEstimate:
    """What the measured step of one run says of the coefficients.

    The closed form of the step is moved, times what the simulated step differs from it; that is looked up again
    with the coefficients found.
    """
    family, measured = profiles.find_family(get_gpu(run))
    priors = build_priors(profiles, [family], get_stack(run), gpu_measured=measured, errors=errors)
    steps, places = StepBatches([run], profiles), _locate_coefficients(profiles, run)
    target = run.step_time_s or 0.0
    before = simulated = float(predict_runs_s([run], profiles)[0])
    ratio = before / float(steps.predict_at(profiles.values)[0])
    for _ in range(LOOKS):

        def predict_at(factors: Mapping[str, float], ratio: float = ratio) -> list[float]:
            return [ratio * float(steps.predict_at(_scale_values(profiles, places, factors))[0])]

        estimated = estimate_coefficients(predict_at, priors, [target], [MODEL_ERROR])
        moved = scale_coefficients(profiles, run, estimated.factors)
        simulated = float(predict_runs_s([run], moved)[0])
        if abs(simulated / target - 1.0) <= EXPLAINED_ERROR:
            break
        ratio = simulated / float(steps.predict_at(moved.values)[0])
    return replace(estimated, before=(before,), after=(simulated,))


def calibrate_on_each(
    runs: Sequence[MeasuredRun], profiles: Profiles, errors: Vector, *, progress: Callable[[], None] | None = None
) -> list[Choice]:
    """Calibrate on each row in turn; the others are those that read the same coefficients."""
    before, measured = predict_runs_s(runs, profiles), np.array([run.step_time_s for run in runs], dtype=float)
    scopes = [(profiles.find_family(get_gpu(run))[0], run.stack) for run in runs]
    choices = []
    for index, run in enumerate(runs):
        same_scope = np.array([scope == scopes[index] and k != index for k, scope in enumerate(scopes)])
        if not same_scope.any():
            continue
        near = same_scope & np.array([describe_setup(run) == describe_setup(other) for other in runs])
        learned = calibrate_on(run, profiles, errors)
        after = predict_runs_s(runs, scale_coefficients(profiles, run, learned.factors))
        scaled = before * measured[index] / before[index]
        errors_pct = {
            name: 100.0 * np.abs(p / measured - 1.0)
            for name, p in {"before": before, "after": after, "scaled": scaled}.items()
        }
        choices.append(
            Choice(
                id=run.id,
                own_before_pct=float(errors_pct["before"][index]),
                own_after_pct=float(errors_pct["after"][index]),
                before_pct=float(errors_pct["before"][same_scope].mean()),
                after_pct=float(errors_pct["after"][same_scope].mean()),
                scaled_pct=float(errors_pct["scaled"][same_scope].mean()),
                near_before_pct=float(errors_pct["before"][near].mean()) if near.any() else None,
                near_after_pct=float(errors_pct["after"][near].mean()) if near.any() else None,
                moved=learned.factors,
            )
        )
        if progress:
            progress()
    return choices


def get_stack(run: MeasuredRun) -> str:
    """The stack of a published run, which names one."""
    assert run.stack is not None
    return run.stack


def _locate_coefficients(profiles: Profiles, run: MeasuredRun) -> dict[str, int]:
    """Where each coefficient of a run stands among the values."""
    index = profiles.index([profiles.find_family(get_gpu(run))[0]], [get_stack(run)])
    return {field: int(at[0, 0]) for field, at in index.items()}


def _scale_values(profiles: Profiles, places: Mapping[str, int], factors: Mapping[str, float]) -> Vector:
    values = np.array(profiles.values, dtype=float)
    for field, factor in factors.items():
        values[places[field]] *= factor
    return values


def describe_setup(run: MeasuredRun) -> tuple[str, int]:
    """What runs of one model on one cluster have in common."""
    return run.case.model.name, run.case.strategy.ranks


TITLE = "Calibrated from one log"
SOURCES = {
    "vTrain": ("vtrain-multi", ("vtrain-multi", "vtrain-single")),
    "BLOOM": ("bigscience-bloom", ("bigscience-bloom",)),
    "InternEvo": ("internevo", ("internevo",)),
    "SimuMax": ("simumax-b200", ("simumax-b200",)),
    "Sailor": ("sailor", ("sailor",)),
    "SC21": ("megatron-sc21", ("megatron-sc21",)),
    "MegaScale": ("megascale-2024", ("megascale-2024",)),
    "torchtitan": ("torchtitan", ("torchtitan",)),
}
"""Rows to calibrate on, and sources that the fit must not see."""


def fit_without(runs: Sequence[MeasuredRun], also: Sequence[MeasuredRun], left_out: Sequence[str]) -> Fit:
    """A fit of all rows but those of some sources."""
    rows = build_training_rows(
        [r for r in runs if r.source not in left_out], [r for r in also if r.source not in left_out]
    )
    return fit_profiles(rows, Profiles.load_shipped())


def set_stack(runs: Sequence[MeasuredRun], profiles: Profiles, *, has_stack: bool) -> list[MeasuredRun]:
    """The runs with the stack that they are of, or with the one a newcomer gets: their framework's default."""
    return (
        list(runs)
        if has_stack
        else [run.with_stack(profiles.select_stack(run.framework, None, run.case.release)) for run in runs]
    )


def read_old_rows(name: str) -> list[str]:
    """The rows of a source as the table has them."""
    text = RESULTS.read_text(encoding="utf-8").partition(f"## {TITLE}\n")[2].partition("\n## ")[0]
    return [row for row in text.splitlines() if row.startswith(f"| {name} |")]


def format_row(name: str, stack: str, choices: Sequence[Choice]) -> str:
    """One row of the table."""
    better = 100.0 * mean(choice.after_pct < choice.before_pct for choice in choices)
    near = [choice for choice in choices if choice.near_after_pct is not None]
    cells = (
        f"{mean(choice.before_pct for choice in choices):.1f}",
        f"{mean(choice.after_pct for choice in choices):.1f}",
        f"{median(choice.after_pct for choice in choices):.1f}",
        f"{mean(choice.scaled_pct for choice in choices):.1f}",
        f"{better:.0f}",
        f"{mean(choice.near_before_pct or 0.0 for choice in near):.1f}" if near else "",
        f"{mean(choice.near_after_pct or 0.0 for choice in near):.1f}" if near else "",
        f"{mean(choice.own_before_pct for choice in choices):.1f}",
        f"{mean(choice.own_after_pct for choice in choices):.1f}",
        f"{max(choice.own_after_pct for choice in choices):.1f}",
    )
    return f"| {name} | {stack} | {len(choices)} | " + " | ".join(cells) + " |"


def main() -> None:
    """Calibrate on every row and put the table into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=measured.FOLDER)
    parser.add_argument("--only", nargs="*", choices=SOURCES, default=list(SOURCES), help="keep the others' old rows")
    arguments = parser.parse_args()
    doubtful = read_doubtful_reasons(arguments.data / "measured_runs.csv", None)
    runs, also = (
        select_usable_runs(read_runs(arguments.data / name)[0], doubtful)
        for name in ("measured_runs.csv", "measured_runs_vtrain_single.csv")
    )
    shipped = Profiles.load_shipped()
    lines = []
    for name, (source, left_out) in SOURCES.items():
        if name not in arguments.only:
            lines += read_old_rows(name)
            continue
        fitted = fit_without(runs, also, left_out)
        profiles = shipped.with_values(fitted.values)
        errors = np.where(shipped.fixed, shipped.errors, fitted.error)
        of_source = [run for run in runs if run.source == source]
        for stack in ("named", "default"):
            choices = calibrate_on_each(set_stack(of_source, profiles, has_stack=stack == "named"), profiles, errors)
            lines.append(format_row(name, stack, choices))
            print(lines[-1], flush=True)
    head = [
        "`python benchmarks/studies/single_run.py`: profiles fitted without the source; one of its rows taken as",
        "the log of a run, the others predicted before and after; mean over every choice of the one row. Errors are",
        "|predicted / measured - 1| of the step, %. `named`: the stack is known, its coefficients are not;",
        "`default`: the default stack of the framework.",
        "",
        "| source | stack | rows | others before | others after, mean | median choice | total scaled instead "
        "| choices that improve, % | same model and GPUs before | after | the row before | the row after | worst |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    write_section(TITLE, "\n".join([*head, *lines]))


if __name__ == "__main__":
    main()
