"""Balance: layers shared out so that the slowest stage is as fast as it can be. [W4]"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from crosszone.inputs.flops import forward_flops_per_token
from crosszone.inputs.model import Model


def balanced(layers: int, layer_s: Sequence[float], other_s: Sequence[float]) -> tuple[int, ...]:
    """Layers of each stage, at least one, so that the slowest stage is as fast as it can be. [W4]

    A stage takes `other_s` (embedding, head) and `layer_s` for each of its layers. Each layer goes to the stage that is
    soonest done with it: no other way to share them out has a faster slowest stage. Ties go to later stages, whose
    activations are fewer.
    """
    counts = [1] * len(layer_s)
    ends = [(other + 2 * each, -stage) for stage, (each, other) in enumerate(zip(layer_s, other_s, strict=True))]
    heapq.heapify(ends)
    for _ in range(layers - len(counts)):
        end, at = heapq.heappop(ends)
        counts[-at] += 1
        heapq.heappush(ends, (end + layer_s[-at], at))
    return tuple(counts)


def balanced_micro_batches(
    total: int, replicas: Sequence[int], micro_batch_s: Sequence[float]
) -> tuple[int, ...] | None:
    """Micro-batches of a replica of each class, `total` in all, so that the slowest is done as soon as it can be. [W5]

    Class k has `replicas[k]` replicas that take `micro_batch_s[k]` for a micro-batch. None: there is no such way, or
    all have equally many. Of more than two classes only numbers next to the shares in proportion to speed are tried.
    """
    if len(replicas) < 2:
        return None
    found = _dealt(total, list(zip(replicas, micro_batch_s, strict=True)))
    return None if found is None or len(set(found)) == 1 else found


def _dealt(total: int, classes: list[tuple[int, float]]) -> tuple[int, ...] | None:
    """The best way to share out `total` among classes of so many replicas and seconds."""
    (count, seconds), *others = classes
    if not others:
        return (total // count,) if total % count == 0 and total >= count else None
    most = (total - sum(n for n, _ in others)) // count
    share = total / sum(n / s for n, s in classes) / seconds
    near = range(1, most + 1) if len(others) == 1 else range(max(1, int(share) - 1), min(most, int(share) + 2) + 1)
    best: tuple[float, tuple[int, ...]] | None = None
    for own in sorted(near, key=lambda own: abs(own - share)):
        if best is not None and own * seconds >= best[0] and own > share:
            continue
        rest = _dealt(total - own * count, others)
        if rest is not None:
            slowest = max(own * seconds, *(m * s for m, (_, s) in zip(rest, others, strict=True)))
            best = min(best or (slowest, (own, *rest)), (slowest, (own, *rest)))
    return best and best[1]


def head_layers(model: Model, seq_len: int = 2048) -> float:
    """Layers that the head stands for, by its FLOPs."""
    forward = forward_flops_per_token(model, seq_len)
    return forward.head * model.layers / (forward.total - forward.head)


def balanced_layers(model: Model, speeds: Sequence[float]) -> tuple[int, ...]:
    """Layers of stages on GPUs of these speeds, the head counted on the last."""
    layer_s = [1.0 / speed if speed else 1.0 for speed in speeds]
    other_s = [0.0] * len(layer_s)
    other_s[-1] = head_layers(model) * layer_s[-1]
    return balanced(model.layers, layer_s, other_s)
