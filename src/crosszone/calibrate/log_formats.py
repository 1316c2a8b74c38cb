"""Read a training log: of Megatron, DeepSpeed, torchtitan, Hugging Face Trainer, our own trainer or a profiler.

    log = read_log(Path("train.log"), LogContext(file="train.log", gpus=64, global_batch=256, tokens_per_step=2**20))
    log.format, log.steps[-1].seconds, log.memory_gib

`auto` takes the format whose lines are there; where a log has lines of two (Megatron over DeepSpeed), the first of
FORMATS, whose times are a step's own. The docstring of each reader shows the lines as the framework writes them.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from crosszone.calibrate.trace_files import read_run
from crosszone.calibrate.training_log import (
    LONGEST_S,
    MIB_PER_GIB,
    SHORTEST_S,
    Lines,
    Log,
    LogContext,
    LogStep,
    Progress,
    build_log,
    check_batch,
    check_step_count,
    iterate_bytes,
    iterate_lines,
    parse_number,
    parse_rate_s,
    parse_seconds,
    raise_time_error,
)
from crosszone.calibrate.user_files import MAX_BYTES, check_head
from crosszone.errors import FileError, Notice, build_choice_error
from crosszone.inputs.python_source import parse_literal
from crosszone.schedule.measured import MAX_METRICS_BYTES, read_metrics

# Numbers have at most 12 digits in all patterns: int() or backtracking over a line of 20,000 digits would take seconds.
MEGATRON = "megatron"
_ITERATION = re.compile(r"\biteration[=\s]\s*(\d{1,12})\s*/")
_ELAPSED = re.compile(
    r"elapsed time per iteration \((ms|s)\):\s*([^\s|/]+)|elapsed_time_per_iteration_(ms|s)=\s*([^\s|/]+)"
)
_BATCH = re.compile(r"global[ _]batch[ _]size[:=]\s*(\d{1,12})")
_SKIPPED = re.compile(r"number[ _]of[ _]skipped[ _]iterations[:=]\s*(\d{1,12})")
_TIMERS_HEADING = re.compile(r"(?:\(min, max\)|max) time across ranks \(ms\):")
_MEGATRON_TIMER = re.compile(r"^\s+([A-Za-z][\w/-]*) \.+: (?:\([^,()]+,([^,()]+)\)|(\S+))$")
_MEGATRON_MEMORY = re.compile(r"\bmax allocated:\s*([\d.]+)")
MEGATRON_PARTS = {"forward-backward": "forward_backward", "optimizer": "optimizer"}


def is_megatron_line(line: str) -> bool:
    """Whether Megatron writes such lines."""
    return "elapsed" in line and bool(_ELAPSED.search(line) and _ITERATION.search(line))


def read_megatron(lines: Lines, context: LogContext) -> Log:
    """Megatron: the iterations of the scenario's batch; those that skipped their update are left out.

     [2026-01-05 10:00:00] iteration       20/     100 | consumed samples: ... |
     elapsed time per iteration (ms): 2512.3 | throughput per GPU (TFLOP/s/GPU): 401.2 | ... | global batch size:   256
    (min, max) time across ranks (ms):
        forward-backward ...............................: (2401.10, 2410.20)
        optimizer ......................................: (80.10, 81.20)
    [Rank 0] (after 2 iterations) memory (MB) | allocated: 20480.0 | max allocated: 61440.0 | ...

    Written by `training_log` and `report_memory` of megatron/training and by core/timers.py. A line is the mean over
    the iterations since the line before, and so are the timers (their normalizer is the log interval). An MB is 2^20
    bytes. Forks write seconds, `key=value`, or the mean of recent iterations after a slash.
    """
    steps: list[LogStep] = []
    line_by_other_batch: dict[int, int] = {}  # batches that are not the scenario's, as during a ramp-up
    memory, in_timers, is_counted = 0.0, False, False
    for number, line in lines:
        elapsed = _ELAPSED.search(line) if "elapsed" in line else None
        iteration = _ITERATION.search(line) if elapsed else None
        if elapsed and iteration:
            unit, time = elapsed[1] or elapsed[3], elapsed[2] or elapsed[4]
            seconds = parse_seconds(time, number, context.file, per_s=1e3 if unit == "ms" else 1.0)
            batch, skipped = _BATCH.search(line), _SKIPPED.search(line)
            is_other_batch = batch is not None and int(batch[1]) != context.global_batch
            if batch is not None and is_other_batch:
                line_by_other_batch.setdefault(int(batch[1]), number)
            is_counted = not is_other_batch and not (skipped and int(skipped[1]))
            if is_counted:
                check_step_count(len(steps), context)
                steps.append(LogStep(line=number, step=int(iteration[1]), seconds=seconds))
            in_timers = False
        elif _TIMERS_HEADING.search(line):
            in_timers = True
        elif in_timers:
            timer = _MEGATRON_TIMER.match(line)
            in_timers = timer is not None
            if timer and is_counted and timer[1] in MEGATRON_PARTS:
                part_s = parse_number(timer[2] or timer[3]) / 1e3
                # timers start and stop beside the iteration's own clock: 5 % above it is no mistake
                if not 0 <= part_s <= 1.05 * steps[-1].seconds:
                    raise_time_error(timer[2] or timer[3], number, context.file)
                steps[-1] = replace(steps[-1], parts_s={**steps[-1].parts_s, MEGATRON_PARTS[timer[1]]: part_s})
        else:
            match = _MEGATRON_MEMORY.search(line.partition("memory (MB) |")[2])
            memory = max(memory, parse_number(match[1]) / MIB_PER_GIB) if match else memory
    if line_by_other_batch and not steps:
        (other_batch, first_line), *_ = line_by_other_batch.items()
        params = {"line": first_line, "batch": context.global_batch}
        notice = Notice(code="log_batch", field="job.global_batch", value=other_batch, params=params)
        raise FileError(notice.with_place(context.file, first_line))
    return build_log(MEGATRON, steps, memory, "allocated")


DEEPSPEED = "deepspeed"
_THROUGHPUT = re.compile(
    r"(?:global_step=|\b\d{1,12}/)(\d{1,12}), "
    r"(?:RunningAvgSamplesPerSec=[^,]+, CurrSamplesPerSec|SamplesPerSec)=([^,\s]+)"
)
_DEEPSPEED_MEMORY = re.compile(r"MaxMemAllocated=([\d.]+)GB")
_PIPELINE_STEP = re.compile(r"\bsteps?: *(\d{1,12})\b")
_PIPELINE = re.compile(r"iter time \(s\): (\S+) samples/sec: (\S+)")
_BREAKDOWN = "time (ms) |"
_FORWARD = re.compile(r"\b(?:fwd|forward): ")
_BREAKDOWN_TIMER = re.compile(r"\b(\w+): ([^\s|]+)")
DEEPSPEED_PARTS = {
    "fwd": "forward",
    "forward": "forward",
    "bwd": "backward",
    "backward": "backward",
    "step": "optimizer",
}
# Share of the batch that iteration time and samples a second, both with three digits after the point, leave open.
PIPELINE_SLACK = 0.02


def is_deepspeed_line(line: str) -> bool:
    """Whether DeepSpeed writes such lines."""
    return bool(_match_throughput(line) or _match_pipeline(line) or _find_breakdown(line))


def read_deepspeed(lines: Lines, context: LogContext) -> Log:
    """DeepSpeed: steps from the pipeline engine where it wrote them, else the throughput timer, else the breakdown.

    [2026-01-05 10:00:00,000] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10,
    RunningAvgSamplesPerSec=25.0, CurrSamplesPerSec=25.7, MemAllocated=4.32GB, MaxMemAllocated=38.49GB
    steps: 10 loss: 2.3456 iter time (s): 1.234 samples/sec: 207.455
    [Rank 0] time (ms) | fwd: 385.93 | bwd: 1126.80 | bwd_inner: 1050.84 | bwd_allreduce: 75.94 | step: 82.92

    Written by utils/timer.py, runtime/pipe/engine.py and the `wall_clock_breakdown` of runtime/engine.py. The
    throughput timer counts the samples of the whole job and starts after the first steps; `fwd`, `bwd` and `step` are
    sums over the micro-batches of one update (a line with `_microstep` is of one micro-batch). A GB is 2^30 bytes.
    """
    pipeline_steps: list[LogStep] = []
    throughput_steps: list[LogStep] = []
    breakdown_steps: list[LogStep] = []
    memory = 0.0
    for number, line in lines:
        check_step_count(max(len(pipeline_steps), len(throughput_steps), len(breakdown_steps)), context)
        if pipeline_line := _match_pipeline(line):
            step, time, samples = pipeline_line
            seconds = parse_seconds(time, number, context.file)
            slack = _estimate_rounding_samples(time, samples, context)
            check_batch(parse_number(samples) * seconds, number, context, slack=slack)
            pipeline_steps.append(LogStep(line=number, step=step, seconds=seconds))
        elif throughput := _match_throughput(line):
            seconds = parse_rate_s(throughput[2], context.global_batch, number, context.file)
            throughput_steps.append(LogStep(line=number, step=int(throughput[1]), seconds=seconds))
        elif timers := _find_breakdown(line):
            breakdown_steps.append(_parse_breakdown(timers, number, context))
        if memory_match := _DEEPSPEED_MEMORY.search(line):
            memory = max(memory, parse_number(memory_match[1]))
    steps = pipeline_steps or throughput_steps or breakdown_steps
    if breakdown_steps and steps is not breakdown_steps:
        steps = _merge_breakdowns(steps, breakdown_steps)
    return build_log(DEEPSPEED, steps, memory, "allocated")


def _match_pipeline(line: str) -> tuple[int, str, str] | None:
    """Step, seconds and samples a second of a line of the pipeline engine; between them stands the loss."""
    match = _PIPELINE.search(line)
    prefix = line[: match.start()].rpartition(" loss: ")[0] if match else ""
    step = _PIPELINE_STEP.search(prefix)
    return (int(step[1]), match[1], match[2]) if match and step else None


def _match_throughput(line: str) -> re.Match[str] | None:
    """Step and samples a second of a line of the throughput timer."""
    return _THROUGHPUT.search(line) if "SamplesPerSec=" in line else None


def _find_breakdown(line: str) -> str:
    """The timers of a line of the breakdown; empty where it is none."""
    timers = line.partition(_BREAKDOWN)[2]
    return timers if _FORWARD.search(timers) else ""


def _estimate_rounding_samples(seconds: str, rate: str, context: LogContext) -> float:
    """Samples that three digits after the point leave open."""
    rounding_share = 5e-4 / max(parse_number(seconds), 5e-4) + 5e-4 / max(parse_number(rate), 5e-4)
    return max(0.5, context.global_batch * max(PIPELINE_SLACK, rounding_share))


def _parse_breakdown(text: str, number: int, context: LogContext) -> LogStep:
    """The breakdown of one update."""
    parts: dict[str, float] = {}
    for name, value in _BREAKDOWN_TIMER.findall(text):
        if name in DEEPSPEED_PARTS:
            seconds = parse_number(value) / 1e3
            if not 0 <= seconds <= LONGEST_S:
                raise_time_error(value, number, context.file)
            parts[DEEPSPEED_PARTS[name]] = seconds
    return LogStep(
        line=number, step=None, seconds=parse_seconds(str(sum(parts.values())), number, context.file), parts_s=parts
    )


def _merge_breakdowns(steps: list[LogStep], breakdowns: list[LogStep]) -> list[LogStep]:
    """Each step with the breakdown written last before or just after it."""
    merged = []
    lines = [breakdown.line for breakdown in breakdowns]
    for step in steps:
        index = bisect_left(lines, step.line)
        nearest = min(breakdowns[max(0, index - 1) : index + 1], key=lambda breakdown: abs(breakdown.line - step.line))
        merged.append(LogStep(line=step.line, step=step.step, seconds=step.seconds, parts_s=nearest.parts_s))
    return merged


TORCHTITAN = "torchtitan"
_TORCHTITAN_STEP = re.compile(r"(?<!validate )\bstep:\s*(\d[\d,]{0,14})\s")
_TOKENS = re.compile(r"\b(?:tps|wps):\s*(\S+)")
_TORCHTITAN_MEMORY = re.compile(r"\bmemory:\s*([\d.]+)GiB")


def is_torchtitan_line(line: str) -> bool:
    """Whether torchtitan writes such lines."""
    return _match_step(line) is not None


def read_torchtitan(lines: Lines, context: LogContext) -> Log:
    """torchtitan: seconds of a step from the tokens a second of one GPU. [K31]

    [titan] 2026-01-05 10:00:00,000 - root - INFO - step: 10  loss:  7.7069  grad_norm:  1.2
    memory: 58.35GiB(61.42%)  tps: 6,014  tflops: 348.10  mfu: 35.20%

    Written by components/metrics.py: `tps` (earlier `wps`) are tokens a second of one GPU since the line before, the
    memory is the peak the allocator has reserved. Lines of a validation begin with `validate step:`.
    """
    steps: list[LogStep] = []
    memory = 0.0
    for number, line in lines:
        match = _match_step(line)
        if match is None:
            continue
        seconds = parse_step_s(match[1], context, number)
        check_step_count(len(steps), context)
        steps.append(LogStep(line=number, step=match[0], seconds=seconds))
        if memory_match := _TORCHTITAN_MEMORY.search(line):
            memory = max(memory, parse_number(memory_match[1]))
    return build_log(TORCHTITAN, steps, memory, "reserved")


def _match_step(line: str) -> tuple[int, str] | None:
    """The step of a line and its tokens a second, one behind the other."""
    step = _TORCHTITAN_STEP.search(line) if "tps:" in line or "wps:" in line else None
    tokens = _TOKENS.search(line, step.end()) if step else None
    return (int(step[1].replace(",", "")), tokens[1]) if step and tokens else None


def parse_step_s(per_gpu: str, context: LogContext, line: int) -> float:
    """Seconds of a step: tokens of a step / (tokens a second of one GPU x GPUs). [K31]"""
    return parse_rate_s(per_gpu, context.tokens_per_step / context.gpus, line, context.file)


HF_TRAINER = "hf-trainer"
_BAR = re.compile(r"(?<!\d)(\d{1,12})/(\d{1,12}) \[([\d:]+)<[\d:?]+,\s*([^\s\]]+?)\s*(it/s|s/it)")
_ENTRY = re.compile(r"\{[^{}]*\}")
_RUNTIME = re.compile(r"['\"]train_runtime['\"]")
LEAST_BARS = 3
RATE_ROUNDING = 5e-4  # The summary's rates are rounded to three digits after the point
MOST_STATE_BYTES = 32 * 2**20  # Bytes of a trainer_state.json
MOST_COUNT = 10**12


def is_hf_line(line: str) -> bool:
    """Whether Trainer writes such lines; the bar may also be another program's."""
    return bool(_BAR.search(line) or _find_summary(line))


def read_hf(lines: Lines, context: LogContext) -> Log:
    """Hugging Face Trainer: steps from the progress bar of the training, else one from the summary.

     12%|###        | 60/500 [02:31<18:30,  2.52s/it]
    {'train_runtime': 1262.1, 'train_samples_per_second': 25.35, 'train_steps_per_second': 0.396, 'epoch': 1.0}

    The bar counts updates of the weights, and its rate follows the last of them. The summary counts everything from
    the first step to the last, warm-up and evaluations too, so it is used only where there is no bar (a note says
    so). Versions 5 of transformers write the numbers of the summary as text.
    """
    bars: dict[int, list[tuple[int, int, float, float]]] = defaultdict(list)
    """By number of steps in all: line, step, seconds since the bar began, seconds a step."""
    summary: LogStep | None = None
    count = 0
    for number, line in lines:
        for step, total, elapsed, rate, unit in _BAR.findall(line):
            if rate != "?" and int(step):
                seconds = (
                    parse_seconds(rate, number, context.file)
                    if unit == "s/it"
                    else parse_rate_s(rate, 1.0, number, context.file)
                )
                check_step_count(count, context)
                count += 1
                bars[int(total)].append((number, int(step), _parse_clock_s(elapsed), seconds))
        if text := _find_summary(line):
            summary = _parse_summary(_parse_entry(text), number, None, context) or summary
    # evaluations and downloads draw bars too; the training's is the one that runs longest
    longest = max(bars.values(), key=lambda bars_of_total: max(row[2] for row in bars_of_total), default=[])
    last_by_step: dict[int, LogStep] = {step: LogStep(line=n, step=step, seconds=s) for n, step, _, s in longest}
    if len(last_by_step) >= LEAST_BARS or (last_by_step and summary is None):
        return Log(format=HF_TRAINER, steps=tuple(last_by_step.values()))
    return _build_summary_log(summary)


def read_hf_state(state: dict[str, Any], context: LogContext) -> Log:
    """The mean step of a trainer_state.json."""
    return _build_summary_log(_find_state_summary(state, context))


def _build_summary_log(summary: LogStep | None) -> Log:
    """The summary of a run as its log."""
    if summary is None:
        return Log(format=HF_TRAINER, steps=())
    note = Notice(code="log_whole_run", level="warning", params={"line": summary.line})
    return Log(format=HF_TRAINER, steps=(summary,), notices=(note,))


def _find_summary(line: str) -> str:
    """The summary in a line; empty where there is none."""
    entries = _ENTRY.findall(line) if "train_runtime" in line else ()
    return next((entry for entry in entries if _RUNTIME.search(entry)), "")


def load_hf_state(path: Path) -> dict[str, Any] | None:
    """The document, where the file is a trainer_state.json."""
    try:
        document = json.loads(b"".join(iterate_bytes(path, MOST_STATE_BYTES)).decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError, FileError):
        return None  # the reader of lines says what is wrong
    return document if isinstance(document, dict) and isinstance(document.get("log_history"), list) else None


def _find_state_summary(state: dict[str, Any], context: LogContext) -> LogStep | None:
    """The summary among the entries of a trainer_state.json; its line is not known."""
    summary = None
    for entry in state["log_history"]:
        if isinstance(entry, dict) and "train_runtime" in entry:
            count = entry.get("step", state.get("global_step"))
            is_count = isinstance(count, int) and 0 < count < MOST_COUNT
            summary = _parse_summary(entry, 1, count if is_count else None, context) or summary
    return summary


def _parse_entry(text: str) -> dict[str, Any]:
    """A summary as it was printed: Python's or JSON's way; {} where it is neither."""
    for reader in (parse_literal, json.loads):
        try:
            entry = reader(text.replace("nan", "'nan'") if reader is parse_literal else text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(entry, dict):
            return entry
    return {}


def _parse_summary(entry: dict[str, Any], line: int, steps: int | None, context: LogContext) -> LogStep | None:
    """Seconds of a mean step: run time / steps, or batch / samples a second where no number of steps is given. [K31]"""
    runtime, samples, rate = (
        parse_number(str(entry.get(key, "")))
        for key in ("train_runtime", "train_samples_per_second", "train_steps_per_second")
    )
    if not runtime > 0:
        raise_time_error(str(entry.get("train_runtime")), line, context.file)
    if samples > 0 and rate > 0:
        rounding_samples = context.global_batch * (RATE_ROUNDING / rate + RATE_ROUNDING / samples)
        check_batch(samples / rate, line, context, slack=max(0.5, 2.0 * rounding_samples))
    if steps is not None:  # preferred: the rates have three digits after the point only
        return LogStep(line=line, step=steps, seconds=parse_seconds(str(runtime / steps), line, context.file))
    if samples > 0:
        return LogStep(
            line=line, step=None, seconds=parse_rate_s(str(samples), context.global_batch, line, context.file)
        )
    if "train_samples_per_second" in entry or not math.isfinite(rate):
        raise_time_error(str(entry.get("train_samples_per_second")), line, context.file)
    return LogStep(line=line, step=None, seconds=parse_rate_s(str(rate), 1.0, line, context.file))


def _parse_clock_s(text: str) -> float:
    """Seconds of 02:31 or 1:02:31."""
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60.0 * seconds + (float(part) if part.isdigit() else 0.0)
    return seconds


class TextFormat(NamedTuple):
    """A log of lines of text: how a line of it is recognised, and what reads all lines."""

    has_line: Callable[[str], bool]
    read: Callable[[Lines, LogContext], Log]


# In this order: a log of Megatron over DeepSpeed has lines of both, and Megatron's times are a step's own.
TEXT_FORMATS = {
    MEGATRON: TextFormat(is_megatron_line, read_megatron),
    DEEPSPEED: TextFormat(is_deepspeed_line, read_deepspeed),
    TORCHTITAN: TextFormat(is_torchtitan_line, read_torchtitan),
    HF_TRAINER: TextFormat(is_hf_line, read_hf),
}
CROSSZONE, KINETO, AUTO = "crosszone", "kineto", "auto"
FORMATS = (*TEXT_FORMATS, CROSSZONE, KINETO)
_HEAD_BYTES = 4096


def read_log(path: Path, context: LogContext, form: str = AUTO, *, progress: Progress | None = None) -> Log:
    """The steps of a log; an `InputError` names the line that is wrong, or says that no step was found."""
    if form not in (AUTO, *FORMATS):
        raise build_choice_error("--format", form, (AUTO, *FORMATS))
    if path.is_dir() and not _list_metrics_files(path):
        raise FileError(Notice(code="log_folder_empty", field="log", value=str(path), file=context.file))
    if not path.is_dir():
        check_head(_read_head(path), path.name)
    kind = form if form != AUTO else _detect_by_head(path)
    readers: dict[str, Callable[[Path, LogContext, Progress | None], Log]] = {
        CROSSZONE: _read_own_metrics,
        KINETO: _read_profile,
    }
    if kind in readers:
        return readers[kind](path, context, progress)
    state = load_hf_state(path) if kind in (AUTO, HF_TRAINER) and _read_stripped_head(path).startswith(b"{") else None
    if state is not None:
        kind, log = HF_TRAINER, read_hf_state(state, context)
    else:
        kind = kind if kind != AUTO else _detect_by_lines(path, context, progress)
        log = TEXT_FORMATS[kind].read(iterate_lines(path, progress), context)
    if not log.steps:
        params = {"format": kind}
        raise FileError(Notice(code="log_no_steps", field="log", value=path.name, params=params, file=context.file))
    return log


def _detect_by_head(path: Path) -> str:
    """The format, where the beginning of a file shows it; a text log is recognised by its lines."""
    if path.is_dir():
        return CROSSZONE
    head = _read_stripped_head(path)
    if not head.startswith((b"{", b"[")):
        return AUTO
    first = head.split(b"\n", 1)[0]
    if b'"lanes"' in first:
        return CROSSZONE
    marks = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"ph"')
    return KINETO if any(mark in head for mark in marks) else AUTO


def _detect_by_lines(path: Path, context: LogContext, progress: Progress | None) -> str:
    """The first of the formats whose lines are there."""
    present: set[str] = set()
    for _, line in iterate_lines(path, progress):
        present |= {
            name for name, text_format in TEXT_FORMATS.items() if name not in present and text_format.has_line(line)
        }
        if next(iter(TEXT_FORMATS)) in present:
            break
    kind = next((name for name in TEXT_FORMATS if name in present), None)
    if kind is None:
        params = {"known": list(FORMATS)}
        raise FileError(Notice(code="log_unknown", field="log", value=path.name, params=params, file=context.file))
    return kind


def _read_stripped_head(path: Path) -> bytes:
    """How a file begins, expanded where it is compressed."""
    return _read_head(path)[:_HEAD_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")


def _read_head(path: Path) -> bytes:
    return next(iterate_bytes(path, MAX_BYTES), b"")


def _list_metrics_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("metrics-stage-*.jsonl"))


def _read_own_metrics(path: Path, context: LogContext, progress: Progress | None) -> Log:
    """Our metrics: one file of a stage, or a folder with those of all stages."""
    files = _list_metrics_files(path) if path.is_dir() else [path]
    contents = [b"".join(iterate_bytes(file, MAX_METRICS_BYTES, progress)) for file in files]
    texts = [content.decode("utf-8-sig", "replace") for content in contents]
    _, rows = read_metrics(texts, [str(file) for file in files])
    steps = [LogStep(line=row.step, step=row.step, seconds=row.end_s - row.start_s) for row in rows]
    memory = max((row.memory_gib for row in rows if row.memory_gib is not None), default=None)
    memory_kind = "allocated" if memory is not None else ""
    return _check_times(Log(format=CROSSZONE, steps=tuple(steps), memory_gib=memory, memory_kind=memory_kind), context)


def _read_profile(path: Path, context: LogContext, progress: Progress | None) -> Log:
    """A profiler's trace: its iterations, and the time of the optimizer within them."""
    run = read_run([path], KINETO, progress=progress)
    steps = []
    for step in run.steps:
        optimizer_s = step.phases_s.get("optimizer", 0.0)
        parts = {"optimizer": optimizer_s} if optimizer_s > 0 else {}
        steps.append(LogStep(line=step.step, step=step.step, seconds=step.seconds, parts_s=parts))
    return _check_times(Log(format=KINETO, steps=tuple(steps), notices=run.notices), context)


def _check_times(log: Log, context: LogContext) -> Log:
    """The same; a step whose time cannot be is refused with its number."""
    for step in log.steps:
        if not SHORTEST_S <= step.seconds <= LONGEST_S:
            raise_time_error(f"{step.seconds:.6g} s", step.line, context.file)
    return log
