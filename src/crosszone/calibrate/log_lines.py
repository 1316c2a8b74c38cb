"""Lines of a training log: what a reader of one format is given, and what it finds.

    for number, line in lines_of(Path("train.log")):       # without colours, a progress bar's states as lines
        ...
    LogStep(line=12, step=40, seconds=seconds_of("1234.5", 12, "train.log", per_s=1e3))

Times are checked as they are read: what is no number, not above 0 or longer than a day is refused with its line.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from crosszone.calibrate.kineto_json import chunks_of
from crosszone.errors import FileError, Notice

LONGEST_LINE = 4_000
"""Characters of a line that are looked at."""
MOST_STEPS = 1_000_000
"""Steps of one log."""
MOST_BYTES = 512 * 1024 * 1024
SHORTEST_S, LONGEST_S = 1e-5, 86_400.0
"""A step that is shorter or longer was read in the wrong unit, or is no step."""
MIB_PER_GIB = 1024.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

Lines = Iterable[tuple[int, str]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Told:
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


def lines_of(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not empty, of a file that may be compressed.

    Colours are taken out, and what a carriage return writes over is a line too. The file is never held whole.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    number, rest = 1, ""
    for chunk in bytes_of(path, MOST_BYTES, progress):
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        for line in lines:
            if line:
                yield from _parts(number, line.split("\r"))
            number += 1
        *over, rest = rest.split("\r")
        yield from _parts(number, over)
        rest = rest[:LONGEST_LINE]
    yield from _parts(number, rest.split("\r"))


def _parts(number: int, parts: Iterable[str]) -> Iterator[tuple[int, str]]:
    for part in parts:
        if shown := _COLOUR.sub("", part[:LONGEST_LINE]).rstrip():
            yield number, shown


def bytes_of(path: Path, most: int, progress: Progress | None = None) -> Iterator[bytes]:
    """The bytes of a file, expanded where it is compressed; `FileError` where there are more or it cannot be read."""
    name = str(path)
    with _readable(name):
        size = path.stat().st_size
        if size > most:
            params = {"limit_mib": most // 2**20}
            raise FileError(Notice(code="trace_too_large", value=name, params=params, file=name))
        told = None if progress is None else (lambda done: progress("trace", done, size))
        with path.open("rb") as file:
            yield from chunks_of(file, name, most=most, progress=told)


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Around the reading of a file: what the system says against it is told in its words."""
    try:
        yield
    except FileNotFoundError:
        raise FileError(Notice(code="file_missing", value=name, file=name)) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(Notice(code="file_unreadable", value=name, params={"reason": reason}, file=name)) from None


def room_for(count: int, told: Told) -> None:
    """`FileError` where a log has more steps than can be held."""
    if count >= MOST_STEPS:
        params = {"limit": MOST_STEPS}
        raise FileError(Notice(code="log_too_many", field="log", value=told.file, params=params, file=told.file))


def number_of(text: str) -> float:
    """The number a log wrote, thousands parted by commas or not; NaN where it is none."""
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return math.nan


def seconds_of(text: str, line: int, file: str, *, per_s: float = 1.0) -> float:
    """A time that a step can take, in seconds; `FileError` names the line of one that cannot be."""
    seconds = number_of(text) / per_s
    if not SHORTEST_S <= seconds <= LONGEST_S:
        refuse_time(text, line, file)
    return seconds


def seconds_of_rate(text: str, amount: float, line: int, file: str) -> float:
    """Seconds for `amount` (samples, tokens) at a rate a second; `FileError` names a line whose rate cannot be."""
    rate = number_of(text)
    if not rate > 0 or not SHORTEST_S <= amount / rate <= LONGEST_S:
        refuse_time(text, line, file)
    return amount / rate


def refuse_time(text: str, line: int, file: str) -> None:
    """Say that a line's time or rate cannot be that of a training step."""
    params = {"line": line, "shortest_s": SHORTEST_S, "longest_s": LONGEST_S}
    raise FileError(Notice(code="log_time", field="log", value=text, params=params, file=file, line=line))


def same_batch(given: float, line: int, told: Told, *, slack: float = 0.5) -> None:
    """The batch of the log must be the scenario's; `slack` samples are left to rounding."""
    if math.isfinite(given) and abs(given - told.global_batch) > slack:
        params = {"line": line, "batch": told.global_batch}
        notice = Notice(code="log_batch", field="job.global_batch", value=round(given, 1), params=params)
        raise FileError(notice.at(told.file, line))
