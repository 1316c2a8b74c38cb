"""What a bundle sets on its hosts: environment variables (`env.sh`) and settings of the kernel (`tune-host.sh`).

Every variable that a bundle may set is listed in `variables.yaml` with the place where its name was read. Settings of
the kernel are those that the plan's links need; the script only shows them unless it is told to apply them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from crosszone.analyse.host import list_host_settings
from crosszone.analyse.switches import split_connections
from crosszone.deploy.bundle import Option, build_option
from crosszone.deploy.launch import Launch
from crosszone.deploy.shell import format_comment, quote_word
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Name, Value, parse
from crosszone.text import label, render_sentence


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
    """Variables of NCCL and Gloo, whatever the framework."""
    communication, language = launch.predictor.strategy.communication, launch.language
    has_several_nodes = len(launch.nodes) > 1
    options = []
    if has_several_nodes:
        options.append(build_option("variable", "NCCL_SOCKET_IFNAME", '"$interface"', language))
        options.append(build_option("variable", "GLOO_SOCKET_IFNAME", '"$interface"', language))
    if has_several_nodes and communication.flows > 1:
        threads, sockets = split_connections(communication.flows)
        params: dict[str, Any] = {"flows": communication.flows, "threads": threads, "sockets": sockets}
        options.append(build_option("variable", "NCCL_SOCKET_NTHREADS", threads, language, **params))
        options.append(build_option("variable", "NCCL_NSOCKS_PERTHREAD", sockets, language, **params))
    if communication.algorithm != "auto":
        algorithm = communication.algorithm
        options.append(build_option("variable", "NCCL_ALGO", algorithm.capitalize(), language, algorithm=algorithm))
    return tuple(options)


def render_environment(launch: Launch, options: Sequence[Option]) -> str:
    """The file that every node's script sources."""
    interface_suffix = "_IFNAME"
    lines = ["# shellcheck shell=bash", format_comment(label("bundle_environment", launch.language)), ""]
    for option in options:
        if option.where == "variable" and not option.name.endswith(interface_suffix):
            setting = f"{check_variable_name(option.name)}={quote_word(option.value)}"
            lines += [format_comment(option.why), f"export {setting}", ""]
    if any(option.name.endswith(interface_suffix) for option in options):
        lines.append(_INTERFACE)
        for option in options:
            if option.name.endswith(interface_suffix):
                lines += [f"  {line}" for line in format_comment(option.why).split("\n")]
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


# ---- settings of the kernel ----

TUNING_FILE = "tune-host.sh"
DEFAULT_CONGESTION = "cubic"  # What Linux does by itself: a plan that has it loses nothing by something better


def render_tuning(launch: Launch) -> str | None:
    """The script; None where no traffic leaves a zone. Without --apply it only shows what it would do."""
    settings = list(_list_settings(launch))
    if not settings:
        return None
    lines = ["#!/usr/bin/env bash", format_comment(label("bundle_tuning", launch.language)), _TUNING_HEAD]
    for name, setting, why in settings:
        lines += ["", format_comment(why), f"set_{name}() {{ run {setting}; }}", f"wanted {name}"]
    return "\n".join(lines) + "\n"


def _list_settings(launch: Launch) -> Iterator[tuple[str, str, str]]:
    """Name, command and reason of each: what the plan asks for, and where it asks for nothing what its links need."""
    communication, language = launch.predictor.strategy.communication, launch.language
    planned: dict[str, tuple[str, str]] = {}
    if communication.congestion != DEFAULT_CONGESTION:
        reason = render_sentence("option", "congestion", "why", language, {"congestion": communication.congestion})
        planned["congestion"] = (f"sysctl -w net.ipv4.tcp_congestion_control={communication.congestion}", reason)
    if communication.socket_buffer_mb is not None:
        buffer_bytes = round(communication.socket_buffer_mb * 1e6)
        reason = render_sentence("option", "socket_buffer", "why", language, {"mb": communication.socket_buffer_mb})
        tcp_limits = f'net.ipv4.tcp_rmem="4096 131072 {buffer_bytes}" net.ipv4.tcp_wmem="4096 65536 {buffer_bytes}"'
        core_limits = f"net.core.rmem_max={buffer_bytes} net.core.wmem_max={buffer_bytes}"
        planned["buffers"] = (f"sysctl -w {core_limits} {tcp_limits}", reason)
    for setting in list_host_settings(launch.predictor, language):
        if setting.setting.startswith("sysctl "):
            yield (setting.name, *planned.get(setting.name, (setting.setting, setting.why)))


_TUNING_HEAD = """\
set -euo pipefail
apply="" skip=" "
while [ $# -gt 0 ]; do
  case "$1" in
    --apply) apply=1 ;;
    --skip) skip="$skip${2:?--skip needs a name} "; shift ;;
    *) echo "usage: tune-host.sh [--apply] [--skip NAME]..." >&2; exit 2 ;;
  esac
  shift
done
if [ -n "$apply" ] && [ "$(id -u)" != 0 ]; then echo "tune-host.sh --apply needs root" >&2; exit 2; fi
run() { if [ -n "$apply" ]; then "$@"; else echo "would run: $*"; fi; }
wanted() { case "$skip" in *" $1 "*) echo "skipped: $1" ;; *) "set_$1" ;; esac; }"""
