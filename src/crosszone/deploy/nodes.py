"""Node scripts: what each machine runs (`nodes/000.sh`, ...), and the list of machines (`nodes.json`)."""

from __future__ import annotations

import json
from collections.abc import Callable

from crosszone.deploy.launch import Agent, Launch, Node
from crosszone.deploy.shell import Raw, command_line, comment, quoted
from crosszone.text import label

Command = Callable[[Launch, Agent], tuple[str | Raw, ...] | None]


def node_files(launch: Launch, command: Command) -> dict[str, str]:
    """The scripts, and `nodes.json`, which launchers and `verify.py` read."""
    scripts = {node.script: node_script(launch, node, command) for node in launch.nodes}
    return {**scripts, "nodes.json": nodes_json(launch)}


def node_script(launch: Launch, node: Node, command: Command) -> str:
    """What one node runs; arguments go on to the training program."""
    ranks = ", ".join(agent.span for agent in node.agents)
    told = {"number": node.number, "name": node.name, "zone": node.zone, "ranks": ranks, "gpu": node.gpu}
    lines = [
        "#!/usr/bin/env bash",
        comment(label("bundle_node", launch.language, **told)),
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        "# shellcheck disable=SC2034  # env.sh reads them",
        f"address={quoted(node.address or '')} interface={quoted(node.interface or '')}",
        f'export MASTER_ADDR="${{MASTER_ADDR:{_master(launch)}}}"',
        f'export MASTER_PORT="${{MASTER_PORT:-{launch.settings.port}}}"',
    ]
    if launch.template:
        lines.append(_UNFILLED)
    lines += ["# shellcheck source=/dev/null", ". ./env.sh"]
    commands = [(agent, words) for agent in node.agents if (words := command(launch, agent)) is not None]
    if not commands:
        lines.append(f"echo {quoted(label('bundle_nothing_to_start', launch.language))}")
    elif len(commands) == 1:
        lines += _one(node, *commands[0])
    else:
        lines += _several(node, commands)
    return "\n".join(lines) + "\n"


def nodes_json(launch: Launch) -> str:
    """The machines as data, one a line."""
    rows = [
        {
            "number": node.number,
            "name": node.name,
            "zone": node.zone,
            "address": node.address,
            "interface": node.interface,
            "gpu": node.gpu,
            "gpus": node.gpus,
            "script": node.script,
            "agents": [{"number": a.number, "first_rank": a.first_rank, "gpus": list(a.gpus)} for a in node.agents],
        }
        for node in launch.nodes
    ]
    return "[\n" + ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


def _master(launch: Launch) -> str:
    """Where ranks meet unless the launcher says: the first node; a single one is its own; else somebody must say."""
    known = launch.nodes[0].address or ("127.0.0.1" if len(launch.nodes) == 1 else None)
    return f"-{known}" if known else f"?{_NO_MASTER}"


def _visible(node: Node, agent: Agent) -> list[str]:
    """Which GPUs an agent sees, where that is not simply all of the node in order."""
    if agent.gpus == tuple(range(node.gpus)):
        return []
    return [f"CUDA_VISIBLE_DEVICES={','.join(map(str, agent.gpus))}"]


def _one(node: Node, agent: Agent, words: tuple[str | Raw, ...]) -> list[str]:
    return [*(f"export {one}" for one in _visible(node, agent)), f"exec {command_line(words)}"]


def _several(node: Node, commands: list[tuple[Agent, tuple[str | Raw, ...]]]) -> list[str]:
    """Several agents side by side: when one fails, the others are ended."""
    lines = ["started=()", "trap 'kill \"${started[@]}\" 2>/dev/null || true' EXIT INT TERM"]
    for agent, words in commands:
        before = "".join(f"{one} " for one in _visible(node, agent))
        lines += [f"{before}{command_line(words)} &", "started+=($!)"]
    return [*lines, 'for _ in "${started[@]}"; do wait -n; done']


_NO_MASTER = "set MASTER_ADDR to the address of the first node, or start through the launcher of this bundle"
_UNFILLED = """\
case "$MASTER_ADDR$address" in *@*)
  echo "This bundle is a template: write the addresses into hosts.txt, then run: python3 fill.py hosts.txt" >&2
  exit 2
  ;;
esac"""
