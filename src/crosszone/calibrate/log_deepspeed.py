"""DeepSpeed's log: the throughput timer, the pipeline engine's lines and the wall-clock breakdown.

[2026-01-05 10:00:00,000] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.0,
CurrSamplesPerSec=25.7, MemAllocated=4.32GB, MaxMemAllocated=38.49GB
steps: 10 loss: 2.3456 iter time (s): 1.234 samples/sec: 207.455
[Rank 0] time (ms) | fwd: 385.93 | bwd: 1126.80 | bwd_inner: 1050.84 | bwd_allreduce: 75.94 | step: 82.92

Written by utils/timer.py, runtime/pipe/engine.py and the `wall_clock_breakdown` of runtime/engine.py. The throughput
timer counts the samples of the whole job and starts after the first steps; `fwd`, `bwd` and `step` are sums over the
micro-batches of one update (the lines with `_microstep` are of one of them). The GB are of 2^30 bytes.
"""

from __future__ import annotations

import re

from crosszone.calibrate.log_lines import (
    LONGEST_S,
    Lines,
    Log,
    LogStep,
    Told,
    number_of,
    refuse_time,
    same_batch,
    seconds_of,
    seconds_of_rate,
)

FORMAT = "deepspeed"
_RATE = re.compile(
    r"(?:global_step=|\b\d+/)(\d+), (?:RunningAvgSamplesPerSec=[^,]+, CurrSamplesPerSec|SamplesPerSec)=([^,\s]+)"
)
_MEMORY = re.compile(r"MaxMemAllocated=([\d.]+)GB")
_PIPE = re.compile(r"\bsteps?: *(\d+)\b.*? loss: .*?iter time \(s\): (\S+) samples/sec: (\S+)")
_BREAKDOWN = re.compile(r"time \(ms\) \|(?=.*\b(?:fwd|forward): )(.*)")
_TIMER = re.compile(r"(\w+): ([^\s|]+)")
PARTS = {"fwd": "forward", "forward": "forward", "bwd": "backward", "backward": "backward", "step": "optimizer"}
PIPE_SLACK = 0.02
"""Share of the batch that iteration time and samples a second, both with three digits after the point, leave open."""


def looks_like(line: str) -> bool:
    """A line of this format."""
    return bool(_RATE.search(line) or _PIPE.search(line) or _BREAKDOWN.search(line))


def read(lines: Lines, told: Told) -> Log:
    """Steps from the pipeline engine where it wrote them, else from the throughput timer, else from the breakdown."""
    piped: list[LogStep] = []
    rated: list[LogStep] = []
    timed: list[LogStep] = []
    memory = 0.0
    for number, line in lines:
        if pipe := _PIPE.search(line):
            seconds = seconds_of(pipe[2], number, told.file)
            same_batch(number_of(pipe[3]) * seconds, number, told, slack=_rounding(pipe[2], pipe[3], told))
            piped.append(LogStep(line=number, step=int(pipe[1]), seconds=seconds))
        elif rate := _RATE.search(line):
            seconds = seconds_of_rate(rate[2], told.global_batch, number, told.file)
            rated.append(LogStep(line=number, step=int(rate[1]), seconds=seconds))
        elif found := _BREAKDOWN.search(line):
            timed.append(_timed(found[1], number, told))
        if held := _MEMORY.search(line):
            memory = max(memory, number_of(held[1]))
    steps = piped or rated or timed
    if timed and steps is not timed:
        steps = _with_parts(steps, timed)
    return Log(format=FORMAT, steps=tuple(steps), memory_gib=memory or None, memory_kind="allocated" if memory else "")


def _rounding(seconds: str, rate: str, told: Told) -> float:
    """Samples that three digits after the point leave open."""
    lost = 5e-4 / max(number_of(seconds), 5e-4) + 5e-4 / max(number_of(rate), 5e-4)
    return max(0.5, told.global_batch * max(PIPE_SLACK, lost))


def _timed(text: str, number: int, told: Told) -> LogStep:
    """The breakdown of one update."""
    parts: dict[str, float] = {}
    for name, value in _TIMER.findall(text):
        if name in PARTS:
            part = number_of(value) / 1e3
            if not 0 <= part <= LONGEST_S:
                refuse_time(value, number, told.file)
            parts[PARTS[name]] = part
    return LogStep(
        line=number, step=None, seconds=seconds_of(str(sum(parts.values())), number, told.file), parts_s=parts
    )


def _with_parts(steps: list[LogStep], timed: list[LogStep]) -> list[LogStep]:
    """Each step with the breakdown written last before or just after it."""
    found = []
    for step in steps:
        nearest = min(timed, key=lambda one: abs(one.line - step.line))
        found.append(LogStep(line=step.line, step=step.step, seconds=step.seconds, parts_s=nearest.parts_s))
    return found
