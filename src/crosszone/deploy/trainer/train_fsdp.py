"""Train with PyTorch FSDP2: sharded states (or HSDP), tensor, context and pipeline parallelism, as settings.json says.

    bash nodes/000.sh                          on every node its own script: starts torchrun with the planned ranks
    bash nodes/000.sh --tiny --steps 5         the same kind of run, shrunk to seconds
    torchrun --nproc-per-node 2 train.py settings.json --tiny --device cpu

Started again, it goes on from the last checkpoint in --out (see `python3 train.py --help`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from checkpoint import due
from context import Context
from data import batches
from metrics import Metrics
from model import build, initialise, recompute
from optimiser import make, rate, set_rate
from parallel import Grid, clip, exchange_between_copies, make_grid, shard, stream_dtype
from pipeline import Pipeline, check_schedule, layers_of, places
from run import Refusal, Run, guard, start
from states import States, ZoneAverage, by_mesh, load_weights
from tensor import cut, own_rows, vocabulary_loss
from torch import Tensor, nn


def main() -> None:
    """Train as settings.json says."""
    run = start(sys.argv[1:])
    check(run)
    grid = make_grid(run)
    causal, cp = run.model["kind"] == "decoder", run.strategy["cp"]
    context = Context(run.job["seq_len"], cp, run.coordinates["cp"], run.group("cp") if cp > 1 else None, causal)
    chunks = chunks_of(run, grid, context)
    named = {name: one for chunk in chunks.values() for name, one in chunk.named_parameters()}
    optimizer = by_mesh(make(run, nn.ModuleList(chunks.values())))
    tied = Tied(run, chunks)
    average = ZoneAverage(run, grid, named) if run.strategy["local_update"] else None
    states = States(run, grid, named, optimizer, average)
    first = states.resume() + 1

    loss_of = Loss(run, grid, states)
    data, metrics = ([context.part(one) for one in pair] for pair in batches(run, first)), Metrics(run)
    piped = pipeline_of(run, grid, chunks, loss_of, metrics) if run.strategy["pp"] > 1 else None
    copies = grid.size("replicate") > 1
    waiting: deque[Any] = deque()
    step, stop = first - 1, first > run.steps
    while not stop:
        step += 1
        metrics.begin(step)
        lr = rate(run, step)
        set_rate(optimizer, lr)
        if piped is not None:
            with metrics.span("data"):
                pairs = [next(data) for _ in range(run.micro_batches)]
            losses = piped.step([inputs for inputs, _ in pairs], [targets for _, targets in pairs])
        else:
            losses = passes(run, chunks[0], loss_of, data, metrics, copies)
        with metrics.span("gradients"):
            tied.add_up()
            norm = clip(named, run.training["clip"], grid, scale=states.scale, counted=named.keys() - tied.copies)
        with metrics.span("optimizer"):
            if states.accepts(norm):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for name, turn in average.turns(step) if average else []:
            with metrics.span("gradients", name=name):
                turn()
        # One sum over all ranks: the loss, and whether any of them was asked to stop. Zones that train on their own do
        # not wait for it: they look at it one step later.
        waiting.append((metrics.close(), lr, norm, run.totals_later([loss_of.share(losses), float(run.stop_asked)])))
        stop = step >= run.steps
        while len(waiting) > (1 if average and not stop else 0):
            row, its_lr, its_norm, totals = waiting.popleft()
            mean, asked = totals()
            metrics.write(row, loss=mean, lr=its_lr, grad_norm=its_norm)
            stop = stop or asked > 0
        if due(run, step, stop):
            states.save(step)
    run.say(f"done: step {step} of {run.steps}; {states.checkpoints.path(step)}")
    run.end()


def passes(run: Run, model: nn.Module, loss_of: Loss, data: Iterator, metrics: Metrics, copies: bool) -> list[Tensor]:
    """Forward and backward pass of every micro-batch of a step; the losses. `copies`: states have copies (HSDP)."""
    losses = []
    for number in range(run.micro_batches):
        with metrics.span("data", micro_batch=number):
            inputs, targets = next(data)
        if copies:
            exchange_between_copies(model, number == run.micro_batches - 1)
        with metrics.span("forward", micro_batch=number):
            loss = loss_of(model(inputs), targets)
        with metrics.span("backward", micro_batch=number):
            loss.backward()
        losses.append(loss.detach())
    return losses


# ---- what this trainer can do ----

# Schedules that take the backward pass apart, which torch.compile cannot.
SPLIT = ("zero-bubble", "zbv", "dualpipev")
COMPILED = f"has no effect here: it needs torch.compile, which needs CUDA and no {', '.join(SPLIT)} schedule"


def check(run: Run) -> None:
    """Refuse, with one clear line, what this trainer cannot do; say what it does otherwise."""
    strategy, wire = run.strategy, run.strategy["communication"]
    allowed = {"ep": [1], "zero": [2, 3], "offload": ["none", "optimizer+weights"]}
    for key, values in allowed.items():
        if strategy[key] not in values:
            raise Refusal(f"strategy.{key}={strategy[key]}: FSDP takes {' or '.join(str(one) for one in values)}")
    if wire["compression"] not in ("none", "bf16"):
        raise Refusal(f"communication.compression={wire['compression']}: FSDP has none and bf16; choose one")
    if strategy["pp"] > 1:
        check_schedule(strategy)
    if run.job["optimizer"] == "adafactor":
        raise Refusal("job.optimizer adafactor: torch's takes no sharded weights; choose adamw, lion, muon or lamb")
    if wire["overlap_tensor"] and strategy["tp"] > 1:
        run.note(f"communication.overlap_tensor {'is in effect' if compiles(run) else COMPILED}")
    if not wire["overlap_gradients"]:
        run.note("communication.overlap_gradients=false has no effect: FSDP always reduces during the backward pass")


def compiles(run: Run) -> bool:
    """Whether blocks can be compiled."""
    return run.device.type == "cuda" and (run.strategy["pp"] == 1 or run.strategy["schedule"] not in SPLIT)


def float8(run: Run) -> bool:
    """Products in fp8 by torchao; everything around them as with bf16."""
    if run.job["precision"] != "fp8":
        return False
    try:
        import torchao.float8  # noqa: F401
    except ImportError:
        raise Refusal("job.precision fp8 needs torchao: pip install torchao; or choose bf16") from None
    run.settings["job"]["precision"] = "bf16"
    return True


# ---- the model ----


def chunks_of(run: Run, grid: Grid, context: Context) -> dict[int, nn.Module]:
    """The parts of the model that this rank holds, by their place in it: cut, sharded, filled."""
    strategy = run.strategy
    layers, pp = strategy["chunk_layers"], strategy["pp"]
    held = places(strategy["schedule"], pp, len(layers) // pp)[run.coordinates["pp"]] if pp > 1 else [0]
    fp8 = float8(run)
    made = {}
    for place in held:
        own = layers_of(place, layers) if pp > 1 else None
        model = build(run.model, layers=own, first=place == 0, last=pp == 1 or place == len(layers) - 1)
        made[place] = prepared(run, grid, context, model.to(run.weight_dtype), fp8)
    return made


def prepared(run: Run, grid: Grid, context: Context, model: nn.Module, fp8: bool) -> nn.Module:
    """A part of the model on device meta, made ready to train."""
    strategy = run.strategy
    recompute(model, strategy["recompute"])
    context.apply(model)
    if fp8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(run.job["fp8_recipe"])
        convert_to_float8_training(model.layers, config=config, module_filter_fn=lambda one, _: _wide(one))
    if strategy["tp"] > 1:
        cut(model, grid.mesh["tp"], sequence=strategy["sequence_parallel"])
        if strategy["communication"]["overlap_tensor"] and compiles(run):
            overlap_tensor(grid, model)
    see_positions(run, model, context)
    shard(model, run, grid)
    offloaded = strategy["offload"] != "none"
    initialise(model, run.seed, "cpu" if offloaded else run.device)
    if run.data["init_from"]:
        load_weights(run, model)
    return model


def _wide(module: nn.Module) -> bool:
    """The fp8 product wants multiples of 16."""
    return isinstance(module, nn.Linear) and module.in_features % 16 == 0 and module.out_features % 16 == 0


def see_positions(run: Run, model: nn.Module, context: Context) -> None:
    """Tell the model which positions its tokens have: a rank may hold pieces of the sequence, a stage sees none."""
    forward, positions = model.forward, context.positions.to(run.device)
    amp = run.job["precision"] == "bf16-amp"

    def placed(x: Tensor) -> Tensor:
        with torch.autocast(run.device.type, torch.bfloat16, enabled=amp):
            return forward(x, positions)

    model.forward = placed


def overlap_tensor(grid: Grid, model: nn.Module) -> None:
    """Let the compiler cut tensor-parallel collectives and their products into pieces that overlap."""
    import torch._inductor.config as inductor
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    inductor._micro_pipeline_tp = True
    enable_symm_mem_for_group(grid.mesh["tp"].get_group().group_name)
    for block in model.layers.values():
        block.compile()


class Loss:
    """What the backward pass starts from: a micro-batch's loss, weighed so that FSDP's mean is the sum over samples.

    FSDP averages over replicas and context ranks; the gradient shall be the sum over all samples / samples of a step,
    also where replicas differ in how many they take.
    """

    def __init__(self, run: Run, grid: Grid, states: States) -> None:
        self.run, self.states, self.mesh = run, states, grid.mesh["tp"]
        strategy, job = run.strategy, run.job
        masked = max(1, round(run.training["mask_share"] * job["seq_len"]))
        self.counted = strategy["micro_batch"] * (masked if run.model["kind"] == "encoder" else job["seq_len"])
        self.weight = strategy["micro_batch"] * grid.replicas * strategy["cp"] / grid.samples
        self.rows = run.model["vocab_padded_to"] or run.model["vocab"]

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of the tokens here, of all that count in the micro-batch."""
        if self.mesh.size() > 1:
            total = vocabulary_loss(logits, targets, self.mesh, self.rows)
        else:
            total = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
        return total * (self.weight * self.states.scale / self.counted)

    def share(self, losses: list[Tensor]) -> Tensor | float:
        """What this rank adds to the mean loss of the step."""
        if not losses:
            return 0.0
        each = self.run.strategy["micro_batch"] / self.run.job["global_batch"] / self.mesh.size()
        return torch.stack(losses).double().sum() * (each / self.weight / self.states.used)


def pipeline_of(run: Run, grid: Grid, chunks: dict[int, nn.Module], loss: Loss, metrics: Metrics) -> Pipeline:
    """The pipeline of this replica, with the shapes of a micro-batch on this rank."""
    strategy, job = run.strategy, run.job
    size, length = strategy["micro_batch"], job["seq_len"] // strategy["cp"]
    slices = strategy["tp"] if strategy["sequence_parallel"] else 1
    first, end = own_rows(loss.rows, grid.mesh["tp"])
    products = torch.float32 if run.compute_dtype == torch.float32 else run.compute_dtype
    return Pipeline(
        chunks,
        strategy=strategy,
        group=grid.mesh["pp"].get_group(),
        device=run.device,
        micro_batches=run.micro_batches,
        tokens=(size, length),
        hidden=((size, length // slices, run.model["hidden"]), stream_dtype(run)),
        logits=((size, length, end - first), products),
        loss=loss,
        span=metrics.span,
    )


class Tied:
    """One table as embedding of the first stage and head of the last: both copies get the sum of their gradients."""

    def __init__(self, run: Run, chunks: dict[int, nn.Module]) -> None:
        last = run.strategy["pp"] - 1
        self.table = next((one.embed.weight for one in chunks.values() if one.embed is not None), None)
        self.head = next((one.head.weight for one in chunks.values() if one.head is not None and one.tied), None)
        self.copies = {"head.weight"} if self.head is not None else set()
        self.apart, self.device = run.model["tied_embeddings"] and last > 0, run.device
        self.group = None
        if self.apart and run.strategy["schedule"] not in ("zbv", "dualpipev"):
            ends = [run.coordinates_of(rank) for rank in range(run.world)]
            keys = [(c["tp"], c["cp"], c["dp"], 0 if c["pp"] in (0, last) else c["pp"]) for c in ends]
            self.group = run.split(keys)

    def add_up(self) -> None:
        """Add the two gradients."""
        if not self.apart or (self.table is None and self.head is None):
            return
        held = [one.grad.to_local() for one in (self.table, self.head) if one is not None]
        if self.group is None:
            held[0].add_(held[1])
            held[1].copy_(held[0])
        else:
            total = held[0].to(self.device)  # it may be in host memory
            dist.all_reduce(total, group=self.group)
            held[0].copy_(total)


if __name__ == "__main__":
    guard(main)
