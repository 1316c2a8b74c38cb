"""Scaling: throughput of a GPU beside what it would be in one zone, and alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from crosszone.errors import InputError
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.placement import Placement
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Communication, Strategy
from crosszone.inputs.value import Value
from crosszone.predict.predict import Predictor, predictor
from crosszone.predict.site import Site


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


def scaling_of(p: Predictor) -> Scaling:
    """Throughput over that of the same GPUs in one zone, and over that of as many GPUs alone. [A2]"""
    own = p.case.job.tokens_per_step / float(p.step_s[1])
    together, alone = _in_one_zone(p), _each_alone(p)
    return Scaling(
        tokens_per_s=own,
        one_zone_tokens_per_s=together,
        one_zone=None if together is None else own / together,
        one_gpu_tokens_per_s=alone,
        one_gpu=None if alone is None else own / alone,
    )


def one_zone(cluster: Cluster) -> Cluster:
    """The cluster with all its nodes in the first zone."""
    first = cluster.zones[0]
    nodes = tuple(group for zone in cluster.zones for group in zone.nodes)
    return Cluster(zones=(first.replace(nodes=nodes),))


def in_one_zone(cluster: Cluster, placement: Placement) -> Placement:
    """The same GPUs where all nodes lie in the first zone: the node groups of each zone follow those before it."""
    before = np.cumsum([0, *(len(zone.nodes) for zone in cluster.zones)]).tolist()
    first = {zone.name: before[number] for number, zone in enumerate(cluster.zones)}
    name = cluster.zones[0].name
    blocks = [block.replace(zone=name, group=first[block.zone] + block.group) for block in placement.blocks]
    return placement.replace(blocks=tuple(blocks))


def _in_one_zone(p: Predictor) -> float | None:
    """Tokens/s of the strategy where no link leaves the zone, without averaging: there is nobody to average with."""
    if not p.site.crosses:
        return None
    cluster, placement = one_zone(p.site.cluster), in_one_zone(p.site.cluster, p.site.placement)
    strategy = p.strategy.replace(local_update=None)
    if strategy.shard_within == "zone":
        strategy = strategy.replace(shard_within="all", communication=_flat(strategy.communication))
    case = replace(p.case, cluster=cluster, strategy=strategy, placement=placement)
    alike = replace(p, site=Site(case=case, placement=placement, links={}))
    return p.case.job.tokens_per_step / float(alike.step_s[1])


def _flat(c: Communication) -> Communication:
    """In one zone a hierarchy of zones is one ring."""
    return c.replace(reduce="flat") if c.reduce == "hierarchical" else c


def _each_alone(p: Predictor) -> float | None:
    """Tokens/s of all GPUs in use, each with a model of its own and its part of the batch."""
    groups, counts = np.unique(p.site.group, return_counts=True)
    total = 0.0
    for number, count in zip(groups.tolist(), counts.tolist(), strict=True):
        one = _alone(p, p.site.groups[number])
        if one is None:
            return None
        total += count * one
    return total


def _alone(p: Predictor, group: NodeGroup) -> float | None:
    """Tokens/s of one GPU of a node group."""
    s, job = p.strategy, p.case.job
    samples = s.micro_batch * max(1, round(job.global_batch / (s.ranks * s.micro_batch)))
    zone = p.site.cluster.zones[0].replace(nodes=(group.replace(count=1, gpus=1, nvlink_domain=None),))
    scenario = Scenario(
        model=p.case.model,
        job=job.replace(global_batch=samples, framework=p.framework.name),
        cluster=Cluster(zones=(zone,)),
        strategy=Strategy(micro_batch=s.micro_batch, dp=1, recompute=s.recompute),
    )
    try:
        alone = predictor(scenario, profiles=p.profiles)
    except InputError:
        return None
    return alone.case.job.tokens_per_step / float(alone.step_s[1])
