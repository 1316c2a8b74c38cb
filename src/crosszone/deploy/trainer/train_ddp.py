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
from typing import Any

import torch
import torch.distributed as dist
from checkpoint import Checkpoints, get_random_state, make_unreadable_error, restore_random_state
from loop import FrameworkTrainer, build_replica, train, wrap_in_ddp
from metrics import StepMetrics
from optimiser import build_optimizer, clip_gradients
from outer import OuterOptimizer
from run import Refusal, TrainerRun, run_guarded, start_run
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train from the last checkpoint, or the beginning, to the last step."""
    run = start_run(sys.argv[1:])
    check_supported(run)
    train(DDPTrainer(run))
    run.end()


class DDPTrainer(FrameworkTrainer):
    """Gradients reduced by DDP's buckets; zones with local updates meet in the outer optimizer."""

    def __init__(self, run: TrainerRun) -> None:
        is_local = run.strategy["local_update"] is not None
        # With local updates gradients stay inside the zone.
        copies = run.zone_of_rank if is_local else [0] * run.world
        group = run.split_ranks(copies)
        self.checkpoints = Checkpoints(run, copies=copies if is_local else None)
        model = build_replica(run)
        optimizer = build_optimizer(run, model)
        self.scaler = torch.amp.GradScaler(run.device.type, enabled=run.job["precision"] == "fp16")
        self.outer = OuterOptimizer(run, list(model.parameters())) if is_local else None
        self.stateful = {"model": model, "optimizer": optimizer, "scaler": self.scaler}
        # Common weights differ from the zone's own between two averagings, so they are saved beside them.
        self.stateful |= {"outer": self.outer} if self.outer else {}
        steps_done = self.checkpoints.find_latest() or 0
        if steps_done:
            self.resume(run, steps_done)
        super().__init__(run, wrap_replica(run, model, group, steps_done), optimizer, steps_done)
        # DDP divides the sum of gradients by the ranks of the group; each sample is to weigh 1 / samples of the group.
        micro_batches = run.strategy["replica_micro_batches"]
        ranks = [rank for rank in range(run.world) if copies[rank] == copies[run.rank]]
        self.weight = len(ranks) / sum(micro_batches[run.get_coordinates(rank)["dp"]] for rank in ranks)
        self.backward_end = BackwardEnd(self.metrics, model) if len(ranks) > 1 else None

    def reduce_gradients(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """DDP reduces in the backward pass, unless told not to."""
        return contextlib.nullcontext() if is_last else self.model.no_sync()

    def run_backward(self, loss: torch.Tensor, number: int) -> None:
        """Of the last micro-batch what follows the embedding's gradient is waiting for the reduction."""
        start = self.metrics.mark()
        self.scaler.scale(loss * self.weight).backward()
        end = self.metrics.mark()
        is_last = number == self.run.micro_batches - 1
        computed = self.backward_end.mark if self.backward_end and is_last else None
        self.metrics.add("backward", start, computed or end, micro_batch=number)
        if computed:
            self.metrics.add("gradients", computed, end)

    def apply_gradients(self) -> torch.Tensor:
        """The optimizer's step; with fp16 only where no gradient overflowed."""
        with self.metrics.record_span("optimizer"):
            self.scaler.unscale_(self.optimizer)
            norm = clip_gradients(self.model.parameters(), self.run.training["clip"])
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        return norm

    def save(self, step: int) -> None:
        """Write everything as it is after a step."""
        state = {name: part.state_dict() for name, part in self.stateful.items()}
        self.checkpoints.save(step, state | {"step": step, "random": get_random_state(self.run)})

    def resume(self, run: TrainerRun, step: int) -> None:
        """Set everything as it was after a step."""
        state, path = self.checkpoints.load(step), self.checkpoints.get_path(step)
        try:
            for name, part in self.stateful.items():
                part.load_state_dict(state[name])
        except (KeyError, ValueError, RuntimeError) as error:
            raise make_unreadable_error(path, error) from None
        restore_random_state(run, state["random"])
        run.print_line(f"resumed after step {step} from {path}")


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


def wrap_replica(run: TrainerRun, model: nn.Module, group: dist.ProcessGroup, done: int) -> DistributedDataParallel:
    """The model in DDP with the planned buckets and compression."""
    communication = run.strategy["communication"]
    ddp = wrap_in_ddp(run, model, group)
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


class BackwardEnd:
    """When the backward pass had the embedding's gradient, its last: what follows is waiting for the reduction."""

    def __init__(self, metrics: StepMetrics, model: nn.Module) -> None:
        self.metrics = metrics
        self.mark: Any = None
        model.embed.weight.register_post_accumulate_grad_hook(self.record)

    def record(self, _parameter: torch.Tensor) -> None:
        """The gradient is there."""
        self.mark = self.metrics.mark()


if __name__ == "__main__":
    run_guarded(main)
