"""Loop: the steps of a run, the same for every framework; `train.py` gives it what its framework does differently.

    class DDPTrainer(FrameworkTrainer): ...       # that framework's passes, optimizer step and checkpoint
    train(DDPTrainer(run))                        # from the last checkpoint, or the beginning, to the last step

Once a step: learning rate, forward and backward passes of the micro-batches, optimizer step, exchange between zones,
one sum over all ranks (loss, and whether any was asked to stop), a line of metrics, a checkpoint when it is due.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint import ABOUT, format_step_name, is_checkpoint_due, read_file
from data import iter_batches
from metrics import StepMetrics
from model import Transformer, build, compute_loss, init_weights, load_huggingface, set_recompute
from optimiser import compute_rate, set_learning_rate
from run import Refusal, TrainerRun
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MIB = 2**20


class FrameworkTrainer(ABC):
    """What the loop asks of a framework. Its methods are what most frameworks do; an entry file replaces the others."""

    outer: Any = None
    """Averages zones that train on their own (`OuterOptimizer`); None: every step is one of all ranks."""

    def __init__(self, run: TrainerRun, model: nn.Module | None, optimizer: Any, steps_done: int) -> None:
        """`model`: what forward passes call. Comes last in a framework's own `__init__`: times count from here."""
        self.run, self.model, self.optimizer = run, model, optimizer
        self.steps_done = steps_done
        self.batches = self.iter_batches(steps_done + 1)
        self.metrics = StepMetrics(run)

    def iter_batches(self, step: int) -> Iterator[Any]:
        """Micro-batches of this rank from a step on."""
        return iter_batches(self.run, step)

    def compute_gradients(self) -> torch.Tensor | float:
        """Forward and backward passes of a step; what this rank adds to the mean loss over all samples."""
        return self.run_micro_batches() * (self.run.strategy["micro_batch"] / self.run.job["global_batch"])

    def run_micro_batches(self) -> torch.Tensor:
        """One micro-batch after the other; the sum of their losses."""
        # Double: a step may have thousands of micro-batches, and split runs are compared with whole ones.
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.run.device)
        for number in range(self.run.micro_batches):
            with self.metrics.record_span("data", micro_batch=number):
                inputs, targets = next(self.batches)
            with self.reduce_gradients(number == self.run.micro_batches - 1):
                with self.metrics.record_span("forward", micro_batch=number):
                    loss = self.run_forward(inputs, targets)
                self.run_backward(loss, number)
            loss_sum += loss.detach()
        return loss_sum

    def reduce_gradients(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Within it a micro-batch is computed; gradients add up on each rank and travel with those of the last."""
        del is_last
        return contextlib.nullcontext()

    def run_forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of a micro-batch."""
        with self.run.apply_autocast():
            return compute_loss(self.model(inputs), targets)

    def run_backward(self, loss: torch.Tensor, number: int) -> None:
        """The backward pass of micro-batch `number`."""
        with self.metrics.record_span("backward", micro_batch=number):
            self.scale_loss(loss).backward()

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """What the backward pass starts from, so that every sample of a step weighs the same."""
        return loss

    @abstractmethod
    def apply_gradients(self) -> Any:
        """Clip, step the optimizer, forget the gradients; their norm."""

    def start_sum(self, values: list[Any]) -> Callable[[], list[float]]:
        """Sums over all ranks; call what it returns to wait for them."""
        return self.run.start_sum_over_ranks(values)

    def can_save(self) -> bool:
        """A checkpoint written now holds everything."""
        return True

    @abstractmethod
    def save(self, step: int) -> None:
        """Write a checkpoint."""

    def get_checkpoint_path(self, step: int) -> Path:
        """Where `save` puts it."""
        return self.run.out / "checkpoints" / format_step_name(step)


def train(trainer: FrameworkTrainer) -> None:
    """Train to the last step, or until a rank is asked to stop."""
    run, metrics = trainer.run, trainer.metrics
    unread_sums: deque[Any] = deque()
    next_step = trainer.steps_done + 1
    is_save_due, stop = False, trainer.steps_done >= run.steps
    while not stop:
        step = trainer.steps_done + 1
        if step != next_step:  # another zone has brought this one up to date (torchft)
            trainer.batches = trainer.iter_batches(step)
        next_step = step + 1
        metrics.begin(step)
        rate = compute_rate(run, step)
        set_learning_rate(trainer.optimizer, rate)
        loss_share = trainer.compute_gradients()
        # Before the optimizer's step, in which torchft may set it to another zone's.
        trainer.steps_done = step
        norm = trainer.apply_gradients()
        for name, exchange in trainer.outer.list_exchanges(step) if trainer.outer else []:
            with metrics.record_span("gradients", name=name):
                exchange()
        sums = trainer.start_sum([loss_share, float(run.stop_asked)])
        unread_sums.append((metrics.close(), rate, norm, sums))
        stop = trainer.steps_done >= run.steps
        # Zones that train on their own do not wait for the others' loss: they look at it one step later.
        while len(unread_sums) > (1 if trainer.outer and not stop else 0):
            stop = write_step(metrics, *unread_sums.popleft()) or stop
        is_save_due = is_save_due or is_checkpoint_due(run, step, stop)
        if is_save_due and (stop or trainer.can_save()):
            if trainer.outer:  # what is on its way between zones is in no rank's state
                trainer.outer.finish(step)
            trainer.save(trainer.steps_done)
            is_save_due = False
    step = trainer.steps_done
    run.print_line(f"done: step {step} of {run.steps}; {trainer.get_checkpoint_path(step)}")


def write_step(
    metrics: StepMetrics, row: dict[str, Any], rate: float, norm: Any, sums: Callable[[], list[float]]
) -> bool:
    """Write and print a step when its sums are there; True when a rank was asked to stop."""
    loss, stop_requests = sums()
    metrics.write(row, loss=loss, lr=rate, grad_norm=norm)
    return stop_requests > 0


def build_replica(run: TrainerRun, shard: Callable[[Transformer], None] | None = None) -> Transformer:
    """The whole model on the device: the seed's weights, published ones, or those of another run's checkpoint.

    `shard` cuts it before it has values, so that no rank ever holds all of them.
    """
    model = build(run.model).to(run.weight_dtype)
    if shard is not None:
        shard(model)
    init_weights(model, run.seed, device=run.device)
    if run.data["init_from"] is not None:
        load_first_weights(model, Path(run.data["init_from"]))
    set_recompute(model, run.strategy["recompute"])
    return model


def wrap_in_ddp(run: TrainerRun, model: nn.Module, group: dist.ProcessGroup | None = None) -> DistributedDataParallel:
    """The model in DDP with the planned buckets; gradients are averaged over the group, or over all ranks."""
    communication = run.strategy["communication"]
    bucket = communication["bucket_mb"]
    if bucket is not None:
        bucket *= 1e6 / MIB  # bucket_cap_mb counts MiB
    if not communication["overlap_gradients"]:
        # One bucket that holds all gradients is full only when the backward pass is over.
        bucket = 1 + sum(parameter.nbytes for parameter in model.parameters()) / MIB
    return DistributedDataParallel(
        model,
        device_ids=[run.device.index] if run.device.type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=bucket,
        gradient_as_bucket_view=True,
    )


def load_replica_weights(model: Transformer, folder: Path) -> None:
    """Begin with the weights of a checkpoint that holds the whole model."""
    model.load_state_dict(read_file(folder / "copy-0.pt")["model"])


def load_first_weights(
    model: Transformer, folder: Path, load_checkpoint: Callable[[Transformer, Path], None] = load_replica_weights
) -> None:
    """Begin with the weights of a folder: a checkpoint of another run, or published ones."""
    if not folder.is_dir():
        raise Refusal(f"the weights {folder} are not on this machine; give --init-from a folder", this_machine=True)
    try:
        if (folder / ABOUT).exists():
            load_checkpoint(model, folder)
        else:
            load_huggingface(model, folder)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Refusal(f"the weights of {folder} are not for this model: {text}; give others, or none") from None
