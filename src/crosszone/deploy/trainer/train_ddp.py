"""Train with PyTorch's DistributedDataParallel: every rank holds the whole model, gradients are averaged each step.

    torchrun --nproc-per-node 8 train.py settings.json             as planned; nodes/NNN.sh start it on every node
    torchrun --nproc-per-node 2 train.py settings.json --tiny      the same kind of run in seconds, on any machine
    python train.py settings.json --tiny                           one process: the replicas one after the other
    ... --data tokens.bin --out run7 --steps 1000                  see --help

Started again with the same --out it goes on from the last checkpoint. SIGTERM: the step is finished, a checkpoint
written. Metrics go to OUT/metrics-stage-0.jsonl, checkpoints to OUT/checkpoints/. Exit status 2: the last line says
what cannot be done and what to do.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint import (
    ABOUT,
    Checkpoints,
    get_random_state,
    is_checkpoint_due,
    make_unreadable_error,
    read_file,
    restore_random_state,
)
from data import iter_batches
from metrics import StepMetrics
from model import build, compute_loss, init_weights, load_huggingface, set_recompute
from optimiser import build_optimizer, clip_gradients, compute_rate, set_learning_rate
from outer import OuterOptimizer
from run import Refusal, TrainerRun, run_guarded, start_run
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

MIB = 2**20


def main() -> None:
    """Train from the last checkpoint, or the beginning, to the last step."""
    run = start_run(sys.argv[1:])
    check_supported(run)
    local = run.strategy["local_update"] is not None
    # With local updates gradients stay inside the zone; the zones meet in `outer`.
    together = run.zone_of_rank if local else [0] * run.world
    group = run.split_ranks(together)
    checkpoints = Checkpoints(run, copies=together if local else None)

    model = build_model(run)
    optimizer = build_optimizer(run, model)
    scaler = torch.amp.GradScaler(run.device.type, enabled=run.job["precision"] == "fp16")
    outer = OuterOptimizer(run, model) if local else None
    stateful = {"model": model, "optimizer": optimizer, "scaler": scaler} | ({"outer": outer} if outer else {})

    done = checkpoints.find_latest() or 0
    if done:
        resume(run, checkpoints, done, stateful)
    ddp = wrap_model(run, model, group, done)
    # DDP divides the sum of gradients by the ranks of the group; each sample is to weigh 1 / samples of the group.
    micro_batches = run.strategy["replica_micro_batches"]
    ranks = [rank for rank in range(run.world) if together[rank] == together[run.rank]]
    weight = len(ranks) / sum(micro_batches[run.get_coordinates(rank)["dp"]] for rank in ranks)
    share = run.strategy["micro_batch"] / run.job["global_batch"]

    metrics = StepMetrics(run)
    embedded = BackwardEnd(metrics, model)
    stream = iter_batches(run, done + 1)
    waiting: deque[Any] = deque()
    step, stop = done, done >= run.steps
    while not stop:
        step += 1
        metrics.begin(step)
        lr = compute_rate(run, step)
        set_learning_rate(optimizer, lr)
        loss_sum = compute_gradients(run, ddp, scaler, stream, metrics, weight, embedded if len(ranks) > 1 else None)
        with metrics.record_span("optimizer"):
            scaler.unscale_(optimizer)
            norm = clip_gradients(model.parameters(), run.training["clip"])
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        for name, turn in outer.list_exchanges(step) if outer else []:
            with metrics.record_span("gradients", name=name):
                turn()
        # One sum over all ranks: the loss, and whether any of them was asked to stop. Zones that train on their own do
        # not wait for it: they look at it one step later.
        waiting.append((metrics.close(), lr, norm, run.start_sum_over_ranks([loss_sum * share, float(run.stop_asked)])))
        if not outer or len(waiting) > 1:
            stop = write_step(metrics, *waiting.popleft())
        stop = stop or step >= run.steps
        if is_checkpoint_due(run, step, stop):
            save(run, checkpoints, step, stateful)
    for entry in waiting:
        write_step(metrics, *entry)
    run.print_line(f"done: step {step} of {run.steps}; {checkpoints.get_path(step)}")
    run.end()


def compute_gradients(
    run: TrainerRun,
    ddp: DistributedDataParallel,
    scaler: torch.amp.GradScaler,
    stream: Iterator[tuple[torch.Tensor, torch.Tensor]],
    metrics: StepMetrics,
    weight: float,
    embedded: BackwardEnd | None,
) -> torch.Tensor:
    """Forward and backward of all micro-batches of a step; the last one reduces. Returns the sum of their losses."""
    loss_sum = torch.zeros((), device=run.device)
    for number in range(run.micro_batches):
        with metrics.record_span("data", micro_batch=number):
            inputs, targets = next(stream)
        last = number == run.micro_batches - 1
        with contextlib.nullcontext() if last else ddp.no_sync():
            with metrics.record_span("forward", micro_batch=number), run.apply_autocast():
                loss = compute_loss(ddp(inputs), targets)
            begun = metrics.mark()
            scaler.scale(loss * weight).backward()
            ended = metrics.mark()
        computed = embedded.mark if embedded and last else None
        metrics.add("backward", begun, computed or ended, micro_batch=number)
        if computed:
            metrics.add("gradients", computed, ended)
        loss_sum += loss.detach()
    return loss_sum


def write_step(
    metrics: StepMetrics, row: dict[str, Any], lr: float, norm: torch.Tensor, totals: Callable[[], list[float]]
) -> bool:
    """Write and print a step when its sums are there; True when a rank was asked to stop."""
    loss, stop_requests = totals()
    metrics.write(row, loss=loss, lr=lr, grad_norm=norm)
    return stop_requests > 0


def check_supported(run: TrainerRun) -> None:
    """Refuse what DistributedDataParallel does not do."""
    strategy, communication = run.strategy, run.strategy["communication"]
    for axis in ("tp", "pp", "cp", "ep"):
        if strategy[axis] > 1:
            raise Refusal(f"strategy.{axis} {strategy[axis]}: DDP only replicates; generate the bundle for fsdp")
    if strategy["zero"] or strategy["offload"] != "none":
        what = f"zero {strategy['zero']}" if strategy["zero"] else f"offload {strategy['offload']}"
        raise Refusal(f"strategy.{what}: DDP keeps every state on every GPU; generate the bundle for fsdp or deepspeed")
    if communication["compression"] not in ("none", "fp16", "bf16", "powersgd"):
        kind = communication["compression"]
        raise Refusal(f"communication.compression {kind}: DDP has none, fp16, bf16 and powersgd; choose one of them")
    run.compute_dtype  # noqa: B018 - refuses a precision this trainer does not have


def build_model(run: TrainerRun) -> nn.Module:
    """The model on the device: the seed's weights, published ones, or those of another run's checkpoint."""
    model = build(run.model)
    init_weights(model, run.seed, device=run.device)
    init_from = run.data["init_from"]
    if init_from is not None:
        folder = Path(init_from)
        if not folder.is_dir():
            raise Refusal(f"the weights {folder} are not on this machine; give --init-from a folder", this_machine=True)
        try:
            if (folder / ABOUT).exists():
                model.load_state_dict(read_file(folder / "copy-0.pt")["model"])
            else:
                load_huggingface(model, folder)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Refusal(f"the weights of {folder} are not for this model: {text}; give others, or none") from None
    set_recompute(model, run.strategy["recompute"])
    return model.to(run.weight_dtype)


def wrap_model(run: TrainerRun, model: nn.Module, group: dist.ProcessGroup, done: int) -> DistributedDataParallel:
    """The model in DDP with the planned buckets and compression."""
    communication = run.strategy["communication"]
    bucket = communication["bucket_mb"]
    if bucket is not None:
        bucket *= 1e6 / MIB  # bucket_cap_mb counts MiB
    if not communication["overlap_gradients"]:
        # One bucket that holds all gradients is full only when the backward pass is over.
        bucket = 1 + sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) / MIB
    ddp = DistributedDataParallel(
        model,
        device_ids=[run.device.index] if run.device.type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=bucket,
        gradient_as_bucket_view=True,
    )
    kind = communication["compression"]
    if kind == "none":
        kind = communication["gradient_dtype"] or "none"
    if kind == "fp16":
        ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif kind == "bf16":
        # torch's own hook refuses every backend but NCCL and XCCL; Gloo reduces bf16 as well.
        ddp.register_comm_hook(group, default_hooks.bf16_compress_hook if run.backend == "nccl" else compress_bf16)
    elif kind == "powersgd":
        # Not before the tenth part of the run: gradients of the first steps have no low rank. Never before step 2:
        # DDP arranges its buckets anew after the first.
        begin = 2 if run.tiny else max(2, min(1000, run.job["steps"] // 10) - done)
        rank = communication["compression_rank"]
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=begin)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


def compress_bf16(group, bucket):  # Without types: DDP takes them for wrong where they are text.
    """Average a bucket of gradients in bf16."""
    wire = bucket.buffer().to(torch.bfloat16).div_(group.size())
    reduced = dist.all_reduce(wire, group=group, async_op=True).get_future()
    return reduced.then(lambda future: bucket.buffer().copy_(future.value()[0]))


def save(run: TrainerRun, checkpoints: Checkpoints, step: int, stateful: dict[str, Any]) -> None:
    """Write everything as it is after a step; what zones have under way arrives first."""
    if "outer" in stateful:
        stateful["outer"].finish(step)
    state = {name: part.state_dict() for name, part in stateful.items()}
    checkpoints.save(step, state | {"step": step, "random": get_random_state(run)})


def resume(run: TrainerRun, checkpoints: Checkpoints, done: int, stateful: dict[str, Any]) -> None:
    """Set everything as it was after step `done`."""
    state = checkpoints.load(done)
    try:
        for name, part in stateful.items():
            part.load_state_dict(state[name])
    except (KeyError, ValueError, RuntimeError) as error:
        raise make_unreadable_error(checkpoints.get_path(done), error) from None
    restore_random_state(run, state["random"])
    run.print_line(f"resumed after step {done} from {checkpoints.get_path(done)}")


class BackwardEnd:
    """When the backward pass had the embedding's gradient, its last: what follows is waiting for the reduction."""

    def __init__(self, metrics: StepMetrics, model: nn.Module) -> None:
        self.metrics = metrics
        self.mark: Any = None
        model.embed.weight.register_post_accumulate_grad_hook(self.note)

    def note(self, _parameter: torch.Tensor) -> None:
        """The gradient is there."""
        self.mark = self.metrics.mark()


if __name__ == "__main__":
    run_guarded(main)
