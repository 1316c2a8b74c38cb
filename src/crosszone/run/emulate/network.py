"""Network: machines of several zones on this one, and the links between them, as long as it is open.

    with Network.from_cluster(cluster) as network:
        node = network.nodes[0]
        node.machine.call("survey.collect_facts", folder="/tmp")
        network.read_counters()["beijing-a", "shanghai-a"].bytes

Each node is a set of Linux namespaces with one interface, `wan0`; a program of ours (`zones.c`) carries their packets
with the delay, rate and loss of the scenario's links, through a shared uplink and downlink for each zone. It ends with
us, and everything in the nodes ends with it, whatever ends us: the kernel sees to that; `folder`, in which runs may
write, goes with it. The network of this machine itself is not touched (a browser would drop its connections at every
change of it); `control` is a node of no zone from which all others are reached freely. Each node has its share of this
machine's processors, as a machine has its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from crosszone.errors import MachineError, Notice
from crosszone.inputs.catalogue.entries import find_home
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.links import build_zone_links
from crosszone.run.machine import BOOT, WAIT_S, run_request

INTERFACE = "wan0"
CONTROL_ADDRESS = "10.77.255.254"  # Of the node that belongs to no zone
MAX_NODES = 250
_COUNTER = struct.Struct("6Q")


class PacketCounters(NamedTuple):
    """What went from one zone to another."""

    packets: int
    bytes: int
    """With headers, as the wire would carry them."""
    lost: int
    """Packets lost on purpose."""
    dropped: int
    """Packets that found the queue full."""
    late_ms: float
    """How much later than due packets were handed over, mean."""
    latest_ms: float


@dataclass(frozen=True, kw_only=True)
class NamespaceMachine:
    """The machine that an emulated node is."""

    name: str
    pid: int
    """First process of its namespaces."""
    cores: tuple[int, ...] = ()
    """Processors of this machine that are its own; none: it may use all."""
    temporary: str | None = None
    """Folder for temporary files of what runs there; None: as here."""

    @property
    def command_prefix(self) -> list[str]:
        """The words before a command that make it run inside the node."""
        namespaces = ["nsenter", f"--target={self.pid}", "--net", "--pid", "--mount", "--uts", "--"]
        temporary_folder = ["env", f"TMPDIR={self.temporary}"] if self.temporary else []
        pinned = ["taskset", "--cpu-list", ",".join(map(str, self.cores))] if self.cores else []
        return [*namespaces, *temporary_folder, *pinned]

    def call(self, function: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """As `Machine.call`."""
        return run_request(
            self.name, [*self.command_prefix, sys.executable, "-c", BOOT], function, payload, wait_s, arguments
        )


@dataclass(frozen=True, kw_only=True)
class EmulatedNode:
    """One node: its zone, its address there, and the machine it is."""

    zone: str
    address: str
    machine: NamespaceMachine


class Network:
    """The zones of a cluster on this machine; use it in a `with` block."""

    def __init__(self, plan: str, zones: tuple[str, ...], places: tuple[tuple[str, str, str], ...]) -> None:
        """Take the plan that `zones.c` reads, the zones by number, and each node's name, zone and address."""
        self.plan, self.zones, self.places = plan, zones, places
        self.nodes: tuple[EmulatedNode, ...] = ()
        self.control: EmulatedNode | None = None
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def from_cluster(cls, cluster: Cluster, *, seed: int = 0) -> Self:
        """The network of a cluster's zones, nodes and links."""
        zones = tuple(zone.name for zone in cluster.zones)
        places, lines = [], [f"seed {seed}", f"node control {CONTROL_ADDRESS} -1"]
        for number, zone in enumerate(cluster.zones):
            for index in range(zone.node_count):
                address = make_address(number, index)
                places.append((f"{number}-{index}", zone.name, address))
                lines.append(f"node zone{number}-node{index} {address} {number}")
            if zone.uplink_gbps is not None:
                lines.append(f"up {number} {zone.uplink_gbps * 1e9:.0f}")
            downlink_gbps = zone.downlink_gbps if zone.downlink_gbps is not None else zone.uplink_gbps
            if downlink_gbps is not None:
                lines.append(f"down {number} {downlink_gbps * 1e9:.0f}")
        if len(places) > MAX_NODES:
            raise MachineError(Notice(code="emulate_too_many", value=len(places), params={"limit": MAX_NODES}))
        for (first, second), link in build_zone_links(cluster).items():
            delay, loss = link.rtt_ms.expected * 1e6 / 2, link.loss_pct / 100
            lines.append(f"link {first} {second} {link.gbps * 1e9:.0f} {delay:.0f} {loss:.9f}")
            lines.append(f"link {second} {first} {link.gbps_back * 1e9:.0f} {delay:.0f} {loss:.9f}")
        return cls("\n".join(lines) + "\n", zones, tuple(places))

    def __enter__(self) -> Self:
        problem = find_problem()
        if problem:
            raise MachineError(problem)
        program = build_relay()
        (self.folder / "plan").write_text(self.plan, encoding="ascii")
        # In a session of its own: what a terminal sends to us (Ctrl-C) is ours to answer; it ends when we do.
        self._process = subprocess.Popen(
            [str(program), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        greeting = self._process.stdout.readline() if self._process.stdout else ""
        if not greeting.startswith("ready"):
            errors = self._process.stderr.read() if self._process.stderr else ""
            self.close()
            reason = (errors.strip().splitlines() or ["it ended without a word"])[-1]
            raise MachineError(Notice(code="emulate_failed", params={"reason": reason}))
        first, *pids = [int(number) for number in greeting.split()[1:]]
        self.control = EmulatedNode(
            zone="", address=CONTROL_ADDRESS, machine=NamespaceMachine(name="control", pid=first)
        )
        temporary = self.folder / "tmp"
        temporary.mkdir()
        self.nodes = tuple(
            EmulatedNode(
                zone=zone,
                address=address,
                machine=NamespaceMachine(name=f"{zone}-{name}", pid=pid, cores=cores, temporary=str(temporary)),
            )
            for pid, cores, (name, zone, address) in zip(pids, split_cores(len(pids)), self.places, strict=True)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes and everything in them."""
        process, self._process = self._process, None
        if process is not None:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def read_counters(self) -> dict[tuple[str, str], PacketCounters]:
        """What each pair of zones has sent so far, by sender and receiver."""
        raw = (self.folder / "counters").read_bytes()
        counters = {}
        for index, (packets, carried, lost, dropped, late, latest) in enumerate(_COUNTER.iter_unpack(raw)):
            pair = self.zones[index // len(self.zones)], self.zones[index % len(self.zones)]
            mean_late_ms = late / packets / 1e6 if packets else 0.0
            counters[pair] = PacketCounters(packets, carried, lost, dropped, mean_late_ms, latest / 1e6)
        return counters

    @cached_property
    def folder(self) -> Path:
        """A folder of this machine that ends with the network."""
        return Path(tempfile.mkdtemp(prefix="crosszone-zones-"))


def make_address(zone: int, index: int) -> str:
    """The address of a zone's node, both by number."""
    return f"10.77.{zone}.{index + 1}"


def split_cores(nodes: int) -> list[tuple[int, ...]]:
    """The processors of each node: equal shares of those we may use, so that nodes do not take each other's.

    Where there are more nodes than processors, several share one.
    """
    cores = sorted(os.sched_getaffinity(0))
    cores_per_node = len(cores) // nodes if nodes else 0
    if not cores_per_node:
        return [(cores[index % len(cores)],) for index in range(nodes)]
    return [tuple(cores[index * cores_per_node : (index + 1) * cores_per_node]) for index in range(nodes)]


def find_problem() -> Notice | None:
    """Why zones cannot be emulated on this machine; None: they can."""
    if not sys.platform.startswith("linux"):
        return Notice(code="emulate_linux", value=sys.platform)
    if os.geteuid() != 0:
        return Notice(code="emulate_root")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return Notice(code="emulate_tun")
    for tool in ("nsenter", "unshare", "taskset", "cc"):
        if shutil.which(tool) is None:
            return Notice(code="emulate_tool", value=tool)
    command = ["unshare", "--net", "--pid", "--mount", "--uts", "--fork", "--mount-proc", "true"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        reason = (process.stderr.strip().splitlines() or ["unshare failed"])[-1]
        return Notice(code="emulate_failed", params={"reason": reason})
    return None


def build_relay() -> Path:
    """The relay, compiled for this machine once for each text of it."""
    source = (files("crosszone.run.emulate") / "zones.c").read_bytes()
    program = find_home() / "cache" / f"zones-{hashlib.sha256(source).hexdigest()[:16]}"
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        source_file, compiled = Path(folder) / "zones.c", Path(folder) / "zones"
        source_file.write_bytes(source)
        process = subprocess.run(
            ["cc", "-O2", "-o", str(compiled), str(source_file)], capture_output=True, text=True, check=False
        )
        if process.returncode != 0:
            reason = (process.stderr.strip().splitlines() or ["cc failed"])[0]
            raise MachineError(Notice(code="emulate_failed", params={"reason": reason}))
        os.replace(compiled, program)
    return program
