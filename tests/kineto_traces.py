"""Profiler traces of a device, made by hand for tests; run as a program it writes one of any size.

python tests/kineto_traces.py big.json --mb 2000
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

MAIN, ENGINE = 100, 200
"""Threads: the program's own, and that of the backward engine."""
COMPUTE, NCCL = 7, 20
"""Streams."""


class GpuTrace:
    """Events of a trace; times in microseconds."""

    def __init__(self, start: float = 1000.0) -> None:
        self.events: list[dict[str, Any]] = []
        self.correlation = 0
        self.zero = start

    def add(self, cat: str, name: str, tid: int, ts: float, dur: float, pid: int = 1, **args: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": self.zero + ts, "dur": dur}
        self.events.append({**event, "args": args})

    def op(self, name: str, tid: int, ts: float, dur: float, **args: Any) -> None:
        """A host operator."""
        self.add("cpu_op", name, tid, ts, dur, **args)

    def forward_op(self, tid: int, ts: float, dur: float, number: int = 1) -> None:
        """An operator recorded for a backward pass to come."""
        self.op("aten::linear", tid, ts, dur, **{"Sequence number": number, "Fwd thread id": 0})

    def engine(self, ts: float, dur: float, number: int = 1, tid: int = ENGINE) -> None:
        """A function of the backward engine."""
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        self.op(name, tid, ts, dur, **{"Sequence number": number, "Fwd thread id": 1})

    def remark(self, name: str, ts: float, dur: float, tid: int = MAIN) -> None:
        """An annotation of the host."""
        self.add("user_annotation", name, tid, ts, dur)

    def kernel(
        self,
        ts: float,
        dur: float,
        *,
        by: int = MAIN,
        at: float,
        name: str = "sm90_xmma_gemm_bf16bf16_bf16f32",
        cat: str = "kernel",
        stream: int = COMPUTE,
        **args: Any,
    ) -> None:
        """A kernel, launched by a thread at a time."""
        self.correlation += 1
        call = "cudaMemcpyAsync" if cat == "gpu_memcpy" else "cudaLaunchKernel"
        self.add("cuda_runtime", call, by, at, 5.0, correlation=self.correlation, **{"External id": self.correlation})
        args = {"correlation": self.correlation, "stream": stream, "External id": self.correlation, **args}
        self.add(cat, name, stream, ts, dur, pid=0, **args)

    def message(self, ts: float, dur: float, collective: str, *, by: int = MAIN, at: float, **group: Any) -> None:
        """A kernel of NCCL; `group` as a trace names it: name, about, size, ranks."""
        words = {"name": "Process Group Name", "about": "Process Group Description", "size": "Group size"}
        about = {words[key]: value for key, value in group.items() if key in words}
        if "ranks" in group:
            about["Process Group Ranks"] = str(group["ranks"])
        if group:
            about["Collective name"] = collective
        name = f"ncclDevKernel_{collective}_RING_LL(ncclDevComm*)"
        self.kernel(ts, dur, by=by, at=at, name=name, stream=NCCL, **about)

    def document(self, **about: Any) -> dict[str, Any]:
        info = {"backend": "nccl", "rank": 0, "world_size": 4}
        head = {"schemaVersion": 1, "deviceProperties": [{"name": "NVIDIA H200"}], "distributedInfo": info}
        return {**head, **about, "traceEvents": self.events}

    def write(self, path: Path, **about: Any) -> Path:
        path.write_text(json.dumps(self.document(**about)), encoding="utf-8")
        return path


def one_step(trace: GpuTrace, number: int, at: float) -> float:
    """An iteration of 1000 us, step by step; gives its end.

    forward 0..200, tensor all-reduce 200..230, forward 230..300, backward 320..500 with recomputation 500..600,
    backward 600..700, gradients 650..780 (80 us of it alone), norm and update 780..900, nothing until 1000.
    """
    tensor = {"name": "3", "about": "TENSOR_MODEL_PARALLEL_GROUP", "size": 2, "ranks": [0, 1]}
    data = {"name": "5", "about": "DATA_PARALLEL_GROUP", "size": 2, "ranks": [0, 2]}
    trace.remark(f"ProfilerStep#{number}", at, 1000)
    trace.forward_op(MAIN, at + 1, 40, number)
    trace.kernel(at, 200, at=at + 2)
    trace.message(at + 200, 30, "AllReduce", at=at + 10, **tensor)
    trace.kernel(at + 230, 70, at=at + 20)
    trace.engine(at + 60, 60, number)
    trace.kernel(at + 320, 180, by=ENGINE, at=at + 70)
    trace.forward_op(ENGINE, at + 90, 10, number)
    trace.kernel(at + 500, 100, by=ENGINE, at=at + 95)
    trace.kernel(at + 600, 100, by=ENGINE, at=at + 110)
    trace.message(at + 650, 130, "AllReduce", by=ENGINE, at=at + 115, **data)
    trace.kernel(at + 780, 20, at=at + 130)  # the norm of the gradients
    trace.remark("Optimizer.step#AdamW.step", at + 140, 60)
    trace.kernel(at + 800, 100, at=at + 150)
    return at + 1000


EXPECTED_US = {
    "forward": 270,
    "backward": 280,
    "recompute": 100,
    "optimizer": 120,
    "tensor": 30,
    "data": 80,
    "gap": 120,
}
"""What `one_step` is made of."""


def steps(count: int) -> GpuTrace:
    """A trace of some iterations."""
    trace = GpuTrace()
    at = 0.0
    for number in range(1, count + 1):
        at = one_step(trace, number, at)
    return trace


def write_big(path: Path, megabytes: int, layers: int = 400) -> int:
    """A trace of at least that size, laid out as the profiler does; gives its iterations, each of so many layers."""
    trace = GpuTrace(start=0.0)
    one_step(trace, 1, 0.0)
    kept = [event for event in trace.events if event["cat"] != "user_annotation"]
    parts = [_laid_out(event).split("@") for event in kept]
    number, written, count = 0, 0, 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],\n')
        file.write('  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 4},\n  "traceEvents": [\n')
        while written < megabytes * 10**6:
            text = []
            for _ in range(layers):
                zero, ids = 1000.0 * count, 20 * count
                count += 1
                for event, pieces in zip(kept, parts, strict=True):
                    own = str(ids + event["args"].get("correlation", 0))
                    text.append(f"{pieces[0]}{zero + event['ts']:.3f}{own.join(pieces[1:])},\n")
            start, number = 1000.0 * (count - layers), number + 1
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": MAIN}
            mark |= {"ts": start, "dur": 1000.0 * layers, "args": {}}
            written += file.write("".join(text) + f"  {json.dumps(mark)},\n")
        file.write('  {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}}\n')
        file.write('  ],\n  "traceName": "big.json",\n  "displayTimeUnit": "ms"\n}\n')
    return number


def _laid_out(event: dict[str, Any]) -> str:
    """An event as the profiler writes it, with @ for its time and its ids."""
    head = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in ("ph", "cat", "name", "pid", "tid"))
    ids = ("correlation", "External id")
    args = ", ".join(f'"{k}": {"@" if k in ids else json.dumps(v)}' for k, v in event["args"].items())
    body = f'"ts": @, "dur": {event["dur"]:.3f},\n    "args": {{\n      {args}\n    }}'
    return f"  {{\n    {head},\n    {body}\n  }}"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Write a large profiler trace.")
    options.add_argument("out", type=Path)
    options.add_argument("--mb", type=int, default=2000)
    given = options.parse_args()
    print(write_big(given.out, given.mb), "iterations")
