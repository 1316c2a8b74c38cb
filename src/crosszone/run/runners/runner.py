"""Runner: what a task needs of whoever starts its nodes. Every function may be called again and does the same.

prepare   the bundle is on every node
start     every node runs, once for a token
look      what every node does
stop      nothing of that token runs any more
read      bytes of a node's file
clean     nothing is left of the task
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from pydantic import Field

from crosszone.inputs.value import Value

NodeState = Literal["none", "starting", "running", "ended", "lost", "unreachable"]


class Sight(Value):
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


class Runner(Protocol):
    """One way to run the nodes of one task."""

    def prepare(self) -> None:
        """Put the bundle on every node."""

    def start(self, token: str) -> None:
        """Start every node, unless this token has."""

    def look(self, token: str) -> tuple[Sight, ...]:
        """See what every node does."""

    def stop(self, token: str) -> tuple[Sight, ...]:
        """End everything that this token has started."""

    def read(self, number: int, name: str, offset: int, most: int) -> tuple[dict[str, Any], bytes]:
        """Bytes of a file of a node from an offset on, with its size."""

    def clean(self) -> None:
        """Delete what the task has left on every node."""
