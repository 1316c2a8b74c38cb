"""The pipeline as GPT-NeoX runs it: 1F1B, and a message holds both of its stages while it is on its way."""

from __future__ import annotations

from collections.abc import Sequence

FORWARD, BACKWARD, SEND_NEXT, TAKE_NEXT, SEND_BEFORE, TAKE_BEFORE = range(6)
"""What a stage does: compute, or exchange with the next stage or the one before."""
_PARTNER = {SEND_NEXT: TAKE_BEFORE, TAKE_BEFORE: SEND_NEXT, TAKE_NEXT: SEND_BEFORE, SEND_BEFORE: TAKE_NEXT}
Action = tuple[int, int]
"""Kind and micro-batch."""


def rendezvous_ends_s(
    forward_s: Sequence[float], backward_s: Sequence[float], micro_batches: int, send_s: float, send_back_s: float
) -> list[float]:
    """When each stage is done with its last backward pass, if messages wait for the receiver and hold both ends. [K6]

    A message starts when its sender has computed it and its receiver has come to the point of taking it; neither
    computes until it is through. So a middle stage pays for four messages a micro-batch, the ends for two.
    """
    stages = len(forward_s)
    orders = [stage_order(stage, stages, micro_batches) for stage in range(stages)]
    at, clock = [0] * stages, [0.0] * stages
    todo = set(range(stages))
    while todo:
        stage = todo.pop()
        order = orders[stage]
        while at[stage] < len(order):
            kind, batch = order[at[stage]]
            if kind == FORWARD:
                clock[stage] += forward_s[stage]
            elif kind == BACKWARD:
                clock[stage] += backward_s[stage]
            else:
                other = stage + 1 if kind in (SEND_NEXT, TAKE_NEXT) else stage - 1
                theirs = orders[other]
                if at[other] == len(theirs) or theirs[at[other]] != (_PARTNER[kind], batch):
                    break
                took = send_s if kind in (SEND_NEXT, TAKE_BEFORE) else send_back_s
                clock[stage] = clock[other] = max(clock[stage], clock[other]) + took
                at[other] += 1
                todo.add(other)
            at[stage] += 1
    return clock


def stage_order(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """What one stage does, in order: 1F1B, messages right after the pass that made or before the one that needs them.

    Where a stage both sends and takes between two passes, activations go first: no two stages wait for each other.
    """
    warmup = min(stages - 1 - stage, micro_batches)
    passes = [(FORWARD, batch) for batch in range(warmup)]
    for batch in range(micro_batches - warmup):
        passes += [(FORWARD, batch + warmup), (BACKWARD, batch)]
    passes += [(BACKWARD, batch) for batch in range(micro_batches - warmup, micro_batches)]
    first, last = stage == 0, stage == stages - 1
    order: list[Action] = []
    made: Action | None = None
    for kind, batch in passes:
        activations, gradients = [], []
        if made is not None:
            before, number = made
            if before == FORWARD and not last:
                activations.append((SEND_NEXT, number))
            if before == BACKWARD and not first:
                gradients.append((SEND_BEFORE, number))
        if kind == FORWARD and not first:
            activations.append((TAKE_BEFORE, batch))
        if kind == BACKWARD and not last:
            gradients.append((TAKE_NEXT, batch))
        order += [*activations, *gradients, (kind, batch)]
        made = (kind, batch)
    if made is not None and made[0] == BACKWARD and not first:
        order.append((SEND_BEFORE, made[1]))
    return order
