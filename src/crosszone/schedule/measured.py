"""Measured: the trace of a run read row by row: what is wrong is told and left out, the rest is kept.

    found = read_measured(text)
    found.notices                      # what was left out, and why
    found.timeline(found.last)         # the last step, its times from its own start

Documents are as `trace.py` describes, or CSV with the columns of `spans_csv` and, for several steps, `step`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from crosszone.errors import FileError, InputError, InvalidError, Notice
from crosszone.inputs.value import Value, parse
from crosszone.schedule.table import read_table
from crosszone.schedule.timeline import KINDS, NONE, Timeline
from crosszone.schedule.trace import MAX_LANES, MAX_SPANS, MAX_TRACE_BYTES, Lane, Span, TraceStep

MOST_TOLD = 20
"""Rows told one by one; of the others only the number."""
JITTER = 1e-9
"""Share of a step by which spans of a lane may overlap before it is told: rounding of a clock."""
V = TypeVar("V", bound=Value)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Lanes, spans and steps of a run, as far as they can be used."""

    name: str
    spans: Timeline
    """All spans of all steps, from the start of the trace."""
    steps: tuple[TraceStep, ...]
    """In the order of their start; never empty."""
    bad: int
    """Rows left out."""
    notices: tuple[Notice, ...]
    """Why: at most `MOST_TOLD`, then their number."""

    @property
    def first(self) -> int:
        """Number of the first step."""
        return self.steps[0].step

    @property
    def last(self) -> int:
        """Number of the last step."""
        return self.steps[-1].step

    def timeline(self, number: int) -> tuple[Timeline, list[Notice]]:
        """One step from its own start, and what had to be cut off: a lane does one thing at a time.

        Spans that reach over the step's borders count as far as they lie inside.
        """
        step = next((one for one in self.steps if one.step == number), None)
        if step is None:
            params = {"first": self.first, "last": self.last, "steps": len(self.steps)}
            raise InvalidError(Notice(code="trace_step_unknown", field="step", value=number, params=params))
        every = self.spans
        start = np.clip(every.start_s, step.start_s, step.end_s) - step.start_s
        end = np.clip(every.end_s, step.start_s, step.end_s) - step.start_s
        here = np.flatnonzero((end > start) | ((every.start_s == every.end_s) & (start > 0)))
        here = here[np.lexsort((end[here], start[here], every.lane[here]))]
        lane, start, end = every.lane[here], start[here], end[here]
        reached = _reached(lane, end)
        begun = np.maximum(start, reached)
        overlapping = int((begun - start > (step.end_s - step.start_s) * JITTER).sum())
        made = Timeline(
            lanes=every.lanes,
            lane=lane,
            kind=every.kind[here],
            start_s=begun,
            end_s=np.maximum(begun, end),
            micro_batch=every.micro_batch[here],
            chunk=every.chunk[here],
            stated_s=step.end_s - step.start_s,
        )
        params = {"count": overlapping, "step": number}
        told = [Notice(code="trace_overlap", level="warning", field="spans", params=params)] if overlapping else []
        return made, told


def read_measured(text: str | bytes) -> Measured:
    """The usable part of a trace; `InputError` where there is none."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(data) > MAX_TRACE_BYTES:
        params = {"limit_mib": MAX_TRACE_BYTES // 2**20}
        raise FileError(Notice(code="trace_too_large", value="trace", params=params))
    rows = _Rows()
    words = data.decode("utf-8-sig", "replace")
    document = _json(words) if words.lstrip().startswith(("{", "[")) else read_table(words)
    lanes = rows.once(rows.read(Lane, document.get("lanes"), "lanes", MAX_LANES), "id", "trace_lane_twice")
    spans = [span for span in rows.read(Span, document.get("spans"), "spans", MAX_SPANS) if rows.placed(span, lanes)]
    stated = (step for step in rows.read(TraceStep, document.get("steps", []), "steps", MAX_LANES) if rows.lasts(step))
    steps = rows.once(stated, "step", "trace_step_twice")
    if not spans:
        raise InvalidError(Notice(code="trace_empty", field="trace"), *rows.told)
    name = document.get("name")
    return Measured(
        name=name[:100] if isinstance(name, str) and name.isprintable() else "trace",
        spans=_columns(tuple(lanes.values()), spans),
        steps=_settled(list(steps.values()), spans),
        bad=rows.bad,
        notices=tuple(rows.summary()),
    )


class _Rows:
    """Reads rows one by one and keeps count of those that cannot be used."""

    def __init__(self) -> None:
        self.bad = 0
        self.told: list[Notice] = []
        self.field, self.at = "", 0

    def read(self, cls: type[V], rows: Any, field: str, most: int) -> Iterator[V]:
        """The rows that are a `cls`."""
        self.field = field
        if not isinstance(rows, list):
            self.wrong(Notice(code="must_be_list", field=field, value=rows))
            return
        if len(rows) > most:
            self.wrong(Notice(code="too_long", field=field, value=len(rows), params={"limit": most}), len(rows) - most)
        for self.at, row in enumerate(rows[:most]):
            try:
                yield parse(cls, row, at=(field, self.at))
            except InputError as error:
                self.wrong(error.notices[0])

    def once(self, rows: Iterator[V], key: str, code: str) -> dict[Any, V]:
        """The rows by their key; a second one of the same key is left out."""
        found: dict[Any, V] = {}
        for row in rows:
            name = getattr(row, key)
            if name in found:
                self.wrong(Notice(code=code, field=f"{self.field}[{self.at}]", value=name))
            found.setdefault(name, row)
        return found

    def placed(self, span: Span, lanes: dict[str, Lane]) -> bool:
        """Whether a span lies on a lane and ends after it starts."""
        field = f"spans[{self.at}]"
        if span.lane not in lanes:
            params = {"known": list(lanes)[:8]}
            self.wrong(Notice(code="trace_lane_unknown", field=f"{field}.lane", value=span.lane, params=params))
        elif span.end_s < span.start_s:
            early = {"start_s": span.start_s}
            self.wrong(Notice(code="trace_ends_early", field=f"{field}.end_s", value=span.end_s, params=early))
        else:
            return True
        return False

    def lasts(self, step: TraceStep) -> bool:
        """Whether a step ends after it starts."""
        if step.end_s > step.start_s:
            return True
        params = {"start_s": step.start_s}
        field = f"steps[{self.at}].end_s"
        self.wrong(Notice(code="trace_ends_early", field=field, value=step.end_s, params=params))
        return False

    def wrong(self, notice: Notice, count: int = 1) -> None:
        """Count what is wrong, and tell the first of it."""
        self.bad += count
        if len(self.told) < MOST_TOLD:
            code, field = notice.code, notice.field
            self.told.append(Notice(code=code, field=field, value=notice.value, params=notice.params, level="warning"))

    def summary(self) -> list[Notice]:
        """How many rows are left out, and the first of them."""
        if not self.bad:
            return []
        params = {"count": self.bad, "told": len(self.told)}
        return [Notice(code="trace_rows_bad", level="warning", field="trace", params=params), *self.told]


def _json(words: str) -> dict[str, Any]:
    try:
        document = json.loads(words)
    except (ValueError, RecursionError) as error:
        line, reason = getattr(error, "lineno", None), getattr(error, "msg", "nested too deeply")
        raise FileError(Notice(code="file_not_yaml", field="trace", params={"reason": reason}, line=line)) from None
    if not isinstance(document, dict):
        raise InvalidError(Notice(code="must_be_mapping", field="trace", value=document))
    return document


def _columns(lanes: tuple[Lane, ...], spans: list[Span]) -> Timeline:
    at = {lane.id: index for index, lane in enumerate(lanes)}
    kinds = {kind: index for index, kind in enumerate(KINDS)}
    return Timeline(
        lanes=lanes,
        lane=np.array([at[span.lane] for span in spans], np.int32),
        kind=np.array([kinds[span.kind] for span in spans], np.int32),
        start_s=np.array([span.start_s for span in spans], float),
        end_s=np.array([span.end_s for span in spans], float),
        micro_batch=np.array([NONE if s.micro_batch is None else s.micro_batch for s in spans], np.int32),
        chunk=np.array([NONE if s.chunk is None else s.chunk for s in spans], np.int32),
    )


def _settled(steps: list[TraceStep], spans: list[Span]) -> tuple[TraceStep, ...]:
    """Steps by their start; where none is stated, the trace is one step."""
    if not steps:
        start, end = min(span.start_s for span in spans), max(span.end_s for span in spans)
        return (TraceStep(step=0, start_s=start, end_s=end),)
    return tuple(sorted(steps, key=lambda step: (step.start_s, step.step)))


def _reached(lane: Any, end: Any) -> Any:
    """When the spans before each one on its lane have ended; spans are sorted by lane and start."""
    found = np.zeros(len(end))
    for first, after in _runs(lane):
        found[first + 1 : after] = np.maximum.accumulate(end[first:after])[:-1]
    return found


def _runs(lane: Any) -> Iterator[tuple[int, int]]:
    marks = np.flatnonzero(np.diff(lane, prepend=-1, append=-1))
    yield from zip(marks[:-1].tolist(), marks[1:].tolist(), strict=True)
