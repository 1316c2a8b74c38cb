"""Stability: how steady the iterations of a run are, and which of them is the best.

    measure_stability({1: 3.4, 2: 3.1, 3: 3.3}).mean_to_min_pct     # 5.4
    resolve_iteration("best", {1: 3.4, 2: 3.1, 3: 3.3})                # 2

The table of iteration stability: how steady the iterations of each job are, from a CSV of their times.

    rows = read_stability_table(Path("iterations.csv"))
    rows[0].id, rows[0].stability.mean_to_min_pct

Columns: run_id, iteration, iter_time_s and, where there is one, kind: only `steady` iterations count (not the first,
not one in which a profiler wrote its file). A row that cannot be read is refused by its line.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from crosszone.calibrate.user_files import open_table
from crosszone.errors import InputError, InvalidError, Notice, build_choice_error
from crosszone.inputs.document import read_text
from crosszone.inputs.value import NotNegative, Positive, Value

NAMED_ITERATIONS = ("first", "last", "best")  # Accepted in place of an iteration's number


class Stability(Value):
    """Times of all iterations in five numbers."""

    count: Annotated[int, Field(ge=1)]
    """Iterations."""
    min_s: Positive
    """The fastest."""
    max_s: Positive
    """The slowest."""
    mean_s: Positive
    """Their mean."""
    std_s: NotNegative
    """Their standard deviation, as of a sample; of a single iteration 0."""
    mean_to_min_pct: NotNegative
    """By how many % the mean lies above the fastest: what a run loses to unsteadiness."""
    best_step: Annotated[int, Field(ge=0)]
    """Number of the fastest; of equal ones the first."""


def measure_stability(seconds: Mapping[int, float]) -> Stability:
    """Statistics of iterations given by their number; there must be one. [K40]

    The deviation divides by n - 1; mean to min = 100 (mean - min) / min.
    """
    values = list(seconds.values())
    best = min(seconds, key=lambda step: seconds[step])
    low, mean = seconds[best], math.fsum(values) / len(values)
    mean = min(max(mean, low), max(values))  # A mean of equal numbers may round to just outside them.
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)) if len(values) > 1 else 0.0
    return Stability(
        count=len(values),
        min_s=low,
        max_s=max(values),
        mean_s=mean,
        std_s=spread,
        mean_to_min_pct=100 * (mean - low) / low,
        best_step=best,
    )


def find_median_iteration(seconds: Mapping[int, float]) -> int:
    """The number of the iteration of median length; of an even count the shorter of the two."""
    return sorted(seconds, key=lambda step: seconds[step])[(len(seconds) - 1) // 2]


def resolve_iteration(which: str | int, seconds: Mapping[int, float]) -> int:
    """The number of the iteration that is called `first`, `last`, `best` or by its number; else `InvalidError`."""
    steps: Sequence[int] = list(seconds)
    iterations_by_name = {"first": steps[0], "last": steps[-1], "best": measure_stability(seconds).best_step}
    if isinstance(which, str) and which in iterations_by_name:
        return iterations_by_name[which]
    text = str(which).strip()
    if not (text.isascii() and text.isdigit()):
        raise build_choice_error("iteration", which, [*NAMED_ITERATIONS, "N"])
    if len(text) > 12 or int(text) not in seconds:
        bounds = {"first": steps[0], "last": steps[-1], "steps": len(steps)}
        raise InvalidError(Notice(code="trace_step_unknown", field="iteration", value=text, params=bounds))
    return int(text)


NEEDED = ("run_id", "iteration", "iter_time_s")
STEADY = ("", "steady")  # Kinds of iterations that count
MOST_ROWS = 1_000_000
LONGEST_S = 1e7  # No iteration takes longer
LONGEST_ID = 100


@dataclass(frozen=True, kw_only=True)
class JobStability:
    """One job's iterations."""

    id: str
    stability: Stability
    left_out: int
    """Iterations that do not count: the first, and those in which a profiler wrote its file."""
    seconds: tuple[float, ...]
    """The steady ones, in their order."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "id": self.id,
            **self.stability.model_dump(),
            "left_out": self.left_out,
            "seconds": list(self.seconds),
        }


def read_stability_table(path: Path) -> list[JobStability]:
    """Min, max, mean, standard deviation and mean-to-min of the steady iterations of every job that has any."""
    steady: dict[str, dict[int, float]] = {}
    left_out: dict[str, int] = {}
    with open_table(io.StringIO(read_text(path)), str(path), NEEDED) as reader:
        for cells in reader:
            if reader.line_num > MOST_ROWS:
                raise build_row_error(path, reader.line_num, "rows", MOST_ROWS)
            job, step, seconds, counts = parse_iteration_row(path, reader.line_num, cells)
            if counts:
                if step in steady.setdefault(job, {}):
                    raise build_row_error(path, reader.line_num, "iteration", step)
                steady[job][step] = seconds
            else:
                left_out[job] = left_out.get(job, 0) + 1
    return [
        JobStability(
            id=job, stability=measure_stability(times), left_out=left_out.get(job, 0), seconds=tuple(times.values())
        )
        for job, times in steady.items()
    ]


def parse_iteration_row(path: Path, line: int, cells: dict[str, Any]) -> tuple[str, int, float, bool]:
    """Job, number of the iteration, seconds, and whether it counts."""
    job, step, seconds, kind = (str(cells.get(key) or "").strip() for key in (*NEEDED, "kind"))
    if None in cells or not job or len(job) > LONGEST_ID:
        raise build_row_error(path, line, "run_id", job)
    if not (step.isascii() and step.isdigit()) or len(step) > 12:
        raise build_row_error(path, line, "iteration", step)
    try:
        value = float(seconds)
    except ValueError:
        value = math.nan
    if not 0 < value <= LONGEST_S:
        raise build_row_error(path, line, "iter_time_s", seconds)
    return job, int(step), value, kind in STEADY


def build_row_error(path: Path, line: int, column: str, value: object) -> InputError:
    notice = Notice(code="iterations_row", field=column, value=value, params={"line": line}, file=str(path), line=line)
    return InputError(notice)
