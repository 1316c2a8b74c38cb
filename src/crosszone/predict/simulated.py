"""The step as the schedule really runs it: the event simulation over the same stage and link times. [V3]"""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.columns import Column, Numbers
from crosszone.cost.layer import LayerCost
from crosszone.cost.stages import StageCost, stage_layers
from crosszone.errors import Notice
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import Batch
from crosszone.predict.step import StageTimes, bounded_s, pipeline_bounds_s, stage_times, tail_s
from crosszone.schedule.closed_form import largest, makespan_bound_s
from crosszone.schedule.orders import SPLIT, stages_in_order, virtual_stages
from crosszone.schedule.simulation import Simulation, simulate
from crosszone.schedule.step_times import step_times

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Pipelines:
    """What the schedule is simulated with, row by row, and when its stages are done."""

    schedule: str
    size: dict[str, Any]
    micro_batches: Ints
    """Of each row."""
    columns: dict[str, Any]
    """Times, as `simulate` takes them, one row a step."""
    span_s: Floats
    """From the first forward to the last backward pass, of each row."""
    ready_s: Floats
    """When each stage's gradients are whole: [rows, stages]."""

    def alone(self, row: int) -> Simulation:
        """The whole simulation of one row."""
        times = {name: values[row] for name, values in self.columns.items()}
        return simulate(self.schedule, micro_batches=int(self.micro_batches[row]), **self.size, **times)


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """A batch of simulated steps of one strategy: arrays [n]."""

    times: StageTimes
    pipelines: Pipelines
    reduced_s: Floats
    """When every stage has reduced its gradients."""
    update_s: Floats
    fixed_s: Floats
    jitter_s: Floats

    @property
    def total_s(self) -> Floats:
        """The whole step."""
        return self.reduced_s + self.update_s + self.fixed_s + self.jitter_s


def simulated_step(
    batch: Batch, chunks: Numbers, strategy: Strategy, k: Coefficients, pipelines: Pipelines | None = None
) -> SimulatedStep:
    """Simulate a batch of strategies that have schedule, stages and chunks in common with `strategy`.

    `chunks` are the layers of each stage and chunk in pipeline order: of all rows, or of each. `pipelines`: those that
    were simulated before.
    """
    t = stage_times(batch, k)
    pipelines = pipelines or _simulate(batch, t, chunks, strategy, k)
    reduced, updated = tail_s(t, pipelines.ready_s)
    fixed, jitter = (largest(np.atleast_1d(x)) for x in (t.fixed, t.jitter))
    whole = (reduced + updated)[..., 0]
    return SimulatedStep(
        times=t,
        pipelines=pipelines,
        reduced_s=reduced[..., 0],
        update_s=np.broadcast_to(updated[..., 0], whole.shape),
        fixed_s=np.broadcast_to(fixed[..., 0], whole.shape),
        jitter_s=np.broadcast_to(jitter[..., 0], whole.shape),
    )


def _simulate(batch: Batch, t: StageTimes, chunks: Numbers, strategy: Strategy, k: Coefficients) -> Pipelines:
    size, columns = pipeline_columns(batch, t, chunks, strategy, k)
    counts = _micro_batches(batch, len(t.forward))
    span, ready = _times(strategy.pipeline_schedule, size, columns, counts)
    return Pipelines(
        schedule=strategy.pipeline_schedule,
        size=size,
        micro_batches=counts,
        columns=columns,
        span_s=span,
        ready_s=ready,
    )


def _micro_batches(batch: Batch, rows: int) -> Ints:
    return np.broadcast_to(np.ravel(batch.work.micro_batches), (rows,)).astype(np.int64)


def least_step_s(batch: Batch, chunks: Numbers, strategy: Strategy, k: Coefficients) -> Floats:
    """Least time of steps as in `simulated_step`, by the tight bound of their pipelines: close to it. [V3]"""
    t = stage_times(batch, k)
    longest, own = pipeline_bounds_s(batch, t)
    span = largest(longest)
    if strategy.pp > 1:
        size, columns = pipeline_columns(batch, t, chunks, strategy, k)
        counts = _micro_batches(batch, len(t.forward))
        tight = makespan_bound_s(strategy.pipeline_schedule, micro_batches=counts, **size, **columns)
        span = np.maximum(span, tight[:, None])
    found: Floats = bounded_s(t, span, own)
    return found


def pipeline_columns(
    batch: Batch, t: StageTimes, chunks: Numbers, strategy: Strategy, k: Coefficients
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Size of the pipeline, and its times as `simulate` takes them, one row a step."""
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
    size: dict[str, Any] = {"stages": stages, "chunks": parts, "extra_warmup": strategy.extra_warmup}
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
    return size, full


SHORT = 20_000
"""Operations up to which a step is simulated whole; longer ones repeat their rounds (`step_times`)."""
MOST = 1_000_000
"""Operations of a step (passes of a chunk over a micro-batch, both ways as one) that are simulated at most."""
REPEATING = ("1f1b", "interleaved", "zero-bubble")
"""Schedules whose rounds repeat: a long step costs no more than a few rounds."""
ROUNDS_AT_MOST = 10
"""Of such a step: micro-batches simulated for each stage."""
KNOWN = 16_384
"""Simulated steps that are remembered."""
_known: dict[tuple[Any, ...], tuple[float, Floats]] = {}
"""End of the pipeline, and when each stage's gradients are whole, by schedule, size and times."""


def too_long(strategy: Strategy, global_batch: int) -> Notice | None:
    """That a step is too long to simulate: it would take minutes and gigabytes."""
    chunks, given = strategy.pp * strategy.interleave, strategy.micro_batches(global_batch)
    most = ROUNDS_AT_MOST * strategy.pp if strategy.pipeline_schedule in REPEATING else given
    lengths = set(strategy.replica_micro_batches or (given,))
    operations = chunks * sum(min(length, most) for length in lengths)
    if strategy.pp == 1 or operations <= MOST:
        return None
    params = {"limit": MOST, "micro_batches": given}
    return Notice(code="step_too_long", value=operations, field="strategy", params=params)


def _times(schedule: str, size: dict[str, Any], columns: dict[str, Any], counts: Ints) -> tuple[Floats, Floats]:
    """End of every row's pipeline, and when each stage's gradients are whole; rows of one length together."""
    if size["stages"] == 1 and size["chunks"] == 1:
        alone = counts * sum(columns[name][:, 0, 0] for name in ("forward_s", "backward_s", "weight_s"))
        return alone, alone[:, None]
    if (counts == counts[0]).all():
        return _equally_long(schedule, size | {"micro_batches": int(counts[0])}, columns, len(counts))
    span, ready = np.empty(len(counts)), np.empty((len(counts), size["stages"]))
    for count in np.unique(counts).tolist():
        at = np.flatnonzero(counts == count)
        some = {name: values[at] for name, values in columns.items()}
        span[at], ready[at] = _equally_long(schedule, size | {"micro_batches": count}, some, len(at))
    return span, ready


def _equally_long(schedule: str, size: dict[str, Any], columns: dict[str, Any], rows: int) -> tuple[Floats, Floats]:
    """The same of rows that have their micro-batches in common; equal rows are simulated once.

    So are those that were asked for before: by options that pipelines do not feel, or by cells of a sweep.
    """
    told = (schedule, *size.values())
    prints = [
        (*told, blake2b(b"".join(v[row].tobytes() for v in columns.values()), digest_size=16).digest())
        for row in range(rows)
    ]
    found = {one: known for one in prints if (known := _known.get(one)) is not None}
    new = list(dict.fromkeys(one for one in prints if one not in found))
    if new:
        first = [prints.index(one) for one in new]
        some = {n: v[first] for n, v in columns.items()}
        short = size["stages"] * size["chunks"] * size["micro_batches"] <= SHORT and schedule != "delay-aware"
        done = simulate(schedule, **size, **some) if short else step_times(schedule, **size, **some)
        ready = done.gradients_ready_s.max(axis=-1)
        found |= {one: (float(done.makespan_s[at]), ready[at].copy()) for at, one in enumerate(new)}
        if len(_known) > KNOWN:
            _known.clear()
        _known.update((one, found[one]) for one in new)
    return np.array([found[one][0] for one in prints]), np.stack([found[one][1] for one in prints])


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
    per = StageCost(LayerCost(batch.model, batch.work, gpu, batch.stack, own_k, batch.measured), layers)
    shape = (count, stages * parts)
    forward, backward = (np.broadcast_to(x, shape)[:, place] for x in (per.forward_s, per.backward_s))
    weight = np.broadcast_to(per.weight_s, shape)[:, place] if splits else np.zeros((count, stages, parts))
    more_forward = (t.forward - t.cost.forward_s)[:, :, None] / parts
    more_backward = (t.backward - t.cost.backward_s)[:, :, None] / parts
    return forward + more_forward, backward - weight + more_backward, weight


def _ordered(columns: Column, at: npt.NDArray[np.int32]) -> Column:
    """The columns of stages as those of the model's parts in order."""

    def picked(values: Numbers) -> Numbers:
        return values[..., at] if np.ndim(values) and np.shape(values)[-1] > 1 else values

    return type(columns)(**{f.name: picked(getattr(columns, f.name)) for f in fields(columns)})  # type: ignore[arg-type]
