"""Memory of a placed strategy: the peak of every stage against the GPUs that hold it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.memory import GIB, MOMENTS, PARTS, StageBytes, estimate_stage_memory
from crosszone.cost.record import named, plain
from crosszone.errors import Notice
from crosszone.inputs.cluster import NodeGroup
from crosszone.predict.batch import get_scalar
from crosszone.predict.fits import choose_verdict, compute_peak_factors, estimate_fits_probability
from crosszone.predict.prediction import Memory, StageMemory, Triple, name_triple
from crosszone.schedule.orders import count_in_flight

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor

# Suffixes of arrays: K replica classes, S stages.


def predict_memory(p: Predictor) -> Memory:
    """Peak memory of every stage, the fullest of its replicas' GPUs. [M1]"""
    s, b, placed = p.strategy, p.batch, p.placed
    stage_bytes, fullest = find_fullest(p)
    gpus = [group.gpu for group in placed.groups]
    group = placed.group[:, placed.replica_classes[0], 0, 0].T

    def pick_fullest(values: Any) -> Any:
        return np.broadcast_to(values, b.counts.shape)[fullest, np.arange(s.pp)]

    parts = {part: named(f"memory_gib.parts.{part}", pick_fullest(getattr(stage_bytes, part)) / GIB) for part in PARTS}
    host = named("memory_gib.host", pick_fullest(stage_bytes.host) / GIB)
    moment = plain(pick_fullest(stage_bytes.moment)).tolist()
    totals = named("memory_gib.total", sum(parts.values()))
    limits = named("memory_gib.stage_limit", np.array([gpus[g].memory_gib for g in group[fullest, np.arange(s.pp)]]))
    stages = []
    for stage, layers in enumerate(b.counts[0].tolist()):
        gpu = gpus[group[fullest[stage], stage]]
        host_gib = get_host_gib(placed.groups[group[fullest[stage], stage]])
        parts_of_stage = {part: get_scalar(values[stage]) for part, values in parts.items()}
        stages.append(
            StageMemory(
                stage=stage,
                gpu=gpu.name,
                layers=int(layers),
                parts=parts_of_stage,
                total=get_scalar(totals[stage]),
                limit=get_scalar(limits[stage]),
                host=get_scalar(host[stage]),
                host_limit=None if math.isinf(host_gib) else host_gib,
                peak_at=MOMENTS[moment[stage]],
            )
        )
    worst = max(stages, key=lambda stage: float(stage.total) - float(stage.limit))
    # errors of stages are those of one stack: not independent, so that the likeliest to be full decides
    fullest_stage = max(stages, key=lambda stage: float(stage.total) / float(stage.limit))
    likely = estimate_fits_probability(fullest_stage.total, fullest_stage.limit, p.stack)
    on_host = all(float(stage.host) <= (stage.host_limit or math.inf) for stage in stages)
    probability = named("memory_gib.fits_probability", likely if on_host else 0.0)
    verdict = choose_verdict(float(probability))
    low, high = compute_peak_factors(p.stack)
    peak = Triple(low=worst.total * low, expected=worst.total, high=worst.total * high)
    return Memory(
        worst_stage=worst.stage,
        peak=name_triple("memory_gib.peak", peak),
        limit=named("memory_gib.limit", worst.limit),
        fits=verdict != "no",
        verdict=verdict,
        fits_probability=probability,
        margin=named("memory_gib.margin", worst.limit - worst.total),
        stages=tuple(stages),
    )


def find_fullest(p: Predictor) -> tuple[StageBytes, npt.NDArray[np.intp]]:
    """Bytes of every row and stage, and of each stage the class of replicas whose GPU comes nearest to its limit."""
    b, placed = p.batch, p.placed
    stage_bytes = estimate_stage_memory(
        b.model,
        b.work,
        b.stack,
        b.build_stage_layers(),
        p.memory_coefficients,
        in_flight=count_row_micro_batches_in_flight(p),
    )
    # against its own limit, not in bytes: a smaller GPU may be full where a larger one holds more
    group_KS = placed.group[:, placed.replica_classes[0], 0, 0].T
    room = np.array([group.gpu.memory_gib for group in placed.groups])[group_KS]
    return stage_bytes, np.argmax(
        np.broadcast_to(plain(stage_bytes.total) / GIB, b.counts.shape)[: len(room)] - room, axis=0
    )


def count_row_micro_batches_in_flight(p: Predictor) -> npt.NDArray[np.float64]:
    """Micro-batches that each stage holds at a time, of every row: replica classes have their own number of them."""
    s = p.strategy
    in_flight_KS = [
        # counted in virtual stages, each of which keeps 1 / v of the stage's activations [M4]
        count_in_flight(s.pipeline_schedule, s.pp, m, s.interleave, s.extra_warmup) / s.interleave
        for m in p.placed.class_micro_batches.tolist()
    ]
    return np.asarray(p.placed.repeat_rows(np.array(in_flight_KS)))


def get_host_gib(group: NodeGroup) -> float:
    """Memory of a node for each of its GPUs, GiB: as stated, else of the GPU's usual machine; inf: not known. [M8]"""
    if group.memory_gib is not None:
        return group.memory_gib / group.gpus
    usual = group.gpu.usual_machine
    return math.inf if usual is None or usual.memory_gib is None else usual.memory_gib / usual.gpus


def list_host_notices(p: Predictor, memory: Memory) -> Iterator[Notice]:
    """What offloaded states need of a node: more than it has, or than is known of it."""
    fullest: dict[int, float] = {}
    for stage in memory.stages:
        for g, group in enumerate(p.placed.groups):
            if stage.host and group.gpu.name == stage.gpu and g in p.placed.groups_in_use:
                fullest[g] = max(fullest.get(g, 0.0), float(stage.host))
    for g, host_gib in fullest.items():
        group, zone, place = p.placed.groups[g], *_find_place(p, g)
        params = {
            "zone": p.placed.cluster.zones[zone].name,
            "gpu": group.gpu.name,
            "needed": round(host_gib * group.gpus),
            "limit": round(get_host_gib(group) * group.gpus) if math.isfinite(get_host_gib(group)) else None,
        }
        if params["limit"] is None:
            code = "host_memory_unknown"
        elif host_gib > get_host_gib(group):
            code = "host_memory_exceeded"
        elif group.memory_gib is None:
            code = "host_memory_usual"
        else:
            continue
        field = f"cluster.zones[{zone}].nodes[{place}].memory_gib"
        yield Notice(code=code, level="note" if code == "host_memory_usual" else "warning", field=field, params=params)


def _find_place(p: Predictor, number: int) -> tuple[int, int]:
    """Zone and place in it of a node group."""
    places = [(z, n) for z, zone in enumerate(p.placed.cluster.zones) for n in range(len(zone.nodes))]
    return places[number]
