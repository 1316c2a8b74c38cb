"""Trainer files: the training program of a framework with every file it imports, copied as they are."""

from __future__ import annotations

import ast
from functools import cache
from importlib.resources import files

from crosszone.inputs.python_source import parsed

# The program of each framework; Megatron-LM has one of its own.
ENTRY_FILES = {
    "ddp": "train_ddp.py",
    "fsdp": "train_fsdp.py",
    "deepspeed": "train_deepspeed.py",
    "horovod": "train_horovod.py",
    "torchft": "train_torchft.py",
}


@cache
def read_trainer_file(name: str) -> str:
    """The text of one shipped file."""
    return files("crosszone.deploy.trainer").joinpath(name).read_text("utf-8")


@cache
def collect_trainer_files(framework: str) -> dict[str, str]:
    """Path -> text of the training program, which is `train.py` in every bundle; empty for Megatron-LM."""
    entry = ENTRY_FILES.get(framework)
    if entry is None:
        return {}
    texts = {"train.py": read_trainer_file(entry)}
    for name in sorted(_collect_imports(entry, set())):
        texts[name] = read_trainer_file(name)
    return texts


def _collect_imports(name: str, seen: set[str]) -> set[str]:
    """Shipped files that a file imports, directly or not."""
    folder = files("crosszone.deploy.trainer")
    for node in ast.walk(parsed(read_trainer_file(name))):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules = [node.module]
        for module in modules:
            path = f"{module}.py"
            if "." not in module and path not in seen and folder.joinpath(path).is_file():
                seen.add(path)
                _collect_imports(path, seen)
    return seen
