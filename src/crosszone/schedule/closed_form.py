"""Closed form: a lower bound of the simulated makespan, for arrays of strategies. [S6] [S7] [S8]

    bound = makespan_bound_s("1f1b", stages=4, micro_batches=np.array([8, 32]), forward_s=0.1, backward_s=0.2)

Each bound is the length of a chain of waits that the simulation has too, so it is never above it: a micro-batch comes
to a stage, the stage works without a pause, a micro-batch goes back to the first stage [S6]; a link works without a
pause [S7]; micro-batches in flight go round between two stages again and again [S8]. The longest is taken. It is the
simulated makespan for stages of equal times without links, and for GPipe always [S9]; elsewhere it comes close (how
close: docs/formulas.md).

A quick lower bound of one step's pipeline, for arrays of strategies of any number of stages. [S12]

`closed_form` is tighter and slower; `simulation` is exact. Stages that do not exist have zero times.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crosszone.schedule.orders import (
    BACKWARD,
    FORWARD,
    SPLITS_WEIGHT_GRAD,
    Extra,
    build_orders,
    choose_group_size,
    count_in_flight,
    list_stages_in_order,
    map_virtual_stages,
)

Floats = NDArray[np.float64]


def bound_makespan_s(
    schedule: str,
    *,
    stages: int,
    micro_batches: ArrayLike,
    chunks: int = 1,
    extra_warmup: Extra = 0,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    weight_s: ArrayLike = 0.0,
    send_forward_s: ArrayLike = 0.0,
    send_backward_s: ArrayLike = 0.0,
    latency_forward_s: ArrayLike = 0.0,
    latency_backward_s: ArrayLike = 0.0,
    blocking: bool = False,
) -> Floats:
    """Least time one step can take, never above `simulate`: array [...]. [S6] [S7] [S8]

    Times are those of `simulate`; `micro_batches` may be an array [...] too.
    """
    compute = [np.asarray(time, float) for time in (forward_s, backward_s, weight_s)]
    given = (send_forward_s, send_backward_s, latency_forward_s, latency_backward_s)
    links = [np.asarray(time, float) for time in given]
    counts = np.asarray(micro_batches, int)
    batch = np.broadcast_shapes(counts.shape, *(t.shape[:-2] for t in compute), *(t.shape[:-1] for t in links))
    place = map_virtual_stages(schedule, stages, chunks)
    crosses = np.diff(list_stages_in_order(schedule, stages, chunks)) != 0
    steps = prod(batch)
    by_part = np.empty((3, steps, place.size))
    for kind, time in enumerate(compute):
        by_part[kind][:, place.ravel()] = np.broadcast_to(time, (*batch, *place.shape)).reshape(steps, place.size)
    wide = (*batch, len(crosses))
    between = [np.broadcast_to(time, wide).reshape(steps, len(crosses)) * crosses for time in links]
    if schedule not in SPLITS_WEIGHT_GRAD:
        by_part[BACKWARD] += by_part[2]
        by_part[2] = 0.0
    if blocking:  # a send that blocks lengthens the operation before it
        by_part[FORWARD][:, :-1] += between[0]
        by_part[BACKWARD][:, 1:] += between[1]
        between[:2] = [np.zeros_like(between[0])] * 2
    chain = _Chain(*by_part, *between)
    each = np.broadcast_to(counts, batch).ravel()
    bound = np.zeros(len(each))
    for count in np.unique(each).tolist():
        here = np.flatnonzero(each == count)
        size = (schedule, stages, count, chunks, extra_warmup)
        bound[here] = _bound_s(chain if len(here) == len(each) else chain.pick(here), size)
    return bound.reshape(batch)


Size = tuple[str, int, int, int, Extra]  # Schedule, stages, micro-batches, chunks, extra warm-up


@dataclass(frozen=True, eq=False)
class _Chain:
    """The parts of the model in a row: times of their passes [steps, parts], of the boundaries [steps, parts - 1]."""

    forward: Floats
    backward: Floats
    weight: Floats
    send_forward: Floats
    send_backward: Floats
    latency_forward: Floats
    latency_backward: Floats

    def pick(self, which: NDArray[np.int_]) -> _Chain:
        """The same for some of the steps."""
        return _Chain(*(getattr(self, field.name)[which] for field in fields(self)))

    @cached_property
    def reach(self) -> Floats:
        """When the first micro-batch can be at each part, going forward."""
        return _summed(self.forward[:, :-1] + self.send_forward + self.latency_forward)

    @cached_property
    def leave(self) -> Floats:
        """From the end of a backward pass of each part to the end of that of part 0."""
        return _summed(self.backward[:, :-1] + self.send_backward + self.latency_backward)

    @cached_property
    def through(self) -> Floats:
        """From the start of a forward pass of each part to the end of the backward pass of the same micro-batch."""
        there = self.send_forward + self.latency_forward + self.send_backward + self.latency_backward
        both = self.forward + self.backward
        return both[:, -1:] + _summed((both[:, :-1] + there)[:, ::-1])[:, ::-1]


def _summed(terms: Floats) -> Floats:
    """Sums of the first 0, 1, 2, ... terms."""
    sums = np.zeros((len(terms), terms.shape[1] + 1))
    np.cumsum(terms, axis=1, out=sums[:, 1:])
    return sums


def _bound_s(chain: _Chain, size: Size) -> Floats:
    """The longest of all chains of waits: array [steps]."""
    schedule, stages, _, chunks, _ = size
    if schedule == "gpipe":
        return _gpipe(chain, size)
    marks = _marks(*size)
    passes = np.stack([chain.forward, chain.backward, chain.weight], axis=2)[:, marks.part]
    work = passes.reshape(*passes.shape[:2], -1).swapaxes(0, 1)  # stages, steps, chunks and kinds
    done = work @ marks.done  # stages, steps, marks
    rest = done[0, :, -1] - done[0, :, marks.last_backward]  # work of the first stage after its last backward pass
    found = [_stages(chain, marks, done, rest)]
    if stages > 1:
        found.append(_links(chain, size, rest))
    if stages > 1 and chunks == 1:
        found.append(_rounds(chain, size, rest))
    if stages > 1 and schedule in ("1f1b", "zero-bubble"):
        found.append(_paced(chain, size, rest))
    return np.asarray(np.max(found, axis=0))


def _gpipe(chain: _Chain, size: Size) -> Floats:
    """All forward passes, then all backward passes, each at the pace of the slowest stage or link: exact. [S9]"""
    slowest = [
        _pace(passes, sends)[:, -1]
        for passes, sends in ((chain.forward, chain.send_forward), (chain.backward, chain.send_backward))
    ]
    return np.asarray(chain.through[:, 0] + (size[2] - 1) * (slowest[0] + slowest[1]))


@dataclass(frozen=True, eq=False)
class _Marks:
    """Operations of each stage where a chain may come in or go out, and what the stage has done by then."""

    part: NDArray[np.int32]
    """Part of the model: array [stages, chunks]."""
    chunk: NDArray[np.int_]
    """Chunk of each way in or out; ways in: first forward, first backward; out: last forward, last backward."""
    done: Floats
    """Operations done: array [stages, chunks and kinds, marks]; before a way in, after a way out, and in all (last)."""
    open: NDArray[np.bool_]
    """Whether a way out comes after a way in: array [stages, ways in, ways out]."""

    @property
    def last_backward(self) -> int:
        """Mark after the last backward pass of chunk 0."""
        return 3 * len(self.chunk)


@lru_cache(maxsize=512)
def _marks(schedule: str, stages: int, micro_batches: int, chunks: int, extra_warmup: Extra) -> _Marks:
    """Count what each stage has done at each mark; long steps only do more of everything before the ways out."""
    group = choose_group_size(stages, micro_batches) if schedule == "interleaved" and chunks > 1 else 1
    least = 4 * stages + int(np.max(extra_warmup))
    short = least + (micro_batches - least) % group
    same = group == 1 or choose_group_size(stages, short) == group
    count = short if short < micro_batches and same else micro_batches
    made = build_orders(schedule, stages, count, chunks, extra_warmup)
    chunk = np.unique([0, chunks - 1])
    one_of = np.arange(3 * chunks)[:, None] == (made.chunk * 3 + made.kind)[:, None, :]
    before = np.pad(np.cumsum(one_of, axis=2), ((0, 0), (0, 0), (1, 0)))  # stages, chunks and kinds, positions

    def at(kind: int, micro_batch: int) -> NDArray[np.int_]:
        """Position of an operation on each stage: array [stages, ways]."""
        where = (made.kind == kind) & (made.micro_batch == micro_batch)
        return np.stack([np.argmax(where & (made.chunk == one), axis=1) for one in chunk], axis=1)

    ways_in = np.concatenate([at(FORWARD, 0), at(BACKWARD, 0)], axis=1)
    ways_out = np.concatenate([at(FORWARD, count - 1), at(BACKWARD, count - 1)], axis=1)
    positions = np.concatenate([ways_in, ways_out + 1, np.full((stages, 1), made.kind.shape[1])], axis=1)
    done = np.take_along_axis(before, positions[:, None, :], axis=2).astype(float)
    repeated = np.ones(3) if made.splits else np.array([1.0, 1.0, 0.0])
    done[:, :, ways_in.shape[1] :] += (micro_batches - count) * np.tile(repeated, chunks)[None, :, None]
    return _Marks(
        part=map_virtual_stages(schedule, stages, chunks),
        chunk=chunk,
        done=done,
        open=ways_in[:, :, None] <= ways_out[:, None, :],
    )


def _stages(chain: _Chain, marks: _Marks, done: Floats, rest: Floats) -> Floats:
    """A micro-batch comes to a stage, the stage works without a pause, a micro-batch goes back to stage 0. [S6]"""
    part = marks.part[:, marks.chunk]  # stages, ways
    ways = 2 * len(marks.chunk)
    reach, leave, through = (time[:, part].swapaxes(0, 1) for time in (chain.reach, chain.leave, chain.through))
    forward, backward = (time[:, part].swapaxes(0, 1) for time in (chain.forward, chain.backward))
    come = np.concatenate([reach, reach + through - backward], axis=2)  # stages, steps, ways
    back = leave + rest[:, None]
    go = np.concatenate([through - forward + back, back], axis=2)
    idle_before = come - done[:, :, :ways]
    after = go + done[:, :, ways : 2 * ways]
    chains = np.where(marks.open[:, None], idle_before[..., None] + after[:, :, None, :], 0.0)
    to_its_end = idle_before + done[:, :, -1:]
    return np.asarray(np.maximum(chains.max(axis=(0, 2, 3)), to_its_end.max(axis=(0, 2))))


def _links(chain: _Chain, size: Size, rest: Floats) -> Floats:
    """A link and direction carries all its messages without a pause, then the last one goes its way. [S7]"""
    schedule, stages, micro_batches, chunks, _ = size
    held_by = list_stages_in_order(schedule, stages, chunks)
    sender = np.concatenate([held_by[:-1], held_by[1:]])
    taker = np.concatenate([held_by[1:], held_by[:-1]])
    ready = np.concatenate([chain.reach[:, :-1] + chain.forward[:, :-1], chain.reach[:, 1:] + chain.through[:, 1:]], 1)
    busy = micro_batches * np.concatenate([chain.send_forward, chain.send_backward], axis=1)
    goes_on = [
        chain.latency_forward + chain.through[:, 1:] + chain.leave[:, 1:],
        chain.latency_backward + chain.backward[:, :-1] + chain.leave[:, :-1],
    ]
    left = np.concatenate(goes_on, axis=1) + rest[:, None]
    order = np.argsort(sender * stages + taker, kind="stable")
    link = (sender * stages + taker)[order]
    starts = np.flatnonzero(np.diff(link, prepend=-1))
    first = np.minimum.reduceat(ready[:, order], starts, axis=1)
    carried = np.add.reduceat(busy[:, order], starts, axis=1)
    last = np.minimum.reduceat(left[:, order], starts, axis=1)
    return np.asarray((first + carried + last)[:, link[starts] // stages != link[starts] % stages].max(axis=1))


def _rounds(chain: _Chain, size: Size, rest: Floats) -> Floats:
    """Micro-batches go round between stages s and u: a round lets W_s - W_u + 1 more of them in. [S8]

    Stage s begins a forward pass only after the backward pass W_s micro-batches before; a stage with a fixed order
    begins that backward pass only after the forward pass W_u - 1 later, which stage s must have sent.
    """
    schedule, stages, micro_batches, _, _ = size
    limit = _limits(size)
    turn = np.arange(stages) if schedule != "delay-aware" else np.array([stages - 1])
    held = np.where(turn == stages - 1, 1, limit[turn])
    more = limit[:, None] - held[None, :] + 1  # stages, turns
    real = np.arange(stages)[:, None] < turn[None, :]
    more = np.where(real, more, micro_batches + 1)
    rounds = np.maximum(micro_batches - held, 0) // more
    left = micro_batches - held - rounds * more
    both = chain.forward + chain.backward
    length = chain.through[:, :, None] - chain.through[:, None, turn] + both[:, None, turn]
    late = rounds - 1 - np.arange(stages)[:, None] // more  # rounds in which stage s has a weight gradient to do
    weights = chain.weight[:, :, None] * np.maximum(late, 0)
    pace = _pace(chain.forward, chain.send_forward)
    before = chain.reach[:, :, None] + (held - 1) * pace[:, :, None]
    after = (chain.through + chain.leave)[:, :, None] + left * both[:, :, None]
    chains = np.where(rounds > 0, before + rounds * length + weights + after, 0.0)
    return np.asarray(chains.max(axis=(1, 2)) + rest)


def _paced(chain: _Chain, size: Size, rest: Floats) -> Floats:
    """As `_stages`, where slower passes of earlier stages fill and drain the pipeline. [S6]"""
    limit, micro_batches = _limits(size), size[2]
    fill = (limit - 1) * _pace(chain.forward, chain.send_forward)
    drain = (limit - 1) * _pace(chain.backward, chain.send_backward)
    both = chain.forward + chain.backward
    steady = (micro_batches - limit) * both
    inside = np.maximum(fill + both + drain, np.maximum(fill, drain) + chain.through)
    return np.asarray((chain.reach + steady + inside + chain.leave).max(axis=1) + rest)


def _pace(passes: Floats, sends: Floats) -> Floats:
    """The slowest pass of each stage and those before it, and of the links between them."""
    pace = passes.copy()
    pace[:, 1:] = np.maximum(pace[:, 1:], sends)
    return np.asarray(np.maximum.accumulate(pace, axis=1))


def _limits(size: Size) -> NDArray[np.int32]:
    """Forward passes ahead of backward passes that each stage may have (ZB-H1: as 1F1B)."""
    schedule, *rest = size
    return count_in_flight("1f1b" if schedule == "zero-bubble" else schedule, *rest)


Numbers = Any


def bound_pipeline_s(*times: Numbers, **options: Numbers) -> Numbers:
    """Least time of a pipelined step, given what `stage_bounds_s` takes: the longest chain through any stage. [S12]"""
    longest, _ = bound_stages_s(*times, **options)
    return select_largest(longest)


def bound_stages_s(
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
    before, leave, place = _summed_bound(way * repeats), _summed_bound(home * repeats), _summed_bound(here)

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
        pace = _pace_bound(forward_s, busy_s) + _pace_bound(backward_s, busy_back_s)
        longest = np.maximum(longest, np.where(all_first, total + (micro_batches - 1) * pace, 0.0))
    present = both > 0
    return longest * present, ready * present


def _summed_bound(rows: Numbers) -> Numbers:
    """Sums of what comes before, along the stages."""
    return np.cumsum(rows, axis=-1, out=np.empty_like(rows)) - rows


def _pace_bound(pass_s: Numbers, busy_s: Numbers) -> Numbers:
    """The slowest stage or link, which all passes of a kind go through one after the other. [S9]"""
    return select_largest(np.maximum(pass_s, busy_s))


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


# Stages up to which going through them one by one is quicker than NumPy's reduction along a short axis.
FEW = 4


def select_largest(values: Numbers) -> Numbers:
    """The largest along the last axis, which is kept."""
    if values.shape[-1] > FEW or not isinstance(values, np.ndarray):
        return values.max(axis=-1, keepdims=True)
    top = values[..., :1]
    for stage in range(1, values.shape[-1]):
        top = np.maximum(top, values[..., stage : stage + 1])
    return top
