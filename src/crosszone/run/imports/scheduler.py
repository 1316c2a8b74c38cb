"""Scheduler: what the command of a scheduler prints, or why it prints nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from crosszone.errors import MachineError, Notice

WAIT_S = 30


def printed(words: Sequence[str], *, missing: str, failed: str) -> str:
    """The command's output; `MachineError` when it is not installed (`missing`), or hangs or fails (`failed`)."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    except FileNotFoundError:
        raise MachineError(Notice(code=missing, value=words[0])) from None
    except subprocess.TimeoutExpired:
        params = {"reason": f"no answer within {WAIT_S} s"}
        raise MachineError(Notice(code=failed, params=params)) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise MachineError(Notice(code=failed, params={"reason": reason}))
    return done.stdout
