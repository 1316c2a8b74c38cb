"""Frameworks: one file each, with the same three functions: build_options, build_files, build_command."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from crosszone.deploy.bundle import Option
from crosszone.deploy.launch import Agent, Launch
from crosszone.deploy.shell import Raw

# What a bundle can be made for; torchft trains plans with local updates.
FRAMEWORKS = ("ddp", "fsdp", "deepspeed", "megatron", "horovod", "torchft")


class FrameworkFunctions(NamedTuple):
    """The functions of a framework's file; `list_requirements` is there where a plan may need a certain version."""

    build_options: Callable[[Launch], tuple[Option, ...]]
    """Everything the framework is told, each explained; an error for what it cannot do."""
    build_files: Callable[[Launch], dict[str, str]]
    """Files it adds, by path."""
    build_command: Callable[[Launch, Agent], tuple[str | Raw, ...] | None]
    """The launcher process of one agent; None: nothing to start there."""
    list_requirements: Callable[[Launch], dict[str, str]]
    """Packages the plan needs, with a limit on their version (`<0.19.7`) or an empty text; most plans need none."""


def load_framework(name: str) -> FrameworkFunctions:
    """The functions of a framework."""
    module = import_module(f"crosszone.deploy.frameworks.{name}")
    list_requirements: Callable[[Launch], dict[str, str]] = getattr(module, "list_requirements", lambda _: {})
    return FrameworkFunctions(module.build_options, module.build_files, module.build_command, list_requirements)
