"""Supervised: a supervisor on every node, here or over ssh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar

from crosszone.errors import MachineError
from crosszone.inputs.environment import Environment
from crosszone.run.machine import Machine
from crosszone.run.runners.runner import STOP_S, NodeStatus
from crosszone.run.work import TaskWork, WorkNode

Answer = TypeVar("Answer")
MAX_PARALLEL_CALLS = 32  # Machines that are asked at the same time
RANK_LOGS = "logs/ranks"
# What starts a node whose Python is given as a path: its programs, such as torchrun, lie beside it.
PYTHON_FIRST = 'PATH="$1:$PATH" exec bash "$2"'


@dataclass(frozen=True, kw_only=True)
class SupervisedRunner:
    """The nodes of one task."""

    task: str
    """Id of the task, the name of its folder."""
    work: TaskWork
    environments: Mapping[str, Environment]
    machines: Mapping[str, Machine]
    """By environment."""
    port: int
    """At which ranks meet on the first node."""
    log_mib: float = 64

    def folder(self, node: WorkNode) -> str:
        """Where a node of the task lives on its machine."""
        return f"{self.environments[node.environment].workdir}/tasks/{self.task}/node-{node.number:03d}"

    def prepare(self) -> None:
        """As `Runner.prepare`."""
        arguments = {"payload": self.work.archive, "checksum": self.work.checksum}
        self._call_each(lambda node: self._call(node, "files.put_bundle", **arguments))

    def start(self, token: str) -> None:
        """As `Runner.start`."""
        self._call_each(lambda node: self._call(node, "supervisor.start", **self._build_start_arguments(node, token)))

    def poll(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.poll`."""
        return tuple(self._call_each(lambda node: self._poll_node(node, token)))

    def stop(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.stop`."""
        return tuple(self._call_each(lambda node: self._stop_node(node, token)))

    def read(self, number: int, name: str, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """As `Runner.read`."""
        about, data = self._call(
            self.work.nodes[number], "files.read_bytes", name=name, offset=offset, max_bytes=max_bytes
        )
        return about, data

    def clean(self) -> None:
        """As `Runner.clean`."""
        self._call_each(lambda node: self._call(node, "files.delete_folder", expected_name=f"node-{node.number:03d}"))

    def _build_start_arguments(self, node: WorkNode, token: str) -> dict[str, Any]:
        """What a supervisor is told: the script, where ranks meet, and where each rank's output goes."""
        environment = {"MASTER_PORT": str(self.port), "PET_LOG_DIR": f"../{RANK_LOGS}", "PET_TEE": "3"}
        python = self.environments[node.environment].python
        command = ["bash", "-c", PYTHON_FIRST, "-", str(PurePosixPath(python).parent), node.script]
        command = command if "/" in python else ["bash", node.script]
        return {
            "token": token,
            "command": command,
            "environment": environment,
            "log_mib": self.log_mib,
            "grace_s": STOP_S,
        }

    def _poll_node(self, node: WorkNode, token: str) -> NodeStatus:
        try:
            state = self._call(node, "supervisor.poll")
        except MachineError as error:
            return NodeStatus(number=node.number, state="unreachable", reason=error.notices[0].message())
        return parse_status(node, token, state)

    def _stop_node(self, node: WorkNode, token: str) -> NodeStatus:
        try:
            state = self._call(node, "supervisor.stop", token=token, grace_s=STOP_S)
        except MachineError as error:
            return NodeStatus(number=node.number, state="unreachable", reason=error.notices[0].message())
        return parse_status(node, token, state)

    def _call(self, node: WorkNode, function: str, **arguments: Any) -> Any:
        return self.machines[node.environment].call(function, folder=self.folder(node), **arguments)

    def _call_each(self, ask: Callable[[WorkNode], Answer]) -> list[Answer]:
        """The same on every node at once; the first failure is raised when all have answered."""
        with ThreadPoolExecutor(max_workers=min(MAX_PARALLEL_CALLS, len(self.work.nodes))) as pool:
            return [answer.result() for answer in [pool.submit(ask, node) for node in self.work.nodes]]


def parse_status(node: WorkNode, token: str, state: dict[str, Any]) -> NodeStatus:
    if state["state"] == "none" or state.get("token") != token:
        return NodeStatus(number=node.number, state="none")
    return NodeStatus(
        number=node.number,
        state=state["state"],
        code=state.get("code"),
        stopped=bool(state.get("stopped")),
        files=state.get("files", {}),
        reason=state.get("said"),
    )
