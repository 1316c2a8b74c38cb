"""PyTorch FSDP2: sharded states, tensor, context and pipeline parallelism on one mesh; torchrun starts `train.py`."""

from __future__ import annotations

from collections.abc import Iterator

from crosszone.deploy.bundle import Option
from crosszone.deploy.frameworks import build_argument, list_local_update_options, list_pytorch_options
from crosszone.deploy.launch import Agent, Launch, build_refusal, build_torchrun
from crosszone.deploy.shell import Raw

# torch.distributed.pipelining's classes.
SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


def build_options(launch: Launch) -> tuple[Option, ...]:
    """What FSDP2, the mesh, the pipeline and the trainer are told."""
    _require_supported(launch)
    return (
        *list_pytorch_options(launch),
        *_list_sharding_options(launch),
        *_list_axis_options(launch),
        *list_local_update_options(launch),
    )


def build_files(launch: Launch) -> dict[str, str]:
    """Nothing beside the trainer: all of it stands in settings.json."""
    del launch
    return {}


def build_command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One torchrun."""
    return build_torchrun(launch, agent, "train.py", "settings.json")


def _require_supported(launch: Launch) -> None:
    """Refuse what FSDP2, or this trainer on it, cannot do."""
    s, job, model = launch.predictor.strategy, launch.scenario.job, launch.scenario.model
    if job.optimizer == "adafactor":
        raise build_refusal("fsdp_adafactor", "job.optimizer", job.optimizer)
    if not s.communication.overlap_gradients:
        raise build_refusal("fsdp_overlap", "strategy.communication.overlap_gradients", False)
    if s.tp > 1 and model.qk_norm == "full":
        raise build_refusal("fsdp_qk_norm", "strategy.tp", s.tp)


def _list_sharding_options(launch: Launch) -> Iterator[Option]:
    predictor = launch.predictor
    s, communication, dp = predictor.strategy, predictor.strategy.communication, predictor.strategy.dp or 1
    shard_ranks = predictor.placed.shard_ranks
    params = {"sets": dp // shard_ranks, "shared": shard_ranks, "zones": len(launch.zones), "dp": dp}
    if s.pp > 1:
        yield build_argument(launch, "fully_shard(reshard_after_forward)", False, "fsdp_pipeline_weights")
    else:
        yield build_argument(launch, "fully_shard(reshard_after_forward)", s.zero == 3, f"zero_{s.zero}")
    if shard_ranks < dp:
        mesh = f"dp_replicate {dp // shard_ranks} x dp_shard {shard_ranks}"
        yield build_argument(launch, "fully_shard(mesh)", mesh, f"hsdp_{s.shard_within}", **params)
        if predictor.micro_batches > 1 and s.pp == 1:
            yield build_argument(launch, "set_requires_all_reduce", "last micro-batch", "hsdp_delay", **params)
    reduces_in_bf16 = (
        "bf16" in (communication.compression, communication.gradient_dtype)
        or launch.scenario.job.precision == "bf16-pure"
    )
    reduce_dtype = "bfloat16" if reduces_in_bf16 else "float32"
    yield build_argument(launch, "MixedPrecisionPolicy(reduce_dtype)", reduce_dtype, f"reduce_dtype_{reduce_dtype}")
    if communication.overlap_parameters:
        yield build_argument(launch, "set_modules_to_forward_prefetch", 1, "fsdp_prefetch")
    if s.offload != "none":
        yield build_argument(launch, "CPUOffloadPolicy", True, "fsdp_offload")


def _list_axis_options(launch: Launch) -> Iterator[Option]:
    s, job = launch.predictor.strategy, launch.scenario.job
    if s.tp > 1:
        yield build_argument(launch, "tensor parallel (DTensor)", s.tp, "fsdp_tp", tp=s.tp)
    if s.sequence_parallel:
        yield build_argument(launch, "sequence parallel", True, "fsdp_sequence_parallel", tp=s.tp)
    if s.communication.overlap_tensor:
        yield build_argument(launch, "torch._inductor.config._micro_pipeline_tp", True, "fsdp_tensor_overlap")
    if s.cp > 1:
        yield build_argument(launch, "context parallel", s.cp, "fsdp_cp", cp=s.cp, tokens=job.seq_len // s.cp)
    if s.pp > 1:
        layers = list(s.layers_per_stage or ())
        name = SCHEDULES[s.pipeline_schedule]
        yield build_argument(launch, "PipelineStage", s.pp, "fsdp_pp", pp=s.pp, interleave=s.interleave)
        yield build_argument(launch, "pipeline schedule", name, "fsdp_schedule", schedule=s.pipeline_schedule)
        if layers:
            yield build_argument(launch, "layers of each stage", layers, "fsdp_layers")
