"""Memory of a placed strategy: the peak of every stage against the GPUs that hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.bands import band_factors
from crosszone.cost.memory import GIB, MOMENTS, PARTS, stage_memory
from crosszone.cost.memory_profile import memory_coefficients
from crosszone.predict.prediction import Memory, StageMemory, Triple
from crosszone.schedule.orders import in_flight

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor


def memory_of(p: Predictor) -> Memory:
    """Peak memory of every stage, the fullest of its replicas' GPUs. [M1]"""
    s, b = p.strategy, p.batch
    flying = in_flight(s.pipeline_schedule, s.pp, p.micro_batches, s.interleave, s.extra_warmup) / s.interleave
    k = memory_coefficients(p.stack)
    found = stage_memory(b.model, b.work, b.stack, p.step.times.layers, k, in_flight=flying)
    parts = {part: (_stages(getattr(found, part), s.pp) / GIB).tolist() for part in PARTS}
    host, moment = (_stages(found.host, s.pp) / GIB).tolist(), _stages(found.moment, s.pp).tolist()
    held: list[list[int]] = [sorted(set(stage)) for stage in p.site.group[:, :, 0, 0].tolist()]
    stages = []
    for stage, layers in enumerate(b.counts[0].tolist()):
        tightest = min((p.site.groups[g].gpu for g in held[stage]), key=lambda gpu: gpu.memory_gib)
        own = {part: values[stage] for part, values in parts.items()}
        stages.append(
            StageMemory(
                stage=stage,
                gpu=tightest.name,
                layers=int(layers),
                parts=own,
                total=sum(own.values()),
                limit=tightest.memory_gib,
                host=host[stage],
                peak_at=MOMENTS[int(moment[stage])],
            )
        )
    worst = max(stages, key=lambda one: one.total - one.limit)
    low, high = band_factors(stack_measured=all(one.stack_measured for one in p.profile.values()), memory=True)
    peak = Triple(low=worst.total * low, expected=worst.total, high=worst.total * high)
    return Memory(
        worst_stage=worst.stage,
        peak=peak,
        limit=worst.limit,
        fits=all(one.total <= one.limit for one in stages),
        margin=worst.limit - worst.total,
        stages=tuple(stages),
    )


def _stages(values: Any, stages: int) -> npt.NDArray[np.float64]:
    """A figure of every stage: all rows have the same."""
    first = values[0] if np.ndim(values) > 1 else values
    return np.broadcast_to(first, (stages,))
