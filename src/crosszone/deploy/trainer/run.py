"""Run: what to train, on which device, as which rank; every trainer starts with it.

    run = start_run(sys.argv[1:])             settings.json, the command line, torch.distributed, seed, device
    run.coordinates["pp"]                     this rank's place along an axis
    run.list_ranks(pp=0, tp=0)                all ranks at a place
    run.create_group("dp")                    process group of the ranks that differ from this one along dp only
    run.split_ranks(run.zone_of_rank)         process group of the ranks of this rank's zone
    run.start_sum_over_ranks([loss, flag])    sums over all ranks
    run.run_agreed(action)                    its result; a refusal on one rank becomes one on all
    run_guarded(main)                         ends with one line and status 2 where a `Refusal` says why

Needs torch, numpy and the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import logging
import math
import os
import signal
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny import fold_replicas, scale_to_tiny

AXES = ("tp", "cp", "dp", "pp")


class Refusal(Exception):
    """What was asked for cannot be done; the text says what to do instead.

    `this_machine` marks one that concerns this rank's machine alone (a missing file): then this rank prints it as well.
    """

    def __init__(self, text: str, *, this_machine: bool = False) -> None:
        super().__init__(text)
        self.this_machine = this_machine


def run_guarded(main: Callable[[], None]) -> None:
    """Run `main` and end the process; a `Refusal` becomes one line on stderr and exit status 2, without a traceback."""
    rank = int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0")))
    try:
        main()
    except Refusal as refusal:
        text = " ".join(str(refusal).split())
        if rank == 0:
            print(f"error: {text}", file=sys.stderr, flush=True)
        elif refusal.this_machine:
            print(f"error: rank {rank}: {text}", file=sys.stderr, flush=True)
        # Without leaving the group cleanly torch would wait for peers that have gone.
        os._exit(2)
    except RuntimeError as error:
        if not any(text in str(error) for text in ("closed by peer", "reset by peer", "Broken pipe")):
            raise
        print(f"error: rank {rank}: another rank has ended; its last line says why", file=sys.stderr, flush=True)
        os._exit(1)
    # A thread of torch's that lets go of a Python object while the interpreter is taken down ends the process with an
    # abort, so it is not taken down: everything is written by now.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@dataclass(kw_only=True)
class TrainerRun:
    """Settings, command line and device of this rank. `settings` holds what is used (`--tiny` applied)."""

    settings: dict[str, Any]
    args: argparse.Namespace
    rank: int
    world: int
    local_rank: int
    device: torch.device
    backend: str
    """nccl, gloo, or none where the trainer does not use torch.distributed."""
    out: Path
    steps: int
    """The step to stop after; the learning rate follows job.steps, so that more steps may be added later."""
    stop_asked: bool = False
    """SIGTERM arrived: finish the step, write a checkpoint, end."""
    saving_since: float | None = None
    """When the checkpoint that is written before the next step was begun, by time.perf_counter; None: none is."""
    _groups: dict[tuple[tuple[int, ...], ...], dist.ProcessGroup] = field(default_factory=dict)

    @property
    def model(self) -> dict[str, Any]:
        """The architecture, for `model.build`."""
        return self.settings["model"]

    @property
    def job(self) -> dict[str, Any]:
        """seq_len, global_batch, steps, precision, optimizer."""
        return self.settings["job"]

    @property
    def training(self) -> dict[str, Any]:
        """Learning rate, decay, clipping, seed, checkpoints."""
        return self.settings["training"]

    @property
    def strategy(self) -> dict[str, Any]:
        """Degrees, micro-batches, recompute, communication, local updates."""
        return self.settings["strategy"]

    @property
    def data(self) -> dict[str, Any]:
        """path, tokenizer, init_from; null path: synthetic."""
        return self.settings["data"]

    @property
    def zone_of_rank(self) -> list[int]:
        """Number of each rank's zone."""
        return self.settings["zone_of_rank"]

    @property
    def seed(self) -> int:
        """Seed of weights and data."""
        return self.training["seed"]

    @property
    def tiny(self) -> bool:
        """Everything is shrunk, for a trial on any machine."""
        return self.args.tiny

    @property
    def distributed(self) -> bool:
        """torch.distributed is up."""
        return self.backend != "none"

    @property
    def coordinates(self) -> dict[str, int]:
        """Place of this rank along every axis."""
        return self.get_coordinates(self.rank)

    def get_coordinates(self, rank: int) -> dict[str, int]:
        """A rank's place along every axis: by successive modulo in the planned order."""
        places = {}
        for axis in self.settings["order"]:
            rank, places[axis] = divmod(rank, self.strategy[axis])
        return places

    def list_ranks(self, **axes: int) -> list[int]:
        """The ranks at these coordinates, in ascending order."""
        places = ((rank, self.get_coordinates(rank)) for rank in range(self.world))
        return [rank for rank, place in places if all(place[axis] == value for axis, value in axes.items())]

    def create_group(self, *axes: str) -> dist.ProcessGroup:
        """Process group of the ranks that differ from this one along these axes only; all ranks must call it."""
        places = [self.get_coordinates(rank) for rank in range(self.world)]
        return self.split_ranks([tuple(place[axis] for axis in AXES if axis not in axes) for place in places])

    def split_ranks(self, keys: Sequence[Any]) -> dist.ProcessGroup:
        """Process group of the ranks whose key equals this rank's; all ranks must call it with the same keys."""
        parts: dict[Any, list[int]] = {}
        for rank, key in enumerate(keys):
            parts.setdefault(key, []).append(rank)
        rank_sets = tuple(tuple(ranks) for ranks in parts.values())
        if rank_sets not in self._groups:
            groups = [dist.new_group(list(ranks)) for ranks in rank_sets]
            group_number = next(number for number, ranks in enumerate(rank_sets) if self.rank in ranks)
            self._groups[rank_sets] = groups[group_number]
        return self._groups[rank_sets]

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step on this rank's replica."""
        return self.strategy["replica_micro_batches"][self.coordinates["dp"]]

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step over all replicas."""
        return self.job["global_batch"] * self.job["seq_len"]

    @property
    def weight_dtype(self) -> torch.dtype:
        """Type the weights are kept in: bf16 for bf16-pure, fp32 otherwise (bf16 and fp16 compute under autocast)."""
        return torch.bfloat16 if self.job["precision"] == "bf16-pure" else torch.float32

    @property
    def compute_dtype(self) -> torch.dtype:
        """Type of the matmuls."""
        kinds = {"bf16": torch.bfloat16, "bf16-amp": torch.bfloat16, "bf16-pure": torch.bfloat16}
        kinds |= {"fp16": torch.float16, "fp32": torch.float32}
        if self.job["precision"] not in kinds:
            supported = ", ".join(kinds)
            raise Refusal(f"job.precision {self.job['precision']} is not in this trainer; choose one of {supported}")
        return kinds[self.job["precision"]]

    def apply_autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward pass: autocast where weights are kept wider than matmuls."""
        if self.compute_dtype == self.weight_dtype:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def start_sum_over_ranks(self, values: Iterable[Any]) -> Callable[[], list[float]]:
        """Sums of a few numbers (floats or tensors) over all ranks; call what it returns to wait for them."""
        numbers = torch.stack(
            [torch.as_tensor(value, dtype=torch.float64).to(self.device).reshape(()) for value in values]
        )
        work = dist.all_reduce(numbers, async_op=True) if self.distributed and self.world > 1 else None

        def wait_for_sums() -> list[float]:
            if work is not None:
                work.wait()
            return numbers.tolist()

        return wait_for_sums

    def run_agreed(self, action: Callable[[], Any]) -> Any:
        """What `action` returns; where it is refused on any rank, all ranks refuse, so that none waits for another.

        The action must not talk to other ranks.
        """
        value, text = None, None
        try:
            value = action()
        except Refusal as refusal:
            text = str(refusal)
        texts = self.gather_objects(text)
        for rank, refusal_text in enumerate(texts):
            if refusal_text is not None:
                raise Refusal(refusal_text if rank == 0 or texts[0] == refusal_text else f"rank {rank}: {refusal_text}")
        return value

    def gather_objects(self, value: Any) -> list[Any]:
        """What each rank has."""
        if not self.distributed or self.world == 1:
            return [value]
        objects: list[Any] = [None] * self.world
        dist.all_gather_object(objects, value)
        return objects

    def wait_for_ranks(self) -> None:
        """Wait for all ranks."""
        if self.distributed and self.world > 1:
            dist.barrier()

    def print_line(self, text: str) -> None:
        """Print a line on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def print_note(self, text: str) -> None:
        """Print a remark on rank 0's stderr."""
        if self.rank == 0:
            print(f"note: {text}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the process group."""
        if self.distributed and dist.is_initialized():
            dist.destroy_process_group()


def start_run(
    argv: Sequence[str] | None = None,
    *,
    distributed: bool = True,
    rank: int | None = None,
    world: int | None = None,
    local_rank: int | None = None,
) -> TrainerRun:
    """Read settings and command line, join torch.distributed, set seed and device.

    A trainer with a runtime of its own (Horovod, torchft) passes `distributed=False` and the planned rank and world.
    """
    args = parse_arguments(argv)
    planned = read_settings(args.settings)
    launched = "RANK" in os.environ
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    world = int(os.environ.get("WORLD_SIZE", "1")) if world is None else world
    local_rank = int(os.environ.get("LOCAL_RANK", "0")) if local_rank is None else local_rank
    settings = apply_arguments(planned, args)
    ranks = math.prod(settings["strategy"][axis] for axis in AXES)
    is_single = world == 1 and ranks > 1 and not launched
    if not is_single and world != ranks:
        raise Refusal(
            f"settings.json is a plan for {ranks} ranks, {world} were started; "
            f"start {ranks} processes (bash nodes/NNN.sh on each node) or plan again for {world}"
        )
    if args.tiny:
        settings = scale_to_tiny(settings)
    if is_single:
        settings = fold_replicas(settings, Refusal, max_micro_batches=16 if args.tiny else None)
    device = choose_device(args.device, local_rank)
    backend = join_process_group(settings, device, rank, world, launched) if distributed else "none"
    torch.manual_seed(settings["training"]["seed"])
    steps = args.steps if args.steps is not None else (5 if args.tiny else settings["job"]["steps"])
    if steps is None:
        raise Refusal("the length of the run is not known; give --steps N, or job.tokens when planning")
    run = TrainerRun(
        settings=settings,
        args=args,
        rank=rank,
        world=world,
        local_rank=local_rank,
        device=device,
        backend=backend,
        out=Path(args.out),
        steps=steps,
    )
    if is_single:
        run.print_note(
            f"one process: {ranks} replicas run one after the other, {run.micro_batches} micro-batches a step"
        )
    if args.tiny and planned["data"]["init_from"]:
        run.print_note("--tiny begins with random weights, not with those of init_from")
    make_folder(run.out)
    install_stop_handler(run)
    return run


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line every trainer has."""
    parser = argparse.ArgumentParser(prog="train.py", description="Train as settings.json says.")
    parser.add_argument("settings", help="settings.json of the bundle")
    parser.add_argument("--tiny", action="store_true", help="the same kind of run, shrunk to seconds on any machine")
    parser.add_argument("--steps", type=parse_count, help="stop after this step (default: the planned length; tiny: 5)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--out", default="out", help="folder of checkpoints and metrics")
    parser.add_argument("--data", help="a token .bin file, a text file, or a folder of them (default: synthetic)")
    parser.add_argument("--tokenizer", help="tokenizer.json, for text")
    parser.add_argument("--init-from", help="folder of weights to begin with")
    parser.add_argument("--seed", type=int, help="seed of weights and data")
    parser.add_argument(
        "--checkpoint-every", type=parse_count, help="steps between two checkpoints; 0: only at the end"
    )
    parser.add_argument("--no-resume", action="store_true", help="begin at step 1 even if there is a checkpoint")
    parser.add_argument("--log-every", type=parse_count, default=1, help="steps between two printed lines")
    return parser.parse_args(argv)


def parse_count(text: str) -> int:
    """A number from 0 on, for argparse."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is below 0")
    return number


def read_settings(path: str) -> dict[str, Any]:
    """settings.json; a `Refusal` where it is none."""
    try:
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(f"cannot read {path}: {error.strerror}; name the settings.json of the bundle") from None
    except ValueError as error:
        raise Refusal(f"{path} is not JSON ({error}); generate the bundle again") from None
    parts = ("model", "job", "training", "data", "strategy", "order", "zone_of_rank", "node_of_rank")
    missing = [part for part in parts if not isinstance(settings, dict) or part not in settings]
    if missing:
        raise Refusal(f"{path} has no {', '.join(missing)}; it is not a settings.json, generate the bundle again")
    if settings.get("version") != 1:
        raise Refusal(f"{path} has version {settings.get('version')}, this trainer reads 1; generate the bundle again")
    return settings


def apply_arguments(settings: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Settings with what the command line changes."""
    data, training = dict(settings["data"]), dict(settings["training"])
    overrides = {"path": args.data, "tokenizer": args.tokenizer, "init_from": args.init_from}
    data |= {key: value for key, value in overrides.items() if value is not None}
    overrides = {"seed": args.seed, "checkpoint_every": args.checkpoint_every}
    training |= {key: value for key, value in overrides.items() if value is not None}
    return settings | {"data": data, "training": training}


def choose_device(requested: str, local_rank: int) -> torch.device:
    """The GPU of this local rank, or the CPU."""
    if requested == "cuda" and not torch.cuda.is_available():
        raise Refusal(
            "--device cuda: torch sees no GPU here; use --device cpu or install torch with CUDA", this_machine=True
        )
    if requested == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    gpu_count = torch.cuda.device_count()
    if local_rank >= gpu_count:
        raise Refusal(
            f"local rank {local_rank} has no GPU: torch sees {gpu_count} here; start {gpu_count} processes",
            this_machine=True,
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def join_process_group(settings: dict[str, Any], device: torch.device, rank: int, world: int, launched: bool) -> str:
    """Bring torch.distributed up from the launcher's environment; alone, without any network."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = datetime.timedelta(minutes=settings.get("timeout_minutes") or 10)
    device_options = {"device_id": device} if device.type == "cuda" else {}
    if launched:
        dist.init_process_group(backend, timeout=timeout, **device_options)
    else:
        dist.init_process_group(
            backend, store=dist.HashStore(), rank=rank, world_size=world, timeout=timeout, **device_options
        )
    return backend


def make_folder(path: Path) -> None:
    """Make the folder of results."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"cannot make the folder {path}: {error.strerror}; choose another with --out", this_machine=True
        ) from None


def install_stop_handler(run: TrainerRun) -> None:
    """From now on SIGTERM asks the run to stop after its step."""

    def ask_to_stop(_signal: int, _frame: types.FrameType | None) -> None:
        run.stop_asked = True

    # Only the main thread may; elsewhere (Ray) whoever started it stops it.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, ask_to_stop)
