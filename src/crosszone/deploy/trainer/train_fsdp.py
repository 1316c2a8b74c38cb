"""Train with PyTorch FSDP2: sharded states (or HSDP), tensor, context and pipeline parallelism, as settings.json says.

    bash nodes/000.sh                          on every node its own script: starts torchrun with the planned ranks
    bash nodes/000.sh --tiny --steps 5         the same kind of run, shrunk to seconds
    torchrun --nproc-per-node 2 train.py settings.json --tiny --device cpu

Started again, it goes on from the last checkpoint in --out (see `python3 train.py --help`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from attention import get_local_part
from checkpoint import Checkpoints, get_random_state, make_unreadable_error, restore_random_state
from data import iter_batches
from loop import FrameworkTrainer, load_first_weights, train
from model import build, init_weights, set_recompute
from model_parallel import ContextShard, compute_vocabulary_loss, split_model
from optimiser import build_optimizer, init_optimizer_states
from outer import OuterOptimizer
from parallel import (
    Pipeline,
    RankMesh,
    build_mesh,
    check_schedule,
    clip_sharded_gradients,
    list_layers,
    list_places,
    shard_model,
)
from run import Refusal, TrainerRun, run_guarded, start_run
from torch import Tensor, nn


def main() -> None:
    """Train as settings.json says."""
    run = start_run(sys.argv[1:])
    check_supported(run)
    train(FSDPTrainer(run))
    run.end()


class FSDPTrainer(FrameworkTrainer):
    """Sharded states on a mesh of ranks; with a pipeline its schedule runs the micro-batches."""

    def __init__(self, run: TrainerRun) -> None:
        self.grid = build_mesh(run)
        causal, cp = run.model["kind"] == "decoder", run.strategy["cp"]
        group = run.create_group("cp") if cp > 1 else None
        self.context = ContextShard(run.job["seq_len"], cp, run.coordinates["cp"], group, causal)
        chunks = build_chunks(run, self.grid, self.context)
        self.parameters = {name: weight for chunk in chunks.values() for name, weight in chunk.named_parameters()}
        optimizer = group_by_mesh(build_optimizer(run, nn.ModuleList(chunks.values())))
        self.tied = TiedTables(run, chunks)
        self.outer = ZoneAverage(run, self.grid, self.parameters) if run.strategy["local_update"] else None
        self.states = ShardedStates(run, self.grid, self.parameters, optimizer, self.outer)
        self.loss = WeightedLoss(run, self.grid, self.states)
        super().__init__(run, chunks.get(0), optimizer, self.states.resume())
        self.pipeline = None
        if run.strategy["pp"] > 1:
            self.pipeline = Pipeline(run, self.grid, chunks, self.loss, self.loss.rows, self.metrics.record_span)

    def iter_batches(self, step: int) -> Iterator[Any]:
        """The tokens of each sequence that this rank holds."""
        return ([self.context.take_part(tokens) for tokens in pair] for pair in iter_batches(self.run, step))

    def compute_gradients(self) -> Tensor | float:
        """By the pipeline's schedule, where there is one."""
        if self.pipeline is None:
            return self.loss.compute_share(self.run_micro_batches())
        with self.metrics.record_span("data"):
            pairs = [next(self.batches) for _ in range(self.run.micro_batches)]
        losses = self.pipeline.run_step([inputs for inputs, _ in pairs], [targets for _, targets in pairs])
        return self.loss.compute_share(torch.stack(losses).double().sum()) if losses else 0.0

    def reduce_gradients(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """FSDP scatters every time, so that none ever holds all gradients; copies (HSDP) exchange once a step."""
        if self.grid.count_ranks("replicate") > 1:
            self.model.set_requires_all_reduce(is_last)
        return contextlib.nullcontext()

    def run_forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """FSDP casts by itself."""
        return self.loss(self.model(inputs), targets)

    def apply_gradients(self) -> float:
        """The optimizer's step; with fp16 only where no gradient overflowed."""
        with self.metrics.record_span("gradients"):
            self.tied.add_up()
            norm = clip_sharded_gradients(
                self.parameters,
                self.run.training["clip"],
                self.grid,
                scale=self.states.scale,
                counted=self.parameters.keys() - self.tied.copies,
            )
        with self.metrics.record_span("optimizer"):
            if self.states.is_accepted(norm):
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return norm

    def save(self, step: int) -> None:
        """Each rank its part."""
        self.states.save(step)


# ---- what this trainer can do ----

# Schedules that take the backward pass apart, which torch.compile cannot.
SPLIT_BACKWARD_SCHEDULES = ("zero-bubble", "zbv", "dualpipev")
NOT_COMPILED = (
    "has no effect here: it needs torch.compile, which needs CUDA and no "
    f"{', '.join(SPLIT_BACKWARD_SCHEDULES)} schedule"
)


def check_supported(run: TrainerRun) -> None:
    """Refuse, with one clear line, what this trainer cannot do; say what it does otherwise."""
    strategy, wire = run.strategy, run.strategy["communication"]
    allowed = {"ep": [1], "zero": [2, 3], "offload": ["none", "optimizer+weights"]}
    for key, values in allowed.items():
        if strategy[key] not in values:
            raise Refusal(f"strategy.{key}={strategy[key]}: FSDP takes {' or '.join(map(str, values))}")
    if wire["compression"] not in ("none", "bf16"):
        raise Refusal(f"communication.compression={wire['compression']}: FSDP has none and bf16; choose one")
    if strategy["pp"] > 1:
        check_schedule(strategy)
    if run.job["optimizer"] == "adafactor":
        raise Refusal("job.optimizer adafactor: torch's takes no sharded weights; choose adamw, lion, muon or lamb")
    if wire["overlap_tensor"] and strategy["tp"] > 1:
        run.print_note(f"communication.overlap_tensor {'is in effect' if can_compile(run) else NOT_COMPILED}")
    if not wire["overlap_gradients"]:
        run.print_note(
            "communication.overlap_gradients=false has no effect: FSDP always reduces during the backward pass"
        )


def can_compile(run: TrainerRun) -> bool:
    """Whether blocks can be compiled."""
    return run.device.type == "cuda" and (
        run.strategy["pp"] == 1 or run.strategy["schedule"] not in SPLIT_BACKWARD_SCHEDULES
    )


def switch_to_float8(run: TrainerRun) -> bool:
    """Whether matmuls are to be in fp8, by torchao; everything around them then is as with bf16."""
    if run.job["precision"] != "fp8":
        return False
    try:
        import torchao.float8  # noqa: F401
    except ImportError:
        raise Refusal("job.precision fp8 needs torchao: pip install torchao; or choose bf16") from None
    run.settings["job"]["precision"] = "bf16"
    return True


# ---- the model ----


def build_chunks(run: TrainerRun, grid: RankMesh, context: ContextShard) -> dict[int, nn.Module]:
    """The parts of the model that this rank holds, by their place in it: cut, sharded, filled."""
    strategy = run.strategy
    layers, pp = strategy["chunk_layers"], strategy["pp"]
    local_places = list_places(strategy["schedule"], pp, len(layers) // pp)[run.coordinates["pp"]] if pp > 1 else [0]
    fp8 = switch_to_float8(run)
    chunks = {}
    for place in local_places:
        chunk_layers = list_layers(place, layers) if pp > 1 else None
        model = build(run.model, layers=chunk_layers, first=place == 0, last=pp == 1 or place == len(layers) - 1)
        chunks[place] = prepare_chunk(run, grid, context, model.to(run.weight_dtype), fp8)
    return chunks


def prepare_chunk(run: TrainerRun, grid: RankMesh, context: ContextShard, model: nn.Module, fp8: bool) -> nn.Module:
    """A part of the model on device meta, made ready to train."""
    strategy = run.strategy
    set_recompute(model, strategy["recompute"])
    context.apply(model)
    if fp8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(run.job["fp8_recipe"])
        convert_to_float8_training(
            model.layers, config=config, module_filter_fn=lambda module, _: _has_float8_widths(module)
        )
    if strategy["tp"] > 1:
        split_model(model, grid.mesh["tp"], sequence=strategy["sequence_parallel"])
        if strategy["communication"]["overlap_tensor"] and can_compile(run):
            compile_tensor_overlap(grid, model)
    set_positions(run, model, context)
    shard_model(model, run, grid)
    offloaded = strategy["offload"] != "none"
    init_weights(model, run.seed, "cpu" if offloaded else run.device)
    if run.data["init_from"]:
        load_first_weights(model, Path(run.data["init_from"]), load_sharded_weights)
    return model


def _has_float8_widths(module: nn.Module) -> bool:
    """The fp8 matmul wants multiples of 16."""
    return isinstance(module, nn.Linear) and module.in_features % 16 == 0 and module.out_features % 16 == 0


def set_positions(run: TrainerRun, model: nn.Module, context: ContextShard) -> None:
    """Tell the model which positions its tokens have: a rank may hold pieces of the sequence, a stage sees none."""
    forward, positions = model.forward, context.positions.to(run.device)
    amp = run.job["precision"] == "bf16-amp"

    def run_forward(x: Tensor) -> Tensor:
        with torch.autocast(run.device.type, torch.bfloat16, enabled=amp):
            return forward(x, positions)

    model.forward = run_forward


def compile_tensor_overlap(grid: RankMesh, model: nn.Module) -> None:
    """Let the compiler cut tensor-parallel collectives and their products into pieces that overlap."""
    import torch._inductor.config as inductor
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    inductor._micro_pipeline_tp = True
    enable_symm_mem_for_group(grid.mesh["tp"].get_group().group_name)
    for block in model.layers.values():
        block.compile()


class WeightedLoss:
    """What the backward pass starts from: a micro-batch's loss, weighed so that FSDP's mean is the sum over samples.

    FSDP averages over replicas and context ranks; the gradient shall be the sum over all samples / samples of a step,
    also where replicas differ in how many they take.
    """

    def __init__(self, run: TrainerRun, grid: RankMesh, states: ShardedStates) -> None:
        self.run, self.states, self.mesh = run, states, grid.mesh["tp"]
        strategy, job = run.strategy, run.job
        masked = max(1, round(run.training["mask_share"] * job["seq_len"]))
        self.counted = strategy["micro_batch"] * (masked if run.model["kind"] == "encoder" else job["seq_len"])
        self.weight = strategy["micro_batch"] * grid.replicas * strategy["cp"] / grid.samples
        self.rows = run.model["vocab_padded_to"] or run.model["vocab"]

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of the tokens here, of all that count in the micro-batch."""
        if self.mesh.size() > 1:
            total = compute_vocabulary_loss(logits, targets, self.mesh, self.rows)
        else:
            total = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
        return total * (self.weight * self.states.scale / self.counted)

    def compute_share(self, loss_sum: Tensor) -> Tensor:
        """What this rank adds to the mean loss of the step."""
        sample_share = self.run.strategy["micro_batch"] / self.run.job["global_batch"] / self.mesh.size()
        return loss_sum * (sample_share / self.weight / self.states.used)


class TiedTables:
    """One table as embedding of the first stage and head of the last: both copies get the sum of their gradients."""

    def __init__(self, run: TrainerRun, chunks: dict[int, nn.Module]) -> None:
        last = run.strategy["pp"] - 1
        self.table = next((chunk.embed.weight for chunk in chunks.values() if chunk.embed is not None), None)
        self.head = next(
            (chunk.head.weight for chunk in chunks.values() if chunk.head is not None and chunk.tied), None
        )
        self.copies = {"head.weight"} if self.head is not None else set()
        self.apart, self.device = run.model["tied_embeddings"] and last > 0, run.device
        self.group = None
        if self.apart and run.strategy["schedule"] not in ("zbv", "dualpipev"):
            ends = [run.get_coordinates(rank) for rank in range(run.world)]
            keys = [(c["tp"], c["cp"], c["dp"], 0 if c["pp"] in (0, last) else c["pp"]) for c in ends]
            self.group = run.split_ranks(keys)

    def add_up(self) -> None:
        """Add the two gradients."""
        if not self.apart or (self.table is None and self.head is None):
            return
        gradients = [weight.grad.to_local() for weight in (self.table, self.head) if weight is not None]
        if self.group is None:
            gradients[0].add_(gradients[1])
            gradients[1].copy_(gradients[0])
        else:
            total = gradients[0].to(self.device)  # it may be in host memory
            dist.all_reduce(total, group=self.group)
            gradients[0].copy_(total)


# ---- what a run carries from step to step where every rank holds a part of it ----

# A checkpoint (torch.distributed.checkpoint) holds one entry for each set of states: where states have copies (HSDP) or
# zones train on their own, every copy writes its own, so that no node needs the files of another zone. What is a rank's
# own is stored under its number.


# fp16: the first loss scale, halved when a gradient is not finite, and the good steps after which it is doubled.
FIRST_SCALE, SCALE_GROWTH_STEPS = 2.0**15, 1000


class ShardedStates:
    """Optimizer states, loss scale and their checkpoints."""

    def __init__(
        self,
        run: TrainerRun,
        grid: RankMesh,
        parameters: dict[str, nn.Parameter],
        optimizer: Any,
        average: ZoneAverage | None,
    ) -> None:
        self.run, self.parameters, self.average = run, parameters, average
        self.optimizers = getattr(optimizer, "optimizers", [optimizer])
        self.scale = FIRST_SCALE if run.job["precision"] == "fp16" else 1.0
        self.used = self.scale
        """Scale of the step at hand; `scale` is that of the next."""
        self.good_steps = self.updates = 0
        self.copy = f"copy-{grid.get_place('zone')}-{grid.get_place('replicate')}"
        self.checkpoints = Checkpoints(run, sharded=True)

    def is_accepted(self, norm: float) -> bool:
        """Whether the step may be taken: not when fp16 gradients overflowed. Sets the loss scale of the next one."""
        self.used, good = self.scale, norm < float("inf")
        if self.run.job["precision"] == "fp16":
            self.good_steps = self.good_steps + 1 if good else 0
            if not good or self.good_steps == SCALE_GROWTH_STEPS:
                self.scale, self.good_steps = self.scale * (2.0 if good else 0.5), 0
            if not good:
                return False
        self.updates += 1
        return True

    def resume(self) -> int:
        """Load the newest checkpoint; the step it was made after, 0 where there is none."""
        step = self.checkpoints.find_latest() or 0
        if step:
            init_optimizer_states(self.optimizers)
            state = self.checkpoints.load(step, self.collect_state())
            rank_state = state[f"rank-{self.run.rank}"]
            self.scale, self.good_steps, self.updates = (
                float(rank_state["scale"]),
                int(rank_state["calm"]),
                int(rank_state["updates"]),
            )
            self.used = self.scale
            for counter in self.list_step_counters():
                counter.fill_(self.updates)
            if self.average is not None:
                self.average.load(rank_state["outer"])
            restore_random_state(self.run, rank_state["random"])
            self.run.print_line(f"resumed after step {step} from {self.checkpoints.get_path(step)}")
        return step

    def save(self, step: int) -> None:
        """Write a checkpoint."""
        self.checkpoints.save(step, self.collect_state())

    def collect_state(self) -> dict[str, Any]:
        """All tensors by name; those of parameters are DTensors that know their full shape."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        optimizer_states = {
            names[id(parameter)]: {
                key: tensor for key, tensor in state.items() if isinstance(tensor, Tensor) and key != "step"
            }
            for optimizer in self.optimizers
            for parameter, state in optimizer.state.items()
        }
        rank_state = {
            "scale": torch.tensor(self.scale),
            "calm": torch.tensor(self.good_steps),
            "updates": torch.tensor(self.updates),
        }
        rank_state["random"] = get_random_state(self.run)
        if self.average is not None:
            rank_state["outer"] = self.average.save()
        weights = {name: tensor.detach() for name, tensor in self.parameters.items()}
        return {self.copy: {"model": weights, "optimizer": optimizer_states}, f"rank-{self.run.rank}": rank_state}

    def list_step_counters(self) -> list[Tensor]:
        """The optimizers' own counts of steps; the same for all parameters, so not stored for each."""
        states = (state for optimizer in self.optimizers for state in optimizer.state.values())
        return [state["step"] for state in states if isinstance(state.get("step"), Tensor)]


def group_by_mesh(optimizer: Any) -> Any:
    """The same optimizer with a group for each mesh: one operation on many tensors takes those of one mesh only."""
    for member in getattr(optimizer, "optimizers", [optimizer]):
        split = []
        for group in member.param_groups:
            meshes: dict[object, list[Tensor]] = {}
            for parameter in group["params"]:
                meshes.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
            split += [group | {"params": parameters} for parameters in meshes.values()]
        member.param_groups[:] = split
    return optimizer


def load_sharded_weights(model: nn.Module, folder: Path) -> None:
    """Begin with the weights of another run's checkpoint."""
    import torch.distributed.checkpoint as dcp

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    try:
        dcp.load({"copy-0-0": {"model": weights}}, storage_reader=dcp.FileSystemReader(folder))
    except Exception as error:  # One of many kinds, wrapped by the library with the trace of every rank.
        raise make_unreadable_error(folder, error) from None


class ZoneAverage(OuterOptimizer):
    """Local updates where every rank holds shards: each averages its own with those of its peers in other zones."""

    def __init__(self, run: TrainerRun, grid: RankMesh, parameters: dict[str, nn.Parameter]) -> None:
        self.grid = grid
        super().__init__(run, [get_local_part(parameter.detach()) for parameter in parameters.values()])

    def create_groups(self) -> None:
        """The peers are those along the mesh's zone dimension; zones weigh by their samples."""
        self.across = self.grid.mesh["zone"].get_group()
        self.weight = self.grid.samples / self.run.job["global_batch"]

    def start_exchange(self, moved: Tensor) -> tuple[Tensor, Any]:
        """What is on the wire, and the exchange."""
        wire = (moved * self.weight).to(self.run.device, self.wire)
        return wire, dist.all_reduce(wire, group=self.across, async_op=True)

    def finish_exchange(self, wire: Tensor) -> Tensor:
        """The mean over zones."""
        return wire.to(self.common_weights[0][0].device, torch.float32)

    def save(self) -> dict[str, Tensor]:
        """Common weights and momentum of this rank's parts."""
        parts = [part for fragment in self.common_weights for part in fragment]
        buffers = [self.optimizer.state[part].get("momentum_buffer") for part in parts]
        saved = {f"common-{number}": part for number, part in enumerate(parts)}
        # Momentum that is not there yet acts like zero.
        return saved | {
            f"momentum-{number}": torch.zeros_like(part) if buffer is None else buffer
            for number, (part, buffer) in enumerate(zip(parts, buffers, strict=True))
        }

    def load(self, saved: dict[str, Tensor]) -> None:
        """Set them."""
        for number, part in enumerate(part for fragment in self.common_weights for part in fragment):
            part.copy_(saved[f"common-{number}"])
            self.optimizer.state[part]["momentum_buffer"] = saved[f"momentum-{number}"]


if __name__ == "__main__":
    run_guarded(main)
