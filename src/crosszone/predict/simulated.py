"""The step as the schedule really runs it: the event simulation over the same stage and link times. [V3]"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.columns import Column, Numbers
from crosszone.cost.layer import LayerCost
from crosszone.cost.stages import StageCost, stage_layers
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import Batch
from crosszone.predict.step import StageTimes, stage_times, tail_s
from crosszone.schedule.orders import SPLIT, stages_in_order, virtual_stages
from crosszone.schedule.simulation import Simulation, simulate
from crosszone.schedule.step_times import StepTimes, step_times

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pipelines:
    """What the schedule is simulated with, row by row, and when its stages are done."""

    schedule: str
    size: dict[str, Any]
    columns: dict[str, Any]
    """Times, as `simulate` takes them, one row a step."""
    found: StepTimes

    def alone(self, row: int) -> Simulation:
        """The whole simulation of one row."""
        return simulate(self.schedule, **self.size, **{n: v[row] for n, v in self.columns.items()})


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """A batch of simulated steps of one strategy: arrays [n]."""

    times: StageTimes
    pipelines: Pipelines
    pipeline_s: Floats
    """From the first forward to the last backward pass."""
    reduced_s: Floats
    """When every stage has reduced its gradients."""
    update_s: Floats
    fixed_s: Floats
    jitter_s: Floats

    @property
    def total_s(self) -> Floats:
        """The whole step."""
        return self.reduced_s + self.update_s + self.fixed_s + self.jitter_s


def simulated_step(batch: Batch, chunks: Numbers, strategy: Strategy, k: Coefficients) -> SimulatedStep:
    """Simulate a batch of strategies that have schedule, stages, chunks and micro-batches in common with `strategy`.

    `chunks` are the layers of each stage and chunk in pipeline order: of all rows, or of each.
    """
    t = stage_times(batch, k)
    micro_batches = int(np.asarray(batch.work.micro_batches).flat[0])
    pipelines = _simulate(batch, t, chunks, strategy, k, micro_batches)
    ready, span = pipelines.found.gradients_ready_s.max(axis=-1), pipelines.found.makespan_s
    reduced, updated = tail_s(t, ready)
    fixed, jitter = (np.max(np.atleast_1d(x), axis=-1, keepdims=True) for x in (t.fixed, t.jitter))
    whole = (reduced + updated)[..., 0]
    return SimulatedStep(
        times=t,
        pipelines=pipelines,
        pipeline_s=span,
        reduced_s=reduced[..., 0],
        update_s=np.broadcast_to(updated[..., 0], whole.shape),
        fixed_s=np.broadcast_to(fixed[..., 0], whole.shape),
        jitter_s=np.broadcast_to(jitter[..., 0], whole.shape),
    )


def _simulate(
    batch: Batch, t: StageTimes, chunks: Numbers, strategy: Strategy, k: Coefficients, micro_batches: int
) -> Pipelines:
    schedule, stages, parts = strategy.pipeline_schedule, strategy.pp, strategy.interleave
    forward, backward, weight = _chunk_times(batch, t, chunks, strategy, k)
    order = stages_in_order(schedule, stages, parts)
    sender, taker = order[:-1], order[1:]
    aside = 1.0 - t.piped
    there, back = (np.broadcast_to(aside * s, t.forward.shape) / parts for s in (t.send, t.send_back))
    late = np.broadcast_to(t.latency, t.forward.shape)
    lower = np.minimum(sender, taker)
    wraps = np.abs(sender.astype(int) - taker.astype(int)) > 1
    edge = np.where(wraps, stages - 1, lower)
    downhill = (sender < taker) ^ wraps
    sends = [np.where(downhill, there[:, edge], back[:, edge]), np.where(downhill, back[:, edge], there[:, edge])]
    size: dict[str, Any] = {
        "stages": stages,
        "micro_batches": micro_batches,
        "chunks": parts,
        "extra_warmup": strategy.extra_warmup,
    }
    columns: dict[str, Floats] = {
        "forward_s": forward,
        "backward_s": backward,
        "weight_s": weight,
        "send_forward_s": sends[0],
        "send_backward_s": sends[1],
        "latency_forward_s": late[:, edge],
        "latency_backward_s": late[:, edge],
    }
    rows = len(t.forward)
    full: dict[str, Any] = {name: np.broadcast_to(v, (rows, *v.shape[1:])) for name, v in columns.items()}
    return Pipelines(schedule=schedule, size=size, columns=full, found=_times(schedule, size, full, rows))


def _times(schedule: str, size: dict[str, Any], columns: dict[str, Any], rows: int) -> StepTimes:
    """When the stages of every row are done; rows with equal times are simulated once."""
    seen: dict[bytes, int] = {}
    prints = (b"".join(v[row].tobytes() for v in columns.values()) for row in range(rows))
    row_of = np.array([seen.setdefault(one, len(seen)) for one in prints])
    first = np.array([int(np.argmax(row_of == one)) for one in range(len(seen))])
    found = step_times(schedule, **size, **{n: v[first] for n, v in columns.items()})
    return StepTimes(**{f.name: getattr(found, f.name)[row_of] for f in fields(StepTimes)})


def _chunk_times(
    batch: Batch, t: StageTimes, chunks: Numbers, strategy: Strategy, k: Coefficients
) -> tuple[Floats, Floats, Floats]:
    """Forward, backward and weight-gradient times of each stage and chunk, [n, stages, chunks]."""
    stages, parts = strategy.pp, strategy.interleave
    place = virtual_stages(strategy.pipeline_schedule, stages, parts)
    count = len(t.forward)
    splits = strategy.pipeline_schedule in SPLIT
    if parts == 1 and not splits:
        return t.forward[:, :, None], t.backward[:, :, None], np.zeros((1, 1, 1))
    in_order = stages_in_order(strategy.pipeline_schedule, stages, parts)
    gpu, own_k = _ordered(batch.gpu, in_order), _ordered(k, in_order)
    layers = stage_layers(
        np.atleast_2d(np.asarray(chunks, dtype=float)),
        batch.model.first_dense,
        batch.model.moe_every,
        batch.model.moe_layers,
    )
    per = StageCost(LayerCost(batch.model, batch.work, gpu, batch.stack, own_k), layers)
    shape = (count, stages * parts)
    forward, backward = (np.broadcast_to(x, shape)[:, place] for x in (per.forward_s, per.backward_s))
    own = per.backward["matmul"] / 2.0 + per.backward["head"] / 3.0
    weight = np.broadcast_to(own, shape)[:, place] if splits else np.zeros((count, stages, parts))
    more_forward = (t.forward - t.cost.forward_s)[:, :, None] / parts
    more_backward = (t.backward - t.cost.backward_s)[:, :, None] / parts
    return forward + more_forward, backward - weight + more_backward, weight


def _ordered(columns: Column, at: npt.NDArray[np.int32]) -> Column:
    """The columns of stages as those of the model's parts in order."""

    def picked(values: Numbers) -> Numbers:
        return values[..., at] if np.ndim(values) and np.shape(values)[-1] > 1 else values

    return type(columns)(**{f.name: picked(getattr(columns, f.name)) for f in fields(columns)})  # type: ignore[arg-type]
