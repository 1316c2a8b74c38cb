"""Train with Horovod: every rank a whole replica, gradients averaged while the backward pass runs.

    bash nodes/000.sh                          on the first node: horovodrun reaches the others by ssh
    bash nodes/000.sh --tiny --steps 5         the same kind of run in seconds
    python3 train.py settings.json --tiny      one process; the replicas' micro-batches one after the other

Started again, it goes on from the last checkpoint in --out (see `python3 train.py --help`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from checkpoint import Checkpoints, get_random_state, restore_random_state
from loop import FrameworkTrainer, build_replica, train
from optimiser import OptimizerGroup, build_optimizer, clip_gradients
from run import Refusal, TrainerRun, run_guarded, start_run


def main() -> None:
    """Train as settings.json says."""
    hvd = import_horovod()
    hvd.init()
    run = start_run(sys.argv[1:], distributed=False, rank=hvd.rank(), world=hvd.size(), local_rank=hvd.local_rank())
    train(HorovodTrainer(run, hvd))
    hvd.shutdown()


class HorovodTrainer(FrameworkTrainer):
    """Gradients averaged by DistributedOptimizer; rank 0 keeps the checkpoints, for all ranks hold the same."""

    def __init__(self, run: TrainerRun, hvd: ModuleType) -> None:
        self.hvd = hvd
        model = build_replica(run)
        optimizer = wrap_optimizer(hvd, run, model, build_optimizer(run, model))
        self.scaler = torch.amp.GradScaler(run.device.type, enabled=run.job["precision"] == "fp16")
        self.checkpoints = Checkpoints(run) if run.rank == 0 else None
        super().__init__(run, model, optimizer, self.resume(run, model, optimizer))

    def iter_batches(self, step: int) -> Iterator[Any]:
        """Ready on all ranks, so that times count from the same moment."""
        batches = super().iter_batches(step)
        self.hvd.barrier()
        return batches

    def compute_gradients(self) -> torch.Tensor:
        """All ranks have as many micro-batches."""
        return self.run_micro_batches() / self.run.micro_batches / self.run.world

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Horovod averages over ranks, not over the micro-batches of one."""
        return self.scaler.scale(loss / self.run.micro_batches)

    def apply_gradients(self) -> torch.Tensor:
        """Wait for the averaged gradients, then step; with fp16 only where none overflowed."""
        parts = self.optimizer.optimizers
        with self.metrics.record_span("gradients"):
            for part in parts:
                part.synchronize()
        with self.metrics.record_span("optimizer"):
            with contextlib.ExitStack() as without:
                for part in parts:
                    self.scaler.unscale_(part)
                    without.enter_context(part.skip_synchronize())
                norm = clip_gradients(self.model.parameters(), self.run.training["clip"])
                for part in parts:
                    self.scaler.step(part)
                self.scaler.update()
            for part in parts:
                part.zero_grad()
        return norm

    def start_sum(self, values: list[Any]) -> Callable[[], list[float]]:
        """One small reduction; Horovod matches tensors by name."""
        numbers = torch.stack([torch.as_tensor(value, dtype=torch.float64).to(self.run.device) for value in values])
        return lambda: self.hvd.allreduce(numbers, name="loss", op=self.hvd.Sum).tolist()

    def save(self, step: int) -> None:
        """Rank 0 writes, the others wait."""
        if self.checkpoints is not None:
            parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
            state = {name: part.state_dict() for name, part in parts.items()}
            self.checkpoints.save(step, state | {"random": get_random_state(self.run)})
        self.hvd.barrier()

    def resume(self, run: TrainerRun, model: torch.nn.Module, optimizer: OptimizerGroup) -> int:
        """The steps done; rank 0 reads its last checkpoint and sends it to all."""
        hvd, scale = self.hvd, {}
        step = hvd.broadcast_object(self.checkpoints and self.checkpoints.find_latest(), root_rank=0, name="last")
        if step is None:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            return 0
        if self.checkpoints is not None:
            state = self.checkpoints.load(step)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            restore_random_state(run, state["random"])
            scale = state["scaler"]
        # Ranks without a state make one by a step without gradient, so weights are sent after it.
        for part in optimizer.optimizers:
            hvd.broadcast_optimizer_state(part, root_rank=0)
            part.zero_grad()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self.scaler.load_state_dict(hvd.broadcast_object(scale, root_rank=0, name="scale"))
        run.print_line(f"going on after step {step}")
        return step


# ---- Horovod ----


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
    communication, count = run.strategy["communication"], run.micro_batches
    half = "fp16" in (communication["compression"], communication["gradient_dtype"])
    # Reductions start in the backward pass that completes this many; with one more than there are, they wait for
    # synchronize(), which is after the last.
    passes = count if communication["overlap_gradients"] else count + 1
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

    def init_with_defaults(self: Any, params: Any) -> None:
        kind.__init__(self, params, **defaults)

    def step_with_closure(self: Any, closure: Any = None) -> None:
        del closure
        kind.step(self)

    optimizer.__class__ = type(kind.__name__, (kind,), {"__init__": init_with_defaults, "step": step_with_closure})
    return optimizer


if __name__ == "__main__":
    run_guarded(main)
