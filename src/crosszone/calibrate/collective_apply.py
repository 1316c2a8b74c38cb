"""Put timed collectives to use: as the links of a scenario, or as part of an own profile.

    applied = apply_link_figures(text, "two-zones.yaml", derive_link_figures(fits))
    applied.text                             # comments kept; the links say measured: true
    applied.changes                          # cluster.links[0].gbps: 10 -> 8.1 Gbit/s

Between zones rtt_ms, gbps (and flow_gbps) of a link; inside a zone the NICs of its node groups and the fast link of its
GPU kind. What was measured and has no field (latencies inside a zone, PCIe) is said, not dropped. Gloo times processes
on CPUs: links of GPUs take its figures only where that is asked for (`cpu_for_gpus`), and either way it is said.

Rings and sends inside one zone can become part of an own profile, which predictions and plans use in place of the
catalogue's rates; links between zones belong to a scenario, which names the zones:

    measured = measure_collectives(read_collectives(path).rows, gpu="a100-80gb-sxm")
    own_profiles.save(OwnProfile(name="my-cluster", collectives=measured.collectives, ...), add=True)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crosszone.calibrate.collective_fit import (
    CollectiveSample,
    FittedLinks,
    LinkFit,
    RingFigures,
    Topology,
    ZoneFigures,
    compute_flow_gbps,
    compute_rtt_ms,
    convert_to_gbps,
    fit_links,
    keep_quiet,
    round_figure,
)
from crosszone.cost.measured_links import SECONDS_PER_US, MeasuredCollective
from crosszone.cost.own_profiles import OwnProfile, format_now
from crosszone.cost.tiers import BYTES_PER_S_PER_GB_PER_S, read_figure, read_link_figures
from crosszone.errors import InvalidError, Notice, build_choice_error
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.document import parse_document
from crosszone.inputs.edit_text import edit_yaml
from crosszone.inputs.links import list_link_notices
from crosszone.inputs.scenario import read_scenario, upgrade_fields

LINK_WARNINGS = ("rtt_below_floor", "uplink_limits")  # Notices on links that are repeated for the new figures
CPU_BACKEND = "gloo"  # The library that moves data between processes on CPUs


@dataclass(frozen=True, kw_only=True)
class FigureChange:
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
    changes: tuple[FigureChange, ...]
    notices: tuple[Notice, ...]

    def as_dict(self, language: str) -> dict[str, Any]:
        """Plain values; notices in a language."""
        notices = [notice.as_dict(language) for notice in self.notices]
        return {"changes": [asdict(change) for change in self.changes], "notices": notices}


@dataclass
class _LinkEdit:
    """The fields of a scenario while figures are put in."""

    fields: dict[str, Any]
    cluster: Cluster
    changes: list[FigureChange] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    cpu_for_gpus: bool = False
    zone_links_on_cpus: list[str] = field(default_factory=list)
    """Fields between zones that were measured on CPUs."""
    gpu_links_on_cpus: list[str] = field(default_factory=list)
    """Fields of GPUs' links that were measured on CPUs, set or not."""

    def check_gpu_figure(self, name: str, backend: str) -> bool:
        """Whether a measured figure may become that of a link of GPUs; fields measured on CPUs are remembered."""
        if backend == CPU_BACKEND:
            self.gpu_links_on_cpus.append(name)
        return backend != CPU_BACKEND or self.cpu_for_gpus

    def set_field(
        self, holder: dict[str, Any], path: str, key: str, after: Any, unit: str, op: str, default: Any = None
    ) -> None:
        """Set a field and note what it was; the path names the holder, `default` counts where it was not given."""
        before = holder.get(key, default)
        holder[key] = after
        if before != after:
            name = f"{path}.{key}"
            self.changes.append(FigureChange(field=name, before=before, after=after, unit=unit, from_op=op))

    def add_note(self, code: str, field: str = "", value: Any = None, **params: Any) -> None:
        self.notices.append(Notice(code=code, field=field, value=value, params=params, level="note"))


def apply_link_figures(
    text: str,
    file: str,
    measured: FittedLinks,
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
    fields, _ = upgrade_fields(loaded.document)
    edit = _LinkEdit(copy.deepcopy(fields), loaded.scenario.cluster, cpu_for_gpus=cpu_for_gpus)
    if isinstance(fields["cluster"], Mapping) and "file" in fields["cluster"]:
        edit.fields["cluster"] = loaded.scenario.to_fields()["cluster"]
        edit.add_note("links_cluster_copied", "cluster.file", fields["cluster"]["file"])
    names = [cluster_zone.name for cluster_zone in edit.cluster.zones]
    if zone is not None and zone not in names:
        raise build_choice_error("--zone", zone, names)
    _apply_zone_links(edit, measured, names)
    _apply_nics(edit, _assign_to_zones(edit, measured.network, names, zone))
    _apply_fast_links(edit, _assign_to_zones(edit, measured.inside, names, zone))
    _add_cpu_notices(edit)
    if not edit.changes and edit.gpu_links_on_cpus:
        raise InvalidError(
            # nothing was taken, so what is a warning otherwise is the reason
            *(replace(notice, level="error") if notice.level == "warning" else notice for notice in edit.notices)
        )
    if not edit.changes:
        raise InvalidError(Notice(code="links_nothing", value=file, params={"zones": names}), *edit.notices)
    changed = edit_yaml(text, edit.fields)
    scenario = read_scenario(parse_document(changed, output or file)).scenario
    warnings = [
        notice for notice in list_link_notices(scenario.cluster, scenario.links) if notice.code in LINK_WARNINGS
    ]
    return ScenarioWithLinks(text=changed, changes=tuple(edit.changes), notices=(*edit.notices, *warnings))


def _add_cpu_notices(edit: _LinkEdit) -> None:
    """Say which figures come from processes on CPUs, and which of them were not taken."""
    if edit.gpu_links_on_cpus:
        code = "links_cpu_taken" if edit.cpu_for_gpus else "links_cpu_left_out"
        edit.notices.append(Notice(code=code, level="warning", params={"fields": edit.gpu_links_on_cpus}))
    if edit.zone_links_on_cpus:
        edit.add_note("links_cpu_between", fields=edit.zone_links_on_cpus)


def _apply_zone_links(edit: _LinkEdit, measured: FittedLinks, names: list[str]) -> None:
    """Links between zones, each pair once."""
    links: list[dict[str, Any]] = edit.fields["cluster"].setdefault("links", [])
    done: set[frozenset[str]] = set()
    for first, second in measured.between:
        pair = frozenset((first, second))
        unknown = [end for end in (first, second) if end not in names]
        if unknown:
            edit.add_note("links_zone_unknown", "cluster.zones", unknown[0], zones=names)
        if unknown or pair in done:
            continue
        done.add(pair)
        position = next((position for position, entry in enumerate(links) if frozenset(entry["between"]) == pair), None)
        link = {"between": [first, second]} if position is None else links[position]
        number = len(links) if position is None else position
        _apply_zone_link(edit, link, f"cluster.links[{number}]", measured.between)
        if position is None and len(link) > 1:
            links.append(link)
    if not links:
        del edit.fields["cluster"]["links"]


def _apply_zone_link(
    edit: _LinkEdit, link: dict[str, Any], path: str, by_direction: Mapping[tuple[str, str], ZoneFigures]
) -> None:
    first, second = link["between"]
    forward, backward = by_direction.get((first, second)), by_direction.get((second, first))
    figures = forward or backward
    if figures is None:
        return
    pair = f"{first} - {second}"
    rtt = compute_rtt_ms(figures, backward if forward else None)
    settings: list[tuple[str, float, str]] = []
    if rtt is not None:
        settings.append(("rtt_ms", rtt, "ms"))
    else:
        edit.add_note("links_rtt_unknown", f"{path}.rtt_ms", pair)
    for key, direction in (("gbps", forward), ("gbps_back", backward)):
        if direction is not None and direction.bytes_per_s is not None:
            settings.append((key, convert_to_gbps(direction.bytes_per_s), "Gbit/s"))
        elif direction is not None:
            edit.add_note("links_rate_unknown", f"{path}.{key}", pair)
    typed = link.get("gbps")
    rates = {key for key, _, _ in settings}
    if "gbps" in rates and "gbps_back" not in rates and typed is not None and link.get("gbps_back") is None:
        link["gbps_back"] = typed  # it stood for both ways, and only one was measured
    connection_gbps = compute_flow_gbps(figures)
    if connection_gbps is not None and (figures.held_back or link.get("flow_gbps") is not None):
        settings.append(("flow_gbps", connection_gbps, "Gbit/s"))
    for key, value, unit in settings:
        edit.set_field(link, path, key, value, unit, figures.op)
        if figures.backend == CPU_BACKEND:
            edit.zone_links_on_cpus.append(f"{path}.{key}")
    if settings:
        link["measured"] = True


def _assign_to_zones(
    edit: _LinkEdit, rings: Mapping[str, RingFigures], names: list[str], zone: str | None
) -> dict[str, RingFigures]:
    """Rings by zone of the scenario; those without a zone belong to the only one, or to the one that was named."""
    by_zone = {}
    for name, ring in rings.items():
        zone_name = name or zone or (names[0] if len(names) == 1 else "")
        if zone_name in names:
            by_zone[zone_name] = ring
        elif zone_name:
            edit.add_note("links_zone_unknown", "cluster.zones", zone_name, zones=names)
        else:
            edit.add_note("links_zone_needed", "cluster.zones", None, zones=names)
    return by_zone


def _iterate_node_groups(edit: _LinkEdit, zone: str) -> Iterator[tuple[dict[str, Any], str, NodeGroup]]:
    """Node groups of a zone: their fields, path and values."""
    zone_number = edit.cluster.find_zone_index(zone)
    for number, group in enumerate(edit.cluster.zones[zone_number].nodes):
        fields = edit.fields["cluster"]["zones"][zone_number]["nodes"][number]
        yield fields, f"cluster.zones[{zone_number}].nodes[{number}]", group


def _apply_nics(edit: _LinkEdit, rings: Mapping[str, RingFigures]) -> None:
    """NICs of node groups: of each GPU where the scenario gives one to each, else of the node."""
    for zone, ring in rings.items():
        groups = list(_iterate_node_groups(edit, zone))
        if len({group.gpu.name for _, _, group in groups}) > 1:
            edit.add_note("links_mixed_zone", f"cluster.zones[{edit.cluster.find_zone_index(zone)}].nodes", zone)
            continue
        for fields, path, group in groups:
            per_gpu = group.nic_gbps_per_gpu is not None
            key = "nic_gbps_per_gpu" if per_gpu else "nic_gbps"
            rate = ring.gpu_bytes_per_s if per_gpu else ring.bytes_per_s
            if not edit.check_gpu_figure(f"{path}.{key}", ring.backend):
                continue
            edit.set_field(fields, path, key, convert_to_gbps(rate, group.fabric), "Gbit/s", ring.op)
            _add_latency_note(edit, path, ring, group.fabric)


def _apply_fast_links(edit: _LinkEdit, rings: Mapping[str, RingFigures]) -> None:
    """The fast link of each GPU kind, in all its node groups, for a kind has one figure: the slowest zone's."""
    kinds: dict[str, RingFigures] = {}
    for zone, ring in rings.items():
        for _, path, group in _iterate_node_groups(edit, zone):
            if not group.fast_link:
                edit.add_note("links_no_fast_link", path, round_figure(ring.bytes_per_s / 1e9), gpu=group.gpu.name)
            elif ring.gpus_per_node > group.domain:
                edit.add_note("links_beyond_domain", path, ring.gpus_per_node, domain=group.domain)
            elif group.gpu.name not in kinds or ring.bytes_per_s < kinds[group.gpu.name].bytes_per_s:
                kinds[group.gpu.name] = ring
    for zone in (cluster_zone.name for cluster_zone in edit.cluster.zones):
        for fields, path, group in _iterate_node_groups(edit, zone):
            if group.gpu.name in kinds and group.gpu.link is not None:
                _apply_fast_link(edit, fields, path, group, kinds[group.gpu.name])


def _apply_fast_link(edit: _LinkEdit, fields: dict[str, Any], path: str, group: NodeGroup, ring: RingFigures) -> None:
    link, key = group.gpu.link, "gb_per_s_both_ways"
    if link is None or not edit.check_gpu_figure(f"{path}.gpu.link.{key}", ring.backend):
        return
    efficiencies = read_link_figures()["fast_link"]["efficiency"]
    efficiency = read_figure("fast_link", "efficiency", link.kind if link.kind in efficiencies else "other")
    both_ways = round_figure(2 * ring.bytes_per_s / BYTES_PER_S_PER_GB_PER_S / efficiency)
    if isinstance(fields["gpu"], str):  # a name of the catalogue has no fields: take its entry as the base
        fields["gpu"] = {"like": fields["gpu"], "name": group.gpu.name}
    inner = fields["gpu"].setdefault("link", {})
    edit.set_field(inner, f"{path}.gpu.link", key, both_ways, "GB/s", ring.op, default=link.gb_per_s_both_ways)
    _add_latency_note(edit, path, ring, "fast_link")


def _add_latency_note(edit: _LinkEdit, path: str, ring: RingFigures, tier: str) -> None:
    """Say what was found of a latency that a scenario has no field for."""
    if ring.latency_s is not None:
        assumed = read_figure(tier, "latency_us")
        edit.add_note("links_latency_kept", path, round_figure(ring.latency_s * 1e6), op=ring.op, assumed=assumed)


# A fit that misses unseen sizes by more than this shows something else than latency and rate, such as other traffic.
LARGEST_ERROR_PCT = 20.0
SCOPES = ("node", "network")


@dataclass(frozen=True, kw_only=True)
class MeasuredCluster:
    """The collectives of a profile, and the fits that did not get into it, each with the reason."""

    collectives: tuple[MeasuredCollective, ...]
    left_out: tuple[Notice, ...]


def measure_collectives(rows: Iterable[CollectiveSample], *, gpu: str, cpu_for_gpus: bool = False) -> MeasuredCluster:
    """Latency and rate of every timed op and layout, of its quiet timings; `InvalidError` where none can be used. [K14]

    A group timed alone counts: the formulas share links among groups themselves. Of zones that were timed alike the
    slowest counts, for a GPU kind has one figure. `cpu_for_gpus`: also timings between processes on CPUs.
    """
    lone_groups = [sample for sample in rows if sample.where.scope in SCOPES and sample.where.groups == 1]
    fits, too_few = fit_links(keep_quiet(lone_groups))
    by_layout: dict[tuple[object, ...], MeasuredCollective] = {}
    left_out = [_build_left_out_notice(where, "collective_few_sizes") for where in too_few]
    for fit in fits:
        error_pct = fit.unseen_pct if fit.unseen_pct is not None else fit.error_pct
        if fit.where.backend == CPU_BACKEND and not cpu_for_gpus:
            left_out.append(_build_left_out_notice(fit.where, "collective_on_cpus"))
        elif not fit.rate_known or fit.bytes_per_s is None:
            left_out.append(_build_left_out_notice(fit.where, "collective_rate_unknown"))
        elif error_pct > LARGEST_ERROR_PCT:
            left_out.append(_build_left_out_notice(fit.where, "collective_unsteady", error=error_pct))
        else:
            collective, where = _build_measured_collective(fit, gpu, error_pct), fit.where
            layout = where.op, where.nodes, where.gpus_per_node, where.size_class
            by_layout[layout] = min(by_layout.get(layout, collective), collective, key=lambda timed: timed.gb_per_s)
    if not by_layout:
        raise InvalidError(Notice(code="collectives_unusable", params={"count": len(left_out)}), *left_out)
    return MeasuredCluster(collectives=tuple(by_layout.values()), left_out=tuple(left_out))


def build_collective_profile(name: str, collectives: Sequence[MeasuredCollective], source: str) -> OwnProfile:
    """An own profile of them alone."""
    return OwnProfile(name=name, source=source, created=format_now(), collectives=tuple(collectives))


def _build_measured_collective(fit: LinkFit, gpu: str, error_pct: float) -> MeasuredCollective:
    where, rate = fit.where, fit.bytes_per_s or 0.0
    tensor_parts = where.ranks if where.op == "all_gather" else 1  # timed by one rank's share, used by the whole tensor
    return MeasuredCollective(
        op=where.op,
        gpu=gpu,
        nodes=where.nodes,
        gpus_per_node=where.gpus_per_node,
        low_bytes=fit.low_bytes * tensor_parts,
        high_bytes=fit.high_bytes * tensor_parts,
        latency_us=round_figure(fit.latency_s / SECONDS_PER_US),
        gb_per_s=round_figure(rate / BYTES_PER_S_PER_GB_PER_S),
        error_pct=round(error_pct, 2),
        rows=fit.rows,
    )


def _build_left_out_notice(where: Topology, code: str, **params: float) -> Notice:
    layout = f"{where.nodes} x {where.gpus_per_node}"
    return Notice(code=code, level="note", value=where.op, params={"layout": layout, **params})
