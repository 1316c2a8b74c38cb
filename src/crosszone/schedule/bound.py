"""A quick lower bound of one step's pipeline, for arrays of strategies of any number of stages. [S12]

`closed_form` is tighter and slower; `simulation` is exact. Stages that do not exist have zero times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = Any


def pipeline_bound_s(
    forward_s: Numbers,
    backward_s: Numbers,
    between_s: Numbers,
    micro_batches: Numbers,
    chunks: Numbers,
    stages: Numbers,
    *,
    repeats: Numbers = 1.0,
    extra_warmup: Numbers = 0,
    busy_s: Numbers = 0.0,
) -> Numbers:
    """Least time of a pipelined step: the longest chain of waits through one stage. [S12]

    A micro-batch comes to stage j, the stage works m (f + b) and is idle for as long as its later stages keep the first
    micro-batch beyond the forward passes it may do meanwhile, and likewise at the end; then a micro-batch goes back.
    With chunks only the way to the stage and back counts. Arrays end in stages; each stands for `repeats` equal ones in
    a row: the chain is convex along such a row, so its ends suffice. `between_s` is the time from a stage to the next,
    one way, `busy_s` how long a micro-batch takes that link; `chunks` divides fill and drain. Equal stages:
    (m + (p - 1) / v) (f + b), the simulated time.
    """
    both = forward_s + backward_s
    way = both + 2.0 * between_s
    row = way * repeats
    before = np.cumsum(row, axis=-1, out=np.empty_like(row)) - row
    total = row.sum(axis=-1, keepdims=True)
    here = np.broadcast_to(repeats, both.shape).astype(float)
    place = np.cumsum(here, axis=-1, out=np.empty_like(here)) - here

    work = micro_batches * both

    def chain(before: Numbers, place: Numbers) -> Numbers:
        """Through the stage at `place`, with the ways of the stages before it."""
        after = total - before - both
        ahead = np.minimum(stages - place - 1 + extra_warmup, micro_batches - 1)
        drains = ahead < micro_batches - 1  # else all forward passes come before the first backward pass: one wait
        idle = np.maximum(0.0, after - ahead * forward_s) + drains * np.maximum(0.0, after - ahead * backward_s)
        if np.ndim(chunks) or chunks > 1:  # chunks of later stages come and go between those of this one
            idle = idle * (np.asarray(chunks) == 1)
        return (before + idle) / chunks + work

    longest = chain(before, place)
    if np.ndim(repeats):
        more = np.maximum(here - 1.0, 0.0)
        longest = np.maximum(longest, chain(before + more * way, place + more))
    longest = np.maximum(longest, micro_batches * busy_s)
    return largest(longest * (both > 0))


FEW = 4
"""Stages up to which going through them one by one is quicker than NumPy's reduction along a short axis."""


def largest(values: Numbers) -> Numbers:
    """The largest along the last axis, which is kept."""
    if values.shape[-1] > FEW:
        return values.max(axis=-1, keepdims=True)
    top = values[..., :1]
    for stage in range(1, values.shape[-1]):
        top = np.maximum(top, values[..., stage : stage + 1])
    return top
