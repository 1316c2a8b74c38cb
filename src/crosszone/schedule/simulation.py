"""Simulation: when every operation and message of one step starts and ends. [S3]

    run = simulate("1f1b", stages=4, micro_batches=32, forward_s=0.1, backward_s=0.2)
    run.makespan_s                       # (32 + 3) x 0.3 s
    run.idle_s                           # array [4]: 3 x 0.3 s each

Stages follow fixed orders (`build_orders`); delay-aware ones that in which their inputs arrive (`build_eager_orders`).
An operation starts when the one before it on its stage is done and its input has arrived; messages of one link and
direction follow each other. The result is the longest path through those waits, so it is deterministic. Leading
dimensions of the times are a batch of steps of one size, simulated at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crosszone.schedule.orders import (
    BACKWARD,
    SPLITS_WEIGHT_GRAD,
    WEIGHT,
    build_eager_orders,
    count_in_flight,
    map_virtual_stages,
)
from crosszone.schedule.shape import DependencyGraph, build_dependency_graph, build_graph_from_orders

Floats = NDArray[np.float64]

# Nodes that plain Python walks in the time that the NumPy calls of one level take: the quicker way is taken.
NODES_PER_NUMPY_LEVEL = 48
STEPS_AT_ONCE = 64  # Steps of a batch that are walked together: more do not fit in the processor's cache


@dataclass(frozen=True, eq=False)
class Simulation:
    """Start and end of everything in a step (or in a batch of steps: the leading dimensions `...` of every array)."""

    shape: DependencyGraph
    batch: tuple[int, ...]
    times: Floats
    """The table of times: array [rows, steps]."""
    ends: Floats
    """End of each node: array [nodes + 1, steps]."""

    @cached_property
    def makespan_s(self) -> Floats:
        """From the first start to the last end: array [...]."""
        return np.asarray(self.last_end_s.max(axis=-1))

    @cached_property
    def first_start_s(self) -> Floats:
        """When each stage starts: array [..., stages]."""
        nodes = self.shape.operations[:, 0]
        return self._select_rows(nodes, self.ends) - self._get_duration(nodes)

    @cached_property
    def last_end_s(self) -> Floats:
        """When each stage is done: array [..., stages]."""
        return self._select_rows(self.shape.operations[:, -1], self.ends)

    @cached_property
    def gradients_ready_s(self) -> Floats:
        """When the last backward pass of each chunk ends, its gradients whole: array [..., stages, chunks]."""
        return self._select_rows(self.shape.gradients, self.ends)

    @cached_property
    def busy_s(self) -> Floats:
        """Time each stage computes: array [..., stages]."""
        return self._select_rows(np.arange(self.shape.stages), self.shape.counts @ self.times)

    @cached_property
    def idle_s(self) -> Floats:
        """Time each stage waits, of the whole step: array [..., stages]."""
        return np.asarray(self.makespan_s[..., None] - self.busy_s)

    @cached_property
    def start_s(self) -> Floats:
        """Start of each operation: array [..., stages, operations], as in `shape.orders`."""
        return self.end_s - self._get_duration(self.shape.operations)

    @cached_property
    def end_s(self) -> Floats:
        """End of each operation: array [..., stages, operations], as in `shape.orders`."""
        return self._select_rows(self.shape.operations, self.ends)

    @cached_property
    def send_start_s(self) -> Floats:
        """When the link begins with each message: array [..., messages], as in `shape.send_boundary`."""
        return self.send_end_s - self._get_duration(self.shape.sends)

    @cached_property
    def send_end_s(self) -> Floats:
        """When each message has left; it arrives one latency later: array [..., messages]."""
        return self._select_rows(self.shape.sends, self.ends)

    def _select_rows(self, rows: NDArray[np.int_] | NDArray[np.int32], values: Floats) -> Floats:
        """Some rows of `values`, the batch in front."""
        return np.moveaxis(values[rows], -1, 0).reshape(*self.batch, *rows.shape)

    def _get_duration(self, nodes: NDArray[np.int32]) -> Floats:
        return self._select_rows(self.shape.duration_row[nodes - 1], self.times)


def simulate(
    schedule: str,
    *,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    extra_warmup: int = 0,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    weight_s: ArrayLike = 0.0,
    send_forward_s: ArrayLike = 0.0,
    send_backward_s: ArrayLike = 0.0,
    latency_forward_s: ArrayLike = 0.0,
    latency_backward_s: ArrayLike = 0.0,
) -> Simulation:
    """When everything of one step happens, for given times of one micro-batch. [S3]

    forward_s, backward_s, weight_s   time of a chunk, broadcastable to [..., stages, chunks]; backward_s is the part
                                      for the inputs, weight_s that for the weights: schedules that do not split them
                                      run both as one operation, so backward_s alone may be the whole
    send_*_s                          time a link is busy with one message, [..., boundaries]; boundary k lies between
                                      parts k and k + 1 of the model (`list_stages_in_order`), stages x chunks - 1 in
                                      all; one inside a stage costs nothing whatever is given
    latency_*_s                       added to each message on its way, without occupying the link, [..., boundaries]
    """
    compute = tuple(np.asarray(time, float) for time in (forward_s, backward_s, weight_s))
    links = (send_forward_s, send_backward_s, latency_forward_s, latency_backward_s)
    place = map_virtual_stages(schedule, stages, chunks)
    batch, times = _build_time_table(
        place, compute, tuple(np.asarray(time, float) for time in links), schedule in SPLITS_WEIGHT_GRAD
    )
    if schedule == "delay-aware":
        if times.shape[1] != 1:
            raise ValueError("delay-aware stages choose their order by the times: simulate one step at a time")
        limits = count_in_flight(schedule, stages, micro_batches, chunks, extra_warmup)
        graph = build_graph_from_orders(build_eager_orders(limits, micro_batches, times[:, 0]))
    else:
        graph = build_dependency_graph(schedule, stages, micro_batches, chunks, extra_warmup)
    return Simulation(graph, batch, times, _compute_ends(graph, times))


def _build_time_table(
    place: NDArray[np.int32], compute: tuple[Floats, ...], links: tuple[Floats, ...], splits: bool
) -> tuple[tuple[int, ...], Floats]:
    """The batch's dimensions and the table of times, rows as `build_graph_from_orders` numbers them."""
    batch = np.broadcast_shapes(*(time.shape[:-2] for time in compute), *(time.shape[:-1] for time in links))
    steps, parts, boundaries = prod(batch), place.size, place.size - 1
    table = np.zeros((3 * parts + 4 * boundaries + 1, steps))
    for kind, time in enumerate(compute):
        full = np.broadcast_to(time, (*batch, *place.shape))
        table[kind * parts + place.ravel()] = full.reshape(steps, parts).T
    if not splits:
        table[BACKWARD * parts : WEIGHT * parts] += table[WEIGHT * parts : 3 * parts]
    for which, time in enumerate(links):
        row = 3 * parts + which * boundaries
        table[row : row + boundaries] = np.broadcast_to(time, (*batch, boundaries)).reshape(steps, boundaries).T
    if steps and not table.min() >= 0:
        raise ValueError("times must be numbers of at least 0")
    return batch, table


def _compute_ends(graph: DependencyGraph, times: Floats) -> Floats:
    """End of each node: the later of the two it waits for, plus its own time. [S3]"""
    nodes, steps = len(graph.first), times.shape[1]
    ends = np.zeros((nodes + 1, steps))
    if nodes * steps <= NODES_PER_NUMPY_LEVEL * len(graph.levels):
        for step in range(steps):
            ends[:, step] = _walk(graph, times[:, step])
        return ends
    for start in range(0, steps, STEPS_AT_ONCE):
        ends[:, start : start + STEPS_AT_ONCE] = _walk_levels(graph, times[:, start : start + STEPS_AT_ONCE])
    return ends


def _walk(graph: DependencyGraph, times: Floats) -> list[float]:
    """End of each node of one step, node after node."""
    ends = [0.0]
    took, delay = times[graph.duration_row].tolist(), times[graph.delay_row].tolist()
    add = ends.append
    for first, second, duration_s, delay_s in zip(*graph.waits, took, delay, strict=True):
        ready, arrived = ends[first], ends[second] + delay_s
        add((ready if ready > arrived else arrived) + duration_s)
    return ends


def _walk_levels(graph: DependencyGraph, times: Floats) -> Floats:
    """End of each node of many steps, level after level."""
    ends = np.zeros((len(graph.first) + 1, times.shape[1]))
    took, delay = times[graph.duration_row], times[graph.delay_row]
    levels = graph.levels.tolist()
    for low, high in pairwise(levels):
        arrived = ends.take(graph.second[low:high], axis=0)
        arrived += delay[low:high]
        np.maximum(arrived, ends.take(graph.first[low:high], axis=0), out=arrived)
        np.add(arrived, took[low:high], out=ends[low + 1 : high + 1])
    return ends
