"""Metrics: the steps of a run as its trainers wrote them, all stages together, with what each step's time went into.

    rows = read_rows(runner, after=120)
    rows[0]["step"], rows[0]["loss"], rows[0]["step_s"], rows[0]["parts"]["communication_s"]

The parts add up to the step: compute_s (passes and update), communication_s (exchanges that ran beside no compute),
input_s (batches), waiting_s (of a pipeline: for other stages), other_s (what no span tells). Outside the step lie
checkpoint_s (written since the step before) and between_s (all else since then). Where a pipeline has several stages,
the parts are those of the stage that computes longest, for it sets the pace.

Progress: how far a run is, from the metrics it writes; each line is read once, but where a file was thinned out.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from crosszone.deploy.trainer.metrics_file import sum_seconds_by_kind
from crosszone.run.runners.runner import NodeStatus, Runner
from crosszone.run.work import TaskWork
from crosszone.schedule.timeline import COMMUNICATION, COMPUTE

METRICS_PREFIX = "bundle/out/metrics-stage-"
BLOCK_BYTES = 2**20  # Bytes of a file that are read at once
PARTS = ("compute_s", "communication_s", "input_s", "waiting_s", "other_s")  # What a step is made of
_PART_OF_KIND = {
    **dict.fromkeys(COMPUTE, "compute_s"),
    **dict.fromkeys(COMMUNICATION, "communication_s"),
    "data": "input_s",
}
_COPIED_KEYS = ("loss", "lr", "grad_norm", "tokens", "memory_gib")
Row = dict[str, Any]


def read_rows(runner: Runner, *, after: int = -1, limit: int = 1000, newest: bool = False) -> tuple[Row, ...]:
    """Steps after a step, oldest first, at most `limit`; `newest`: the last ones instead of the first.

    A step counts when every stage has written it. `MachineError`: a machine does not answer.
    """
    stages = []
    for stage, node in map_stage_nodes(runner.work).items():
        name = f"{METRICS_PREFIX}{stage}.jsonl"
        stages.append(parse_steps(_read_lines(runner, node, name, after=after, max_lines=limit if newest else None)))
    rows = [row for row in merge_stages(stages) if row["step"] > after]
    return tuple(rows[-limit:] if newest else rows[:limit])


def map_stage_nodes(work: TaskWork) -> dict[int, int]:
    """Stage -> number of the node whose rank writes its metrics: that of the stage's first rank."""
    settings = work.trainer_settings
    if settings is None:
        return {0: 0}
    node_of_stage: dict[int, int] = {}
    for rank, node in enumerate(settings["node_of_rank"]):
        remainder, position = rank, {}
        for axis in settings["order"]:
            remainder, position[axis] = divmod(remainder, settings["strategy"][axis])
        node_of_stage.setdefault(position["pp"], node)
    return dict(sorted(node_of_stage.items()))


def parse_steps(lines: Iterable[bytes]) -> dict[int, Row]:
    """The steps of one stage's file by number; a start takes the place of the steps it did again.

    A line that a crash cut off, or that was begun before what was read, is left out.
    """
    rows: dict[int, Row] = {}
    start, first = 0, True
    meta: dict[str, Any] = {}
    for line in lines:
        document = _parse_line(line)
        if "lanes" in document:
            start, first = start + 1, True
            meta = document["meta"] if isinstance(document.get("meta"), dict) else {}
            continue
        row = _parse_row(document)
        if row is None:
            continue
        if first and start > 1:
            rows = {number: earlier for number, earlier in rows.items() if number < row["step"]}
        first = False
        started = meta.get("started_unix_s")
        ended = None if started is None else started + row["end_s"]
        rows[row["step"]] = row | {"start": max(0, start - 1), "device": meta.get("device"), "ended_unix_s": ended}
    return rows


def merge_stages(stages: Sequence[Mapping[int, Row]]) -> list[Row]:
    """Steps that all stages have, in order: the first start, the last end, the pace of the slowest, memory of most."""
    if not stages:
        return []
    common = sorted(set.intersection(*(set(rows) for rows in stages)))
    steps: list[Row] = []
    for number in common:
        steps.append(_merge_rows([rows[number] for rows in stages], steps[-1] if steps else None))
    return steps


def group_seconds(kinds: Mapping[str, float], step_s: float, *, stages: int) -> dict[str, float]:
    """Seconds by part from seconds by kind of span; they add up to the step."""
    parts = dict.fromkeys(PARTS, 0.0)
    for kind, seconds in kinds.items():
        if kind in _PART_OF_KIND:
            parts[_PART_OF_KIND[kind]] += seconds
    sum_s = sum(parts.values())
    if sum_s > step_s > 0:  # spans of a GPU are timed by its own clock
        parts = {name: seconds * step_s / sum_s for name, seconds in parts.items()}
    parts["waiting_s" if stages > 1 else "other_s"] += max(0.0, step_s - sum(parts.values()))
    return parts


def _parse_row(document: Mapping[str, Any]) -> Row | None:
    """The fields of a step that are used; None: the line is no step."""
    try:
        row: Row = {key: document.get(key) for key in _COPIED_KEYS}
        row |= {"step": int(document["step"]), "start_s": float(document["start_s"]), "end_s": float(document["end_s"])}
        seconds_by_kind = document.get("kinds_s")
        if not isinstance(seconds_by_kind, dict):
            seconds_by_kind = sum_seconds_by_kind(document.get("spans") or ())
        row["kinds_s"] = dict(seconds_by_kind)
        row["checkpoint_s"] = document.get("checkpoint_s")
    except (KeyError, TypeError, ValueError):
        return None
    return row


def _merge_rows(rows: Sequence[Row], before: Row | None) -> Row:
    start, end = min(row["start_s"] for row in rows), max(row["end_s"] for row in rows)
    step_s = max(0.0, end - start)
    parts = [group_seconds(row["kinds_s"], step_s, stages=len(rows)) for row in rows]

    def list_values(key: str) -> list[Any]:
        return [row[key] for row in rows if row[key] is not None]

    tokens = next(iter(list_values("tokens")), None)
    follows = before is not None and before["start"] == rows[0]["start"] and before["step"] + 1 == rows[0]["step"]
    checkpoint = max(list_values("checkpoint_s"), default=0.0)
    gap = max(0.0, start - before["end_s"]) if before is not None and follows else None
    return {
        "step": rows[0]["step"],
        "start": rows[0]["start"],
        "device": rows[0]["device"],
        "ended_unix_s": rows[0]["ended_unix_s"],
        "start_s": start,
        "end_s": end,
        "step_s": step_s,
        "loss": next(iter(list_values("loss")), None),
        "lr": next(iter(list_values("lr")), None),
        "grad_norm": next(iter(list_values("grad_norm")), None),
        "tokens": tokens,
        "tokens_per_s": tokens / step_s if tokens is not None and step_s > 0 else None,
        "memory_gib": max(list_values("memory_gib"), default=None),
        "parts": max(parts, key=lambda stage_parts: stage_parts["compute_s"]),
        "checkpoint_s": checkpoint,
        "between_s": None if gap is None else max(0.0, gap - checkpoint),
    }


def _read_lines(runner: Runner, node: int, name: str, *, after: int, max_lines: int | None) -> Iterator[bytes]:
    """The lines of a file from its end back to the step asked for, or as many as are asked for; then in order."""
    file_range, data = runner.read(node, name, -BLOCK_BYTES, BLOCK_BYTES)
    begin, size = int(file_range["offset"]), int(file_range["size"])
    while begin > 0 and not _has_enough(data, after, max_lines):
        earlier = max(0, begin - BLOCK_BYTES)
        file_range, earlier_data = runner.read(node, name, earlier, begin - earlier)
        if int(file_range["size"]) < size or int(file_range["offset"]) != earlier:
            break  # it was thinned out in between: what is there will do until the next look
        begin, data = earlier, earlier_data + data
    complete, _, _ = data.rpartition(b"\n")
    return iter(complete.split(b"\n")[1 if begin > 0 else 0 :])


def _has_enough(data: bytes, after: int, max_lines: int | None) -> bool:
    """The bytes reach back to the step asked for, or hold as many lines as are asked for."""
    if max_lines is not None and data.count(b"\n") > max_lines + 1:
        return True
    if after < 0:
        return False
    steps = (document["step"] for line in data.split(b"\n")[1:] if "step" in (document := _parse_line(line)))
    first = next(steps, None)
    return first is not None and int(first) <= after


def _parse_line(line: bytes) -> dict[str, Any]:
    """A line of a metrics file; empty where a crash cut it off, or it was begun before what was read."""
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


PROGRESS_WINDOW = 20  # Steps whose median is shown
FIRST_BYTES = 2**16  # Bytes at the beginning of a file that hold its first step
MAX_BYTES = 2**20  # Bytes of a file that are read at once; what is before was skipped


class RunProgress:
    """What is known of a run so far."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, str], int] = {}
        self._partial_lines: dict[tuple[int, str], bytes] = {}
        self._steps: deque[float] = deque(maxlen=PROGRESS_WINDOW)
        self._state: dict[str, Any] = {}

    def read(self, runner: Runner, statuses: tuple[NodeStatus, ...]) -> dict[str, Any]:
        """Step, loss, tokens/s, seconds a step (median of the last ones), memory; and the state of every node."""
        for node in statuses:
            for name, size in node.files.items():
                if name.startswith(METRICS_PREFIX) and size != self._offsets.get((node.number, name), 0):
                    self._read_file(runner, node.number, name, size)
        nodes = [{"number": node.number, "state": node.state, "code": node.code} for node in statuses]
        return {**self._state, "nodes": nodes}

    def _read_file(self, runner: Runner, number: int, name: str, size: int) -> None:
        key = (number, name)
        offset = self._offsets.get(key, 0)
        if size < offset or size - offset > MAX_BYTES:  # thinned out, or long: its newest part tells all but one thing
            if "first_loss" not in self._state:
                self._read_first_loss(runner.read(number, name, 0, FIRST_BYTES)[1])
            offset, self._partial_lines[key] = max(0, size - MAX_BYTES), b""
        _, data = runner.read(number, name, offset, MAX_BYTES)
        complete, _, partial_line = (self._partial_lines.get(key, b"") + data).rpartition(b"\n")
        self._offsets[key], self._partial_lines[key] = offset + len(data), partial_line
        for line in complete.split(b"\n"):
            self._add_line(line, first=name.startswith(f"{METRICS_PREFIX}0."))

    def _read_first_loss(self, data: bytes) -> None:
        """The loss a run began with, from the beginning of a file."""
        losses = (_parse_line(line).get("loss") for line in data.split(b"\n"))
        first_loss = next((loss for loss in losses if loss is not None), None)
        if first_loss is not None:
            self._state["first_loss"] = first_loss

    def _add_line(self, line: bytes, *, first: bool) -> None:
        row = _parse_line(line)
        if "step" not in row:
            return
        memory = row.get("memory_gib")
        if memory is not None:
            self._state["memory_gib"] = max(memory, self._state.get("memory_gib", 0.0))
        if row.get("loss") is not None:
            self._state["loss"] = row["loss"]
            self._state.setdefault("first_loss", row["loss"])
        if first:
            self._steps.append(row["end_s"] - row["start_s"])
            self._state |= {"step": row["step"], "step_s": median(self._steps), "tokens_per_s": row.get("tokens_per_s")}
