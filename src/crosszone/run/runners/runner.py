"""Runner: what a task needs of whoever starts its nodes. Every function may be called again and does the same.

prepare   the bundle is on every node
start     every node runs, once for a token
poll      what every node does
stop      nothing of that token runs any more
read      bytes of a node's file
clean     nothing is left of the task

Kubernetes and Ray reach a node only through its log: `remote/scheduled.py` reports there what the node writes.

build_start_files(work, token, port, python)      speak/000.sh, ..., speak/request: to go with the bundle
LogReportedNode.from_lines(lines).status(0)       its files, and how it ended, from its lines
"""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import Field

from crosszone.errors import MachineError
from crosszone.inputs.environment import Environment
from crosszone.inputs.value import Value
from crosszone.run.machine import BOOT, pack_request
from crosszone.run.remote.scheduled import METRICS_PREFIX, NODE_VARIABLE, STATE_NAME
from crosszone.run.work import TaskWork, WorkNode

STOP_S = 6.0  # How long ranks have to write a checkpoint when they are told to stop; then they are killed
END_S = STOP_S + 6.0  # How long a scheduler has to end a job
FRESH_S = 2.0  # How long a log that was read is not read again
RANK_LOGS = "logs/ranks"
REPORTED_LOG_MIB = 8.0  # Of a node's logs: a kubelet rotates a pod's log at 10 MiB, and what is rotated is not read
START_FOLDER = "speak"  # Of the bundle

NodeState = Literal["none", "starting", "running", "ended", "lost", "unreachable"]


class NodeStatus(Value):
    """What was seen of one node."""

    number: int
    """The node."""
    state: NodeState
    """none: nothing was started; lost: its supervisor was killed; unreachable: its machine does not answer."""
    code: int | None = None
    """Exit status; null: it runs, or was ended before it began."""
    stopped: bool = False
    """It ended because it was told to."""
    files: dict[str, int] = Field(default_factory=dict)
    """Logs and metrics with their sizes."""
    reason: str | None = None
    """Why its machine does not answer, or its program did not start."""

    @property
    def has_failed(self) -> bool:
        """It ended with an error of its own, not because it was told to."""
        return self.state == "ended" and self.code != 0 and not self.stopped


class Runner(Protocol):
    """One way to run the nodes of one task."""

    @property
    def work(self) -> TaskWork:
        """What the task does."""

    def prepare(self) -> None:
        """Put the bundle on every node."""

    def start(self, token: str) -> None:
        """Start every node, unless this token has."""

    def poll(self, token: str) -> tuple[NodeStatus, ...]:
        """See what every node does."""

    def stop(self, token: str) -> tuple[NodeStatus, ...]:
        """End everything that this token has started."""

    def read(self, number: int, name: str, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """Bytes of a file of a node from an offset on, with its size."""

    def clean(self) -> None:
        """Delete what the task has left on every node."""


@dataclass(frozen=True, kw_only=True)
class TaskNodes:
    """The nodes of one task: what every runner is told."""

    task: str
    """Id of the task."""
    work: TaskWork
    environments: Mapping[str, Environment]
    port: int
    """At which ranks meet on the first node."""

    @property
    def python(self) -> str:
        """Python of the first node."""
        return self.environments[self.work.nodes[0].environment].python

    def get_folder(self, node: WorkNode) -> str:
        """Where a node of the task lives on its machine."""
        return f"{self.environments[node.environment].workdir}/tasks/{self.task}/node-{node.number:03d}"

    def make_statuses(self, state: NodeState, reason: str | None = None) -> tuple[NodeStatus, ...]:
        """The same status for every node."""
        return tuple(NodeStatus(number=node.number, state=state, reason=reason) for node in self.work.nodes)

    def make_unreachable(self, error: MachineError) -> tuple[NodeStatus, ...]:
        """Every node as out of reach, with what the error says."""
        return self.make_statuses("unreachable", error.notices[0].message())


def mark_stopped(statuses: Iterable[NodeStatus]) -> tuple[NodeStatus, ...]:
    """The same with nodes that had not ended as told to stop."""
    changes = {"state": "ended", "code": None, "stopped": True}
    return tuple(status if status.state == "ended" else status.replace(**changes) for status in statuses)


def stop_lost_nodes(statuses: Sequence[NodeStatus]) -> tuple[NodeStatus, ...]:
    """The same with lost nodes as stopped ones where another node failed by itself: its job ended them with it."""
    cause = next((status for status in statuses if status.has_failed), None)
    if cause is None:
        return tuple(statuses)
    changes = {"state": "ended", "code": None, "stopped": True, "reason": f"ended with node {cause.number}"}
    return tuple(status.replace(**changes) if status.state == "lost" else status for status in statuses)


@dataclass(frozen=True)
class LogReportedNode:
    """What one node has reported so far: its files, and its state as `remote/supervisor.py` writes it."""

    files: dict[str, bytes] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> LogReportedNode:
        """From the lines of its log; one that is no report belongs to the node's own log."""
        file_lines: dict[str, list[str]] = {}
        state: dict[str, Any] = {}
        for line in lines:
            name, tab, rest_of_line = line.partition("\t")
            if tab and name == STATE_NAME:
                with contextlib.suppress(ValueError):
                    state = json.loads(rest_of_line)
            elif tab and name.startswith(("logs/", METRICS_PREFIX)):
                file_lines.setdefault(name, []).append(rest_of_line)
            else:
                file_lines.setdefault("logs/node.log", []).append(line)
        files = {name: "".join(f"{line}\n" for line in content) for name, content in file_lines.items()}
        return cls({name: text.encode() for name, text in files.items()}, state)

    def status(self, number: int, *, is_live: bool, reason: str | None = None) -> NodeStatus:
        """Its status; `is_live`: its scheduler says that it runs."""
        files = {name: len(data) for name, data in self.files.items()}
        if self.state.get("state") == "ended":
            code, stopped = self.state.get("code"), bool(self.state.get("stopped"))
            why = self.state.get("said") or reason
            return NodeStatus(number=number, state="ended", code=code, stopped=stopped, files=files, reason=why)
        state = "lost" if not is_live else "running" if self.state else "starting"
        return NodeStatus(number=number, state=state, files=files, reason=reason)

    def read(self, name: str, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """Bytes of one of its files, as `Runner.read`."""
        data = self.files.get(name, b"")
        begin = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        return {"size": len(data), "offset": begin}, data[begin : begin + max_bytes]


class CachedLog(NamedTuple):
    """A log as it was read last."""

    source: str
    """What it was read from: a later pod of the same node has a log of its own."""
    read_at: float
    has_ended: bool
    """It was whole when it was read."""
    lines: list[str]

    def is_current(self, source: str, *, refresh: bool) -> bool:
        """It need not be read again: it is whole, or was read a moment ago and a refresh is not asked for."""
        is_fresh = not refresh and time.monotonic() - self.read_at < FRESH_S
        return self.source == source and (self.has_ended or is_fresh)


class LogCache(OrderedDict[tuple[str, ...], CachedLog]):
    """Logs by key, the one read last at the end; of more than `limit` those read longest ago are dropped."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def store(self, key: tuple[str, ...], source: str, lines: list[str], *, has_ended: bool) -> CachedLog:
        """Keep a log that was just read."""
        log = self[key] = CachedLog(source, time.monotonic(), has_ended, lines)
        self.move_to_end(key)
        while len(self) > self._limit:
            self.popitem(last=False)
        return log


def build_node_command(python: str, script: str) -> list[str]:
    """Command that starts a node; programs of a Python that is given by its path, such as torchrun, lie beside it."""
    if "/" not in python:
        return ["bash", script]
    return ["bash", "-c", 'PATH="$1:$PATH" exec bash "$2"', "-", str(PurePosixPath(python).parent), script]


def build_rank_environment(port: int, log_folder: str) -> dict[str, str]:
    """Where ranks meet, and where torchrun puts the output of each."""
    return {"MASTER_PORT": str(port), "PET_LOG_DIR": log_folder, "PET_TEE": "3"}


def build_start_files(work: TaskWork, token: str, port: int, python: str) -> dict[str, bytes]:
    """What is added to the bundle: a script for each node, and the request that all of them read."""
    return {
        f"{START_FOLDER}/request": build_request(token, port),
        **{f"{START_FOLDER}/{node.number:03d}.sh": build_node_script(node, python).encode() for node in work.nodes},
    }


def drop_shared_metrics(nodes: list[LogReportedNode]) -> list[LogReportedNode]:
    """Metrics of a folder that several nodes share count for the first node that reports them."""
    reported: set[str] = set()
    unique = []
    for node in nodes:
        repeated = {name for name in node.files if name.startswith(METRICS_PREFIX) and name in reported}
        files = {name: data for name, data in node.files.items() if name not in repeated}
        reported |= set(files)
        unique.append(LogReportedNode(files, node.state))
    return unique


def build_node_script(node: WorkNode, python: str) -> str:
    """Starts the node; its first argument, where there is one, is the address at which ranks meet."""
    lines = ["#!/usr/bin/env bash", 'if [ -n "${1:-}" ]; then export MASTER_ADDR=$1; fi']
    lines += [
        f"export {NODE_VARIABLE}={node.number}",
        f"exec {shlex.quote(python)} -c {shlex.quote(BOOT)} <{START_FOLDER}/request",
    ]
    return "\n".join(lines) + "\n"


def build_request(token: str, port: int) -> bytes:
    """What the process of every node reads; which node it is its script says."""
    arguments = {"token": token, "port": port, "log_mib": REPORTED_LOG_MIB, "grace_s": STOP_S}
    return pack_request("scheduled.run_reporting_node", arguments, b"", "scheduled")
