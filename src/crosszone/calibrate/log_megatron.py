"""Megatron's training log: iteration lines, timers and memory.

 [2026-01-05 10:00:00] iteration       20/     100 | consumed samples: ... | elapsed time per iteration (ms): 2512.3 |
 throughput per GPU (TFLOP/s/GPU): 401.2 | ... | global batch size:   256 | ...
(min, max) time across ranks (ms):
    forward-backward ...............................: (2401.10, 2410.20)
    optimizer ......................................: (80.10, 81.20)
[Rank 0] (after 2 iterations) memory (MB) | allocated: 20480.0 | max allocated: 61440.0 | ... | max reserved: 65536.0

Written by `training_log` and `report_memory` of megatron/training and by core/timers.py. A line is the mean over the
iterations since the line before, and so are the timers (their normalizer is the log interval). An MB is
2^20 bytes. Forks write seconds, `key=value`, or the mean of recent iterations after a slash.
"""

from __future__ import annotations

import re
from dataclasses import replace

from crosszone.calibrate.log_lines import (
    MIB_PER_GIB,
    Lines,
    Log,
    LogContext,
    LogStep,
    number_of,
    refuse_time,
    room_for,
    seconds_of,
)
from crosszone.errors import FileError, Notice

FORMAT = "megatron"
_ITERATION = re.compile(r"\biteration[=\s]\s*(\d{1,12})\s*/")
_ELAPSED = re.compile(
    r"elapsed time per iteration \((ms|s)\):\s*([^\s|/]+)|elapsed_time_per_iteration_(ms|s)=\s*([^\s|/]+)"
)
_BATCH = re.compile(r"global[ _]batch[ _]size[:=]\s*(\d{1,12})")
_SKIPPED = re.compile(r"number[ _]of[ _]skipped[ _]iterations[:=]\s*(\d{1,12})")
_TIMERS = re.compile(r"(?:\(min, max\)|max) time across ranks \(ms\):")
_TIMER = re.compile(r"^\s+([A-Za-z][\w/-]*) \.+: (?:\([^,()]+,([^,()]+)\)|(\S+))$")
_MEMORY = re.compile(r"\bmax allocated:\s*([\d.]+)")
PARTS = {"forward-backward": "forward_backward", "optimizer": "optimizer"}


def looks_like(line: str) -> bool:
    """A line of this format."""
    return "elapsed" in line and bool(_ELAPSED.search(line) and _ITERATION.search(line))


def read(lines: Lines, told: LogContext) -> Log:
    """The iterations of the scenario's batch; those that skipped their update are left out."""
    steps: list[LogStep] = []
    batches: dict[int, int] = {}
    """Line by batch that is not the scenario's."""
    memory, within, taken = 0.0, False, False
    for number, line in lines:
        elapsed = _ELAPSED.search(line) if "elapsed" in line else None
        iteration = _ITERATION.search(line) if elapsed else None
        if elapsed and iteration:
            unit, time = elapsed[1] or elapsed[3], elapsed[2] or elapsed[4]
            seconds = seconds_of(time, number, told.file, per_s=1e3 if unit == "ms" else 1.0)
            batch, skipped = _BATCH.search(line), _SKIPPED.search(line)
            other = batch is not None and int(batch[1]) != told.global_batch
            if batch is not None and other:
                batches.setdefault(int(batch[1]), number)
            taken = not other and not (skipped and int(skipped[1]))
            if taken:
                room_for(len(steps), told)
                steps.append(LogStep(line=number, step=int(iteration[1]), seconds=seconds))
            within = False
        elif _TIMERS.search(line):
            within = True
        elif within:
            timer = _TIMER.match(line)
            within = timer is not None
            if timer and taken and timer[1] in PARTS:
                part = number_of(timer[2] or timer[3]) / 1e3
                if not 0 <= part <= 1.05 * steps[-1].seconds:
                    refuse_time(timer[2] or timer[3], number, told.file)
                steps[-1] = replace(steps[-1], parts_s={**steps[-1].parts_s, PARTS[timer[1]]: part})
        else:
            found = _MEMORY.search(line.partition("memory (MB) |")[2])
            memory = max(memory, number_of(found[1]) / MIB_PER_GIB) if found else memory
    if batches and not steps:
        (batch_given, line_given), *_ = batches.items()
        params = {"line": line_given, "batch": told.global_batch}
        notice = Notice(code="log_batch", field="job.global_batch", value=batch_given, params=params)
        raise FileError(notice.at(told.file, line_given))
    return Log(format=FORMAT, steps=tuple(steps), memory_gib=memory or None, memory_kind="allocated" if memory else "")
