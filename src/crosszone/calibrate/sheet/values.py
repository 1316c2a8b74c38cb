"""Values: a result as a workbook of numbers, where its formulas are not known, and its timeline read back from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crosszone.analyse.outcome import Figures
from crosszone.calibrate.sheet.book import Book, Heading, Line, Text, line
from crosszone.calibrate.sheet.evaluation import Cells
from crosszone.calibrate.sheet.output import FIGURES, SHEET
from crosszone.inputs.value import parse
from crosszone.schedule.trace import Lane, Span, Trace, TraceStep

MARK = "values_only"
"""Name of the cell that says so."""
TIMELINE = "Timeline"
MOST_SPANS = 50_000
"""Spans of a timeline that a workbook holds."""
LANES, STEPS = ("id", "name", "group"), ("step", "start_s", "end_s")
SPANS = ("lane", "kind", "name", "start_s", "end_s", "micro_batch", "chunk")


def workbook_of_values(name: str, figures: Mapping[str, Any], trace: Trace | None, language: str) -> bytes:
    """Figures and, where there is one, the timeline of a result."""
    known = parse(Figures, dict(figures), at=("figures",))
    book = Book(language)
    lines: list[Line | Heading] = [
        Heading(key="values_only"),
        line(MARK, "yes"),
        line("scenario_name", Text(name)),
        line("out_iteration_s", known.step_time_s, "s", "V3"),
    ]
    for figure, cell in FIGURES.items():
        value = getattr(known, figure)
        lines += [line(cell, value)] if value is not None else []
    lines += [line("framework", Text(known.framework))] if known.framework else []
    lines += [line(f"part_{part}", seconds, "s") for part, seconds in known.breakdown_s.items()]
    book.lines(SHEET, lines)
    if trace is not None and 0 < len(trace.spans) <= MOST_SPANS:
        for prefix, fields, rows in (
            ("lanes", LANES, trace.lanes),
            ("steps", STEPS, trace.steps),
            ("spans", SPANS, trace.spans),
        ):
            if rows:
                book.table(TIMELINE, prefix, {key: [getattr(row, key) for row in rows] for key in fields})
    return book.saved()


def is_values(cells: Cells) -> bool:
    """The workbook holds numbers in place of formulas."""
    return cells.has(MARK)


def trace_of_values(cells: Cells, name: str, step_s: float) -> Trace:
    """The timeline that such a workbook holds; without one, a step of which nothing else is known."""
    if not cells.has("spans_lane"):
        lane = Lane(id="step", name="step")
        whole = Span(lane="step", kind="other", start_s=0.0, end_s=step_s)
        only = (TraceStep(step=0, start_s=0.0, end_s=step_s),)
        return Trace(kind="predicted", name=name, lanes=(lane,), spans=(whole,), steps=only)
    document = {
        "kind": "predicted",
        "name": name,
        "lanes": _rows(cells, "lanes", LANES),
        "spans": _rows(cells, "spans", SPANS),
        "steps": _rows(cells, "steps", STEPS) if cells.has("steps_step") else [],
    }
    return parse(Trace, document, at=("Timeline",))


def _rows(cells: Cells, prefix: str, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    columns = {field: cells.column(f"{prefix}_{field}") for field in fields}
    count = len(next(iter(columns.values())))
    rows = ({field: values[at] for field, values in columns.items()} for at in range(count))
    return [{field: value for field, value in row.items() if value is not None} for row in rows]
