"""Dependency graph: which operation and message waits for which, for one schedule and size.

Times are filled in by `simulation`, so one graph serves every strategy with this schedule and size.

A node is an operation of a stage or a message between two stages. Each waits for at most two others:

    operation   the one before it on its stage          the message that brings its input (plus the link's latency)
    message     the operation that makes it             the message before it on the same link and direction
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from crosszone.schedule.orders import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Orders,
    build_orders,
    list_stages_in_order,
    map_virtual_stages,
)

Ints = NDArray[np.int32]
NOTHING = 0  # The node that stands for no wait: it ends at time zero


@dataclass(frozen=True, eq=False)
class DependencyGraph:
    """Nodes 1 .. n, each after those that it waits for; nodes of one level do not wait for each other."""

    orders: Orders
    first: Ints
    """Node each node waits for: the one before it on its stage, or the maker of a message."""
    second: Ints
    """Node each node waits for: the message that arrives, or the one before it on the link."""
    duration_row: Ints
    """Row of the time table that holds how long a node takes."""
    delay_row: Ints
    """Row of the time table that is added to the end of `second`."""
    levels: Ints
    """Where each level begins and the last one ends, counted from 0."""
    operations: Ints
    """Node of each operation, stage after stage: array [stages, operations of a stage]."""
    sends: Ints
    """Node of each message, in the order of `send_boundary`."""
    send_kind: Ints
    send_boundary: Ints
    send_micro_batch: Ints
    gradients: Ints
    """Node after which the gradients of each chunk are whole: array [stages, chunks]."""
    counts: NDArray[np.float64]
    """How often each row of the table of times occupies each stage: array [stages, rows]."""

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.orders.stages

    @property
    def chunks(self) -> int:
        """Chunks of a stage."""
        return self.orders.chunks

    @property
    def boundaries(self) -> int:
        """Boundaries between consecutive parts of the model."""
        return self.stages * self.chunks - 1

    @cached_property
    def waits(self) -> tuple[list[int], list[int]]:
        """`first` and `second` as lists, for walking node by node."""
        return self.first.tolist(), self.second.tolist()

    @cached_property
    def by_micro_batch(self) -> Ints:
        """Nodes of each micro-batch, always in the same order: array [micro-batches, operations and messages]."""
        orders = self.orders
        operation = (np.arange(self.stages)[:, None] * 3 + orders.kind) * self.chunks + orders.chunk
        message = -1 - self.send_boundary - self.boundaries * self.send_kind
        operation_or_message = np.concatenate([operation.ravel(), message])
        micro_batch = np.concatenate([orders.micro_batch.ravel(), self.send_micro_batch])
        nodes = np.concatenate([self.operations.ravel(), self.sends])
        return nodes[np.lexsort((operation_or_message, micro_batch))].reshape(orders.micro_batches, -1)


@lru_cache(maxsize=256)
def build_dependency_graph(
    schedule: str, stages: int, micro_batches: int, chunks: int = 1, extra_warmup: int = 0
) -> DependencyGraph:
    """The graph of one schedule and size, built once."""
    return build_graph_from_orders(build_orders(schedule, stages, micro_batches, chunks, extra_warmup))


def build_graph_from_orders(orders: Orders) -> DependencyGraph:
    """The graph that follows from the orders of the stages.

    The table of times has a row for each kind and part (forward, backward, weight), then for each boundary: send
    forward, send backward, latency forward, latency backward; the last row is zero.
    """
    schedule, stages, micro_batches, chunks = orders.schedule, orders.stages, orders.micro_batches, orders.chunks
    parts, boundaries = stages * chunks, stages * chunks - 1
    stage_of_part = list_stages_in_order(schedule, stages, chunks)
    crossing = np.flatnonzero(stage_of_part[1:] != stage_of_part[:-1])
    part = map_virtual_stages(schedule, stages, chunks)[np.arange(stages)[:, None], orders.chunk].ravel()
    kind, micro_batch = orders.kind.ravel(), orders.micro_batch.ravel()
    count = len(kind)
    operation_of = np.zeros((3, parts, micro_batches), np.int64)  # operation of a kind, part and micro-batch
    operation_of[kind, part, micro_batch] = np.arange(count)

    # messages: forward over each crossing boundary, then backward
    messages_per_direction = len(crossing) * micro_batches
    boundary = np.tile(np.repeat(crossing, micro_batches), 2)
    micro = np.tile(np.arange(micro_batches), 2 * len(crossing))
    direction = np.repeat([FORWARD, BACKWARD], messages_per_direction)
    maker = operation_of[direction, boundary + direction, micro]
    receiver = operation_of[direction, boundary + 1 - direction, micro]
    message = count + np.arange(2 * messages_per_direction)
    link = stage_of_part[boundary + direction] * stages + stage_of_part[boundary + 1 - direction]

    first = np.full(count + 2 * messages_per_direction, -1)
    second = np.full(count + 2 * messages_per_direction, -1)
    first[:count] = np.arange(count) - 1
    first[: count : count // stages] = -1
    second[receiver] = message
    first[message] = maker
    queue = np.lexsort((maker, link))
    same_link = link[queue[1:]] == link[queue[:-1]]
    second[message[queue[1:][same_link]]] = message[queue[:-1][same_link]]

    rows = 3 * parts + np.arange(4) * boundaries
    duration_row = np.concatenate([kind * parts + part, rows[direction] + boundary])
    delay_row = np.full(count + 2 * messages_per_direction, 3 * parts + 4 * boundaries)
    delay_row[receiver] = rows[2 + direction] + boundary
    counts = np.zeros((stages, 3 * parts + 4 * boundaries + 1))
    np.add.at(counts, (np.arange(count) // (count // stages), duration_row[:count]), 1.0)
    order, levels = _sort_by_level(first, second)
    node = np.empty(len(order) + 1, np.int32)  # the last one is what -1 finds
    node[order], node[-1] = np.arange(1, len(order) + 1), NOTHING
    last = operation_of[WEIGHT if orders.splits else BACKWARD, :, -1][map_virtual_stages(schedule, stages, chunks)]
    return DependencyGraph(
        orders=orders,
        first=node[first][order],
        second=node[second][order],
        duration_row=duration_row[order].astype(np.int32),
        delay_row=delay_row[order].astype(np.int32),
        levels=levels,
        operations=node[:count].reshape(stages, -1),
        sends=node[count:-1],
        send_kind=direction.astype(np.int32),
        send_boundary=boundary.astype(np.int32),
        send_micro_batch=micro.astype(np.int32),
        gradients=node[last],
        counts=counts,
    )


def _sort_by_level(first: NDArray[np.int64], second: NDArray[np.int64]) -> tuple[NDArray[np.int64], Ints]:
    """Nodes sorted by how many others they wait for one after the other, and where each such level begins."""
    count = len(first)
    source = np.concatenate([first, second])
    target = np.tile(np.arange(count), 2)[source >= 0]
    source = source[source >= 0]
    by_source = np.argsort(source, kind="stable")
    source, target = source[by_source], target[by_source]
    is_second = np.concatenate([[False], source[1:] == source[:-1]])  # no node is waited for by more than two
    followers = np.full((2, count + 1), count)
    followers[is_second.astype(np.int64), source] = target
    first_follower, second_follower = followers[0].tolist(), followers[1].tolist()
    waits = [*((first >= 0).astype(np.int64) + (second >= 0)).tolist(), -1]
    level = [node for node in range(count) if waits[node] == 0]
    order, starts = [], [0]
    while level:
        order += level
        starts.append(len(order))
        following = []
        for node in level:
            for after in (first_follower[node], second_follower[node]):
                waits[after] -= 1
                if waits[after] == 0:
                    following.append(after)
        level = following
    if len(order) < count:
        raise ValueError(f"{count - len(order)} operations wait for each other: the orders of the stages deadlock")
    return np.array(order, np.int64), np.array(starts, np.int32)
