"""A quick lower bound of one step's pipeline, for arrays of strategies of any number of stages. [S12]

`closed_form` is tighter and slower; `simulation` is exact. Stages that do not exist have zero times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = Any


def pipeline_bound_s(*times: Numbers, **options: Numbers) -> Numbers:
    """Least time of a pipelined step, given what `stage_bounds_s` takes: the longest chain through any stage. [S12]"""
    longest, _ = stage_bounds_s(*times, **options)
    return largest(longest)


def stage_bounds_s(
    forward_s: Numbers,
    backward_s: Numbers,
    between_s: Numbers,
    micro_batches: Numbers,
    chunks: Numbers,
    stages: Numbers,
    *,
    back_s: Numbers | None = None,
    repeats: Numbers = 1.0,
    extra_warmup: Numbers = 0,
    late_s: Numbers = 0.0,
    fills: Numbers = 1.0,
    busy_s: Numbers = 0.0,
    busy_back_s: Numbers = 0.0,
    far: Numbers = 0.0,
) -> tuple[Numbers, Numbers]:
    """Through each stage, the least time of the step and the least time until its own gradients are whole. [S12]

    A micro-batch comes to stage j, the stage works m (f + b) and is idle for as long as its later stages keep the first
    micro-batch beyond the forward passes it may do meanwhile, and likewise at the end; then a micro-batch goes back.
    With chunks only the way to the stage and back counts. Arrays end in stages; each stands for `repeats` equal ones in
    a row: the chain is convex along such a row, so its ends suffice. `between_s` is the time from a stage to the next
    (`back_s`: back, where that differs), `busy_s` how long a micro-batch takes that link; `chunks` divides fill and
    drain. `late_s`: the part of the backward pass that may come later (weights' gradients), so that others do not wait
    for it. `fills`: 0 leaves filling and draining out, which bounds any schedule. Equal stages:
    (m + (p - 1) / v) (f + b), the simulated time.

    No stage has more than w micro-batches in flight (1F1B: p - j; chunks: two groups of p), so that the last of m comes
    to it after floor((m - 1) / w) trips of others through all later stages and back. `far`: delays after
    stages; two stages s < u of 1F1B beside such delays let u - s + 1 micro-batches through in a round trip. [S8]
    """
    both = forward_s + backward_s
    apart = np.any(np.asarray(late_s) > 0)
    back = backward_s - late_s
    home = back + (between_s if back_s is None else back_s)
    way = forward_s + between_s + home
    total = (way * repeats).sum(axis=-1, keepdims=True)
    here = np.broadcast_to(repeats, both.shape).astype(float)
    before, leave, place = _summed(way * repeats), _summed(home * repeats), _summed(here)

    work, part = micro_batches * both, fills / chunks
    fills = np.asarray(fills)

    def chain(before: Numbers, place: Numbers) -> Numbers:
        """Through the stage at `place`, with the ways of the stages before it."""
        after = total - before - both
        ahead = np.minimum(stages - place - 1 + extra_warmup, micro_batches - 1)
        drains = ahead < micro_batches - 1  # else all forward passes come before the first backward pass: one wait
        idle = np.maximum(0.0, after - ahead * forward_s) + drains * np.maximum(0.0, after - ahead * backward_s)
        if np.ndim(chunks) or chunks > 1:  # chunks of later stages come and go between those of this one
            idle = idle * (np.asarray(chunks) == 1)
        if apart:  # weights' gradients of the last micro-batches run beside the way back
            idle = idle * (np.asarray(late_s) == 0)
            beside = np.where(place > 0, np.minimum(place + 1.0, micro_batches) * late_s, 0.0)
            return (before + idle) * part + work - beside
        return (before + idle) * part + work

    wide = np.where(micro_batches % stages == 0, 2.0 * stages, micro_batches)  # micro-batches of two groups in flight

    def trips(before: Numbers, place: Numbers) -> Numbers:
        """As often through the later stages and back as the limit on micro-batches in flight demands."""
        most = np.where(np.asarray(chunks) > 1, wide, np.maximum(stages - place, 1.0) + extra_warmup)
        rounds = np.floor((micro_batches - 1) / most)
        return (before * part + (rounds + 1.0) * (total - before) + (place == 0) * rounds * late_s) * (fills > 0)

    longest = np.maximum(chain(before, place), trips(before, place))
    ready = longest - leave * part
    if np.ndim(repeats):
        more = np.maximum(here - 1.0, 0.0)
        last = np.maximum(*(one(before + more * way, place + more) for one in (chain, trips)))
        ready = np.maximum(ready, last - (leave + more * home) * part)
        longest = np.maximum(longest, last)
    if apart:  # all of a stage's work comes after the first micro-batch has
        done = (before - leave) * part + work
        longest, ready = np.maximum(longest, done), np.maximum(ready, done)
    if np.ndim(far) and np.any(np.asarray(far) > 0):
        plain = (fills > 0) & (np.asarray(chunks) == 1) & (np.asarray(extra_warmup) == 0)
        rest = np.maximum(here - 1.0, 0.0)
        ends = (before + rest * way, place + rest)
        turns = _round_trips(before, place, ends, both, late_s, micro_batches, stages, far)
        longest = np.maximum(longest, np.where(plain, turns, 0.0))
    longest = np.maximum(longest, micro_batches * np.maximum(busy_s, busy_back_s))
    all_first = np.asarray(extra_warmup) >= micro_batches  # GPipe
    if np.any(all_first):
        pace = _pace(forward_s, busy_s) + _pace(backward_s, busy_back_s)
        longest = np.maximum(longest, np.where(all_first, total + (micro_batches - 1) * pace, 0.0))
    present = both > 0
    return longest * present, ready * present


def _summed(rows: Numbers) -> Numbers:
    """Sums of what comes before, along the stages."""
    return np.cumsum(rows, axis=-1, out=np.empty_like(rows)) - rows


def _pace(pass_s: Numbers, busy_s: Numbers) -> Numbers:
    """The slowest stage or link, which all passes of a kind go through one after the other. [S9]"""
    return largest(np.maximum(pass_s, busy_s))


def _round_trips(
    before: Numbers,
    place: Numbers,
    ends: tuple[Numbers, Numbers],
    both: Numbers,
    late_s: Numbers,
    micro_batches: Numbers,
    stages: Numbers,
    far: Numbers,
) -> Numbers:
    """The longest chain of round trips between the last stage of a run and the first of a later one. [S8]

    Stage u holds p - u micro-batches; each round trip between s and u lets u - s + 1 more of them in.
    """
    away, last = ends
    late = np.broadcast_to(late_s, both.shape)
    found = np.zeros((*both.shape[:-1], 1))
    delayed = np.flatnonzero((np.broadcast_to(far, both.shape) > 0).reshape(-1, both.shape[-1]).any(axis=0)).tolist()
    for s in delayed:
        at, first = last[..., s : s + 1], away[..., s : s + 1]
        for u in (other + 1 for other in delayed if s <= other < both.shape[-1] - 1):
            there = place[..., u : u + 1]
            more = there - at + 1.0
            rounds = np.floor(np.maximum(micro_batches - (stages - there), 0.0) / more)
            length = before[..., u : u + 1] - first + both[..., u : u + 1] - late[..., u : u + 1]
            owed = np.maximum(rounds - 1.0 - np.floor(at / more), 0.0) * late[..., s : s + 1]
            chain = first + rounds * length + owed
            found = np.maximum(found, np.where(both[..., u : u + 1] > 0, chain, 0.0))
    return found


FEW = 4
"""Stages up to which going through them one by one is quicker than NumPy's reduction along a short axis."""


def largest(values: Numbers) -> Numbers:
    """The largest along the last axis, which is kept."""
    if values.shape[-1] > FEW or not isinstance(values, np.ndarray):
        return values.max(axis=-1, keepdims=True)
    top = values[..., :1]
    for stage in range(1, values.shape[-1]):
        top = np.maximum(top, values[..., stage : stage + 1])
    return top
