"""Runs the functions of a file whose names begin with check_, and prints what each found."""

from __future__ import annotations

import json
import traceback
from typing import Any

import torch


def run_checks(names: dict[str, Any]) -> None:
    """Print one JSON object: check -> null, or the end of its traceback."""
    torch.set_num_threads(1)
    found: dict[str, str | None] = {}
    for name, check in list(names.items()):
        if name.startswith("check_"):
            try:
                check()
                found[name] = None
            except Exception:
                found[name] = traceback.format_exc(limit=-3)
    print(json.dumps(found))
