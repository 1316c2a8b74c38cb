"""Predicted steps of measured runs, by the predictor of `predict`; no other module predicts runs.

Runs are scored by the simulated step, as every prediction is; a fit goes by its closed form over the same columns, in
groups of like pipeline degree, so that arrays are not padded to the longest pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.runs import MeasuredRun
from crosszone.cost.coefficients import Coefficients
from crosszone.cost.profile import Profiles
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.gpu import Gpu
from crosszone.predict.batch import join_batches
from crosszone.predict.predict import build_measured_predictor
from crosszone.predict.predictor import Predictor
from crosszone.predict.step import step_s

Vector = npt.NDArray[np.float64]
CHUNK_RUNS = 2048  # Runs whose closed forms are computed at once
DEPTH_RATIO = 8.0  # Pipelines computed together differ by less than this in depth


@dataclass(frozen=True, kw_only=True)
class PredictedRuns:
    """What is predicted of each run, in the order given."""

    step_s: Vector
    low_s: Vector
    high_s: Vector
    memory_gib: Vector
    gpu_measured: npt.NDArray[np.bool_]
    stacks: tuple[str, ...]
    """Stack whose coefficients each is predicted with."""


def predict_runs(runs: Sequence[MeasuredRun], profiles: Profiles) -> PredictedRuns:
    """Step time and peak memory of each run."""
    predictors = [build_run_predictor(run, profiles) for run in runs]
    return PredictedRuns(
        step_s=np.array([p.step_time.expected for p in predictors], dtype=float),
        low_s=np.array([p.step_time.low for p in predictors], dtype=float),
        high_s=np.array([p.step_time.high for p in predictors], dtype=float),
        memory_gib=np.array([get_measured_gib(run, p) for run, p in zip(runs, predictors, strict=True)], dtype=float),
        gpu_measured=np.array([profiles.find_family(get_gpu(run))[1] for run in runs], dtype=bool),
        stacks=tuple(p.stack for p in predictors),
    )


def get_measured_gib(run: MeasuredRun, predictor: Predictor) -> float:
    """The predicted figure that a run's measured memory is to be compared with: of rank 0, or of the fullest GPU."""
    memory = predictor.memory
    peak = memory.stages[0].total if run.facts.get("memory_of_first_stage") else memory.peak.expected
    return float(peak)


def predict_runs_s(runs: Sequence[MeasuredRun], profiles: Profiles) -> Vector:
    """Predicted seconds of one optimizer step of each run."""
    return np.array([build_run_predictor(run, profiles).step_time.expected for run in runs], dtype=float)


def build_run_predictor(run: MeasuredRun, profiles: Profiles) -> Predictor:
    """The predictor of a run's case."""
    return build_measured_predictor(run.id, run.case, load_frameworks()[run.framework], profiles)


def get_gpu(run: MeasuredRun) -> Gpu:
    """The GPU kind of a run."""
    return run.case.cluster.zones[0].nodes[0].gpu


class StepBatches:
    """The runs of a fit as arrays: their batches are built once and predicted with many coefficients."""

    def __init__(self, runs: Sequence[MeasuredRun], profiles: Profiles):
        groups = _group_by_depth(runs)
        self.order = np.concatenate(groups)
        stacks: list[str] = []
        self.parts = []
        """Of each group: its batch, which run of the group a row belongs to, and the first row of each run."""
        for group in groups:
            predictors = [build_run_predictor(runs[i], profiles) for i in group]
            stacks += [p.stack for p in predictors]
            batches = [p.batch for p in predictors]
            rows = np.array([len(batch.counts) for batch in batches])
            run_of_row = np.repeat(np.arange(len(group)), rows)
            self.parts.append((join_batches(batches), run_of_row, np.cumsum(rows) - rows))
        self.runs = [runs[i] for i in self.order]
        self.index = profiles.index([profiles.find_family(get_gpu(run))[0] for run in self.runs], stacks)
        self.measured = np.array([run.step_time_s for run in self.runs], dtype=float)

    def __call__(self, columns: Mapping[str, Vector]) -> Vector:
        """Predicted seconds from the coefficients of each run: those of its slowest class of replicas."""
        seconds, start = [], 0
        for batch, run_of_row, first_rows in self.parts:
            coefficients = Coefficients(**{field: values[start + run_of_row] for field, values in columns.items()})
            seconds.append(np.maximum.reduceat(step_s(batch, coefficients), first_rows))
            start += len(first_rows)
        return np.concatenate(seconds)

    def predict_at(self, values: Vector) -> Vector:
        """Predicted seconds with these values of the profiles."""
        return self({field: values[index] for field, index in self.index.items()})


def _group_by_depth(runs: Sequence[MeasuredRun]) -> list[npt.NDArray[np.int64]]:
    """Places of the runs in groups by the depth of their pipelines (1, up to 8, up to 64, ...), cut into chunks."""
    depth = np.array([run.case.strategy.pp for run in runs], dtype=float)
    level = np.ceil(np.log(depth) / np.log(DEPTH_RATIO) - 1e-9).astype(np.int64)
    groups = [np.flatnonzero(level == depth_level) for depth_level in np.unique(level)]
    return [group[start : start + CHUNK_RUNS] for group in groups for start in range(0, len(group), CHUNK_RUNS)]
