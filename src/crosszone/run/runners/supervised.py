"""Supervised: a supervisor on every node, here or over ssh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crosszone.errors import MachineError
from crosszone.run.machine import Machine, call_each
from crosszone.run.runners.runner import (
    RANK_LOGS,
    STOP_S,
    NodeStatus,
    TaskNodes,
    build_node_command,
    build_rank_environment,
)
from crosszone.run.work import WorkNode


@dataclass(frozen=True, kw_only=True)
class SupervisedRunner(TaskNodes):
    """The nodes of one task, each under a supervisor of its own."""

    machines: Mapping[str, Machine]
    """By environment."""
    log_mib: float = 64

    def prepare(self) -> None:
        """As `Runner.prepare`."""
        arguments = {"payload": self.work.archive, "checksum": self.work.checksum}
        call_each(lambda node: self._call(node, "files.put_bundle", **arguments), self.work.nodes)

    def start(self, token: str) -> None:
        """As `Runner.start`."""
        call_each(
            lambda node: self._call(node, "supervisor.start", **self._build_start_arguments(node, token)),
            self.work.nodes,
        )

    def poll(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.poll`."""
        return tuple(call_each(lambda node: self._ask_status(node, token, "supervisor.poll"), self.work.nodes))

    def stop(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.stop`."""
        arguments = {"token": token, "grace_s": STOP_S}
        return tuple(
            call_each(lambda node: self._ask_status(node, token, "supervisor.stop", arguments), self.work.nodes)
        )

    def read(self, number: int, name: str, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """As `Runner.read`."""
        about, data = self._call(
            self.work.nodes[number], "files.read_bytes", name=name, offset=offset, max_bytes=max_bytes
        )
        return about, data

    def clean(self) -> None:
        """As `Runner.clean`."""
        call_each(
            lambda node: self._call(node, "files.delete_folder", expected_name=f"node-{node.number:03d}"),
            self.work.nodes,
        )

    def _build_start_arguments(self, node: WorkNode, token: str) -> dict[str, Any]:
        """What a supervisor is told: the script, where ranks meet, and where each rank's output goes."""
        return {
            "token": token,
            "command": build_node_command(self.environments[node.environment].python, node.script),
            "environment": build_rank_environment(self.port, f"../{RANK_LOGS}"),
            "log_mib": self.log_mib,
            "grace_s": STOP_S,
        }

    def _ask_status(
        self, node: WorkNode, token: str, function: str, arguments: Mapping[str, Any] | None = None
    ) -> NodeStatus:
        try:
            state = self._call(node, function, **(arguments or {}))
        except MachineError as error:
            return NodeStatus(number=node.number, state="unreachable", reason=error.notices[0].message())
        return parse_status(node, token, state)

    def _call(self, node: WorkNode, function: str, **arguments: Any) -> Any:
        return self.machines[node.environment].call(function, folder=self.get_folder(node), **arguments)


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
