"""Shape: which operation and message waits for which, for one schedule and size. Times are filled in by `simulation`.

A node is an operation of a stage or a message between two stages. Each waits for at most two others:

    operation   the one before it on its stage          the message that brings its input (plus the link's latency)
    message     the operation that makes it             the message before it on the same link and direction

Where sends block, a message takes its place on the sender's stage: the next operation waits for it.
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
    Extra,
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
    blocking: bool
    first: Ints
    """Node each node waits for: the one before it on its stage, or the maker of a message."""
    second: Ints
    """Node each node waits for: the message that arrives, or the one before it on the link."""
    took: Ints
    """Row of the table of times that says how long a node takes."""
    delay: Ints
    """Row of the table of times added to the end of `second`."""
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
        made = self.orders
        operation = (np.arange(self.stages)[:, None] * 3 + made.kind) * self.chunks + made.chunk
        message = -1 - self.send_boundary - self.boundaries * self.send_kind
        what = np.concatenate([operation.ravel(), message])
        micro_batch = np.concatenate([made.micro_batch.ravel(), self.send_micro_batch])
        nodes = np.concatenate([self.operations.ravel(), self.sends])
        return nodes[np.lexsort((what, micro_batch))].reshape(made.micro_batches, -1)


@lru_cache(maxsize=256)
def build_dependency_graph(
    schedule: str, stages: int, micro_batches: int, chunks: int = 1, extra_warmup: Extra = 0, blocking: bool = False
) -> DependencyGraph:
    """The shape of one schedule and size, made once."""
    return build_graph_from_orders(build_orders(schedule, stages, micro_batches, chunks, extra_warmup), blocking)


def build_graph_from_orders(made: Orders, blocking: bool = False) -> DependencyGraph:
    """The shape that follows from the orders of the stages.

    The table of times has a row for each kind and part (forward, backward, weight), then for each boundary: send
    forward, send backward, latency forward, latency backward; the last row is zero.
    """
    schedule, stages, micro_batches, chunks = made.schedule, made.stages, made.micro_batches, made.chunks
    parts, boundaries = stages * chunks, stages * chunks - 1
    held_by = list_stages_in_order(schedule, stages, chunks)
    crossing = np.flatnonzero(held_by[1:] != held_by[:-1])
    part = map_virtual_stages(schedule, stages, chunks)[np.arange(stages)[:, None], made.chunk].ravel()
    kind, micro_batch = made.kind.ravel(), made.micro_batch.ravel()
    count = len(kind)
    at = np.zeros((3, parts, micro_batches), np.int64)  # operation of a kind, part and micro-batch
    at[kind, part, micro_batch] = np.arange(count)

    # messages: forward over each crossing boundary, then backward
    each = len(crossing) * micro_batches
    boundary = np.tile(np.repeat(crossing, micro_batches), 2)
    micro = np.tile(np.arange(micro_batches), 2 * len(crossing))
    way = np.repeat([FORWARD, BACKWARD], each)
    maker = at[way, boundary + way, micro]
    taker = at[way, boundary + 1 - way, micro]
    message = count + np.arange(2 * each)
    link = held_by[boundary + way] * stages + held_by[boundary + 1 - way]

    first = np.full(count + 2 * each, -1)
    second = np.full(count + 2 * each, -1)
    first[:count] = np.arange(count) - 1
    first[: count : count // stages] = -1
    second[taker] = message
    first[message] = maker
    if blocking:
        follows = maker + 1
        inside = follows % (count // stages) != 0
        first[follows[inside]] = message[inside]
    else:
        queue = np.lexsort((maker, link))
        same = link[queue[1:]] == link[queue[:-1]]
        second[message[queue[1:][same]]] = message[queue[:-1][same]]

    rows = 3 * parts + np.arange(4) * boundaries
    took = np.concatenate([kind * parts + part, rows[way] + boundary])
    delay = np.full(count + 2 * each, 3 * parts + 4 * boundaries)
    delay[taker] = rows[2 + way] + boundary
    counts = np.zeros((stages, 3 * parts + 4 * boundaries + 1))
    np.add.at(counts, (np.arange(count) // (count // stages), took[:count]), 1.0)
    if blocking:
        np.add.at(counts, (held_by[boundary + way], took[count:]), 1.0)
    order, levels = _levels(first, second)
    node = np.empty(len(order) + 1, np.int32)  # the last one is what -1 finds
    node[order], node[-1] = np.arange(1, len(order) + 1), NOTHING
    last = at[WEIGHT if made.splits else BACKWARD, :, -1][map_virtual_stages(schedule, stages, chunks)]
    return DependencyGraph(
        orders=made,
        blocking=blocking,
        first=node[first][order],
        second=node[second][order],
        took=took[order].astype(np.int32),
        delay=delay[order].astype(np.int32),
        levels=levels,
        operations=node[:count].reshape(stages, -1),
        sends=node[count:-1],
        send_kind=way.astype(np.int32),
        send_boundary=boundary.astype(np.int32),
        send_micro_batch=micro.astype(np.int32),
        gradients=node[last],
        counts=counts,
    )


def _levels(first: NDArray[np.int64], second: NDArray[np.int64]) -> tuple[NDArray[np.int64], Ints]:
    """Nodes sorted by how many others they wait for one after the other, and where each such level begins."""
    count = len(first)
    source = np.concatenate([first, second])
    target = np.tile(np.arange(count), 2)[source >= 0]
    source = source[source >= 0]
    by_source = np.argsort(source, kind="stable")
    source, target = source[by_source], target[by_source]
    again = np.concatenate([[False], source[1:] == source[:-1]])  # nobody is waited for by more than two
    followers = np.full((2, count + 1), count)
    followers[again.astype(np.int64), source] = target
    one, other = followers[0].tolist(), followers[1].tolist()
    waits = [*((first >= 0).astype(np.int64) + (second >= 0)).tolist(), -1]
    level = [node for node in range(count) if waits[node] == 0]
    order, starts = [], [0]
    while level:
        order += level
        starts.append(len(order))
        following = []
        for node in level:
            for after in (one[node], other[node]):
                waits[after] -= 1
                if waits[after] == 0:
                    following.append(after)
        level = following
    if len(order) < count:
        raise ValueError(f"{count - len(order)} operations wait for each other: the orders of the stages deadlock")
    return np.array(order, np.int64), np.array(starts, np.int32)
