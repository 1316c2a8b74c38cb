"""Frameworks: one file each, with the same three functions: build_options, build_files, build_command.

Below them is what those on PyTorch share: batch, precision, recomputation, gradients on the wire, averaging.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from crosszone.deploy.bundle import Option, build_option
from crosszone.deploy.launch import Agent, Launch, build_refusal
from crosszone.deploy.shell import Raw

# What a bundle can be made for; torchft trains plans with local updates.
FRAMEWORKS = ("ddp", "fsdp", "deepspeed", "megatron", "horovod", "torchft")


class FrameworkFunctions(NamedTuple):
    """The functions of a framework's file; `list_requirements` is there where a plan may need a certain version."""

    build_options: Callable[[Launch], tuple[Option, ...]]
    """Everything the framework is told, each explained; an error for what it cannot do."""
    build_files: Callable[[Launch], dict[str, str]]
    """Files it adds, by path."""
    build_command: Callable[[Launch, Agent], tuple[str | Raw, ...] | None]
    """The launcher process of one agent; None: nothing to start there."""
    list_requirements: Callable[[Launch], dict[str, str]]
    """Packages the plan needs, with a limit on their version (`<0.19.7`) or an empty text; most plans need none."""


def load_framework(name: str) -> FrameworkFunctions:
    """The functions of a framework."""
    module = import_module(f"crosszone.deploy.frameworks.{name}")
    list_requirements: Callable[[Launch], dict[str, str]] = getattr(module, "list_requirements", lambda _: {})
    return FrameworkFunctions(module.build_options, module.build_files, module.build_command, list_requirements)


# ---- what the trainers on PyTorch have in common ----


# DDP's communication hooks by the compression that they are.
COMMUNICATION_HOOKS = {
    "fp16": "default_hooks.fp16_compress_hook",
    "bf16": "default_hooks.bf16_compress_hook",
    "powersgd": "powerSGD_hook.powerSGD_hook",
}
EXCHANGE_DTYPES = ("fp32", "bf16", "fp16")  # Types in which the trainer's own averaging exchanges updates


def build_argument(launch: Launch, name: str, value: Any, key: str, **params: Any) -> Option:
    """An argument that the trainer passes on to PyTorch."""
    return build_option("argument", name, value, launch.language, key=key, **params)


def list_pytorch_options(launch: Launch) -> tuple[Option, ...]:
    """Batch, precision, optimizer, recomputation, patience."""
    s, job = launch.predictor.strategy, launch.scenario.job
    shares = s.replica_micro_batches
    counts = {"global_batch": job.global_batch, "micro_batch": s.micro_batch, "dp": s.dp}
    options = [
        build_argument(launch, "micro_batches", launch.predictor.micro_batches, "micro_batches", **counts)
        if not s.uneven
        else build_argument(launch, "replica_micro_batches", list(shares or ()), "replica_micro_batches", **counts),
        build_argument(launch, "precision", job.precision, f"precision_{job.precision.replace('-', '_')}"),
        build_argument(launch, "optimizer", job.optimizer, "optimizer"),
        build_argument(launch, "init_process_group(timeout)", f"{launch.timeout_minutes} min", "timeout"),
    ]
    if s.recompute != "none":
        options.append(build_argument(launch, "torch.utils.checkpoint", s.recompute, f"recompute_{s.recompute}"))
    return tuple(options)


def get_wire_compression(launch: Launch) -> str:
    """How DDP and Horovod shrink gradients: as asked, or by the type they are to have on the wire."""
    communication = launch.predictor.strategy.communication
    if communication.compression == "none" and communication.gradient_dtype in ("fp16", "bf16"):
        return communication.gradient_dtype
    return communication.compression


def list_wire_options(launch: Launch) -> tuple[Option, ...]:
    """DDP's buckets and hook."""
    communication, options = launch.predictor.strategy.communication, []
    if communication.bucket_mb is not None:
        mib = round(communication.bucket_mb * 1e6 / 2**20, 3)
        options.append(
            build_argument(
                launch, "DistributedDataParallel(bucket_cap_mb)", mib, "bucket_cap_mb", mb=communication.bucket_mb
            )
        )
    if not communication.overlap_gradients:
        options.append(build_argument(launch, "DistributedDataParallel(bucket_cap_mb)", "all gradients", "bucket_all"))
    hook = COMMUNICATION_HOOKS.get(get_wire_compression(launch))
    if hook is not None:
        rank = {"rank": communication.compression_rank or 1}
        key = f"hook_{get_wire_compression(launch)}"
        options.append(build_argument(launch, "register_comm_hook", hook, key, **rank))
    return tuple(options)


def list_local_update_options(launch: Launch) -> tuple[Option, ...]:
    """Local updates by the trainer itself: an outer optimizer over the zones."""
    local_update, training = launch.predictor.strategy.local_update, launch.settings.training
    if local_update is None:
        return ()
    if local_update.delay >= local_update.steps:
        raise build_refusal(
            "averaging_delay", "strategy.local_update.delay", local_update.delay, steps=local_update.steps
        )
    if local_update.dtype not in EXCHANGE_DTYPES:
        field = "strategy.local_update.dtype"
        raise build_refusal("averaging_dtype", field, local_update.dtype, allowed=list(EXCHANGE_DTYPES))
    params = {
        "steps": local_update.steps,
        "fragments": local_update.fragments,
        "zones": len(launch.zones),
        "dtype": local_update.dtype,
    }
    return (
        build_argument(launch, "local_update.steps", local_update.steps, "local_update_steps", **params),
        build_argument(launch, "local_update.fragments", local_update.fragments, "local_update_fragments", **params),
        build_argument(
            launch, "local_update.delay", local_update.delay, "local_update_delay", delay=local_update.delay
        ),
        build_argument(launch, "local_update.dtype", local_update.dtype, "local_update_dtype", **params),
        build_argument(
            launch, "outer SGD(lr, momentum)", [training.outer_lr, training.outer_momentum], "outer_optimizer"
        ),
    )
