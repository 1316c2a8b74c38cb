"""Checkpoint: save a run so that a crash at any moment leaves the last complete one usable.

    checkpoints = Checkpoints(run)                       # every rank holds the same state (DDP)
    checkpoints = Checkpoints(run, copies=run.zone_of_rank)   # ranks of a zone hold the same, zones differ
    checkpoints = Checkpoints(run, sharded=True)         # every rank holds a part (FSDP, tensor, pipeline)
    step = checkpoints.find_latest()                     # the newest one all ranks can read; None: begin at step 1
    state = checkpoints.load(step, state)                # all ranks; sharded: fills the given state in place
    checkpoints.save(step, state)                        # all ranks; keeps the last training.keep

`state` is a nested dict (or list) of tensors and plain values. Files go to a `.partial` folder, are forced to disk, and
the folder is renamed when all ranks are done: `OUT/checkpoints/step-00000012`. No shared file system is needed: whole
states are written once for each copy and sent to the other ranks when loading; of sharded ones a node keeps the parts
of its ranks. Without torch.distributed (Horovod) rank 0 alone makes and calls it.
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
from run import Refusal, TrainerRun

NAME = re.compile(r"step-(\d{8,})")
ABOUT = "about.json"


class Checkpoints:
    """The checkpoints of a run; every method but `get_path` is called by all ranks together."""

    def __init__(self, run: TrainerRun, *, sharded: bool = False, copies: Sequence[int] | None = None) -> None:
        self.run, self.sharded = run, sharded
        self.folder = run.out / "checkpoints"
        self.copies = list(copies) if copies is not None else [0] * run.world
        self.copy = self.copies[run.rank]
        self.writer = self.copies.index(self.copy)
        self.file = f"copy-{self.copy}.pt"
        if run.local_rank == 0:
            if run.args.no_resume:
                move_aside(self.folder)
            remove_partial_checkpoints(self.folder)
        run.wait_for_ranks()

    def get_path(self, step: int) -> Path:
        """Folder of a checkpoint."""
        return self.folder / format_step_name(step)

    def find_latest(self) -> int | None:
        """The newest checkpoint that every rank that reads can read; None where there is none."""
        readable: set[int] | None = None
        if self.sharded or self.run.rank == self.writer:
            needed = [ABOUT] if self.sharded else [ABOUT, self.file]
            readable = {
                step
                for step in list_steps(self.folder)
                if all((self.get_path(step) / name).exists() for name in needed)
            }
        steps_by_rank = [steps for steps in self.run.gather_objects(readable) if steps is not None]
        return max(set.intersection(*steps_by_rank), default=None)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint; what was there before stays until this one is complete."""
        self.run.saving_since = self.run.saving_since or time.perf_counter()
        if self.run.local_rank == 0:
            # One that not all ranks had, so that the run went on from an earlier one.
            remove_checkpoint(self.get_path(step))
        self.run.wait_for_ranks()
        partial = get_partial_folder(self.folder, step)
        partial.mkdir(parents=True, exist_ok=True)
        if self.sharded:
            import torch.distributed.checkpoint as dcp

            dcp.save(state, storage_writer=dcp.FileSystemWriter(partial, overwrite=True))
            self.copy_metadata(partial)
        elif self.run.rank == self.writer:
            write_file(partial / self.file, state)
        self.run.wait_for_ranks()
        if self.run.local_rank == 0:
            finish_checkpoint(self.folder, step, describe_run(self.run))
            remove_old_checkpoints(self.folder, self.run.training["keep"])
        self.run.wait_for_ranks()

    def load(self, step: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
        """The state of a checkpoint; sharded: loaded into `state`, which gives names and shapes."""
        self.run.run_agreed(lambda: check_same_run(self.run, self.get_path(step)))
        if self.sharded:
            import torch.distributed.checkpoint as dcp

            try:
                dcp.load(state, storage_reader=dcp.FileSystemReader(self.get_path(step)))
            except Exception as error:  # One of many kinds, wrapped by the library with the trace of every rank.
                raise make_unreadable_error(self.get_path(step), error) from None
            return state or {}
        writes = self.run.rank == self.writer
        state_read = self.run.run_agreed(lambda: read_file(self.get_path(step) / self.file) if writes else None)
        if not self.run.distributed or self.run.world == 1:
            return state_read or {}
        group = self.run.split_ranks(self.copies)  # all ranks make the groups together, also those alone in theirs
        if self.copies.count(self.copy) == 1:
            return state_read or {}
        return send_state(self.run, state_read, self.writer, group)

    def copy_metadata(self, partial: Path) -> None:
        """Nodes without the first rank's file system get the index of all parts too."""
        index = partial / ".metadata"
        text = [index.read_bytes() if self.run.rank == 0 else None]
        if self.run.world > 1:
            dist.broadcast_object_list(text, src=0)
        if self.run.local_rank == 0 and not index.exists():
            copied = partial / f".metadata.{self.run.rank}"
            copied.write_bytes(text[0] or b"")
            copied.replace(index)


def list_steps(folder: Path) -> list[int]:
    """Steps with a complete checkpoint, in ascending order."""
    if not folder.is_dir():
        return []
    matches = (NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def format_step_name(step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"step-{step:08d}"


def get_partial_folder(folder: Path, step: int) -> Path:
    """Where a checkpoint is written before it is complete."""
    return folder / f".{format_step_name(step)}.partial"


def finish_checkpoint(folder: Path, step: int, description: dict[str, Any]) -> None:
    """Force a checkpoint to disk and give it its name; nodes that share the folder may all try."""
    partial = get_partial_folder(folder, step)
    with contextlib.suppress(FileNotFoundError):
        about_file = partial / f".{uuid.uuid4().hex}"
        about_file.write_text(json.dumps(description, indent=1), encoding="utf-8")
        about_file.replace(partial / ABOUT)
        for path in (*partial.iterdir(), partial):
            flush_to_disk(path)
        partial.rename(folder / format_step_name(step))
        flush_to_disk(folder)


def flush_to_disk(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_old_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last checkpoints."""
    for step in list_steps(folder)[: -max(1, keep)]:
        remove_checkpoint(folder / format_step_name(step))


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint, if there is one; renamed first, so that half of it never looks complete."""
    gone = checkpoint.with_name(f".{checkpoint.name}.gone")
    with contextlib.suppress(OSError):
        checkpoint.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_partial_checkpoints(folder: Path) -> None:
    """Remove what a crash left half written."""
    for pattern in (".step-*.partial", ".step-*.gone"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def move_aside(folder: Path) -> None:
    """Keep the checkpoints of a run that is not gone on with, under another name."""
    if list_steps(folder):
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
        raise make_unreadable_error(path.parent, error) from None


def make_unreadable_error(folder: Path, error: BaseException) -> Refusal:
    """What to say about a checkpoint that cannot be loaded."""
    reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    return Refusal(
        f"the checkpoint {folder} cannot be loaded ({reason[0][:200]}); delete it to go on from the one before, or use "
        "--no-resume",
        this_machine=True,
    )


def describe_run(run: TrainerRun) -> dict[str, Any]:
    """What a checkpoint is of: it can only be gone on with where these are the same."""
    job = {key: run.job[key] for key in ("seq_len", "global_batch", "optimizer")}
    return {"version": 1, "framework": run.settings["framework"], "ranks": run.world, "model": run.model, "job": job}


def check_same_run(run: TrainerRun, folder: Path) -> None:
    """Refuse a checkpoint of another model, batch or optimizer."""
    try:
        saved = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return  # Another node's: the rank that reads the state has it and checks.
    except (OSError, ValueError) as error:
        raise make_unreadable_error(folder, error) from None
    current = json.loads(json.dumps(describe_run(run)))
    for part in ("model", "job"):
        saved_part = saved.get(part) or {}
        for key, value in current[part].items():
            if key != "name" and saved_part.get(key) != value:
                raise Refusal(
                    f"the checkpoint {folder} is of another run: {part}.{key} was {saved_part.get(key)}, now {value}; "
                    "give another folder with --out, or begin anew with --no-resume"
                )


def send_state(run: TrainerRun, state: Any, source: int, group: dist.ProcessGroup) -> Any:
    """The source rank's state on every rank of the group: its form as an object, its tensors one by one."""
    tensors: list[torch.Tensor] = []
    form = [split_tensors(state, tensors) if run.rank == source else None]
    dist.broadcast_object_list(form, src=source, group=group)
    sendable = iter(tensors)

    def receive(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if run.rank == source:
            tensor = next(sendable).to(run.device).contiguous()
        else:
            tensor = torch.empty(shape, dtype=dtype, device=run.device)
        dist.broadcast(tensor, src=source, group=group)
        return tensor.cpu()

    return join_tensors(form[0], receive)


class TensorPlaceholder:
    """The place of a tensor in a form."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def split_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The form of a nested state with holes for its tensors, which are collected."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TensorPlaceholder(value)
    if isinstance(value, dict):
        return {key: split_tensors(inner, tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [split_tensors(inner, tensors) for inner in value]
    return value


def join_tensors(form: Any, receive: Any) -> Any:
    """The state of a form whose holes are filled in the same order."""
    if isinstance(form, TensorPlaceholder):
        return receive(form.shape, form.dtype)
    if isinstance(form, dict):
        return {key: join_tensors(inner, receive) for key, inner in form.items()}
    if isinstance(form, list):
        return [join_tensors(inner, receive) for inner in form]
    return form


def get_random_state(run: TrainerRun) -> dict[str, torch.Tensor]:
    """The random number generators, for `state["random"]`."""
    states = {"cpu": torch.get_rng_state()}
    if run.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(run.device)
    return states


def restore_random_state(run: TrainerRun, state: dict[str, torch.Tensor]) -> None:
    """Set the random number generators as they were."""
    torch.set_rng_state(state["cpu"])
    if run.device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], run.device)


def is_checkpoint_due(run: TrainerRun, step: int, stop: bool) -> bool:
    """A checkpoint is written after this step: every so many steps, at the end, and when asked to stop.

    Its time counts from here: the metrics of the next step tell it.
    """
    every = run.training["checkpoint_every"]
    now = stop or step == run.steps or bool(every and step % every == 0)
    run.saving_since = time.perf_counter() if now else None
    return now
