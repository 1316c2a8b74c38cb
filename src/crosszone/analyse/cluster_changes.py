"""Cluster changes: a node, a zone, a link, a GPU kind more or other than a scenario has, each with its sentence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from crosszone.errors import Notice
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.cluster import Cluster, Link, Zone
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.job import find_compute_path
from crosszone.inputs.links import ZoneLink, build_zone_links
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.plan.planner import UNPINNABLE_FIELDS

ChangeKind = Literal["node", "zone", "link", "links", "uplink", "gpu", "drop", "unpin"]
CHANGE_KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)
COUNT_PINS = ("dp", "replica_micro_batches")  # Fields of a strategy that fix how many GPUs it uses
MORE_GBPS = 10.0  # Rate that is added to links, Gbit/s


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of the cluster that is not applied yet; `make` raises an `InputError` where it is impossible."""

    kind: ChangeKind
    target: str
    notice: Notice
    make: Callable[[], Cluster]
    gpus_change: bool
    price_known: bool = True


def list_changes(scenario: Scenario) -> Iterator[Change]:
    """All changes of the cluster that are tried."""
    cluster, links = scenario.cluster, build_zone_links(scenario.cluster)
    yield from _add_nodes(cluster)
    yield from _add_zones(cluster, list(links.values()))
    yield from _add_bandwidth(cluster, list(links.values()))
    yield from _replace_gpus(cluster, find_compute_path(scenario.job))
    if len(cluster.zones) > 1:
        for zone in cluster.zones:
            yield Change(
                kind="drop",
                target=zone.name,
                notice=_build_note("marginal_drop", zone=zone.name, gpus=zone.gpus),
                make=partial(remove_zone, cluster, zone.name),
                gpus_change=True,
            )


def _add_nodes(cluster: Cluster) -> Iterator[Change]:
    for z, zone in enumerate(cluster.zones):
        for g, group in enumerate(zone.nodes):
            yield Change(
                kind="node",
                target=_group_name(zone, g),
                notice=_build_note("marginal_node", gpus=group.gpus, gpu=group.gpu.name, zone=_group_name(zone, g)),
                # hosts are as many as nodes, and the address of a node that is not there yet is not known
                make=partial(_replace_group, cluster, z, g, count=group.count + 1, hosts=()),
                gpus_change=True,
            )


def _add_zones(cluster: Cluster, links: Sequence[ZoneLink]) -> Iterator[Change]:
    ranked = sorted(links, key=lambda link: (min(link.gbps, link.gbps_back), -link.rtt_ms.expected))
    # ranked from slow to quick: the best link and the median one [A16]
    models = list(dict.fromkeys([len(ranked) - 1, (len(ranked) - 1) // 2])) if ranked else [None]
    for zone in cluster.zones:
        for at in models:
            link = None if at is None else ranked[at]
            if link is None:
                notice = _build_note("marginal_zone_alone", zone=zone.name, gpus=zone.gpus)
            else:
                params = {"link": " - ".join(link.between), "gbps": link.gbps, "rtt_ms": link.rtt_ms.expected}
                notice = _build_note("marginal_zone", zone=zone.name, gpus=zone.gpus, **params)
            yield Change(
                kind="zone",
                target=zone.name,
                notice=notice,
                make=partial(_copy_zone, cluster, zone, link),
                gpus_change=True,
            )


def _add_bandwidth(cluster: Cluster, links: Sequence[ZoneLink]) -> Iterator[Change]:
    def apply(kind: ChangeKind, target: str, notice: Notice, make: Callable[[], Cluster]) -> Change:
        return Change(kind=kind, target=target, notice=notice, make=make, gpus_change=False, price_known=False)

    for link in links:
        pair = " - ".join(link.between)
        notice = _build_note("marginal_link", link=pair, more=MORE_GBPS, gbps=link.gbps)
        yield apply("link", pair, notice, partial(_raise_bandwidth, cluster, [link]))
    if len(links) > 1:
        yield apply(
            "links", "", _build_note("marginal_links", more=MORE_GBPS), partial(_raise_bandwidth, cluster, links)
        )
    for z, zone in enumerate(cluster.zones):
        if zone.uplink_gbps is None or not links:
            continue
        rates = {"uplink_gbps": zone.uplink_gbps + MORE_GBPS}
        if zone.downlink_gbps is not None:
            rates["downlink_gbps"] = zone.downlink_gbps + MORE_GBPS
        notice = _build_note("marginal_uplink", zone=zone.name, more=MORE_GBPS, gbps=zone.uplink_gbps)
        yield apply("uplink", zone.name, notice, partial(_replace_zone, cluster, z, **rates))


def _replace_gpus(cluster: Cluster, precision: str) -> Iterator[Change]:
    """The next faster kind in each node group, and in all groups of a kind together."""
    places = [(z, g) for z, zone in enumerate(cluster.zones) for g in range(len(zone.nodes))]
    kinds = {gpu: [(z, g) for z, g in places if cluster.zones[z].nodes[g].gpu == gpu] for gpu in cluster.gpu_kinds}
    shared = [where for where in kinds.values() if len(where) > 1]
    for where in [*([place] for place in places), *shared]:
        gpu = cluster.zones[where[0][0]].nodes[where[0][1]].gpu
        faster = find_next_faster_gpu(gpu, precision)
        if faster is None:
            continue
        names = ", ".join(_group_name(cluster.zones[z], g) for z, g in where)
        yield Change(
            kind="gpu",
            target=names,
            notice=_build_note("marginal_gpu", zone=names, gpu=gpu.name, other=faster.name),
            make=partial(_replace_gpu, cluster, where, faster),
            gpus_change=False,
        )


def _group_name(zone: Zone, number: int) -> str:
    return zone.name if len(zone.nodes) == 1 else f"{zone.name} [{number}]"


def _build_note(code: str, **params: Any) -> Notice:
    return Notice(code=code, level="note", field="cluster", params=params)


def _replace_zone(cluster: Cluster, number: int, **changed: Any) -> Cluster:
    """The cluster with fields of one zone changed."""
    zones = list(cluster.zones)
    zones[number] = zones[number].replace(**changed)
    return cluster.replace(zones=tuple(zones))


def _replace_group(cluster: Cluster, z: int, g: int, **changed: Any) -> Cluster:
    """The cluster with fields of one node group changed."""
    nodes = list(cluster.zones[z].nodes)
    nodes[g] = nodes[g].replace(**changed)
    return _replace_zone(cluster, z, nodes=tuple(nodes))


def _replace_gpu(cluster: Cluster, where: Sequence[tuple[int, int]], gpu: Gpu) -> Cluster:
    """The cluster with another GPU kind in some groups, at the catalogue's price."""
    for z, g in where:
        cluster = _replace_group(cluster, z, g, gpu=gpu, usd_per_gpu_hour=None)
    return cluster


def _copy_zone(cluster: Cluster, zone: Zone, model_link: ZoneLink | None) -> Cluster:
    """The cluster with a copy of a zone, linked to all other zones like `model_link`."""
    zone_names = {zone_taken.name for zone_taken in cluster.zones}
    name = next(name for n in range(2, len(zone_names) + 3) if (name := f"{zone.name}-{n}") not in zone_names)
    copy = zone.replace(name=name, nodes=tuple(group.replace(hosts=()) for group in zone.nodes))
    links = list(cluster.links)
    if model_link is not None:
        known_figures = {
            "gbps": model_link.gbps,
            "gbps_back": model_link.gbps_back,
            # a scenario takes one round-trip time, so the band of one that comes from distance is lost [A16]
            "rtt_ms": model_link.rtt_ms.expected,
            "jitter_ms": model_link.jitter_ms,
            "loss_pct": model_link.loss_pct,
            "usd_per_gb": model_link.usd_per_gb,
            "usd_per_gb_back": model_link.usd_per_gb_back,
            "flow_gbps": model_link.flow_gbps,
        }
        figures = {key: value for key, value in known_figures.items() if value is not None}
        links += [Link(between=(zone_taken.name, name), **figures) for zone_taken in cluster.zones]
    return cluster.replace(zones=(*cluster.zones, copy), links=tuple(links))


def _raise_bandwidth(cluster: Cluster, wider: Sequence[ZoneLink]) -> Cluster:
    """The cluster with more Gbit/s both ways on some links; uplinks stay as they are."""
    listed = {link.pair: link for link in cluster.links}
    for path in wider:
        link = listed.get(frozenset(path.between)) or Link(between=path.between)
        forward, back = path.gbps + MORE_GBPS, path.gbps_back + MORE_GBPS
        # a file may list the pair from its other end, where its two rates are the other way round
        if link.between != path.between:
            forward, back = back, forward
        listed[link.pair] = link.replace(gbps=forward, gbps_back=back)
    return cluster.replace(links=tuple(listed.values()))


def drop_planned_fields(scenario: Scenario) -> Scenario:
    """The scenario without its placement, which fits this cluster only, and without pins that planning settles."""
    s = scenario.strategy
    bare = scenario if scenario.placement is None else scenario.replace(placement=None)
    return (
        bare
        if s is None or not s.pinned & set(UNPINNABLE_FIELDS)
        else bare.replace(strategy=_drop_pins(s, UNPINNABLE_FIELDS))
    )


def drop_count_pins(scenario: Scenario) -> Scenario | None:
    """The scenario without the pins that fix the number of GPUs; None: it has no such pins."""
    if scenario.strategy is None or not list_pinned_fields(scenario) & set(COUNT_PINS):
        return None
    return drop_planned_fields(scenario).replace(
        strategy=_drop_pins(scenario.strategy, (*COUNT_PINS, *UNPINNABLE_FIELDS))
    )


def _drop_pins(strategy: Strategy, names: Collection[str]) -> Strategy | None:
    pinned = {name: getattr(strategy, name) for name in strategy.pinned if name not in names}
    return Strategy(**pinned) if pinned else None


def remove_zone(cluster: Cluster, name: str) -> Cluster:
    """The cluster without a zone and its links; `InvalidError` where it is the only one."""
    remaining = tuple(zone for zone in cluster.zones if zone.name != name)
    links = tuple(link for link in cluster.links if name not in link.between)
    return cluster.replace(zones=remaining, links=links)


def find_next_faster_gpu(gpu: Gpu, precision: str) -> Gpu | None:
    """The catalogue's next faster kind of the same vendor and form that has a price; None: there is none.

    Faster: a higher dense peak of the precision, or the same with faster memory; of equals the cheapest.
    """

    def rank_speed(kind: Gpu) -> tuple[float, float]:
        return kind.peak(precision) or 0.0, kind.memory_gb_per_s

    # without a price the change could only be called faster, never worth it
    kinds = [kind for kind in catalogue().entries("gpus") if isinstance(kind, Gpu) and kind.usd_per_hour is not None]
    faster = [
        kind
        for kind in kinds
        if (kind.vendor, kind.form) == (gpu.vendor, gpu.form) and rank_speed(kind) > rank_speed(gpu)
    ]
    return min(faster, key=lambda kind: (*rank_speed(kind), kind.usd_per_hour), default=None)


def list_pinned_fields(scenario: Scenario) -> set[str]:
    """Fields of the strategy that are pinned to a value."""
    s = scenario.strategy
    return set() if s is None else {name for name in s.pinned if getattr(s, name) is not None}
