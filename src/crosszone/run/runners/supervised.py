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
from crosszone.run.runners.runner import Sight
from crosszone.run.work import Work, WorkNode

Found = TypeVar("Found")
SIDE_BY_SIDE = 32  # Machines that are asked at the same time
STOP_S = 6.0  # How long ranks have to write a checkpoint when they are told to stop; then they are ended
RANK_LOGS = "logs/ranks"
# What starts a node whose Python is given as a path: its programs, such as torchrun, lie beside it.
PYTHON_FIRST = 'PATH="$1:$PATH" exec bash "$2"'


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """The nodes of one task."""

    task: str
    """Id of the task, the name of its folder."""
    work: Work
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
        put = {"payload": self.work.archive, "checksum": self.work.checksum}
        self._each(lambda node: self._call(node, "files.put_bundle", **put))

    def start(self, token: str) -> None:
        """As `Runner.start`."""
        self._each(lambda node: self._call(node, "supervisor.start", **self._started(node, token)))

    def look(self, token: str) -> tuple[Sight, ...]:
        """As `Runner.look`."""
        return tuple(self._each(lambda node: self._sight(node, token)))

    def stop(self, token: str) -> tuple[Sight, ...]:
        """As `Runner.stop`."""
        return tuple(self._each(lambda node: self._stopped(node, token)))

    def read(self, number: int, name: str, offset: int, most: int) -> tuple[dict[str, Any], bytes]:
        """As `Runner.read`."""
        told, data = self._call(self.work.nodes[number], "files.read_bytes", name=name, offset=offset, max_bytes=most)
        return told, data

    def clean(self) -> None:
        """As `Runner.clean`."""
        self._each(lambda node: self._call(node, "files.delete_folder", expected_name=f"node-{node.number:03d}"))

    def _started(self, node: WorkNode, token: str) -> dict[str, Any]:
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

    def _sight(self, node: WorkNode, token: str) -> Sight:
        try:
            seen = self._call(node, "supervisor.poll")
        except MachineError as error:
            return Sight(number=node.number, state="unreachable", reason=error.notices[0].message())
        return _sight(node, token, seen)

    def _stopped(self, node: WorkNode, token: str) -> Sight:
        try:
            seen = self._call(node, "supervisor.stop", token=token, grace_s=STOP_S)
        except MachineError as error:
            return Sight(number=node.number, state="unreachable", reason=error.notices[0].message())
        return _sight(node, token, seen)

    def _call(self, node: WorkNode, what: str, **arguments: Any) -> Any:
        return self.machines[node.environment].call(what, folder=self.folder(node), **arguments)

    def _each(self, what: Callable[[WorkNode], Found]) -> list[Found]:
        """The same on every node at once; the first failure is raised when all have answered."""
        with ThreadPoolExecutor(max_workers=min(SIDE_BY_SIDE, len(self.work.nodes))) as beside:
            return [one.result() for one in [beside.submit(what, node) for node in self.work.nodes]]


def _sight(node: WorkNode, token: str, seen: dict[str, Any]) -> Sight:
    if seen["state"] == "none" or seen.get("token") != token:
        return Sight(number=node.number, state="none")
    return Sight(
        number=node.number,
        state=seen["state"],
        code=seen.get("code"),
        stopped=bool(seen.get("stopped")),
        files=seen.get("files", {}),
        reason=seen.get("said"),
    )
