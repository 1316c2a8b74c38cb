"""Environment: variables that all nodes have in common (`env.sh`), each with its reason.

Environment variables that a bundle may set, each with the place where its name was read (`variables.yaml`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from crosszone.analyse.switches import connections
from crosszone.deploy.bundle import Option, option
from crosszone.deploy.launch import Launch
from crosszone.deploy.shell import comment, quoted
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Name, Value, parse
from crosszone.text import label


class Variable(Value):
    """One variable."""

    name: Name
    source: str
    """Where its name was read."""


@cache
def variables() -> dict[str, Variable]:
    """All that may be set, by name."""
    document = read_shipped("crosszone.deploy", "variables.yaml")
    return {name: parse(Variable, {"name": name, **one}, document, at=(name,)) for name, one in document.value.items()}


def checked(name: str) -> str:
    """The name, which must be on the list: a mistake of ours, never of the user."""
    if name not in variables():
        raise ValueError(f"{name} is not in deploy/variables.yaml")
    return name


FILE = "env.sh"


def variables_of(launch: Launch) -> tuple[Option, ...]:
    """What NCCL and Gloo are told, whatever the framework."""
    talk, words = launch.predictor.strategy.communication, launch.language
    several = len(launch.nodes) > 1
    made = []
    if several:
        made.append(option("variable", "NCCL_SOCKET_IFNAME", '"$interface"', words))
        made.append(option("variable", "GLOO_SOCKET_IFNAME", '"$interface"', words))
    if several and talk.flows > 1:
        threads, sockets = connections(talk.flows)
        told: dict[str, Any] = {"flows": talk.flows, "threads": threads, "sockets": sockets}
        made.append(option("variable", "NCCL_SOCKET_NTHREADS", threads, words, **told))
        made.append(option("variable", "NCCL_NSOCKS_PERTHREAD", sockets, words, **told))
    if talk.algorithm != "auto":
        made.append(option("variable", "NCCL_ALGO", talk.algorithm.capitalize(), words, algorithm=talk.algorithm))
    return tuple(made)


def environment_text(launch: Launch, options: Sequence[Option]) -> str:
    """The file that every node's script sources."""
    own = "_IFNAME"
    lines = ["# shellcheck shell=bash", comment(label("bundle_environment", launch.language)), ""]
    for one in options:
        if one.where == "variable" and not one.name.endswith(own):
            lines += [comment(one.why), f"export {checked(one.name)}={quoted(one.value)}", ""]
    if any(one.name.endswith(own) for one in options):
        lines.append(_INTERFACE)
        for one in options:
            if one.name.endswith(own):
                lines += [f"  {line}" for line in comment(one.why).split("\n")]
                lines.append(f'  export {checked(one.name)}="$interface"')
        lines += ["else", '  echo "env.sh: no interface found for this node; NCCL and Gloo choose one" >&2', "fi", ""]
    return "\n".join(lines)


_INTERFACE = """\
# $interface is what the node's script says. Where it says none: the interface that has $address, or the one on the way
# to the first node (on the first node itself, the one of the default route).
if [ -z "${interface:-}" ] && command -v ip >/dev/null; then
  if [ -n "${address:-}" ]; then
    interface=$(ip -o addr show | awk -v own="$address" '{ split($4, a, "/"); if (a[1] == own) { print $2; exit } }')
  fi
  if [ -z "${interface:-}" ]; then
    master=$(getent ahosts "$MASTER_ADDR" | awk '{ print $1; exit }') || master=$MASTER_ADDR
    interface=$(ip -o route get "$master" 2>/dev/null | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p') || interface=""
    if [ "${interface:-lo}" = lo ]; then
      interface=$(ip -o route show default | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p' | head -n 1)
    fi
  fi
fi
if [ -n "${interface:-}" ]; then"""
