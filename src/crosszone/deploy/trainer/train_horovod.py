"""Train with Horovod: every rank a whole replica, gradients averaged while the backward pass runs.

    bash nodes/000.sh                          on the first node: horovodrun reaches the others by ssh
    bash nodes/000.sh --tiny --steps 5         the same kind of run in seconds
    python3 train.py settings.json --tiny      one process; the replicas' micro-batches one after the other

Started again, it goes on from the last checkpoint in --out (see `python3 train.py --help`).
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import Any

import torch
from checkpoint import (
    get_random_state,
    is_checkpoint_due,
    list_steps,
    load_alone,
    move_aside,
    remove_partial_checkpoints,
    restore_random_state,
    save_alone,
)
from data import iter_batches
from metrics import StepMetrics
from model import build, compute_loss, init_weights, load_huggingface, set_recompute
from optimiser import OptimizerGroup, build_optimizer, clip_gradients, compute_rate, set_learning_rate
from run import Refusal, TrainerRun, run_guarded, start_run


def main() -> None:
    """Train as settings.json says."""
    hvd = import_horovod()
    hvd.init()
    run = start_run(sys.argv[1:], distributed=False, rank=hvd.rank(), world=hvd.size(), local_rank=hvd.local_rank())
    model = init_weights(build(run.model), run.seed, run.device).to(run.weight_dtype)
    if run.data["init_from"]:
        load_huggingface(model, run.data["init_from"])
    set_recompute(model, run.strategy["recompute"])
    optimizer = wrap_optimizer(hvd, run, model, build_optimizer(run, model))
    scaler = torch.amp.GradScaler(run.device.type, enabled=run.job["precision"] == "fp16")
    first = resume(hvd, run, model, optimizer, scaler)
    data, count = iter_batches(run, first), run.micro_batches
    hvd.barrier()
    metrics = StepMetrics(run)
    for step in range(first, run.steps + 1):
        metrics.begin(step)
        set_learning_rate(optimizer, compute_rate(run, step))
        total = torch.zeros((), device=run.device)
        for number in range(count):
            with metrics.record_span("data", micro_batch=number):
                inputs, targets = next(data)
            with metrics.record_span("forward", micro_batch=number), run.apply_autocast():
                loss = compute_loss(model(inputs), targets) / count
            with metrics.record_span("backward", micro_batch=number):
                scaler.scale(loss).backward()
            total += loss.detach()
        with metrics.record_span("gradients"):
            for part in optimizer.optimizers:
                part.synchronize()
        with metrics.record_span("optimizer"):
            norm = apply_gradients(model, optimizer, scaler, run.training["clip"])
        row = metrics.close()
        # One small reduction carries the loss and whether any rank was asked to stop.
        sums = torch.stack([total.double(), torch.tensor(float(run.stop_asked)).to(total)])
        mean, stop = hvd.allreduce(sums, name="loss", op=hvd.Average).tolist()
        metrics.write(row, loss=mean, lr=optimizer.param_groups[0]["lr"], grad_norm=norm)
        if is_checkpoint_due(run, step, stop > 0):
            save(run, step, model, optimizer, scaler)
            hvd.barrier()
        if stop > 0:
            run.print_note(f"asked to stop: saved after step {step}")
            break
    hvd.shutdown()


def import_horovod() -> ModuleType:
    """Horovod's PyTorch part; a `Refusal` where it is missing or was built without it."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise Refusal(f"Horovod is not installed for this Python ({error}); {INSTALL}") from None
    if not hasattr(hvd, "init"):
        raise Refusal(f"Horovod was built without its PyTorch extension; {INSTALL}")
    return hvd


INSTALL = (
    "build 0.28.1 with HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_GPU_OPERATIONS=NCCL and CMAKE_CXX_STANDARD "
    "raised to 17 or more (PyTorch 2.1 and later), or make the bundle for --framework ddp"
)


def wrap_optimizer(hvd: ModuleType, run: TrainerRun, model: torch.nn.Module, optimizer: Any) -> OptimizerGroup:
    """The optimizer, each part of it wrapped so that its gradients are averaged over all ranks."""
    talk, count = run.strategy["communication"], run.micro_batches
    half = "fp16" in (talk["compression"], talk["gradient_dtype"])
    # Reductions start in the backward pass that completes this many; with one more than there are, they wait for
    # synchronize(), which is after the last.
    passes = count if talk["overlap_gradients"] else count + 1
    wrapped = []
    for inner in getattr(optimizer, "optimizers", (optimizer,)):
        parameter_ids = {id(parameter) for group in inner.param_groups for parameter in group["params"]}
        wrapped.append(
            hvd.DistributedOptimizer(
                make_copyable(inner),
                named_parameters=[item for item in model.named_parameters() if id(item[1]) in parameter_ids],
                compression=hvd.Compression.fp16 if half else hvd.Compression.none,
                backward_passes_per_step=passes,
                op=hvd.Average,
            )
        )
    return OptimizerGroup(*wrapped)


def make_copyable(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer as Horovod needs it: it makes one of the same class from parameter groups alone, and steps it with
    a closure. torch's own can be made so; ours get a class that can.
    """
    kind = type(optimizer)
    if kind.__module__.startswith("torch."):
        return optimizer
    defaults = dict(optimizer.defaults)

    def made(self: Any, params: Any) -> None:
        kind.__init__(self, params, **defaults)

    def step(self: Any, closure: Any = None) -> None:
        del closure
        kind.step(self)

    optimizer.__class__ = type(kind.__name__, (kind,), {"__init__": made, "step": step})
    return optimizer


def apply_gradients(model: torch.nn.Module, optimizer: OptimizerGroup, scaler: Any, limit: float) -> torch.Tensor:
    """Clip and apply the averaged gradients; their norm."""
    with contextlib.ExitStack() as without:
        for part in optimizer.optimizers:
            scaler.unscale_(part)
            without.enter_context(part.skip_synchronize())
        norm = clip_gradients(model.parameters(), limit)
        for part in optimizer.optimizers:
            scaler.step(part)
        scaler.update()
    for part in optimizer.optimizers:
        part.zero_grad()
    return norm


def save(run: TrainerRun, step: int, model: torch.nn.Module, optimizer: OptimizerGroup, scaler: Any) -> None:
    """Write a checkpoint on rank 0: all ranks hold the same."""
    if run.rank == 0:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        save_alone(run.out / "checkpoints", step, parts | {"random": get_random_state(run)}, run)


def resume(hvd: ModuleType, run: TrainerRun, model: torch.nn.Module, optimizer: OptimizerGroup, scaler: Any) -> int:
    """The step to begin with; rank 0 reads its last checkpoint and sends it to all."""
    folder, last, scale = run.out / "checkpoints", None, {}
    if run.rank == 0:
        if run.args.no_resume:
            move_aside(folder)
        remove_partial_checkpoints(folder)
        last = max(list_steps(folder), default=None)
    last = hvd.broadcast_object(last, root_rank=0, name="last")
    if last is None:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return 1
    if run.rank == 0:
        state = load_alone(folder, last, run)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        restore_random_state(run, state["random"])
        scale = state["scaler"]
    # Ranks without a state make one by a step without gradient, so weights are sent after it.
    for part in optimizer.optimizers:
        hvd.broadcast_optimizer_state(part, root_rank=0)
        part.zero_grad()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    scaler.load_state_dict(hvd.broadcast_object(scale, root_rank=0, name="scale"))
    run.print_line(f"going on after step {last}")
    return last + 1


if __name__ == "__main__":
    run_guarded(main)
