"""Step times: what a planner needs of a simulation, for long steps without simulating every micro-batch. [S5]

    times = simulate_step_times("1f1b", stages=8, micro_batches=4096, forward_s=0.1, backward_s=0.2)
    times.makespan_s, times.gradients_ready_s, times.simulated_micro_batches

After some rounds a pipeline repeats itself: every operation and message of a micro-batch comes as much later than that
of c micro-batches before. From there on a longer step only repeats the same rounds. A shorter step is simulated; where
it repeats itself, rounds are added to it; where it does not, the whole step is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosszone.schedule.orders import choose_group_size
from crosszone.schedule.simulation import Simulation, simulate

Floats = NDArray[np.float64]

# Share of a round by which two rounds may differ and still count as the same: rounding only. The error is multiplied by
# the rounds that are added, so a looser tolerance would show in long steps.
ROUND_TOLERANCE = 1e-11
# Lengths of the shorter steps that are tried, in rounds of micro-batches in flight, beyond filling and draining.
ROUNDS = (5, 12)
# A shorter step is tried if it has at most this share of the micro-batches; else it saves nothing.
MAX_SHORT_SHARE = 0.6


@dataclass(frozen=True, eq=False)
class StepTimes:
    """When the stages of a step, or of a batch of steps (leading dimensions `...`), start, end and wait."""

    makespan_s: Floats
    """array [...]"""
    first_start_s: Floats
    """array [..., stages]"""
    last_end_s: Floats
    """array [..., stages]"""
    gradients_ready_s: Floats
    """array [..., stages, chunks]"""
    busy_s: Floats
    """array [..., stages]"""
    simulated_micro_batches: NDArray[np.int64]
    """How many micro-batches were simulated: array [...]."""

    @property
    def idle_s(self) -> Floats:
        """Time each stage waits, of the whole step: array [..., stages]."""
        return np.asarray(self.makespan_s[..., None] - self.busy_s)


def simulate_step_times(
    schedule: str,
    *,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    extra_warmup: int = 0,
    **times: Any,
) -> StepTimes:
    """Start, end and waiting of each stage; `times` as `simulate` takes them (`forward_s` and so on). [S5]

    Delay-aware steps are simulated whole, one after the other.
    """
    batch, columns = _flatten_times(times)
    case = _ScheduleCase(schedule, stages, chunks, extra_warmup)
    steps = prod(batch)
    table = _StepTimesTable(steps, case)
    remaining = np.arange(steps)
    if schedule != "delay-aware":
        for short in case.list_short_steps(micro_batches):
            remaining = _extrapolate(case, columns, remaining, short, micro_batches, table)
            if not len(remaining):
                break
    if len(remaining):
        if schedule == "delay-aware":
            for step in remaining:
                table.put(np.array([step]), case.run(_select_steps(columns, [step]), micro_batches))
        else:
            table.put(remaining, case.run(_select_steps(columns, remaining), micro_batches))
    return table.reshape(batch)


def _extrapolate(
    case: _ScheduleCase,
    columns: dict[str, Floats],
    which: NDArray[Any],
    short: int,
    micro_batches: int,
    table: _StepTimesTable,
) -> NDArray[Any]:
    """Put the times of those steps that repeat themselves into the table; return the others."""
    first = case.run(_select_steps(columns, which), short)
    cycles = _find_cycles(case, first)
    unsettled = list(which[cycles == 0])
    lengths = short + (micro_batches - short) % np.lcm(np.maximum(cycles, 1), case.choose_group(micro_batches))
    lengths[cycles == 0] = 0
    for length in np.unique(lengths[cycles > 0]).tolist():
        selected = np.flatnonzero(lengths == length)
        if length > MAX_SHORT_SHARE * micro_batches or case.choose_group(length) != case.choose_group(micro_batches):
            unsettled += list(which[selected])
            continue
        run = first
        if length != short or len(selected) < len(which):
            run = case.run(_select_steps(columns, which[selected]), length)
        for cycle in np.unique(cycles[selected]).tolist():
            same_cycle = np.flatnonzero(cycles[selected] == cycle)
            round_s, settled = _measure_round(case, run, cycle)
            repeating = same_cycle[settled[same_cycle]]
            unsettled += list(which[selected[same_cycle[~settled[same_cycle]]]])
            table.put(
                which[selected[repeating]],
                run,
                repeating,
                (micro_batches - length) // cycle * round_s[repeating],
                micro_batches,
            )
    return np.array(sorted(unsettled), int)


def _find_cycles(case: _ScheduleCase, run: Simulation) -> NDArray[np.int64]:
    """Micro-batches after which each step repeats itself, 0 where it does not."""
    steps = run.ends.shape[1]
    cycles = np.zeros(steps, np.int64)
    stop = run.shape.orders.micro_batches - case.draining
    last, *earlier = (run.ends[nodes] for nodes in run.shape.by_micro_batch[stop - 1 - case.round_length : stop][::-1])
    group = case.choose_group(run.shape.orders.micro_batches)
    for cycle in range(group, case.round_length + 1, group):
        difference_s = last - earlier[cycle - 1]  # a glance at one micro-batch before all are looked at
        may_repeat = (cycles == 0) & (np.ptp(difference_s, axis=0) <= ROUND_TOLERANCE * difference_s[0])
        if may_repeat.any():
            cycles[may_repeat & _measure_round(case, run, cycle)[1]] = cycle
    return cycles


def _measure_round(case: _ScheduleCase, run: Simulation, cycle: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Time of `cycle` micro-batches, and whether the last two rounds before draining repeat themselves exactly."""
    stop = run.shape.orders.micro_batches - case.draining
    start = stop - 2 * case.round_length
    nodes = run.shape.by_micro_batch
    difference_s = run.ends[nodes[start:stop]] - run.ends[nodes[start - cycle : stop - cycle]]
    round_s = difference_s[-1, 0]
    return round_s, np.abs(difference_s - round_s).max(axis=(0, 1)) <= ROUND_TOLERANCE * round_s


@dataclass(frozen=True)
class _ScheduleCase:
    """One schedule and its size, but for the number of micro-batches."""

    schedule: str
    stages: int
    chunks: int
    extra_warmup: int

    @property
    def round_length(self) -> int:
        """Micro-batches within which all waits of a micro-batch lie: those in flight."""
        return self.stages if self.schedule in ("1f1b", "zero-bubble") else 2 * self.stages + 1

    @property
    def draining(self) -> int:
        """Micro-batches at the end whose passes belong to draining."""
        return self.round_length + self.stages

    def choose_group(self, micro_batches: int) -> int:
        """Micro-batches that an interleaved stage runs together."""
        is_interleaved = self.chunks > 1 and self.schedule == "interleaved"
        return choose_group_size(self.stages, micro_batches) if is_interleaved else 1

    def list_short_steps(self, micro_batches: int) -> list[int]:
        """Numbers of micro-batches to try."""
        if self.schedule == "gpipe" or self.stages == 1:
            return []
        group = self.choose_group(micro_batches)
        base = [self.draining + rounds * self.round_length for rounds in ROUNDS]
        tried = [least + (micro_batches - least) % group for least in base]
        return [
            short for short in tried if short <= MAX_SHORT_SHARE * micro_batches and self.choose_group(short) == group
        ]

    def run(self, times: dict[str, Floats], micro_batches: int) -> Simulation:
        """Simulate steps of `micro_batches`."""
        return simulate(
            self.schedule,
            stages=self.stages,
            micro_batches=micro_batches,
            chunks=self.chunks,
            extra_warmup=self.extra_warmup,
            **times,
        )


class _StepTimesTable:
    """The times of a flat batch of steps, filled in as they are known."""

    def __init__(self, steps: int, case: _ScheduleCase) -> None:
        self.per_stage = np.zeros((3, steps, case.stages))  # first start, last end, busy
        self.ready = np.zeros((steps, case.stages, case.chunks))
        self.simulated = np.zeros(steps, np.int64)

    def put(
        self,
        which: NDArray[Any],
        run: Simulation,
        columns: NDArray[Any] | slice = slice(None),
        later_s: Floats | float = 0.0,
        micro_batches: int | None = None,
    ) -> None:
        """Note the times of some columns of a run as those of the steps `which`, `later_s` longer."""
        simulated = run.shape.orders.micro_batches
        first, last, busy = (time[columns] for time in (run.first_start_s, run.last_end_s, run.busy_s))
        late = np.reshape(later_s, (-1, 1))
        self.per_stage[:, which] = first, last + late, busy * ((micro_batches or simulated) / simulated)
        self.ready[which] = run.gradients_ready_s[columns] + late[..., None]
        self.simulated[which] = simulated

    def reshape(self, batch: tuple[int, ...]) -> StepTimes:
        """All of them, with the dimensions of the batch."""
        first, last, busy = (time.reshape(*batch, -1) for time in self.per_stage)
        return StepTimes(
            makespan_s=np.asarray(last.max(axis=-1)),
            first_start_s=first,
            last_end_s=last,
            gradients_ready_s=self.ready.reshape(*batch, *self.ready.shape[1:]),
            busy_s=busy,
            simulated_micro_batches=self.simulated.reshape(batch),
        )


def _flatten_times(times: dict[str, Any]) -> tuple[tuple[int, ...], dict[str, Floats]]:
    """The dimensions of the batch, and the times with all of them flattened into one."""
    inner = {name: 1 if name.startswith(("send", "latency")) else 2 for name in times}
    arrays = {name: np.asarray(value, float) for name, value in times.items()}
    arrays = {name: array.reshape((1,) * (inner[name] - array.ndim) + array.shape) for name, array in arrays.items()}
    batch = np.broadcast_shapes(*(array.shape[: array.ndim - inner[name]] for name, array in arrays.items()))
    flat = {}
    for name, array in arrays.items():
        inner_shape = array.shape[array.ndim - inner[name] :]
        flat[name] = np.broadcast_to(array, (*batch, *inner_shape)).reshape(prod(batch), *inner_shape)
    return batch, flat


def _select_steps(columns: dict[str, Floats], which: Any) -> dict[str, Floats]:
    return {name: array[which] for name, array in columns.items()}
