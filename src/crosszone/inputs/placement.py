"""Placement: which rank runs on which GPU of which node of which zone.

Ranks are numbered along `order`, the fastest axis first (Megatron's default: tp-cp-dp-pp). `blocks` lists the
GPUs in rank order: each block is a run of consecutive GPUs of one node group, so that ten thousand ranks fit on a page.

Arrays: R = ranks, G = tensor-parallel groups, T = ranks of one group.
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

    def compute_coordinates(self, strategy: Strategy) -> dict[str, Ranks]:
        """Each rank's place along every axis."""
        import numpy as np

        number = np.arange(self.ranks)
        coordinates: dict[str, Ranks] = {}
        for axis in self.order:
            degree: int = getattr(strategy, axis)
            coordinates[axis] = number % degree
            number = number // degree
        return coordinates

    def locate_ranks(self, cluster: Cluster) -> dict[str, Ranks]:
        """Each rank's zone, node group (over all zones), node within the group and GPU within the node."""
        import numpy as np

        starts = {place: number for number, place in enumerate(_list_group_places(cluster))}
        sizes = [g.gpus for _, g in cluster.zone_groups]
        columns: dict[str, list[Any]] = {"zone": [], "group": [], "node": [], "gpu": []}
        for block in self.blocks:
            zone = cluster.find_zone_index(block.zone)
            group = starts[zone, block.group]
            numbers = np.arange(block.first, block.first + block.count)
            columns["zone"].append(np.full(block.count, zone))
            columns["group"].append(np.full(block.count, group))
            columns["node"].append(numbers // sizes[group])
            columns["gpu"].append(numbers % sizes[group])
        return {key: np.concatenate(parts) for key, parts in columns.items()}

    def check(self, cluster: Cluster, strategy: Strategy | None) -> list[Notice]:
        """What is wrong with this placement: unknown GPUs, one used twice, too few, split tensor-parallel groups.

        Without a strategy only the GPUs are checked.
        """
        import numpy as np

        notices = list(self._find_unknown_gpus(cluster))
        if notices:
            return notices
        if strategy is not None and self.ranks != strategy.ranks:
            params = {"placed": self.ranks, "ranks": strategy.ranks}
            notices.append(Notice(code="placement_ranks", field="placement.blocks", value=self.ranks, params=params))
            return notices
        located = self.locate_ranks(cluster)
        # at most 1024 GPUs a node (`NodeGroup.gpus`)
        gpu_number_R = located["node"] * 1024 + located["gpu"]
        places = np.stack([located["group"], gpu_number_R])
        if np.unique(places, axis=1).shape[1] != self.ranks:
            notices.append(Notice(code="placement_twice", field="placement.blocks"))
        if strategy is not None:
            notices.extend(self._find_split_groups(cluster, strategy, located))
        return notices

    def list_idle(self, cluster: Cluster) -> list[Idle]:
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
                    reason = Notice(code="idle_not_placed", field="placement.blocks", level="note", params=params)
                    idle.append(Idle(zone=zone.name, group=number, count=unused, reason=reason))
        return idle

    def list_remarks(self, cluster: Cluster, strategy: Strategy) -> list[Notice]:
        """Warnings of what is legal but slow: tensor-parallel groups spread over more nodes than they need."""
        import numpy as np

        located, ranks_GT = self.locate_ranks(cluster), self._list_tp_groups(strategy)
        # a group has at most 10^6 nodes (`cluster.MAX_GPUS`)
        node_GT = (located["group"] * 1_000_000 + located["node"])[ranks_GT]
        used_G = 1 + (np.diff(np.sort(node_GT, axis=1), axis=1) != 0).sum(axis=1)
        sizes = np.array([group.gpus for _, group in cluster.zone_groups])
        needed_G = -(-strategy.tp // sizes[located["group"][ranks_GT[:, 0]]])
        spread_groups = int((used_G > needed_G).sum())
        if not spread_groups:
            return []
        params = {"torn": spread_groups, "tp": strategy.tp}
        return [Notice(code="tp_torn", field="placement.blocks", value=spread_groups, level="warning", params=params)]

    def _list_tp_groups(self, strategy: Strategy) -> Ranks:
        """The ranks of each tensor-parallel group [G, T]."""
        import numpy as np

        axes = self.compute_coordinates(strategy)
        group_R = (axes["cp"] * (strategy.dp or 1) + axes["dp"]) * strategy.pp + axes["pp"]
        # stable: ranks of a group stay in their order along tp
        return np.argsort(group_R, kind="stable").reshape(-1, strategy.tp)

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

    def _find_split_groups(self, cluster: Cluster, strategy: Strategy, located: dict[str, Ranks]) -> Iterator[Notice]:
        import numpy as np

        ranks_GT = self._list_tp_groups(strategy)
        gpu_kinds = cluster.gpu_kinds
        kinds = np.array([gpu_kinds.index(group.gpu) for _, group in cluster.zone_groups])
        zone_names, kind_names = [zone.name for zone in cluster.zones], [kind.name for kind in gpu_kinds]
        for code, key, index_GT, names in (
            ("tp_across_zones", "zones", located["zone"][ranks_GT], zone_names),
            ("tp_mixes_gpus", "kinds", kinds[located["group"][ranks_GT]], kind_names),
        ):
            split_groups = np.flatnonzero((index_GT != index_GT[:, :1]).any(axis=1))
            if split_groups.size:
                params = {key: [names[index] for index in sorted(set(index_GT[split_groups[0]].tolist()))]}
                yield Notice(code=code, field="placement.blocks", value=strategy.tp, params=params)
                return  # a group across zones is not also reported for the GPUs it mixes


def pack_ranks(cluster: Cluster, strategy: Strategy) -> tuple[Placement, list[Idle]]:
    """Fill node after node, zone after zone, with whole tensor-parallel groups; what is left over is idle.

    A tensor-parallel group stays inside one node; one larger than a node takes whole nodes of one node group.
    `IllegalError` when the GPUs cannot hold all ranks that way.
    """
    refused = check_tp_room(cluster, strategy)
    if refused is not None:
        raise IllegalError(refused)
    needed = strategy.ranks
    takes: list[tuple[int, int]] = []
    idle: list[Idle] = []
    for (zone, number), (_, group) in zip(_list_group_places(cluster), cluster.zone_groups, strict=True):
        fits = count_group_tp_room(group, strategy.tp)
        take = min(fits, needed)
        needed -= take
        takes.append((len(takes), take))
        name = cluster.zones[zone].name
        params = {"zone": name, "gpus": group.gpus, "tp": strategy.tp, "ranks": strategy.ranks}
        for code, count in (("idle_tp", group.total_gpus - fits), ("idle_spare", fits - take)):
            if count:
                reason = Notice(code=code, field="strategy", level="note", params=params | {"count": count})
                idle.append(Idle(zone=name, group=number, count=count, reason=reason))
    return Placement(blocks=build_blocks(cluster, strategy.tp, takes)), idle


def build_blocks(cluster: Cluster, tp: int, takes: Iterable[tuple[int, int]]) -> tuple[Block, ...]:
    """The GPUs in rank order, where each take (node group, ranks) adds so many ranks in whole TP groups.

    Each take continues where the last one of its node group ended; GPUs of a node that hold no whole TP group are
    left out.
    """
    groups = [(cluster.zones[z].name, number) for z, number in _list_group_places(cluster)]
    sizes = [group.gpus for _, group in cluster.zone_groups]
    used = [0] * len(groups)
    blocks: list[Block] = []
    for index, count in takes:
        zone, number = groups[index]
        size = sizes[index]
        per_node = size // tp * tp if tp < size else size
        start, end = used[index], used[index] + count
        used[index] = end
        while start < end:
            node, place = divmod(start, per_node)
            # without GPUs left out between nodes, a take is one run
            run = end - start if per_node == size else min(end - start, per_node - place)
            blocks.append(Block(zone=zone, group=number, first=node * size + place, count=run))
            start += run
    return tuple(_merge_blocks(blocks))


def count_tp_room(cluster: Cluster, tp: int) -> int:
    """Ranks a cluster can hold in whole tensor-parallel groups."""
    return sum(count_group_tp_room(group, tp) for _, group in cluster.zone_groups)


def check_tp_room(cluster: Cluster, strategy: Strategy) -> Notice | None:
    """Why the cluster cannot hold the strategy in whole tensor-parallel groups, with the largest tp that it could."""
    room, ranks = count_tp_room(cluster, strategy.tp), strategy.ranks
    if ranks <= room:
        return None
    # only divisors of tp: these divide the model's widths as tp did
    divisors = (t for t in range(strategy.tp, 1, -1) if strategy.tp % t == 0)
    legal = next((t for t in divisors if ranks // strategy.tp * t <= count_tp_room(cluster, t)), 1)
    params = {"ranks": ranks, "room": room, "tp": strategy.tp, "gpus": cluster.gpus, "legal": legal}
    return Notice(code="tp_room", field="strategy.tp", value=strategy.tp, params=params)


def count_group_tp_room(group: NodeGroup, tp: int) -> int:
    """Ranks a node group can hold in whole tensor-parallel groups."""
    if tp <= group.gpus:
        return group.count * (group.gpus // tp) * tp
    if tp % group.gpus:
        return 0
    return group.count // (tp // group.gpus) * tp


def _list_group_places(cluster: Cluster) -> Iterator[tuple[int, int]]:
    for index, zone in enumerate(cluster.zones):
        for number in range(len(zone.nodes)):
            yield index, number


def _merge_blocks(blocks: list[Block]) -> list[Block]:
    """The blocks with those joined that continue one another."""
    merged: list[Block] = []
    for block in blocks:
        last = merged[-1] if merged else None
        if last and (last.zone, last.group, last.first + last.count) == (block.zone, block.group, block.first):
            merged[-1] = last.replace(count=last.count + block.count)
        else:
            merged.append(block)
    return merged
