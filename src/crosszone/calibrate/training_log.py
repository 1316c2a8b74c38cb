"""Training logs: what a reader of one format gets and returns, and the steady step of a run.

    for number, line in iterate_lines(Path("train.log")):       # without colours, a progress bar's states as lines
        ...
    LogStep(line=12, step=40, seconds=seconds_of("1234.5", 12, "train.log", per_s=1e3))

Times are checked as they are read: what is no number, not above 0 or longer than a day is refused with its line.

The steady step is the time of a step once a run has warmed up, without those that something else delayed:

    steady = measure_steady_step(log)
    steady.step_s, steady.used, steady.of            # 2.51 s from 43 of 50 lines
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from crosszone.calibrate.user_files import build_unreadable_error, iterate_chunks
from crosszone.errors import FileError, Notice

LONGEST_LINE = 4_000  # Characters of a line that are looked at
MOST_STEPS = 1_000_000  # Steps of one log
MOST_BYTES = 512 * 1024 * 1024
# A step that is shorter or longer was read in the wrong unit, or is no step.
SHORTEST_S, LONGEST_S = 1e-5, 86_400.0
MIB_PER_GIB = 1024.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

Lines = Iterable[tuple[int, str]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class LogContext:
    """What the scenario says that a log leaves out."""

    file: str
    """Name of the log for messages."""
    gpus: int
    global_batch: int
    tokens_per_step: int


@dataclass(frozen=True, kw_only=True)
class LogStep:
    """One step of the log, or the mean of those since the line before."""

    line: int
    step: int | None
    seconds: float
    parts_s: dict[str, float] = field(default_factory=dict)
    """Of the same steps: `forward`, `backward`, `forward_backward`, `optimizer`, as far as the log has them."""


@dataclass(frozen=True, kw_only=True)
class Log:
    """What a log says of the steps of a run."""

    format: str
    steps: tuple[LogStep, ...]
    memory_gib: float | None = None
    """Peak memory of the GPU that has most."""
    memory_kind: str = ""
    """`allocated` (by tensors) or `reserved` (by the allocator)."""
    notices: tuple[Notice, ...] = ()


def build_log(form: str, steps: Sequence[LogStep], memory_gib: float, memory_kind: str) -> Log:
    """A text log of these steps; memory 0: no line states it."""
    return Log(
        format=form, steps=tuple(steps), memory_gib=memory_gib or None, memory_kind=memory_kind if memory_gib else ""
    )


def iterate_lines(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not empty, of a file that may be compressed.

    Colours are taken out, and what a carriage return writes over is a line too. The file is never held whole.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    number, pending = 1, ""
    for chunk in iterate_bytes(path, MOST_BYTES, progress):
        *lines, pending = (pending + decoder.decode(chunk)).split("\n")
        for line in lines:
            if line:
                yield from _iterate_segments(number, line.split("\r"))
            number += 1
        *overwritten, pending = pending.split("\r")
        yield from _iterate_segments(number, overwritten)
        pending = pending[:LONGEST_LINE]  # a file without line ends must not fill the memory
    yield from _iterate_segments(number, pending.split("\r"))


def _iterate_segments(number: int, segments: Iterable[str]) -> Iterator[tuple[int, str]]:
    for segment in segments:
        if text := _COLOUR.sub("", segment[:LONGEST_LINE]).rstrip():
            yield number, text


def iterate_bytes(path: Path, limit_bytes: int, progress: Progress | None = None) -> Iterator[bytes]:
    """The bytes of a file, expanded where it is compressed; `FileError` where there are more or it cannot be read."""
    name = str(path)
    with _wrap_read_errors(path):
        size = path.stat().st_size
        if size > limit_bytes:
            params = {"limit_mib": limit_bytes // 2**20}
            raise FileError(Notice(code="trace_too_large", value=name, params=params, file=name))
        report = None if progress is None else (lambda done: progress("trace", done, size))
        with path.open("rb") as file:
            yield from iterate_chunks(file, name, limit_bytes=limit_bytes, progress=report)


@contextmanager
def _wrap_read_errors(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into `FileError`."""
    try:
        yield
    except FileNotFoundError:
        raise FileError(Notice(code="file_missing", value=str(path), file=str(path))) from None
    except OSError as error:
        raise build_unreadable_error(path, error) from None


def check_step_count(count: int, context: LogContext) -> None:
    """`FileError` where a log has more steps than can be held."""
    if count >= MOST_STEPS:
        params = {"limit": MOST_STEPS}
        raise FileError(Notice(code="log_too_many", field="log", value=context.file, params=params, file=context.file))


def parse_number(text: str) -> float:
    """The number a log wrote, thousands parted by commas or not; NaN where it is none."""
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return math.nan


def parse_seconds(text: str, line: int, file: str, *, per_s: float = 1.0) -> float:
    """A time that a step can take, in seconds; `FileError` names the line of one that cannot be."""
    seconds = parse_number(text) / per_s
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise_time_error(text, line, file)
    return seconds


def parse_rate_s(text: str, amount: float, line: int, file: str) -> float:
    """Seconds for `amount` (samples, tokens) at a rate a second; `FileError` names a line whose rate cannot be."""
    rate = parse_number(text)
    if not rate > 0 or not SHORTEST_S <= amount / rate <= LONGEST_S:
        raise_time_error(text, line, file)
    return amount / rate


def raise_time_error(text: str, line: int, file: str) -> None:
    """Say that a line's time or rate cannot be that of a training step."""
    params = {"line": line, "shortest_s": SHORTEST_S, "longest_s": LONGEST_S}
    raise FileError(Notice(code="log_time", field="log", value=text, params=params, file=file, line=line))


def check_batch(batch: float, line: int, context: LogContext, *, slack: float = 0.5) -> None:
    """The batch of the log must be the scenario's; `slack` samples are left to rounding."""
    if math.isfinite(batch) and abs(batch - context.global_batch) > slack:
        params = {"line": line, "batch": context.global_batch}
        notice = Notice(code="log_batch", field="job.global_batch", value=round(batch, 1), params=params)
        raise FileError(notice.with_place(context.file, line))


# Steps at the beginning that take more than this times the median of the second half are warm-up.
WARM_UP_FACTOR = 1.1
LEAST_STEPS = 3  # With fewer lines none is left out; the first steps of a run alone say nothing of the others
DEVIATIONS = 4.0
NEAR_SHARE = 0.03  # Steps this near to the median are never outliers
STD_PER_MAD = 1.4826  # Standard deviation of a normal distribution over its median absolute deviation


@dataclass(frozen=True, kw_only=True)
class SteadyStep:
    """The steady step of a log."""

    step_s: float
    """Median."""
    spread: float
    """Standard deviation of the logarithm of a steady step, by the median absolute deviation."""
    used: int
    of: int
    warm_up: int
    """Left out at the beginning."""
    outliers: int
    parts_s: dict[str, float]
    """Median of each part over the same steps."""


def measure_steady_step(log: Log) -> SteadyStep:
    """Median of the steps after warm-up and without outliers. [K30]

    Left out: the first line (it holds compilation, allocation and the first fetch), further ones at the beginning
    above 1.1 x the median of the second half, then those farther from the median than 4 x 1.4826 x the median absolute
    deviation and 3 %. With fewer than three lines all count.
    """
    steps = list(log.steps)
    warm_up = _count_warm_up(steps)
    later = steps[warm_up:]
    middle = median(step.seconds for step in later)
    deviation = STD_PER_MAD * median(abs(step.seconds - middle) for step in later)
    within = max(DEVIATIONS * deviation, NEAR_SHARE * middle)
    used = [step for step in later if abs(step.seconds - middle) <= within] if len(later) >= LEAST_STEPS else later
    names = {name for step in used for name in step.parts_s}
    return SteadyStep(
        step_s=median(step.seconds for step in used),
        spread=deviation / middle,
        used=len(used),
        of=len(steps),
        warm_up=warm_up,
        outliers=len(later) - len(used),
        parts_s={name: median(step.parts_s[name] for step in used if name in step.parts_s) for name in sorted(names)},
    )


def is_only_warm_up(log: Log) -> bool:
    """The log holds nothing but the first steps of a run, fewer than are needed to see how long a later one takes."""
    numbers = [step.step for step in log.steps]
    return len(numbers) < LEAST_STEPS and all(number is not None and number < LEAST_STEPS for number in numbers)


def _count_warm_up(steps: Sequence[LogStep]) -> int:
    """How many steps at the beginning are left out."""
    if len(steps) < LEAST_STEPS:
        return 0
    later = median(step.seconds for step in steps[len(steps) // 2 :])
    count = 1
    while count < len(steps) // 2 and steps[count].seconds > WARM_UP_FACTOR * later:
        count += 1
    return count
