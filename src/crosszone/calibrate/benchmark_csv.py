"""Benchmark CSV: marks of the last pipeline stage, as a patched Megatron-LM writes them, as iterations with phases.

    iteration start,0.31          no header; label, seconds since the mark before
    warmup start,0.002            so a value belongs to the phase that ended at its label:
    forward start,0.120           0.120 s of warm-up,
    backward start,0.051          0.051 s of the first forward pass, ...
    cooldown start,0.098
    allreduce start,0.140         0.140 s of cool-down,
    iteration end,0.230           0.230 s of all-reduce, with the update

    imported = read_benchmark(text)
    imported.get_step("best").phases_s    # start, warm_up, forward, backward, cool_down, all_reduce: sum is the step

Without a pipeline, or with an interleaved one, an iteration has no phases. Marks outside an iteration are those of an
evaluation and are left out. The marks are times of the host without device synchronisation: a notice says so.
"""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass, field
from typing import Any

from crosszone.calibrate.imported import ImportedRun
from crosszone.errors import FileError, InvalidError, Notice
from crosszone.inputs.value import parse
from crosszone.schedule.trace import MAX_LANES, MAX_SPANS, MAX_TRACE_BYTES, Trace

# Labels, and the phase that begins there.
PHASE_BY_LABEL = {
    "iteration start": "start",
    "warmup start": "warm_up",
    "forward start": "forward",
    "backward start": "backward",
    "cooldown start": "cool_down",
    "allreduce start": "all_reduce",
    "iteration end": "",
}
# The same without spaces: files differ in them, and in signs, which readers leave out before they compare.
LABELS = {label.replace(" ", ""): phase for label, phase in PHASE_BY_LABEL.items()}
PHASES = ("start", "warm_up", "forward", "backward", "cool_down", "all_reduce", "other")
MOST_S = 86_400.0  # Seconds between two marks that nobody measures: rather another unit
MOST_NOTICES = 20
LAST_STAGE_LANE, WAIT_LANE = "stage-last", "earlier"
_SPAN_KINDS = {"forward": "forward", "backward": "backward", "all_reduce": "gradients", "start": "other"}
_WAIT_KINDS = {"warm_up": "forward", "cool_down": "backward"}


@dataclass
class _Iteration:
    """One iteration: its phases in order."""

    number: int
    """From 1, as they begin in the file."""
    row: int
    before_s: float
    """Since the mark before: what lies between iterations."""
    parts: list[tuple[str, float]] = field(default_factory=list)
    phase: str = "start"
    """The phase that began at the last mark."""
    broken: bool = False

    @property
    def seconds(self) -> float:
        return math.fsum(s for _, s in self.parts)

    @property
    def has_phases(self) -> bool:
        return any(phase in ("forward", "backward") for phase, _ in self.parts)

    @property
    def labeled_parts(self) -> list[tuple[str, float]]:
        """Its parts; without marks of passes, what comes before the all-reduce is one part."""
        return [(p if self.has_phases or p == "all_reduce" else "other", s) for p, s in self.parts]

    def sum_phases_s(self) -> dict[str, float]:
        """Seconds by phase; they add up to the iteration. [K43]"""
        phases_s: dict[str, float] = {}
        for name, seconds in self.labeled_parts:
            phases_s[name] = phases_s.get(name, 0.0) + seconds
        return {name: phases_s[name] for name in PHASES if name in phases_s}


class _MarkReader:
    """Goes through the rows once and collects whole iterations and notices."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.finished: list[_Iteration] = []
        self.current: _Iteration | None = None
        self.row_notices: list[Notice] = []
        self.bad = self.stray = self.rows = self.started = 0
        self.cut_rows: list[int] = []

    def read_row(self, number: int, cells: list[str]) -> None:
        """One row of the file."""
        cells = [cell.strip() for cell in cells]
        if not any(cells):
            return
        self.rows += 1
        label = LABELS.get(re.sub(r"[^a-z]", "", cells[0].lower()))
        if number == 1 and label is None and len(cells) > 1 and _parse_seconds(cells[1]) is None:
            return  # a header, though there should be none
        seconds = _parse_seconds(cells[1]) if len(cells) > 1 else None
        if len(cells) < 2 or not cells[1]:
            self.add_bad_row(number, "benchmark_row_short", cells[0])
        elif seconds is None:
            self.add_bad_row(number, "benchmark_not_seconds", cells[1])
        elif seconds < 0:
            self.add_bad_row(number, "benchmark_negative", cells[1])
        elif seconds > MOST_S and self.rows > 1:  # the first mark counts from the start of the process
            self.add_bad_row(number, "benchmark_unit", cells[1], hours=round(seconds / 3600))
            seconds = None
        elif label is None:
            self.add_bad_row(number, "benchmark_label", cells[0], breaks=False, allowed=list(PHASE_BY_LABEL))
        self.add_mark(number, label, seconds if seconds is not None and seconds >= 0 else None)

    def add_mark(self, number: int, label: str | None, seconds: float | None) -> None:
        """A mark, with the time since the one before; None: not known."""
        if label == "start":
            if self.current is not None:
                self.cut_rows.append(self.current.row)
            self.started += 1
            self.current = _Iteration(number=self.started, row=number, before_s=seconds or 0.0)
            return
        if self.current is None:
            self.stray += 1
            return
        if seconds is None:
            self.current.broken = True
        else:
            self.current.parts.append((self.current.phase, seconds))
        if label:
            self.current.phase = label
        elif label == "":
            if not self.current.broken and self.current.seconds > 0:
                self.finished.append(self.current)
            elif not self.current.broken:
                self.add_bad_row(number, "benchmark_no_time", self.current.row)
            self.current = None

    def add_bad_row(self, number: int, code: str, value: Any, *, breaks: bool = True, **params: Any) -> None:
        """Count a row that cannot be used and note it; its iteration is left out where a time is unknown."""
        self.bad += 1
        if breaks and self.current is not None:
            self.current.broken = True
        if len(self.row_notices) < MOST_NOTICES:
            row_params = {"row": number, **params}
            notice = Notice(code=code, field=f"row {number}", value=value, params=row_params, level="warning")
            self.row_notices.append(notice.with_place(self.file, number))

    def build_notices(self) -> list[Notice]:
        """What was left out, and what to bear in mind."""
        notices: list[Notice] = []
        if self.bad:
            params = {"count": self.bad, "told": len(self.row_notices)}
            notices += [Notice(code="trace_rows_bad", level="warning", field="trace", params=params), *self.row_notices]
        if self.current is not None:
            self.cut_rows.append(self.current.row)
        if self.cut_rows:
            params = {"count": len(self.cut_rows), "row": self.cut_rows[0]}
            notices.append(Notice(code="benchmark_cut", level="warning", params=params, file=self.file))
        if self.stray:
            notices.append(Notice(code="benchmark_stray", level="note", params={"count": self.stray}, file=self.file))
        return notices


def read_benchmark(
    text: str | bytes, *, name: str = "benchmark.csv", chosen_step: str | int | None = None
) -> ImportedRun:
    """The iterations of a benchmark; an `InputError` where there is none.

    Rows that cannot be used are reported with their number, and their iteration is left out.
    """
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(data) > MAX_TRACE_BYTES:
        params = {"limit_mib": MAX_TRACE_BYTES // 2**20}
        raise FileError(Notice(code="trace_too_large", value=name, params=params, file=name))
    reader = _MarkReader(name)
    try:
        for number, cells in enumerate(csv.reader(io.StringIO(data.decode("utf-8-sig", "replace"))), 1):
            reader.read_row(number, cells)
    except csv.Error as error:
        raise FileError(Notice(code="trace_not_csv", field="trace", params={"reason": str(error)}, file=name)) from None
    notices = reader.build_notices()
    if not reader.finished:
        raise InvalidError(
            Notice(code="benchmark_empty", value=name, params={"rows": reader.rows}, file=name), *notices
        )
    iterations = _keep_last(reader.finished)
    if len(iterations) < len(reader.finished):
        params = {"count": len(reader.finished), "shown": len(iterations)}
        notices.append(Notice(code="trace_steps_left_out", level="warning", params=params, file=name))
    without_phases = sum(not iteration.has_phases for iteration in iterations)
    if without_phases:
        notices.append(Notice(code="benchmark_no_phases", level="warning", params={"count": without_phases}, file=name))
    notices.append(Notice(code="benchmark_host_clock", level="note", file=name))
    return ImportedRun.from_trace(
        _build_trace(iterations, name),
        phases={iteration.number: iteration.sum_phases_s() for iteration in iterations},
        notices=tuple(notices),
        bad_rows=reader.bad,
        chosen_step=chosen_step,
    )


def _parse_seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _keep_last(iterations: list[_Iteration]) -> list[_Iteration]:
    """The last iterations that fit into a trace."""
    last_first: list[_Iteration] = []
    spans = 0
    for iteration in reversed(iterations):
        spans += len(iteration.parts)
        if spans > MAX_SPANS or len(last_first) == MAX_LANES:
            break
        last_first.append(iteration)
    return last_first[::-1]


def _build_trace(iterations: list[_Iteration], name: str) -> Trace:
    """Iterations one after the other, with what lies between them."""
    spans: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    now_s = 0.0
    for index, iteration in enumerate(iterations):
        now_s += min(iteration.before_s, MOST_S) if index else 0.0
        start_s, passes = now_s, {"forward": 0, "backward": 0}
        for phase, seconds in iteration.labeled_parts:
            end_s = now_s + seconds
            fields: dict[str, Any] = {"start_s": now_s, "end_s": end_s}
            if phase in passes:
                fields["micro_batch"], passes[phase] = passes[phase], passes[phase] + 1
            is_wait = phase in _WAIT_KINDS
            kind = _WAIT_KINDS[phase] if is_wait else _SPAN_KINDS.get(phase, "other")
            spans.append({"lane": WAIT_LANE if is_wait else LAST_STAGE_LANE, "kind": kind, "name": phase, **fields})
            now_s = end_s
        last_s = max(now_s, math.nextafter(start_s, math.inf))
        steps.append({"step": iteration.number, "start_s": start_s, "end_s": last_s})
    lanes = [{"id": LAST_STAGE_LANE, "name": "last stage", "group": "stages"}]
    if any(span["lane"] == WAIT_LANE for span in spans):
        lanes.append({"id": WAIT_LANE, "name": "earlier stages, which the last one waits for", "group": "waits"})
    micro_batches = sum(1 for phase, _ in iterations[-1].parts if phase == "forward")
    meta: dict[str, Any] = {"format": "benchmark.csv", "clock": "host, not synchronised"}
    if micro_batches:
        meta["micro_batches"] = micro_batches
    document = {"version": 1, "kind": "measured", "name": name[:100] or "benchmark", "lanes": lanes, "spans": spans}
    return parse(Trace, document | {"steps": steps, "meta": meta})
