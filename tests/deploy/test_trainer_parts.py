"""The parts that every shipped trainer has: settings, data, checkpoints, metrics, optimizers.

The checks themselves run in the training environment in one process and are named there; here each is a test.
"""

from __future__ import annotations

import ast
import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.framework

CHECKS = Path(__file__).parent / "trainer_checks" / "parts_checks.py"
TRAINER = Path(__file__).parents[2] / "src" / "crosszone" / "deploy" / "trainer"
NAMES = [
    one.name
    for one in ast.parse(CHECKS.read_text("utf-8")).body
    if isinstance(one, ast.FunctionDef) and one.name.startswith("check_")
]


@cache
def results(python: Path) -> dict[str, str | None]:
    done = subprocess.run(
        [str(python), str(CHECKS), str(TRAINER)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_part(train_python, name):
    assert results(train_python)[name] is None, results(train_python)[name]
