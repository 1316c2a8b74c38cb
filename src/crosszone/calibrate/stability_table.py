"""The table of iteration stability: how steady the iterations of each job are, from a CSV of their times.

    rows = stability_table(Path("iterations.csv"))
    rows[0].id, rows[0].steadiness.mean_to_min_pct

Columns: run_id, iteration, iter_time_s and, where there is one, kind: only `steady` iterations count (not the first,
not one in which a profiler wrote its file). A row that cannot be read is refused by its line.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosszone.calibrate.stability import Stability, stability
from crosszone.errors import FileError, InputError, Notice
from crosszone.inputs.document import read_text

NEEDED = ("run_id", "iteration", "iter_time_s")
STEADY = ("", "steady")
"""Kinds of iterations that count."""
MOST_ROWS = 1_000_000
LONGEST_S = 1e7
"""No iteration takes longer."""
LONGEST_ID = 100


@dataclass(frozen=True, kw_only=True)
class Steadiness:
    """One job's iterations."""

    id: str
    steadiness: Stability
    left_out: int
    """Iterations that do not count: the first, and those in which a profiler wrote its file."""
    seconds: tuple[float, ...]
    """The steady ones, in their order."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "id": self.id,
            **self.steadiness.model_dump(),
            "left_out": self.left_out,
            "seconds": list(self.seconds),
        }


def stability_table(path: Path) -> list[Steadiness]:
    """Min, max, mean, standard deviation and mean-to-min of the steady iterations of every job that has any."""
    reader = csv.DictReader(io.StringIO(read_text(path)), restval="")
    steady: dict[str, dict[int, float]] = {}
    others: dict[str, int] = {}
    try:
        columns = [(name or "").strip() for name in reader.fieldnames or ()]
        missing = [name for name in NEEDED if name not in columns]
        if missing:
            params = {"missing": missing}
            raise InputError(Notice(code="runs_columns", value=str(path), params=params, file=str(path), line=1))
        reader.fieldnames = columns
        for cells in reader:
            if reader.line_num > MOST_ROWS:
                raise _refused(path, reader.line_num, "rows", MOST_ROWS)
            job, step, seconds, counts = _row(path, reader.line_num, cells)
            if counts:
                if step in steady.setdefault(job, {}):
                    raise _refused(path, reader.line_num, "iteration", step)
                steady[job][step] = seconds
            else:
                others[job] = others.get(job, 0) + 1
    except csv.Error as error:
        raise FileError(Notice(code="runs_not_csv", value=str(path), params={"reason": str(error)})) from None
    return [
        Steadiness(id=job, steadiness=stability(times), left_out=others.get(job, 0), seconds=tuple(times.values()))
        for job, times in steady.items()
    ]


def _row(path: Path, line: int, cells: dict[str, Any]) -> tuple[str, int, float, bool]:
    """Job, number of the iteration, seconds, and whether it counts."""
    job, step, seconds, kind = (str(cells.get(key) or "").strip() for key in (*NEEDED, "kind"))
    if None in cells or not job or len(job) > LONGEST_ID:
        raise _refused(path, line, "run_id", job)
    if not (step.isascii() and step.isdigit()) or len(step) > 12:
        raise _refused(path, line, "iteration", step)
    try:
        value = float(seconds)
    except ValueError:
        value = math.nan
    if not 0 < value <= LONGEST_S:
        raise _refused(path, line, "iter_time_s", seconds)
    return job, int(step), value, kind in STEADY


def _refused(path: Path, line: int, column: str, value: object) -> InputError:
    notice = Notice(code="iterations_row", field=column, value=value, params={"line": line}, file=str(path), line=line)
    return InputError(notice)
