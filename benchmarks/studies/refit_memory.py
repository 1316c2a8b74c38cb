"""Fit the memory coefficients of a software stack to the peaks of its measured runs, and score the fit on halves.

    python benchmarks/studies/refit_memory.py src/crosszone/measured/ultrascale_sweep.csv --stack nanotron \
        --crashed src/crosszone/measured/ultrascale_crashed.csv
    python benchmarks/studies/refit_memory.py src/crosszone/measured/{measured_runs*,ultrascale_sweep}.csv --spreads

Robust least squares on log(predicted / measured) over FIELDS of the stack in `cost/profiles/memory.yaml`, from the
values there. Rows whose notes say DOUBTFUL and groups of --without GPUs are left out of the fit; the errors printed are
of all rows. With --crashed also: how many of the configurations of the other half that ran and that crashed would be
called `no`, after a fit of coefficients and distribution that saw neither; the verdicts' thresholds are those of
fits.yaml. Halves are drawn by (model, GPUs), and row by row: a fit on one half is scored on the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares, minimize  # type: ignore[import-untyped]

from crosszone.calibrate.fit import read_doubtful_reasons
from crosszone.calibrate.fits import read_configurations
from crosszone.calibrate.predicted import build_run_predictor
from crosszone.calibrate.runs import MeasuredRun, read_runs
from crosszone.cost.memory import GIB, estimate_stage_peaks, read_memory_coefficients
from crosszone.cost.profile import Profiles
from crosszone.predict.batch import Batch, join_batches
from crosszone.predict.fits import read_fits_profile
from crosszone.predict.memory import count_row_micro_batches_in_flight

# What is fitted, with its bounds. The others are counted from the operators, or assumed.
FIELDS: Mapping[str, tuple[float, float]] = {
    "base_gib": (0.0, 8.0),
    "norm_bytes": (2.0, 16.0),
    "logit_bytes": (2.0, 24.0),
    "gradient_copy_bytes": (0.0, 8.0),
    "reduce_bytes": (0.0, 16.0),
    "gathered_ahead": (0.1, 2.0),
    "gathered_work": (0.3, 30.0),
}
OUTLIER = 0.05  # Errors beyond this count less and less (Cauchy): some rows ran with other options than their group
DEEP = 8  # Pipelines deeper than this are computed apart, so that short ones are not padded to their length
SEED = 7
UNKNOWN = "generic"  # A stack of which no memory was measured
PRIOR_ROWS = 10  # Rows that the common spread counts as beside a stack's own
MEAN_OVER_SCALE = 2.0 * np.log(2.0)  # Mean size of a logistic variable over its scale
DRAWS = 10  # Fits on halves that tell how sure a value is


@dataclass(frozen=True)
class MemoryRows:
    """Runs of one stack as arrays; their peaks follow from any coefficients."""

    runs: Sequence[MeasuredRun]
    parts: Sequence[tuple[npt.NDArray[np.int64], Batch, npt.NDArray[np.float64]]]
    measured_gib: npt.NDArray[np.float64]

    def predict_gib(self, stack: str, values: Mapping[str, float], *, fullest: bool = False) -> npt.NDArray[np.float64]:
        """Peak of each run's measured stages, or of its fullest."""
        k = replace(read_memory_coefficients(stack), **values)
        peaks = np.empty(len(self.runs))
        for index, batch, in_flight in self.parts:
            stages = batch.build_stage_layers()
            total, _ = estimate_stage_peaks(batch.model, batch.work, batch.stack, stages, k, in_flight)
            of_first = np.array([bool(self.runs[i].facts.get("memory_of_first_stage")) for i in index]) & (not fullest)
            peaks[index] = np.where(of_first, total[:, 0], total.max(axis=1)) / GIB
        return peaks

    def fit(self, stack: str, used: npt.NDArray[np.bool_]) -> dict[str, float]:
        """The values of FIELDS that meet the rows `used` best."""
        start = np.array([getattr(read_memory_coefficients(stack), name) for name in FIELDS])
        low, high = np.array(list(FIELDS.values())).T

        def compute_residuals(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            log_error = np.log(self.predict_gib(stack, dict(zip(FIELDS, values, strict=True))) / self.measured_gib)
            return np.asarray(log_error[used])

        options: dict[str, Any] = {"f_scale": OUTLIER, "x_scale": np.maximum(start, 0.3), "diff_step": 1e-4}
        first = np.clip(start, low + 1e-6, high - 1e-6)
        rough = least_squares(compute_residuals, first, bounds=(low, high), loss="soft_l1", **options)
        fitted = least_squares(compute_residuals, rough.x, bounds=(low, high), loss="cauchy", **options)
        return dict(zip(FIELDS, fitted.x.tolist(), strict=True))


def build_memory_rows(runs: Sequence[MeasuredRun]) -> MemoryRows:
    """The runs as arrays, deep pipelines apart."""
    profiles, parts = Profiles.load(), []
    deep = np.array([run.case.strategy.pp > DEEP for run in runs])
    for group in (np.flatnonzero(~deep), np.flatnonzero(deep)):
        if not len(group):
            continue
        predictors = [build_run_predictor(runs[i], profiles) for i in group.tolist()]
        batch = join_batches([_keep_first_row(predictor.batch) for predictor in predictors])
        in_flight = np.zeros(batch.counts.shape)
        for row, predictor in enumerate(predictors):
            counts = count_row_micro_batches_in_flight(predictor)[0]
            in_flight[row, : len(counts)] = counts
        parts.append((group, batch, in_flight))
    return MemoryRows(runs, parts, np.array([run.memory_gib for run in runs], dtype=float))


def _keep_first_row(batch: Batch) -> Batch:
    """Replicas of a measured run are alike."""
    moe_counts = None if batch.moe_counts is None else batch.moe_counts[:1]
    return replace(batch, counts=batch.counts[:1], moe_counts=moe_counts)


def split_halves(
    keys: Sequence[object], generator: np.random.Generator
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Two halves of the keys, drawn at random: rows of equal keys stay together."""
    distinct = sorted(set(keys), key=str)
    chosen = {distinct[i] for i in generator.permutation(len(distinct))[: len(distinct) // 2]}
    half = np.array([key in chosen for key in keys])
    return half, ~half


def compute_log_ratios(rows: MemoryRows, stack: str, values: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """log(predicted peak of the fullest stage / memory of the GPU) of each run."""
    limits = np.array([run.case.cluster.zones[0].nodes[0].gpu.memory_gib for run in rows.runs])
    return np.asarray(np.log(rows.predict_gib(stack, values, fullest=True) / limits))


def fit_distribution(ran: npt.NDArray[np.float64], crashed: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Likeliest log of the usable share, and spread [M12], of configurations that ran and that crashed.

    A share of the crashes has other reasons, and a share of those that ran was predicted with other options than they
    had: both are fitted beside the two, so that such rows do not decide.
    """

    def compute_loss(x: npt.NDArray[np.float64]) -> float:
        other_crashes, other_runs = 1.0 / (1.0 + np.exp(-x[2:]))

        def estimate_ran(ratio: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            fits = 1.0 / (1.0 + np.exp(np.clip((ratio - x[0]) / np.exp(x[1]), -300.0, 300.0)))
            chance = (1.0 - other_crashes) * fits + other_runs * (1.0 - fits)
            return np.asarray(np.clip(chance, 1e-12, 1.0 - 1e-12))

        return -float(np.log(estimate_ran(ran)).sum() + np.log(1.0 - estimate_ran(crashed)).sum())

    fitted = minimize(compute_loss, [0.0, np.log(0.05), -3.0, -4.0], method="Nelder-Mead", options={"maxiter": 4000})
    return float(fitted.x[0]), float(np.exp(fitted.x[1]))


def get_group(run: MeasuredRun) -> tuple[str, int]:
    """What halves keep together."""
    return run.case.model.name, run.case.cluster.gpus


def print_verdicts(
    rows: MemoryRows, crashed: MemoryRows, stack: str, usable: npt.NDArray[np.bool_], generator: np.random.Generator
) -> None:
    """Configurations called `no` in halves that neither the coefficients nor the distribution have seen."""
    groups = [get_group(run) for run in (*rows.runs, *crashed.runs)]
    has_crashed = np.arange(len(groups)) >= len(rows.runs)
    likely = read_fits_profile()["verdicts"]["no_below"]
    for _ in range(DRAWS // 2):
        flagged = np.zeros(len(groups), dtype=bool)
        for seen in split_halves(groups, generator):
            values = rows.fit(stack, seen[: len(rows.runs)] & usable)
            ratios = np.concatenate([compute_log_ratios(part, stack, values) for part in (rows, crashed)])
            share, spread = fit_distribution(ratios[seen & ~has_crashed], ratios[seen & has_crashed])
            flagged = np.where(seen, flagged, ratios > share + spread * np.log((1.0 - likely) / likely))
        foreseen, alarms = 100.0 * flagged[has_crashed].mean(), 100.0 * flagged[~has_crashed].mean()
        print(f"halves by (model, GPUs): {foreseen:.1f} % of {has_crashed.sum()} crashes foreseen,", end=" ")
        print(f"{alarms:.2f} % of {(~has_crashed).sum()} that ran called no")


def print_spreads(runs: Sequence[MeasuredRun]) -> None:
    """Of each stack: its own spread, shrunk to the common one, which is the mean of all stacks predicted as unknown."""
    by_stack: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        by_stack.setdefault(run.stack or UNKNOWN, []).append(run)
    own, unknown, bias = {}, [], []
    for stack, of_stack in by_stack.items():
        rows = build_memory_rows(of_stack)
        own[stack] = np.log(rows.measured_gib / rows.predict_gib(stack, {}))
        as_unknown = np.log(rows.measured_gib / rows.predict_gib(UNKNOWN, {}))
        unknown.append(np.abs(as_unknown).mean())
        bias.append(as_unknown.mean())
    common = float(np.mean(unknown)) / MEAN_OVER_SCALE
    print(f"common: {common:.2f}, bias {100 * float(np.mean(bias)):+.0f} % over {len(own)} stacks")
    for stack, log_error in own.items():
        n, scale = len(log_error), float(np.abs(log_error).mean()) / MEAN_OVER_SCALE
        shrunk = (n * scale + PRIOR_ROWS * common) / (n + PRIOR_ROWS)
        print(f"  {stack}: {shrunk:.3f} (own {scale:.3f}, n {n})")


def describe_errors(predicted: npt.NDArray[np.float64], measured: npt.NDArray[np.float64]) -> str:
    """Mean and median size of the errors, and how many rows are more than 5 % low."""
    error = 100.0 * (predicted / measured - 1.0)
    size, low = np.abs(error), 100.0 * np.mean(error < -5.0)
    return f"{len(error)} rows: mean {size.mean():.1f} %, median {np.median(size):.1f} %, {low:.1f} % of them 5 % low"


def main() -> None:
    """Fit, and print the values with the errors on rows that were seen and that were not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--stack", help="stack to fit")
    parser.add_argument("--spreads", action="store_true", help="only the spreads of all stacks, for fits.yaml")
    parser.add_argument("--without", type=int, action="append", default=[512], help="GPUs of groups to leave out")
    parser.add_argument("--crashed", type=Path, help="configurations that crashed")
    options = parser.parse_args()
    doubtful = read_doubtful_reasons(options.files[0], None)
    runs = [run for file in options.files for run in read_runs(file)[0] if run.memory_gib and run.id not in doubtful]
    if options.spreads:
        print_spreads([run for run in runs if run.duplicate_of is None])
        return
    rows = build_memory_rows([run for run in runs if run.stack == options.stack])
    usable = np.array(
        [not run.facts.get("doubtful") and run.case.cluster.gpus not in options.without for run in rows.runs]
    )
    values = rows.fit(options.stack, usable)
    generator = np.random.default_rng(SEED)
    groups = [get_group(run) for run in rows.runs]
    halves = [half for _ in range(DRAWS // 2) for half in split_halves(groups, generator)]
    spread = [rows.fit(options.stack, half & usable) for half in halves]
    for name, value in values.items():
        # half of the rows has twice the variance of all
        error = np.std([values_of_half[name] for values_of_half in spread]) / np.sqrt(2.0) / max(value, 1e-9)
        print(f"  {name}: {value:.3g}, error {100 * error:.0f} %")
    predicted = rows.predict_gib(options.stack, values)
    print("seen by the fit,", describe_errors(predicted[usable], rows.measured_gib[usable]))
    print("all,", describe_errors(predicted, rows.measured_gib))
    for title, keys in (("(model, GPUs)", groups), ("rows", [run.id for run in rows.runs])):
        for seen in split_halves(keys, generator):
            predicted = rows.predict_gib(options.stack, rows.fit(options.stack, seen & usable))
            others = ~seen & usable
            print(f"halves by {title}, other half:", describe_errors(predicted[others], rows.measured_gib[others]))
    if options.crashed:
        crashed = [row for row in read_configurations(options.crashed) if isinstance(row, MeasuredRun)]
        print_verdicts(rows, build_memory_rows(crashed), options.stack, usable, generator)


if __name__ == "__main__":
    main()
