"""Logs: the output of a task's nodes and ranks, read in parts from the machines that hold it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from crosszone.errors import Notice, UnknownNameError
from crosszone.inputs.value import Value
from crosszone.run.runners.runner import NodeStatus, Runner
from crosszone.run.work import Work, WorkNode

LOGS = "logs/"
MOST_BYTES = 2**20  # Bytes of one part
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


def log_files(work: Work, seen: tuple[NodeStatus, ...]) -> tuple[LogFile, ...]:
    """Every log that was seen, by node."""
    return tuple(
        LogFile(
            node=one.number,
            environment=work.nodes[one.number].environment,
            rank=_rank(work.nodes[one.number], name),
            name=name,
            bytes=size,
        )
        for one in seen
        for name, size in one.files.items()
        if name.startswith(LOGS)
    )


def log_part(runner: Runner, work: Work, *, node: int, name: str, offset: int, most: int, live: bool) -> LogPart:
    """Text of a log from a byte on (negative: from the end); a character that is not whole yet waits."""
    if not 0 <= node < len(work.nodes):
        raise _unknown("node", node, [str(one.number) for one in work.nodes][:20])
    parts = PurePosixPath(name).parts
    if parts[:1] != ("logs",) or ".." in parts or len(parts) < 2:
        raise _unknown("name", name, ["logs/node.log"])
    told, data = runner.read(node, name, offset, max(1, min(most, MOST_BYTES)))
    whole = _whole(data) if told["offset"] + len(data) < told["size"] or live else data
    return LogPart(
        text=whole.decode("utf-8", "replace"),
        offset=told["offset"],
        next=told["offset"] + len(whole),
        size=told["size"],
        live=live,
    )


def _whole(data: bytes) -> bytes:
    """The bytes without a last character that is cut; bytes that are no text at all stay."""
    for back in range(1, min(4, len(data)) + 1):
        first = data[-back]
        if first & 0xC0 == 0x80:
            continue
        needs = 2 if first & 0xE0 == 0xC0 else 3 if first & 0xF0 == 0xE0 else 4 if first & 0xF8 == 0xF0 else 1
        return data[:-back] if needs > back and len(data) > back else data
    return data


def _rank(node: WorkNode, name: str) -> int | None:
    found = _LOCAL_RANK.fullmatch(name)
    if found is None or len(node.ranks) != 1:
        return None
    return int(node.ranks[0].split("-")[0]) + int(found[1])


def _unknown(field: str, value: Any, known: list[str]) -> UnknownNameError:
    return UnknownNameError(Notice(code="task_unknown", field=field, value=value, params={"known": known}))
