"""Host tuning: settings of Linux hosts that the links of a plan need (`tune-host.sh`), shown first, set when told."""

from __future__ import annotations

from collections.abc import Iterator

from crosszone.analyse.host import host_settings
from crosszone.deploy.launch import Launch
from crosszone.deploy.shell import comment
from crosszone.text import label, sentence

TUNING_FILE = "tune-host.sh"
DEFAULT_CONGESTION = "cubic"  # What Linux does by itself: a plan that has it loses nothing by something better


def render_tuning(launch: Launch) -> str | None:
    """The script; None where no traffic leaves a zone. Without --apply it only shows what it would do."""
    settings = list(_list_settings(launch))
    if not settings:
        return None
    lines = ["#!/usr/bin/env bash", comment(label("bundle_tuning", launch.language)), _TUNING_HEAD]
    for name, setting, why in settings:
        lines += ["", comment(why), f"set_{name}() {{ run {setting}; }}", f"wanted {name}"]
    return "\n".join(lines) + "\n"


def _list_settings(launch: Launch) -> Iterator[tuple[str, str, str]]:
    """Name, command and reason of each: what the plan asks for, and where it asks for nothing what its links need."""
    communication, language = launch.predictor.strategy.communication, launch.language
    planned: dict[str, tuple[str, str]] = {}
    if communication.congestion != DEFAULT_CONGESTION:
        reason = sentence("option", "congestion", "why", language, {"congestion": communication.congestion})
        planned["congestion"] = (f"sysctl -w net.ipv4.tcp_congestion_control={communication.congestion}", reason)
    if communication.socket_buffer_mb is not None:
        buffer_bytes = round(communication.socket_buffer_mb * 1e6)
        reason = sentence("option", "socket_buffer", "why", language, {"mb": communication.socket_buffer_mb})
        tcp_limits = f'net.ipv4.tcp_rmem="4096 131072 {buffer_bytes}" net.ipv4.tcp_wmem="4096 65536 {buffer_bytes}"'
        planned["buffers"] = (
            f"sysctl -w net.core.rmem_max={buffer_bytes} net.core.wmem_max={buffer_bytes} {tcp_limits}",
            reason,
        )
    for setting in host_settings(launch.predictor, language):
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
