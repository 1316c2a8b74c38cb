"""Processes of a start: each carries its token and its node's folder in its environment.

So all are found, whoever their parent is now, and nodes of one task that share a machine leave each other alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

TOKEN, FOLDER = "CROSSZONE_TOKEN", "CROSSZONE_FOLDER"
TICK_S = 0.1


def processes_of(token: str, folder: Path | None = None) -> list[int]:
    """Every process on this machine that carries a token, but for this one; with a folder, those of that node only."""
    wanted = {f"{TOKEN}={token}".encode()} | ({f"{FOLDER}={folder}".encode()} if folder else set())
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if wanted <= set(file.read().split(b"\0")):
                    found.append(int(entry))
        except OSError:
            continue  # it has ended, or is not ours
    return found


def send_signal(pids: Iterable[int], number: int) -> None:
    """Send a signal to each that still is."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(token: str, folder: Path, grace_s: float, first: int = signal.SIGTERM) -> int:
    """Ask all processes of a node's start to end, and after the grace end them; how many were left then."""
    until = time.monotonic() + grace_s
    send_signal(processes_of(token, folder), first)
    while time.monotonic() < until:
        reap()
        if not processes_of(token, folder):
            return 0
        time.sleep(TICK_S)
    left = processes_of(token, folder)
    for _ in range(50):  # what is killed may have forked meanwhile
        send_signal(processes_of(token, folder), signal.SIGKILL)
        reap()
        if not processes_of(token, folder):
            break
        time.sleep(TICK_S)
    return len(left)


def reap() -> dict[int, int]:
    """Bury what has ended among our own and adopted children; their exit statuses."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
