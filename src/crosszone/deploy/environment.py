"""Environment: variables that all nodes have in common (`env.sh`), each with its reason.

Environment variables that a bundle may set, each with the place where its name was read (`variables.yaml`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from crosszone.analyse.switches import connections
from crosszone.deploy.bundle import Option, build_option
from crosszone.deploy.launch import Launch
from crosszone.deploy.shell import comment, quoted
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Name, Value, parse
from crosszone.text import label


class EnvironmentVariable(Value):
    """One variable."""

    name: Name
    source: str
    """Where its name was read."""


@cache
def read_variables() -> dict[str, EnvironmentVariable]:
    """All that may be set, by name."""
    document = read_shipped("crosszone.deploy", "variables.yaml")
    return {
        name: parse(EnvironmentVariable, {"name": name, **entry}, document, at=(name,))
        for name, entry in document.value.items()
    }


def check_variable_name(name: str) -> str:
    """The name, which must be on the list: a mistake of ours, never of the user."""
    if name not in read_variables():
        raise ValueError(f"{name} is not in deploy/variables.yaml")
    return name


ENVIRONMENT_FILE = "env.sh"


def list_variable_options(launch: Launch) -> tuple[Option, ...]:
    """What NCCL and Gloo are told, whatever the framework."""
    communication, language = launch.predictor.strategy.communication, launch.language
    has_several_nodes = len(launch.nodes) > 1
    options = []
    if has_several_nodes:
        options.append(build_option("variable", "NCCL_SOCKET_IFNAME", '"$interface"', language))
        options.append(build_option("variable", "GLOO_SOCKET_IFNAME", '"$interface"', language))
    if has_several_nodes and communication.flows > 1:
        threads, sockets = connections(communication.flows)
        params: dict[str, Any] = {"flows": communication.flows, "threads": threads, "sockets": sockets}
        options.append(build_option("variable", "NCCL_SOCKET_NTHREADS", threads, language, **params))
        options.append(build_option("variable", "NCCL_NSOCKS_PERTHREAD", sockets, language, **params))
    if communication.algorithm != "auto":
        options.append(
            build_option(
                "variable",
                "NCCL_ALGO",
                communication.algorithm.capitalize(),
                language,
                algorithm=communication.algorithm,
            )
        )
    return tuple(options)


def render_environment(launch: Launch, options: Sequence[Option]) -> str:
    """The file that every node's script sources."""
    interface_suffix = "_IFNAME"
    lines = ["# shellcheck shell=bash", comment(label("bundle_environment", launch.language)), ""]
    for option in options:
        if option.where == "variable" and not option.name.endswith(interface_suffix):
            lines += [
                comment(option.why),
                f"export {check_variable_name(option.name)}={quoted(option.value)}",
                "",
            ]
    if any(option.name.endswith(interface_suffix) for option in options):
        lines.append(_INTERFACE)
        for option in options:
            if option.name.endswith(interface_suffix):
                lines += [f"  {line}" for line in comment(option.why).split("\n")]
                lines.append(f'  export {check_variable_name(option.name)}="$interface"')
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
