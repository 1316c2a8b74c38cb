"""The machines of the DT-FM runs: fleets of instances, links that are shaped on every instance, placements."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.cost.wan import Transport, zone_ring
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.document import read_text
from crosszone.inputs.links import zone_links
from crosszone.inputs.placement import Block, Placement
from crosszone.inputs.shipped import read_shipped
from crosszone.predict.parts import part
from crosszone.predict.site import EXPECTED, Crossings, Site

Row = Mapping[str, str]
Gpu = tuple[str, int, int]  # Zone, node group in it, and number in the group
BY_PIPELINE = ("tp", "cp", "pp", "dp")  # The GPUs of a pipeline follow each other (DT-FM)
BY_STAGE = ("tp", "cp", "dp", "pp")  # The replicas of a stage follow each other (Megatron-LM)
MESSAGE_BITS = 64e6  # Size at which regions are told near or far: about a micro-batch's activations
_INSTANCES = re.compile(r"(\d{1,4}) x (p3\.\d{1,2}xlarge)")
_ACROSS = re.compile(r"(\d+(?:\.\d+)?) across")


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What one instance may send to another, and how much later that arrives."""

    delay_ms: float
    gbps: float


Rates = dict[frozenset[str], Rate]


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The instances of a run."""

    cluster: Cluster
    """One zone with all of them; over regions, each instance is a zone of its own."""
    regions: tuple[str, ...]
    """Regions in the order of the instances, equally many in each; one: a data centre."""
    rates: Rates
    """Between regions, and of each with itself."""

    @cached_property
    def crossings(self) -> Crossings:
        """The links between its zones."""
        return Crossings(self.cluster, zone_links(self.cluster), Transport(flows=told()["sockets"]))

    @cached_property
    def gpus(self) -> list[Gpu]:
        """Every GPU as the authors number them: instance by instance, small ones evenly before each large one. [A26]"""
        found: list[Gpu] = []
        for zone in self.cluster.zones:
            groups = sorted(enumerate(zone.nodes), key=lambda one: one[1].gpus)
            turns = min(group.count for _, group in groups)
            for turn in range(turns):
                for number, group in groups:
                    first, last = (group.count * t // turns * group.gpus for t in (turn, turn + 1))
                    found += [(zone.name, number, gpu) for gpu in range(first, last)]
        return found


@dataclass(frozen=True, kw_only=True)
class RankOrder(Site):
    """A site whose replicas reduce gradients in rings in rank order: NCCL knows no distance between instances. [A25]"""

    @part
    def ring(self) -> tuple[int, ...]:
        """Zones that the ring of a stage goes through, in turn: of the stage whose ring is the slowest."""
        if not self.replica_zones:
            return ()
        rings = (tuple(int(z) for z in stage) for stage in self.zone[self.dp_zones > 1][:, :, 0, 0])
        return min(rings, key=lambda ring: float(self.crossings.ring_link(ring, 1).bytes_per_s[EXPECTED]))

    @part
    def zone_ranks(self) -> int:
        """Rings that run at the same time, each over instances of its own."""
        return int((self.dp_zones > 1).sum()) * self.strategy.tp


def read_rates(path: Path) -> Rates:
    """Delay and rate of every pair of regions of the links' file."""
    rows = csv.DictReader(io.StringIO(read_text(path)))
    return {
        frozenset((row["region_a"], row["region_b"])): Rate(
            delay_ms=float(row["ping_ms"]), gbps=float(row["bandwidth_gbps_used"])
        )
        for row in rows
    }


def fleet(row: Row, rates: Rates) -> Fleet:
    """The instances of a row: of a data centre, with its network; or of regions, one GPU each. [A25]

    Over regions every instance shapes what it sends, by where it goes: delay and rate hold for each pair of instances,
    and no two pairs share anything. So each instance is a zone with a link to every other, on which all connections of
    one group together reach the rate, and more groups would as often.
    """
    found = _INSTANCES.findall(row["zones"])
    if found:
        shared = {"gpu": told()["gpu"], "nic_gbps": float(_one(_ACROSS, row["intra_zone_gbps"])), "fabric": "tcp"}
        nodes = [{"count": int(n), "gpus": told()["instances"][kind]} | shared for n, kind in found]
        cluster = Cluster.model_validate({"zones": [{"name": "region", "nodes": nodes}]})
        return Fleet(cluster=cluster, regions=("region",), rates={})
    regions = tuple(row["zones"].split(";"))
    each, left = divmod(int(row["gpus"]), len(regions))
    if left:
        raise ValueError(f"{row['gpus']} instances over {len(regions)} regions")
    return _over_regions(regions, each, _between(row, regions, rates))


def _over_regions(regions: tuple[str, ...], each: int, rates: Rates) -> Fleet:
    places = [(region, f"{region}-{number}") for region in regions for number in range(each)]
    node = {"gpus": 1, "gpu": told()["gpu"], "nic_gbps": told()["nic_gbps"], "fabric": "tcp"}
    connections = Transport(flows=told()["sockets"]).connections
    links = []
    for at, (region, name) in enumerate(places):
        for other, far in places[at + 1 :]:
            rate = rates[frozenset((region, other))]
            rtt = told()["delays_per_round_trip"] * rate.delay_ms
            figures = {"rtt_ms": rtt, "jitter_ms": 0.0, "loss_pct": 0.0}
            figures |= {"gbps": rate.gbps * len(places), "flow_gbps": rate.gbps / connections}
            links.append({"between": [name, far]} | figures)
    cluster = Cluster.model_validate({"zones": [{"name": name, "nodes": [node]} for _, name in places], "links": links})
    return Fleet(cluster=cluster, regions=regions, rates=rates)


def _between(row: Row, regions: tuple[str, ...], rates: Rates) -> Rates:
    """Rates among the regions of a row, and inside each."""
    gbps, delays = float(row["intra_zone_gbps"]), told()["delay_inside_ms"]
    inside = Rate(delay_ms=delays["university" if "universities" in row["setting"] else "region"], gbps=gbps)
    found = {frozenset((region,)): inside for region in regions}
    for at, a in enumerate(regions):
        found |= {frozenset((a, b)): rates[frozenset((a, b))] for b in regions[at + 1 :]}
    other = told()["regional"]
    pair = frozenset(other["between"])
    if other["setting"] in row["setting"] and pair in found:
        found[pair] = Rate(delay_ms=found[pair].delay_ms, gbps=other["gbps"])
    return found


def placed(gpus: list[Gpu], order: tuple[Any, ...]) -> Placement:
    """Ranks on these GPUs, one after the other."""
    blocks = tuple(Block(zone=zone, group=group, first=number, count=1) for zone, group, number in gpus)
    return Placement(order=order, blocks=blocks)


def random_placement(gpus: list[Gpu], order: tuple[Any, ...], seed: int) -> Placement:
    """Each GPU takes a rank at random, the first of them rank 0: as the authors draw them. [A26]"""
    rest = np.arange(1, len(gpus))
    np.random.RandomState(seed).shuffle(rest)
    ranks: list[int] = [0, *rest.tolist()]
    at = dict(zip(ranks, gpus, strict=True))
    return placed([at[rank] for rank in range(len(gpus))], order)


def layouts(fleet: Fleet, pp: int) -> Iterator[Placement]:
    """The placements that a scheduler chooses among. [A26]

    Every pipeline inside one region, replicas in the order of the regions, which the scheduler does not look at; or
    through 2, 4, ... regions, stage by stage, that follow each other in the best ring over all. In a data centre:
    pipelines along the instances, or across them.
    """
    gpus, regions = fleet.gpus, len(fleet.regions)
    yield placed(gpus, BY_PIPELINE)
    if regions == 1:
        yield placed(gpus, BY_STAGE)
        return
    each = len(gpus) // regions
    ring = [gpu for region in _near_ones_together(fleet) for gpu in gpus[region * each : (region + 1) * each]]
    joined = 2
    while joined <= regions:
        together = joined * each
        if regions % joined == 0 and together % pp == 0:
            for cut in range(0, together, each):  # a ring may be cut between any two regions
                turned = ring[cut:] + ring[:cut]
                blocks = (turned[first : first + together] for first in range(0, len(ring), together))
                yield placed([gpu for block in blocks for gpu in _stage_by_stage(block, pp)], BY_PIPELINE)
        joined *= 2


def _near_ones_together(fleet: Fleet) -> tuple[int, ...]:
    """Places of the regions in the ring whose slowest edge is the fastest."""

    def seconds(a: str, b: str) -> float:
        rate = fleet.rates[frozenset((a, b))]
        return rate.delay_ms * 1e-3 + MESSAGE_BITS / (rate.gbps * 1e9)

    return zone_ring([[seconds(a, b) for b in fleet.regions] for a in fleet.regions])


def _stage_by_stage(block: list[Gpu], pp: int) -> list[Gpu]:
    """The GPUs of a block by pipeline, where each stage of all its pipelines takes those that come next in it."""
    pipelines = len(block) // pp
    return [block[stage * pipelines + pipeline] for pipeline in range(pipelines) for stage in range(pp)]


def _one(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    if found is None:
        raise ValueError(text)
    return found[1]


@cache
def told() -> dict[str, Any]:
    """What the table of runs does not say."""
    loaded: dict[str, Any] = read_shipped("crosszone.analyse.published", "dtfm.yaml").value
    return loaded
