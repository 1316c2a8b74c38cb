"""Python source as a tree, by one thread at a time.

    tree = parsed("1 + 2", mode="eval")

CPython before 3.11.8 counts the depth of all trees that are being built in one place: two threads that build one at the
same moment get a SystemError (python/cpython#106905).
"""

from __future__ import annotations

import ast
import threading
from typing import Any

_lock = threading.Lock()


def parse_source(source: str, mode: str = "exec") -> Any:
    """The tree, as `ast.parse` gives it."""
    with _lock:
        return ast.parse(source, mode=mode)


def parse_literal(source: str) -> Any:
    """The value of a literal, as `ast.literal_eval` gives it."""
    with _lock:
        return ast.literal_eval(source)
