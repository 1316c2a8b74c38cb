"""Metrics file: a file of JSON lines that never grows beyond a size, however long a run is.

    lines = MetricsFile(Path("out/metrics-stage-0.jsonl"), max_bytes=16 * 2**20)
    lines.write(header)                     # {"lanes": ...}: a start begins
    lines.write({"step": 1, "spans": [...], ...})

When it is full, older steps lose their spans (what is left are the seconds of each kind) and, where that is not enough,
only every 2nd, 4th, ... of them stays; the first steps, the first one of every start and the newest ones remain. The
file is replaced as a whole, so a crash leaves the old one or the new one. Needs the standard library only, but for
spans on a GPU.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FIRST = 10  # Steps from the first on that are never left out
# Where spans run at once, the moment belongs to the first of these.
ORDER = (
    "forward", "backward", "weight", "optimizer", "send", "tensor", "experts", "gradients", "parameters", "data",
)  # fmt: skip


class SpanRecorder:
    """Times of the parts of a step on one pipeline stage; on a GPU spans lie between CUDA events, read once a step."""

    def __init__(self, lane: str, *, cuda: bool = False) -> None:
        self.lane, self.cuda = lane, cuda
        self.zero = 0.0
        """What seconds count from, by time.perf_counter."""
        self.step_start, self.first = 0.0, None
        self.spans: list[tuple[str, Any, Any, dict[str, Any]]] = []

    def build_header(self, settings: Mapping[str, Any], rank: int, **meta: Any) -> dict[str, Any]:
        """The first line of a start: the lane, and what the numbers are of."""
        zone = (settings.get("zones") or ["zone"])[settings["zone_of_rank"][rank]]
        return {
            "version": 1,
            "kind": "measured",
            "name": str(settings.get("name") or "run"),
            "unit": "s",
            "lanes": [{"id": self.lane, "name": f"{zone}, stage {meta['stage']}", "group": "stages"}],
            "meta": {**meta, "started_unix_s": round(time.time(), 3)},
        }

    def start_step(self) -> None:
        """A step begins. The GPU must be idle, so that times of host and events meet."""
        self.spans, self.first = [], self.mark()
        self.step_start = time.perf_counter() - self.zero

    def mark(self) -> Any:
        """The present moment: on a GPU, when the work queued so far is done."""
        if not self.cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def get_seconds(self, mark: Any) -> float:
        """A mark in seconds since the start."""
        if self.cuda:
            return self.step_start + self.first.elapsed_time(mark) / 1e3
        return mark - self.zero

    def build_row(self, step: int) -> dict[str, Any]:
        """The line of the step that ends here; on a GPU its work must be done."""
        end = time.perf_counter() - self.zero
        spans = []
        for kind, start, stop, about in self.spans:
            times = {"start_s": round(self.get_seconds(start), 6), "end_s": round(self.get_seconds(stop), 6)}
            spans.append({"lane": self.lane, "kind": kind, **times, **about})
        return {"step": step, "start_s": round(self.step_start, 6), "end_s": round(end, 6), "spans": spans}


class MetricsFile:
    """One file, appended to line by line."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes = path, max_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_cut_off(path):
            self.append("\n")

    def write(self, document: dict[str, Any]) -> None:
        """Add a line; thin out what is there where it would not fit."""
        text = json.dumps(document) + "\n"  # ASCII: a character is a byte
        size = self.path.stat().st_size if self.path.exists() else 0
        if size and size + len(text) > self.max_bytes:
            self.reduce()
        self.append(text)

    def append(self, text: str) -> None:
        """Add to the end."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

    def reduce(self) -> None:
        """Bring the file down to half of what it may have."""
        lines = reduce_lines(self.path.read_text(encoding="utf-8", errors="replace").split("\n"), self.max_bytes // 2)
        fresh = self.path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)


def reduce_lines(lines: list[str], max_bytes: int) -> list[str]:
    """The lines that fit into some bytes: as many of the newest as fill half of it whole, older ones shortened."""
    complete = [line for line in lines if line.strip() and parse_line(line) is not None]
    newest, room = len(complete), max_bytes // 2
    while newest and room >= len(complete[newest - 1]) + 1:
        newest -= 1
        room -= len(complete[newest]) + 1
    recent = complete[newest:]
    older = [json.dumps(drop_spans(parse_line(line))) for line in complete[:newest]]
    room_for_older = max_bytes - sum(len(line) + 1 for line in recent)
    every = 1
    while sum(len(line) + 1 for line in older) > room_for_older and every < 2**40:
        every *= 2
        older = select_lines(older, every)
    while older and sum(len(line) + 1 for line in older) > room_for_older:
        # A start after the other in so little room: the oldest start and the newest steps are what is left.
        older.pop(1 if len(older) > 1 and "lanes" in parse_line(older[0]) else 0)
    return older + recent


def select_lines(lines: list[str], every: int) -> list[str]:
    """Headers, the first steps, the first step of every start, and every so manieth of the others.

    Steps are chosen by their number, so that the files of all stages keep the same ones.
    """
    chosen_lines, begins = [], True
    for line in lines:
        document = parse_line(line)
        header = "lanes" in document
        step = document.get("step", 0)
        if header or begins or step <= FIRST or step % every == 0:
            chosen_lines.append(line)
        begins = header
    return chosen_lines


def drop_spans(row: dict[str, Any]) -> dict[str, Any]:
    """A step without its spans, but with the seconds of each kind."""
    if "spans" not in row:
        return row
    fields = {key: value for key, value in row.items() if key != "spans"}
    return fields | {
        "kinds_s": {kind: round(seconds, 6) for kind, seconds in sum_seconds_by_kind(row["spans"]).items()}
    }


def sum_seconds_by_kind(spans: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of each kind of span; no moment is counted twice."""
    edges = sorted({edge for span in spans for edge in (span["start_s"], span["end_s"])})
    at = {edge: place for place, edge in enumerate(edges)}
    owner: list[str | None] = [None] * len(edges)
    priority = {kind: place for place, kind in enumerate(ORDER)}
    for span in sorted(spans, key=lambda entry: priority.get(entry["kind"], len(ORDER))):
        for place in range(at[span["start_s"]], at[span["end_s"]]):
            owner[place] = owner[place] or span["kind"]
    seconds: dict[str, float] = {}
    for place, kind in enumerate(owner):
        if kind is not None:
            seconds[kind] = seconds.get(kind, 0.0) + edges[place + 1] - edges[place]
    return seconds


def parse_line(line: str) -> dict[str, Any] | None:
    """A line's document; None where a crash cut it off."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def is_cut_off(path: Path) -> bool:
    """The last line of a file was not written to its end."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
