"""Who works with whom: the mesh of ranks, what FSDP shards over it, and the pipeline along it.

The mesh has five dimensions: pp (pipeline stages), zone (zones that train on their own between two averagings; 1
without local updates), replicate (copies of the states: HSDP), shard (ranks that share one set of states: replicas and
their context ranks) and tp. It is made from explicit ranks, so any order of the axes in settings.json works.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from attention import get_local_part
from model_parallel import get_rank_rows
from run import Refusal, TrainerRun
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor

AXES = ("pp", "dp", "cp", "tp")
WIRE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class RankMesh:
    """The ranks by what they share."""

    mesh: DeviceMesh
    """pp, zone, replicate, shard, tp."""
    replicas: int
    """Replicas whose gradients are added up: all, or those of a zone where zones train on their own."""
    samples: int
    """Samples of a step of those replicas."""
    everyone: dist.ProcessGroup | None
    """The ranks whose gradients make one update; None: all."""

    def count_ranks(self, name: str) -> int:
        """Ranks along a dimension."""
        return self.mesh[name].size()

    def get_place(self, name: str) -> int:
        """Place of this rank along a dimension."""
        return self.mesh[name].get_local_rank()

    @property
    def states(self) -> DeviceMesh:
        """The mesh over which weights, gradients and optimizer states are sharded (and copied, with HSDP)."""
        return self.mesh["replicate", "shard"] if self.count_ranks("replicate") > 1 else self.mesh["shard"]


def build_mesh(run: TrainerRun) -> RankMesh:
    """The mesh of the strategy; replicas that share one set of states stand together in it."""
    strategy, ranks = run.strategy, _arrange_ranks(run)
    pp, dp, cp, tp = ranks.shape
    zone_of, node_of = torch.tensor(run.zone_of_rank), torch.tensor(run.settings["node_of_rank"])
    is_local = strategy["local_update"] is not None
    zones = len(set(zone_of[ranks[0, :, 0, 0]].tolist())) if is_local else 1
    within, place_of = strategy["shard_within"], {"zone": zone_of, "node": node_of}.get(strategy["shard_within"])
    shard = min(strategy["shard_ranks"], dp // zones)
    if dp % (zones * shard):
        raise Refusal(f"{dp} replicas are not {zones} zones of groups of {shard} that share states; plan again")
    places = [_locate_replica(ranks[:, d], zone_of if is_local else None, place_of) for d in range(dp)]
    order = sorted(range(dp), key=lambda d: (places[d], d))
    for first in range(0, dp, shard):
        group = order[first : first + shard]
        if any(places[a] != places[b] for a, b in pairwise(group)):
            raise Refusal(
                f"strategy.shard_within={within}: replicas {group} would share states across {within}s; plan again"
            )
        counts = {strategy["replica_micro_batches"][d] for d in group}
        if pp == 1 and len(counts) > 1:
            raise Refusal(
                f"replicas {group} share states but take {sorted(counts)} micro-batches; they meet in each one"
            )
    grid = ranks[:, order].reshape(pp, zones, dp // (zones * shard), shard * cp, tp)
    mesh = DeviceMesh(run.device.type, grid, mesh_dim_names=("pp", "zone", "replicate", "shard", "tp"))
    averaged = [d for d in range(dp) if not is_local or places[d][0] == places[run.coordinates["dp"]][0]]
    samples = strategy["micro_batch"] * sum(strategy["replica_micro_batches"][d] for d in averaged)
    return RankMesh(mesh, len(averaged), samples, run.split_ranks(run.zone_of_rank) if is_local else None)


def _arrange_ranks(run: TrainerRun) -> Tensor:
    """Every rank by its coordinates: [pp, dp, cp, tp]."""
    slow_first = list(reversed(run.settings["order"]))
    ranks = torch.arange(run.world).reshape([run.strategy[axis] for axis in slow_first])
    return ranks.permute([slow_first.index(axis) for axis in AXES])


def _locate_replica(ranks: Tensor, *places: Tensor | None) -> tuple[tuple[int, ...], ...]:
    """Where all ranks of a replica lie; replicas with the same places may share states."""
    return tuple(() if place is None else tuple(place[ranks].flatten().tolist()) for place in places)


# ---- FSDP ----


def shard_model(model: nn.Module, run: TrainerRun, grid: RankMesh) -> None:
    """Shard a Transformer, or a stage of one, block by block (FSDP2, or HSDP where states have copies).

    ZeRO 3 frees gathered weights after the forward pass of their block, ZeRO 2 keeps them until the backward pass has
    used them; a pipeline keeps them anyway (see below). The table of tied embeddings stays with the root, for
    embedding and head use it.
    """
    strategy, wire = run.strategy, run.strategy["communication"]
    amp = run.job["precision"] == "bf16-amp"
    products = None if amp or run.compute_dtype == run.weight_dtype else run.compute_dtype
    wire_type = wire["gradient_dtype"] or wire["compression"]
    reduced = WIRE.get(wire_type, None if products is None else torch.float32)
    policy = {"param_dtype": products, "reduce_dtype": reduced}
    common = {
        "mesh": grid.states,
        "offload_policy": CPUOffloadPolicy(pin_memory=run.device.type == "cuda")
        if strategy["offload"] == "optimizer+weights"
        else OffloadPolicy(),
    }
    free = strategy["zero"] == 3 and strategy["pp"] == 1
    inner = MixedPrecisionPolicy(**policy)
    blocks = list(model.layers.values())
    for block in blocks:
        fully_shard(block, reshard_after_forward=free, mp_policy=inner, **common)
    if model.embed is not None and not run.model["tied_embeddings"]:
        fully_shard(model.embed, reshard_after_forward=free, mp_policy=inner, **common)
    # What goes to the next stage has the type that stage expects.
    between = None if model.head is not None else get_stream_dtype(run)
    root = MixedPrecisionPolicy(**policy, output_dtype=between)
    fully_shard(model, reshard_after_forward=False, mp_policy=root, **common)
    if run.model["moe"]:
        model.set_reduce_scatter_unused_params(True)  # an expert without tokens has no gradient on some ranks
    if wire["overlap_parameters"]:
        for block, following in pairwise(blocks):
            block.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([block])


def get_stream_dtype(run: TrainerRun) -> torch.dtype:
    """Type of the residual stream."""
    return torch.float32 if run.job["precision"] == "bf16-amp" else run.compute_dtype


# ---- the size of the gradient ----


def clip_sharded_gradients(
    parameters: dict[str, nn.Parameter], limit: float | None, grid: RankMesh, *, scale: float, counted: set[str]
) -> float:
    """Norm of the gradient, which was multiplied with `scale` and is now divided by it, and brought down to `limit`.

    Each rank adds up what it holds, divided by the number of ranks that hold the same; parameters not in `counted` are
    a second copy (tied embeddings). Where the norm is not finite nothing is changed.
    """
    ranks = grid.mesh.size() // grid.count_ranks("pp") // grid.count_ranks("zone")
    local_gradients, squares = [], []
    for name, parameter in parameters.items():
        if parameter.grad is None:
            continue
        gradient, part = parameter.grad, get_local_part(parameter.grad)
        local_gradients.append(part)
        if name in counted:
            squares.append(part.float().square().sum().to(grid.mesh.device_type) * (_count_shards(gradient) / ranks))
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=grid.mesh.device_type)
    dist.all_reduce(total, group=grid.everyone)
    norm = float(total.sqrt()) / scale
    factor = min(1.0, limit / (norm + 1e-6)) / scale if limit else 1 / scale
    if norm < float("inf") and factor != 1.0:
        torch._foreach_mul_(local_gradients, factor)
    return norm


def _count_shards(tensor: Tensor) -> int:
    """Ranks that hold different pieces of a tensor."""
    if not isinstance(tensor, DTensor):
        return 1
    placed = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return math.prod(size for size, how in placed if not how.is_replicate())


# ---- the pipeline: the chunks of a rank, and the schedule that runs micro-batches through them ----

# Built on torch.distributed.pipelining (PyTorch 2.13). Shapes between stages are known beforehand, so no trial pass is
# made. Inside a stage FSDP keeps the gathered weights from the first to the last micro-batch of a step and reduces the
# gradients once, after the last: torch's stages do so whatever the ZeRO stage.


SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}
ONE_STAGE = ("gpipe", "1f1b")
V_SHAPED = ("zbv", "dualpipev")


def list_places(schedule: str, pp: int, interleave: int) -> list[list[int]]:
    """Places in the model of the chunks of each stage; a V goes back up, so that the last stage holds the middle."""
    if schedule in V_SHAPED:
        return [[stage, 2 * pp - 1 - stage] for stage in range(pp)]
    return [[chunk * pp + stage for chunk in range(interleave)] for stage in range(pp)]


def list_layers(place: int, chunk_layers: list[int]) -> list[int]:
    """Layer numbers of the chunk at a place."""
    first = sum(chunk_layers[:place])
    return list(range(first, first + chunk_layers[place]))


def check_schedule(strategy: dict) -> None:
    """Refuse numbers of micro-batches that torch's schedules cannot run."""
    pp, schedule = strategy["pp"], strategy["schedule"]
    if schedule not in SCHEDULES:
        raise Refusal(f"strategy.schedule={schedule}; torch has {', '.join(SCHEDULES)}")
    for micro_batches in sorted(set(strategy["replica_micro_batches"])):
        rounds = max(1, micro_batches // pp)
        if schedule in ("interleaved", "zero-bubble") and micro_batches % rounds:
            raise Refusal(
                f"{micro_batches} micro-batches on {pp} stages: torch's {schedule} schedule takes multiples of {rounds}"
            )
        if schedule == "dualpipev" and micro_batches < 2 * pp:
            raise Refusal(f"{micro_batches} micro-batches: torch's dualpipev takes at least {2 * pp} on {pp} stages")


class Pipeline:
    """The chunks of this rank and their schedule."""

    def __init__(
        self, run: TrainerRun, grid: RankMesh, chunks: dict[int, nn.Module], loss: Callable, rows: int, span: Callable
    ) -> None:
        """`chunks`: modules by their place in the model; `rows`: of the vocabulary; `span`: measures what is within."""
        strategy, count = run.strategy, len(run.strategy["chunk_layers"])
        # Shapes of one micro-batch on this rank.
        size, length = strategy["micro_batch"], run.job["seq_len"] // strategy["cp"]
        slices = strategy["tp"] if strategy["sequence_parallel"] else 1
        first, end = get_rank_rows(rows, grid.mesh["tp"])
        ids = torch.empty((size, length), dtype=torch.int64, device="meta")
        stream = {"dtype": get_stream_dtype(run), "device": "meta", "requires_grad": True}
        between = torch.empty((size, length // slices, run.model["hidden"]), **stream)
        out = torch.empty((size, length, end - first), dtype=run.compute_dtype, device="meta", requires_grad=True)
        self.stages = [
            PipelineStage(
                module,
                place,
                count,
                run.device,
                input_args=ids if place == 0 else between,
                output_args=out if place == count - 1 else between,
                group=grid.mesh["pp"].get_group(),
            )
            for place, module in sorted(chunks.items())
        ]
        for number, stage in enumerate(self.stages):
            _time_stage(stage, number, span)
        self.first = any(stage.is_first for stage in self.stages)
        self.last = any(stage.is_last for stage in self.stages)
        kind = strategy["schedule"]
        stages = self.stages[0] if kind in ONE_STAGE else self.stages
        self.schedule = SCHEDULES[kind](stages, run.micro_batches, loss_fn=loss, scale_grads=False)

    def run_step(self, inputs: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
        """Forward and backward passes of all micro-batches; the losses on the ranks of the last stage."""
        losses: list[Tensor] = []
        ids = (torch.cat(inputs),) if self.first else ()
        target = torch.cat(targets) if self.last else None
        self.schedule.step(*ids, target=target, losses=losses if self.last else None, return_outputs=False)
        return [loss.detach() for loss in losses]


def _time_stage(stage: PipelineStage, chunk: int, span: Callable) -> None:
    """Measure each pass of a stage; torch calls these three methods once for each micro-batch in every schedule."""
    for method, kind in (
        ("forward_one_chunk", "forward"),
        ("backward_one_chunk", "backward"),
        ("backward_weight_one_chunk", "weight"),
    ):
        setattr(stage, method, _wrap_span(getattr(stage, method), kind, chunk, span))


def _wrap_span(run: Callable, kind: str, chunk: int, span: Callable) -> Callable:
    def run_timed(micro_batch: int, *args, **kwargs):
        with span(kind, micro_batch=micro_batch, chunk=chunk):
            return run(micro_batch, *args, **kwargs)

    return run_timed
