"""Benchmark CSV: marks of the last pipeline stage, as a patched Megatron-LM writes them, as iterations with phases.

    iteration start,0.31          no header; label, seconds since the mark before
    warmup start,0.002            so a value belongs to the phase that ended at its label:
    forward start,0.120           0.120 s of warm-up,
    backward start,0.051          0.051 s of the first forward pass, ...
    cooldown start,0.098
    allreduce start,0.140         0.140 s of cool-down,
    iteration end,0.230           0.230 s of all-reduce, with the update

    found = read_benchmark(text)
    found.at("best").phases_s     # start, warm_up, forward, backward, cool_down, all_reduce: they add up to the step

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

# A label without spaces and signs, and the phase that begins there.
LABELS = {
    "iterationstart": "start",
    "warmupstart": "warm_up",
    "forwardstart": "forward",
    "backwardstart": "backward",
    "cooldownstart": "cool_down",
    "allreducestart": "all_reduce",
    "iterationend": "",
}
SPELLED = (
    "iteration start",
    "warmup start",
    "forward start",
    "backward start",
    "cooldown start",
    "allreduce start",
    "iteration end",
)
PHASES = ("start", "warm_up", "forward", "backward", "cool_down", "all_reduce", "other")
MOST_S = 86_400.0  # Seconds between two marks that nobody measures: rather another unit
MOST_TOLD = 20
STAGE, EARLIER = "stage-last", "earlier"
_KINDS = {"forward": "forward", "backward": "backward", "all_reduce": "gradients", "start": "other"}
_WAITS = {"warm_up": "forward", "cool_down": "backward"}


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
    """What goes on."""
    broken: bool = False

    @property
    def seconds(self) -> float:
        return math.fsum(s for _, s in self.parts)

    @property
    def has_phases(self) -> bool:
        return any(phase in ("forward", "backward") for phase, _ in self.parts)

    @property
    def named(self) -> list[tuple[str, float]]:
        """Its parts; without marks of passes, what comes before the all-reduce is not told apart."""
        return [(p if self.has_phases or p == "all_reduce" else "other", s) for p, s in self.parts]

    def phases_s(self) -> dict[str, float]:
        """Seconds by phase; they add up to the iteration. [K43]"""
        found: dict[str, float] = {}
        for name, seconds in self.named:
            found[name] = found.get(name, 0.0) + seconds
        return {name: found[name] for name in PHASES if name in found}


class _Reader:
    """Goes through the rows once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.done: list[_Iteration] = []
        self.open: _Iteration | None = None
        self.told: list[Notice] = []
        self.bad = self.stray = self.rows = self.begun = 0
        self.cut: list[int] = []

    def row(self, number: int, cells: list[str]) -> None:
        """One row of the file."""
        cells = [cell.strip() for cell in cells]
        if not any(cells):
            return
        self.rows += 1
        label = LABELS.get(re.sub(r"[^a-z]", "", cells[0].lower()))
        if number == 1 and label is None and len(cells) > 1 and _number(cells[1]) is None:
            return  # a header, though there should be none
        seconds = _number(cells[1]) if len(cells) > 1 else None
        if len(cells) < 2 or not cells[1]:
            self.wrong(number, "benchmark_row_short", cells[0])
        elif seconds is None:
            self.wrong(number, "benchmark_not_seconds", cells[1])
        elif seconds < 0:
            self.wrong(number, "benchmark_negative", cells[1])
        elif seconds > MOST_S and self.rows > 1:
            self.wrong(number, "benchmark_unit", cells[1], hours=round(seconds / 3600))
            seconds = None
        elif label is None:
            self.wrong(number, "benchmark_label", cells[0], breaks=False, allowed=list(SPELLED))
        self.mark(number, label, seconds if seconds is not None and seconds >= 0 else None)

    def mark(self, number: int, label: str | None, seconds: float | None) -> None:
        """A mark, with the time since the one before; None: not known."""
        if label == "start":
            if self.open is not None:
                self.cut.append(self.open.row)
            self.begun += 1
            self.open = _Iteration(number=self.begun, row=number, before_s=seconds or 0.0)
            return
        if self.open is None:
            self.stray += 1
            return
        if seconds is None:
            self.open.broken = True
        else:
            self.open.parts.append((self.open.phase, seconds))
        if label:
            self.open.phase = label
        elif label == "":
            if not self.open.broken and self.open.seconds > 0:
                self.done.append(self.open)
            elif not self.open.broken:
                self.wrong(number, "benchmark_no_time", self.open.row)
            self.open = None

    def wrong(self, number: int, code: str, value: Any, *, breaks: bool = True, **params: Any) -> None:
        """Count and tell a row that cannot be used; the iteration it lies in is left out where its time is unknown."""
        self.bad += 1
        if breaks and self.open is not None:
            self.open.broken = True
        if len(self.told) < MOST_TOLD:
            about = {"row": number, **params}
            self.told.append(
                Notice(
                    code=code,
                    field=f"row {number}",
                    value=value,
                    params=about,
                    level="warning",
                    file=self.file,
                    line=number,
                )
            )

    def notices(self) -> list[Notice]:
        """What was left out, and what to bear in mind."""
        found: list[Notice] = []
        if self.bad:
            params = {"count": self.bad, "told": len(self.told)}
            found += [Notice(code="trace_rows_bad", level="warning", field="trace", params=params), *self.told]
        if self.open is not None:
            self.cut.append(self.open.row)
        if self.cut:
            params = {"count": len(self.cut), "row": self.cut[0]}
            found.append(Notice(code="benchmark_cut", level="warning", params=params, file=self.file))
        if self.stray:
            found.append(Notice(code="benchmark_stray", level="note", params={"count": self.stray}, file=self.file))
        return found


def read_benchmark(
    text: str | bytes, *, name: str = "benchmark.csv", chosen_step: str | int | None = None
) -> ImportedRun:
    """The iterations of a benchmark; an `InputError` where there is none.

    Rows that cannot be used are told with their number, and their iteration is left out.
    """
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(data) > MAX_TRACE_BYTES:
        params = {"limit_mib": MAX_TRACE_BYTES // 2**20}
        raise FileError(Notice(code="trace_too_large", value=name, params=params, file=name))
    reader = _Reader(name)
    try:
        for number, cells in enumerate(csv.reader(io.StringIO(data.decode("utf-8-sig", "replace"))), 1):
            reader.row(number, cells)
    except csv.Error as error:
        raise FileError(Notice(code="trace_not_csv", field="trace", params={"reason": str(error)}, file=name)) from None
    notices = reader.notices()
    if not reader.done:
        raise InvalidError(
            Notice(code="benchmark_empty", value=name, params={"rows": reader.rows}, file=name), *notices
        )
    kept = _fitting(reader.done)
    if len(kept) < len(reader.done):
        params = {"count": len(reader.done), "shown": len(kept)}
        notices.append(Notice(code="trace_steps_left_out", level="warning", params=params, file=name))
    bare = sum(not one.has_phases for one in kept)
    if bare:
        notices.append(Notice(code="benchmark_no_phases", level="warning", params={"count": bare}, file=name))
    notices.append(Notice(code="benchmark_host_clock", level="note", file=name))
    return ImportedRun.of_trace(
        _trace(kept, name),
        phases={one.number: one.phases_s() for one in kept},
        notices=tuple(notices),
        bad_rows=reader.bad,
        chosen_step=chosen_step,
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _fitting(done: list[_Iteration]) -> list[_Iteration]:
    """The last iterations that fit into a trace."""
    kept: list[_Iteration] = []
    spans = 0
    for one in reversed(done):
        spans += len(one.parts)
        if spans > MAX_SPANS or len(kept) == MAX_LANES:
            break
        kept.append(one)
    return kept[::-1]


def _trace(kept: list[_Iteration], name: str) -> Trace:
    """Iterations one after the other, with what lies between them."""
    spans: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    now = 0.0
    for at, one in enumerate(kept):
        now += min(one.before_s, MOST_S) if at else 0.0
        start, micro = now, {"forward": 0, "backward": 0}
        for phase, seconds in one.named:
            end = now + seconds
            about: dict[str, Any] = {"start_s": now, "end_s": end}
            if phase in micro:
                about["micro_batch"], micro[phase] = micro[phase], micro[phase] + 1
            if phase in _WAITS:
                spans.append({"lane": EARLIER, "kind": _WAITS[phase], "name": phase, **about})
            else:
                spans.append({"lane": STAGE, "kind": _KINDS.get(phase, "other"), "name": phase, **about})
            now = end
        steps.append({"step": one.number, "start_s": start, "end_s": max(now, math.nextafter(start, math.inf))})
    lanes = [{"id": STAGE, "name": "last stage", "group": "stages"}]
    if any(span["lane"] == EARLIER for span in spans):
        lanes.append({"id": EARLIER, "name": "earlier stages, which the last one waits for", "group": "waits"})
    micro_batches = sum(1 for phase, _ in kept[-1].parts if phase == "forward")
    meta: dict[str, Any] = {"format": "benchmark.csv", "clock": "host, not synchronised"}
    if micro_batches:
        meta["micro_batches"] = micro_batches
    document = {"version": 1, "kind": "measured", "name": name[:100] or "benchmark", "lanes": lanes, "spans": spans}
    return parse(Trace, document | {"steps": steps, "meta": meta})
