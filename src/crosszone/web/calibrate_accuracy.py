"""Accuracy as the page shows it: measured data on the server, and saved runs beside what was predicted of them.

saved_accuracy(store.results)      # every saved run, and its error where a prediction was kept with it
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median
from typing import Any

from crosszone.inputs.value import Value
from crosszone.store import ResultRow
from crosszone.store.saved import Results
from crosszone.store.table import MAX_PAGE

__all__ = ["AccuracyReport", "RunRow", "SavedAccuracy", "saved_accuracy"]

MOST_ROWS = 1000  # Saved results that are looked at, newest first


class RunRow(Value):
    """A saved run and what was predicted of it, where that is known."""

    id: str
    """The saved result."""
    name: str
    """What it is called."""
    created: str
    """When it was saved."""
    predicted_id: str | None
    """The saved prediction it belongs to; null: none was saved by itself."""
    measured_s: float
    """Step that was measured."""
    predicted_s: float | None
    """Step that was predicted; null: no prediction was kept with it."""
    low_s: float | None
    """Low end of the prediction."""
    high_s: float | None
    """High end of the prediction."""
    error_pct: float | None
    """(predicted - measured) / measured; null: nothing was predicted."""
    inside: bool | None
    """The measured step lies within the range; null: it has none."""
    tokens_error_pct: float | None
    """The same error of tokens/s."""
    memory_error_pct: float | None
    """The same error of the memory peak."""


class SavedAccuracy(Value):
    """Saved runs beside their predictions."""

    rows: tuple[RunRow, ...]
    """Newest first."""
    mean_pct: float | None
    """Mean of the absolute errors; null: there are none."""
    median_pct: float | None
    """The middle one of them."""
    inside_pct: float | None
    """Share of runs that lie within the predicted range; eight in ten are to."""


class AccuracyReport(Value):
    """Errors of predictions against measured data on the server."""

    present: bool
    """There is such data; else everything else is empty."""
    variable: str
    """The environment variable that names its folder."""
    files: tuple[str, ...]
    """Names of files that are looked for in it."""
    report: dict[str, Any] | None
    """What `crosszone accuracy DATA --json` tells: sources, runs, components, shares, stability, operators, ..."""


def saved_accuracy(results: Results) -> SavedAccuracy:
    """All saved runs, and the errors of those that have a prediction. [Q5]"""
    rows = tuple(found for row in _measured(results) if (found := _row(row)) is not None)
    sizes = [abs(row.error_pct) for row in rows if row.error_pct is not None]
    inside = [row.inside for row in rows if row.inside is not None]
    return SavedAccuracy(
        rows=rows,
        mean_pct=fmean(sizes) if sizes else None,
        median_pct=median(sizes) if sizes else None,
        inside_pct=100.0 * sum(inside) / len(inside) if inside else None,
    )


def _measured(results: Results) -> Iterator[ResultRow]:
    before, seen = None, 0
    while seen < MOST_ROWS:
        page = results.page(limit=MAX_PAGE, before=before)
        yield from (row for row in page.rows if row.kind == "measured")
        seen, before = seen + len(page.rows), page.before
        if before is None:
            return


def _row(row: ResultRow) -> RunRow | None:
    measured, predicted = row.headline, row.headline.get("predicted") or {}
    step, said = _value(measured, "step_time_s"), _value(predicted, "step_time_s")
    if not step:
        return None
    low, high = (predicted["step_time_s"].get(end) if said else None for end in ("low", "high"))
    return RunRow(
        id=row.id,
        name=row.name,
        created=row.created,
        predicted_id=row.id.replace("measured-", "predicted-", 1) if said and row.id.startswith("measured-") else None,
        measured_s=step,
        predicted_s=said,
        low_s=low,
        high_s=high,
        error_pct=100.0 * (said / step - 1.0) if said else None,
        inside=None if low is None or high is None else low <= step <= high,
        tokens_error_pct=_error(predicted, measured, "tokens_per_s"),
        memory_error_pct=_error(predicted, measured, "memory_gib"),
    )


def _error(predicted: dict[str, Any], measured: dict[str, Any], name: str) -> float | None:
    said, was = _value(predicted, name), _value(measured, name)
    return 100.0 * (said / was - 1.0) if said and was else None


def _value(figures: dict[str, Any], name: str) -> float | None:
    held = figures.get(name)
    value = held.get("value") if isinstance(held, dict) else None
    return value if isinstance(value, int | float) else None
