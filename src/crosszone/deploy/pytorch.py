"""What the trainers on PyTorch have in common: batch, precision, recomputation, gradients on the wire, averaging."""

from __future__ import annotations

from typing import Any

from crosszone.deploy.bundle import Option, option
from crosszone.deploy.launch import Launch, refused

# DDP's communication hooks by the compression that they are.
HOOKS = {
    "fp16": "default_hooks.fp16_compress_hook",
    "bf16": "default_hooks.bf16_compress_hook",
    "powersgd": "powerSGD_hook.powerSGD_hook",
}
EXCHANGED = ("fp32", "bf16", "fp16")  # Types in which the trainer's own averaging exchanges updates


def argument(launch: Launch, name: str, value: Any, key: str, **params: Any) -> Option:
    """An argument that the trainer passes on to PyTorch."""
    return option("argument", name, value, launch.language, key=key, **params)


def pytorch_options(launch: Launch) -> tuple[Option, ...]:
    """Batch, precision, optimizer, recomputation, patience."""
    s, job = launch.predictor.strategy, launch.scenario.job
    shares = s.replica_micro_batches
    counts = {"global_batch": job.global_batch, "micro_batch": s.micro_batch, "dp": s.dp}
    made = [
        argument(launch, "micro_batches", launch.predictor.micro_batches, "micro_batches", **counts)
        if not s.uneven
        else argument(launch, "replica_micro_batches", list(shares or ()), "replica_micro_batches", **counts),
        argument(launch, "precision", job.precision, f"precision_{job.precision.replace('-', '_')}"),
        argument(launch, "optimizer", job.optimizer, "optimizer"),
        argument(launch, "init_process_group(timeout)", f"{launch.timeout_minutes} min", "timeout"),
    ]
    if s.recompute != "none":
        made.append(argument(launch, "torch.utils.checkpoint", s.recompute, f"recompute_{s.recompute}"))
    return tuple(made)


def wire_compression(launch: Launch) -> str:
    """How DDP and Horovod shrink gradients: as asked, or by the type they are to have on the wire."""
    talk = launch.predictor.strategy.communication
    if talk.compression == "none" and talk.gradient_dtype in ("fp16", "bf16"):
        return talk.gradient_dtype
    return talk.compression


def wire_options(launch: Launch) -> tuple[Option, ...]:
    """DDP's buckets and hook."""
    talk, made = launch.predictor.strategy.communication, []
    if talk.bucket_mb is not None:
        mib = round(talk.bucket_mb * 1e6 / 2**20, 3)
        made.append(argument(launch, "DistributedDataParallel(bucket_cap_mb)", mib, "bucket_cap_mb", mb=talk.bucket_mb))
    if not talk.overlap_gradients:
        made.append(argument(launch, "DistributedDataParallel(bucket_cap_mb)", "all gradients", "bucket_all"))
    hook = HOOKS.get(wire_compression(launch))
    if hook is not None:
        rank = {"rank": talk.compression_rank or 1}
        key = f"hook_{wire_compression(launch)}"
        made.append(argument(launch, "register_comm_hook", hook, key, **rank))
    return tuple(made)


def averaging_options(launch: Launch) -> tuple[Option, ...]:
    """Local updates by the trainer itself: an outer optimizer over the zones."""
    local, training = launch.predictor.strategy.local_update, launch.settings.training
    if local is None:
        return ()
    if local.delay >= local.steps:
        raise refused("averaging_delay", "strategy.local_update.delay", local.delay, steps=local.steps)
    if local.dtype not in EXCHANGED:
        field = "strategy.local_update.dtype"
        raise refused("averaging_dtype", field, local.dtype, allowed=list(EXCHANGED))
    told = {"steps": local.steps, "fragments": local.fragments, "zones": len(launch.zones), "dtype": local.dtype}
    return (
        argument(launch, "local_update.steps", local.steps, "local_update_steps", **told),
        argument(launch, "local_update.fragments", local.fragments, "local_update_fragments", **told),
        argument(launch, "local_update.delay", local.delay, "local_update_delay", delay=local.delay),
        argument(launch, "local_update.dtype", local.dtype, "local_update_dtype", **told),
        argument(launch, "outer SGD(lr, momentum)", [training.outer_lr, training.outer_momentum], "outer_optimizer"),
    )
