"""Eager stages: the order in which delay-aware stages run what has arrived. [S4]

1F1B stages have a fixed order: over a slow link a stage waits for the next forward input although a backward input has
long arrived. An eager stage takes the backward pass that has arrived, else the forward pass that has arrived if it may
hold one more micro-batch, else it waits for whichever comes first.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from crosszone.schedule.orders import BACKWARD, FORWARD, Orders

SAME_TIME = 1e-9
"""Relative difference below which two times are one: rounding must not decide who is first."""


def eager_orders(
    limits: NDArray[np.int32], micro_batches: int, times: NDArray[np.float64], blocking: bool = False
) -> Orders:
    """The orders that eager stages come to with these times, `limits` micro-batches in flight on each. [S4]

    `times` is one column of the simulation's table: its rows are those of `shape_from`.
    """
    stages = len(limits)
    rows = np.split(times[:-1], np.cumsum([stages] * 3 + [stages - 1] * 3))
    forward, backward, _, *links = (row.tolist() for row in rows)
    own = (forward, backward)
    send, latency = (links[0], links[1]), (links[2], links[3])
    most = limits.tolist()
    begun = [[0] * stages, [0] * stages]  # passes of each stage: forward, backward
    arrivals: list[list[list[float]]] = [[[] for _ in range(stages)], [[] for _ in range(stages)]]
    arrivals[FORWARD][0] = [0.0] * micro_batches
    free = [0.0] * stages
    link_free = [[0.0] * stages, [0.0] * stages]
    chosen: list[list[int]] = [[] for _ in range(stages)]
    queue: list[tuple[float, int]] = [(0.0, 0)]

    def arrived(way: int, stage: int, now: float) -> float | None:
        """When the next input of a stage came, if it has."""
        inputs, next_one = arrivals[way][stage], begun[way][stage]
        if next_one < len(inputs) and inputs[next_one] <= now * (1 + SAME_TIME):
            return inputs[next_one]
        return None

    while queue:
        now, stage = heappop(queue)
        if free[stage] > now:
            continue  # it is asked again when it is free
        way = BACKWARD
        came = arrived(BACKWARD, stage, now)
        if came is None and begun[FORWARD][stage] - begun[BACKWARD][stage] < most[stage]:
            way, came = FORWARD, arrived(FORWARD, stage, now)
        if came is None:
            continue  # it is asked again when something arrives
        chosen[stage].append(way)
        begun[way][stage] += 1
        end = max(now, came) + own[way][stage]
        free[stage] = end
        if way == FORWARD and stage == stages - 1:
            arrivals[BACKWARD][stage].append(end)
        elif way == FORWARD or stage > 0:
            boundary, taker = (stage, stage + 1) if way == FORWARD else (stage - 1, stage - 1)
            sent = max(end, link_free[way][boundary]) + send[way][boundary]
            link_free[way][boundary] = sent
            arrivals[way][taker].append(sent + latency[way][boundary])
            heappush(queue, (arrivals[way][taker][-1], taker))
            if blocking:
                free[stage] = sent
        heappush(queue, (free[stage], stage))
    kind = np.array(chosen, np.int32)
    micro_batch = np.where(kind == FORWARD, np.cumsum(kind == FORWARD, axis=1), np.cumsum(kind == BACKWARD, axis=1)) - 1
    return Orders("delay-aware", stages, micro_batches, 1, kind, micro_batch.astype(np.int32), np.zeros_like(kind))
