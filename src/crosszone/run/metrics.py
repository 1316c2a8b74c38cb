"""Metrics: the steps of a run as its trainers wrote them, all stages together, with what each step's time went into.

    rows = rows_of(runner, after=120)
    rows[0]["step"], rows[0]["loss"], rows[0]["step_s"], rows[0]["parts"]["communication_s"]

The parts add up to the step: compute_s (passes and update), communication_s (exchanges that ran beside no compute),
input_s (batches), waiting_s (of a pipeline: for other stages), other_s (what no span tells). Outside the step lie
checkpoint_s (written since the step before) and between_s (all else since then). Where a pipeline has several stages,
the parts are those of the stage that computes longest, for it sets the pace.

Progress: how far a run is, from the metrics it writes; each line is read once, but where a file was thinned out.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

from crosszone.deploy.trainer.metrics_file import sum_seconds_by_kind
from crosszone.run.runners.runner import NodeStatus, Runner
from crosszone.run.work import Work
from crosszone.schedule.timeline import COMMUNICATION, COMPUTE

FOLDER = "bundle/out"
BLOCK = 2**20  # Bytes of a file that are read at once
PARTS = ("compute_s", "communication_s", "input_s", "waiting_s", "other_s")  # What a step is made of
_CLASS = {
    **dict.fromkeys(COMPUTE, "compute_s"),
    **dict.fromkeys(COMMUNICATION, "communication_s"),
    "data": "input_s",
}
_TAKEN = ("loss", "lr", "grad_norm", "tokens", "memory_gib")
Row = dict[str, Any]


class _WithWork(Protocol):
    work: Work


def rows_of(runner: Runner, *, after: int = -1, limit: int = 1000, newest: bool = False) -> tuple[Row, ...]:
    """Steps after a step, oldest first, at most `limit`; `newest`: the last ones instead of the first.

    A step counts when every stage has written it. `MachineError`: a machine does not answer.
    """
    work = _work(runner)
    stages = []
    for stage, node in stage_nodes(work).items():
        name = f"{FOLDER}/metrics-stage-{stage}.jsonl"
        stages.append(steps_of(_lines(runner, node, name, after=after, most=limit if newest else None)))
    rows = [row for row in merged(stages) if row["step"] > after]
    return tuple(rows[-limit:] if newest else rows[:limit])


def stage_nodes(work: Work) -> dict[int, int]:
    """Stage -> number of the node whose rank writes its metrics: that of the stage's first rank."""
    text = next((file.text for file in work.bundle.files if file.path == "settings.json"), None)
    if text is None:
        return {0: 0}
    settings = json.loads(text)
    found: dict[int, int] = {}
    for rank, node in enumerate(settings["node_of_rank"]):
        left, at = rank, {}
        for axis in settings["order"]:
            left, at[axis] = divmod(left, settings["strategy"][axis])
        found.setdefault(at["pp"], node)
    return dict(sorted(found.items()))


def steps_of(lines: Iterable[bytes]) -> dict[int, Row]:
    """The steps of one stage's file by number; a start takes the place of the steps it did again.

    A line that a crash cut off, or that was begun before what was read, is left out.
    """
    rows: dict[int, Row] = {}
    start, first = 0, True
    about: dict[str, Any] = {}
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if not isinstance(document, dict):
            continue
        if "lanes" in document:
            start, first = start + 1, True
            about = document["meta"] if isinstance(document.get("meta"), dict) else {}
            continue
        row = _row(document)
        if row is None:
            continue
        if first and start > 1:
            rows = {number: kept for number, kept in rows.items() if number < row["step"]}
        first = False
        began = about.get("started_unix_s")
        ended = None if began is None else began + row["end_s"]
        rows[row["step"]] = row | {"start": max(0, start - 1), "device": about.get("device"), "ended_unix_s": ended}
    return rows


def merged(stages: Sequence[Mapping[int, Row]]) -> list[Row]:
    """Steps that all stages have, in order: the first start, the last end, the pace of the slowest, memory of most."""
    if not stages:
        return []
    common = sorted(set.intersection(*(set(rows) for rows in stages)))
    found: list[Row] = []
    for number in common:
        found.append(_merged([rows[number] for rows in stages], found[-1] if found else None))
    return found


def grouped(kinds: Mapping[str, float], step_s: float, *, stages: int) -> dict[str, float]:
    """Seconds by part from seconds by kind of span; they add up to the step."""
    parts = dict.fromkeys(PARTS, 0.0)
    for kind, seconds in kinds.items():
        if kind in _CLASS:
            parts[_CLASS[kind]] += seconds
    told = sum(parts.values())
    if told > step_s > 0:  # spans of a GPU are timed by its own clock
        parts = {name: seconds * step_s / told for name, seconds in parts.items()}
    parts["waiting_s" if stages > 1 else "other_s"] += max(0.0, step_s - sum(parts.values()))
    return parts


def _row(document: Mapping[str, Any]) -> Row | None:
    """One line as it is needed; None where it is no step."""
    try:
        row: Row = {key: document.get(key) for key in _TAKEN}
        row |= {"step": int(document["step"]), "start_s": float(document["start_s"]), "end_s": float(document["end_s"])}
        given = document.get("kinds_s")
        row["kinds_s"] = dict(given) if isinstance(given, dict) else sum_seconds_by_kind(document.get("spans") or ())
        row["checkpoint_s"] = document.get("checkpoint_s")
    except (KeyError, TypeError, ValueError):
        return None
    return row


def _merged(rows: Sequence[Row], before: Row | None) -> Row:
    start, end = min(row["start_s"] for row in rows), max(row["end_s"] for row in rows)
    step_s = max(0.0, end - start)
    parts = [grouped(row["kinds_s"], step_s, stages=len(rows)) for row in rows]

    def known(key: str) -> list[Any]:
        return [row[key] for row in rows if row[key] is not None]

    tokens = next(iter(known("tokens")), None)
    follows = before is not None and before["start"] == rows[0]["start"] and before["step"] + 1 == rows[0]["step"]
    checkpoint = max(known("checkpoint_s"), default=0.0)
    gap = max(0.0, start - before["end_s"]) if before is not None and follows else None
    return {
        "step": rows[0]["step"],
        "start": rows[0]["start"],
        "device": rows[0]["device"],
        "ended_unix_s": rows[0]["ended_unix_s"],
        "start_s": start,
        "end_s": end,
        "step_s": step_s,
        "loss": next(iter(known("loss")), None),
        "lr": next(iter(known("lr")), None),
        "grad_norm": next(iter(known("grad_norm")), None),
        "tokens": tokens,
        "tokens_per_s": tokens / step_s if tokens is not None and step_s > 0 else None,
        "memory_gib": max(known("memory_gib"), default=None),
        "parts": max(parts, key=lambda one: one["compute_s"]),
        "checkpoint_s": checkpoint,
        "between_s": None if gap is None else max(0.0, gap - checkpoint),
    }


def _work(runner: Any) -> Work:
    held: _WithWork = runner
    return held.work


def _lines(runner: Runner, node: int, name: str, *, after: int, most: int | None) -> Iterator[bytes]:
    """The lines of a file from its end back to the step asked for, or as many as are asked for; then in order."""
    told, data = runner.read(node, name, -BLOCK, BLOCK)
    begin, size = int(told["offset"]), int(told["size"])
    while begin > 0 and not _enough(data, after, most):
        earlier = max(0, begin - BLOCK)
        told, more = runner.read(node, name, earlier, begin - earlier)
        if int(told["size"]) < size or int(told["offset"]) != earlier:
            break  # it was thinned out in between: what is there will do until the next look
        begin, data = earlier, more + data
    whole, _, _ = data.rpartition(b"\n")
    return iter(whole.split(b"\n")[1 if begin > 0 else 0 :])


def _enough(data: bytes, after: int, most: int | None) -> bool:
    """What was read reaches back to the step asked for."""
    if most is not None and data.count(b"\n") > most + 1:
        return True
    if after < 0:
        return False
    for line in data.split(b"\n")[1:]:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and "step" in document:
            return int(document["step"]) <= after
    return False


METRICS = "bundle/out/metrics-stage-"
WINDOW = 20  # Steps whose median is told
FIRST_BYTES = 2**16  # Bytes at the beginning of a file that hold its first step
MOST_BYTES = 2**20  # Bytes of a file that are read at once; what is before was skipped


class Progress:
    """What is known of a run so far."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, str], int] = {}
        self._torn: dict[tuple[int, str], bytes] = {}
        self._steps: deque[float] = deque(maxlen=WINDOW)
        self._told: dict[str, Any] = {}

    def read(self, runner: Runner, seen: tuple[NodeStatus, ...]) -> dict[str, Any]:
        """Step, loss, tokens/s, seconds a step (median of the last ones), memory; and the state of every node."""
        for node in seen:
            for name, size in node.files.items():
                if name.startswith(METRICS) and size != self._offsets.get((node.number, name), 0):
                    self._file(runner, node.number, name, size)
        nodes = [{"number": node.number, "state": node.state, "code": node.code} for node in seen]
        return {**self._told, "nodes": nodes}

    def _file(self, runner: Runner, number: int, name: str, size: int) -> None:
        key = (number, name)
        offset = self._offsets.get(key, 0)
        if size < offset or size - offset > MOST_BYTES:  # thinned out, or long: its newest part tells all but one thing
            if "first_loss" not in self._told:
                self._first_loss(runner.read(number, name, 0, FIRST_BYTES)[1])
            offset, self._torn[key] = max(0, size - MOST_BYTES), b""
        _, data = runner.read(number, name, offset, MOST_BYTES)
        whole, _, torn = (self._torn.get(key, b"") + data).rpartition(b"\n")
        self._offsets[key], self._torn[key] = offset + len(data), torn
        for line in whole.split(b"\n"):
            self._line(line, first=name.startswith(f"{METRICS}0."))

    def _first_loss(self, data: bytes) -> None:
        """The loss a run began with, from the beginning of a file."""
        for line in data.split(b"\n"):
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and row.get("loss") is not None:
                    self._told["first_loss"] = row["loss"]
                    return

    def _line(self, line: bytes, *, first: bool) -> None:
        try:
            row = json.loads(line)
        except ValueError:
            return  # cut off by a crash, or begun before what was read
        if not isinstance(row, dict) or "step" not in row:
            return
        memory = row.get("memory_gib")
        if memory is not None:
            self._told["memory_gib"] = max(memory, self._told.get("memory_gib", 0.0))
        if row.get("loss") is not None:
            self._told["loss"] = row["loss"]
            self._told.setdefault("first_loss", row["loss"])
        if first:
            self._steps.append(row["end_s"] - row["start_s"])
            self._told |= {"step": row["step"], "step_s": median(self._steps), "tokens_per_s": row.get("tokens_per_s")}
