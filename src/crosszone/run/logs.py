"""Logs: the output of a task's nodes and ranks, read in parts from the machines that hold it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from crosszone.errors import Notice, UnknownNameError
from crosszone.inputs.value import Value
from crosszone.run.runners.runner import NodeStatus, Runner
from crosszone.run.work import TaskWork, WorkNode

LOGS = "logs/"
MAX_PART_BYTES = 2**20  # Bytes of one part
_LOCAL_RANK = re.compile(r"logs/ranks/.+/(\d+)/[^/]+")


class LogFile(Value):
    """One log."""

    node: int
    """Node that holds it, from 0."""
    environment: str
    """Environment of that node, by id."""
    rank: int | None
    """Rank whose output it is; null: that of the whole node, or of one of several launchers."""
    name: str
    """What to ask for it by."""
    bytes: int
    """Size."""


class LogPart(Value):
    """Some of a log."""

    text: str
    """What it says there."""
    offset: int
    """Byte at which the text begins; later than asked for where older text was dropped."""
    next: int
    """Byte to ask for to go on."""
    size: int
    """Size of the log."""
    live: bool
    """More may come."""


def list_log_files(work: TaskWork, statuses: tuple[NodeStatus, ...]) -> tuple[LogFile, ...]:
    """Every log that was seen, by node."""
    return tuple(
        LogFile(
            node=status.number,
            environment=work.nodes[status.number].environment,
            rank=_find_rank(work.nodes[status.number], name),
            name=name,
            bytes=size,
        )
        for status in statuses
        for name, size in status.files.items()
        if name.startswith(LOGS)
    )


def read_log_part(runner: Runner, *, node: int, name: str, offset: int, max_bytes: int, live: bool) -> LogPart:
    """Text of a log from a byte on (negative: from the end), up to its last complete character."""
    nodes = runner.work.nodes
    if not 0 <= node < len(nodes):
        raise _make_unknown_error("node", node, [str(work_node.number) for work_node in nodes][:20])
    parts = PurePosixPath(name).parts
    if parts[:1] != ("logs",) or ".." in parts or len(parts) < 2:
        raise _make_unknown_error("name", name, ["logs/node.log"])
    file_range, data = runner.read(node, name, offset, max(1, min(max_bytes, MAX_PART_BYTES)))
    complete = _trim_partial_character(data) if file_range["offset"] + len(data) < file_range["size"] or live else data
    return LogPart(
        text=complete.decode("utf-8", "replace"),
        offset=file_range["offset"],
        next=file_range["offset"] + len(complete),
        size=file_range["size"],
        live=live,
    )


def _trim_partial_character(data: bytes) -> bytes:
    """The bytes without an incomplete last character; bytes that are not UTF-8 at all stay."""
    for back in range(1, min(4, len(data)) + 1):
        first = data[-back]
        if first & 0xC0 == 0x80:
            continue
        needs = 2 if first & 0xE0 == 0xC0 else 3 if first & 0xF0 == 0xE0 else 4 if first & 0xF8 == 0xF0 else 1
        return data[:-back] if needs > back and len(data) > back else data
    return data


def _find_rank(node: WorkNode, name: str) -> int | None:
    match = _LOCAL_RANK.fullmatch(name)
    if match is None or len(node.ranks) != 1:
        return None
    return int(node.ranks[0].split("-")[0]) + int(match[1])


def _make_unknown_error(field: str, value: Any, allowed: list[str]) -> UnknownNameError:
    return UnknownNameError(Notice(code="task_unknown", field=field, value=value, params={"known": allowed}))
