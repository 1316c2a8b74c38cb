"""Closed form: lower bounds of the simulated makespan, for arrays of strategies. [S6] [S7] [S8]

    bound = bound_makespan_s("1f1b", stages=4, micro_batches=np.array([8, 32]), forward_s=0.1, backward_s=0.2)

Each bound is the length of a chain of waits that the simulation has too, so it is never above it: a micro-batch comes
to a stage, the stage works without a pause, a micro-batch goes back to the first stage [S6]; a link works without a
pause [S7]; micro-batches in flight go round between two stages again and again [S8]. The longest is taken. It is the
simulated makespan for stages of equal times without links, and for GPipe always [S9]; elsewhere it comes close (how
close: docs/formulas.md).

`bound_stages_s` is a quicker, looser bound that takes runs of equal stages, for arrays of strategies of any number of
stages. [S12] `bound_makespan_s` is tighter and slower; `simulation` is exact. Stages that do not exist have zero times.

Arrays: `steps` is the flattened batch of strategies; a part is one virtual stage (chunk) of the model, in order; a
suffix names other shapes (S stages, U stages at which a round trip turns). Whatever is changed here must stay below the
simulation: tests/schedule/test_closed_form.py and test_bound.py compare random strategies.
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
    extra_warmup: int = 0,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    weight_s: ArrayLike = 0.0,
    send_forward_s: ArrayLike = 0.0,
    send_backward_s: ArrayLike = 0.0,
    latency_forward_s: ArrayLike = 0.0,
    latency_backward_s: ArrayLike = 0.0,
) -> Floats:
    """Least time one step can take, never above `simulate`: array [...]. [S6] [S7] [S8]

    Times are those of `simulate`; `micro_batches` may be an array [...] too.
    """
    compute = [np.asarray(time, float) for time in (forward_s, backward_s, weight_s)]
    link_times = (send_forward_s, send_backward_s, latency_forward_s, latency_backward_s)
    links = [np.asarray(time, float) for time in link_times]
    counts = np.asarray(micro_batches, int)
    batch = np.broadcast_shapes(counts.shape, *(t.shape[:-2] for t in compute), *(t.shape[:-1] for t in links))
    place = map_virtual_stages(schedule, stages, chunks)
    crosses = np.diff(list_stages_in_order(schedule, stages, chunks)) != 0
    steps = prod(batch)
    by_part = np.empty((3, steps, place.size))
    for kind, time in enumerate(compute):
        by_part[kind][:, place.ravel()] = np.broadcast_to(time, (*batch, *place.shape)).reshape(steps, place.size)
    boundary_shape = (*batch, len(crosses))
    between = [np.broadcast_to(time, boundary_shape).reshape(steps, len(crosses)) * crosses for time in links]
    if schedule not in SPLITS_WEIGHT_GRAD:
        by_part[BACKWARD] += by_part[2]
        by_part[2] = 0.0
    chain = _PartChain(*by_part, *between)
    count_of_step = np.broadcast_to(counts, batch).ravel()
    bound = np.zeros(len(count_of_step))
    for count in np.unique(count_of_step).tolist():
        selected = np.flatnonzero(count_of_step == count)
        size = (schedule, stages, count, chunks, extra_warmup)
        bound[selected] = _bound_s(chain if len(selected) == len(count_of_step) else chain.select(selected), size)
    return bound.reshape(batch)


Size = tuple[str, int, int, int, int]  # Schedule, stages, micro-batches, chunks, extra warm-up


@dataclass(frozen=True, eq=False)
class _PartChain:
    """The parts of the model in a row: times of their passes [steps, parts], of the boundaries [steps, parts - 1]."""

    forward: Floats
    backward: Floats
    weight: Floats
    send_forward: Floats
    send_backward: Floats
    latency_forward: Floats
    latency_backward: Floats

    def select(self, which: NDArray[np.int_]) -> _PartChain:
        """The same for some of the steps."""
        return _PartChain(*(getattr(self, field.name)[which] for field in fields(self)))

    @cached_property
    def reach(self) -> Floats:
        """When the first micro-batch can be at each part, going forward."""
        return _sum_before_parts(self.forward[:, :-1] + self.send_forward + self.latency_forward)

    @cached_property
    def leave(self) -> Floats:
        """From the end of a backward pass of each part to the end of that of part 0."""
        return _sum_before_parts(self.backward[:, :-1] + self.send_backward + self.latency_backward)

    @cached_property
    def through(self) -> Floats:
        """From the start of a forward pass of each part to the end of the backward pass of the same micro-batch."""
        send_s = self.send_forward + self.latency_forward + self.send_backward + self.latency_backward
        pass_s = self.forward + self.backward
        return pass_s[:, -1:] + _sum_before_parts((pass_s[:, :-1] + send_s)[:, ::-1])[:, ::-1]


def _sum_before_parts(terms: Floats) -> Floats:
    """Sums of the first 0, 1, 2, ... terms."""
    sums = np.zeros((len(terms), terms.shape[1] + 1))
    np.cumsum(terms, axis=1, out=sums[:, 1:])
    return sums


def _bound_s(chain: _PartChain, size: Size) -> Floats:
    """The longest of all chains of waits: array [steps]."""
    schedule, stages, _, chunks, _ = size
    if schedule == "gpipe":
        return _bound_gpipe_s(chain, size)
    marks = _build_marks(*size)
    passes = np.stack([chain.forward, chain.backward, chain.weight], axis=2)[:, marks.part]
    work = passes.reshape(*passes.shape[:2], -1).swapaxes(0, 1)  # stages, steps, chunks and kinds
    done = work @ marks.done  # stages, steps, marks
    rest_s = done[0, :, -1] - done[0, :, marks.last_backward]  # work of the first stage after its last backward pass
    bounds_s = [_bound_by_stages_s(chain, marks, done, rest_s)]
    if stages > 1:
        bounds_s.append(_bound_by_links_s(chain, size, rest_s))
    if stages > 1 and chunks == 1:
        bounds_s.append(_bound_by_rounds_s(chain, size, rest_s))
    if stages > 1 and schedule in ("1f1b", "zero-bubble"):
        bounds_s.append(_bound_by_pace_s(chain, size, rest_s))
    return np.asarray(np.max(bounds_s, axis=0))


def _bound_gpipe_s(chain: _PartChain, size: Size) -> Floats:
    """All forward passes, then all backward passes, each at the pace of the slowest stage or link: exact. [S9]"""
    slowest = [
        _find_pace(passes, sends)[:, -1]
        for passes, sends in ((chain.forward, chain.send_forward), (chain.backward, chain.send_backward))
    ]
    return np.asarray(chain.through[:, 0] + (size[2] - 1) * (slowest[0] + slowest[1]))


@dataclass(frozen=True, eq=False)
class _StageMarks:
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
def _build_marks(schedule: str, stages: int, micro_batches: int, chunks: int, extra_warmup: int) -> _StageMarks:
    """Count what each stage has done at each mark; long steps only do more of everything before the ways out."""
    group = choose_group_size(stages, micro_batches) if schedule == "interleaved" and chunks > 1 else 1
    least = 4 * stages + extra_warmup
    short = least + (micro_batches - least) % group
    same_group = group == 1 or choose_group_size(stages, short) == group
    count = short if short < micro_batches and same_group else micro_batches
    # A long step does between the marks only more of the same, so a short one is counted and the rest is multiplied:
    # 4096 micro-batches cost no more than 4 x stages.
    orders = build_orders(schedule, stages, count, chunks, extra_warmup)
    chunk = np.unique([0, chunks - 1])
    is_kind = np.arange(3 * chunks)[:, None] == (orders.chunk * 3 + orders.kind)[:, None, :]
    done_before = np.pad(np.cumsum(is_kind, axis=2), ((0, 0), (0, 0), (1, 0)))  # stages, chunks and kinds, positions

    def find_positions(kind: int, micro_batch: int) -> NDArray[np.int_]:
        """Position of an operation on each stage: array [stages, ways]."""
        matches = (orders.kind == kind) & (orders.micro_batch == micro_batch)
        return np.stack([np.argmax(matches & (orders.chunk == number), axis=1) for number in chunk], axis=1)

    ways_in = np.concatenate([find_positions(FORWARD, 0), find_positions(BACKWARD, 0)], axis=1)
    ways_out = np.concatenate([find_positions(FORWARD, count - 1), find_positions(BACKWARD, count - 1)], axis=1)
    positions = np.concatenate([ways_in, ways_out + 1, np.full((stages, 1), orders.kind.shape[1])], axis=1)
    done = np.take_along_axis(done_before, positions[:, None, :], axis=2).astype(float)
    repeated = np.ones(3) if orders.splits else np.array([1.0, 1.0, 0.0])
    done[:, :, ways_in.shape[1] :] += (micro_batches - count) * np.tile(repeated, chunks)[None, :, None]
    return _StageMarks(
        part=map_virtual_stages(schedule, stages, chunks),
        chunk=chunk,
        done=done,
        open=ways_in[:, :, None] <= ways_out[:, None, :],
    )


def _bound_by_stages_s(chain: _PartChain, marks: _StageMarks, done: Floats, rest_s: Floats) -> Floats:
    """A micro-batch comes to a stage, the stage works without a pause, a micro-batch goes back to stage 0. [S6]"""
    part = marks.part[:, marks.chunk]  # stages, ways
    ways = 2 * len(marks.chunk)
    reach, leave, through = (time[:, part].swapaxes(0, 1) for time in (chain.reach, chain.leave, chain.through))
    forward, backward = (time[:, part].swapaxes(0, 1) for time in (chain.forward, chain.backward))
    arrival_s = np.concatenate([reach, reach + through - backward], axis=2)  # stages, steps, ways
    way_back_s = leave + rest_s[:, None]
    way_out_s = np.concatenate([through - forward + way_back_s, way_back_s], axis=2)
    idle_before = arrival_s - done[:, :, :ways]
    after = way_out_s + done[:, :, ways : 2 * ways]
    chains = np.where(marks.open[:, None], idle_before[..., None] + after[:, :, None, :], 0.0)
    to_its_end = idle_before + done[:, :, -1:]
    return np.asarray(np.maximum(chains.max(axis=(0, 2, 3)), to_its_end.max(axis=(0, 2))))


def _bound_by_links_s(chain: _PartChain, size: Size, rest_s: Floats) -> Floats:
    """A link and direction carries all its messages without a pause, then the last one goes its way. [S7]"""
    schedule, stages, micro_batches, chunks, _ = size
    stage_of_part = list_stages_in_order(schedule, stages, chunks)
    sender = np.concatenate([stage_of_part[:-1], stage_of_part[1:]])
    receiver = np.concatenate([stage_of_part[1:], stage_of_part[:-1]])
    ready = np.concatenate([chain.reach[:, :-1] + chain.forward[:, :-1], chain.reach[:, 1:] + chain.through[:, 1:]], 1)
    busy = micro_batches * np.concatenate([chain.send_forward, chain.send_backward], axis=1)
    after_message = [
        chain.latency_forward + chain.through[:, 1:] + chain.leave[:, 1:],
        chain.latency_backward + chain.backward[:, :-1] + chain.leave[:, :-1],
    ]
    after_s = np.concatenate(after_message, axis=1) + rest_s[:, None]
    order = np.argsort(sender * stages + receiver, kind="stable")
    link = (sender * stages + receiver)[order]
    starts = np.flatnonzero(np.diff(link, prepend=-1))
    first = np.minimum.reduceat(ready[:, order], starts, axis=1)
    carried = np.add.reduceat(busy[:, order], starts, axis=1)
    last = np.minimum.reduceat(after_s[:, order], starts, axis=1)
    return np.asarray((first + carried + last)[:, link[starts] // stages != link[starts] % stages].max(axis=1))


def _bound_by_rounds_s(chain: _PartChain, size: Size, rest_s: Floats) -> Floats:
    """Micro-batches make round trips between stages s and u: each lets W_s - W_u + 1 more of them in. [S8]

    Stage s begins a forward pass only after the backward pass W_s micro-batches before; a stage with a fixed order
    begins that backward pass only after the forward pass W_u - 1 later, which stage s must have sent.
    """
    schedule, stages, micro_batches, _, _ = size
    limit = _list_limits(size)
    # Delay-aware stages choose their order, so only the last one, which has no choice, is sure to turn micro-batches.
    turn = np.arange(stages) if schedule != "delay-aware" else np.array([stages - 1])
    in_flight_at_turn = np.where(turn == stages - 1, 1, limit[turn])
    admitted_SU = limit[:, None] - in_flight_at_turn[None, :] + 1  # stages, turns
    real = np.arange(stages)[:, None] < turn[None, :]
    admitted_SU = np.where(real, admitted_SU, micro_batches + 1)
    rounds_SU = np.maximum(micro_batches - in_flight_at_turn, 0) // admitted_SU
    leftover = micro_batches - in_flight_at_turn - rounds_SU * admitted_SU
    pass_s = chain.forward + chain.backward
    length = chain.through[:, :, None] - chain.through[:, None, turn] + pass_s[:, None, turn]
    # rounds in which stage s has a weight gradient to do
    weight_rounds_SU = rounds_SU - 1 - np.arange(stages)[:, None] // admitted_SU
    weights = chain.weight[:, :, None] * np.maximum(weight_rounds_SU, 0)
    pace = _find_pace(chain.forward, chain.send_forward)
    before = chain.reach[:, :, None] + (in_flight_at_turn - 1) * pace[:, :, None]
    after = (chain.through + chain.leave)[:, :, None] + leftover * pass_s[:, :, None]
    chains = np.where(rounds_SU > 0, before + rounds_SU * length + weights + after, 0.0)
    return np.asarray(chains.max(axis=(1, 2)) + rest_s)


def _bound_by_pace_s(chain: _PartChain, size: Size, rest_s: Floats) -> Floats:
    """As `_bound_by_stages_s`, where slower passes of earlier stages fill and drain the pipeline. [S6]"""
    limit, micro_batches = _list_limits(size), size[2]
    fill = (limit - 1) * _find_pace(chain.forward, chain.send_forward)
    drain = (limit - 1) * _find_pace(chain.backward, chain.send_backward)
    pass_s = chain.forward + chain.backward
    steady = (micro_batches - limit) * pass_s
    inside = np.maximum(fill + pass_s + drain, np.maximum(fill, drain) + chain.through)
    return np.asarray((chain.reach + steady + inside + chain.leave).max(axis=1) + rest_s)


def _find_pace(passes: Floats, sends: Floats) -> Floats:
    """The slowest pass of each stage and those before it, and of the links between them."""
    pace = passes.copy()
    pace[:, 1:] = np.maximum(pace[:, 1:], sends)
    return np.asarray(np.maximum.accumulate(pace, axis=1))


def _list_limits(size: Size) -> NDArray[np.int32]:
    """Forward passes ahead of backward passes that each stage may have (ZB-H1: as 1F1B)."""
    schedule, *after = size
    return count_in_flight("1f1b" if schedule == "zero-bubble" else schedule, *after)


Numbers = Any


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
    pass_s = forward_s + backward_s
    splits_weight_grad = np.any(np.asarray(late_s) > 0)
    input_grad_s = backward_s - late_s
    return_s = input_grad_s + (between_s if back_s is None else back_s)
    round_trip_s = forward_s + between_s + return_s
    total = (round_trip_s * repeats).sum(axis=-1, keepdims=True)
    run_lengths = np.broadcast_to(repeats, pass_s.shape).astype(float)
    before, leave, place = (
        _sum_before_stages(round_trip_s * repeats),
        _sum_before_stages(return_s * repeats),
        _sum_before_stages(run_lengths),
    )

    work, part = micro_batches * pass_s, fills / chunks
    fills = np.asarray(fills)

    def follow_chain(before: Numbers, place: Numbers) -> Numbers:
        """Through the stage at `place`, with the ways of the stages before it."""
        after = total - before - pass_s
        ahead = np.minimum(stages - place - 1 + extra_warmup, micro_batches - 1)
        drains = ahead < micro_batches - 1  # else all forward passes come before the first backward pass: one wait
        idle = np.maximum(0.0, after - ahead * forward_s) + drains * np.maximum(0.0, after - ahead * backward_s)
        if np.ndim(chunks) or chunks > 1:  # chunks of later stages come and go between those of this one
            idle = idle * (np.asarray(chunks) == 1)
        if splits_weight_grad:  # weights' gradients of the last micro-batches run beside the way back
            idle = idle * (np.asarray(late_s) == 0)
            beside = np.where(place > 0, np.minimum(place + 1.0, micro_batches) * late_s, 0.0)
            return (before + idle) * part + work - beside
        return (before + idle) * part + work

    two_groups = np.where(micro_batches % stages == 0, 2.0 * stages, micro_batches)  # micro-batches in flight

    def follow_round_trips(before: Numbers, place: Numbers) -> Numbers:
        """As often through the later stages and back as the limit on micro-batches in flight demands."""
        in_flight = np.where(np.asarray(chunks) > 1, two_groups, np.maximum(stages - place, 1.0) + extra_warmup)
        rounds = np.floor((micro_batches - 1) / in_flight)
        return (before * part + (rounds + 1.0) * (total - before) + (place == 0) * rounds * late_s) * (fills > 0)

    longest = np.maximum(follow_chain(before, place), follow_round_trips(before, place))
    ready = longest - leave * part
    if np.ndim(repeats):
        later_in_run = np.maximum(run_lengths - 1.0, 0.0)
        run_end_s, run_end = before + later_in_run * round_trip_s, place + later_in_run
        last = np.maximum(follow_chain(run_end_s, run_end), follow_round_trips(run_end_s, run_end))
        ready = np.maximum(ready, last - (leave + later_in_run * return_s) * part)
        longest = np.maximum(longest, last)
    if splits_weight_grad:  # all of a stage's work comes after the first micro-batch has
        work_end_s = (before - leave) * part + work
        longest, ready = np.maximum(longest, work_end_s), np.maximum(ready, work_end_s)
    if np.ndim(far) and np.any(np.asarray(far) > 0):
        is_plain_1f1b = (fills > 0) & (np.asarray(chunks) == 1) & (np.asarray(extra_warmup) == 0)
        later_stages = np.maximum(run_lengths - 1.0, 0.0)
        run_ends = (before + later_stages * round_trip_s, place + later_stages)
        round_trips_s = _bound_round_trips_s(before, place, run_ends, pass_s, late_s, micro_batches, stages, far)
        longest = np.maximum(longest, np.where(is_plain_1f1b, round_trips_s, 0.0))
    longest = np.maximum(longest, micro_batches * np.maximum(busy_s, busy_back_s))
    runs_all_forward_first = np.asarray(extra_warmup) >= micro_batches  # GPipe
    if np.any(runs_all_forward_first):
        pace = _find_slowest_pass(forward_s, busy_s) + _find_slowest_pass(backward_s, busy_back_s)
        longest = np.maximum(longest, np.where(runs_all_forward_first, total + (micro_batches - 1) * pace, 0.0))
    present = pass_s > 0
    return longest * present, ready * present


def _sum_before_stages(rows: Numbers) -> Numbers:
    """Sums of what comes before, along the stages."""
    return np.cumsum(rows, axis=-1, out=np.empty_like(rows)) - rows


def _find_slowest_pass(pass_s: Numbers, busy_s: Numbers) -> Numbers:
    """The slowest stage or link, which all passes of a kind go through one after the other. [S9]"""
    return select_largest(np.maximum(pass_s, busy_s))


def _bound_round_trips_s(
    before: Numbers,
    place: Numbers,
    run_ends: tuple[Numbers, Numbers],
    pass_s: Numbers,
    late_s: Numbers,
    micro_batches: Numbers,
    stages: Numbers,
    far: Numbers,
) -> Numbers:
    """The longest chain of round trips between the last stage of a run and the first of a later one. [S8]

    Stage u holds p - u micro-batches; each round trip between s and u lets u - s + 1 more of them in.
    """
    run_end_s, run_end_place = run_ends
    late = np.broadcast_to(late_s, pass_s.shape)
    longest = np.zeros((*pass_s.shape[:-1], 1))
    delayed = np.flatnonzero(
        (np.broadcast_to(far, pass_s.shape) > 0).reshape(-1, pass_s.shape[-1]).any(axis=0)
    ).tolist()
    for s in delayed:
        at, first = run_end_place[..., s : s + 1], run_end_s[..., s : s + 1]
        for u in (other + 1 for other in delayed if s <= other < pass_s.shape[-1] - 1):
            later_place = place[..., u : u + 1]
            admitted = later_place - at + 1.0
            rounds = np.floor(np.maximum(micro_batches - (stages - later_place), 0.0) / admitted)
            length = before[..., u : u + 1] - first + pass_s[..., u : u + 1] - late[..., u : u + 1]
            owed = np.maximum(rounds - 1.0 - np.floor(at / admitted), 0.0) * late[..., s : s + 1]
            chain = first + rounds * length + owed
            longest = np.maximum(longest, np.where(pass_s[..., u : u + 1] > 0, chain, 0.0))
    return longest


# Stages up to which going through them one by one is quicker: NumPy's reduction along a short last axis has a high cost
# for each row.
MAX_STAGES_BY_HAND = 4


def select_largest(values: Numbers) -> Numbers:
    """The largest along the last axis, which is kept."""
    if values.shape[-1] > MAX_STAGES_BY_HAND or not isinstance(values, np.ndarray):
        return values.max(axis=-1, keepdims=True)
    top = values[..., :1]
    for stage in range(1, values.shape[-1]):
        top = np.maximum(top, values[..., stage : stage + 1])
    return top
