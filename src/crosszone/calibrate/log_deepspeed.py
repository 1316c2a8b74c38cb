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
from bisect import bisect_left

from crosszone.calibrate.log_lines import (
    LONGEST_S,
    Lines,
    Log,
    LogContext,
    LogStep,
    number_of,
    refuse_time,
    room_for,
    same_batch,
    seconds_of,
    seconds_of_rate,
)

FORMAT = "deepspeed"
_RATE = re.compile(
    r"(?:global_step=|\b\d{1,12}/)(\d{1,12}), "
    r"(?:RunningAvgSamplesPerSec=[^,]+, CurrSamplesPerSec|SamplesPerSec)=([^,\s]+)"
)
_MEMORY = re.compile(r"MaxMemAllocated=([\d.]+)GB")
_STEP = re.compile(r"\bsteps?: *(\d{1,12})\b")
_PIPE = re.compile(r"iter time \(s\): (\S+) samples/sec: (\S+)")
_BREAKDOWN = "time (ms) |"
_FORWARD = re.compile(r"\b(?:fwd|forward): ")
_TIMER = re.compile(r"\b(\w+): ([^\s|]+)")
PARTS = {"fwd": "forward", "forward": "forward", "bwd": "backward", "backward": "backward", "step": "optimizer"}
# Share of the batch that iteration time and samples a second, both with three digits after the point, leave open.
PIPE_SLACK = 0.02


def looks_like(line: str) -> bool:
    """A line of this format."""
    return bool(_rate(line) or _pipe(line) or _breakdown(line))


def read(lines: Lines, told: LogContext) -> Log:
    """Steps from the pipeline engine where it wrote them, else from the throughput timer, else from the breakdown."""
    piped: list[LogStep] = []
    rated: list[LogStep] = []
    timed: list[LogStep] = []
    memory = 0.0
    for number, line in lines:
        room_for(max(len(piped), len(rated), len(timed)), told)
        if pipe := _pipe(line):
            step, time, samples = pipe
            seconds = seconds_of(time, number, told.file)
            same_batch(number_of(samples) * seconds, number, told, slack=_rounding(time, samples, told))
            piped.append(LogStep(line=number, step=step, seconds=seconds))
        elif rate := _rate(line):
            seconds = seconds_of_rate(rate[2], told.global_batch, number, told.file)
            rated.append(LogStep(line=number, step=int(rate[1]), seconds=seconds))
        elif found := _breakdown(line):
            timed.append(_timed(found, number, told))
        if held := _MEMORY.search(line):
            memory = max(memory, number_of(held[1]))
    steps = piped or rated or timed
    if timed and steps is not timed:
        steps = _with_parts(steps, timed)
    return Log(format=FORMAT, steps=tuple(steps), memory_gib=memory or None, memory_kind="allocated" if memory else "")


def _pipe(line: str) -> tuple[int, str, str] | None:
    """Step, seconds and samples a second of a line of the pipeline engine; between them stands the loss."""
    found = _PIPE.search(line)
    before = line[: found.start()].rpartition(" loss: ")[0] if found else ""
    step = _STEP.search(before)
    return (int(step[1]), found[1], found[2]) if found and step else None


def _rate(line: str) -> re.Match[str] | None:
    """Step and samples a second of a line of the throughput timer."""
    return _RATE.search(line) if "SamplesPerSec=" in line else None


def _breakdown(line: str) -> str:
    """The timers of a line of the breakdown; empty where it is none."""
    found = line.partition(_BREAKDOWN)[2]
    return found if _FORWARD.search(found) else ""


def _rounding(seconds: str, rate: str, told: LogContext) -> float:
    """Samples that three digits after the point leave open."""
    lost = 5e-4 / max(number_of(seconds), 5e-4) + 5e-4 / max(number_of(rate), 5e-4)
    return max(0.5, told.global_batch * max(PIPE_SLACK, lost))


def _timed(text: str, number: int, told: LogContext) -> LogStep:
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
    lines = [one.line for one in timed]
    for step in steps:
        after = bisect_left(lines, step.line)
        nearest = min(timed[max(0, after - 1) : after + 1], key=lambda one: abs(one.line - step.line))
        found.append(LogStep(line=step.line, step=step.step, seconds=step.seconds, parts_s=nearest.parts_s))
    return found
