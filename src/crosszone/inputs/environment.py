"""Environment: a machine (or a slice of a cluster) that can train: where it is, what it has, and how it is reached.

    Environment(name="pytorch-dev-env", zone="beijing-a", gpu="a100-80gb-sxm", gpus=2, cpus=16, memory_gb=128)
    build_selection([first, second]).gpus

Measured link: what was found between two environments, and when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from crosszone.inputs.value import Count, FilePlace, Name, NotNegative, Positive, Value

Runner = Literal["local", "ssh", "slurm", "kubernetes", "ray"]  # Who starts programs there
Status = Literal["running", "stopped", "unreachable", "unknown"]


class Environment(Value):
    """One development environment. What `probe` finds out takes the place of what was typed."""

    name: Name
    """What to call it."""
    type: Name = "custom"
    """jupyter, custom, or what your platform calls it."""
    status: Status = "unknown"
    """As far as is known."""
    zone: Name
    """Availability zone; environments of one zone are near each other."""
    region: Name | None = None
    """Region of the zone, by its name in the catalogue: distances and prices follow from it."""
    image: FilePlace | None = None
    """Image it was made from."""
    runner: Runner = "ssh"
    """Who starts programs there."""
    address: Name | None = None
    """Address other environments reach it by; null: its runner finds it."""
    interface: Name | None = None
    """Network interface of that address."""
    ssh_user: Name | None = None
    """User for ssh; null: ssh's own choice."""
    ssh_port: Annotated[int, Strict(), Field(ge=1, le=65535)] = 22
    """Port of sshd."""
    ssh_key: FilePlace | None = None
    """File of the private key on this machine; null: ssh's own choice. The key itself is never kept."""
    known_hosts: FilePlace | None = None
    """File of known host keys on this machine; null: ssh's own."""
    partition: Name | None = None
    """Partition (Slurm) or namespace (Kubernetes)."""
    python: FilePlace = "python3"
    """Python that has the framework, on that machine."""
    workdir: FilePlace = "~/crosszone"
    """Folder there in which tasks have their folders."""
    gpu: Name | None = None
    """GPU kind, by its name in the catalogue; null: it has none, processes compute on the CPU."""
    gpus: Annotated[int, Strict(), Field(ge=0, le=1024)] = 0
    """GPUs."""
    cpus: Count | None = None
    """CPU cores."""
    memory_gb: Positive | None = None
    """Memory of the machine."""
    nic_gbps: Positive | None = None
    """Network rate, Gbit/s, one direction."""
    since: NotNegative | None = None
    """When it was started, seconds since 1970 UTC."""
    facts: dict[str, Any] | None = None
    """What the last probe found; null: not probed."""

    @property
    def processes(self) -> int:
        """Ranks it runs: one a GPU, or one on the CPU."""
        return self.gpus or 1


class Selection(Value):
    """Several environments taken together."""

    nodes: int
    """Environments."""
    gpus: int
    """GPUs of all of them."""
    gpu_kinds: tuple[str, ...]
    """Their kinds, in order of appearance."""
    cpus: int | None
    """CPU cores; null: of one of them it is not known."""
    memory_gb: float | None
    """Memory; null: of one of them it is not known."""
    zones: tuple[str, ...]
    """Zones, in order of appearance."""
    distributed: bool
    """More than one takes part."""


def build_selection(chosen: Iterable[Environment]) -> Selection:
    """What the chosen environments have together."""
    environments = list(chosen)
    cores = [environment.cpus for environment in environments]
    memory = [environment.memory_gb for environment in environments]
    return Selection(
        nodes=len(environments),
        gpus=sum(environment.gpus for environment in environments),
        gpu_kinds=tuple(dict.fromkeys(environment.gpu for environment in environments if environment.gpu)),
        cpus=None if None in cores else sum(count for count in cores if count is not None),
        memory_gb=None if None in memory else sum(gb for gb in memory if gb is not None),
        zones=tuple(dict.fromkeys(environment.zone for environment in environments)),
        distributed=len(environments) > 1,
    )


def choose_master(chosen: Iterable[str], requested: str | None) -> str | None:
    """The master among the chosen: the requested one if it is among them, else the first; None: none is chosen."""
    ids = list(chosen)
    return requested if requested in ids else next(iter(ids), None)


class MeasuredLink(Value):
    """The way from one environment to another and back."""

    first: Name
    """Environment that sent."""
    second: Name
    """Environment that received."""
    rtt_ms: NotNegative
    """Round-trip time, median, ms."""
    rtt_ms_least: NotNegative
    """The shortest of them."""
    rtt_ms_most: NotNegative
    """The longest of them."""
    gbps: Positive | None = None
    """Rate from the first to the second, Gbit/s of payload; null: it was not measured."""
    gbps_back: Positive | None = None
    """Rate from the second to the first."""
    streams: Count = 1
    """Connections side by side."""
    measured: NotNegative
    """When, seconds since 1970 UTC."""

    @property
    def id(self) -> str:
        """The same for every measurement of this pair."""
        return build_pair_id(self.first, self.second)


def build_pair_id(first: str, second: str) -> str:
    """The id of a pair of environments, in either order."""
    # a newline is in no name, so that two pairs never read alike
    return hashlib.sha256("\n".join(sorted((first, second))).encode()).hexdigest()[:32]
