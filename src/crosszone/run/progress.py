"""Progress: how far a run is, from the metrics it writes; each line is read once, but where a file was thinned out."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from statistics import median
from typing import Any

from crosszone.run.runners.runner import Runner, Sight

METRICS = "bundle/out/metrics-stage-"
WINDOW = 20
"""Steps whose median is told."""
FIRST_BYTES = 2**16
"""Bytes at the beginning of a file that hold its first step."""
MOST_BYTES = 2**20
"""Bytes of a file that are read at once; what is before was skipped."""


class Progress:
    """What is known of a run so far."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, str], int] = {}
        self._torn: dict[tuple[int, str], bytes] = {}
        self._steps: deque[float] = deque(maxlen=WINDOW)
        self._told: dict[str, Any] = {}

    def read(self, runner: Runner, seen: tuple[Sight, ...]) -> dict[str, Any]:
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
