"""Horovod: every rank a whole replica; one `horovodrun` on the first node reaches the others by ssh.

Flags and their limits were read in Horovod 0.28.1 (1d217b5): horovod/runner/launch.py, gloo_run.py,
common/util/hosts.py and horovod/torch/optimizer.py.
"""

from __future__ import annotations

import math
import re
from typing import Any

from crosszone.deploy.bundle import Option, option
from crosszone.deploy.launch import ARGUMENTS, Agent, Launch, refused
from crosszone.deploy.pytorch import argument, pytorch_options, wire_compression
from crosszone.deploy.shell import Raw

VERSION = "0.28.1"  # The release whose flags these are; the last one
# Time that processes have to start in, s: horovodrun's own 30 s are short for distant nodes that import PyTorch.
START_S = 120
HOST = re.compile(r"[\w.-]+")  # What horovodrun takes for a host: a name or an IPv4 address, without a user


def options(launch: Launch) -> tuple[Option, ...]:
    """What horovodrun and DistributedOptimizer are told."""
    launch.require_addresses("horovodrun", "framework_no_address")
    _check_nodes(launch)
    common = (one for one in pytorch_options(launch) if not one.name.startswith("init_process_group"))
    return (argument(launch, "horovod", VERSION, "horovod_install"), *_flags(launch), *_arguments(launch), *common)


def files(launch: Launch) -> dict[str, str]:
    """Nothing beside the trainer: all of it stands on the command line and in settings.json."""
    del launch
    return {}


def command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One horovodrun on the first node; it starts the processes of the others itself."""
    if agent.number != 0:
        return None
    words: list[str | Raw] = []
    for one in options(launch):
        if one.where == "flag":
            words += [one.name] if one.value is True else [one.name, str(one.value)]
    python = launch.settings.python
    start = ("horovodrun",) if python is None else (python, "-m", "horovod.runner.launch")
    return (*start, *words, python or "python3", "train.py", "settings.json", ARGUMENTS)


def _flags(launch: Launch) -> tuple[Option, ...]:
    talk, settings = launch.predictor.strategy.communication, launch.settings
    hosts = ",".join(f"{node.address}:{node.used_gpus}" for node in launch.nodes)
    made = [
        _flag(launch, "-np", launch.world_size, "horovod_np"),
        _flag(launch, "-H", hosts, "horovod_hosts", nodes=len(launch.nodes)),
        _flag(launch, "--gloo", True, "horovod_gloo"),
        _flag(launch, "--gloo-timeout-seconds", 60 * launch.timeout_minutes, "timeout"),
        _flag(launch, "--start-timeout", START_S, "horovod_start_timeout"),
    ]
    if settings.ssh_port != 22:
        made.append(_flag(launch, "-p", settings.ssh_port, "horovod_ssh_port"))
    interfaces = {node.interface for node in launch.nodes}
    if len(launch.nodes) > 1 and None not in interfaces:
        made.append(_flag(launch, "--network-interfaces", interfaces.pop(), "horovod_interfaces"))
    if talk.bucket_mb is not None:
        mib = math.ceil(talk.bucket_mb * 1e6 / 2**20)
        made.append(_flag(launch, "--fusion-threshold-mb", mib, "horovod_fusion", mb=talk.bucket_mb))
    return tuple(made)


def _arguments(launch: Launch) -> tuple[Option, ...]:
    talk, m = launch.predictor.strategy.communication, launch.predictor.micro_batches
    passes, key = (m, "horovod_passes") if talk.overlap_gradients else (m + 1, "horovod_passes_late")
    made = [
        argument(launch, "DistributedOptimizer(op)", "Average", "horovod_average"),
        argument(launch, "DistributedOptimizer(backward_passes_per_step)", passes, key, micro_batches=m),
    ]
    if wire_compression(launch) == "fp16":
        made.append(argument(launch, "DistributedOptimizer(compression)", "Compression.fp16", "horovod_fp16"))
    return tuple(made)


def _flag(launch: Launch, name: str, value: Any, key: str, **params: Any) -> Option:
    return option("flag", name, value, launch.language, key=key, **params)


def _check_nodes(launch: Launch) -> None:
    """One host, one run of ranks from GPU 0, one interface name for all: horovodrun can say nothing else."""
    for node in launch.nodes:
        where = f"cluster.zones.{node.zone}.nodes[{node.group}].hosts"
        if not launch.template and not HOST.fullmatch(node.address or ""):
            raise refused("horovod_address", where, node.address)
        if len(node.agents) > 1 or node.agents[0].gpus != tuple(range(node.used_gpus)):
            runs = [f"{agent.ranks[0]}-{agent.ranks[-1]}" for agent in node.agents]
            gpus = [gpu for agent in node.agents for gpu in agent.gpus]
            raise refused("horovod_split_node", "placement", None, node=node.name, ranks=runs, gpus=gpus)
    names = sorted({node.interface for node in launch.nodes if node.interface is not None})
    if len(names) > 1:
        raise refused("horovod_interfaces", "cluster.zones.nodes.hosts.interface", None, names=names)
