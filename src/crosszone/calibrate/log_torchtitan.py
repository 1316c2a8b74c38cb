"""torchtitan's log: one line every few steps.

[titan] 2026-01-05 10:00:00,000 - root - INFO - step: 10  loss:  7.7069  grad_norm:  1.2  memory: 58.35GiB(61.42%)
tps: 6,014  tflops: 348.10  mfu: 35.20%

Written by components/metrics.py: `tps` (earlier `wps`) are tokens a second of one GPU since the line before, the memory
is the peak the allocator has reserved. Lines of a validation begin with `validate step:`.
"""

from __future__ import annotations

import re

from crosszone.calibrate.log_lines import Lines, Log, LogContext, LogStep, number_of, room_for, seconds_of_rate

FORMAT = "torchtitan"
_STEP = re.compile(r"(?<!validate )\bstep:\s*(\d[\d,]{0,14})\s")
_TOKENS = re.compile(r"\b(?:tps|wps):\s*(\S+)")
_MEMORY = re.compile(r"\bmemory:\s*([\d.]+)GiB")


def looks_like(line: str) -> bool:
    """A line of this format."""
    return _found(line) is not None


def read(lines: Lines, told: LogContext) -> Log:
    """Seconds of a step from the tokens a second of one GPU. [K31]"""
    steps: list[LogStep] = []
    memory = 0.0
    for number, line in lines:
        found = _found(line)
        if found is None:
            continue
        seconds = step_of_tokens(found[1], told, number)
        room_for(len(steps), told)
        steps.append(LogStep(line=number, step=found[0], seconds=seconds))
        if held := _MEMORY.search(line):
            memory = max(memory, number_of(held[1]))
    return Log(format=FORMAT, steps=tuple(steps), memory_gib=memory or None, memory_kind="reserved" if memory else "")


def _found(line: str) -> tuple[int, str] | None:
    """The step of a line and its tokens a second, one behind the other."""
    step = _STEP.search(line) if "tps:" in line or "wps:" in line else None
    tokens = _TOKENS.search(line, step.end()) if step else None
    return (int(step[1].replace(",", "")), tokens[1]) if step and tokens else None


def step_of_tokens(per_gpu: str, told: LogContext, line: int) -> float:
    """Seconds of a step: tokens of a step / (tokens a second of one GPU x GPUs). [K31]"""
    return seconds_of_rate(per_gpu, told.tokens_per_step / told.gpus, line, told.file)
