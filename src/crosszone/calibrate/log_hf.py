"""Hugging Face Trainer's log: progress bars, the summary line, and trainer_state.json.

 12%|###        | 60/500 [02:31<18:30,  2.52s/it]
{'train_runtime': 1262.1, 'train_samples_per_second': 25.35, 'train_steps_per_second': 0.396, 'epoch': 1.0}

The bar counts updates of the weights, and its rate follows the last of them. The summary counts everything from the
first step to the last, warm-up and evaluations too, so it is used only where no bar is there (a note says so).
Versions 5 of transformers write the numbers of the summary as text.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from crosszone.calibrate.log_lines import (
    Lines,
    Log,
    LogContext,
    LogStep,
    iterate_bytes,
    number_of,
    refuse_time,
    room_for,
    same_batch,
    seconds_of,
    seconds_of_rate,
)
from crosszone.errors import FileError, Notice
from crosszone.inputs.python_source import literal

FORMAT = "hf-trainer"
_BAR = re.compile(r"(?<!\d)(\d{1,12})/(\d{1,12}) \[([\d:]+)<[\d:?]+,\s*([^\s\]]+?)\s*(it/s|s/it)")
_ENTRY = re.compile(r"\{[^{}]*\}")
_RUNTIME = re.compile(r"['\"]train_runtime['\"]")
FEWEST_BARS = 3
ROUNDED = 5e-4  # The summary's rates are rounded to three digits after the point
MOST_STATE = 32 * 2**20  # Bytes of a trainer_state.json
MOST_COUNT = 10**12


def looks_like(line: str) -> bool:
    """A line of this format (or of another's progress bar)."""
    return bool(_BAR.search(line) or _summary(line))


def read(lines: Lines, told: LogContext) -> Log:
    """Steps from the progress bar of the training, else one from the summary."""
    bars: dict[int, list[tuple[int, int, float, float]]] = defaultdict(list)
    """By number of steps in all: line, step, seconds since the bar began, seconds a step."""
    summary: LogStep | None = None
    count = 0
    for number, line in lines:
        for at, total, elapsed, rate, unit in _BAR.findall(line):
            if rate != "?" and int(at):
                seconds = (
                    seconds_of(rate, number, told.file)
                    if unit == "s/it"
                    else seconds_of_rate(rate, 1.0, number, told.file)
                )
                room_for(count, told)
                count += 1
                bars[int(total)].append((number, int(at), _clock_s(elapsed), seconds))
        if found := _summary(line):
            summary = _of_summary(_entry(found), number, None, told) or summary
    longest = max(bars.values(), key=lambda one: max(row[2] for row in one), default=[])
    last: dict[int, LogStep] = {at: LogStep(line=n, step=at, seconds=s) for n, at, _, s in longest}
    if len(last) >= FEWEST_BARS or (last and summary is None):
        return Log(format=FORMAT, steps=tuple(last.values()))
    return _of_whole(summary)


def read_state(state: dict[str, Any], told: LogContext) -> Log:
    """The mean step of a trainer_state.json."""
    return _of_whole(_of_state(state, told))


def _of_whole(summary: LogStep | None) -> Log:
    """The summary of a run as its log."""
    if summary is None:
        return Log(format=FORMAT, steps=())
    note = Notice(code="log_whole_run", level="warning", params={"line": summary.line})
    return Log(format=FORMAT, steps=(summary,), notices=(note,))


def _summary(line: str) -> str:
    """The summary in a line; empty where there is none."""
    found = _ENTRY.findall(line) if "train_runtime" in line else ()
    return next((one for one in found if _RUNTIME.search(one)), "")


def state_of(path: Path) -> dict[str, Any] | None:
    """The document, where the file is a trainer_state.json."""
    try:
        document = json.loads(b"".join(iterate_bytes(path, MOST_STATE)).decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError, FileError):
        return None  # the reader of lines says what is wrong
    return document if isinstance(document, dict) and isinstance(document.get("log_history"), list) else None


def _of_state(state: dict[str, Any], told: LogContext) -> LogStep | None:
    """The summary among the entries of a trainer_state.json; its line is not known."""
    found = None
    for entry in state["log_history"]:
        if isinstance(entry, dict) and "train_runtime" in entry:
            count = entry.get("step", state.get("global_step"))
            found = (
                _of_summary(entry, 1, count if isinstance(count, int) and 0 < count < MOST_COUNT else None, told)
                or found
            )
    return found


def _entry(text: str) -> dict[str, Any]:
    """A summary as it was printed: Python's or JSON's way; {} where it is neither."""
    for read_it in (literal, json.loads):
        try:
            found = read_it(text.replace("nan", "'nan'") if read_it is literal else text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def _of_summary(entry: dict[str, Any], line: int, steps: int | None, told: LogContext) -> LogStep | None:
    """Seconds of a mean step: run time / steps, or batch / samples a second where the steps are not told. [K31]"""
    runtime, samples, rate = (
        number_of(str(entry.get(key, "")))
        for key in ("train_runtime", "train_samples_per_second", "train_steps_per_second")
    )
    if not runtime > 0:
        refuse_time(str(entry.get("train_runtime")), line, told.file)
    if samples > 0 and rate > 0:
        lost = told.global_batch * (ROUNDED / rate + ROUNDED / samples)
        same_batch(samples / rate, line, told, slack=max(0.5, 2.0 * lost))
    if steps is not None:
        return LogStep(line=line, step=steps, seconds=seconds_of(str(runtime / steps), line, told.file))
    if samples > 0:
        return LogStep(line=line, step=None, seconds=seconds_of_rate(str(samples), told.global_batch, line, told.file))
    if "train_samples_per_second" in entry or not math.isfinite(rate):
        refuse_time(str(entry.get("train_samples_per_second")), line, told.file)
    return LogStep(line=line, step=None, seconds=seconds_of_rate(str(rate), 1.0, line, told.file))


def _clock_s(text: str) -> float:
    """Seconds of 02:31 or 1:02:31."""
    found = 0.0
    for part in text.split(":"):
        found = 60.0 * found + (float(part) if part.isdigit() else 0.0)
    return found
