"""Communication report: where the bytes of a step go, what they cost, and what that makes of the job.

    report = build_communication_report(build_predictor(load_scenario("examples/three-cities.yaml")))
    report.boundness, report.links[0].bytes_per_step

Groups that cross zones: which of them use which link.

Scaling: throughput of a GPU beside what it would be in one zone, and alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import numpy as np

from crosszone.analyse.explain.figures import render_worked
from crosszone.analyse.explain.formulas import TRAFFIC
from crosszone.errors import InputError
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.placement import Placement
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value
from crosszone.predict.breakdown import COMPUTE
from crosszone.predict.placed_strategy import BETWEEN_ZONES, PlacedStrategy
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.predict.prediction import Bottleneck, Prediction, Traffic
from crosszone.predict.predictor import Predictor
from crosszone.predict.traffic import get_tier

Axis = Literal["pp", "dp"]


class CrossingGroups(Value):
    """Groups of one axis that send over one link between zones."""

    link: str
    """From zone to zone."""
    axis: Axis
    """pp: pipelines with neighbouring stages in both zones; dp: replicas of a stage in both."""
    groups: int
    """How many: rank groups of this axis."""
    ranks: int
    """Ranks of each."""


def list_crossing_groups(placed: PlacedStrategy) -> tuple[CrossingGroups, ...]:
    """Groups of every axis over every link between zones; tensor, context and expert groups never cross. [A8]"""
    s = placed.strategy
    names = [zone.name for zone in placed.cluster.zones]
    counts: dict[tuple[int, int, Axis], int] = defaultdict(int)
    zones = placed.zone[:, :, 0, 0]
    after = np.roll(zones, -1, axis=0)
    stages = s.pp if placed.wraps else s.pp - 1
    for replica in range(zones.shape[1]):
        # a set: a pipeline that crosses a pair twice is still one group on that link
        pairs = {
            (int(a), int(b)) for a, b in zip(zones[:stages, replica], after[:stages, replica], strict=True) if a != b
        }
        for a, b in pairs | {(b, a) for a, b in pairs}:
            counts[a, b, "pp"] += s.tp * s.cp
    ring = placed.ring
    edges = list(zip(ring, (*ring[1:], ring[0]), strict=True)) if ring else []
    for stage in zones:
        zones_of_stage = set(stage.tolist())
        for a, b in edges:
            if a in zones_of_stage and b in zones_of_stage and a != b:
                counts[a, b, "dp"] += s.tp * s.cp
    ranks = {"pp": s.pp, "dp": s.dp or 1}
    return tuple(
        CrossingGroups(link=f"{names[a]} > {names[b]}", axis=axis, groups=count, ranks=ranks[axis])
        for (a, b, axis), count in sorted(counts.items())
    )


class Scaling(Value):
    """Efficiency against a smaller world; null: there is no such world to compare with."""

    tokens_per_s: float
    """As it is."""
    one_zone_tokens_per_s: float | None
    """The same strategy with all GPUs in one zone; null: they are."""
    one_zone: float | None
    """Of that, what is left."""
    one_gpu_tokens_per_s: float | None
    """All GPUs in use, each training alone as if the model fitted; null: no framework can."""
    one_gpu: float | None
    """Of that, what is left."""


def compute_scaling(p: Predictor) -> Scaling:
    """Throughput over that of the same GPUs in one zone, and over that of as many GPUs alone. [A2]"""
    tokens_per_s = p.case.job.tokens_per_step / float(p.step_s[1])
    in_one_zone, alone = _estimate_in_one_zone(p), _sum_alone(p)
    return Scaling(
        tokens_per_s=tokens_per_s,
        one_zone_tokens_per_s=in_one_zone,
        one_zone=None if in_one_zone is None else tokens_per_s / in_one_zone,
        one_gpu_tokens_per_s=alone,
        one_gpu=None if alone is None else tokens_per_s / alone,
    )


def merge_zones(cluster: Cluster) -> Cluster:
    """The cluster with all its nodes in the first zone."""
    first = cluster.zones[0]
    nodes = tuple(group for zone in cluster.zones for group in zone.nodes)
    return Cluster(zones=(first.replace(nodes=nodes),))


def merge_placement(cluster: Cluster, placement: Placement) -> Placement:
    """The same GPUs where all nodes lie in the first zone: the node groups of each zone follow those before it."""
    before = np.cumsum([0, *(len(zone.nodes) for zone in cluster.zones)]).tolist()
    first = {zone.name: before[number] for number, zone in enumerate(cluster.zones)}
    name = cluster.zones[0].name
    blocks = [block.replace(zone=name, group=first[block.zone] + block.group) for block in placement.blocks]
    return placement.replace(blocks=tuple(blocks))


def _estimate_in_one_zone(p: Predictor) -> float | None:
    """Tokens/s of the same strategy with all GPUs in one zone, without local updates; None: they are in one zone."""
    if not p.placed.crosses:
        return None
    cluster, placement = merge_zones(p.placed.cluster), merge_placement(p.placed.cluster, p.placed.placement)
    strategy = p.strategy.replace(local_update=None)
    # with one zone the states of all replicas lie inside it, and a hierarchy of zones is one ring
    if strategy.shard_within == "zone":
        communication = strategy.communication
        if communication.reduce == "hierarchical":
            communication = communication.replace(reduce="flat")
        strategy = strategy.replace(shard_within="all", communication=communication)
    case = replace(p.case, cluster=cluster, strategy=strategy, placement=placement)
    merged = replace(p, placed=PlacedStrategy(case=case, placement=placement, links={}))
    return p.case.job.tokens_per_step / float(merged.step_s[1])


def _sum_alone(p: Predictor) -> float | None:
    """Tokens/s of all GPUs in use, each with a model of its own and its part of the batch."""
    groups, counts = np.unique(p.placed.group, return_counts=True)
    total = 0.0
    for number, count in zip(groups.tolist(), counts.tolist(), strict=True):
        alone = _estimate_alone(p, p.placed.groups[number])
        if alone is None:
            return None
        total += count * alone
    return total


def _estimate_alone(p: Predictor, group: NodeGroup) -> float | None:
    """Tokens/s of one GPU of a node group."""
    s, job = p.strategy, p.case.job
    samples = s.micro_batch * max(1, round(job.global_batch / (s.ranks * s.micro_batch)))
    # nvlink_domain goes: one of the group's own size is more than a single GPU allows
    zone = p.placed.cluster.zones[0].replace(nodes=(group.replace(count=1, gpus=1, nvlink_domain=None),))
    scenario = Scenario(
        model=p.case.model,
        job=job.replace(global_batch=samples, framework=p.framework.name),
        cluster=Cluster(zones=(zone,)),
        strategy=Strategy(micro_batch=s.micro_batch, dp=1, recompute=s.recompute),
    )
    try:
        alone = build_predictor(scenario, profiles=p.profiles)
    except InputError:
        return None
    return alone.case.job.tokens_per_step / float(alone.step_s[1])


STORAGE, CHECKPOINT = "storage", "checkpoint"
Boundness = Literal["communication-bound", "balanced", "compute-bound"]
# Compute over exposed communication: below the first communication dominates, above the second it hardly matters.
BALANCED = (1.0, 4.0)


class TrafficLine(Value):
    """One kind of communication on one link, in one step."""

    kind: str
    """What is exchanged."""
    link: str
    """fast link, PCIe, network, storage, or from zone to zone."""
    tier: str
    """fast link, PCIe, network, between zones, or storage."""
    bytes_per_step: float
    """All bytes that cross the link (of links of a GPU: of all GPUs)."""
    messages: float
    """Messages of one GPU."""
    busy_s: float
    """Time the link is busy."""
    exposed_s: float
    """Of the step: what does not hide. Checkpoints stop the job and are no part of the step."""
    share: float
    """Of all bytes of a step."""
    formula: str
    """Id in docs/formulas.md."""
    worked: str
    """The bytes as an expression of the numbers that go in."""


class Total(Value):
    """Lines added up: of a kind, or of a tier of links."""

    name: str
    """Kind or tier."""
    bytes_per_step: float
    """All bytes."""
    messages: float
    """Messages of one GPU, all its links."""
    busy_s: float
    """Busy time, one link after the other."""
    exposed_s: float
    """What does not hide."""
    share: float
    """Of all bytes of a step."""


class LinkTraffic(Value):
    """One direction between two zones."""

    link: str
    """From zone to zone."""
    bytes_per_step: float
    """Of all kinds."""
    kinds: dict[str, float]
    """Bytes by kind."""
    dominant: str
    """The kind with most bytes."""
    busy_s: float
    """Seconds of a step in which it is busy, kinds one after the other."""
    exposed_s: float
    """Of the step: what does not hide."""
    used_gbps: float
    """Mean rate over the step."""
    gbps: float
    """Rate of the link."""
    rtt_ms: float
    """Round-trip time."""
    km: float | None
    """Distance, where it is known."""
    origin: str
    """Where the rate comes from."""


class CommunicationReport(Value):
    """Where the bytes of a step go."""

    lines: tuple[TrafficLine, ...]
    """Every kind on every link."""
    kinds: tuple[Total, ...]
    """By kind."""
    tiers: tuple[Total, ...]
    """By tier of links."""
    links: tuple[LinkTraffic, ...]
    """Every direction between zones that is used, the busiest first."""
    groups: tuple[CrossingGroups, ...]
    """Which groups cross which link."""
    step_s: float
    """Expected step."""
    compute_s: float
    """Of the step: compute."""
    exposed_s: float
    """Of the step: communication that does not hide."""
    busy_s: float
    """All communication, hidden or not, kinds one after the other."""
    compute_to_communication: float | None
    """Compute over exposed communication; null: nothing is exposed."""
    communication_share: float
    """Exposed communication over the step."""
    boundness: Boundness
    """communication-bound where communication takes longer than compute, compute-bound where it hardly matters."""
    bottleneck: Bottleneck
    """Class of work that takes most of the step."""
    scaling: Scaling
    """Efficiency against one zone and one GPU."""


def build_communication_report(p: Predictor, prediction: Prediction | None = None) -> CommunicationReport:
    """The report of one placed strategy. [A1]"""
    predicted = prediction or build_prediction(p)
    step = predicted.step_time_s.expected
    lines = [
        _build_line(row, render_worked(p, f"communication[{number}].bytes_per_step"))
        for number, row in enumerate(predicted.communication)
    ]
    lines += _build_checkpoint_lines(predicted, step)
    # a single GPU that writes no checkpoint sends nothing
    total = sum(line.bytes_per_step for line in lines) or 1.0
    lines = [line.model_copy(update={"share": line.bytes_per_step / total}) for line in lines]
    compute = sum(predicted.breakdown_s[name] for name in COMPUTE)
    exposed = sum(row.exposed_s for row in predicted.communication)
    return CommunicationReport(
        lines=tuple(lines),
        kinds=_sum_lines(lines, "kind", total),
        tiers=_sum_lines(lines, "tier", total),
        links=_build_links(p, lines, step),
        groups=list_crossing_groups(p.placed),
        step_s=step,
        compute_s=compute,
        exposed_s=exposed,
        busy_s=sum(row.busy_s for row in predicted.communication),
        compute_to_communication=compute / exposed if exposed > 0 else None,
        communication_share=exposed / step,
        boundness=classify_boundness(compute, exposed),
        bottleneck=predicted.bottleneck,
        scaling=compute_scaling(p),
    )


def classify_boundness(compute_s: float, exposed_s: float) -> Boundness:
    """Whether communication or compute limits the step, by the ratio of the two. [A5]"""
    low, high = BALANCED
    if compute_s < low * exposed_s:
        return "communication-bound"
    return "balanced" if compute_s < high * exposed_s else "compute-bound"


def _build_line(row: Traffic, worked: str) -> TrafficLine:
    """One line; its share of all bytes is filled in when all lines are known."""
    return TrafficLine(**row.model_dump(), tier=get_tier(row.link), share=0.0, formula=TRAFFIC[row.kind], worked=worked)


def _build_checkpoint_lines(prediction: Prediction, step: float) -> list[TrafficLine]:
    """What a checkpoint writes, shared out over the steps between two of them. [A9]"""
    goodput = prediction.run.goodput
    checkpoints_per_step = step / goodput.interval_s if goodput.interval_s > 0 else 0.0
    # GPUs without failures need no checkpoints: the best interval is infinite [E1]
    if not 0 < checkpoints_per_step < float("inf"):
        return []
    return [
        TrafficLine(
            kind=CHECKPOINT,
            link=STORAGE,
            tier=STORAGE,
            bytes_per_step=goodput.checkpoint_gb * 1e9 * checkpoints_per_step,
            messages=checkpoints_per_step,
            busy_s=goodput.checkpoint_s * checkpoints_per_step,
            exposed_s=goodput.checkpoint_s * checkpoints_per_step,
            share=0.0,
            formula="A9",
            # repr keeps every digit: the text, worked out, is the number above
            worked=f"{goodput.checkpoint_gb!r} * 1000000000 * {step!r} / {goodput.interval_s!r}",
        )
    ]


def _sum_lines(lines: Iterable[TrafficLine], by: Literal["kind", "tier"], total: float) -> tuple[Total, ...]:
    """Lines of a kind or tier added up, most bytes first."""
    by_name: dict[str, list[TrafficLine]] = defaultdict(list)
    for line in lines:
        by_name[getattr(line, by)].append(line)
    sums = [
        Total(
            name=name,
            bytes_per_step=sum(line.bytes_per_step for line in group_lines),
            messages=sum(line.messages for line in group_lines),
            busy_s=sum(line.busy_s for line in group_lines),
            exposed_s=sum(line.exposed_s for line in group_lines),
            share=sum(line.bytes_per_step for line in group_lines) / total,
        )
        for name, group_lines in by_name.items()
    ]
    return tuple(sorted(sums, key=lambda row: -row.bytes_per_step))


def _build_links(p: Predictor, lines: Iterable[TrafficLine], step: float) -> tuple[LinkTraffic, ...]:
    by_link: dict[str, list[TrafficLine]] = defaultdict(list)
    for line in lines:
        if line.tier == BETWEEN_ZONES:
            by_link[line.link].append(line)
    places = {zone.name: number for number, zone in enumerate(p.placed.cluster.zones)}
    links = []
    for name, link_lines in by_link.items():
        a, b = (places[zone] for zone in name.split(" > "))
        zone_link = p.placed.links[min(a, b), max(a, b)]
        kinds: dict[str, float] = defaultdict(float)
        for line in link_lines:
            kinds[line.kind] += line.bytes_per_step
        size = sum(kinds.values())
        links.append(
            LinkTraffic(
                link=name,
                bytes_per_step=size,
                kinds=dict(kinds),
                dominant=max(kinds, key=lambda kind: kinds[kind]),
                busy_s=sum(line.busy_s for line in link_lines),
                exposed_s=sum(line.exposed_s for line in link_lines),
                used_gbps=size * 8 / step / 1e9,
                gbps=zone_link.gbps if a < b else zone_link.gbps_back,
                origin=zone_link.origins["gbps" if a < b else "gbps_back"],
                rtt_ms=zone_link.rtt_ms.expected,
                km=zone_link.km,
            )
        )
    return tuple(sorted(links, key=lambda link: -link.busy_s))
