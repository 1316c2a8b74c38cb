"""Placement: which rank runs on which GPU of which node of which zone.

Ranks are numbered along `order`, the fastest axis first (Megatron's default: tp-cp-dp-pp). `blocks` lists the
GPUs in rank order: each block is a run of consecutive GPUs of one node group, so that ten thousand ranks fit on a page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, Strict, model_validator

from crosszone.errors import IllegalError, Notice
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.strategy import AXES, Strategy
from crosszone.inputs.value import Count, Name, Value, refuse

if TYPE_CHECKING:
    # Loading NumPy takes a third of `scenario check`, which needs it for stated placements only; so each function that
    # computes with ranks imports it.
    import numpy as np
    import numpy.typing as npt

    Ranks = npt.NDArray[np.int64]

Axis = Literal["tp", "cp", "dp", "pp"]
Index = Annotated[int, Strict(), Field(ge=0, le=1_000_000)]


class Block(Value):
    """A run of consecutive GPUs of one node group; a GPU's number is node x GPUs per node + its place in the node."""

    zone: Name
    """The zone."""
    group: Index = 0
    """Node group within the zone, from 0."""
    first: Index = 0
    """Number of the first GPU within the group, from 0."""
    count: Count
    """GPUs."""


@dataclass(frozen=True, kw_only=True)
class Idle:
    """GPUs that no rank uses, and why."""

    zone: str
    group: int
    count: int
    reason: Notice


class Placement(Value):
    """Where each rank runs."""

    order: tuple[Axis, Axis, Axis, Axis] = ("tp", "cp", "dp", "pp")
    """Axes by how fast they change with the rank number: the last one crosses zones first."""
    blocks: Annotated[tuple[Block, ...], Field(min_length=1, max_length=100_000)]
    """The GPUs in rank order."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sorted(self.order) != sorted(AXES):
            raise refuse("order_axes", "-".join(self.order), axes=list(AXES))
        return self

    @property
    def ranks(self) -> int:
        """Ranks it places."""
        return sum(block.count for block in self.blocks)

    def coordinates(self, strategy: Strategy) -> dict[str, Ranks]:
        """Each rank's place along every axis."""
        import numpy as np

        number = np.arange(self.ranks)
        coordinates: dict[str, Ranks] = {}
        for axis in self.order:
            degree: int = getattr(strategy, axis)
            coordinates[axis] = number % degree
            number = number // degree
        return coordinates

    def located(self, cluster: Cluster) -> dict[str, Ranks]:
        """Each rank's zone, node group (over all zones), node within the group and GPU within the node."""
        import numpy as np

        starts = {}
        for number, (zone, group) in enumerate(_groups(cluster)):
            starts[zone, group] = number
        sizes = [g.gpus for _, g in cluster.groups()]
        columns: dict[str, list[Any]] = {"zone": [], "group": [], "node": [], "gpu": []}
        for block in self.blocks:
            zone = cluster.zone_index(block.zone)
            group = starts[zone, block.group]
            numbers = np.arange(block.first, block.first + block.count)
            columns["zone"].append(np.full(block.count, zone))
            columns["group"].append(np.full(block.count, group))
            columns["node"].append(numbers // sizes[group])
            columns["gpu"].append(numbers % sizes[group])
        return {key: np.concatenate(parts) for key, parts in columns.items()}

    def check(self, cluster: Cluster, strategy: Strategy | None) -> list[Notice]:
        """Every way in which this placement cannot be: unknown GPUs, one used twice, too few, torn TP groups.

        Without a strategy only the GPUs are looked at.
        """
        import numpy as np

        notices = list(self._find_unknown_gpus(cluster))
        if notices:
            return notices
        if strategy is not None and self.ranks != strategy.ranks:
            params = {"placed": self.ranks, "ranks": strategy.ranks}
            notices.append(Notice(code="placement_ranks", field="placement.blocks", value=self.ranks, params=params))
            return notices
        where = self.located(cluster)
        # at most 1024 GPUs a node (`NodeGroup.gpus`)
        gpu_number = where["node"] * 1024 + where["gpu"]
        places = np.stack([where["group"], gpu_number])
        if np.unique(places, axis=1).shape[1] != self.ranks:
            notices.append(Notice(code="placement_twice", field="placement.blocks"))
        if strategy is not None:
            notices.extend(self._find_split_groups(cluster, strategy, where))
        return notices

    def idle(self, cluster: Cluster) -> list[Idle]:
        """GPUs no rank uses, by node group."""
        used = Counter[tuple[str, int]]()
        for block in self.blocks:
            used[block.zone, block.group] += block.count
        idle = []
        for zone in cluster.zones:
            for number, group in enumerate(zone.nodes):
                unused = group.total_gpus - used[zone.name, number]
                if unused:
                    params = {"zone": zone.name, "group": number, "count": unused}
                    why = Notice(code="idle_not_placed", field="placement.blocks", level="note", params=params)
                    idle.append(Idle(zone=zone.name, group=number, count=unused, reason=why))
        return idle

    def remarks(self, cluster: Cluster, strategy: Strategy) -> list[Notice]:
        """What is allowed but costs: tensor-parallel groups spread over more nodes than they need."""
        import numpy as np

        where, teams = self.located(cluster), self._list_tp_groups(strategy)
        # a group has at most 10^6 nodes (`cluster.MAX_GPUS`)
        nodes = (where["group"] * 1_000_000 + where["node"])[teams].reshape(-1, strategy.tp)
        used = 1 + (np.diff(np.sort(nodes, axis=1), axis=1) != 0).sum(axis=1)
        sizes = np.array([group.gpus for _, group in cluster.groups()])
        needed = -(-strategy.tp // sizes[where["group"][teams].reshape(-1, strategy.tp)[:, 0]])
        spread_groups = int((used > needed).sum())
        if not spread_groups:
            return []
        params = {"torn": spread_groups, "tp": strategy.tp}
        return [Notice(code="tp_torn", field="placement.blocks", value=spread_groups, level="warning", params=params)]

    def _list_tp_groups(self, strategy: Strategy) -> Ranks:
        """Ranks sorted so that each tensor-parallel group stands together."""
        import numpy as np

        axes = self.coordinates(strategy)
        team = (axes["cp"] * (strategy.dp or 1) + axes["dp"]) * strategy.pp + axes["pp"]
        # stable: ranks of a group stay in their order along tp
        return np.argsort(team, kind="stable")

    def _find_unknown_gpus(self, cluster: Cluster) -> Iterator[Notice]:
        zones = {zone.name: zone for zone in cluster.zones}
        for index, block in enumerate(self.blocks):
            field = f"placement.blocks[{index}]"
            zone = zones.get(block.zone)
            if zone is None:
                params = {"index": index, "zones": list(zones)}
                yield Notice(code="placement_zone", field=f"{field}.zone", value=block.zone, params=params)
            elif block.group >= len(zone.nodes):
                params = {"zone": block.zone, "groups": len(zone.nodes)}
                yield Notice(code="placement_group", field=f"{field}.group", value=block.group, params=params)
            elif block.first + block.count > zone.nodes[block.group].total_gpus:
                params = {"zone": block.zone, "last": block.first + block.count - 1}
                params["gpus"] = zone.nodes[block.group].total_gpus
                yield Notice(code="placement_gpu", field=field, value=block.first, params=params)

    def _find_split_groups(self, cluster: Cluster, strategy: Strategy, where: dict[str, Ranks]) -> Iterator[Notice]:
        import numpy as np

        by_team = self._list_tp_groups(strategy)
        zones = where["zone"][by_team].reshape(-1, strategy.tp)
        groups = where["group"][by_team].reshape(-1, strategy.tp)
        if (zones != zones[:, :1]).any():
            split_group = int(np.flatnonzero((zones != zones[:, :1]).any(axis=1))[0])
            names = [cluster.zones[z].name for z in sorted(set(zones[split_group].tolist()))]
            yield Notice(code="tp_across_zones", field="placement.blocks", value=strategy.tp, params={"zones": names})
            return
        gpu_kinds = cluster.gpu_kinds
        kinds = np.array([gpu_kinds.index(group.gpu) for _, group in cluster.groups()])
        mixed = kinds[groups]
        if (mixed != mixed[:, :1]).any():
            split_group = int(np.flatnonzero((mixed != mixed[:, :1]).any(axis=1))[0])
            params = {"kinds": [gpu_kinds[kind].name for kind in sorted(set(mixed[split_group].tolist()))]}
            yield Notice(code="tp_mixes_gpus", field="placement.blocks", value=strategy.tp, params=params)


def packed(cluster: Cluster, strategy: Strategy) -> tuple[Placement, list[Idle]]:
    """Fill node after node, zone after zone, with whole tensor-parallel groups; what is left over is idle.

    A group stays inside one node; one larger than a node takes whole nodes of one node group. `IllegalError`
    when the GPUs cannot hold all ranks that way.
    """
    refused = no_tp_room(cluster, strategy)
    if refused is not None:
        raise IllegalError(refused)
    needed = strategy.ranks
    blocks: list[Block] = []
    idle: list[Idle] = []
    for (zone, number), (_, group) in zip(_groups(cluster), cluster.groups(), strict=True):
        name = cluster.zones[zone].name
        fits = tp_capacity(group, strategy.tp)
        take = min(fits, needed)
        needed -= take
        blocks.extend(_blocks(name, number, group, strategy.tp, take))
        about = {"zone": name, "gpus": group.gpus, "tp": strategy.tp, "ranks": strategy.ranks}
        for code, count in (("idle_tp", group.total_gpus - fits), ("idle_spare", fits - take)):
            if count:
                why = Notice(code=code, field="strategy", level="note", params=about | {"count": count})
                idle.append(Idle(zone=name, group=number, count=count, reason=why))
    return Placement(blocks=tuple(_merge_blocks(blocks))), idle


def blocks_of(cluster: Cluster, tp: int, takes: Iterable[tuple[int, int]]) -> tuple[Block, ...]:
    """The GPUs in rank order where ranks take so many of one node group after the other, in whole TP groups.

    Each take goes on where the last one of its group ended; GPUs of a node that hold no whole TP group are left out.
    """
    groups = [(cluster.zones[z].name, number) for z, number in _groups(cluster)]
    sizes = [group.gpus for _, group in cluster.groups()]
    used = [0] * len(groups)
    blocks: list[Block] = []
    for at, count in takes:
        zone, number = groups[at]
        per_node = sizes[at] // tp * tp if tp < sizes[at] else sizes[at]
        start, end = used[at], used[at] + count
        used[at] = end
        if per_node == sizes[at]:
            blocks.append(Block(zone=zone, group=number, first=start, count=count))
            continue
        while start < end:
            node, inside = divmod(start, per_node)
            some = min(end - start, per_node - inside)
            blocks.append(Block(zone=zone, group=number, first=node * sizes[at] + inside, count=some))
            start += some
    return tuple(_merge_blocks(blocks))


def tp_room(cluster: Cluster, tp: int) -> int:
    """Ranks a cluster can hold in whole tensor-parallel groups."""
    return sum(tp_capacity(group, tp) for _, group in cluster.groups())


def no_tp_room(cluster: Cluster, strategy: Strategy) -> Notice | None:
    """Why the cluster cannot hold the strategy in whole tensor-parallel groups, with the largest tp that it could."""
    room, ranks = tp_room(cluster, strategy.tp), strategy.ranks
    if ranks <= room:
        return None
    # only divisors of tp: these divide the model's widths as tp did
    divisors = (t for t in range(strategy.tp, 1, -1) if strategy.tp % t == 0)
    legal = next((t for t in divisors if ranks // strategy.tp * t <= tp_room(cluster, t)), 1)
    params = {"ranks": ranks, "room": room, "tp": strategy.tp, "gpus": cluster.gpus, "legal": legal}
    return Notice(code="tp_room", field="strategy.tp", value=strategy.tp, params=params)


def tp_capacity(group: NodeGroup, tp: int) -> int:
    """Ranks a node group can hold in whole tensor-parallel groups."""
    if tp <= group.gpus:
        return group.count * (group.gpus // tp) * tp
    if tp % group.gpus:
        return 0
    return group.count // (tp // group.gpus) * tp


def _groups(cluster: Cluster) -> Iterator[tuple[int, int]]:
    for index, zone in enumerate(cluster.zones):
        for number in range(len(zone.nodes)):
            yield index, number


def _blocks(zone: str, number: int, group: NodeGroup, tp: int, take: int) -> Iterator[Block]:
    if tp > group.gpus or group.gpus % tp == 0:
        if take:
            yield Block(zone=zone, group=number, first=0, count=take)
        return
    per_node = group.gpus // tp * tp
    for node in range(-(-take // per_node)):
        yield Block(zone=zone, group=number, first=node * group.gpus, count=min(per_node, take - node * per_node))


def _merge_blocks(blocks: list[Block]) -> Iterator[Block]:
    last: Block | None = None
    for block in blocks:
        if last and (last.zone, last.group, last.first + last.count) == (block.zone, block.group, block.first):
            last = last.replace(count=last.count + block.count)
            continue
        if last:
            yield last
        last = block
    if last:
        yield last
