"""Predicted steps of measured runs: the one place where runs meet the predictor.

Runs are scored by the simulated step, as every prediction is; a fit goes by its closed form, in buckets of like
pipeline degree, so that arrays are not padded to the longest pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.runs import Run
from crosszone.cost.coefficients import Coefficients
from crosszone.cost.memory import GIB, stage_memory
from crosszone.cost.memory_profile import memory_coefficients
from crosszone.cost.profile import Profiles
from crosszone.cost.stages import stage_layers
from crosszone.inputs.gpu import Gpu
from crosszone.predict.batch import Batch, batch_of, chunk_layers
from crosszone.predict.simulated import simulated_step
from crosszone.predict.step import step_s

Vector = npt.NDArray[np.float64]
CHUNK = 2048
"""Runs predicted at once."""
DEEPER = 8.0
"""Pipelines predicted together differ by less than this in depth."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What is predicted of each run, in the order given."""

    step_s: Vector
    memory_gib: Vector
    gpu_measured: npt.NDArray[np.bool_]


def predicted(runs: Sequence[Run], profiles: Profiles) -> Predicted:
    """Step time and peak memory of each run."""
    step, memory = np.empty(len(runs)), np.empty(len(runs))
    measured = np.array([profiles.gpu_profile(gpu_of(run))[1] for run in runs], dtype=bool)
    for at in _alike(runs):
        some = [runs[i] for i in at]
        batch, strategy = _batch(some, profiles), some[0].case.strategy
        chunks = [chunk_layers(run.case) for run in some]
        step[at] = simulated_step(batch, chunks, strategy, profiles.coefficients(*_homes(some, profiles))).total_s
        memory[at] = _memory_gib(some, batch)
    return Predicted(step_s=step, memory_gib=memory, gpu_measured=measured)


def predicted_s(runs: Sequence[Run], profiles: Profiles) -> Vector:
    """Predicted seconds of one optimizer step of each run."""
    return predicted(runs, profiles).step_s


def gpu_of(run: Run) -> Gpu:
    """The GPU kind of a run."""
    return run.case.cluster.zones[0].nodes[0].gpu


class Steps:
    """The runs of a fit as arrays: their batches are built once and predicted with many coefficients."""

    def __init__(self, runs: Sequence[Run], profiles: Profiles):
        parts = [(at, [runs[i] for i in at]) for at in _buckets(runs)]
        self.order = np.concatenate([at for at, _ in parts])
        self.parts = [_batch(some, profiles) for _, some in parts]
        self.index = profiles.index(*_homes([runs[i] for i in self.order], profiles))
        self.measured = np.array([runs[i].step_time_s for i in self.order], dtype=float)
        self.runs = [runs[i] for i in self.order]

    def __call__(self, columns: Mapping[str, Vector]) -> Vector:
        """Predicted seconds from the coefficients of each run."""
        found, start = [], 0
        for batch in self.parts:
            end = start + len(batch.counts)
            found.append(step_s(batch, Coefficients(**{f: v[start:end] for f, v in columns.items()})))
            start = end
        return np.concatenate(found)

    def at(self, values: Vector) -> Vector:
        """Predicted seconds with these values of the profiles."""
        return self({field: values[index] for field, index in self.index.items()})


def _buckets(runs: Sequence[Run]) -> list[npt.NDArray[np.int64]]:
    """Places of the runs in groups by the depth of their pipelines (1, up to 8, up to 64, ...), cut into chunks."""
    depth = np.array([run.case.strategy.pp for run in runs], dtype=float)
    level = np.ceil(np.log(depth) / np.log(DEEPER) - 1e-9).astype(np.int64)
    groups = [np.flatnonzero(level == one) for one in np.unique(level)]
    return [group[start : start + CHUNK] for group in groups for start in range(0, len(group), CHUNK)]


def _alike(runs: Sequence[Run]) -> Iterator[npt.NDArray[np.int64]]:
    """Places of the runs in groups of equal schedule, stages, chunks and micro-batches: simulated together."""
    groups: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        s = run.case.strategy
        groups[s.pipeline_schedule, s.pp, s.interleave, s.micro_batches(run.case.job.global_batch)].append(place)
    for group in groups.values():
        for start in range(0, len(group), CHUNK):
            yield np.array(group[start : start + CHUNK])


def _homes(runs: Sequence[Run], profiles: Profiles) -> tuple[list[str], list[str]]:
    return [profiles.gpu_profile(gpu_of(run))[0] for run in runs], [run.stack for run in runs]


def _batch(runs: Sequence[Run], profiles: Profiles) -> Batch:
    return batch_of(
        [
            (
                run.case,
                run.framework,
                run.facts,
                profiles.stacks[run.stack]["settings"],
                profiles.release_age(run.stack, run.release),
            )
            for run in runs
        ]
    )


def _memory_gib(runs: Sequence[Run], batch: Batch) -> Vector:
    """Peak memory of the fullest stage."""
    stages = stage_layers(batch.counts, batch.model.first_dense, batch.model.moe_every, batch.model.moe_layers)
    held = stage_memory(batch.model, batch.work, batch.stack, stages, memory_coefficients([r.stack for r in runs]))
    return np.asarray(held.peak) / GIB
