"""Train with DeepSpeed: ZeRO 0 to 3, MiCS, pipelines and tensor parallelism (AutoTP), as ds_config.json says.

    bash nodes/000.sh                                  on each node, as the bundle's README says
    bash nodes/000.sh --tiny --steps 5                 the same kind of run in seconds, on GPUs or CPUs
    torchrun --standalone --nproc-per-node 2 train.py settings.json --tiny      a plan for two ranks on one machine

Written for DeepSpeed 0.19.6 and 0.19.8; MiCS and 1-bit optimizers exist up to 0.19.6 only.
Batch sizes come from settings.json (`--tiny` shrinks them), all else from ds_config.json.
Accumulation, reduction, clipping and sharding are the engine's; the learning rate and recomputation are ours.
"""

from __future__ import annotations

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
from checkpoint import about, clean, compare, complete, due, name_of, partial_of, prune, set_aside, steps_in
from data import batches
from metrics import Metrics
from model import build, initialise, load_huggingface, loss_of, read_config, recompute
from optimiser import Lamb, Lion, rate, set_rate
from run import Refusal, Run, guard, start
from torch import nn
from verify import unmet

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
    run = start(sys.argv[1:])
    deepspeed = import_deepspeed(run)
    config = read_config_file(run)
    checkpoints = Checkpoints(run, config)
    done = checkpoints.latest()
    pipelined = run.strategy["pp"] > 1
    module = staged(run, deepspeed, done) if pipelined else whole(run, deepspeed, config, done)
    client = None if "optimizer" in config else partial(own_optimizer, run)
    # AutoTP makes its groups later than the batch is checked: until then it is told how many replicas there are.
    mpu = SimpleNamespace(get_data_parallel_world_size=lambda: run.strategy["dp"]) if run.strategy["tp"] > 1 else None
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=client, model_parameters=groups(run, module), config=config, mpu=mpu
    )
    if run.strategy["tp"] > 1:
        number_heads(run, module)
    if in_sets(config):
        checkpoints.share(engine)
    if done is not None:
        checkpoints.load(engine, done)
    first = (done or 0) + 1
    data, metrics = batches(run, first_step=first), Metrics(run)
    one_step = pipeline_step if pipelined else plain_step
    if pipelined:
        watch(engine, metrics)
    for step in range(first, run.steps + 1):
        metrics.begin(step)
        lr = rate(run, step)
        set_rate(engine.optimizer, lr)
        balance(run, engine, module)
        loss = one_step(run, engine, data, metrics)
        total, asked = run.totals([loss, run.stop_asked])
        metrics.end(loss=total / run.world, lr=lr, grad_norm=engine.get_global_grad_norm())
        if due(run, step, asked > 0):
            checkpoints.save(engine, step)
        if asked:
            run.note(f"stopped as asked after step {step}")
            break
    engine.destroy()
    run.end()


# ---- one step ----


def plain_step(run: Run, engine: Any, data: Iterator[Any], metrics: Metrics) -> torch.Tensor:
    """The micro-batches of a step; the engine reduces and updates after the last. Returns this rank's mean loss."""
    total = torch.zeros((), device=run.device)
    for number in range(run.micro_batches):
        with metrics.span("data", micro_batch=number):
            inputs, targets = next(data)
        with metrics.span("forward", micro_batch=number):
            loss = loss_of(engine(inputs), targets)
        with metrics.span("backward", micro_batch=number):
            engine.backward(loss)
        if number + 1 == run.micro_batches:
            with metrics.span("optimizer"):
                engine.step()
        else:
            engine.step()
        total += loss.detach()
    return total / run.micro_batches


def pipeline_step(run: Run, engine: Any, data: Iterator[Any], metrics: Metrics) -> torch.Tensor:
    """One step of DeepSpeed's 1F1B schedule; the mean loss comes back on every rank."""
    del metrics
    if run.coordinates["pp"] not in (0, run.strategy["pp"] - 1):
        return engine.train_batch()
    return engine.train_batch(data_iter=data)


def watch(engine: Any, metrics: Metrics) -> None:
    """Have every instruction of the pipeline schedule measured."""

    def timed(kind: str, function: Any) -> Any:
        def instruction(self: Any, *args: Any, **kwargs: Any) -> Any:
            counted = sum(1 for span in metrics.spans if span[0] == kind)
            numbered = {"micro_batch": counted} if kind in ("forward", "backward") else {}
            with metrics.span(kind, **numbered):
                return function(self, *args, **kwargs)

        return instruction

    engine._INSTRUCTION_MAP = {
        command: timed(SPANS[command.__name__], function) if command.__name__ in SPANS else function
        for command, function in engine._INSTRUCTION_MAP.items()
    }


def balance(run: Run, engine: Any, module: nn.Module) -> None:
    """Weigh the experts' balancing loss as the engine weighs the loss: over micro-batches, times fp16's scale."""
    if run.model["moe"]:
        scale = engine.optimizer.loss_scale if engine.fp16_enabled() else 1.0
        for part in module.modules():
            if hasattr(part, "balance"):
                part.balance = BALANCE * scale / run.micro_batches


# ---- the model ----


def kept_dtype(run: Run) -> torch.dtype:
    """Type of the weights that are computed with: 16 bits beside an fp32 master copy, or fp32 (also under autocast)."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision(run), torch.float32)


def precision(run: Run) -> str:
    """The job's; DeepSpeed has no fp16 on CPUs, where bf16 stands for it."""
    planned = run.job["precision"]
    return "bf16" if planned == "fp16" and run.device.type == "cpu" else planned


def whole(run: Run, deepspeed: Any, config: dict[str, Any], done: int | None) -> nn.Module:
    """The whole model: on the device, under ZeRO-3 a shard of each weight, for AutoTP in the host's memory."""
    zero, tp = run.strategy["zero"], run.strategy["tp"]
    source = run.data["init_from"]
    if zero == 3:
        init = deepspeed.zero.MiCS_Init if in_sets(config) else deepspeed.zero.Init
        with init(config_dict_or_path=config):
            module = build(run.model, device=run.device)
        if in_sets(config):
            mend_sets(deepspeed, module)
    else:
        module = build(run.model, device="meta").to(kept_dtype(run))
    if source:
        read_config(module, source)
    if zero == 3 or tp > 1:
        if zero != 3:
            module.to_empty(device="cpu")
        parameters = dict(module.named_parameters())
        for name, values in pieces(run):
            if name in parameters:
                put(parameters[name], values)
    elif source and done is None:
        load_huggingface(module, source, device=run.device)
    else:
        initialise(module, run.seed, device=run.device)
    recompute(module, run.strategy["recompute"])
    return module


def in_sets(config: dict[str, Any]) -> bool:
    """States are sharded over sets of replicas (MiCS), not over all."""
    return "mics_shard_size" in config["zero_optimization"]


def mend_sets(deepspeed: Any, module: nn.Module) -> None:
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
def pieces(run: Run) -> Iterator[tuple[str, torch.Tensor]]:
    """First values of every parameter, one layer at a time, so that no rank ever holds the whole model."""
    ends = [{"layers": [], "first": True, "last": False}, {"layers": [], "first": False, "last": True}]
    middle = [{"layers": [layer], "first": False, "last": False} for layer in range(run.model["layers"])]
    for part in (*ends, *middle):
        piece = build(run.model, device="meta", **part)
        if run.data["init_from"]:
            load_huggingface(piece, run.data["init_from"], device=run.device)
        else:
            initialise(piece, run.seed, device=run.device)
        yield from piece.named_parameters()


@torch.no_grad()
def put(parameter: nn.Parameter, values: torch.Tensor) -> None:
    """Set a parameter; of one that ZeRO-3 has cut only this rank's part, without communication."""
    if not hasattr(parameter, "ds_tensor"):
        parameter.copy_(values)
        return
    size = parameter.ds_tensor.numel()
    first = size * dist.get_rank(parameter.ds_process_group)
    own = values.flatten()[first : first + size]
    parameter.ds_tensor.data[: own.numel()].copy_(own)


class Stage(nn.Module):
    """The layers of one pipeline stage, made on the rank that holds it."""

    def __init__(self, run: Run, stage: int, done: int | None) -> None:
        super().__init__()
        counts = run.strategy["chunk_layers"]
        before, last = sum(counts[:stage]), stage == len(counts) - 1
        layers = list(range(before, before + counts[stage]))
        part = build(run.model, layers=layers, first=stage == 0, last=last).to(kept_dtype(run))
        source = run.data["init_from"]
        if source and done is None:
            load_huggingface(part, source, device=run.device)
        else:
            initialise(part, run.seed, device=run.device)
            if source:
                read_config(part, source)
        recompute(part, run.strategy["recompute"])
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens or hidden states in, hidden states or logits out."""
        return self.part(x)


def staged(run: Run, deepspeed: Any, done: int | None) -> nn.Module:
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
            spec = deepspeed.pipe.TiedLayerSpec("table", Stage, run, stage, done, tied_weight_attr=weight)
        else:
            spec = deepspeed.pipe.LayerSpec(Stage, run, stage, done)
        specs.append(spec)
    module = deepspeed.pipe.PipelineModule(specs, topology=topology, loss_fn=loss_of, partition_method="uniform")
    for name, parameter in module.named_parameters():
        # For the norm of the gradient: what lies on one stage only counts there, a tied table on the first alone.
        # DeepSpeed would take all of a tied stage for a copy, and without ZeRO count the first stage only.
        copy = tied and run.coordinates["pp"] == count - 1 and name.endswith("part.head.weight")
        parameter.ds_pipe_replicated, parameter.model_parallel = copy, not copy
    return module


def number_heads(run: Run, module: nn.Module) -> None:
    """Tell attention that AutoTP has cut which heads it has."""
    first = run.coordinates["tp"] * run.model["heads"] // run.strategy["tp"]
    for block in module.layers.values():
        block.attention.first_head = first


def groups(run: Run, module: nn.Module) -> list[dict[str, Any]]:
    """Matrices, which decay, and the rest, which does not; ZeRO-3 keeps the shape of a cut parameter aside."""
    parameters = [one for one in module.parameters() if one.requires_grad]
    wide = [one for one in parameters if len(getattr(one, "ds_shape", one.shape)) >= 2]
    known = {id(one) for one in wide}
    rest = [one for one in parameters if id(one) not in known]
    found = [{"params": wide, "weight_decay": run.training["weight_decay"]}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in found if group["params"]]


def own_optimizer(run: Run, parameters: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """An optimizer that DeepSpeed does not have, or only with kernels to be compiled."""
    kind, training = run.job["optimizer"], run.training
    lr, betas = training["lr"], (training["beta1"], training["beta2"])
    if kind == "lion":
        return Lion(parameters, lr=lr, betas=betas)
    if kind == "lamb":
        return Lamb(parameters, lr=lr, betas=betas, eps=max(training["eps"], 1e-6))
    if kind == "adafactor":
        return torch.optim.Adafactor(parameters, lr=lr)
    raise Refusal(f"ds_config.json names no optimizer, and the trainer has no {kind}; generate the bundle again")


# ---- DeepSpeed and its configuration ----


def import_deepspeed(run: Run) -> Any:
    """DeepSpeed for this run's device, joined to the process group that there is."""
    os.environ["DS_ACCELERATOR"] = run.device.type
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    # Its collectives are called by names that torch is about to rename.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    try:
        import deepspeed
    except ImportError as error:
        raise Refusal(f"DeepSpeed cannot be imported ({error}); pip install deepspeed==0.19.6", here=True) from None
    missing = unmet(run.settings.get("requires", {}))
    if run.device.type == "cpu":
        missing.pop("cupy", None)  # fit_cpu leaves out what would need it
    if missing:
        raise Refusal("; ".join(f"{name}: {told}" for name, told in missing.items()), here=True)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if run.device.type == "cpu":
        # A shortcut through shared memory that would be compiled first and serves inference only.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=run.backend, auto_mpi_discovery=False, verbose=False)
    return deepspeed


def read_config_file(run: Run) -> dict[str, Any]:
    """ds_config.json beside settings.json, with this run's batch, and without what a CPU has no kernels for."""
    path = Path(run.args.settings).with_name("ds_config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"cannot read {path}: {error}; generate the bundle again", here=True) from None
    config["train_micro_batch_size_per_gpu"] = run.strategy["micro_batch"]
    config["gradient_accumulation_steps"] = run.micro_batches
    config["train_batch_size"] = run.strategy["micro_batch"] * run.micro_batches * run.strategy["dp"]
    if "optimizer" in config:
        config["optimizer"]["params"]["lr"] = run.training["lr"]
        if run.tiny and "freeze_step" in config["optimizer"]["params"]:
            config["optimizer"]["params"]["freeze_step"] = 2  # so that a few steps show the compressed ones
    if in_sets(config):
        config["zero_optimization"]["mics_shard_size"] = run.strategy["shard_ranks"]
        if run.strategy["shard_ranks"] == run.world:
            del config["zero_optimization"]["mics_shard_size"]
    if run.device.type == "cpu":
        fit_cpu(run, config)
    return config


def fit_cpu(run: Run, config: dict[str, Any]) -> None:
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
        run.note(f"on CPUs without {', '.join(dropped)}: DeepSpeed has it for GPUs only")


# ---- checkpoints ----


class Checkpoints:
    """DeepSpeed's checkpoints, written to a partial folder that gets its name when all ranks are done.

    Where every rank's model is whole or cut by ZeRO alone, each launcher process keeps a folder of its own: nodes need
    not share one. DeepSpeed writes stages and tensor shards once only, so that then all nodes must share `--out`.
    """

    def __init__(self, run: Run, config: dict[str, Any]) -> None:
        self.run = run
        self.apart = bool(config.get("checkpoint", {}).get("use_node_local_storage"))
        own = f"from-rank-{run.rank - run.local_rank:05d}" if self.apart else "all-ranks"
        self.folder = run.out / "checkpoints" / own
        self.leads = run.local_rank == 0 if self.apart else run.rank == 0
        if self.leads:
            if run.args.no_resume:
                set_aside(self.folder)
            clean(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        run.barrier()
        if not self.apart and not all(run.gathered(self.folder.is_dir())):
            run.note(f"nodes do not share {run.out}: its checkpoints cannot be resumed from; give another --out")

    def latest(self) -> int | None:
        """The newest checkpoint that every rank has."""
        known = self.run.gathered(set(steps_in(self.folder)))
        return max(set.intersection(*known), default=None)

    def share(self, engine: Any) -> None:
        """Have every launcher process keep all of its sets' states: DeepSpeed itself writes the first set's only."""
        own = self.run.gathered((str(self.folder), dist.get_rank(engine.optimizer.dp_process_group)))
        writes = own.index(own[self.run.rank]) == self.run.rank
        engine.save_zero_checkpoint = engine.save_non_zero_checkpoint = writes

    def load(self, engine: Any, step: int) -> None:
        """Go on from a checkpoint."""
        folder = self.folder / name_of(step)
        compare(self.run, folder)
        path, _ = engine.load_checkpoint(str(self.folder), tag=folder.name)
        if path is None:
            raise Refusal(f"the checkpoint {folder} cannot be loaded; delete it, or use --no-resume", here=True)
        self.run.note(f"resumed after step {step}")

    def save(self, engine: Any, step: int) -> None:
        """Write a checkpoint; what was there before stays until this one is complete."""
        if (self.folder / name_of(step)).exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        engine.save_checkpoint(str(self.folder), tag=partial_of(self.folder, step).name, save_latest=False)
        self.run.barrier()
        if self.leads:
            complete(self.folder, step, about(self.run))
            prune(self.folder, self.run.training["keep"])
        self.run.barrier()


if __name__ == "__main__":
    guard(main)
