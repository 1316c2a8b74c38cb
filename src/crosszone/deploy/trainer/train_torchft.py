"""Train with torchft: each zone trains on its own, and the zones average their weights every few steps (DiLoCo).

    bash nodes/NNN.sh                          on every node; the first one also runs the lighthouse
    bash nodes/NNN.sh --tiny --steps 5         the same kind of run in seconds

A zone is one torchrun job (a replica group of torchft): DDP or FSDP2 inside, a Manager to the others. Started again, a
zone goes on from its last checkpoint; one that has none, or an older one, gets the state of the others at the next
averaging. Zone 0 writes to --out, zone K to --out/zone-K.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from averaging import QUANTIZED, Averaging
from checkpoint import Checkpoints
from data import iter_batches
from loop import FrameworkTrainer, build_replica, train
from model import Transformer
from optimiser import build_optimizer, clip_gradients
from run import (
    AXES,
    Refusal,
    TrainerRun,
    install_stop_handler,
    join_process_group,
    make_folder,
    parse_arguments,
    read_settings,
    run_guarded,
    start_run,
)
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train from the last checkpoint, or the beginning, to the last step."""
    zone = int(os.environ.get("REPLICA_GROUP_ID", "0"))
    plan, run = start_zone(zone)
    trainer = TorchftTrainer(run, plan, zone)
    with trainer.zones.diloco:
        train(trainer)
    trainer.zones.end()
    run.end()


class TorchftTrainer(FrameworkTrainer):
    """One zone: DDP or FSDP2 inside, DiLoCo's hooks on the optimizer to the others."""

    def __init__(self, run: TrainerRun, plan: TrainerRun, zone: int) -> None:
        self.plan = plan
        model = build_replica(run, partial(shard_replica, run) if run.strategy["zero"] else None)
        wrapped = model if run.strategy["zero"] else replicate_model(run, model)
        optimizer = build_optimizer(run, model)
        self.zones = Averaging(run, model, optimizer, zone)
        self.checkpoints = Checkpoints(run, sharded=run.strategy["zero"] > 0)
        step = self.checkpoints.find_latest()
        if step is not None:
            self.zones.load(self.checkpoints.load(step, self.zones.get_state(room=True)))
            run.print_line(f"resumed after step {step} from {self.checkpoints.get_path(step)}")
        super().__init__(run, wrapped, optimizer, self.zones.step)
        # Ranks average their gradients; each micro-batch of the zone is to weigh the same.
        self.weight = run.world / sum(run.strategy["replica_micro_batches"])
        self.stepped: deque[Any] = deque(maxlen=1)
        # Runs before DiLoCo's own hook, so that the mark lies between step and averaging.
        self.zones.inner[-1].register_step_post_hook(lambda *_: self.stepped.append(self.metrics.mark()))

    @property
    def steps_done(self) -> int:
        """Another zone's count where this one was brought up to date by it."""
        return self.zones.step

    @steps_done.setter
    def steps_done(self, step: int) -> None:
        self.zones.step = step

    def iter_batches(self, step: int) -> Iterator[Any]:
        """The planned run knows the samples of this rank, not the zone as a run of its own."""
        return iter_batches(self.plan, step)

    def compute_gradients(self) -> torch.Tensor:
        """The mean is one over the zone."""
        return self.run_micro_batches() * (self.weight / self.run.world)

    def reduce_gradients(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """DDP must not reduce before the last micro-batch, FSDP2 is told whether to."""
        if isinstance(self.model, DistributedDataParallel) and not is_last:
            return self.model.no_sync()
        if hasattr(self.model, "set_requires_gradient_sync"):  # FSDP2
            self.model.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Each micro-batch of the zone weighs the same."""
        return loss * self.weight

    def apply_gradients(self) -> torch.Tensor:
        """The optimizer's step and with it, when it is time, the averaging: see the hooks of DiLoCo."""
        start = self.metrics.mark()
        norm = clip_gradients(self.model.parameters(), self.run.training["clip"])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self.optimizer.step()
        self.metrics.add("optimizer", start, self.stepped[-1])
        if self.zones.has_exchanged:
            self.metrics.add("gradients", self.stepped[-1], self.metrics.mark(), name="averaging")
        self.optimizer.zero_grad()
        return norm

    def can_save(self) -> bool:
        """A fragment that was sent and not yet taken is in no state."""
        return not self.zones.is_exchanging

    def save(self, step: int) -> None:
        """Weights, optimizers and what was last averaged."""
        self.checkpoints.save(step, self.zones.get_state())


# ---- the zone as a run of its own ----


def start_zone(zone: int) -> tuple[TrainerRun, TrainerRun]:
    """The run as planned, which knows the samples of this rank, and the same as if its zone were all there is."""
    if "RANK" not in os.environ or "TORCHFT_LIGHTHOUSE" not in os.environ:
        raise Refusal("start it by nodes/NNN.sh, which sets RANK, REPLICA_GROUP_ID (the zone) and TORCHFT_LIGHTHOUSE")
    rank, world, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    zone_of_rank = read_settings(parse_arguments(sys.argv[1:]).settings)["zone_of_rank"]
    ranks = [number for number, where in enumerate(zone_of_rank) if where == zone]
    if len(ranks) != world:
        raise Refusal(
            f"zone {zone} is planned with {len(ranks)} ranks, {world} were started; start all its nodes/NNN.sh"
        )
    plan = start_run(sys.argv[1:], distributed=False, rank=ranks[rank], world=len(zone_of_rank), local_rank=local_rank)
    check_supported(plan)
    counts = [
        plan.strategy["replica_micro_batches"][plan.get_coordinates(rank_in_plan)["dp"]] for rank_in_plan in ranks
    ]
    settings = plan.settings | {
        "strategy": plan.strategy | {"dp": world, "replica_micro_batches": counts, "micro_batches": max(counts)},
        "zone_of_rank": [zone] * world,
        "node_of_rank": [plan.settings["node_of_rank"][rank_in_plan] for rank_in_plan in ranks],
    }
    out = plan.out / f"zone-{zone}" if zone else plan.out
    make_folder(out)
    backend = join_process_group(settings, plan.device, rank, world, True)
    run = replace(plan, settings=settings, rank=rank, world=world, backend=backend, out=out, _groups={})
    install_stop_handler(run)
    return plan, run


def check_supported(run: TrainerRun) -> None:
    """Refuse what torchft, or this program on it, does not do."""
    local = run.strategy["local_update"]
    if local is None:
        raise Refusal("strategy.local_update is not set; generate the bundle for ddp or fsdp")
    for axis in AXES:
        if axis != "dp" and run.strategy[axis] > 1:
            raise Refusal(f"strategy.{axis} {run.strategy[axis]}: this trainer does not cut the model; use fsdp")
    if run.job["precision"] not in ("bf16", "bf16-amp", "bf16-pure", "fp32"):
        raise Refusal(f"job.precision {run.job['precision']} is not in this trainer; use bf16, or fsdp")
    try:
        import torchft.manager
    except ImportError as error:
        raise Refusal(f"torchft is not installed for this Python ({error}); pip install torchft==0.2.0") from None
    if local["dtype"] not in QUANTIZED:
        return
    if run.device.type == "cpu":
        run.print_note(f"torchft quantises on GPUs only: updates travel as {run.weight_dtype}, not {local['dtype']}")
    elif not torchft.manager.IS_TRITON_AVAILABLE:
        raise Refusal(
            f"updates of type {local['dtype']} need triton; without it torchft sends them whole", this_machine=True
        )


# ---- inside a zone ----


def shard_replica(run: TrainerRun, model: Transformer) -> None:
    """FSDP2 over the ranks of the zone, or of each of its nodes, block by block."""
    strategy, talk = run.strategy, run.strategy["communication"]
    ranks = torch.arange(run.world, dtype=torch.int)
    if strategy["shard_within"] == "node" and strategy["shard_ranks"] < run.world:
        ranks = ranks.view(-1, strategy["shard_ranks"])
    mesh = DeviceMesh(run.device.type, ranks, mesh_dim_names=("replicate", "shard")[-ranks.dim() :])
    low = "bf16" in (talk["compression"], talk["gradient_dtype"])
    policy = MixedPrecisionPolicy(
        param_dtype=None if run.compute_dtype == run.weight_dtype else run.compute_dtype,
        reduce_dtype=torch.bfloat16 if low else torch.float32,
    )
    blocks = list(model.layers.values())
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=strategy["zero"] == 3)
    if talk["overlap_parameters"]:
        for block, following in pairwise(blocks):
            block.set_modules_to_forward_prefetch([following])


def replicate_model(run: TrainerRun, model: Transformer) -> nn.Module:
    """The model in DDP over the ranks of the zone; a zone of one rank needs none."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if run.world == 1:
        return model
    talk = run.strategy["communication"]
    bucket = None if talk["bucket_mb"] is None else talk["bucket_mb"] * 1e6 / 2**20
    if not talk["overlap_gradients"]:
        # One bucket that holds all gradients is full only when the backward pass is over.
        bucket = 1 + sum(parameter.nbytes for parameter in model.parameters()) / 2**20
    device = [run.device.index] if run.device.type == "cuda" else None
    ddp = DistributedDataParallel(model, device_ids=device, bucket_cap_mb=bucket, gradient_as_bucket_view=True)
    kind = talk["gradient_dtype"] if talk["compression"] == "none" else talk["compression"]
    if kind == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "bf16" and run.backend == "nccl":  # torch's hook refuses Gloo
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return ddp


if __name__ == "__main__":
    run_guarded(main)
