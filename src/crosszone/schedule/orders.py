"""Orders: what each pipeline stage does, one operation after the other, under each schedule.

A stage holds one or more chunks of the model (Megatron's virtual stages). A chunk runs the forward pass of a
micro-batch (F), its backward pass for the inputs (B) and for the weights (W). Schedules that do not split the backward
pass have no W: B is the whole of it.

`build_eager_orders`: the order in which delay-aware stages run what has arrived. [S4]

1F1B stages have a fixed order: over a slow link a stage waits for the next forward input although a backward input has
long arrived. An eager stage takes the backward pass that has arrived, else the forward pass that has arrived if it may
hold one more micro-batch, else it waits for whichever comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
KIND_NAMES = ("forward", "backward", "weight")

# Schedules that run the two halves of the backward pass apart.
SPLITS_WEIGHT_GRAD = frozenset({"zero-bubble", "zbv", "dualpipev"})
# Schedules whose second chunks run from the last stage back to the first.
V_SHAPED = frozenset({"zbv", "dualpipev"})

Ints = NDArray[np.int32]
Operation = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Orders:
    """The operations of every stage in order: three arrays [stages, operations of a stage]."""

    schedule: str
    stages: int
    micro_batches: int
    chunks: int
    kind: Ints
    micro_batch: Ints
    chunk: Ints

    @property
    def splits(self) -> bool:
        """Whether weight gradients are operations of their own."""
        return self.schedule in SPLITS_WEIGHT_GRAD


@lru_cache(maxsize=256)
def build_orders(schedule: str, stages: int, micro_batches: int, chunks: int = 1, extra_warmup: int = 0) -> Orders:
    """What each stage runs, in order, during one step.

    build_orders("1f1b", 4, 8)
    build_orders("interleaved", 4, 8, chunks=2)
    build_orders("delay-aware", 8, 32, extra_warmup=3)

    `extra_warmup`: micro-batches more in flight than 1F1B has, on all stages but the last.
    A delay-aware stage takes what has arrived first (`build_eager_orders`): this is its order while nothing is late.
    """
    if min(stages, micro_batches, chunks) < 1 or extra_warmup < 0:
        raise ValueError(f"{stages=}, {micro_batches=} and {chunks=} must be at least 1, {extra_warmup=} at least 0")
    if schedule in V_SHAPED and not stages == chunks == 1:
        if chunks != 2:
            raise ValueError(f"{schedule} runs two chunks on a stage, not {chunks}")
        phases = _iterate_zbv if schedule == "zbv" else _iterate_dualpipev
        rows = [_collect_operations(phases(stage, stages, micro_batches), micro_batches) for stage in range(stages)]
    elif schedule in SPLITS_WEIGHT_GRAD:
        _require_one_chunk(schedule, chunks)
        rows = [_order_zero_bubble(stage, stages, micro_batches) for stage in range(stages)]
    else:
        if schedule != "interleaved":
            _require_one_chunk(schedule, chunks)
        limits = _list_limits(schedule, stages, micro_batches, chunks, extra_warmup)
        forward = _order_chunks(stages, micro_batches, chunks)
        backward = forward[0], chunks - 1 - forward[1]
        rows = [_alternate_passes(forward, backward, int(limit)) for limit in limits]
    kind, micro_batch, chunk = (_make_read_only(np.stack(arrays)) for arrays in zip(*rows, strict=True))
    return Orders(schedule, stages, micro_batches, chunks, kind, micro_batch, chunk)


def map_virtual_stages(schedule: str, stages: int, chunks: int = 1) -> Ints:
    """Position in the model of each chunk: array [stages, chunks] of 0 .. stages x chunks - 1. [S2]

    Chunk c of stage s is part c p + s; in a V, chunk 1 is part 2p - 1 - s, so that the last stage holds the middle.
    """
    stage, chunk = np.arange(stages)[:, None], np.arange(chunks)[None, :]
    place = chunk * stages + stage
    if schedule in V_SHAPED:
        place = np.where(chunk % 2, (chunk + 1) * stages - 1 - stage, place)
    return place.astype(np.int32)


def list_stages_in_order(schedule: str, stages: int, chunks: int = 1) -> Ints:
    """The stage that holds each part of the model: array [stages x chunks]; boundary k is between parts k and k + 1."""
    place = map_virtual_stages(schedule, stages, chunks)
    stage_of_part = np.empty(stages * chunks, np.int32)
    stage_of_part[place] = np.arange(stages)[:, None]
    return stage_of_part


@lru_cache(maxsize=1024)
def count_in_flight(schedule: str, stages: int, micro_batches: int, chunks: int = 1, extra_warmup: int = 0) -> Ints:
    """Most activations each stage holds at a time, counted in micro-batches of one chunk: array [stages]. [S1]

    Held from the forward pass to the end of the backward pass (for the weights, where that is apart).
    """
    if schedule in V_SHAPED:
        largest = 2 * stages + (schedule == "dualpipev")
        ahead = micro_batches + 1 + np.arange(stages)
        return _make_read_only(np.minimum(ahead, min(2 * micro_batches, largest)).astype(np.int32))
    if schedule in SPLITS_WEIGHT_GRAD:
        return _make_read_only(np.full(stages, min(micro_batches, stages), np.int32))
    return _make_read_only(_list_limits(schedule, stages, micro_batches, chunks, extra_warmup))


def choose_group_size(stages: int, micro_batches: int) -> int:
    """Micro-batches that an interleaved stage runs on one chunk before it turns to the next.

    As many as there are stages; where the micro-batches do not divide by that, the least larger number that leaves no
    last group shorter than the pipeline, which would stall it.
    """
    fits = (n for n in range(stages, micro_batches) if micro_batches % n == 0 or micro_batches % n >= stages)
    return next(fits, micro_batches)


def _list_limits(schedule: str, stages: int, micro_batches: int, chunks: int, extra_warmup: int) -> Ints:
    """Forward passes ahead of backward passes that each stage may have. [S1]"""
    after = np.arange(stages - 1, -1, -1)
    if schedule == "gpipe":
        limit = np.full(stages, micro_batches)
    elif schedule == "interleaved" and chunks > 1:
        limit = 2 * after + (chunks - 1) * choose_group_size(stages, micro_batches) + 1
    elif schedule in ("1f1b", "interleaved"):
        limit = after + 1
    elif schedule == "delay-aware":
        limit = after + 1 + np.where(after > 0, extra_warmup, 0)
    else:
        raise ValueError(f"no schedule {schedule!r}")
    return np.asarray(np.minimum(limit, micro_batches * chunks), np.int32)


def _order_chunks(stages: int, micro_batches: int, chunks: int) -> tuple[Ints, Ints]:
    """Micro-batch and chunk of each forward pass of a stage: group after group, in a group chunk after chunk."""
    group = choose_group_size(stages, micro_batches) if chunks > 1 else micro_batches
    micro_batch, chunk = np.divmod(np.arange(micro_batches * chunks), chunks)
    order = np.lexsort((micro_batch, chunk, micro_batch // group))
    return micro_batch[order].astype(np.int32), chunk[order].astype(np.int32)


def _alternate_passes(forward: tuple[Ints, Ints], backward: tuple[Ints, Ints], limit: int) -> tuple[Ints, Ints, Ints]:
    """`limit` forward passes, then a backward and a forward pass in turn, then the backward passes left."""
    count = len(forward[0])
    index = np.arange(count)
    at_forward = np.where(index < limit, index, 2 * index - limit + 1)
    at_backward = np.minimum(limit + 2 * index, count + index)
    kind, micro_batch, chunk = np.empty((3, 2 * count), np.int32)
    for which, at, (micro, part) in ((FORWARD, at_forward, forward), (BACKWARD, at_backward, backward)):
        kind[at], micro_batch[at], chunk[at] = which, micro, part
    return kind, micro_batch, chunk


def _order_zero_bubble(stage: int, stages: int, micro_batches: int) -> tuple[Ints, Ints, Ints]:
    """ZB-H1: 1F1B, with the weight gradients of stage s as many as s micro-batches late.

    All stages then hold what the first one holds in 1F1B. Qi et al. 2024 (arXiv 2401.10241), section 3.1.
    """
    index = np.arange(micro_batches, dtype=np.int32)
    passes = (index, np.zeros_like(index))
    kind, micro_batch, _ = _alternate_passes(passes, passes, min(stages - stage, micro_batches))
    delayed = min(stage, micro_batches)
    after = np.flatnonzero(kind == BACKWARD)
    places = np.concatenate([after[delayed:] + 1, np.full(delayed, len(kind))])
    kind, micro_batch = np.insert(kind, places, WEIGHT), np.insert(micro_batch, places, index)
    return kind, micro_batch, np.zeros_like(kind)


def _iterate_zbv(stage: int, stages: int, micro_batches: int) -> Iterator[Operation]:
    """ZB-V. Qi et al. 2024 (arXiv 2401.10241), section 6; PyTorch's ScheduleZBVZeroBubble runs the same order."""
    after = stages - stage
    phase_writer = _PhaseWriter()
    count = max(micro_batches, 2 * stages - 1)  # the phases need so many; those beyond the real ones are dropped after
    yield from phase_writer.run(2 * after - 1, "F0")
    yield from phase_writer.run(stage, "F1 F0")
    yield from phase_writer.run(after, "F1 B1 W1")
    steady = count - phase_writer.done["F0"]
    yield from phase_writer.run(steady, "F0 B0 W0 F1 B1 W1")
    yield from phase_writer.run(count - phase_writer.done["F1"], "B0 W0 F1 B1 W1")
    yield from phase_writer.run(stage, "B0 B1")
    yield from phase_writer.run(after, "B0 W0")
    yield from phase_writer.run(count - phase_writer.done["W1"], "W1")
    yield from phase_writer.run(count - phase_writer.done["W0"], "W0")


def _iterate_dualpipev(stage: int, stages: int, micro_batches: int) -> Iterator[Operation]:
    """DualPipeV: forward and backward passes of the two chunks side by side; few weight gradients come late.

    DeepSeek-AI's DualPipe (2025), the "cut in half" form of DeepSeek-V3's schedule (arXiv 2412.19437).
    """
    after = stages - stage - 1
    phase_writer = _PhaseWriter()
    count = max(micro_batches, 2 * stages)  # as in `_iterate_zbv`
    yield from phase_writer.run(2 * after, "F0")
    yield from phase_writer.run(stage + 1, "F0 F1")
    yield from phase_writer.run(after, "B1 W1 F1")
    yield from phase_writer.run(count - 2 * stages + stage + 1, "F0 B1 W1 F1 B0 W0")
    yield from phase_writer.run(after, "B1 W1 F1 B0 W0")
    pairs, odd = divmod(stage + 1, 2)
    yield from phase_writer.run(pairs, "B1 W1 B0 W0")
    if odd:
        yield from phase_writer.run(1, "B1 W1 B0")
    yield from phase_writer.run(pairs, "B1 B0")
    yield from phase_writer.run(after, "W? B0")
    yield from phase_writer.run(stage + 1, "W?")


class _PhaseWriter:
    """Counts what a stage has done, so that phases can be written as text: `F0` is a forward pass of chunk 0."""

    def __init__(self) -> None:
        self.done = dict.fromkeys(("F0", "F1", "B0", "B1", "W0", "W1"), 0)
        self.owed: list[str] = []
        """Weight gradients whose inputs' half is done, oldest first."""

    def run(self, times: int, words: str) -> Iterator[Operation]:
        """The operations of a phase, `times` over; `W?` is the weight gradient owed longest."""
        for _ in range(times):
            for token in words.split():
                operation = self.owed[0] if token == "W?" else token
                if operation[0] == "B":
                    self.owed.append("W" + operation[1])
                elif operation[0] == "W":
                    self.owed.remove(operation)
                yield "FBW".index(operation[0]), self.done[operation], int(operation[1])
                self.done[operation] += 1


def _collect_operations(operations: Iterator[Operation], micro_batches: int) -> tuple[Ints, Ints, Ints]:
    """The operations as arrays, without the micro-batches that were only added to fill a short step."""
    kind, micro_batch, chunk = np.array(list(operations), np.int32).T
    real = micro_batch < micro_batches
    return kind[real], micro_batch[real], chunk[real]


def _require_one_chunk(schedule: str, chunks: int) -> None:
    if chunks != 1:
        raise ValueError(f"{schedule} runs one chunk on a stage, not {chunks}")


def _make_read_only(array: Ints) -> Ints:
    array.setflags(write=False)
    return array


SAME_TIME = 1e-9  # Relative difference below which two times are one: rounding must not decide who is first


def build_eager_orders(limits: NDArray[np.int32], micro_batches: int, times: NDArray[np.float64]) -> Orders:
    """The orders that eager stages come to with these times, `limits` micro-batches in flight on each. [S4]

    `times` is one column of the simulation's table: its rows are those that `DependencyGraph.duration_row` names.
    """
    stages = len(limits)
    rows = np.split(times[:-1], np.cumsum([stages] * 3 + [stages - 1] * 3))
    forward, backward, _, *links = (row.tolist() for row in rows)
    pass_s = (forward, backward)
    send, latency = (links[0], links[1]), (links[2], links[3])
    max_in_flight = limits.tolist()
    started = [[0] * stages, [0] * stages]  # passes of each stage: forward, backward
    arrivals: list[list[list[float]]] = [[[] for _ in range(stages)], [[] for _ in range(stages)]]
    arrivals[FORWARD][0] = [0.0] * micro_batches
    free = [0.0] * stages
    link_free = [[0.0] * stages, [0.0] * stages]
    chosen: list[list[int]] = [[] for _ in range(stages)]
    queue: list[tuple[float, int]] = [(0.0, 0)]

    def find_arrival(direction: int, stage: int, now: float) -> float | None:
        """When the next input of a stage came, if it has."""
        inputs, next_one = arrivals[direction][stage], started[direction][stage]
        if next_one < len(inputs) and inputs[next_one] <= now * (1 + SAME_TIME):
            return inputs[next_one]
        return None

    while queue:
        now, stage = heappop(queue)
        if free[stage] > now:
            continue  # it is asked again when it is free
        direction = BACKWARD
        arrival_s = find_arrival(BACKWARD, stage, now)
        if arrival_s is None and started[FORWARD][stage] - started[BACKWARD][stage] < max_in_flight[stage]:
            direction, arrival_s = FORWARD, find_arrival(FORWARD, stage, now)
        if arrival_s is None:
            continue  # it is asked again when something arrives
        chosen[stage].append(direction)
        started[direction][stage] += 1
        end = max(now, arrival_s) + pass_s[direction][stage]
        free[stage] = end
        if direction == FORWARD and stage == stages - 1:
            arrivals[BACKWARD][stage].append(end)
        elif direction == FORWARD or stage > 0:
            boundary, receiver = (stage, stage + 1) if direction == FORWARD else (stage - 1, stage - 1)
            sent = max(end, link_free[direction][boundary]) + send[direction][boundary]
            link_free[direction][boundary] = sent
            arrivals[direction][receiver].append(sent + latency[direction][boundary])
            heappush(queue, (arrivals[direction][receiver][-1], receiver))
        heappush(queue, (free[stage], stage))
    kind = np.array(chosen, np.int32)
    micro_batch = np.where(kind == FORWARD, np.cumsum(kind == FORWARD, axis=1), np.cumsum(kind == BACKWARD, axis=1)) - 1
    return Orders("delay-aware", stages, micro_batches, 1, kind, micro_batch.astype(np.int32), np.zeros_like(kind))
