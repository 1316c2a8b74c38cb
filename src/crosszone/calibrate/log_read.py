"""Read a training log of any format.

    log = read_log(Path("train.log"), LogContext(file="train.log", gpus=64, global_batch=256, tokens_per_step=2**20))
    log.format, log.steps[-1].seconds, log.memory_gib

`auto` takes the format whose lines are there; where a log has lines of two (Megatron over DeepSpeed), the first of
FORMATS, whose times are a step's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from crosszone.calibrate import log_deepspeed, log_hf, log_megatron, log_torchtitan
from crosszone.calibrate.kineto_json import MAX_BYTES
from crosszone.calibrate.log_lines import (
    LONGEST_S,
    SHORTEST_S,
    Log,
    LogContext,
    LogStep,
    Progress,
    iterate_bytes,
    iterate_lines,
    refuse_time,
)
from crosszone.calibrate.user_files import build_choice_error, check_head
from crosszone.errors import FileError, Notice

TEXT: dict[str, ModuleType] = {
    "megatron": log_megatron,
    "deepspeed": log_deepspeed,
    "torchtitan": log_torchtitan,
    "hf-trainer": log_hf,
}
OWN, KINETO, AUTO = "crosszone", "kineto", "auto"
FORMATS = (*TEXT, OWN, KINETO)
_HEAD = 4096


def read_log(path: Path, told: LogContext, form: str = AUTO, *, progress: Progress | None = None) -> Log:
    """The steps of a log; an `InputError` names the line that is wrong, or says that no step was found."""
    if form not in (AUTO, *FORMATS):
        raise build_choice_error("--format", form, (AUTO, *FORMATS))
    if path.is_dir() and not _metrics_of(path):
        raise FileError(Notice(code="log_folder_empty", field="log", value=str(path), file=told.file))
    if not path.is_dir():
        check_head(_whole_head(path), path.name)
    found = form if form != AUTO else _kind(path)
    special: dict[str, Callable[[Path, LogContext, Progress | None], Log]] = {OWN: _own, KINETO: _kineto}
    if found in special:
        return special[found](path, told, progress)
    state = log_hf.state_of(path) if found in (AUTO, log_hf.FORMAT) and _head(path).startswith(b"{") else None
    if state is not None:
        found, log = log_hf.FORMAT, log_hf.read_state(state, told)
    else:
        found = found if found != AUTO else _text_kind(path, told, progress)
        log = TEXT[found].read(iterate_lines(path, progress), told)
    if not log.steps:
        read_as = {"format": found}
        raise FileError(Notice(code="log_no_steps", field="log", value=path.name, params=read_as, file=told.file))
    return log


def _kind(path: Path) -> str:
    """Formats that are told by how a file begins; a text log is left to its lines."""
    if path.is_dir():
        return OWN
    head = _head(path)
    if not head.startswith((b"{", b"[")):
        return AUTO
    first = head.split(b"\n", 1)[0]
    if b'"lanes"' in first:
        return OWN
    marks = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"ph"')
    return KINETO if any(mark in head for mark in marks) else AUTO


def _text_kind(path: Path, told: LogContext, progress: Progress | None) -> str:
    """The first of the formats whose lines are there."""
    there: set[str] = set()
    for _, line in iterate_lines(path, progress):
        there |= {name for name, reader in TEXT.items() if name not in there and reader.looks_like(line)}
        if next(iter(TEXT)) in there:
            break
    found = next((name for name in TEXT if name in there), None)
    if found is None:
        known = {"known": list(FORMATS)}
        raise FileError(Notice(code="log_unknown", field="log", value=path.name, params=known, file=told.file))
    return found


def _head(path: Path) -> bytes:
    """How a file begins, expanded where it is compressed."""
    return _whole_head(path)[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n")


def _whole_head(path: Path) -> bytes:
    return next(iterate_bytes(path, MAX_BYTES), b"")


def _metrics_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("metrics-stage-*.jsonl"))


def _own(path: Path, told: LogContext, progress: Progress | None) -> Log:
    """Our metrics: one file of a stage, or a folder with those of all stages."""
    from crosszone.schedule.measured import MAX_METRICS_BYTES, read_metrics

    files = _metrics_of(path) if path.is_dir() else [path]
    whole = [b"".join(iterate_bytes(file, MAX_METRICS_BYTES, progress)) for file in files]
    texts = [one.decode("utf-8-sig", "replace") for one in whole]
    _, rows = read_metrics(texts, [str(file) for file in files])
    steps = [LogStep(line=row.step, step=row.step, seconds=row.end_s - row.start_s) for row in rows]
    memory = max((row.memory_gib for row in rows if row.memory_gib is not None), default=None)
    kind = "allocated" if memory is not None else ""
    return _whole(Log(format=OWN, steps=tuple(steps), memory_gib=memory, memory_kind=kind), told)


def _kineto(path: Path, told: LogContext, progress: Progress | None) -> Log:
    """A profiler's trace: its iterations, and the time of the optimizer within them."""
    from crosszone.calibrate.trace_files import read_run

    found = read_run([path], KINETO, progress=progress)
    steps = []
    for one in found.steps:
        update = one.phases_s.get("optimizer", 0.0)
        parts = {"optimizer": update} if update > 0 else {}
        steps.append(LogStep(line=one.step, step=one.step, seconds=one.seconds, parts_s=parts))
    return _whole(Log(format=KINETO, steps=tuple(steps), notices=found.notices), told)


def _whole(log: Log, told: LogContext) -> Log:
    """The same; a step whose time cannot be is refused with its number."""
    for step in log.steps:
        if not SHORTEST_S <= step.seconds <= LONGEST_S:
            refuse_time(f"{step.seconds:.6g} s", step.line, told.file)
    return log
