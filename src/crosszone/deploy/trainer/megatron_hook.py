"""Starts Megatron-LM's pretrain_gpt.py with the flags of megatron.args, and measures its steps.

    torchrun ... megatron_hook.py "$MEGATRON_PATH/pretrain_gpt.py"                     # the planned run
    torchrun ... megatron_hook.py "$MEGATRON_PATH/pretrain_gpt.py" --tiny              # the same kind, in seconds
    torchrun ... megatron_hook.py "$MEGATRON_PATH/pretrain_gpt.py" --steps 20 --lr 1e-4   # other flags: Megatron's

Measured is what the first rank of each pipeline stage does: `OUT/metrics-stage-K.jsonl`, one line of JSON a step, in
the format of the other trainers; and on the last stage `OUT/benchmark.csv` (a label, seconds since the mark before).

Megatron-LM has no place to hang a stopwatch on, so five of its functions are wrapped (read in Megatron-LM d98e8a64):
- megatron.core.pipeline_parallel.schedules: `forward_step` and `backward_step`, which every schedule calls for a
  micro-batch, with or without a pipeline, interleaved or not;
- megatron.training.training: `train_step` (the step) and `finalize_model_grads` (gradients still to be reduced);
- `step` of the optimizer that `train_step` is given.
On a GPU, times are CUDA events, read once at the end of a step; no collective is added. A function that is not there
(another version) is said once and left out, and whatever goes wrong in here ends the measuring, not the training.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import os
import runpy
import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from metrics_file import MetricsFile, SpanRecorder

FLAGS, TINY_FLAGS, SETTINGS = "megatron.args", "megatron-tiny.args", "settings.json"
# Functions that are wrapped, as attributes of the module that calls them.
PATCHES = (
    ("megatron.core.pipeline_parallel.schedules", "forward_step"),
    ("megatron.core.pipeline_parallel.schedules", "backward_step"),
    ("megatron.training.training", "finalize_model_grads"),
    ("megatron.training.training", "train_step"),
)
GIB, MIB = 2**30, 2**20
METRICS_MIB = 16  # MiB of a file of results, where settings.json does not say


def main(argv: list[str]) -> None:
    """Read the flags, wrap, and become pretrain_gpt.py."""
    hook_args, megatron_flags = parse_arguments(argv)
    program = Path(hook_args.program)
    if not program.is_file():
        sys.exit(f"{program} is not there: set MEGATRON_PATH to a checkout of NVIDIA/Megatron-LM")
    folder = Path(__file__).resolve().parent
    flags = parse_flags((folder / (TINY_FLAGS if hook_args.tiny else FLAGS)).read_text(encoding="utf-8"))
    flags = apply_overrides(flags, steps=hook_args.steps, out=hook_args.out, resume=not hook_args.no_resume)
    sys.argv = [str(program), *flags, *megatron_flags]
    sys.path[0] = str(program.resolve().parent)
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    rank = int(os.environ.get("RANK", "0"))
    watch = StageWatch(
        settings, Path(hook_args.out), rank=rank, tiny=hook_args.tiny, tokens=count_step_tokens(sys.argv)
    )
    if watch.writes:
        install(watch)
    runpy.run_path(str(program), run_name="__main__")


def parse_arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The hook's own arguments, and those of Megatron."""
    parser = argparse.ArgumentParser(prog="megatron_hook.py", allow_abbrev=False)
    parser.add_argument("program", help="pretrain_gpt.py of a checkout of Megatron-LM")
    parser.add_argument("--tiny", action="store_true", help="the same kind of run, shrunk to seconds")
    parser.add_argument("--steps", type=int, help="stop after this step")
    parser.add_argument("--out", default="out", help="folder of checkpoints and metrics")
    parser.add_argument("--no-resume", action="store_true", help="begin at step 1 even if there is a checkpoint")
    return parser.parse_known_args(argv)


def parse_flags(text: str) -> list[str]:
    """The words of a file of flags: one flag a line as a shell reads it; lines with # are remarks."""
    return [word for line in text.splitlines() if not line.startswith("#") for word in shlex.split(line)]


def apply_overrides(flags: list[str], *, steps: int | None, out: str, resume: bool) -> list[str]:
    """Flags with another length, folder or start; Megatron takes the last of two."""
    overrides = [] if steps is None else ["--train-iters", str(steps)]
    if out != "out":
        overrides += ["--save", f"{out}/checkpoints", "--load", f"{out}/checkpoints"]
    words = [*flags, *overrides]
    if not resume:
        words = [word for index, word in enumerate(words) if word != "--load" and words[index - 1] != "--load"]
    return words


def count_step_tokens(flags: list[str]) -> int:
    """Tokens of a step, by the last of each flag."""
    last = {name: int(value) for name, value in pairwise(flags) if name in ("--seq-length", "--global-batch-size")}
    return last["--seq-length"] * last["--global-batch-size"]


class StageWatch(SpanRecorder):
    """The stopwatch of one pipeline stage."""

    def __init__(self, settings: dict[str, Any], out: Path, *, rank: int, tiny: bool, tokens: int) -> None:
        self.settings, self.out, self.tiny, self.tokens = settings, out, tiny, tokens
        place = get_coordinates(rank, settings)
        self.stage, self.rank = place["pp"], rank
        self.last = self.stage == settings["strategy"]["pp"] - 1
        self.writes = all(place[axis] == 0 for axis in ("tp", "cp", "dp"))
        super().__init__(f"stage-{self.stage}")
        self.running = self.broken = False
        self.waiting: dict[int, dict[str, int]] = {}
        """What forward passes are of, by the tensor that came out, until their backward pass."""
        self.pass_counts: dict[str, int] = {}
        self.steps, self.previous = 0, 0.0
        self.optimizer: Any = None
        self.lines: MetricsFile | None = None

    def begin(self) -> None:
        """A step begins; the first one follows a barrier of Megatron's own, so stages count from the same moment."""
        import torch

        self.cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        if self.lines is None:
            self.zero = time.perf_counter()
            self.write_header()
        self.waiting, self.pass_counts = {}, {}
        self.start_step()
        self.running = True

    def end(self, step: int, numbers: dict[str, float]) -> None:
        """A step has ended: read the events, write the line and the marks."""
        import torch

        self.running = False
        if self.cuda:
            torch.cuda.synchronize()
        row = self.build_row(step) | numbers
        row["spans"].sort(key=lambda span: span["start_s"])
        seconds = max(row["end_s"] - row["start_s"], 1e-9)
        row |= {"tokens": self.tokens, "tokens_per_s": round(self.tokens / seconds, 3)}
        if self.cuda:
            row["memory_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 4)
        self.lines.write(row)
        if self.last:
            marks = list_benchmark_marks(row, self.previous)
            self.append("benchmark.csv", "".join(f"{label},{seconds:.6f}\n" for label, seconds in marks))
        self.previous = row["end_s"]

    def describe_forward(self, arguments: dict[str, Any]) -> dict[str, int]:
        """The micro-batch of a forward pass, and its chunk where stages have several."""
        chunk, number = arguments.get("vp_stage"), arguments.get("current_microbatch")
        key = f"forward {chunk}"
        number = self.pass_counts.get(key, 0) if number is None else number
        self.pass_counts[key] = number + 1
        return {"micro_batch": int(number)} | ({} if chunk is None else {"chunk": int(chunk)})

    def note_output(self, result: Any, about: dict[str, int]) -> None:
        """Keep what a forward pass was of for the backward pass that is given its output."""
        self.waiting[get_output_id(result[0] if isinstance(result, tuple) else result)] = about

    def describe_backward(self, arguments: dict[str, Any]) -> dict[str, int]:
        """That of the forward pass whose output it is given; one of an unknown output follows the last one."""
        about = self.waiting.pop(get_output_id(arguments.get("output_tensor")), None)
        about = about or {"micro_batch": self.pass_counts.get("backward", 0)}
        self.pass_counts["backward"] = about["micro_batch"] + 1
        return about

    def write_header(self) -> None:
        """Open the file and write the first line of a start."""
        import torch

        header = self.build_header(
            self.settings,
            self.rank,
            framework="megatron",
            stage=self.stage,
            ranks=len(self.settings["zone_of_rank"]),
            device=torch.cuda.get_device_name() if self.cuda else "cpu",
            torch=torch.__version__,
            tiny=self.tiny,
            memory="peak allocated on the GPU",
        )
        self.lines = MetricsFile(self.out / f"metrics-{self.lane}.jsonl", self.max_bytes)
        self.lines.write(header)

    @property
    def max_bytes(self) -> int:
        """How large a file of results may become."""
        return int(self.settings.get("training", {}).get("metrics_mib", METRICS_MIB) * MIB)

    def append(self, name: str, text: str) -> None:
        """Add to a file of results; one that has become too large keeps its newer half."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / name
        if path.exists() and path.stat().st_size + len(text) > self.max_bytes:
            newer = path.read_text(encoding="utf-8")[-self.max_bytes // 2 :].partition("iteration start")
            path.write_text("".join(newer[1:]), encoding="utf-8")
        with path.open("a", encoding="utf-8") as file:
            file.write(text)

    def stop(self, what: str, error: BaseException) -> None:
        """Measuring ends here; training goes on."""
        if not self.broken:
            print_remark(f"no more timings ({what}: {type(error).__name__}: {error})")
        self.broken, self.running = True, False


def get_coordinates(rank: int, settings: dict[str, Any]) -> dict[str, int]:
    """A rank's place along every axis, the fastest first."""
    places = {}
    for axis in settings["order"]:
        rank, places[axis] = divmod(rank, settings["strategy"][axis])
    return places


def install(watch: StageWatch) -> list[str]:
    """Wrap what is there; returns what was missing, which is said once."""
    wrappers = {
        "forward_step": partial(wrap_timed, watch, "forward", describe=watch.describe_forward, note=watch.note_output),
        "backward_step": partial(wrap_timed, watch, "backward", describe=watch.describe_backward),
        # What of the gradients is still to be reduced when the last backward pass has ended.
        "finalize_model_grads": partial(wrap_timed, watch, "gradients"),
        "train_step": partial(wrap_train_step, watch),
    }
    missing = []
    for module, name in PATCHES:
        try:
            holder = importlib.import_module(module)
            setattr(holder, name, wrappers[name](getattr(holder, name)))
        except (ImportError, AttributeError) as error:
            missing.append(f"{module}.{name}")
            print_remark(f"{module}.{name} is not there ({error}); it is not timed")
    return missing


def print_remark(text: str) -> None:
    """Tell the user."""
    print(f"megatron_hook: {text}", file=sys.stderr, flush=True)


def run_safely(watch: StageWatch, what: str, action: Callable[[], Any]) -> Any:
    """Do something for the measuring that must never end the training."""
    if watch.broken:
        return None
    try:
        return action()
    except Exception as error:
        watch.stop(what, error)
        return None


def wrap_timed(
    watch: StageWatch,
    kind: str,
    original: Callable[..., Any],
    describe: Callable[[dict[str, Any]], dict[str, int]] | None = None,
    note: Callable[[Any, dict[str, int]], None] | None = None,
) -> Callable[..., Any]:
    """A function whose calls are spans.

    `describe`: which micro-batch a call is of, by its arguments; `note` is given the call's result with that.
    """
    signature = inspect.signature(original) if describe else None

    @functools.wraps(original)
    def run_timed(*args: Any, **kwargs: Any) -> Any:
        if not watch.running:
            return original(*args, **kwargs)
        about = {}
        if describe:
            # Before the call: backward_step may put the scaled loss in the place of the output it was given.
            about = run_safely(watch, kind, lambda: describe(signature.bind_partial(*args, **kwargs).arguments))
        start = run_safely(watch, kind, watch.mark)
        result = original(*args, **kwargs)
        run_safely(watch, kind, lambda: watch.spans.append((kind, start, watch.mark(), about)))
        if note:
            run_safely(watch, kind, lambda: note(result, about))
        return result

    return run_timed


def wrap_train_step(watch: StageWatch, original: Callable[..., Any]) -> Callable[..., Any]:
    """`train_step`: one optimizer step."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def run_timed(*args: Any, **kwargs: Any) -> Any:
        bound = run_safely(watch, "step", lambda: signature.bind_partial(*args, **kwargs).arguments) or {}
        run_safely(watch, "step", lambda: watch_optimizer(watch, bound.get("optimizer")))
        run_safely(watch, "step", watch.begin)
        result = original(*args, **kwargs)
        if watch.running:
            number = bound.get("iteration")
            number = watch.steps if number is None else number
            watch.steps += 1
            run_safely(watch, "step", lambda: watch.end(int(number) + 1, read_step_numbers(result, bound)))
        return result

    return run_timed


def watch_optimizer(watch: StageWatch, optimizer: Any) -> None:
    """Time the optimizer's own step, once it is known."""
    if optimizer is not None and watch.optimizer is not optimizer:
        optimizer.step = wrap_timed(watch, "optimizer", optimizer.step)
        watch.optimizer = optimizer


def read_step_numbers(result: Any, bound: dict[str, Any]) -> dict[str, float]:
    """Loss, gradient norm and learning rate, as far as this rank knows them."""
    numbers: dict[str, float] = {}
    losses = result[0] if isinstance(result, tuple) and result and isinstance(result[0], dict) else {}
    if "lm loss" in losses:
        numbers["loss"] = float(losses["lm loss"])
    if isinstance(result, tuple) and len(result) > 5 and result[5] is not None:
        numbers["grad_norm"] = float(result[5])
    groups = getattr(bound.get("optimizer"), "param_groups", None)
    if groups:
        numbers["lr"] = float(groups[0]["lr"])
    return {key: value for key, value in numbers.items() if abs(value) < float("inf")}


def get_output_id(output: Any) -> int:
    """What tells an output from another: its first tensor, as schedules hand it on in a list or alone."""
    return id(output[0] if isinstance(output, list | tuple) and output else output)


def list_benchmark_marks(row: dict[str, Any], previous_s: float) -> list[tuple[str, float]]:
    """The marks of one step: a label, and the seconds since the mark before, so each belongs to what ended there.

    iteration start, warmup start, (forward start, backward start) for each pair, cooldown start, allreduce start,
    iteration end. Forward passes before the last one ahead of the first backward pass are the warm-up, backward
    passes after the last pair the cool-down; without a pipeline both are empty.
    """
    passes = [span for span in row["spans"] if span["kind"] in ("forward", "backward")]
    if not any(span["kind"] == "backward" for span in passes):
        return []
    first = next(index for index, span in enumerate(passes) if span["kind"] == "backward") - 1
    pairs, index = [], max(0, first)
    while index + 1 < len(passes) and (passes[index]["kind"], passes[index + 1]["kind"]) == ("forward", "backward"):
        pairs.append((passes[index], passes[index + 1]))
        index += 2
    marks = [("iteration start", row["start_s"]), ("warmup start", passes[0]["start_s"])]
    for ahead, back in pairs:
        marks += [("forward start", ahead["start_s"]), ("backward start", back["start_s"])]
    marks.append(("cooldown start", pairs[-1][1]["end_s"] if pairs else passes[0]["start_s"]))
    marks += [("allreduce start", passes[-1]["end_s"]), ("iteration end", row["end_s"])]
    times = [previous_s, *(seconds for _, seconds in marks)]
    return [(label, max(0.0, now - then)) for (label, now), then in zip(marks, times, strict=False)]


if __name__ == "__main__":
    main(sys.argv[1:])
