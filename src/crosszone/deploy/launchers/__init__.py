"""Launchers: what starts `nodes/NNN.sh` on each machine; one file each, with the same functions.

Below them is what they share: what a scheduler is asked for (runs of equal nodes, GPUs of each) and names it accepts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import groupby
from typing import Any, NamedTuple

import yaml

from crosszone.deploy.launch import Launch, Node
from crosszone.deploy.shell import format_comment, make_slug
from crosszone.errors import InvalidError, Notice

# `nodes`: no launcher, the command of every node to type by hand.
LAUNCHERS = ("nodes", "ssh", "slurm", "kubernetes", "pytorchjob", "skypilot", "ray")


class LauncherFunctions(NamedTuple):
    """The functions of a launcher's file."""

    build_files: Callable[[Launch], dict[str, str]]
    """Files it adds, by path."""
    list_start_commands: Callable[[Launch], tuple[str, ...]]
    """The commands a user types."""
    needs_addresses: bool
    """It cannot find the nodes by itself: each is the machine that the scenario names."""
    places_nodes: Callable[[tuple[Node, ...]], bool]
    """It decides which machine is which node, so that addresses and interfaces are known only at the start.

    Of a launcher whose file does not say (only Slurm's does): where it needs no addresses.
    """


def load_launcher(name: str) -> LauncherFunctions:
    """The functions of a launcher."""
    module = import_module(f"crosszone.deploy.launchers.{name}")
    needs_addresses: bool = module.NEEDS_ADDRESSES
    places_nodes = getattr(module, "places_nodes", lambda _: not needs_addresses)
    return LauncherFunctions(module.build_files, module.list_start_commands, needs_addresses, places_nodes)


# ---- what a scheduler is asked for ----

# Of an object's name: a pod's host name adds run, node and a random end to it, and has 63 characters (RFC 1035).
MAX_JOB_NAME_LENGTH = 40


def group_equal_nodes(launch: Launch) -> Iterator[tuple[Node, ...]]:
    """Consecutive nodes of one node group that need equally many GPUs: what a scheduler can ask for at once."""
    for _, alike in groupby(launch.nodes, key=lambda node: (node.zone, node.group, count_requested_gpus(node))):
        yield tuple(alike)


def count_requested_gpus(node: Node) -> int:
    """GPUs to ask for, so that the numbers of those that ranks use exist."""
    return 1 + max(gpu for agent in node.agents for gpu in agent.gpus)


def make_job_name(launch: Launch) -> str:
    """The scenario's name as a job may have it: small letters, digits and dashes, a letter first (RFC 1035)."""
    name = make_slug(launch.scenario.name, longest=MAX_JOB_NAME_LENGTH - 3)
    return name if name[0].isalpha() else f"cz-{name}"


def check_name(value: str, form: re.Pattern[str], field: str, who: str, example: str) -> str:
    """A setting that goes into a scheduler's file; one that it would refuse is refused here."""
    if not form.fullmatch(value):
        raise InvalidError(
            Notice(code="launch_bad_name", field=field, value=value, params={"who": who, "example": example})
        )
    return value


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: scripts as blocks, nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def render_yaml(head: str, *documents: dict[str, Any]) -> str:
    """YAML documents under a comment."""
    texts = [
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120) for document in documents
    ]
    return f"{format_comment(head)}\n" + "---\n".join(texts)
