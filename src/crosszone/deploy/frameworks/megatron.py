"""Megatron-LM: torchrun starts its own pretrain_gpt.py through a hook that measures; flags stand in `megatron.args`.

MEGATRON_PATH names a checkout of NVIDIA/Megatron-LM on the nodes. Every flag is in `megatron_flags.yaml`, the list of
all flags of its parser at one commit, which scripts/megatron_flags.py makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from crosszone.deploy import megatron_flags as parallel
from crosszone.deploy.bundle import Option, build_option
from crosszone.deploy.launch import Agent, Launch, build_torchrun, unsupported
from crosszone.deploy.megatron_flags import build_model_options
from crosszone.deploy.program import build_trainer_settings
from crosszone.deploy.shell import Raw, comment, quoted
from crosszone.deploy.trainer.tiny import tiny
from crosszone.deploy.trainer_files import read_trainer_file
from crosszone.inputs.model import Model
from crosszone.text import label

# The flags, and those of the same kind of run shrunk to seconds (`--tiny`).
ARGUMENTS, TINY_ARGUMENTS = "megatron.args", "megatron-tiny.args"
HOOK, METRICS_FILE, DATA = "megatron_hook.py", "metrics_file.py", "megatron_data.py"
DATA_PREFIX = "megatron-data/tokens"  # Where megatron_data.py leaves tokens as Megatron reads them
CHECKPOINTS = "out/checkpoints"
TINY_STEPS = 5
PROGRAM = Raw('"${MEGATRON_PATH:?set MEGATRON_PATH to a checkout of NVIDIA/Megatron-LM}/pretrain_gpt.py"')
# Flags of each precision; weights stay bf16 and are cast in each step, as the plan counts them.
PRECISIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "fp32": (),
    "bf16": (("--bf16", True),),
    "fp16": (("--fp16", True),),
    "fp8": (("--bf16", True), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "mxfp8": (("--bf16", True), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--bf16", True), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
# Megatron's adam has decoupled weight decay, so it is AdamW.
OPTIMIZERS = {"adamw": "adam", "adam": "adam", "sgd": "sgd", "sgd-momentum": "sgd", "lion": "lion", "muon": "muon"}
# Work queues of a GPU: one keeps communication in the order it was launched; CUDA's own number.
ONE_CONNECTION, USUAL_CONNECTIONS = 1, 8


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """What differs between the planned run and a tiny one."""

    model: Model
    seq_len: int
    global_batch: int
    micro_batch: int
    micro_batches: int
    layers: tuple[int, ...]
    """Of each chunk, in pipeline order."""
    steps: int
    training: dict[str, Any]

    @classmethod
    def of(cls, settings: dict[str, Any], steps: int) -> RunShape:
        """The shape that a settings.json has."""
        job, strategy = settings["job"], settings["strategy"]
        return cls(
            model=Model(**settings["model"]),
            seq_len=job["seq_len"],
            global_batch=job["global_batch"],
            micro_batch=strategy["micro_batch"],
            micro_batches=strategy["micro_batches"],
            layers=tuple(strategy["chunk_layers"]),
            steps=steps,
            training=settings["training"],
        )


def build_options(launch: Launch) -> tuple[Option, ...]:
    """Everything pretrain_gpt.py is told, and how GPUs queue work."""
    sections = _list_sections(launch, RunShape.of(build_trainer_settings(launch), launch.steps))
    return (*(option for _, options_of_section in sections for option in options_of_section), *_list_variables(launch))


def build_files(launch: Launch) -> dict[str, str]:
    """The flags, the hook that starts and measures pretrain_gpt.py, and what prepares its data."""
    settings = build_trainer_settings(launch)
    tiny_shape = RunShape.of(tiny(settings), TINY_STEPS)
    texts = {
        ARGUMENTS: _render_arguments(launch, _list_sections(launch, RunShape.of(settings, launch.steps))),
        TINY_ARGUMENTS: _render_arguments(launch, _list_sections(launch, tiny_shape)),
        HOOK: read_trainer_file(HOOK),
        METRICS_FILE: read_trainer_file(METRICS_FILE),
    }
    return texts | ({DATA: read_trainer_file(DATA)} if launch.settings.data is not None else {})


def build_command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One torchrun."""
    return build_torchrun(launch, agent, HOOK, PROGRAM)


def _list_sections(launch: Launch, shape: RunShape) -> list[tuple[str, tuple[Option, ...]]]:
    """Flags under the title they stand together."""
    if launch.settings.init_from is not None:
        raise unsupported("megatron_init_from", "init_from", launch.settings.init_from)
    parallel.require_parallel(launch)
    s = launch.predictor.strategy
    model = build_model_options(shape.model, seq_len=shape.seq_len, tp=s.tp, ep=s.ep, language=launch.language)
    return [
        ("model", model),
        ("data", _explain_flags(launch, _list_data_flags(launch, shape))),
        ("batch", _explain_flags(launch, _list_batch_flags(launch, shape))),
        ("parallel", parallel.build_parallel_options(launch, shape.layers, shape.micro_batches)),
        ("communication", parallel.build_communication_options(launch)),
        ("memory", parallel.build_memory_options(launch)),
        ("run", _explain_flags(launch, _list_run_flags(launch, shape))),
    ]


def _explain_flags(launch: Launch, flags: Iterator[parallel.Flag]) -> tuple[Option, ...]:
    return tuple(
        build_option("flag", name, value, launch.language, key=f"megatron_{key}", **params)
        for name, value, key, params in flags
    )


def _list_data_flags(launch: Launch, shape: RunShape) -> Iterator[parallel.Flag]:
    yield "--seq-length", shape.seq_len, "seq_length", {}
    yield "--tokenizer-type", "NullTokenizer", "tokenizer", {}
    if launch.settings.data is None:
        yield "--mock-data", True, "mock_data", {}
    else:
        yield "--data-path", [DATA_PREFIX], "data_path", {"path": launch.settings.data, "script": DATA}
        yield "--split", "100,0,0", "split", {}
    yield "--no-create-attention-mask-in-dataloader", True, "no_mask", {}


def _list_batch_flags(launch: Launch, shape: RunShape) -> Iterator[parallel.Flag]:
    job, training = launch.scenario.job, shape.training
    dp = launch.predictor.strategy.dp or 1
    params = {"m": shape.micro_batches, "dp": dp, "batch": shape.global_batch, "micro": shape.micro_batch}
    yield "--global-batch-size", shape.global_batch, "global_batch", params
    yield "--micro-batch-size", shape.micro_batch, "micro_batch", params
    recipe = {"--fp8-recipe": job.fp8_recipe} if job.fp8_recipe else {}
    for name, value in PRECISIONS[job.precision]:
        yield name, recipe.get(name, value), "precision", {"precision": job.precision}
    yield "--optimizer", OPTIMIZERS[job.optimizer], "optimizer", {"optimizer": job.optimizer}
    if job.optimizer in ("adamw", "adam"):
        yield "--adam-beta1", training["beta1"], "training", {}
        yield "--adam-beta2", training["beta2"], "training", {}
        yield "--adam-eps", training["eps"], "training", {}
    elif job.optimizer in ("sgd", "sgd-momentum"):
        yield "--sgd-momentum", 0.9 if job.optimizer == "sgd-momentum" else 0.0, "training", {}
    yield "--weight-decay", training["weight_decay"], "training", {}
    yield "--clip-grad", training["clip"], "training", {}
    yield "--lr", training["lr"], "training", {}
    yield "--min-lr", min(training["min_lr"], training["lr"]), "training", {}
    yield "--lr-decay-style", "cosine", "training", {}
    yield "--lr-decay-iters", shape.steps, "training", {}
    yield "--lr-warmup-iters", min(training["warmup_steps"], shape.steps // 10), "training", {}


def _list_run_flags(launch: Launch, shape: RunShape) -> Iterator[parallel.Flag]:
    yield "--train-iters", shape.steps, "train_iters", {}
    yield "--eval-iters", 0, "no_eval", {}
    yield "--eval-interval", shape.steps, "no_eval", {}  # counted with even where no step of it is run
    yield "--seed", shape.training["seed"], "training", {}
    yield "--save", CHECKPOINTS, "checkpoints", {}
    yield "--load", CHECKPOINTS, "resume", {}
    yield "--save-interval", shape.training["checkpoint_every"], "save_interval", {}
    if parallel.get_zero_stage(launch) in parallel.FSDP_STRATEGIES:
        yield "--ckpt-format", "fsdp_dtensor", "fsdp_checkpoints", {}
    yield "--log-interval", 1, "log", {}
    yield "--log-throughput", True, "log", {}


def _list_variables(launch: Launch) -> Iterator[Option]:
    """CUDA_DEVICE_MAX_CONNECTIONS: validate_args asks for 1 with tp or cp before Blackwell, never with its FSDP."""
    s = launch.predictor.strategy
    has_older_gpus = any(group.gpu.architecture != "blackwell" for _, group in launch.scenario.cluster.groups())
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    if parallel.get_zero_stage(launch) in parallel.FSDP_STRATEGIES:
        yield build_option("variable", name, USUAL_CONNECTIONS, launch.language, key="megatron_connections_fsdp")
    elif (s.tp > 1 or s.cp > 1) and has_older_gpus:
        yield build_option("variable", name, ONE_CONNECTION, launch.language, key="megatron_connections")


def _render_arguments(launch: Launch, sections: Sequence[tuple[str, tuple[Option, ...]]]) -> str:
    """One flag a line as a shell would read it, its reason above it; equal reasons are said once."""
    lines = [comment(label("megatron_arguments", launch.language))]
    for title, options in sections:
        lines += ["", comment(label(f"megatron_section_{title}", launch.language), mark="## ")]
        previous_reason = ""
        for option in options:
            if option.why != previous_reason:
                lines.append(comment(option.why))
            previous_reason = option.why
            lines.append(format_flag(option))
    return "\n".join(lines) + "\n"


def format_flag(option: Option) -> str:
    """A flag with its value as a shell would read it."""
    values = [] if option.value is True else option.value if isinstance(option.value, list | tuple) else [option.value]
    return " ".join([option.name, *map(quoted, values)])
