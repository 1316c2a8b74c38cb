"""Entries of arrays [rows, stages] whose axes may be missing or of length 1; recorded arrays give recorded entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosszone.cost.record import Recorded, as_array, pick, plain


def scalar(value: Any) -> Any:
    """A single entry as a plain number; recorded, as a recorded one."""
    return value if isinstance(value, Recorded) else float(value)


def cell(values: Any, row: int, stage: Any) -> Any:
    """One entry; `stage` may be recorded (`place_of_largest`)."""
    if not np.ndim(values):
        return scalar(values)
    if isinstance(stage, Recorded):
        entries = row_of(values, row)
        return pick(stage, list(entries)) if len(entries) > 1 else scalar(entries[0])
    rows, stages = values.shape
    return scalar(values[row if rows > 1 else 0, stage if stages > 1 else 0])


def row_of(values: Any, row: int) -> Any:
    """One row, as an array of stages."""
    array = np.atleast_2d(as_array(values))
    return array[row if len(array) > 1 else 0]


def top(values: Any, row: int) -> Any:
    """The largest entry of one row."""
    return scalar(np.max(row_of(values, row)))


def place_of_largest(values: Any) -> Any:
    """Where the largest is: a number, or recorded where inputs that may change decide it."""
    if isinstance(values, Recorded) and values.tape.all_branches and len(values) > 1:
        recorded: Any = values
        return np.argmax(recorded)
    return int(np.argmax(plain(values)))
