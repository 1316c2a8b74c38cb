"""PyTorch FSDP2: sharded states, tensor, context and pipeline parallelism on one mesh; torchrun starts `train.py`."""

from __future__ import annotations

from collections.abc import Iterator

from crosszone.deploy.bundle import Option
from crosszone.deploy.launch import Agent, Launch, refused, torchrun
from crosszone.deploy.pytorch import argument, averaging_options, pytorch_options
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


def options(launch: Launch) -> tuple[Option, ...]:
    """What FSDP2, the mesh, the pipeline and the trainer are told."""
    _check(launch)
    return (*pytorch_options(launch), *_sharding(launch), *_axes(launch), *averaging_options(launch))


def files(launch: Launch) -> dict[str, str]:
    """Nothing beside the trainer: all of it stands in settings.json."""
    del launch
    return {}


def command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One torchrun."""
    return torchrun(launch, agent, "train.py", "settings.json")


def _check(launch: Launch) -> None:
    """Refuse what FSDP2, or this trainer on it, cannot do."""
    s, job, model = launch.predictor.strategy, launch.scenario.job, launch.scenario.model
    if job.optimizer == "adafactor":
        raise refused("fsdp_adafactor", "job.optimizer", job.optimizer)
    if not s.communication.overlap_gradients:
        raise refused("fsdp_overlap", "strategy.communication.overlap_gradients", False)
    if s.tp > 1 and model.qk_norm == "full":
        raise refused("fsdp_qk_norm", "strategy.tp", s.tp)


def _sharding(launch: Launch) -> Iterator[Option]:
    p = launch.predictor
    s, talk, dp = p.strategy, p.strategy.communication, p.strategy.dp or 1
    shared = p.site.shard_ranks
    sets = {"sets": dp // shared, "shared": shared, "zones": len(launch.zones), "dp": dp}
    if s.pp > 1:
        yield argument(launch, "fully_shard(reshard_after_forward)", False, "fsdp_pipeline_weights")
    else:
        yield argument(launch, "fully_shard(reshard_after_forward)", s.zero == 3, f"zero_{s.zero}")
    if shared < dp:
        mesh = f"dp_replicate {dp // shared} x dp_shard {shared}"
        yield argument(launch, "fully_shard(mesh)", mesh, f"hsdp_{s.shard_within}", **sets)
        if p.micro_batches > 1 and s.pp == 1:
            yield argument(launch, "set_requires_all_reduce", "last micro-batch", "hsdp_delay", **sets)
    halved = "bf16" in (talk.compression, talk.gradient_dtype) or launch.scenario.job.precision == "bf16-pure"
    reduced = "bfloat16" if halved else "float32"
    yield argument(launch, "MixedPrecisionPolicy(reduce_dtype)", reduced, f"reduce_dtype_{reduced}")
    if talk.overlap_parameters:
        yield argument(launch, "set_modules_to_forward_prefetch", 1, "fsdp_prefetch")
    if s.offload != "none":
        yield argument(launch, "CPUOffloadPolicy", True, "fsdp_offload")


def _axes(launch: Launch) -> Iterator[Option]:
    s, job = launch.predictor.strategy, launch.scenario.job
    if s.tp > 1:
        yield argument(launch, "tensor parallel (DTensor)", s.tp, "fsdp_tp", tp=s.tp)
    if s.sequence_parallel:
        yield argument(launch, "sequence parallel", True, "fsdp_sequence_parallel", tp=s.tp)
    if s.communication.overlap_tensor:
        yield argument(launch, "torch._inductor.config._micro_pipeline_tp", True, "fsdp_tensor_overlap")
    if s.cp > 1:
        yield argument(launch, "context parallel", s.cp, "fsdp_cp", cp=s.cp, tokens=job.seq_len // s.cp)
    if s.pp > 1:
        layers = list(s.layers_per_stage or ())
        name = SCHEDULES[s.pipeline_schedule]
        yield argument(launch, "PipelineStage", s.pp, "fsdp_pp", pp=s.pp, interleave=s.interleave)
        yield argument(launch, "pipeline schedule", name, "fsdp_schedule", schedule=s.pipeline_schedule)
        if layers:
            yield argument(launch, "layers of each stage", layers, "fsdp_layers")
