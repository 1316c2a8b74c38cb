"""Launch: a plan on its machines: which node runs which ranks, in which process, reached by which address.

An agent is one launcher process (a torchrun, say): a run of consecutive ranks on one node. A node whose ranks are not
consecutive has several, each with its own GPUs, so that the rank a launcher counts is always the rank that was planned.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from crosszone.analyse.host import timeout_minutes
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import IllegalError, InvalidError, Notice
from crosszone.inputs.cluster import Host, NodeGroup, Zone
from crosszone.inputs.scenario import Scenario
from crosszone.predict.predict import Predictor
from crosszone.predict.prediction import Prediction
from crosszone.text import DEFAULT_LANGUAGE

ADDRESS = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
"""A host name, or an address of either kind."""
INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,14}")
"""A network interface as Linux names it: at most fifteen characters."""


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
        return tuple(sorted((agent for node in self.nodes for agent in node.agents), key=lambda one: one.number))

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.predictor.site.placement.ranks

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
        return timeout_minutes(self.predictor)

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


def nodes_of(predictor: Predictor, *, template: bool = False) -> tuple[Node, ...]:
    """The machines of a placed strategy in rank order, with the launcher processes each one runs."""
    site = predictor.site
    where = site.placement.located(site.cluster)
    machine = where["group"] * 1_000_000 + where["node"]
    starts = np.flatnonzero(np.diff(machine, prepend=-1)).tolist()
    ends = [*starts[1:], len(machine)]
    runs: dict[int, list[Agent]] = {}
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        gpus = tuple(where["gpu"][start:end].tolist())
        mine = runs.setdefault(int(machine[start]), [])
        mine.append(Agent(number=number, node=0, first_rank=start, gpus=gpus))
    groups = [(zone, number, group) for zone in site.cluster.zones for number, group in enumerate(zone.nodes)]
    return tuple(
        _node(number, key % 1_000_000, *groups[key // 1_000_000], agents, template)
        for number, (key, agents) in enumerate(runs.items())
    )


def _node(number: int, index: int, zone: Zone, at: int, group: NodeGroup, agents: list[Agent], template: bool) -> Node:
    host = group.hosts[index] if group.hosts else None
    if host is not None:
        _check_host(zone, at, index, host)
    before = sum(one.count for one in zone.nodes[:at])
    return Node(
        number=number,
        name=(host.name if host and host.name else f"{zone.name}-{before + index}"),
        host=host.name if host else None,
        zone=zone.name,
        group=at,
        gpu=group.gpu.name,
        gpus=group.gpus,
        address=host.address if host else f"@ADDRESS_{number:03d}@" if template else None,
        interface=host.interface if host else None,
        agents=tuple(Agent(number=a.number, node=number, first_rank=a.first_rank, gpus=a.gpus) for a in agents),
    )


def _check_host(zone: Zone, at: int, index: int, host: Host) -> None:
    """Addresses and interfaces go into scripts, so they are what they should be and nothing else."""
    for name, form in (("address", ADDRESS), ("interface", INTERFACE)):
        value = getattr(host, name)
        if value is not None and not form.fullmatch(value):
            field = f"cluster.zones.{zone.name}.nodes[{at}].hosts[{index}].{name}"
            raise InvalidError(Notice(code=f"launch_bad_{name}", field=field, value=value))


def refused(code: str, field: str, value: object = None, **params: object) -> IllegalError:
    """What a framework or launcher cannot do, as an error to raise."""
    return IllegalError(Notice(code=code, field=field, value=value, params=params))
