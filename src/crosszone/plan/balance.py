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
