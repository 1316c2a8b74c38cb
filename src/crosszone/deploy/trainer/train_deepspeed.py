"""Train with DeepSpeed: ZeRO 0 to 3, MiCS, pipelines and tensor parallelism (AutoTP), as ds_config.json says.

    bash nodes/000.sh                                  on each node, as the bundle's README says
    bash nodes/000.sh --tiny --steps 5                 the same kind of run in seconds, on GPUs or CPUs
    torchrun --standalone --nproc-per-node 2 train.py settings.json --tiny      a plan for two ranks on one machine

Written for DeepSpeed 0.19.6 and 0.19.8; MiCS and 1-bit optimizers exist up to 0.19.6 only.
Batch sizes come from settings.json (`--tiny` shrinks them), all else from ds_config.json.
Accumulation, reduction, clipping and sharding are the engine's; the learning rate and recomputation are ours.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from checkpoint import (
    check_same_run,
    describe_run,
    finish_checkpoint,
    format_step_name,
    get_partial_folder,
    list_steps,
    move_aside,
    remove_old_checkpoints,
    remove_partial_checkpoints,
)
from loop import FrameworkTrainer, train
from metrics import StepMetrics
from model import build, compute_loss, init_weights, load_huggingface, read_config, set_recompute
from optimiser import create_optimizer, group_by_decay
from run import Refusal, TrainerRun, run_guarded, start_run
from torch import nn
from verify import find_unmet

AXES = {"pp": "pipe", "dp": "data", "tp": "model"}  # DeepSpeed's names of the axes
BALANCE = 0.01  # Weight of the experts' balancing loss (Switch Transformer, arXiv 2101.03961)
# What each instruction of DeepSpeed's pipeline schedule is in the metrics.
SPANS = {
    "LoadMicroBatch": "data",
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "SendActivation": "send",
    "RecvActivation": "send",
    "SendGrad": "send",
    "RecvGrad": "send",
    "ReduceGrads": "gradients",
    "ReduceTiedGrads": "gradients",
    "OptimizerStep": "optimizer",
}


def main() -> None:
    """Train."""
    run = start_run(sys.argv[1:])
    deepspeed = import_deepspeed(run)
    trainer = DeepSpeedTrainer(run, deepspeed, read_config_file(run))
    train(trainer)
    trainer.model.destroy()
    run.end()


class DeepSpeedTrainer(FrameworkTrainer):
    """DeepSpeed's engine does the optimizer step, and with a pipeline the whole step."""

    def __init__(self, run: TrainerRun, deepspeed: Any, config: dict[str, Any]) -> None:
        self.checkpoints = DeepSpeedCheckpoints(run, config)
        done, tp = self.checkpoints.find_latest(), run.strategy["tp"]
        self.is_pipelined = run.strategy["pp"] > 1
        build_module = build_pipeline if self.is_pipelined else partial(build_whole_model, config=config)
        self.module = build_module(run, deepspeed, done)
        client = None if "optimizer" in config else partial(build_own_optimizer, run)
        # AutoTP makes its groups later than the batch is checked: until then it is told how many replicas there are.
        mpu = SimpleNamespace(get_data_parallel_world_size=lambda: run.strategy["dp"]) if tp > 1 else None
        parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        groups = group_by_decay(parameters, run.training["weight_decay"])
        engine, *_ = deepspeed.initialize(
            model=self.module, optimizer=client, model_parameters=groups, config=config, mpu=mpu
        )
        if tp > 1:
            set_first_heads(run, self.module)
        if is_mics(config):
            self.checkpoints.save_on_each_process(engine)
        if done is not None:
            self.checkpoints.load(engine, done)
        super().__init__(run, engine, engine.optimizer, done or 0)
        if self.is_pipelined:
            time_pipeline(engine, self.metrics)

    def compute_gradients(self) -> torch.Tensor:
        """The whole step: the engine updates after the last micro-batch; a pipeline gives its mean on all ranks."""
        set_balance(self.run, self.model, self.module)
        if not self.is_pipelined:
            return self.run_micro_batches() / self.run.micro_batches / self.run.world
        if self.run.coordinates["pp"] in (0, self.run.strategy["pp"] - 1):
            return self.model.train_batch(data_iter=self.batches) / self.run.world
        return self.model.train_batch() / self.run.world

    def run_forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The engine casts by itself."""
        return compute_loss(self.model(inputs), targets)

    def run_backward(self, loss: torch.Tensor, number: int) -> None:
        """The engine counts its steps and updates at the last one of a batch."""
        with self.metrics.record_span("backward", micro_batch=number):
            self.model.backward(loss)
        is_last = number == self.run.micro_batches - 1
        with self.metrics.record_span("optimizer") if is_last else contextlib.nullcontext():
            self.model.step()

    def apply_gradients(self) -> Any:
        """The engine has: the norm of what it applied."""
        return self.model.get_global_grad_norm()

    def save(self, step: int) -> None:
        """By the engine."""
        self.checkpoints.save(self.model, step)

    def get_checkpoint_path(self, step: int) -> Path:
        """A folder of DeepSpeed's own files."""
        return self.checkpoints.folder / format_step_name(step)


def time_pipeline(engine: Any, metrics: StepMetrics) -> None:
    """Have every instruction of the pipeline schedule measured."""

    def wrap_instruction(kind: str, function: Any) -> Any:
        def run_timed(self: Any, *args: Any, **kwargs: Any) -> Any:
            count = sum(1 for span in metrics.spans if span[0] == kind)
            about = {"micro_batch": count} if kind in ("forward", "backward") else {}
            with metrics.record_span(kind, **about):
                return function(self, *args, **kwargs)

        return run_timed

    engine._INSTRUCTION_MAP = {
        command: wrap_instruction(SPANS[command.__name__], function) if command.__name__ in SPANS else function
        for command, function in engine._INSTRUCTION_MAP.items()
    }


def set_balance(run: TrainerRun, engine: Any, module: nn.Module) -> None:
    """Weigh the experts' balancing loss as the engine weighs the loss: over micro-batches, times fp16's scale."""
    if run.model["moe"]:
        scale = engine.optimizer.loss_scale if engine.fp16_enabled() else 1.0
        for part in module.modules():
            if hasattr(part, "balance"):
                part.balance = BALANCE * scale / run.micro_batches


# ---- the model ----


def get_weight_dtype(run: TrainerRun) -> torch.dtype:
    """Type of the weights that are computed with: 16 bits beside an fp32 master copy, or fp32 (also under autocast)."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(get_precision(run), torch.float32)


def get_precision(run: TrainerRun) -> str:
    """The job's; DeepSpeed has no fp16 on CPUs, where bf16 stands for it."""
    planned = run.job["precision"]
    return "bf16" if planned == "fp16" and run.device.type == "cpu" else planned


def build_whole_model(run: TrainerRun, deepspeed: Any, done: int | None, config: dict[str, Any]) -> nn.Module:
    """The whole model: on the device, under ZeRO-3 a shard of each weight, for AutoTP in the host's memory."""
    zero, tp = run.strategy["zero"], run.strategy["tp"]
    source = run.data["init_from"]
    if zero == 3:
        init = deepspeed.zero.MiCS_Init if is_mics(config) else deepspeed.zero.Init
        with init(config_dict_or_path=config):
            module = build(run.model, device=run.device)
        if is_mics(config):
            patch_mics(deepspeed, module)
    else:
        module = build(run.model, device="meta").to(get_weight_dtype(run))
    if source:
        read_config(module, source)
    if zero == 3 or tp > 1:
        if zero != 3:
            module.to_empty(device="cpu")
        parameters = dict(module.named_parameters())
        for name, values in iter_first_values(run):
            if name in parameters:
                set_parameter(parameters[name], values)
    elif source and done is None:
        load_huggingface(module, source, device=run.device)
    else:
        init_weights(module, run.seed, device=run.device)
    set_recompute(module, run.strategy["recompute"])
    return module


def is_mics(config: dict[str, Any]) -> bool:
    """States are sharded over sets of replicas (MiCS), not over all."""
    return "mics_shard_size" in config["zero_optimization"]


def patch_mics(deepspeed: Any, module: nn.Module) -> None:
    """Mend MiCS of DeepSpeed 0.19.6, the last release that has it.

    It cuts weights over a set, but would reduce gradients over all ranks into pieces of another size. Its own gather
    starts collectives that nothing waits for (with torch 2.1 and newer); ZeRO-3's works in a set too. Its way to read
    a checkpoint is called with an argument that it does not take; ZeRO-3's reads it.
    """
    from deepspeed.runtime.zero.mics import MiCS_Optimizer

    for parameter in module.parameters():
        parameter.ds_process_group = parameter.comm.param_shard_group
        parameter.ds_zero_partition_rank = parameter.comm.param_shard_rank
        parameter.ds_zero_partition_world_size = parameter.comm.param_shard_size
    deepspeed.comm.comm.cdb.has_coalescing_manager = False
    MiCS_Optimizer.load_state_dict = super(MiCS_Optimizer, MiCS_Optimizer).load_state_dict


@torch.no_grad()
def iter_first_values(run: TrainerRun) -> Iterator[tuple[str, torch.Tensor]]:
    """First values of every parameter, one layer at a time, so that no rank ever holds the whole model."""
    ends = [{"layers": [], "first": True, "last": False}, {"layers": [], "first": False, "last": True}]
    middle = [{"layers": [layer], "first": False, "last": False} for layer in range(run.model["layers"])]
    for part in (*ends, *middle):
        piece = build(run.model, device="meta", **part)
        if run.data["init_from"]:
            load_huggingface(piece, run.data["init_from"], device=run.device)
        else:
            init_weights(piece, run.seed, device=run.device)
        yield from piece.named_parameters()


@torch.no_grad()
def set_parameter(parameter: nn.Parameter, values: torch.Tensor) -> None:
    """Set a parameter; of one that ZeRO-3 has cut only this rank's part, without communication."""
    if not hasattr(parameter, "ds_tensor"):
        parameter.copy_(values)
        return
    size = parameter.ds_tensor.numel()
    first = size * dist.get_rank(parameter.ds_process_group)
    local_values = values.flatten()[first : first + size]
    parameter.ds_tensor.data[: local_values.numel()].copy_(local_values)


class PipelineStageModel(nn.Module):
    """The layers of one pipeline stage, made on the rank that holds it."""

    def __init__(self, run: TrainerRun, stage: int, done: int | None) -> None:
        super().__init__()
        counts = run.strategy["chunk_layers"]
        before, last = sum(counts[:stage]), stage == len(counts) - 1
        layers = list(range(before, before + counts[stage]))
        part = build(run.model, layers=layers, first=stage == 0, last=last).to(get_weight_dtype(run))
        source = run.data["init_from"]
        if source and done is None:
            load_huggingface(part, source, device=run.device)
        else:
            init_weights(part, run.seed, device=run.device)
            if source:
                read_config(part, source)
        set_recompute(part, run.strategy["recompute"])
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens or hidden states in, hidden states or logits out."""
        return self.part(x)


def build_pipeline(run: TrainerRun, deepspeed: Any, done: int | None) -> nn.Module:
    """The model as a pipeline: one LayerSpec a stage, so that stages hold the planned layers, on the planned ranks."""
    from deepspeed.runtime.pipe.topology import ProcessTopology

    # DeepSpeed counts the last axis fastest, settings.json the first.
    axes = [axis for axis in reversed(run.settings["order"]) if axis in AXES]
    topology = ProcessTopology(axes=[AXES[axis] for axis in axes], dims=[run.strategy[axis] for axis in axes])
    count, tied = run.strategy["pp"], run.model["tied_embeddings"]
    specs = []
    for stage in range(count):
        if tied and stage in (0, count - 1):
            weight = "part.embed.weight" if stage == 0 else "part.head.weight"
            spec = deepspeed.pipe.TiedLayerSpec("table", PipelineStageModel, run, stage, done, tied_weight_attr=weight)
        else:
            spec = deepspeed.pipe.LayerSpec(PipelineStageModel, run, stage, done)
        specs.append(spec)
    module = deepspeed.pipe.PipelineModule(specs, topology=topology, loss_fn=compute_loss, partition_method="uniform")
    for name, parameter in module.named_parameters():
        # For the norm of the gradient: what lies on one stage only counts there, a tied table on the first alone.
        # DeepSpeed would take all of a tied stage for a copy, and without ZeRO count the first stage only.
        copy = tied and run.coordinates["pp"] == count - 1 and name.endswith("part.head.weight")
        parameter.ds_pipe_replicated, parameter.model_parallel = copy, not copy
    return module


def set_first_heads(run: TrainerRun, module: nn.Module) -> None:
    """Tell attention that AutoTP has cut which heads it has."""
    first = run.coordinates["tp"] * run.model["heads"] // run.strategy["tp"]
    for block in module.layers.values():
        block.attention.first_head = first


def build_own_optimizer(run: TrainerRun, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """An optimizer that DeepSpeed does not have, or only with kernels to be compiled."""
    kind = run.job["optimizer"]
    if kind not in ("lion", "lamb", "adafactor"):
        raise Refusal(f"ds_config.json names no optimizer, and the trainer has no {kind}; generate the bundle again")
    return create_optimizer(run, groups)


# ---- DeepSpeed and its configuration ----


def import_deepspeed(run: TrainerRun) -> Any:
    """DeepSpeed for this run's device, joined to the process group that there is."""
    os.environ["DS_ACCELERATOR"] = run.device.type
    defaults = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # Its collectives are called by names that torch is about to rename.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    try:
        import deepspeed
    except ImportError as error:
        raise Refusal(
            f"DeepSpeed cannot be imported ({error}); pip install deepspeed==0.19.6", this_machine=True
        ) from None
    missing = find_unmet(run.settings.get("requires", {}))
    if run.device.type == "cpu":
        missing.pop("cupy", None)  # fit_cpu leaves out what would need it
    if missing:
        raise Refusal("; ".join(f"{name}: {remedy}" for name, remedy in missing.items()), this_machine=True)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if run.device.type == "cpu":
        # A shortcut through shared memory that would be compiled first and serves inference only.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=run.backend, auto_mpi_discovery=False, verbose=False)
    return deepspeed


def read_config_file(run: TrainerRun) -> dict[str, Any]:
    """ds_config.json beside settings.json, with this run's batch, and without what a CPU has no kernels for."""
    path = Path(run.args.settings).with_name("ds_config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"cannot read {path}: {error}; generate the bundle again", this_machine=True) from None
    config["train_micro_batch_size_per_gpu"] = run.strategy["micro_batch"]
    config["gradient_accumulation_steps"] = run.micro_batches
    config["train_batch_size"] = run.strategy["micro_batch"] * run.micro_batches * run.strategy["dp"]
    if "optimizer" in config:
        config["optimizer"]["params"]["lr"] = run.training["lr"]
        if run.tiny and "freeze_step" in config["optimizer"]["params"]:
            config["optimizer"]["params"]["freeze_step"] = 2  # so that a few steps show the compressed ones
    if is_mics(config):
        config["zero_optimization"]["mics_shard_size"] = run.strategy["shard_ranks"]
        if run.strategy["shard_ranks"] == run.world:
            del config["zero_optimization"]["mics_shard_size"]
    if run.device.type == "cpu":
        drop_gpu_options(run, config)
    return config


def drop_gpu_options(run: TrainerRun, config: dict[str, Any]) -> None:
    """Leave out what needs a GPU, and say so."""
    zero = config["zero_optimization"]
    dropped = [key for key in ("zero_quantized_weights", "zero_quantized_gradients") if zero.pop(key, None)]
    dropped += [key for key in ("offload_optimizer", "offload_param") if zero.pop(key, None)]
    if config.pop("fp16", None):
        config["bf16"] = {"enabled": True}
        dropped.append("fp16 (bf16 instead)")
    if config.get("communication_data_type") == "fp16":
        config["communication_data_type"] = "bf16"
    one_bit = config.get("optimizer", {}).get("type", "").startswith("OneBit")
    if one_bit:
        config["optimizer"]["type"] = "Adam"
        for key in ("freeze_step", "comm_backend_name"):
            del config["optimizer"]["params"][key]
        dropped.append("1-bit compression")
    if one_bit and run.job["optimizer"] == "lamb":
        del config["optimizer"]
    if config.get("optimizer", {}).get("type") in ("Adam", "AdamW", "Muon"):
        config["optimizer"]["params"]["torch_adam"] = True
    if config.get("optimizer", {}).get("type") == "Lion":
        del config["optimizer"]
        config["zero_allow_untested_optimizer"] = True
    if dropped:
        run.print_note(f"on CPUs without {', '.join(dropped)}: DeepSpeed has it for GPUs only")


# ---- checkpoints ----


class DeepSpeedCheckpoints:
    """DeepSpeed's checkpoints, written to a partial folder that gets its name when all ranks are done.

    Where every rank's model is whole or cut by ZeRO alone, each launcher process keeps a folder of its own: nodes need
    not share one. DeepSpeed writes stages and tensor shards once only, so that then all nodes must share `--out`.
    """

    def __init__(self, run: TrainerRun, config: dict[str, Any]) -> None:
        self.run = run
        self.is_node_local = bool(config.get("checkpoint", {}).get("use_node_local_storage"))
        folder_name = f"from-rank-{run.rank - run.local_rank:05d}" if self.is_node_local else "all-ranks"
        self.folder = run.out / "checkpoints" / folder_name
        self.leads = run.local_rank == 0 if self.is_node_local else run.rank == 0
        if self.leads:
            if run.args.no_resume:
                move_aside(self.folder)
            remove_partial_checkpoints(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        run.wait_for_ranks()
        if not self.is_node_local and not all(run.gather_objects(self.folder.is_dir())):
            run.print_note(f"nodes do not share {run.out}: its checkpoints cannot be resumed from; give another --out")

    def find_latest(self) -> int | None:
        """The newest checkpoint that every rank has."""
        steps_by_rank = self.run.gather_objects(set(list_steps(self.folder)))
        return max(set.intersection(*steps_by_rank), default=None)

    def save_on_each_process(self, engine: Any) -> None:
        """Have every launcher process keep all of its sets' states: DeepSpeed itself writes the first set's only."""
        writers = self.run.gather_objects((str(self.folder), dist.get_rank(engine.optimizer.dp_process_group)))
        writes = writers.index(writers[self.run.rank]) == self.run.rank
        engine.save_zero_checkpoint = engine.save_non_zero_checkpoint = writes

    def load(self, engine: Any, step: int) -> None:
        """Go on from a checkpoint."""
        folder = self.folder / format_step_name(step)
        check_same_run(self.run, folder)
        path, _ = engine.load_checkpoint(str(self.folder), tag=folder.name)
        if path is None:
            raise Refusal(f"the checkpoint {folder} cannot be loaded; delete it, or use --no-resume", this_machine=True)
        self.run.print_note(f"resumed after step {step}")

    def save(self, engine: Any, step: int) -> None:
        """Write a checkpoint; what was there before stays until this one is complete."""
        if (self.folder / format_step_name(step)).exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        engine.save_checkpoint(str(self.folder), tag=get_partial_folder(self.folder, step).name, save_latest=False)
        self.run.wait_for_ranks()
        if self.leads:
            finish_checkpoint(self.folder, step, describe_run(self.run))
            remove_old_checkpoints(self.folder, self.run.training["keep"])
        self.run.wait_for_ranks()


if __name__ == "__main__":
    run_guarded(main)
