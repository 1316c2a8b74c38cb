"""Host tuning: settings of Linux hosts that the links of a plan need (`tune-host.sh`), shown first, set when told."""

from __future__ import annotations

from collections.abc import Iterator

from crosszone.analyse.host import host_settings
from crosszone.deploy.launch import Launch
from crosszone.deploy.shell import comment
from crosszone.text import label, sentence

FILE = "tune-host.sh"
OLD = "cubic"  # What Linux does by itself: a plan that has it loses nothing by something better


def tuning_text(launch: Launch) -> str | None:
    """The script; None where no traffic leaves a zone. Without --apply it only shows what it would do."""
    settings = list(_settings(launch))
    if not settings:
        return None
    lines = ["#!/usr/bin/env bash", comment(label("bundle_tuning", launch.language)), _HEAD]
    for name, setting, why in settings:
        lines += ["", comment(why), f"set_{name}() {{ run {setting}; }}", f"wanted {name}"]
    return "\n".join(lines) + "\n"


def _settings(launch: Launch) -> Iterator[tuple[str, str, str]]:
    """Name, command and reason of each: what the plan asks for, and where it asks for nothing what its links need."""
    talk, words = launch.predictor.strategy.communication, launch.language
    asked: dict[str, tuple[str, str]] = {}
    if talk.congestion != OLD:
        told = sentence("option", "congestion", "why", words, {"congestion": talk.congestion})
        asked["congestion"] = (f"sysctl -w net.ipv4.tcp_congestion_control={talk.congestion}", told)
    if talk.socket_buffer_mb is not None:
        size = round(talk.socket_buffer_mb * 1e6)
        told = sentence("option", "socket_buffer", "why", words, {"mb": talk.socket_buffer_mb})
        autos = f'net.ipv4.tcp_rmem="4096 131072 {size}" net.ipv4.tcp_wmem="4096 65536 {size}"'
        asked["buffers"] = (f"sysctl -w net.core.rmem_max={size} net.core.wmem_max={size} {autos}", told)
    for one in host_settings(launch.predictor, words):
        if one.setting.startswith("sysctl "):
            yield (one.name, *asked.get(one.name, (one.setting, one.why)))


_HEAD = """\
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
