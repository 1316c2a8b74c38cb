"""Measured timelines: the trace of a run read row by row; a wrong row is reported and left out, the rest is used.

    measured = read_measured(text)
    measured.notices                       # what was left out, and why
    measured.timeline(measured.last)       # the last step, its times from its own start

Documents are as `trace.py` describes, or CSV with the columns of `format_spans_csv` and, for several steps, `step`.

`read_metrics`: the metrics of a run (`metrics-stage-K.jsonl`, one line a step) as a trace and a table of steps.

    trace, steps = read_metrics([Path("out/metrics-stage-0.jsonl").read_text(), ...])
    steps[-1].loss, steps[-1].tokens_per_s

Every start of a run appends a header and then its steps, its times from when all ranks were ready. A run that resumes
overwrites the steps it does again; the line that a crash cut off is left out; a step counts when every stage has it.

`format_spans_csv`, `read_table`: spans as CSV, one row a span, written and read.

    lane,lane_name,group,kind,micro_batch,chunk,start_s,end_s,duration_s
    stage-0,stage 0 (beijing-a),stages,forward,0,0,0.0,0.6311,0.6311

To be read, a table needs `lane`, `kind`, `start_s` and `end_s`; rows with a `step` belong to that step.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from crosszone.errors import FileError, InputError, InvalidError, Notice
from crosszone.inputs.value import NotNegative, Value, parse
from crosszone.schedule.timeline import KINDS, NONE, STAGES, Timeline
from crosszone.schedule.trace import MAX_LANES, MAX_SPANS, MAX_TRACE_BYTES, Index, Lane, Span, Trace, TraceStep

COLUMNS = ("lane", "lane_name", "group", "kind", "micro_batch", "chunk", "start_s", "end_s", "duration_s")
NEEDED = ("lane", "kind", "start_s", "end_s")


def format_spans_csv(timeline: Timeline) -> str:
    """All spans of a step, in the order of their start."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    columns = (timeline.lane, timeline.kind, timeline.micro_batch, timeline.chunk, timeline.start_s, timeline.end_s)
    for at, kind, micro, chunk, start, end in sorted(
        zip(*(column.tolist() for column in columns), strict=True), key=lambda row: (row[4], row[0])
    ):
        lane = timeline.lanes[at]
        numbers = ["" if number == NONE else number for number in (micro, chunk)]
        writer.writerow([lane.id, lane.name, lane.group, KINDS[kind], *numbers, start, end, end - start])
    return out.getvalue()


def read_table(text: str) -> dict[str, Any]:
    """A table as a trace document: lanes by group and first appearance, steps from their first to their last span."""
    lines = csv.DictReader(io.StringIO(text))
    try:
        header = lines.fieldnames or []
        missing = [name for name in NEEDED if name not in header]
        if missing:
            params = {"missing": missing, "found": [name[:40] for name in header[:12]]}
            raise InvalidError(Notice(code="trace_columns", field="trace", params=params))
        return _build_document(list(lines))
    except csv.Error as error:
        raise FileError(Notice(code="trace_not_csv", field="trace", params={"reason": str(error)})) from None


def _build_document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    lanes: dict[str, dict[str, str]] = {}
    steps: dict[int, tuple[float, float]] = {}
    spans = []
    for row in rows:
        span = {key: row[key] for key in ("lane", "kind", "name") if row.get(key)}
        span |= {key: _parse_number(row[key], float) for key in ("start_s", "end_s")}
        span |= {key: _parse_number(row[key], int) for key in ("micro_batch", "chunk") if row.get(key)}
        spans.append(span)
        lane, start, end, step = span.get("lane"), span["start_s"], span["end_s"], _parse_number(row.get("step"), int)
        if lane and lane not in lanes:
            lanes[lane] = {"id": lane, "name": row.get("lane_name") or lane, "group": row.get("group") or STAGES}
        if isinstance(step, int) and all(isinstance(x, float) and math.isfinite(x) for x in (start, end)):
            first, last = steps.get(step, (start, end))
            steps[step] = min(first, start), max(last, end)
    step_rows = [{"step": step, "start_s": start, "end_s": end} for step, (start, end) in steps.items()]
    groups = list(dict.fromkeys(lane["group"] for lane in lanes.values()))
    ordered_lanes = sorted(lanes.values(), key=lambda lane: groups.index(lane["group"]))
    return {"lanes": ordered_lanes, "spans": spans, "steps": step_rows}


def _parse_number(text: Any, kind: type[int] | type[float]) -> Any:
    """A cell as a number; else as it is, and its row is reported when it is read."""
    try:
        return kind(text)
    except (TypeError, ValueError):
        return text


MAX_NOTICES = 20  # Rows reported one by one; of the others only the number: a wrong column is wrong in every row
OVERLAP_TOLERANCE = 1e-9  # Share of a step by which spans of a lane may overlap unreported: rounding of a clock
V = TypeVar("V", bound=Value)


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredTimelines:
    """Lanes, spans and steps of a run, as far as they can be used."""

    name: str
    spans: Timeline
    """All spans of all steps, from the start of the trace."""
    steps: tuple[TraceStep, ...]
    """In the order of their start; never empty."""
    bad: int
    """Rows left out."""
    notices: tuple[Notice, ...]
    """Why: at most `MAX_NOTICES`, then their number."""

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
        step = next((candidate for candidate in self.steps if candidate.step == number), None)
        if step is None:
            params = {"first": self.first, "last": self.last, "steps": len(self.steps)}
            raise InvalidError(Notice(code="trace_step_unknown", field="step", value=number, params=params))
        spans = self.spans
        start = np.clip(spans.start_s, step.start_s, step.end_s) - step.start_s
        end = np.clip(spans.end_s, step.start_s, step.end_s) - step.start_s
        inside = np.flatnonzero((end > start) | ((spans.start_s == spans.end_s) & (start > 0)))
        inside = inside[np.lexsort((end[inside], start[inside], spans.lane[inside]))]
        lane, start, end = spans.lane[inside], start[inside], end[inside]
        previous_end = _find_previous_ends(lane, end)
        clipped_start = np.maximum(start, previous_end)
        overlapping = int((clipped_start - start > (step.end_s - step.start_s) * OVERLAP_TOLERANCE).sum())
        timeline = Timeline(
            lanes=spans.lanes,
            lane=lane,
            kind=spans.kind[inside],
            start_s=clipped_start,
            end_s=np.maximum(clipped_start, end),
            micro_batch=spans.micro_batch[inside],
            chunk=spans.chunk[inside],
            stated_s=step.end_s - step.start_s,
        )
        params = {"count": overlapping, "step": number}
        notices = [Notice(code="trace_overlap", level="warning", field="spans", params=params)] if overlapping else []
        return timeline, notices


def read_measured(text: str | bytes) -> MeasuredTimelines:
    """The usable part of a trace; `InputError` where there is none."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(data) > MAX_TRACE_BYTES:
        params = {"limit_mib": MAX_TRACE_BYTES // 2**20}
        raise FileError(Notice(code="trace_too_large", value="trace", params=params))
    rows = _TraceRows()
    text_read = data.decode("utf-8-sig", "replace")
    document = _read_json(text_read) if text_read.lstrip().startswith(("{", "[")) else read_table(text_read)
    lanes = rows.drop_repeated(rows.read(Lane, document.get("lanes"), "lanes", MAX_LANES), "id", "trace_lane_twice")
    spans = [span for span in rows.read(Span, document.get("spans"), "spans", MAX_SPANS) if rows.is_placed(span, lanes)]
    stated = (
        step for step in rows.read(TraceStep, document.get("steps", []), "steps", MAX_LANES) if rows.has_duration(step)
    )
    steps = rows.drop_repeated(stated, "step", "trace_step_twice")
    if not spans:
        raise InvalidError(Notice(code="trace_empty", field="trace"), *rows.notices)
    name = document.get("name")
    return MeasuredTimelines(
        name=name[:100] if isinstance(name, str) and name.isprintable() else "trace",
        spans=_build_columns(tuple(lanes.values()), spans),
        steps=_sort_steps(list(steps.values()), spans),
        bad=rows.bad,
        notices=tuple(rows.list_notices()),
    )


class _TraceRows:
    """Reads the rows of a trace one by one and counts those that cannot be used."""

    def __init__(self) -> None:
        self.bad = 0
        self.notices: list[Notice] = []
        self.field, self.at = "", 0

    def read(self, cls: type[V], rows: Any, field: str, limit: int) -> Iterator[V]:
        """The rows that are a `cls`."""
        self.field = field
        if not isinstance(rows, list):
            self.note_wrong(Notice(code="must_be_list", field=field, value=rows))
            return
        if len(rows) > limit:
            self.note_wrong(
                Notice(code="too_long", field=field, value=len(rows), params={"limit": limit}), len(rows) - limit
            )
        for self.at, row in enumerate(rows[:limit]):
            try:
                yield parse(cls, row, at=(field, self.at))
            except InputError as error:
                self.note_wrong(error.notices[0])

    def drop_repeated(self, rows: Iterator[V], key: str, code: str) -> dict[Any, V]:
        """The rows by their key; a second one of the same key is left out."""
        distinct: dict[Any, V] = {}
        for row in rows:
            name = getattr(row, key)
            if name in distinct:
                self.note_wrong(Notice(code=code, field=f"{self.field}[{self.at}]", value=name))
            distinct.setdefault(name, row)
        return distinct

    def is_placed(self, span: Span, lanes: dict[str, Lane]) -> bool:
        """Whether a span lies on a lane and ends after it starts."""
        field = f"spans[{self.at}]"
        if span.lane not in lanes:
            params = {"known": list(lanes)[:8]}
            self.note_wrong(Notice(code="trace_lane_unknown", field=f"{field}.lane", value=span.lane, params=params))
        elif span.end_s < span.start_s:
            early = {"start_s": span.start_s}
            self.note_wrong(Notice(code="trace_ends_early", field=f"{field}.end_s", value=span.end_s, params=early))
        else:
            return True
        return False

    def has_duration(self, step: TraceStep) -> bool:
        """Whether a step ends after it starts."""
        if step.end_s > step.start_s:
            return True
        params = {"start_s": step.start_s}
        field = f"steps[{self.at}].end_s"
        self.note_wrong(Notice(code="trace_ends_early", field=field, value=step.end_s, params=params))
        return False

    def note_wrong(self, notice: Notice, count: int = 1) -> None:
        """Count wrong rows, and keep the notices of the first ones."""
        self.bad += count
        if len(self.notices) < MAX_NOTICES:
            code, field = notice.code, notice.field
            self.notices.append(
                Notice(code=code, field=field, value=notice.value, params=notice.params, level="warning")
            )

    def list_notices(self) -> list[Notice]:
        """How many rows are left out, and the first of them."""
        if not self.bad:
            return []
        params = {"count": self.bad, "told": len(self.notices)}
        return [Notice(code="trace_rows_bad", level="warning", field="trace", params=params), *self.notices]


def _read_json(words: str) -> dict[str, Any]:
    try:
        document = json.loads(words)
    except (ValueError, RecursionError) as error:
        line, reason = getattr(error, "lineno", None), getattr(error, "msg", "nested too deeply")
        raise FileError(Notice(code="file_not_yaml", field="trace", params={"reason": reason}, line=line)) from None
    if not isinstance(document, dict):
        raise InvalidError(Notice(code="must_be_mapping", field="trace", value=document))
    return document


def _build_columns(lanes: tuple[Lane, ...], spans: list[Span]) -> Timeline:
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


def _sort_steps(steps: list[TraceStep], spans: list[Span]) -> tuple[TraceStep, ...]:
    """Steps by their start; where none is stated, the trace is one step."""
    if not steps:
        start, end = min(span.start_s for span in spans), max(span.end_s for span in spans)
        return (TraceStep(step=0, start_s=start, end_s=end),)
    return tuple(sorted(steps, key=lambda step: (step.start_s, step.step)))


def _find_previous_ends(lane: Any, end: Any) -> Any:
    """When the spans before each one on its lane have ended; spans are sorted by lane and start."""
    previous_end = np.zeros(len(end))
    for first, after in _iterate_lane_runs(lane):
        previous_end[first + 1 : after] = np.maximum.accumulate(end[first:after])[:-1]
    return previous_end


def _iterate_lane_runs(lane: Any) -> Iterator[tuple[int, int]]:
    marks = np.flatnonzero(np.diff(lane, prepend=-1, append=-1))
    yield from zip(marks[:-1].tolist(), marks[1:].tolist(), strict=True)


MAX_METRICS_BYTES = 256 * 1024 * 1024


class StepRow(Value):
    """One step of a run over all its stages; what was not measured is null."""

    step: Index
    """Number of the step, from 1."""
    start_s: NotNegative
    """Start on the first stage that began it, s from the first start of the run."""
    end_s: NotNegative
    """End on the last stage that ended it."""
    loss: float | None = None
    """Mean over all samples of the step."""
    lr: float | None = None
    """Learning rate."""
    grad_norm: float | None = None
    """Norm of the gradient before clipping."""
    tokens: NotNegative | None = None
    """Tokens of the step over all ranks."""
    tokens_per_s: NotNegative | None = None
    """Tokens a second over all ranks."""
    memory_gib: NotNegative | None = None
    """Peak memory of the stage that has most, GiB."""


@dataclass
class _StageStart:
    """One start of one stage: its header and its steps by number."""

    header: dict[str, Any]
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def unix_s(self) -> float:
        """When it began by the clock of its machine; 0 where the header does not say."""
        meta = self.header.get("meta")
        value = meta.get("started_unix_s") if isinstance(meta, dict) else None
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def end_s(self) -> float:
        """When its last step ended, s from its own start."""
        return max((row["end_s"] for row in self.rows.values()), default=0.0)


def read_metrics(texts: Sequence[str], files: Sequence[str] = ()) -> tuple[Trace, list[StepRow]]:
    """The trace and the steps of a run from the files of its stages; an `InputError` names the line that is wrong.

    A trace holds the last steps that fit into one; the table has all of them. `files` are names for messages.
    """
    names = [files[at] if at < len(files) else f"metrics {at}" for at in range(len(texts))]
    stages = [list(_read_starts(text, name)) for text, name in zip(texts, names, strict=True)]
    if not stages:
        raise FileError(Notice(code="metrics_empty"))
    for starts, name in zip(stages, names, strict=True):
        if not any(start.rows for start in starts):
            raise FileError(Notice(code="metrics_empty", file=name))
    offsets = _find_offsets(stages)
    rows_by_stage = [_merge_starts(starts, offsets) for starts in stages]
    common = sorted(set.intersection(*(set(rows) for rows in rows_by_stage)))
    if not common:
        raise FileError(Notice(code="metrics_no_common_step", params={"files": len(names)}))
    steps = [_merge_step([rows[number] for rows in rows_by_stage]) for number in common]
    return _build_trace(stages, rows_by_stage, steps), steps


def _read_starts(text: str, name: str) -> Iterator[_StageStart]:
    """The starts in a file, one after the other."""
    if len(text) > MAX_METRICS_BYTES:
        params = {"limit_mib": MAX_METRICS_BYTES // 2**20}
        raise FileError(Notice(code="trace_too_large", value=name, params=params, file=name))
    current: _StageStart | None = None
    cut: FileError | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            # Good only at the end of a start: a crash cut the line off.
            reason = getattr(error, "msg", "nested too deeply")
            cut = cut or FileError(Notice(code="file_not_yaml", params={"reason": reason}, file=name, line=number))
            continue
        if isinstance(document, dict) and "lanes" in document:
            if current:
                yield current
            current, cut = _StageStart(document), None
            continue
        if cut:
            raise cut
        if current is None:
            raise FileError(Notice(code="metrics_no_header", file=name, line=number))
        row = _check_row(document, name, number)
        current.rows[row["step"]] = row
    if current is None:
        raise cut or FileError(Notice(code="metrics_empty", file=name))
    yield current


def _check_row(document: Any, name: str, line: int) -> dict[str, Any]:
    """A step's line with the keys that `StepRow` has; others are left out, for a trainer may write more."""
    fields = (
        {key: document[key] for key in StepRow.model_fields if key in document} if isinstance(document, dict) else {}
    )
    try:
        row = parse(StepRow, fields if fields else document)
        if row.end_s < row.start_s:
            params = {"start_s": row.start_s}
            raise FileError(Notice(code="trace_ends_early", field="end_s", value=row.end_s, params=params))
        spans = document.get("spans", ())
        if not isinstance(spans, list | tuple):
            raise FileError(Notice(code="must_be_list", field="spans", value=spans))
        spans = [parse(Span, span, at=("spans", at)) for at, span in enumerate(spans)]
    except InputError as error:
        raise type(error)(*(notice.with_place(name, line) for notice in error.notices)) from None
    return {**row.model_dump(), "spans": spans}


def _find_offsets(stages: list[list[_StageStart]]) -> list[float]:
    """Seconds from the first start of the run to each start, by the clock of one machine.

    Clocks of machines differ, so every stage takes the same ones: those of the stage that has seen most starts.
    """
    longest = max(stages, key=len)
    offsets: list[float] = []
    for at, start in enumerate(longest):
        before = at - 1 - len(longest)  # from the end: a stage with fewer starts has missed the first ones
        ended = max((starts[before].end_s for starts in stages if at and -before <= len(starts)), default=0.0)
        after = offsets[-1] + ended if offsets else 0.0
        offsets.append(max(start.unix_s - longest[0].unix_s, after))
    return offsets


def _merge_starts(starts: list[_StageStart], offsets: list[float]) -> dict[int, dict[str, Any]]:
    """The steps of a stage from the first start of the run on; a start takes the place of the steps it did again."""
    rows: dict[int, dict[str, Any]] = {}
    for start, offset in zip(starts, offsets[len(offsets) - len(starts) :], strict=True):
        if start.rows:
            first = min(start.rows)
            rows = {number: row for number, row in rows.items() if number < first}
        for number, row in start.rows.items():
            rows[number] = row | {"start_s": row["start_s"] + offset, "end_s": row["end_s"] + offset, "offset": offset}
    return rows


def _merge_step(rows: list[dict[str, Any]]) -> StepRow:
    """One step of all stages: only some of them know the loss; the memory is the largest."""

    def list_values(key: str) -> list[Any]:
        return [row[key] for row in rows if row[key] is not None]

    start, end = min(list_values("start_s")), max(list_values("end_s"))
    tokens = max(list_values("tokens"), default=None)
    return StepRow(
        step=rows[0]["step"],
        start_s=start,
        end_s=end,
        loss=next(iter(list_values("loss")), None),
        lr=next(iter(list_values("lr")), None),
        grad_norm=next(iter(list_values("grad_norm")), None),
        tokens=tokens,
        tokens_per_s=tokens / (end - start) if tokens is not None and end > start else None,
        memory_gib=max(list_values("memory_gib"), default=None),
    )


def _build_trace(
    stages: list[list[_StageStart]], rows_by_stage: list[dict[int, dict[str, Any]]], steps: list[StepRow]
) -> Trace:
    """The last steps that fit into a trace."""
    headers = [starts[-1].header for starts in stages]
    spans: list[Span] = []
    traced_steps: list[StepRow] = []
    for step in reversed(steps[-MAX_LANES:]):
        step_spans = [(span, rows[step.step]["offset"]) for rows in rows_by_stage for span in rows[step.step]["spans"]]
        if len(spans) + len(step_spans) > MAX_SPANS:
            break
        spans += [
            span.model_copy(update={"start_s": span.start_s + at, "end_s": span.end_s + at}) for span, at in step_spans
        ]
        traced_steps.append(step)
    meta = headers[0].get("meta")
    document: dict[str, Any] = {
        **{key: headers[0][key] for key in ("version", "kind", "name", "unit") if key in headers[0]},
        "lanes": [
            lane for header in headers for lane in (header["lanes"] if isinstance(header["lanes"], list) else [])
        ],
        "spans": spans,
        "steps": [{"step": s.step, "start_s": s.start_s, "end_s": s.end_s} for s in reversed(traced_steps)],
        "meta": {key: value for key, value in meta.items() if key != "stage"} if isinstance(meta, dict) else {},
    }
    return parse(Trace, document)
