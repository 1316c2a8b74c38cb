"""Read a training log of any format.

    log = read_log(Path("train.log"), Told(file="train.log", gpus=64, global_batch=256, tokens_per_step=1_048_576))
    log.format, log.steps[-1].seconds, log.memory_gib

`auto` takes the format whose lines are there; where a log has lines of two (Megatron over DeepSpeed), the first of
FORMATS, whose times are a step's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from crosszone.calibrate import log_deepspeed, log_hf, log_megatron, log_torchtitan
from crosszone.calibrate.log_lines import LONGEST_S, SHORTEST_S, Log, LogStep, Told, lines_of, refuse_time
from crosszone.errors import FileError, InvalidError, Notice
from crosszone.inputs.value import nearest

TEXT: dict[str, ModuleType] = {
    "megatron": log_megatron,
    "deepspeed": log_deepspeed,
    "torchtitan": log_torchtitan,
    "hf-trainer": log_hf,
}
OWN, KINETO, AUTO = "crosszone", "kineto", "auto"
FORMATS = (*TEXT, OWN, KINETO)
_HEAD = 4096


def read_log(path: Path, told: Told, form: str = AUTO) -> Log:
    """The steps of a log; an `InputError` names the line that is wrong, or says that no step was found."""
    if form not in (AUTO, *FORMATS):
        params = {"allowed": [AUTO, *FORMATS], "nearest": nearest(form, FORMATS)[:1]}
        raise InvalidError(Notice(code="not_one_of", field="--format", value=form, params=params))
    found = form if form != AUTO else _kind(path)
    special: dict[str, Callable[[Path, Told], Log]] = {OWN: _own, KINETO: _kineto}
    if found in special:
        return special[found](path, told)
    lines = list(lines_of(path))
    if found == AUTO:
        there = (name for name, reader in TEXT.items() if any(reader.looks_like(line) for _, line in lines))
        found = next(there, AUTO)
        if found == AUTO:
            known = {"known": list(FORMATS)}
            raise FileError(Notice(code="log_unknown", field="log", value=path.name, params=known, file=told.file))
    log: Log = TEXT[found].read(lines, told)
    if not log.steps:
        read_as = {"format": found}
        raise FileError(Notice(code="log_no_steps", field="log", value=path.name, params=read_as, file=told.file))
    return log


def _kind(path: Path) -> str:
    """Formats that are told by how a file begins; a text log is left to its lines."""
    if path.is_dir():
        return OWN
    if path.suffix == ".gz":
        return KINETO
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError:
        return AUTO  # the reader of lines says what is wrong
    if not head.startswith((b"{", b"[")):
        return AUTO
    first = head.split(b"\n", 1)[0]
    if b'"lanes"' in first:
        return OWN
    marks = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"ph"')
    return KINETO if any(mark in head for mark in marks) else AUTO


def _own(path: Path, told: Told) -> Log:
    """Our metrics: one file of a stage, or a folder with those of all stages."""
    from crosszone.schedule.measured_lines import read_metrics

    files = sorted(path.glob("metrics-stage-*.jsonl")) if path.is_dir() else [path]
    texts = ["\n".join(line for _, line in lines_of(file)) for file in files]
    _, rows = read_metrics(texts, [str(file) for file in files])
    steps = [LogStep(line=row.step, step=row.step, seconds=row.end_s - row.start_s) for row in rows]
    memory = max((row.memory_gib for row in rows if row.memory_gib is not None), default=None)
    kind = "allocated" if memory is not None else ""
    return _whole(Log(format=OWN, steps=tuple(steps), memory_gib=memory, memory_kind=kind), told)


def _kineto(path: Path, told: Told) -> Log:
    """A profiler's trace: its iterations, and the time of the optimizer within them."""
    from crosszone.calibrate.trace_files import read_run

    found = read_run([path], KINETO)
    steps = []
    for one in found.steps:
        update = one.phases_s.get("optimizer", 0.0)
        parts = {"optimizer": update} if update > 0 else {}
        steps.append(LogStep(line=one.step, step=one.step, seconds=one.seconds, parts_s=parts))
    return _whole(Log(format=KINETO, steps=tuple(steps), notices=found.notices), told)


def _whole(log: Log, told: Told) -> Log:
    """The same; a step whose time cannot be is refused with its number."""
    for step in log.steps:
        if not SHORTEST_S <= step.seconds <= LONGEST_S:
            refuse_time(f"{step.seconds:.6g} s", step.line, told.file)
    return log
