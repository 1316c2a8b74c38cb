"""Checkpoint: save a run so that a crash at any moment leaves the last complete one usable.

    checkpoints = Checkpoints(run)                       # every rank holds the same state (DDP)
    checkpoints = Checkpoints(run, copies=run.zone_of_rank)   # ranks of a zone hold the same, zones differ
    checkpoints = Checkpoints(run, sharded=True)         # every rank holds a part (FSDP, tensor, pipeline)
    step = checkpoints.latest()                          # the newest one all ranks can read; None: begin at step 1
    state = checkpoints.load(step, state)                # all ranks; sharded: fills the given state in place
    checkpoints.save(step, state)                        # all ranks; keeps the last training.keep

`state` is a nested dict (or list) of tensors and plain values. Files go to a `.partial` folder, are forced to disk, and
the folder is renamed when all ranks are done: `OUT/checkpoints/step-00000012`. No shared file system is needed: whole
states are written once for each copy and sent to the other ranks when loading; of sharded ones a node keeps the parts
of its ranks. `write`, `read`, `steps_in` do the same for one process without torch.distributed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from run import Refusal, Run

NAME = re.compile(r"step-(\d{8,})")
ABOUT = "about.json"


class Checkpoints:
    """The checkpoints of a run; every method but `path` is called by all ranks together."""

    def __init__(self, run: Run, *, sharded: bool = False, copies: Sequence[int] | None = None) -> None:
        self.run, self.sharded = run, sharded
        self.folder = run.out / "checkpoints"
        self.copies = list(copies) if copies is not None else [0] * run.world
        self.copy = self.copies[run.rank]
        self.writer = self.copies.index(self.copy)
        self.file = f"copy-{self.copy}.pt"
        if run.local_rank == 0:
            if run.args.no_resume:
                set_aside(self.folder)
            clean(self.folder)
        run.barrier()

    def path(self, step: int) -> Path:
        """Folder of a checkpoint."""
        return self.folder / name_of(step)

    def latest(self) -> int | None:
        """The newest checkpoint that every rank that reads can read; None where there is none."""
        mine: set[int] | None = None
        if self.sharded or self.run.rank == self.writer:
            needed = [ABOUT] if self.sharded else [ABOUT, self.file]
            mine = {step for step in steps_in(self.folder) if all((self.path(step) / one).exists() for one in needed)}
        known = [seen for seen in self.run.gathered(mine) if seen is not None]
        return max(set.intersection(*known), default=None)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint; what was there before stays until this one is complete."""
        self.run.saving_since = self.run.saving_since or time.perf_counter()
        if self.run.local_rank == 0:
            remove(self.path(step))  # One that not all ranks had, so that the run went on from an earlier one.
        self.run.barrier()
        partial = partial_of(self.folder, step)
        partial.mkdir(parents=True, exist_ok=True)
        if self.sharded:
            import torch.distributed.checkpoint as dcp

            dcp.save(state, storage_writer=dcp.FileSystemWriter(partial, overwrite=True))
            self.share_metadata(partial)
        elif self.run.rank == self.writer:
            write_file(partial / self.file, state)
        self.run.barrier()
        if self.run.local_rank == 0:
            complete(self.folder, step, about(self.run))
            prune(self.folder, self.run.training["keep"])
        self.run.barrier()

    def load(self, step: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
        """The state of a checkpoint; sharded: loaded into `state`, which gives names and shapes."""
        self.run.agreed(lambda: compare(self.run, self.path(step)))
        if self.sharded:
            import torch.distributed.checkpoint as dcp

            try:
                dcp.load(state, storage_reader=dcp.FileSystemReader(self.path(step)))
            except Exception as error:  # One of many kinds, wrapped by the library with the trace of every rank.
                raise unreadable(self.path(step), error) from None
            return state or {}
        writes = self.run.rank == self.writer
        found = self.run.agreed(lambda: read_file(self.path(step) / self.file) if writes else None)
        if not self.run.distributed or self.copies.count(self.copy) == 1:
            # The other copies' ranks make their groups; this one takes part.
            if self.run.distributed and self.run.world > 1:
                self.run.split(self.copies)
            return found or {}
        return sent(self.run, found, self.writer, self.run.split(self.copies))

    def share_metadata(self, partial: Path) -> None:
        """Nodes without the first rank's file system get the index of all parts too."""
        index = partial / ".metadata"
        text = [index.read_bytes() if self.run.rank == 0 else None]
        if self.run.world > 1:
            dist.broadcast_object_list(text, src=0)
        if self.run.local_rank == 0 and not index.exists():
            own = partial / f".metadata.{self.run.rank}"
            own.write_bytes(text[0] or b"")
            own.replace(index)


def write(folder: Path, step: int, state: dict[str, Any], run: Run) -> None:
    """Save the state of one process alone under `folder`."""
    partial = partial_of(folder, step)
    remove(folder / name_of(step))
    partial.mkdir(parents=True, exist_ok=True)
    write_file(partial / "copy-0.pt", state)
    complete(folder, step, about(run))
    prune(folder, run.training["keep"])


def read(folder: Path, step: int, run: Run) -> dict[str, Any]:
    """The state that `write` saved."""
    compare(run, folder / name_of(step))
    return read_file(folder / name_of(step) / "copy-0.pt")


def steps_in(folder: Path) -> list[int]:
    """Steps with a complete checkpoint, in ascending order."""
    if not folder.is_dir():
        return []
    found = (NAME.fullmatch(one.name) for one in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def name_of(step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"step-{step:08d}"


def partial_of(folder: Path, step: int) -> Path:
    """Where a checkpoint is written before it is complete."""
    return folder / f".{name_of(step)}.partial"


def complete(folder: Path, step: int, said: dict[str, Any]) -> None:
    """Force a checkpoint to disk and give it its name; nodes that share the folder may all try."""
    partial = partial_of(folder, step)
    with contextlib.suppress(FileNotFoundError):
        own = partial / f".{uuid.uuid4().hex}"
        own.write_text(json.dumps(said, indent=1), encoding="utf-8")
        own.replace(partial / ABOUT)
        for one in (*partial.iterdir(), partial):
            force(one)
        partial.rename(folder / name_of(step))
        force(folder)


def force(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the last checkpoints."""
    for step in steps_in(folder)[: -max(1, keep)]:
        remove(folder / name_of(step))


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, if there is one; renamed first, so that half of it never looks complete."""
    gone = checkpoint.with_name(f".{checkpoint.name}.gone")
    with contextlib.suppress(OSError):
        checkpoint.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def clean(folder: Path) -> None:
    """Remove what a crash left half written."""
    for pattern in (".step-*.partial", ".step-*.gone"):
        for one in folder.glob(pattern):
            shutil.rmtree(one, ignore_errors=True)


def set_aside(folder: Path) -> None:
    """Keep the checkpoints of a run that is not gone on with, under another name."""
    if steps_in(folder):
        with contextlib.suppress(OSError):
            folder.rename(folder.with_name(f"{folder.name}-before-{time.time_ns()}"))


def write_file(path: Path, state: dict[str, Any]) -> None:
    """Write a state and force it to disk."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def read_file(path: Path) -> dict[str, Any]:
    """A state that `write_file` wrote, on the CPU; never runs code from the file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
        raise unreadable(path.parent, error) from None


def unreadable(folder: Path, error: BaseException) -> Refusal:
    """What to say about a checkpoint that cannot be loaded."""
    reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    return Refusal(
        f"the checkpoint {folder} cannot be loaded ({reason[0][:200]}); delete it to go on from the one before, or use "
        "--no-resume",
        here=True,
    )


def about(run: Run) -> dict[str, Any]:
    """What a checkpoint is of: it can only be gone on with where these are the same."""
    job = {key: run.job[key] for key in ("seq_len", "global_batch", "optimizer")}
    return {"version": 1, "framework": run.settings["framework"], "ranks": run.world, "model": run.model, "job": job}


def compare(run: Run, folder: Path) -> None:
    """Refuse a checkpoint of another model, batch or optimizer."""
    try:
        said = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return  # Another node's: the rank that reads the state has it and checks.
    except (OSError, ValueError) as error:
        raise unreadable(folder, error) from None
    now = json.loads(json.dumps(about(run)))
    for part in ("model", "job"):
        other = said.get(part) or {}
        for key, value in now[part].items():
            if key != "name" and other.get(key) != value:
                raise Refusal(
                    f"the checkpoint {folder} is of another run: {part}.{key} was {other.get(key)}, now {value}; "
                    "give another folder with --out, or begin anew with --no-resume"
                )


def sent(run: Run, state: Any, source: int, group: dist.ProcessGroup) -> Any:
    """The source rank's state on every rank of the group: its form as an object, its tensors one by one."""
    tensors: list[torch.Tensor] = []
    form = [taken_apart(state, tensors) if run.rank == source else None]
    dist.broadcast_object_list(form, src=source, group=group)
    held = iter(tensors)

    def receive(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        one = next(held).to(run.device) if run.rank == source else torch.empty(shape, dtype=dtype, device=run.device)
        dist.broadcast(one.contiguous() if run.rank == source else one, src=source, group=group)
        return one.cpu()

    return put_together(form[0], receive)


class Hole:
    """The place of a tensor in a form."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def taken_apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The form of a nested state with holes for its tensors, which are collected."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Hole(value)
    if isinstance(value, dict):
        return {key: taken_apart(inner, tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [taken_apart(inner, tensors) for inner in value]
    return value


def put_together(form: Any, receive: Any) -> Any:
    """The state of a form whose holes are filled in the same order."""
    if isinstance(form, Hole):
        return receive(form.shape, form.dtype)
    if isinstance(form, dict):
        return {key: put_together(inner, receive) for key, inner in form.items()}
    if isinstance(form, list):
        return [put_together(inner, receive) for inner in form]
    return form


def random_state(run: Run) -> dict[str, torch.Tensor]:
    """The random number generators, for `state["random"]`."""
    found = {"cpu": torch.get_rng_state()}
    if run.device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(run.device)
    return found


def restore_random(run: Run, state: dict[str, torch.Tensor]) -> None:
    """Set the random number generators as they were."""
    torch.set_rng_state(state["cpu"])
    if run.device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], run.device)


def due(run: Run, step: int, stop: bool) -> bool:
    """A checkpoint is written after this step: every so many steps, at the end, and when asked to stop.

    Its time counts from here: the metrics of the next step tell it.
    """
    every = run.training["checkpoint_every"]
    now = stop or step == run.steps or bool(every and step % every == 0)
    run.saving_since = time.perf_counter() if now else None
    return now
