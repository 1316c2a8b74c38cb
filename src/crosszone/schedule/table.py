"""Table: spans as CSV, one row a span, written and read.

    lane,lane_name,group,kind,micro_batch,chunk,start_s,end_s,duration_s
    stage-0,stage 0 (beijing-a),stages,forward,0,0,0.0,0.6311,0.6311

To be read, a table needs `lane`, `kind`, `start_s` and `end_s`; rows with a `step` belong to that step.
"""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from crosszone.errors import FileError, InvalidError, Notice
from crosszone.schedule.timeline import KINDS, NONE, STAGES, Timeline

COLUMNS = ("lane", "lane_name", "group", "kind", "micro_batch", "chunk", "start_s", "end_s", "duration_s")
NEEDED = ("lane", "kind", "start_s", "end_s")


def spans_csv(timeline: Timeline) -> str:
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
        return _document(list(lines))
    except csv.Error as error:
        raise FileError(Notice(code="trace_not_csv", field="trace", params={"reason": str(error)})) from None


def _document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    lanes: dict[str, dict[str, str]] = {}
    steps: dict[int, tuple[float, float]] = {}
    spans = []
    for row in rows:
        span = {key: row[key] for key in ("lane", "kind", "name") if row.get(key)}
        span |= {key: _number(row[key], float) for key in ("start_s", "end_s")}
        span |= {key: _number(row[key], int) for key in ("micro_batch", "chunk") if row.get(key)}
        spans.append(span)
        lane, start, end, step = span.get("lane"), span["start_s"], span["end_s"], _number(row.get("step"), int)
        if lane and lane not in lanes:
            lanes[lane] = {"id": lane, "name": row.get("lane_name") or lane, "group": row.get("group") or STAGES}
        if isinstance(step, int) and all(isinstance(x, float) and math.isfinite(x) for x in (start, end)):
            first, last = steps.get(step, (start, end))
            steps[step] = min(first, start), max(last, end)
    made = [{"step": step, "start_s": start, "end_s": end} for step, (start, end) in steps.items()]
    groups = list(dict.fromkeys(lane["group"] for lane in lanes.values()))
    together = sorted(lanes.values(), key=lambda lane: groups.index(lane["group"]))
    return {"lanes": together, "spans": spans, "steps": made}


def _number(text: Any, kind: type[int] | type[float]) -> Any:
    """A cell as a number; else as it is, and its row is told when it is read."""
    try:
        return kind(text)
    except (TypeError, ValueError):
        return text
