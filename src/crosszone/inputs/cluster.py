"""Cluster: zones of node groups of GPUs, and the links between the zones."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, Strict, ValidationInfo, field_serializer, model_validator

from crosszone.inputs.catalogue import get_catalogue
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.region import Region, load_routes
from crosszone.inputs.value import (
    LIKE_FORM,
    NAME_FORM,
    Count,
    Flag,
    Name,
    NotNegative,
    OtherForms,
    Positive,
    Value,
    refuse,
)

MAX_ZONES = 100
MAX_GPUS = 1_000_000


def _resolve_gpu(value: Any, info: ValidationInfo) -> Any:
    return get_catalogue(info).resolve("gpus", value)


def _resolve_region(value: Any, info: ValidationInfo) -> Any:
    return get_catalogue(info).resolve("regions", value)


def _check_two(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) != 2:
        raise refuse("must_be_two", len(value))
    return value


class Host(Value):
    """One machine of a node group: what a launcher needs to reach it."""

    name: Name | None = None
    """Host name; default: the group's zone and number."""
    address: Name
    """Address other nodes reach it by."""
    interface: Name | None = None
    """Network interface of that address, e.g. eth0."""


class NodeGroup(Value):
    """Equal nodes of a zone.

    NodeGroup(count=8, gpus=8, gpu="a100-80gb-sxm", nic_gbps_per_gpu=200)
    """

    count: Annotated[int, Strict(), Field(ge=1, le=MAX_GPUS)] = 1
    """Nodes."""
    # `Placement.check` numbers GPUs as node x 1024 + place, so raise the limit there too.
    gpus: Annotated[int, Strict(), Field(ge=1, le=1024)]
    """GPUs of one node."""
    gpu: Annotated[Gpu, BeforeValidator(_resolve_gpu), OtherForms(NAME_FORM, LIKE_FORM)]
    """GPU kind: a catalogue name, or its figures."""
    nic_gbps_per_gpu: Positive | None = None
    """Network rate of one GPU, Gbit/s, one direction: each GPU has a NIC of its own."""
    nic_gbps: Positive | None = None
    """Network rate of the node, Gbit/s, one direction: its GPUs share it."""
    intra_link: Literal["nvlink", "pcie"] | None = None
    """Link between the GPUs of a node; null: the GPU's fast link if it has one."""
    nvlink_domain: Count | None = None
    """GPUs one fast-link domain joins; null: those of the node, or of the rack for rack-scale systems."""
    fabric: Literal["rdma", "tcp"] = "rdma"
    """Transport between the nodes of the zone."""
    cpus: Count | None = None
    """CPU cores of a node."""
    memory_gib: Positive | None = None
    """Host memory of a node, GiB."""
    usd_per_gpu_hour: NotNegative | None = None
    """Price of one GPU for an hour, $; null: the catalogue's typical price."""
    hosts: tuple[Host, ...] = ()
    """The machines, one entry a node, where a launch needs them."""
    speed: Positive | None = None
    """Speed of its GPUs at this job over what is predicted for their kind, as a trial found it; null: not tried."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nic_gbps is not None and self.nic_gbps_per_gpu is not None:
            raise refuse("nic_twice", self.nic_gbps)
        if self.intra_link == "nvlink" and self.gpu.link is None:
            raise refuse("no_fast_link", self.intra_link, gpu=self.gpu.name)
        limit = self.total_gpus if self.fast_link else 1
        if self.nvlink_domain is not None and self.nvlink_domain > limit:
            raise refuse("domain_over_gpus", self.nvlink_domain, at=("nvlink_domain",), gpu=self.gpu.name, limit=limit)
        if self.hosts and len(self.hosts) != self.count:
            raise refuse("hosts_and_count", at=("hosts",), hosts=len(self.hosts), count=self.count)
        addresses = [host.address for host in self.hosts]
        for index, address in enumerate(addresses):
            if address in addresses[:index]:
                raise refuse("address_twice", address, at=("hosts", index, "address"))
        return self

    @field_serializer("gpu")
    def _write_gpu(self, gpu: Gpu) -> Any:
        return get_catalogue(None).format_reference("gpus", gpu)

    @property
    def total_gpus(self) -> int:
        """GPUs of all its nodes."""
        return self.count * self.gpus

    @property
    def nic_gbps_node(self) -> float | None:
        """Network rate of one node, Gbit/s, one direction; None: not given."""
        if self.nic_gbps_per_gpu is not None:
            return self.nic_gbps_per_gpu * self.gpus
        return self.nic_gbps

    @property
    def network_gbps_node(self) -> float:
        """Network rate of one node, Gbit/s, one direction: as given, else that of the GPU's usual machine. [C9]

        A GPU without a usual machine has the labelled example of routes.yaml.
        """
        if self.nic_gbps_node is not None:
            return self.nic_gbps_node
        usual = self.gpu.usual_machine
        return float(load_routes()["example_nic_gbps"]) if usual is None else usual.nic_gbps_per_gpu * self.gpus

    @property
    def price_usd_per_gpu_hour(self) -> float | None:
        """Price of one GPU for an hour, $: as given, else the typical one of its kind; None: not known."""
        return self.gpu.usd_per_hour if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour

    @property
    def fast_link(self) -> bool:
        """Its GPUs talk over the fast link, not PCIe."""
        return self.gpu.link is not None and self.intra_link != "pcie"

    @property
    def link_name(self) -> str:
        """The link between the GPUs of a node, e.g. nvlink3 or pcie4."""
        return self.gpu.link.kind if self.gpu.link and self.fast_link else f"pcie{self.gpu.pcie.generation}"

    @property
    def domain(self) -> int:
        """GPUs that reach each other over the fast link (1: none do)."""
        if not self.fast_link or self.gpu.link is None:
            return 1
        if self.nvlink_domain is not None:
            return self.nvlink_domain
        # a rack-scale domain (GB200 NVL72) reaches all nodes of its group, but no group has more GPUs than it holds
        reach = self.total_gpus if self.gpu.link.spans_nodes else self.gpus
        return min(self.gpu.link.domain, reach)

    @property
    def local_gpus(self) -> int:
        """GPUs that reach each other without the network: of a node, or of a fast-link domain that spans nodes."""
        return max(self.domain, self.gpus)


class Zone(Value):
    """GPUs at one place behind one uplink."""

    name: Name
    """What to call it."""
    region: Annotated[Region, BeforeValidator(_resolve_region), OtherForms(NAME_FORM, LIKE_FORM)] | None = None
    """Where it is: a catalogue name, or {lat, lon}."""
    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1, max_length=1000)]
    """Its node groups."""
    uplink_gbps: Positive | None = None
    """Rate of all its traffic out to other zones, Gbit/s; null: the links alone limit it."""
    downlink_gbps: Positive | None = None
    """Rate of all its traffic in from other zones, Gbit/s; null: as uplink_gbps."""
    carbon_g_per_kwh: NotNegative | None = None
    """Carbon intensity of its electricity; null: the region's."""
    pue: Annotated[float, Strict(), Field(ge=1, le=10)] | None = None
    """Power of the whole site over power of the machines; null: not counted."""

    @field_serializer("region")
    def _write_region(self, region: Region | None) -> Any:
        return None if region is None else get_catalogue(None).format_reference("regions", region)

    @property
    def grid_carbon_g_per_kwh(self) -> float | None:
        """Carbon intensity of its electricity: as given, else that of its region; None: not known."""
        if self.carbon_g_per_kwh is None and self.region is not None:
            return self.region.carbon_g_per_kwh
        return self.carbon_g_per_kwh

    @property
    def gpus(self) -> int:
        """GPUs of the zone."""
        return sum(group.total_gpus for group in self.nodes)

    @property
    def node_count(self) -> int:
        """Nodes of the zone."""
        return sum(group.count for group in self.nodes)


class LinkFigures(Value):
    """What may be known of a link; whatever is left out is derived and labelled."""

    gbps: Positive | None = None
    """Rate, Gbit/s, one direction."""
    rtt_ms: NotNegative | None = None
    """Round-trip time, ms."""
    jitter_ms: NotNegative | None = None
    """Standard deviation of the round-trip time, ms."""
    loss_pct: Annotated[float, Strict(), Field(ge=0, lt=100)] | None = None
    """Packets lost, %."""
    usd_per_gb: NotNegative | None = None
    """Price of a GB sent, $."""
    flow_gbps: Positive | None = None
    """Ceiling of one TCP connection, Gbit/s."""


class Link(LinkFigures):
    """The link between two zones.

    Link(between=("beijing-a", "shanghai-a"), gbps=10, rtt_ms=25, usd_per_gb=0.02)
    """

    between: Annotated[tuple[Name, Name], BeforeValidator(_check_two)]
    """The two zones; figures without `_back` hold for both directions."""
    km: NotNegative | None = None
    """Length of the route, km; null: great circle between the regions."""
    gbps_back: Positive | None = None
    """Rate from the second zone to the first, where it differs, Gbit/s."""
    usd_per_gb_back: NotNegative | None = None
    """Price from the second zone to the first, where it differs, $."""
    measured: Flag = False
    """The figures were measured, not typed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.between[0] == self.between[1]:
            raise refuse("link_to_itself", self.between[0])
        return self

    @property
    def pair(self) -> frozenset[str]:
        """The two zones, in no order."""
        return frozenset(self.between)


class Cluster(Value):
    """Where to train: zones, and the links between them."""

    zones: Annotated[tuple[Zone, ...], Field(min_length=1, max_length=MAX_ZONES)]
    """The zones."""
    links: Annotated[tuple[Link, ...], Field(max_length=MAX_ZONES * MAX_ZONES)] = ()
    """Links between zones, one entry a pair."""
    default_link: LinkFigures | None = None
    """Figures of every pair that is not listed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [zone.name for zone in self.zones]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise refuse("zone_twice", name, at=("zones", index, "name"), index=index, first=names.index(name))
        first_listed: dict[frozenset[str], int] = {}
        for index, link in enumerate(self.links):
            for end in link.between:
                if end not in names:
                    raise refuse("link_to_nowhere", end, at=("links", index, "between"), index=index, zones=names)
            if link.pair in first_listed:
                pair = " - ".join(link.between)
                raise refuse("link_twice", pair, at=("links", index), index=index, first=first_listed[link.pair])
            first_listed[link.pair] = index
        if self.gpus > MAX_GPUS:
            raise refuse("too_many_gpus", self.gpus, limit=MAX_GPUS)
        # two kinds of one name, one of them with figures changed: profiles and measured links go by the name alone
        kinds = [gpu.name for gpu in self.gpu_kinds]
        for name in kinds:
            if kinds.count(name) > 1:
                raise refuse("gpu_name_twice", name)
        return self

    @property
    def gpus(self) -> int:
        """GPUs of all zones."""
        return sum(zone.gpus for zone in self.zones)

    @property
    def node_count(self) -> int:
        """Nodes of all zones."""
        return sum(zone.node_count for zone in self.zones)

    @property
    def gpu_kinds(self) -> tuple[Gpu, ...]:
        """The GPU kinds, in order of appearance."""
        return tuple(dict.fromkeys(group.gpu for _, group in self.zone_groups))

    @property
    def zone_groups(self) -> tuple[tuple[Zone, NodeGroup], ...]:
        """Every node group with its zone, in order."""
        return tuple((zone, group) for zone in self.zones for group in zone.nodes)

    @property
    def zone_pairs(self) -> tuple[tuple[int, int], ...]:
        """Every pair of zones by position, first < second."""
        return tuple(combinations(range(len(self.zones)), 2))

    def find_zone_index(self, name: str) -> int:
        """Position of a zone."""
        return next(i for i, zone in enumerate(self.zones) if zone.name == name)
