"""Waiting for what happens, not for time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PAUSE_S = 0.05
Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found]) -> Found:
    """What a condition gives once it gives something; what never comes ends with the test's limit, which shows where."""
    while not (found := condition()):
        time.sleep(PAUSE_S)
    return found
