"""Entries of arrays [rows, stages] whose axes may be missing or of length 1."""

from __future__ import annotations

from typing import Any

import numpy as np


def cell(values: Any, row: int, stage: int) -> float:
    """One entry."""
    if not np.ndim(values):
        return float(values)
    rows, stages = values.shape
    return float(values[row if rows > 1 else 0, stage if stages > 1 else 0])


def row_of(values: Any, row: int) -> Any:
    """One row, as an array of stages."""
    array = np.atleast_2d(np.asarray(values, dtype=float))
    return array[row if len(array) > 1 else 0]


def top(values: Any, row: int) -> float:
    """The largest entry of one row."""
    return float(np.max(row_of(values, row)))
