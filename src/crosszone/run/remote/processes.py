"""Processes of a start: each carries its token in its environment, so all are found, whoever their parent is now."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

TOKEN = "CROSSZONE_TOKEN"
TICK_S = 0.1


def processes_of(token: str) -> list[int]:
    """Every process on this machine that carries a token, but for this one."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            continue  # it has ended, or is not ours
    return found


def send_signal(pids: Iterable[int], number: int) -> None:
    """Send a signal to each that still is."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(token: str, grace_s: float, first: int = signal.SIGTERM) -> int:
    """Ask all processes of a token to end, and after the grace end them; how many were left then."""
    until = time.monotonic() + grace_s
    send_signal(processes_of(token), first)
    while time.monotonic() < until:
        reap()
        if not processes_of(token):
            return 0
        time.sleep(TICK_S)
    left = processes_of(token)
    for _ in range(50):  # what is killed may have forked meanwhile
        send_signal(processes_of(token), signal.SIGKILL)
        reap()
        if not processes_of(token):
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
