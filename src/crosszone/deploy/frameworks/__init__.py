"""Frameworks: one file each, with the same three functions: options, files, command."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from crosszone.deploy.bundle import Option
from crosszone.deploy.launch import Agent, Launch
from crosszone.deploy.shell import Raw

# What a bundle can be made for; torchft trains plans with local updates.
FRAMEWORKS = ("ddp", "fsdp", "deepspeed", "megatron", "horovod", "torchft")


class Framework(NamedTuple):
    """The functions of a framework's file; `requires` is there where a plan may need a certain version."""

    options: Callable[[Launch], tuple[Option, ...]]
    """Everything the framework is told, each explained; an error for what it cannot do."""
    files: Callable[[Launch], dict[str, str]]
    """Files it adds, by path."""
    command: Callable[[Launch, Agent], tuple[str | Raw, ...] | None]
    """The launcher process of one agent; None: nothing to start there."""
    requires: Callable[[Launch], dict[str, str]]
    """Packages the plan needs, with a limit on their version (`<0.19.7`) or an empty text; most plans need none."""


def load_framework(name: str) -> Framework:
    """The functions of a framework."""
    module = import_module(f"crosszone.deploy.frameworks.{name}")
    return Framework(module.options, module.files, module.command, getattr(module, "requires", lambda _: {}))
