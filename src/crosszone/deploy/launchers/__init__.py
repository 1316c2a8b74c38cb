"""Launchers: what starts `nodes/NNN.sh` on each machine; one file each, with the same functions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from crosszone.deploy.launch import Launch, Node

# `nodes`: no launcher, the command of every node to type by hand.
LAUNCHERS = ("nodes", "ssh", "slurm", "kubernetes", "pytorchjob", "skypilot", "ray")


class LauncherFunctions(NamedTuple):
    """The functions of a launcher's file."""

    build_files: Callable[[Launch], dict[str, str]]
    """Files it adds, by path."""
    list_start_commands: Callable[[Launch], tuple[str, ...]]
    """The commands a user types."""
    needs_addresses: bool
    """It cannot find the nodes by itself."""
    places_nodes: Callable[[tuple[Node, ...]], bool]
    """It decides which machine is which node, so that addresses and interfaces are known only at the start."""


def load_launcher(name: str) -> LauncherFunctions:
    """The functions of a launcher."""
    module = import_module(f"crosszone.deploy.launchers.{name}")
    return LauncherFunctions(
        module.build_files, module.list_start_commands, module.NEEDS_ADDRESSES, module.places_nodes
    )
