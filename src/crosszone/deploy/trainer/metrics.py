"""Metrics: when the parts of each step happened, and what came out; one line of JSON a step.

    metrics = StepMetrics(run)                               # all ranks, together
    metrics.begin(step)
    with metrics.record_span("forward", micro_batch=0): ...  # data forward backward gradients optimizer
    row = metrics.close()
    metrics.write(row, loss=loss, lr=lr, grad_norm=norm)     # numbers may be tensors; prints the line of the step

`OUT/metrics-stage-K.jsonl` is written by the first rank of each pipeline stage: every start appends a header line (the
lanes, and what the times count from) and then its steps, so nothing is lost by a crash. Beyond training.metrics_mib
older steps are thinned out (`metrics_file.py`). Times are seconds since all ranks of that start were ready. On a GPU,
spans lie between CUDA events, read once a step. `checkpoint_s` of a step is the time of a checkpoint before it.
Kinds of spans: forward backward weight send tensor experts gradients parameters optimizer data other.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from metrics_file import MetricsFile, SpanRecorder
from run import TrainerRun

GIB, MIB = 2**30, 2**20
METRICS_MIB = 16  # MiB of a file, where settings.json does not say


class StepMetrics(SpanRecorder):
    """Times of this rank's pipeline stage; silent on ranks that write no file and print nothing."""

    def __init__(self, run: TrainerRun) -> None:
        self.run, self.stage = run, run.coordinates["pp"]
        super().__init__(f"stage-{self.stage}", cuda=run.device.type == "cuda")
        self.step, self.checkpoint_s = 0, 0.0
        self.lines = None
        if run.rank == run.list_ranks(pp=self.stage)[0]:
            max_bytes = int(run.training.get("metrics_mib", METRICS_MIB) * MIB)
            self.lines = MetricsFile(run.out / f"metrics-{self.lane}.jsonl", max_bytes)
        run.wait_for_ranks()
        self.zero = time.perf_counter()
        if self.lines:
            self.lines.write(self.build_header(run.settings, run.rank, **self.describe()))

    def describe(self) -> dict[str, str | int | bool]:
        """What the numbers of a start are of."""
        strategy = self.run.settings.get("strategy") or {}
        return {
            "framework": self.run.settings["framework"],
            "model": str(self.run.settings["model"].get("name") or "own"),
            **{key: strategy[key] for key in ("dp", "tp", "pp", "cp", "ep", "micro_batch") if key in strategy},
            "stage": self.stage,
            "ranks": self.run.world,
            "device": torch.cuda.get_device_name(self.run.device) if self.cuda else "cpu",
            "torch": torch.__version__,
            "tiny": self.run.tiny,
            "memory": "peak allocated on the GPU" if self.cuda else "peak resident size of the process",
        }

    def begin(self, step: int) -> None:
        """A step begins."""
        self.step = step
        saving, self.run.saving_since = self.run.saving_since, None
        self.checkpoint_s = 0.0 if saving is None else time.perf_counter() - saving
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.run.device)
        self.start_step()  # the last step ended with a synchronisation, so the GPU is idle

    def add(self, kind: str, start: Any, end: Any, **about: int | str) -> None:
        """A span between two marks; `about` may hold micro_batch, chunk, name."""
        self.spans.append((kind, start, end, about))

    @contextlib.contextmanager
    def record_span(self, kind: str, **about: int | str) -> Iterator[None]:
        """A span as long as the block."""
        start = self.mark()
        yield
        self.add(kind, start, self.mark(), **about)

    def close(self) -> dict[str, Any]:
        """The times of the step that ends here, for `write` once its numbers are known."""
        if self.cuda:
            torch.cuda.synchronize(self.run.device)
        row = self.build_row(self.step)
        return row | ({"checkpoint_s": round(self.checkpoint_s, 6)} if self.checkpoint_s else {})

    def write(self, row: dict[str, Any], **numbers: Any) -> None:
        """Write and print a step: loss, lr, grad_norm, tokens (of the step over all ranks), and what else there is."""
        took = row["end_s"] - row["start_s"]
        plain = {key: float(value) for key, value in numbers.items() if value is not None}
        tokens = int(plain.pop("tokens", self.run.tokens_per_step))
        row |= plain | {"tokens": tokens, "tokens_per_s": round(tokens / max(took, 1e-9), 3)}
        row["memory_gib"] = round(self.read_memory_gib(), 4)
        if self.lines:
            self.lines.write({key: drop_infinite(value) for key, value in row.items()})
        every = max(1, self.run.args.log_every)
        if row["step"] % every == 0 or row["step"] == self.run.steps:
            loss = row.get("loss", float("nan"))
            self.run.print_line(
                f"step {row['step']}  loss {loss:.4f}  {took:.3f} s  {row['tokens_per_s']:,.0f} tokens/s  "
                f"{row['memory_gib']:.1f} GiB"
            )

    def read_memory_gib(self) -> float:
        """Peak memory: allocated on the GPU in this step, or resident in the process so far."""
        if self.cuda:
            return torch.cuda.max_memory_allocated(self.run.device) / GIB
        return read_peak_resident_bytes() / GIB


def read_peak_resident_bytes() -> int:
    """Most memory this process has had; what it has now where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def drop_infinite(value: Any) -> Any:
    """JSON has no infinity: what is not finite is left empty."""
    return None if isinstance(value, float) and not (abs(value) < float("inf")) else value
