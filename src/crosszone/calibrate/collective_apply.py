"""A scenario whose links are those that were measured: the same text with other figures, and what changed.

    told = apply_link_figures(text, "two-zones.yaml", link_figures(fits))
    told.text                                # comments kept; the links say measured: true
    told.changes                             # cluster.links[0].gbps: 10 -> 8.1 Gbit/s

Between zones rtt_ms, gbps (and flow_gbps) of a link; inside a zone the NICs of its node groups and the fast link of its
GPU kind. What was measured and has no field (latencies inside a zone, PCIe) is said, not dropped. Gloo times processes
on CPUs: links of GPUs take its figures only where that is asked for (`cpu_for_gpus`), and either way it is said.

Timed collectives as part of an own profile, which predictions and plans use in place of the catalogue's rates.

    found = measure_collectives(read_collectives(path).rows, gpu="a100-80gb-sxm")
    own_profiles.save(OwnProfile(name="my-cluster", collectives=found.collectives, ...), add=True)

Rings and sends inside one zone; links between zones belong to a scenario (`collective_apply`), which names the zones.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crosszone.calibrate.collective_fit import (
    LinkFigures,
    LinkFit,
    RingFigures,
    Sample,
    Topology,
    ZoneFigures,
    fit_links,
    flow_gbps,
    gbps,
    keep_quiet,
    rounded,
    rtt_ms,
)
from crosszone.calibrate.user_files import build_choice_error
from crosszone.cost.measured_links import SECONDS_PER_US, MeasuredCollective
from crosszone.cost.own_profiles import OwnProfile, now
from crosszone.cost.tiers import BYTES_PER_S_PER_GB_PER_S, figure, link_figures
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.document import parse_document
from crosszone.inputs.edit_text import edited_text
from crosszone.inputs.links import link_notices
from crosszone.inputs.scenario import read_scenario, upgraded

WARNED = ("rtt_below_floor", "uplink_limits")  # What is said of links with their new figures
ON_CPUS = "gloo"  # The library that moves data between processes on CPUs


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure of a scenario."""

    field: str
    before: Any
    """None: it was not given."""
    after: Any
    unit: str
    from_op: str
    """The collective that shows it."""


@dataclass(frozen=True, kw_only=True)
class ScenarioWithLinks:
    """The new scenario, what changed in it, and what should be known of it."""

    text: str
    changes: tuple[Change, ...]
    notices: tuple[Notice, ...]

    def as_dict(self, language: str) -> dict[str, Any]:
        """Plain values; notices in a language."""
        told = [notice.as_dict(language) for notice in self.notices]
        return {"changes": [asdict(change) for change in self.changes], "notices": told}


@dataclass
class _Edit:
    """The fields of a scenario while figures are put in."""

    fields: dict[str, Any]
    cluster: Cluster
    changes: list[Change] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    cpu_for_gpus: bool = False
    on_cpus: list[str] = field(default_factory=list)
    """Fields between zones that were measured on CPUs."""
    gpus_on_cpus: list[str] = field(default_factory=list)
    """Fields of GPUs' links that were measured on CPUs, set or not."""

    def of_gpus(self, name: str, backend: str) -> bool:
        """Whether a measured figure may become that of a link of GPUs."""
        if backend == ON_CPUS:
            self.gpus_on_cpus.append(name)
        return backend != ON_CPUS or self.cpu_for_gpus

    def put(self, holder: dict[str, Any], path: str, key: str, after: Any, unit: str, op: str) -> None:
        """Set a field and note what it was; the path names the holder."""
        before = holder.get(key)
        holder[key] = after
        if before != after:
            name = f"{path}.{key}"
            self.changes.append(Change(field=name, before=before, after=after, unit=unit, from_op=op))

    def note(self, code: str, field: str = "", value: Any = None, **params: Any) -> None:
        self.notices.append(Notice(code=code, field=field, value=value, params=params, level="note"))


def apply_link_figures(
    text: str,
    file: str,
    measured: LinkFigures,
    *,
    zone: str | None = None,
    output: str | None = None,
    cpu_for_gpus: bool = False,
) -> ScenarioWithLinks:
    """The text of a scenario with measured links in place of typed ones. [K12]

    `zone`: where samples that name none were taken. `output`: the file it will be, read as such before it is answered.
    `cpu_for_gpus`: NICs and fast links of GPUs take what was measured between processes on CPUs too.
    """
    loaded = read_scenario(parse_document(text, file))
    fields, _ = upgraded(loaded.document)
    edit = _Edit(copy.deepcopy(fields), loaded.scenario.cluster, cpu_for_gpus=cpu_for_gpus)
    if isinstance(fields["cluster"], Mapping) and "file" in fields["cluster"]:
        edit.fields["cluster"] = loaded.scenario.to_fields()["cluster"]
        edit.note("links_cluster_copied", "cluster.file", fields["cluster"]["file"])
    names = [one.name for one in edit.cluster.zones]
    if zone is not None and zone not in names:
        raise build_choice_error("--zone", zone, names)
    _between(edit, measured, names)
    _network(edit, _placed(edit, measured.network, names, zone))
    _inside(edit, _placed(edit, measured.inside, names, zone))
    _told_of_cpus(edit)
    if not edit.changes and edit.gpus_on_cpus:
        raise InvalidError(*(replace(one, level="error") if one.level == "warning" else one for one in edit.notices))
    if not edit.changes:
        raise InvalidError(Notice(code="links_nothing", value=file, params={"zones": names}), *edit.notices)
    changed = edited_text(text, edit.fields)
    scenario = read_scenario(parse_document(changed, output or file)).scenario
    found = [one for one in link_notices(scenario.cluster, scenario.links) if one.code in WARNED]
    return ScenarioWithLinks(text=changed, changes=tuple(edit.changes), notices=(*edit.notices, *found))


def _told_of_cpus(edit: _Edit) -> None:
    """Say which figures come from processes on CPUs, and which of them were not taken."""
    if edit.gpus_on_cpus:
        code = "links_cpu_taken" if edit.cpu_for_gpus else "links_cpu_left_out"
        edit.notices.append(Notice(code=code, level="warning", params={"fields": edit.gpus_on_cpus}))
    if edit.on_cpus:
        edit.note("links_cpu_between", fields=edit.on_cpus)


def _between(edit: _Edit, measured: LinkFigures, names: list[str]) -> None:
    """Links between zones, each pair once."""
    links: list[dict[str, Any]] = edit.fields["cluster"].setdefault("links", [])
    done: set[frozenset[str]] = set()
    for first, second in measured.between:
        pair = frozenset((first, second))
        unknown = [end for end in (first, second) if end not in names]
        if unknown:
            edit.note("links_zone_unknown", "cluster.zones", unknown[0], zones=names)
        if unknown or pair in done:
            continue
        done.add(pair)
        at = next((at for at, one in enumerate(links) if frozenset(one["between"]) == pair), None)
        link = {"between": [first, second]} if at is None else links[at]
        place = len(links) if at is None else at
        _link(edit, link, f"cluster.links[{place}]", measured.between)
        if at is None and len(link) > 1:
            links.append(link)
    if not links:
        del edit.fields["cluster"]["links"]


def _link(edit: _Edit, link: dict[str, Any], path: str, ways: Mapping[tuple[str, str], ZoneFigures]) -> None:
    first, second = link["between"]
    there, back = ways.get((first, second)), ways.get((second, first))
    one = there or back
    if one is None:
        return
    pair = f"{first} - {second}"
    rtt = rtt_ms(one, back if there else None)
    put: list[tuple[str, float, str]] = []
    if rtt is not None:
        put.append(("rtt_ms", rtt, "ms"))
    else:
        edit.note("links_rtt_unknown", f"{path}.rtt_ms", pair)
    for key, way in (("gbps", there), ("gbps_back", back)):
        if way is not None and way.bytes_per_s is not None:
            put.append((key, gbps(way.bytes_per_s), "Gbit/s"))
        elif way is not None:
            edit.note("links_rate_unknown", f"{path}.{key}", pair)
    typed = link.get("gbps")
    rates = {key for key, _, _ in put}
    if "gbps" in rates and "gbps_back" not in rates and typed is not None and link.get("gbps_back") is None:
        link["gbps_back"] = typed  # it stood for both ways, and only one was measured
    flow = flow_gbps(one)
    if flow is not None and (one.held_back or link.get("flow_gbps") is not None):
        put.append(("flow_gbps", flow, "Gbit/s"))
    for key, value, unit in put:
        edit.put(link, path, key, value, unit, one.op)
        if one.backend == ON_CPUS:
            edit.on_cpus.append(f"{path}.{key}")
    if put:
        link["measured"] = True


def _placed(
    edit: _Edit, rings: Mapping[str, RingFigures], names: list[str], zone: str | None
) -> dict[str, RingFigures]:
    """Rings by zone of the scenario; those without a zone belong to the only one, or to the one that was named."""
    found = {}
    for name, ring in rings.items():
        where = name or zone or (names[0] if len(names) == 1 else "")
        if where in names:
            found[where] = ring
        elif where:
            edit.note("links_zone_unknown", "cluster.zones", where, zones=names)
        else:
            edit.note("links_zone_needed", "cluster.zones", None, zones=names)
    return found


def _groups(edit: _Edit, zone: str) -> Iterator[tuple[dict[str, Any], str, NodeGroup]]:
    """Node groups of a zone: their fields, path and values."""
    at = edit.cluster.zone_index(zone)
    for number, group in enumerate(edit.cluster.zones[at].nodes):
        yield edit.fields["cluster"]["zones"][at]["nodes"][number], f"cluster.zones[{at}].nodes[{number}]", group


def _network(edit: _Edit, rings: Mapping[str, RingFigures]) -> None:
    """NICs of node groups: of each GPU where the scenario gives one to each, else of the node."""
    for zone, ring in rings.items():
        groups = list(_groups(edit, zone))
        if len({group.gpu.name for _, _, group in groups}) > 1:
            edit.note("links_mixed_zone", f"cluster.zones[{edit.cluster.zone_index(zone)}].nodes", zone)
            continue
        for fields, path, group in groups:
            each = group.nic_gbps_per_gpu is not None
            key, rate = "nic_gbps_per_gpu" if each else "nic_gbps", ring.gpu_bytes_per_s if each else ring.bytes_per_s
            if not edit.of_gpus(f"{path}.{key}", ring.backend):
                continue
            edit.put(fields, path, key, gbps(rate, group.fabric), "Gbit/s", ring.op)
            _latency(edit, path, ring, group.fabric)


def _inside(edit: _Edit, rings: Mapping[str, RingFigures]) -> None:
    """The fast link of each GPU kind, in all its node groups, for a kind has one figure; the slowest zone tells it."""
    kinds: dict[str, RingFigures] = {}
    for zone, ring in rings.items():
        for _, path, group in _groups(edit, zone):
            if not group.fast_link:
                edit.note("links_no_fast_link", path, rounded(ring.bytes_per_s / 1e9), gpu=group.gpu.name)
            elif ring.gpus_per_node > group.domain:
                edit.note("links_beyond_domain", path, ring.gpus_per_node, domain=group.domain)
            elif group.gpu.name not in kinds or ring.bytes_per_s < kinds[group.gpu.name].bytes_per_s:
                kinds[group.gpu.name] = ring
    for zone in (one.name for one in edit.cluster.zones):
        for fields, path, group in _groups(edit, zone):
            if group.gpu.name in kinds and group.gpu.link is not None:
                _fast_link(edit, fields, path, group, kinds[group.gpu.name])


def _fast_link(edit: _Edit, fields: dict[str, Any], path: str, group: NodeGroup, ring: RingFigures) -> None:
    link, name = group.gpu.link, f"{path}.gpu.link.gb_per_s_both_ways"
    if link is None or not edit.of_gpus(name, ring.backend):
        return
    known = link_figures()["fast_link"]["efficiency"]
    share = figure("fast_link", "efficiency", link.kind if link.kind in known else "other")
    both_ways = rounded(2 * ring.bytes_per_s / BYTES_PER_S_PER_GB_PER_S / share)
    if isinstance(fields["gpu"], str):
        fields["gpu"] = {"like": fields["gpu"], "name": group.gpu.name}
    inner = fields["gpu"].setdefault("link", {})
    before = inner.get("gb_per_s_both_ways", link.gb_per_s_both_ways)
    inner["gb_per_s_both_ways"] = both_ways
    if before != both_ways:
        edit.changes.append(Change(field=name, before=before, after=both_ways, unit="GB/s", from_op=ring.op))
    _latency(edit, path, ring, "fast_link")


def _latency(edit: _Edit, path: str, ring: RingFigures, tier: str) -> None:
    """Say what was found of a latency that a scenario has no field for."""
    if ring.latency_s is not None:
        assumed = figure(tier, "latency_us")
        edit.note("links_latency_kept", path, rounded(ring.latency_s * 1e6), op=ring.op, assumed=assumed)


# A fit that misses sizes it has not seen by more tells of something else than latency and rate.
LARGEST_ERROR_PCT = 20.0
SCOPES = ("node", "network")
DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class MeasuredCluster:
    """The collectives of a profile, and the fits that did not get into it, each with the reason."""

    collectives: tuple[MeasuredCollective, ...]
    left_out: tuple[Notice, ...]


def measure_collectives(rows: Iterable[Sample], *, gpu: str, cpu_for_gpus: bool = False) -> MeasuredCluster:
    """Latency and rate of every timed op and layout, of its quiet timings; `InvalidError` where none can be used. [K14]

    A group timed alone counts: the formulas share links among groups themselves. Of zones that were timed alike the
    slowest counts, for a GPU kind has one figure. `cpu_for_gpus`: also timings between processes on CPUs.
    """
    alone = [one for one in rows if one.where.scope in SCOPES and one.where.groups == 1]
    fits, few = fit_links(keep_quiet(alone))
    found: dict[tuple[object, ...], MeasuredCollective] = {}
    left_out = [_left_out(where, "collective_few_sizes") for where in few]
    for fit in fits:
        error_pct = fit.unseen_pct if fit.unseen_pct is not None else fit.error_pct
        if fit.where.backend == ON_CPUS and not cpu_for_gpus:
            left_out.append(_left_out(fit.where, "collective_on_cpus"))
        elif not fit.rate_known or fit.bytes_per_s is None:
            left_out.append(_left_out(fit.where, "collective_rate_unknown"))
        elif error_pct > LARGEST_ERROR_PCT:
            left_out.append(_left_out(fit.where, "collective_unsteady", error=error_pct))
        else:
            one, where = _measured(fit, gpu, error_pct), fit.where
            layout = where.op, where.nodes, where.gpus_per_node, where.size_class
            found[layout] = min(found.get(layout, one), one, key=lambda timed: timed.gb_per_s)
    if not found:
        raise InvalidError(Notice(code="collectives_unusable", params={"count": len(left_out)}), *left_out)
    return MeasuredCluster(collectives=tuple(found.values()), left_out=tuple(left_out))


def build_collective_profile(name: str, collectives: Sequence[MeasuredCollective], source: str) -> OwnProfile:
    """An own profile of them alone."""
    return OwnProfile(name=name, source=source, created=now(), collectives=tuple(collectives))


def _measured(fit: LinkFit, gpu: str, error_pct: float) -> MeasuredCollective:
    where, rate = fit.where, fit.bytes_per_s or 0.0
    whole = where.ranks if where.op == "all_gather" else 1  # timed by one rank's share, used by the whole tensor
    return MeasuredCollective(
        op=where.op,
        gpu=gpu,
        nodes=where.nodes,
        gpus_per_node=where.gpus_per_node,
        low_bytes=fit.low_bytes * whole,
        high_bytes=fit.high_bytes * whole,
        latency_us=_rounded(fit.latency_s / SECONDS_PER_US),
        gb_per_s=_rounded(rate / BYTES_PER_S_PER_GB_PER_S),
        error_pct=round(error_pct, 2),
        rows=fit.rows,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _left_out(where: Topology, code: str, **params: float) -> Notice:
    layout = f"{where.nodes} x {where.gpus_per_node}"
    return Notice(code=code, level="note", value=where.op, params={"layout": layout, **params})
