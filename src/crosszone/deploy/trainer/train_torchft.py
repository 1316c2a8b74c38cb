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
from checkpoint import Checkpoints, due
from data import batches
from metrics import Metrics
from model import Transformer, build, initialise, load_huggingface, loss_of, recompute
from optimiser import clip, make, rate, set_rate
from run import AXES, Refusal, Run, arguments, guard, join, listen, make_folder, read, start
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train from the last checkpoint, or the beginning, to the last step."""
    zone = int(os.environ.get("REPLICA_GROUP_ID", "0"))
    plan, run = started(zone)
    model = weights(run)
    whole = model if run.strategy["zero"] else replicated(run, model)
    optimizer = make(run, model)
    zones = Averaging(run, model, optimizer, zone)
    checkpoints = Checkpoints(run, sharded=run.strategy["zero"] > 0)
    done = checkpoints.latest()
    if done is not None:
        zones.load(checkpoints.load(done, zones.state(room=True)))
        run.say(f"resumed after step {done} from {checkpoints.path(done)}")
    metrics = Metrics(run)
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
                stream = batches(plan, step)
            metrics.begin(step)
            set_rate(optimizer, rate(run, step))
            loss_sum = gradients(run, whole, stream, metrics, weight)
            begun = metrics.mark()
            norm = clip(model.parameters(), run.training["clip"])
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            zones.step, expected = step, step + 1
            optimizer.step()  # and with it, when it is time, the averaging: see the hooks of DiLoCo
            metrics.add("optimizer", begun, stepped[-1])
            if zones.exchanged:
                metrics.add("gradients", stepped[-1], metrics.mark(), name="averaging")
            optimizer.zero_grad()
            row = metrics.close()
            mean, asked = run.totals([loss_sum * weight / run.world, float(run.stop_asked)])
            metrics.write(row, loss=mean, lr=optimizer.param_groups[0]["lr"], grad_norm=norm)
            stop = asked > 0 or zones.step >= run.steps
            save = save or due(run, step, stop)
            if save and (stop or not zones.under_way):
                checkpoints.save(zones.step, zones.state())
                save = False
    run.say(f"done: step {zones.step} of {run.steps}; {checkpoints.path(zones.step)}")
    zones.end()
    run.end()


def gradients(run: Run, whole: nn.Module, stream: Iterator[Any], metrics: Metrics, weight: float) -> torch.Tensor:
    """Forward and backward of all micro-batches of a step; the sum of their losses."""
    loss_sum = torch.zeros((), device=run.device)
    for number in range(run.micro_batches):
        with metrics.span("data", micro_batch=number):
            inputs, targets = next(stream)
        with reducing(whole, last=number == run.micro_batches - 1):
            with metrics.span("forward", micro_batch=number), run.autocast():
                loss = loss_of(whole(inputs), targets)
            with metrics.span("backward", micro_batch=number):
                (loss * weight).backward()
        loss_sum += loss.detach()
    return loss_sum


# ---- the zone as a run of its own ----


def started(zone: int) -> tuple[Run, Run]:
    """The run as planned, which knows the samples of this rank, and the same as if its zone were all there is."""
    if "RANK" not in os.environ or "TORCHFT_LIGHTHOUSE" not in os.environ:
        raise Refusal("start it by nodes/NNN.sh, which sets RANK, REPLICA_GROUP_ID (the zone) and TORCHFT_LIGHTHOUSE")
    rank, world, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    zone_of_rank = read(arguments(sys.argv[1:]).settings)["zone_of_rank"]
    ranks = [number for number, where in enumerate(zone_of_rank) if where == zone]
    if len(ranks) != world:
        raise Refusal(
            f"zone {zone} is planned with {len(ranks)} ranks, {world} were started; start all its nodes/NNN.sh"
        )
    plan = start(sys.argv[1:], distributed=False, rank=ranks[rank], world=len(zone_of_rank), local_rank=local_rank)
    check(plan)
    counts = [plan.strategy["replica_micro_batches"][plan.coordinates_of(one)["dp"]] for one in ranks]
    settings = plan.settings | {
        "strategy": plan.strategy | {"dp": world, "replica_micro_batches": counts, "micro_batches": max(counts)},
        "zone_of_rank": [zone] * world,
        "node_of_rank": [plan.settings["node_of_rank"][one] for one in ranks],
    }
    out = plan.out / f"zone-{zone}" if zone else plan.out
    make_folder(out)
    backend = join(settings, plan.device, rank, world, True)
    run = replace(plan, settings=settings, rank=rank, world=world, backend=backend, out=out, _groups={})
    listen(run)
    return plan, run


def check(run: Run) -> None:
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
        run.note(f"torchft quantises on GPUs only: updates travel as {run.weight_dtype}, not {local['dtype']}")
    elif not torchft.manager.IS_TRITON_AVAILABLE:
        raise Refusal(f"updates of type {local['dtype']} need triton; without it torchft sends them whole", here=True)


# ---- inside a zone ----


def weights(run: Run) -> Transformer:
    """The model on the device, sharded where planned, with the seed's weights or published ones."""
    model = build(run.model).to(run.weight_dtype)
    if run.strategy["zero"]:
        sharded(run, model)
    initialise(model, run.seed, device=run.device)
    if run.data["init_from"]:
        load_huggingface(model, run.data["init_from"])
    recompute(model, run.strategy["recompute"])
    return model


def sharded(run: Run, model: Transformer) -> None:
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
    for one in (*blocks, model):
        fully_shard(one, mesh=mesh, mp_policy=policy, reshard_after_forward=strategy["zero"] == 3)
    if talk["overlap_parameters"]:
        for block, following in pairwise(blocks):
            block.set_modules_to_forward_prefetch([following])


def replicated(run: Run, model: Transformer) -> nn.Module:
    """The model in DDP over the ranks of the zone; a zone of one rank needs none."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if run.world == 1:
        return model
    talk = run.strategy["communication"]
    bucket = None if talk["bucket_mb"] is None else talk["bucket_mb"] * 1e6 / 2**20
    if not talk["overlap_gradients"]:
        # One bucket that holds all gradients is full only when the backward pass is over.
        bucket = 1 + sum(one.nbytes for one in model.parameters()) / 2**20
    device = [run.device.index] if run.device.type == "cuda" else None
    ddp = DistributedDataParallel(model, device_ids=device, bucket_cap_mb=bucket, gradient_as_bucket_view=True)
    kind = talk["gradient_dtype"] if talk["compression"] == "none" else talk["compression"]
    if kind == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "bf16" and run.backend == "nccl":  # torch's hook refuses Gloo
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return ddp


@contextlib.contextmanager
def reducing(whole: nn.Module, *, last: bool) -> Iterator[None]:
    """Gradients add up on each rank and are reduced with those of the last micro-batch."""
    if isinstance(whole, DistributedDataParallel) and not last:
        with whole.no_sync():
            yield
        return
    if hasattr(whole, "set_requires_gradient_sync"):  # FSDP2
        whole.set_requires_gradient_sync(last)
    yield


if __name__ == "__main__":
    guard(main)
