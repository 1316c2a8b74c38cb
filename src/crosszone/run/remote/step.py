"""Step: a node of a task as one process of a scheduler's job: supervised in the foreground, for its scheduler ends it.

Whether it lives the scheduler says, so it holds no lock: its folder may lie on a file system that has none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

from crosszone.run.remote.place import place
from crosszone.run.remote.supervisor import STOP, read_state, supervise, write_state

NUMBER = "SLURM_PROCID"  # Number of the process in the job: with one a node, that of the node


def run(nodes: Sequence[dict[str, Any]], token: str, log_mib: float, grace_s: float) -> None:
    """Run the node that this process is to its end, and end with its exit status."""
    mine = nodes[int(os.environ[NUMBER])]
    root = place(mine["folder"])
    (root / "logs").mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        (root / STOP).unlink()
    write_state(root, token=token, state="starting", started=time.time())
    ready = os.open(os.devnull, os.O_RDONLY)
    supervise(root, token, mine["words"], mine["environment"], log_mib, grace_s, unseen_s=None, ready=ready)
    code = read_state(root).get("code")
    raise SystemExit(1 if code is None else code if code >= 0 else 128 - code)
