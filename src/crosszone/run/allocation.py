"""Allocation: nodes that a scheduler is asked for, by zone and GPU kind, instead of environments that run already.

    allocated([Wanted(zone="beijing-a", gpu="a100-80gb-sxm", nodes=2, gpus_per_node=8)], known)
    -> {"slurm-bj.0": Environment(...), "slurm-bj.1": Environment(...)}

An environment whose runner is a scheduler stands for a partition, a namespace or a cluster: it is the source of as many
nodes like itself as are asked for. A node has the id of its source, a dot and a number; no registered id has a dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, Strict

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.environment import Environment
from crosszone.inputs.value import Count, Prose, Value

SCHEDULERS = ("slurm", "kubernetes", "ray")
"""Runners that find the machines by themselves."""
SUPERVISED = "nodes"
"""What starts nodes here and over ssh: a supervisor on each of them."""
MOST_NODES = 1000
Named = Annotated[Prose, Field(min_length=1, max_length=200)]


class Wanted(Value):
    """Equal nodes of one zone."""

    zone: Named
    """Zone, by its name."""
    gpu: Named | None = None
    """GPU kind; null: whatever the zone's scheduler has."""
    nodes: Annotated[Count, Field(le=MOST_NODES)] = 1
    """How many nodes."""
    gpus_per_node: Annotated[int, Strict(), Field(ge=1, le=1024)] | None = None
    """GPUs of each; null: as many as a node there has."""


def allocated(wanted: Sequence[Wanted], known: Mapping[str, Environment]) -> dict[str, Environment]:
    """The nodes to ask for, by id; `InvalidError` when no scheduler has such nodes."""
    made: dict[str, Environment] = {}
    for index, one in enumerate(wanted):
        id = _source(one, known, f"allocation[{index}]")
        source = known[id]
        fields = {"interface": None, "gpus": one.gpus_per_node or source.gpus}
        before = sum(source_of(other) == id for other in made)
        for number in range(before, before + one.nodes):
            node, name = f"{id}.{number}", f"{source.name}.{number}"
            # a bundle for Ray names every machine; which one it is its job finds out
            made[node] = source.replace(**fields, name=name, address=node if source.runner == "ray" else None)
    if len(made) > MOST_NODES:
        raise InvalidError(
            Notice(code="task_allocation_many", field="allocation", value=len(made), params={"limit": MOST_NODES})
        )
    return made


def source_of(id: str) -> str:
    """The environment that a node comes from; one that was not allocated is its own."""
    return id.partition(".")[0]


def is_allocated(id: str) -> bool:
    """A scheduler is asked for the node; it is no environment of its own."""
    return "." in id


def started_by(environments: Iterable[Environment]) -> str:
    """Who starts all of them: slurm, kubernetes, ray, or `SUPERVISED`; `InvalidError`: no one can start them all."""
    kinds = {one.runner if one.runner in SCHEDULERS else SUPERVISED: one for one in environments}
    if len(kinds) > 1:
        first, second = list(kinds.values())[:2]
        params = {"one": first.name, "runner": first.runner, "other": second.name, "second": second.runner}
        raise InvalidError(Notice(code="task_runners_mixed", field="distributedConfig.nodeIds", params=params))
    return next(iter(kinds))


def launch_settings(environments: Mapping[str, Environment]) -> dict[str, Any]:
    """Launch settings that follow from where the nodes are; a request may say otherwise."""
    kind = started_by(environments.values())
    first = next(iter(environments.values()))
    if kind == "slurm":
        return {"partitions": {one.zone: one.partition for one in environments.values() if one.partition}}
    if kind == "kubernetes":
        made: dict[str, Any] = {"namespace": first.partition} if first.partition else {}
        labelled = {one.zone for one in environments.values() if one.type == "kubernetes" and one.zone != "default"}
        images = {one.image for one in environments.values() if one.image}
        return made | ({"image": images.pop()} if len(images) == 1 else {}) | {"zone_labels": {z: z for z in labelled}}
    return {}


def node_names(environments: Mapping[str, Environment]) -> dict[str, str]:
    """The environment of each node of a bundle: one with an address has its id as name, others are counted by zone."""
    counted: dict[str, int] = {}
    names: dict[str, str] = {}
    for id, one in environments.items():
        number = counted[one.zone] = counted.get(one.zone, -1) + 1
        names[id if one.address is not None else f"{one.zone}-{number}"] = id
    return names


def _source(one: Wanted, known: Mapping[str, Environment], field: str) -> str:
    """The first scheduler of the zone that has such nodes."""
    sources = {id: found for id, found in known.items() if found.runner in SCHEDULERS}
    for id, found in sources.items():
        fits = one.gpus_per_node is None or one.gpus_per_node <= found.gpus
        if found.zone == one.zone and (one.gpu is None or found.gpu == one.gpu) and fits:
            return id
    have = [f"{found.zone}: {found.gpus} x {found.gpu}" for found in sources.values()]
    params = {"gpu": one.gpu or "-", "gpus": one.gpus_per_node or "-", "known": list(dict.fromkeys(have))[:20] or ["-"]}
    raise InvalidError(Notice(code="task_allocation_none", field=field, value=one.zone, params=params))
