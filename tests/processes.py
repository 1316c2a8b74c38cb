"""Processes that a process started, as /proc tells them."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> set[int]:
    """Children of a process, and theirs."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue
    found: set[int] = set()
    look = {pid}
    while look:
        look = {child for child, parent in parents.items() if parent in look} - found
        found |= look
    return found
