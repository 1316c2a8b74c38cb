"""Trainer files: the training program of a framework with every file it imports, copied as they are."""

from __future__ import annotations

import ast
from functools import cache
from importlib.resources import files

from crosszone.inputs.python_source import parsed

# The program of each framework; Megatron-LM has one of its own.
ENTRY = {
    "ddp": "train_ddp.py",
    "fsdp": "train_fsdp.py",
    "deepspeed": "train_deepspeed.py",
    "horovod": "train_horovod.py",
    "torchft": "train_torchft.py",
}


@cache
def shipped(name: str) -> str:
    """The text of one shipped file."""
    return files("crosszone.deploy.trainer").joinpath(name).read_text("utf-8")


@cache
def trainer_files(framework: str) -> dict[str, str]:
    """Path -> text of the training program, which is `train.py` in every bundle; empty for Megatron-LM."""
    entry = ENTRY.get(framework)
    if entry is None:
        return {}
    found = {"train.py": shipped(entry)}
    for name in sorted(_needed(entry, set())):
        found[name] = shipped(name)
    return found


def _needed(name: str, seen: set[str]) -> set[str]:
    """Shipped files that a file imports, directly or not."""
    folder = files("crosszone.deploy.trainer")
    for node in ast.walk(parsed(shipped(name))):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules = [node.module]
        for module in modules:
            path = f"{module}.py"
            if "." not in module and path not in seen and folder.joinpath(path).is_file():
                seen.add(path)
                _needed(path, seen)
    return seen
