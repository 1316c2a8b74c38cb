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
from itertools import pairwise
from typing import Any

import torch
from averaging import QUANTIZED, Averaging
from checkpoint import Checkpoints, is_checkpoint_due
from data import iter_batches
from metrics import StepMetrics
from model import Transformer, build, compute_loss, init_weights, load_huggingface, set_recompute
from optimiser import build_optimizer, clip_gradients, compute_rate, set_learning_rate
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
    model = build_model(run)
    wrapped = model if run.strategy["zero"] else replicate_model(run, model)
    optimizer = build_optimizer(run, model)
    zones = Averaging(run, model, optimizer, zone)
    checkpoints = Checkpoints(run, sharded=run.strategy["zero"] > 0)
    done = checkpoints.find_latest()
    if done is not None:
        zones.load(checkpoints.load(done, zones.get_state(room=True)))
        run.print_line(f"resumed after step {done} from {checkpoints.get_path(done)}")
    metrics = StepMetrics(run)
    # Ranks average their gradients; each micro-batch of the zone is to weigh the same.
    weight = run.world / sum(run.strategy["replica_micro_batches"])
    stepped: deque[Any] = deque(maxlen=1)
    zones.inner[-1].register_step_post_hook(lambda *_: stepped.append(metrics.mark()))  # runs before DiLoCo's
    stream, expected = None, 0
    save, stop = False, zones.step >= run.steps
    with zones.diloco:
        while not stop:
            step = zones.step + 1
            if step != expected:  # the first, or another zone has brought this one up to date
                stream = iter_batches(plan, step)
            metrics.begin(step)
            set_learning_rate(optimizer, compute_rate(run, step))
            loss_sum = compute_gradients(run, wrapped, stream, metrics, weight)
            begun = metrics.mark()
            norm = clip_gradients(model.parameters(), run.training["clip"])
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            zones.step, expected = step, step + 1
            optimizer.step()  # and with it, when it is time, the averaging: see the hooks of DiLoCo
            metrics.add("optimizer", begun, stepped[-1])
            if zones.has_exchanged:
                metrics.add("gradients", stepped[-1], metrics.mark(), name="averaging")
            optimizer.zero_grad()
            row = metrics.close()
            mean, stop_requests = run.sum_over_ranks([loss_sum * weight / run.world, float(run.stop_asked)])
            metrics.write(row, loss=mean, lr=optimizer.param_groups[0]["lr"], grad_norm=norm)
            stop = stop_requests > 0 or zones.step >= run.steps
            save = save or is_checkpoint_due(run, step, stop)
            if save and (stop or not zones.is_exchanging):
                checkpoints.save(zones.step, zones.get_state())
                save = False
    run.print_line(f"done: step {zones.step} of {run.steps}; {checkpoints.get_path(zones.step)}")
    zones.end()
    run.end()


def compute_gradients(
    run: TrainerRun, wrapped: nn.Module, stream: Iterator[Any], metrics: StepMetrics, weight: float
) -> torch.Tensor:
    """Forward and backward of all micro-batches of a step; the sum of their losses."""
    loss_sum = torch.zeros((), device=run.device)
    for number in range(run.micro_batches):
        with metrics.record_span("data", micro_batch=number):
            inputs, targets = next(stream)
        with reduce_on_last(wrapped, last=number == run.micro_batches - 1):
            with metrics.record_span("forward", micro_batch=number), run.apply_autocast():
                loss = compute_loss(wrapped(inputs), targets)
            with metrics.record_span("backward", micro_batch=number):
                (loss * weight).backward()
        loss_sum += loss.detach()
    return loss_sum


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


def build_model(run: TrainerRun) -> Transformer:
    """The model on the device, sharded where planned, with the seed's weights or published ones."""
    model = build(run.model).to(run.weight_dtype)
    if run.strategy["zero"]:
        shard_model(run, model)
    init_weights(model, run.seed, device=run.device)
    if run.data["init_from"]:
        load_huggingface(model, run.data["init_from"])
    set_recompute(model, run.strategy["recompute"])
    return model


def shard_model(run: TrainerRun, model: Transformer) -> None:
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


@contextlib.contextmanager
def reduce_on_last(wrapped: nn.Module, *, last: bool) -> Iterator[None]:
    """Gradients add up on each rank and are reduced with those of the last micro-batch."""
    if isinstance(wrapped, DistributedDataParallel) and not last:
        with wrapped.no_sync():
            yield
        return
    if hasattr(wrapped, "set_requires_gradient_sync"):  # FSDP2
        wrapped.set_requires_gradient_sync(last)
    yield


if __name__ == "__main__":
    run_guarded(main)
