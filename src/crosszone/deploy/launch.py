"""Launch: a plan on its machines: which node runs which ranks, in which process, reached by which address.

An agent is one launcher process (a torchrun, say): a run of consecutive ranks on one node. A node whose ranks are not
consecutive has several, each with its own GPUs, so that the rank a launcher counts is always the rank that was planned.

Node scripts: what each machine runs (`nodes/000.sh`, ...), and the list of machines (`nodes.json`).

torchrun: one launcher process of PyTorch, with the node rank and the number of its processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from crosszone.analyse.host import compute_timeout_minutes
from crosszone.deploy.settings import LaunchSettings
from crosszone.deploy.shell import Raw, format_command, format_comment, quote_word
from crosszone.errors import IllegalError, InvalidError, Notice
from crosszone.inputs.cluster import Host, NodeGroup, Zone
from crosszone.inputs.scenario import Scenario
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.text import DEFAULT_LANGUAGE, label

# A host name, or an address of either kind.
ADDRESS_PATTERN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
# A network interface as Linux names it: at most fifteen characters.
INTERFACE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,14}")


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One launcher process: a run of consecutive ranks on one node."""

    number: int
    node: int
    first_rank: int
    gpus: tuple[int, ...]
    """GPUs within the node, in rank order."""

    @property
    def ranks(self) -> range:
        """Its ranks."""
        return range(self.first_rank, self.first_rank + len(self.gpus))

    @property
    def span(self) -> str:
        """Its ranks in words, e.g. 8-15."""
        first, last = self.ranks[0], self.ranks[-1]
        return f"{first}-{last}" if last > first else f"{first}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine that takes part."""

    number: int
    name: str
    host: str | None
    """Name the scenario gives its machine; None: it gives none."""
    zone: str
    group: int
    gpu: str
    gpus: int
    """GPUs it has."""
    address: str | None
    """Address other nodes reach it by; None: a launcher finds it. Of a template: a mark to be filled in."""
    interface: str | None
    """Network interface of that address; None: found at the start."""
    agents: tuple[Agent, ...]

    @property
    def script(self) -> str:
        """The script that starts it."""
        return f"nodes/{self.number:03d}.sh"

    @property
    def used_gpus(self) -> int:
        """GPUs that ranks use."""
        return sum(len(agent.gpus) for agent in self.agents)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A plan ready to be written down for a framework."""

    scenario: Scenario
    """With framework, strategy and placement."""
    predictor: Predictor
    prediction: Prediction
    framework: str
    settings: LaunchSettings
    nodes: tuple[Node, ...]
    language: str = DEFAULT_LANGUAGE
    template: bool = False
    """Addresses that are not known are marks to be filled in."""

    @cached_property
    def agents(self) -> tuple[Agent, ...]:
        """All launcher processes, in rank order."""
        return tuple(sorted((agent for node in self.nodes for agent in node.agents), key=lambda agent: agent.number))

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.predictor.placed.placement.ranks

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        return self.settings.steps or self.scenario.job.steps or 1000

    @cached_property
    def zones(self) -> tuple[str, ...]:
        """Zones in use, in rank order."""
        return tuple(dict.fromkeys(node.zone for node in self.nodes))

    @cached_property
    def timeout_minutes(self) -> int:
        """After which a collective is given up: three times the longest exchange, at least ten. [A7]"""
        return compute_timeout_minutes(self.predictor)

    @property
    def has_addresses(self) -> bool:
        """Every node's address is known (or marked, in a template)."""
        return all(node.address is not None for node in self.nodes)

    @property
    def whole_nodes(self) -> bool:
        """Every node runs one agent on its first GPUs in order: what launchers with a host file can say."""
        return all(
            len(node.agents) == 1 and node.agents[0].gpus == tuple(range(len(node.agents[0].gpus)))
            for node in self.nodes
        )

    def require_addresses(self, who: str, code: str = "launch_no_address") -> None:
        """Refuse a launch some of whose nodes have no address; each node group is named once."""
        missing = [node for node in self.nodes if node.address is None]
        if not missing:
            return
        zones = [zone.name for zone in self.scenario.cluster.zones]
        notices = []
        for zone, group in dict.fromkeys((node.zone, node.group) for node in missing):
            names = [node.name for node in missing if (node.zone, node.group) == (zone, group)]
            field = f"cluster.zones[{zones.index(zone)}].nodes[{group}].hosts"
            params = {"who": who, "zone": zone, "count": len(names), "node": names[0]}
            notices.append(Notice(code=code, field=field, params=params))
        raise InvalidError(*notices)


def list_nodes(predictor: Predictor, *, template: bool = False) -> tuple[Node, ...]:
    """The machines of a placed strategy in rank order, with the launcher processes each one runs."""
    placed = predictor.placed
    located = placed.placement.locate_ranks(placed.cluster)
    # One number for each machine: node numbers begin anew in every group and stay below a million.
    machine = located["group"] * 1_000_000 + located["node"]
    starts = np.flatnonzero(np.diff(machine, prepend=-1)).tolist()
    ends = [*starts[1:], len(machine)]
    agents_by_machine: dict[int, list[Agent]] = {}
    node_numbers: dict[int, int] = {}
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        key = int(machine[start])
        node = node_numbers.setdefault(key, len(node_numbers))
        gpus = tuple(located["gpu"][start:end].tolist())
        agents_by_machine.setdefault(key, []).append(Agent(number=number, node=node, first_rank=start, gpus=gpus))
    groups = [(zone, number, group) for zone in placed.cluster.zones for number, group in enumerate(zone.nodes)]
    return tuple(
        _build_node(node_numbers[key], key % 1_000_000, *groups[key // 1_000_000], agents, template)
        for key, agents in agents_by_machine.items()
    )


def _build_node(
    number: int, index: int, zone: Zone, group_number: int, group: NodeGroup, agents: list[Agent], template: bool
) -> Node:
    host = group.hosts[index] if group.hosts else None
    if host is not None:
        _check_host(zone, group_number, index, host)
    before = sum(group_before.count for group_before in zone.nodes[:group_number])
    return Node(
        number=number,
        name=(host.name if host and host.name else f"{zone.name}-{before + index}"),
        host=host.name if host else None,
        zone=zone.name,
        group=group_number,
        gpu=group.gpu.name,
        gpus=group.gpus,
        address=host.address if host else f"@ADDRESS_{number:03d}@" if template else None,
        interface=host.interface if host else None,
        agents=tuple(agents),
    )


def _check_host(zone: Zone, group_number: int, index: int, host: Host) -> None:
    """Addresses and interfaces go into scripts, so they are what they should be and nothing else."""
    for name, pattern in (("address", ADDRESS_PATTERN), ("interface", INTERFACE_PATTERN)):
        value = getattr(host, name)
        if value is not None and not pattern.fullmatch(value):
            field = f"cluster.zones.{zone.name}.nodes[{group_number}].hosts[{index}].{name}"
            raise InvalidError(Notice(code=f"launch_bad_{name}", field=field, value=value))


def build_refusal(code: str, field: str, value: object = None, **params: object) -> IllegalError:
    """What a framework or launcher cannot do, as an error to raise."""
    return IllegalError(Notice(code=code, field=field, value=value, params=params))


BuildCommand = Callable[[Launch, Agent], tuple[str | Raw, ...] | None]


def build_node_files(launch: Launch, command: BuildCommand) -> dict[str, str]:
    """The scripts, and `nodes.json`, which launchers and `verify.py` read."""
    scripts = {node.script: render_node_script(launch, node, command) for node in launch.nodes}
    return {**scripts, "nodes.json": render_nodes_json(launch)}


def render_node_script(launch: Launch, node: Node, command: BuildCommand) -> str:
    """What one node runs; arguments go on to the training program."""
    ranks = ", ".join(agent.span for agent in node.agents)
    params = {"number": node.number, "name": node.name, "zone": node.zone, "ranks": ranks, "gpu": node.gpu}
    lines = [
        "#!/usr/bin/env bash",
        format_comment(label("bundle_node", launch.language, **params)),
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        "# shellcheck disable=SC2034  # env.sh reads them",
        f"address={quote_word(node.address or '')} interface={quote_word(node.interface or '')}",
        f'export MASTER_ADDR="${{MASTER_ADDR:{_render_master_default(launch)}}}"',
        f'export MASTER_PORT="${{MASTER_PORT:-{launch.settings.port}}}"',
    ]
    if launch.template:
        lines.append(_TEMPLATE_GUARD)
    lines += ["# shellcheck source=/dev/null", ". ./env.sh"]
    commands = [(agent, words) for agent in node.agents if (words := command(launch, agent)) is not None]
    if not commands:
        lines.append(f"echo {quote_word(label('bundle_nothing_to_start', launch.language))}")
    elif len(commands) == 1:
        lines += _render_agent(node, *commands[0])
    else:
        lines += _render_agents(node, commands)
    return "\n".join(lines) + "\n"


def render_nodes_json(launch: Launch) -> str:
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


def _render_master_default(launch: Launch) -> str:
    """Where ranks meet unless the launcher says: the first node; a single one is its own; else somebody must say."""
    address = launch.nodes[0].address or ("127.0.0.1" if len(launch.nodes) == 1 else None)
    return f"-{address}" if address else f"?{_MASTER_HINT}"


def _list_gpu_variables(node: Node, agent: Agent) -> list[str]:
    """Which GPUs an agent sees, where that is not simply all of the node in order."""
    if agent.gpus == tuple(range(node.gpus)):
        return []
    return [f"CUDA_VISIBLE_DEVICES={','.join(map(str, agent.gpus))}"]


def _render_agent(node: Node, agent: Agent, words: tuple[str | Raw, ...]) -> list[str]:
    return [*(f"export {variable}" for variable in _list_gpu_variables(node, agent)), f"exec {format_command(words)}"]


def _render_agents(node: Node, commands: list[tuple[Agent, tuple[str | Raw, ...]]]) -> list[str]:
    """Several agents side by side: when one fails, the others are ended."""
    lines = ["started=()", "trap 'kill \"${started[@]}\" 2>/dev/null || true' EXIT INT TERM"]
    for agent, words in commands:
        prefix = "".join(f"{variable} " for variable in _list_gpu_variables(node, agent))
        lines += [f"{prefix}{format_command(words)} &", "started+=($!)"]
    return [*lines, 'for _ in "${started[@]}"; do wait -n; done']


_MASTER_HINT = "set MASTER_ADDR to the address of the first node, or start through the launcher of this bundle"
_TEMPLATE_GUARD = """\
case "$MASTER_ADDR$address" in *@*)
  echo "This bundle is a template: write the addresses into hosts.txt, then run: python3 fill.py hosts.txt" >&2
  exit 2
  ;;
esac"""


PASSED_ARGUMENTS = Raw('"$@"')  # What is typed after the node's script goes on to the trainer


def build_torchrun(launch: Launch, agent: Agent, *program: str | Raw) -> tuple[str | Raw, ...]:
    """The command of one agent; agents count as nodes, so that unequal and split nodes keep their planned ranks."""
    if len(launch.agents) == 1:
        meet: tuple[str | Raw, ...] = ("--standalone", "--nproc-per-node", str(len(agent.gpus)))
    else:
        meet = (
            *("--nnodes", str(len(launch.agents))),
            *("--node-rank", str(agent.number)),
            *("--nproc-per-node", str(len(agent.gpus))),
            *("--master-addr", Raw('"$MASTER_ADDR"')),
            *("--master-port", Raw('"$MASTER_PORT"')),
        )
    return (*list_program_words(launch, "torchrun", "torch.distributed.run"), *meet, *program, PASSED_ARGUMENTS)


def list_program_words(launch: Launch, name: str, module: str) -> tuple[str, ...]:
    """How a framework's launcher program is called: by its name, or as a module of the Python that was set."""
    python = launch.settings.python
    return (name,) if python is None else (python, "-m", module)
