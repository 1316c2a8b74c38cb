"""Megatron-LM's flags for a strategy: degrees, order of ranks, layers of stages, sharding, overlap, gradients, memory.

Names and conditions were read in Megatron-LM d98e8a64: megatron/training/arguments.py (validate_args) and
initialize.py, megatron/core/parallel_state.py, pipeline_parallel/schedules.py, transformer/moe and optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from crosszone.deploy.launch import Launch, refused
from crosszone.deploy.megatron_layout import FLAG as LAYOUT
from crosszone.deploy.megatron_layout import dealt_evenly, layout_of
from crosszone.deploy.option import Option, option
from crosszone.inputs.job import state_bytes
from crosszone.inputs.strategy import AXES, Strategy
from crosszone.predict.batch import bucket_bytes

ORDERS = {("tp", "cp", "dp", "pp"): False, ("tp", "cp", "pp", "dp"): True}
"""Orders of ranks that Megatron has, and whether `--use-tp-pp-dp-mapping` gives them."""
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""ZeRO stages of Megatron-FSDP by the name of its sharding strategy."""
PLAIN_OPTIMIZERS = ("adam", "adamw", "sgd", "sgd-momentum")
"""Those that Megatron-FSDP, optimizer instances and host memory know."""

Told = tuple[str, Any, str, dict[str, Any]]


def parallelism(launch: Launch, layers: Sequence[int], micro_batches: int) -> tuple[Option, ...]:
    """How ranks split the model: `layers` of each chunk in pipeline order, `micro_batches` of a replica a step."""
    return _options(launch, _degrees(launch, layers, micro_batches))


def communication(launch: Launch) -> tuple[Option, ...]:
    """Sharded states, overlap, buckets and gradients on the wire."""
    return _options(launch, (*_sharding(launch), *_overlap(launch), *_gradients(launch)))


def memory(launch: Launch) -> tuple[Option, ...]:
    """Recomputation and host memory."""
    return _options(launch, _memory(launch.predictor.strategy))


def zero_of(launch: Launch) -> int:
    """ZeRO stage in use."""
    return launch.predictor.strategy.zero or 0


def instances(launch: Launch) -> int:
    """Copies of the sharded states: one a zone where states are shared inside zones, or as many as were asked for."""
    if not zero_of(launch):
        return 1
    return (launch.predictor.strategy.dp or 1) // launch.predictor.site.shard_ranks


def mapping(launch: Launch) -> bool:
    """Whether ranks are numbered tp-cp-pp-dp; `IllegalError` for an order that is neither of Megatron's two."""
    s, order = launch.predictor.strategy, launch.predictor.site.placement.order
    used = [axis for axis in order if getattr(s, axis) > 1]
    for known, flag in ORDERS.items():
        if used == [axis for axis in known if axis in used]:
            return flag
    known_orders = ["-".join(one) for one in ORDERS]
    raise refused("megatron_order", "placement.order", "-".join(order), allowed=known_orders, axes=list(AXES))


def group_size(stages: int, micro_batches: int) -> int:
    """Micro-batches that pass one chunk before the next: the fewest that leave no rest smaller than the pipeline."""
    for size in range(stages, micro_batches):
        rest = micro_batches % size
        if rest == 0 or rest >= stages:
            return size
    return micro_batches


def require_parallel(launch: Launch) -> None:
    """Refuse what Megatron stops at when it starts, beside what its entry in frameworks.yaml already rules out."""
    p, s = launch.predictor, launch.predictor.strategy
    model, optimizer, zero = p.case.model, p.case.job.optimizer, zero_of(launch)
    flagged, copies = mapping(launch), instances(launch)
    if model.moe and s.tp > 1 and not s.sequence_parallel:
        raise refused("megatron_moe_sequence", "strategy.sequence_parallel", False, tp=s.tp)
    held = s.expert_slices * s.ep
    if flagged and s.pp > 1 and model.moe and held != s.tp * s.cp:
        raise refused("megatron_expert_order", "placement.order", s.ep, held=held, inner=s.tp * s.cp)
    if copies > 1:
        zones = p.site.zone[:, :, 0, 0].reshape(s.pp, copies, -1)
        if s.shard_within == "zone" and (zones != zones[:, :, :1]).any():
            raise refused("megatron_instances_torn", "strategy.shard_within", s.shard_within, copies=copies)
        spread = s.tp * s.cp * (s.dp or 1) // held
        if model.moe and spread % copies:
            raise refused("megatron_expert_instances", "strategy.ep", s.ep, spread=spread, copies=copies)
    if optimizer not in (*PLAIN_OPTIMIZERS, "lion", "muon"):
        raise refused("megatron_optimizer", "job.optimizer", optimizer, allowed=[*PLAIN_OPTIMIZERS, "lion", "muon"])
    plain = optimizer in PLAIN_OPTIMIZERS
    if not plain and (zero > 1 or copies > 1):
        raise refused("megatron_plain_optimizer", "job.optimizer", optimizer, allowed=list(PLAIN_OPTIMIZERS))
    if s.offload != "none" and optimizer not in ("adam", "adamw"):
        raise refused("megatron_plain_optimizer", "job.optimizer", optimizer, allowed=["adam", "adamw"])
    talk, precision = s.communication, p.case.job.precision
    if reduced_in_bf16(s) and precision in ("fp16", "fp32"):
        value = talk.gradient_dtype or talk.compression
        raise refused("megatron_gradients", "strategy.communication.gradient_dtype", value, precision=precision)


def reduced_in_bf16(s: Strategy) -> bool:
    """Gradients are bf16 on the wire."""
    return "bf16" in (s.communication.gradient_dtype, s.communication.compression)


def _options(launch: Launch, told: Sequence[Told] | Iterator[Told]) -> tuple[Option, ...]:
    return tuple(
        option("flag", name, value, launch.language, key=f"megatron_{key}", **params)
        for name, value, key, params in told
    )


def _degrees(launch: Launch, layers: Sequence[int], micro_batches: int) -> Iterator[Told]:
    s = launch.predictor.strategy
    dp, world = s.dp or 1, launch.world_size
    ranks = {"tp": s.tp, "pp": s.pp, "cp": s.cp, "dp": dp, "world": world}
    yield "--tensor-model-parallel-size", s.tp, "tp", ranks
    if s.sequence_parallel:
        yield "--sequence-parallel", True, "sequence_parallel", {"tp": s.tp}
    yield "--pipeline-model-parallel-size", s.pp, "pp", ranks
    if s.pp > 1 and not dealt_evenly(layers):
        yield LAYOUT, layout_of(layers), "layout", {"layers": list(layers)}
    elif s.interleave > 1:
        yield "--num-virtual-stages-per-pipeline-rank", s.interleave, "interleave", {"chunks": s.pp * s.interleave}
    if s.interleave > 1:
        size = group_size(s.pp, micro_batches)
        if size != s.pp:
            told = {"m": micro_batches, "pp": s.pp, "rest": micro_batches % s.pp}
            yield "--microbatch-group-size-per-virtual-pipeline-stage", size, "group_size", told
    yield "--context-parallel-size", s.cp, "cp", ranks
    if launch.predictor.case.model.moe:
        yield "--expert-model-parallel-size", s.ep, "ep", {"ep": s.ep}
        yield "--expert-tensor-parallel-size", s.expert_slices, "expert_tp", {"ep": s.ep}
    if mapping(launch):
        yield "--use-tp-pp-dp-mapping", True, "mapping", {}
    yield "--distributed-timeout-minutes", launch.timeout_minutes, "timeout", {}


def _sharding(launch: Launch) -> Iterator[Told]:
    s, zero, copies = launch.predictor.strategy, zero_of(launch), instances(launch)
    if zero:
        yield "--use-distributed-optimizer", True, "distributed_optimizer", {"zero": zero}
    if zero in SHARDING:
        yield "--use-megatron-fsdp", True, "fsdp", {"zero": zero}
        yield "--data-parallel-sharding-strategy", SHARDING[zero], "fsdp_strategy", {"zero": zero}
        yield "--no-gradient-accumulation-fusion", True, "fsdp_fusion", {}
        if copies > 1:
            yield "--outer-dp-sharding-strategy", "no_shard", "fsdp_outer", {"copies": copies}
    if copies > 1:
        told = {"copies": copies, "each": (s.dp or 1) // copies}
        yield (
            "--num-distributed-optimizer-instances",
            copies,
            "instances_all" if s.shard_within == "all" else "instances",
            told,
        )


def _overlap(launch: Launch) -> Iterator[Told]:
    s = launch.predictor.strategy
    talk = s.communication
    if (s.dp or 1) * s.cp > 1 and talk.overlap_gradients:
        yield "--overlap-grad-reduce", True, "overlap_gradients", {}
        if zero_of(launch) and talk.overlap_parameters:
            yield "--overlap-param-gather", True, "overlap_parameters", {}
    if talk.overlap_tensor and s.tp > 1:
        yield "--tp-comm-overlap", True, "overlap_tensor", {}


def _gradients(launch: Launch) -> Iterator[Told]:
    p = launch.predictor
    s, precision = p.strategy, p.case.job.precision
    if reduced_in_bf16(s):
        yield "--grad-reduce-in-bf16", True, "gradients_bf16", {}
    elif precision != "fp32":
        yield "--accumulate-allreduce-grads-in-fp32", True, "gradients_fp32", {}
    if s.communication.bucket_mb is not None:
        kept = state_bytes(p.case.job, framework="megatron").gradients
        size, mb = round(bucket_bytes(p.case, "megatron") / kept), s.communication.bucket_mb
        if zero_of(launch) in SHARDING:
            yield "--suggested-communication-unit-size", size, "bucket", {"mb": mb}
        else:
            yield "--ddp-bucket-size", size, "bucket", {"mb": mb}


def _memory(s: Strategy) -> Iterator[Told]:
    if s.recompute == "selective":
        yield "--recompute-granularity", "selective", "recompute_selective", {}
        yield "--recompute-modules", ["core_attn"], "recompute_selective", {}
    elif s.recompute == "full":
        yield "--recompute-granularity", "full", "recompute_full", {}
        yield "--recompute-method", "uniform", "recompute_full", {}
        yield "--recompute-num-layers", 1, "recompute_full", {}
    if s.offload != "none":
        yield "--optimizer-cpu-offload", True, "offload", {}
        yield "--use-precision-aware-optimizer", True, "offload_precision", {}
        yield "--overlap-cpu-optimizer-d2h-h2d", True, "offload_overlap", {}
