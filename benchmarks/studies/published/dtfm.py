"""DT-FM (Yuan et al., NeurIPS 2022): training over five networks, by method and placement, and single transfers.

Three parts: the instances, links and placements of the runs; iterations; transfers by NCCL and Gloo over shaped links.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from crosszone.calibrate.published import PublishedResult
from crosszone.cost.collectives import Ring, all_reduce
from crosszone.cost.gloo import gloo_all_reduce_s, gloo_send_s
from crosszone.cost.profile import Profiles
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, Tier, read_figure
from crosszone.cost.wan import WanTransport, find_ring_order, hosts_rtt_s
from crosszone.errors import InputError
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.document import read_text
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.job import Job
from crosszone.inputs.links import build_zone_links
from crosszone.inputs.model import Model
from crosszone.inputs.placement import Block, Placement
from crosszone.inputs.rules import Case
from crosszone.inputs.strategy import Strategy
from crosszone.predict.parts import cached_part
from crosszone.predict.placed_strategy import EXPECTED, Crossings, PlacedStrategy
from crosszone.predict.predictor import Predictor

Row = Mapping[str, str]
Gpu = tuple[str, int, int]  # Zone, node group in it, and number in the group
BY_PIPELINE = ("tp", "cp", "pp", "dp")  # The GPUs of a pipeline follow each other (DT-FM)
BY_STAGE = ("tp", "cp", "dp", "pp")  # The replicas of a stage follow each other (Megatron-LM)
MESSAGE_BITS = 64e6  # Size at which regions are called near or far: about a micro-batch's activations
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
        return Crossings(self.cluster, build_zone_links(self.cluster), WanTransport(flows=read_setup()["sockets"]))

    @cached_property
    def gpus(self) -> list[Gpu]:
        """Every GPU as the authors number them: instance by instance, small ones evenly before each large one. [A26]"""
        gpus: list[Gpu] = []
        for zone in self.cluster.zones:
            groups = sorted(enumerate(zone.nodes), key=lambda numbered: numbered[1].gpus)
            turns = min(group.count for _, group in groups)
            for turn in range(turns):
                for number, group in groups:
                    first, last = (group.count * t // turns * group.gpus for t in (turn, turn + 1))
                    gpus += [(zone.name, number, gpu) for gpu in range(first, last)]
        return gpus


@dataclass(frozen=True, kw_only=True)
class RankOrder(PlacedStrategy):
    """Replicas reduce gradients in rings in rank order: NCCL knows no distance between instances. [A25]"""

    @cached_part
    def ring(self) -> tuple[int, ...]:
        """Zones that the ring of a stage goes through, in turn: of the stage whose ring is the slowest."""
        if not self.replica_zones:
            return ()
        rings = (tuple(int(z) for z in stage) for stage in self.zone[self.dp_zones > 1][:, :, 0, 0])
        return min(rings, key=lambda ring: float(self.crossings.get_ring_link(ring, 1).bytes_per_s[EXPECTED]))

    @cached_part
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


def build_fleet(row: Row, rates: Rates) -> Fleet:
    """The instances of a row: of a data centre, with its network; or of regions, one GPU each. [A25]

    Over regions every instance shapes what it sends, by where it goes: delay and rate hold for each pair of instances,
    and no two pairs share anything. So each instance is a zone with a link to every other, on which all connections of
    one group together reach the rate, and more groups would as often.
    """
    instances = _INSTANCES.findall(row["zones"])
    if instances:
        shared = {
            "gpu": read_setup()["gpu"],
            "nic_gbps": float(_search_one(_ACROSS, row["intra_zone_gbps"])),
            "fabric": "tcp",
        }
        nodes = [{"count": int(n), "gpus": read_setup()["instances"][kind]} | shared for n, kind in instances]
        cluster = Cluster.model_validate({"zones": [{"name": "region", "nodes": nodes}]})
        return Fleet(cluster=cluster, regions=("region",), rates={})
    regions = tuple(row["zones"].split(";"))
    per_region, remainder = divmod(int(row["gpus"]), len(regions))
    if remainder:
        raise ValueError(f"{row['gpus']} instances over {len(regions)} regions")
    return _build_regional_fleet(regions, per_region, _select_rates(row, regions, rates))


def _build_regional_fleet(regions: tuple[str, ...], per_region: int, rates: Rates) -> Fleet:
    places = [(region, f"{region}-{number}") for region in regions for number in range(per_region)]
    node = {"gpus": 1, "gpu": read_setup()["gpu"], "nic_gbps": read_setup()["nic_gbps"], "fabric": "tcp"}
    connections = WanTransport(flows=read_setup()["sockets"]).connections
    links = []
    for at, (region, name) in enumerate(places):
        for other, far in places[at + 1 :]:
            rate = rates[frozenset((region, other))]
            rtt = read_setup()["delays_per_round_trip"] * rate.delay_ms
            figures = {"rtt_ms": rtt, "jitter_ms": 0.0, "loss_pct": 0.0}
            figures |= {"gbps": rate.gbps * len(places), "flow_gbps": rate.gbps / connections}
            links.append({"between": [name, far]} | figures)
    cluster = Cluster.model_validate({"zones": [{"name": name, "nodes": [node]} for _, name in places], "links": links})
    return Fleet(cluster=cluster, regions=regions, rates=rates)


def _select_rates(row: Row, regions: tuple[str, ...], rates: Rates) -> Rates:
    """Rates among the regions of a row, and inside each."""
    gbps, delays = float(row["intra_zone_gbps"]), read_setup()["delay_inside_ms"]
    inside = Rate(delay_ms=delays["university" if "universities" in row["setting"] else "region"], gbps=gbps)
    selected = {frozenset((region,)): inside for region in regions}
    for at, a in enumerate(regions):
        selected |= {frozenset((a, b)): rates[frozenset((a, b))] for b in regions[at + 1 :]}
    regional = read_setup()["regional"]
    pair = frozenset(regional["between"])
    if regional["setting"] in row["setting"] and pair in selected:
        selected[pair] = Rate(delay_ms=selected[pair].delay_ms, gbps=regional["gbps"])
    return selected


def place_ranks(gpus: list[Gpu], order: tuple[Any, ...]) -> Placement:
    """Ranks on these GPUs, one after the other."""
    blocks = tuple(Block(zone=zone, group=group, first=number, count=1) for zone, group, number in gpus)
    return Placement(order=order, blocks=blocks)


def draw_placement(gpus: list[Gpu], order: tuple[Any, ...], seed: int) -> Placement:
    """Each GPU takes a rank at random, the first of them rank 0: as the authors draw them. [A26]"""
    other_ranks = np.arange(1, len(gpus))
    np.random.RandomState(seed).shuffle(other_ranks)
    ranks: list[int] = [0, *other_ranks.tolist()]
    gpu_of_rank = dict(zip(ranks, gpus, strict=True))
    return place_ranks([gpu_of_rank[rank] for rank in range(len(gpus))], order)


def list_placements(fleet: Fleet, pp: int) -> Iterator[Placement]:
    """The placements that a scheduler chooses among. [A26]

    Every pipeline inside one region, replicas in the order of the regions, which the scheduler does not look at; or
    through 2, 4, ... regions, stage by stage, that follow each other in the best ring over all. In a data centre:
    pipelines along the instances, or across them.
    """
    gpus, regions = fleet.gpus, len(fleet.regions)
    yield place_ranks(gpus, BY_PIPELINE)
    if regions == 1:
        yield place_ranks(gpus, BY_STAGE)
        return
    per_region = len(gpus) // regions
    ring = [gpu for region in _order_regions(fleet) for gpu in gpus[region * per_region : (region + 1) * per_region]]
    joined = 2
    while joined <= regions:
        together = joined * per_region
        if regions % joined == 0 and together % pp == 0:
            for cut in range(0, together, per_region):  # a ring may be cut between any two regions
                turned = ring[cut:] + ring[:cut]
                blocks = (turned[first : first + together] for first in range(0, len(ring), together))
                yield place_ranks([gpu for block in blocks for gpu in _group_by_pipeline(block, pp)], BY_PIPELINE)
        joined *= 2


def _order_regions(fleet: Fleet) -> tuple[int, ...]:
    """Places of the regions in the ring whose slowest edge is the fastest."""

    def seconds(a: str, b: str) -> float:
        rate = fleet.rates[frozenset((a, b))]
        return rate.delay_ms * 1e-3 + MESSAGE_BITS / (rate.gbps * 1e9)

    return find_ring_order([[seconds(a, b) for b in fleet.regions] for a in fleet.regions])


def _group_by_pipeline(block: list[Gpu], pp: int) -> list[Gpu]:
    """The GPUs of a block by pipeline, where each stage of all its pipelines takes those that come next in it."""
    pipelines = len(block) // pp
    return [block[stage * pipelines + pipeline] for pipeline in range(pipelines) for stage in range(pp)]


def _search_one(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    if match is None:
        raise ValueError(text)
    return match[1]


@cache
def read_setup() -> dict[str, Any]:
    """What the table of runs does not say."""
    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("dtfm.yaml").read_text("utf-8"))
    return loaded


FAMILY = "dtfm"
FRAMEWORK = "megatron"  # Whose states are counted: 16-bit weights with fp32 copies
WHOLE_MB = 1e6  # Gradients go in one piece after the last backward pass


def predict_dtfm(rows: Sequence[Row], links_path: Path) -> list[PublishedResult]:
    """Every row of the family beside its prediction: a step on the network and the placement it names."""
    rates, profiles = read_rates(links_path), Profiles.load_shipped()
    fleets: dict[tuple[str, ...], Fleet] = {}
    results = []
    for row in rows:
        try:
            network = (row["setting"], row["zones"], row["intra_zone_gbps"], row["gpus"])
            fleet = fleets.get(network) or fleets.setdefault(network, build_fleet(row, rates))
            predicted = predict_iteration_s(row, fleet, profiles)
        except (KeyError, ValueError, InputError):  # a network, method or degree that no such run had
            predicted = None
        results.append(_build_result(row, predicted))
    return results


def predict_iteration_s(row: Row, fleet: Fleet, profiles: Profiles) -> float:
    """Seconds of an iteration: as placed by default, the mean of random placements, or the best layout. [A27]"""
    method = row["method"]
    scheduled = method.startswith("DT-FM")
    order = BY_PIPELINE if scheduled else BY_STAGE
    if "random" in method:
        drawn = (draw_placement(fleet.gpus, order, seed) for seed in read_setup()["seeds"])
        return float(np.mean([predict_step_s(row, fleet, placement, profiles) for placement in drawn]))
    if scheduled:
        return min(
            predict_step_s(row, fleet, placement, profiles) for placement in list_placements(fleet, int(row["pp"]))
        )
    return predict_step_s(row, fleet, place_ranks(fleet.gpus, order), profiles)


def predict_step_s(row: Row, fleet: Fleet, placement: Placement, profiles: Profiles) -> float:
    """Seconds of an iteration on a placement; GPipe holds so many micro-batches, more run in further rounds. [A28]"""
    batch, rounds = int(row["global_batch"]), 1
    if _find_method(row)["strategy"]["schedule"] == "gpipe":
        rounds = max(1, batch // (read_setup()["round_micro_batches"] * int(row["dp"]) * int(row["micro_batch"])))
    step = build_predictor(row, fleet, placement, profiles, batch // rounds).step
    return float((step.total_s + (rounds - 1) * step.pipelines.span_s).max())


def build_predictor(row: Row, fleet: Fleet, placement: Placement, profiles: Profiles, batch: int) -> Predictor:
    """The predictor of a row with a batch of its own; published runs are what they are: no rule is asked."""
    method = _find_method(row)
    job = Job(
        seq_len=int(row["seq_len"]),
        global_batch=batch,
        precision="fp16",
        optimizer=method["optimizer"],
        framework=FRAMEWORK,
        stack=method["stack"],
    )
    links = fleet.crossings
    case = Case(model=_build_model(row, method["model"]), job=job, cluster=fleet.cluster, strategy=_build_strategy(row))
    return Predictor(
        name=row["id"],
        placed=RankOrder(case=case, placement=placement, links=dict(links.links), banded=False, shared_crossings=links),
        framework=load_frameworks()[FRAMEWORK],
        profiles=profiles,
        stack=profiles.select_stack(FRAMEWORK, method["stack"]),
        notices=(),
    )


def _build_strategy(row: Row) -> Strategy:
    """Gradients in 16 bits, reduced in one piece by a ring over all replicas, after everything else."""
    exchange = {
        "overlap_gradients": False,
        "overlap_parameters": False,
        "gradient_dtype": "fp16",
        "reduce": "flat",
        "algorithm": "ring",
        "bucket_mb": WHOLE_MB,
        "flows": read_setup()["sockets"],
    }
    degrees = {axis: int(row[axis]) for axis in ("tp", "pp", "dp", "micro_batch")}
    options = dict(_find_method(row)["strategy"])
    if degrees["pp"] == 1:
        del options["schedule"]
    return Strategy.model_validate({**options, **degrees, "zero": 0, "communication": exchange})


def _build_model(row: Row, head: dict[str, Any]) -> Model:
    hidden = int(row["hidden"])
    shape = {"layers": int(row["layers"]), "hidden": hidden, "ffn_hidden": 4 * hidden, "heads": read_setup()["heads"]}
    learned = {"positions": "learned", "max_seq_len": int(row["seq_len"])}
    return Model.model_validate(shape | learned | {"norm": "layernorm", "bias": ["qkv", "out", "mlp"]} | head)


def _find_method(row: Row) -> dict[str, Any]:
    method: dict[str, Any] = read_setup()["methods"][row["method"].partition(" ")[0]]
    return method


def _build_result(row: Row, predicted: float | None) -> PublishedResult:
    return PublishedResult(
        id=row["id"],
        family=FAMILY,
        case=f"{row['setting']}, {row['layers']} layers, batch {row['global_batch']}, {row['method']}",
        unit=row["unit"],
        published=float(row["value"]),
        predicted=predicted,
        reason="" if predicted is not None else "published_unmodelled",
    )


MICRO_FAMILY = "tc-micro"
BYTES_PER_MB = 2**20  # Tensors are sized by powers of two
_SIZE = re.compile(r"(p2p|all-reduce)(?: \w+)? time of (\d{1,6}) MB")


def predict_transfers(rows: Sequence[Mapping[str, str]]) -> list[PublishedResult]:
    """Every row of the family beside what the links' formulas say."""
    return [_build_micro_result(row) for row in rows]


def predict_transfer_s(
    kind: str, library: Literal["nccl", "gloo"], size_bytes: float, ranks: int, rtt_s: float, gbps: float
) -> float:
    """Seconds of one transfer over connections that are warm. [A29]

    `gbps`: what an instance may send. NCCL opens many connections, which together fill it; Gloo one, which has a
    ceiling of its own.
    """
    many = library == "nccl"
    transport = WanTransport(library=library, flows=read_setup()["sockets"] if many else 1)
    line = gbps * BYTES_PER_S_PER_GBPS * read_figure("tcp", "efficiency")
    cap = np.inf if many else read_setup()["micro"]["flow_gbps"] * BYTES_PER_S_PER_GBPS
    rate = np.minimum(line, transport.group_bytes_per_s(rtt_s, 0.0, cap))
    if kind == "p2p":
        gloo_s = gloo_send_s(size_bytes, hosts_rtt_s(rtt_s), rate)
        return float(transport.latency_s(rtt_s) + size_bytes / rate if many else gloo_s)
    if many:
        return float(all_reduce(size_bytes, Ring(ranks=ranks, link=Tier(rate, transport.latency_s(rtt_s)))).seconds)
    return float(gloo_all_reduce_s(size_bytes, ranks, hosts_rtt_s(rtt_s), rate))


def _build_micro_result(row: Mapping[str, str]) -> PublishedResult:
    size, library = _SIZE.search(row["metric"]), row["method"].lower()
    predicted = None
    if size and library in ("nccl", "gloo"):
        kind, megabytes = size[1], float(size[2])
        delay_s = float(row["rtt_ms"] or 0.0) * 1e-3
        predicted = 1e3 * predict_transfer_s(
            kind,
            "nccl" if library == "nccl" else "gloo",
            megabytes * BYTES_PER_MB,
            int(row["gpus"]),
            read_setup()["delays_per_round_trip"] * delay_s,
            float(row["inter_zone_gbps"] or read_setup()["nic_gbps"]),
        )
    return PublishedResult(
        id=row["id"],
        family=MICRO_FAMILY,
        case=", ".join((row["setting"], row["method"], row["metric"], _describe_link(row))),
        unit=row["unit"],
        published=float(row["value"]),
        predicted=predicted,
        reason="" if predicted is not None else "published_unmodelled",
    )


def _describe_link(row: Mapping[str, str]) -> str:
    return f"{row['inter_zone_gbps'] or read_setup()['nic_gbps']} Gbit/s, {row['rtt_ms'] or 0} ms"
