"""Horovod: every rank a whole replica; one `horovodrun` on the first node reaches the others by ssh.

Flags and their limits were read in Horovod 0.28.1 (1d217b5): horovod/runner/launch.py, gloo_run.py,
common/util/hosts.py and horovod/torch/optimizer.py.
"""

from __future__ import annotations

import math
import re
from typing import Any

from crosszone.deploy.bundle import Option, build_option
from crosszone.deploy.frameworks import build_argument, get_wire_compression, list_pytorch_options
from crosszone.deploy.launch import PASSED_ARGUMENTS, Agent, Launch, build_refusal, list_program_words
from crosszone.deploy.shell import Raw

VERSION = "0.28.1"  # The release whose flags these are; the last one
# Time that processes have to start in, s: horovodrun's own 30 s are short for distant nodes that import PyTorch.
START_TIMEOUT_S = 120
HOST_PATTERN = re.compile(r"[\w.-]+")  # What horovodrun takes for a host: a name or an IPv4 address, without a user


def build_options(launch: Launch) -> tuple[Option, ...]:
    """What horovodrun and DistributedOptimizer are told."""
    launch.require_addresses("horovodrun", "framework_no_address")
    _require_nodes(launch)
    common = (option for option in list_pytorch_options(launch) if not option.name.startswith("init_process_group"))
    return (
        build_argument(launch, "horovod", VERSION, "horovod_install"),
        *_list_flags(launch),
        *_list_arguments(launch),
        *common,
    )


def build_files(launch: Launch) -> dict[str, str]:
    """Nothing beside the trainer: all of it stands on the command line and in settings.json."""
    del launch
    return {}


def build_command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One horovodrun on the first node; it starts the processes of the others itself."""
    if agent.number != 0:
        return None
    words: list[str | Raw] = []
    for option in build_options(launch):
        if option.where == "flag":
            words += [option.name] if option.value is True else [option.name, str(option.value)]
    start = list_program_words(launch, "horovodrun", "horovod.runner.launch")
    return (*start, *words, launch.settings.python or "python3", "train.py", "settings.json", PASSED_ARGUMENTS)


def _list_flags(launch: Launch) -> tuple[Option, ...]:
    communication, settings = launch.predictor.strategy.communication, launch.settings
    hosts = ",".join(f"{node.address}:{node.used_gpus}" for node in launch.nodes)
    options = [
        _build_flag(launch, "-np", launch.world_size, "horovod_np"),
        _build_flag(launch, "-H", hosts, "horovod_hosts", nodes=len(launch.nodes)),
        _build_flag(launch, "--gloo", True, "horovod_gloo"),
        _build_flag(launch, "--gloo-timeout-seconds", 60 * launch.timeout_minutes, "timeout"),
        _build_flag(launch, "--start-timeout", START_TIMEOUT_S, "horovod_start_timeout"),
    ]
    if settings.ssh_port != 22:
        options.append(_build_flag(launch, "-p", settings.ssh_port, "horovod_ssh_port"))
    interfaces = {node.interface for node in launch.nodes}
    if len(launch.nodes) > 1 and None not in interfaces:
        options.append(_build_flag(launch, "--network-interfaces", interfaces.pop(), "horovod_interfaces"))
    if communication.bucket_mb is not None:
        mib = math.ceil(communication.bucket_mb * 1e6 / 2**20)
        options.append(_build_flag(launch, "--fusion-threshold-mb", mib, "horovod_fusion", mb=communication.bucket_mb))
    return tuple(options)


def _list_arguments(launch: Launch) -> tuple[Option, ...]:
    communication, m = launch.predictor.strategy.communication, launch.predictor.micro_batches
    passes, key = (m, "horovod_passes") if communication.overlap_gradients else (m + 1, "horovod_passes_late")
    options = [
        build_argument(launch, "DistributedOptimizer(op)", "Average", "horovod_average"),
        build_argument(launch, "DistributedOptimizer(backward_passes_per_step)", passes, key, micro_batches=m),
    ]
    if get_wire_compression(launch) == "fp16":
        options.append(build_argument(launch, "DistributedOptimizer(compression)", "Compression.fp16", "horovod_fp16"))
    return tuple(options)


def _build_flag(launch: Launch, name: str, value: Any, key: str, **params: Any) -> Option:
    return build_option("flag", name, value, launch.language, key=key, **params)


def _require_nodes(launch: Launch) -> None:
    """One host, one run of ranks from GPU 0, one interface name for all: horovodrun can say nothing else."""
    for node in launch.nodes:
        where = f"cluster.zones.{node.zone}.nodes[{node.group}].hosts"
        if not launch.template and not HOST_PATTERN.fullmatch(node.address or ""):
            raise build_refusal("horovod_address", where, node.address)
        if len(node.agents) > 1 or node.agents[0].gpus != tuple(range(node.used_gpus)):
            runs = [f"{agent.ranks[0]}-{agent.ranks[-1]}" for agent in node.agents]
            gpus = [gpu for agent in node.agents for gpu in agent.gpus]
            raise build_refusal("horovod_split_node", "placement", None, node=node.name, ranks=runs, gpus=gpus)
    names = sorted({node.interface for node in launch.nodes if node.interface is not None})
    if len(names) > 1:
        raise build_refusal("horovod_interfaces", "cluster.zones.nodes.hosts.interface", None, names=names)
