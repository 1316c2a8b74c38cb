"""Time the kernels of LLM training on one GPU. This one file needs only torch (2.4 or newer): copy it to any GPU box.

    python kernels.py --budget 10m -o samples.csv                 # all operators, interleaved, within ten minutes
    python kernels.py --budget 1h --parts 4 --part 1 -o s1.csv    # one of four shards; concatenate them afterwards
    python kernels.py --ops matmul,attention --dtypes bf16 -o samples.csv
    python kernels.py --plan | head                               # what would be measured, in order (needs no torch)

One row a point, written as soon as it is measured; a file that has rows is continued, and points that failed are tried
again. What the columns mean:

    m, n, k     tokens, outputs, inputs of a linear layer in all three passes: fwd  Y[m,n] = X[m,k] W[n,k]^T,
                dgrad dX[m,k] = dY[m,n] W[n,k], wgrad dW[n,k] = dY[m,n]^T X[m,k], in autograd's own memory layouts
    mode        eager, compiled, fused (torch's rms_norm, where eager is Hugging Face's code), loop (over experts),
                flash (attention by FlashAttention-2 alone, where eager is torch's own choice)
    time_us     device time: median of event times without outliers, operands cold in L2, once the clock has settled (a
                GPU at its power limit keeps that of what ran before for a tenth of a second); train_step: what passed
    host_us     time the host took to launch it; where this is above time_us, the host is the brake
    flops,bytes the least an operator can do; roof_us is the time they need at the device's peak rates
    flag        above_roof (faster than 0.95 of the roof), noisy (spread over 10 %), failed (said on stderr), or empty
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import csv
import math
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crosszone.calibrate.sampling.kernel_cases import Bench, KernelCase
from crosszone.calibrate.sampling.kernel_points import (
    COLUMNS,
    DIMS,
    DTYPES,
    PHASE_ENDS,
    KernelPoint,
    compute_roof_us,
    count_work,
    flag_point,
    list_operators,
    parse_duration,
    plan,
    summarize_times,
)

# A point runs at least this long before it counts: until then it has the clock that the point before it left.
SETTLE_S = 0.1
LONGEST_S = 0.35


def measure(bench: Bench, case: KernelCase) -> tuple[list[float], float]:
    """Microseconds of each repetition on the device, and the least the host took for one."""
    cuda, ring = bench.torch.cuda, [None] * case.ring

    def time_group(count: int, inner: int, lead_us: float) -> tuple[list[float], list[float]]:
        marks, host = [], []
        for at in range(count):
            if case.before:
                case.before(at)
            if bench.cuda and lead_us and hasattr(cuda, "_sleep"):
                cuda._sleep(int(lead_us * 1900))  # the device waits while the host launches: no gap is timed
            mark = [cuda.Event(enable_timing=True) for _ in range(2)] if bench.cuda else []
            if bench.cuda:
                mark[0].record()
            began = time.perf_counter()
            for turn in range(at * inner, at * inner + inner):
                ring[turn % len(ring)] = case.run(turn)
            host.append((time.perf_counter() - began) * 1e6 / inner)
            if bench.cuda:
                mark[1].record()
            marks.append(mark)
        if not bench.cuda:
            return host, host
        cuda.synchronize()
        return [mark[0].elapsed_time(mark[1]) * 1e3 / inner for mark in marks], host

    time_group(2, 1, 0)
    if not bench.cuda:
        return time_group(5, 1, 0)[0], min(time_group(2, 1, 0)[1])
    first, host = time_group(2, 1, 0)
    rough_us = min(first)
    inner = 1 if case.before or case.is_block else max(1, min(16, int(120 / rough_us)))
    least_count = max(6 if case.is_block else 4, min(10, int(150e3 / rough_us)))
    count = max(least_count, min(24, int(12e3 / (rough_us * inner))))
    lead = 0.0 if case.is_block else min(20e3, min(host) * inner * 1.15 + 10)
    recent: list[list[float]] = []
    began = time.monotonic()
    while True:
        times, host = time_group(count, inner, lead)
        recent = [*recent[-2:], times]
        elapsed_s = time.monotonic() - began
        if case.is_block or elapsed_s > LONGEST_S or (elapsed_s > SETTLE_S and is_settled(recent)):
            return [time_us for times_of_group in recent for time_us in times_of_group], min(host)


def is_settled(groups: Sequence[Sequence[float]], within: float = 0.01) -> bool:
    """Three groups of times have the same median: the clock has found what the power of this kernel allows."""
    middles = [statistics.median(times) for times in groups]
    return len(middles) == 3 and max(middles) <= (1 + within) * min(middles)


class Clocks:
    """The SM clock and the power of the device as nvidia-smi prints them twice a second; empty where it is absent."""

    def __init__(self, bench: Bench) -> None:
        self.sm, self.power = "", ""
        if not bench.cuda or not shutil.which("nvidia-smi"):
            return
        uuid = str(getattr(bench.torch.cuda.get_device_properties(bench.device), "uuid", ""))
        chosen = "GPU-" + uuid.replace("GPU-", "") if uuid else str(bench.device.index or 0)
        command = "nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits -lms 500 -i " + chosen
        self.process = subprocess.Popen(command.split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        atexit.register(self.process.kill)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            with contextlib.suppress(ValueError):
                self.sm, self.power = (f"{float(part):.0f}" for part in line.split(","))


def sample(bench: Bench, point: KernelPoint) -> dict[str, Any]:
    """One row: the point measured, or flagged as failed."""
    row: dict[str, Any] = {"device": bench.name, "torch": bench.torch.__version__, "dtype": point.dtype, "op": point.op}
    row.update({"pass": point.what, "mode": point.mode}, **dict(point.dims))
    flops, traffic = count_work(point)
    roof = compute_roof_us(point, bench.name)
    row.update(flops=f"{flops:.6g}", bytes=f"{traffic:.0f}", roof_us="" if roof is None else f"{roof:.4g}")
    failure = ""
    try:
        case = bench.build_case(point)
        if bench.cuda:
            bench.torch.cuda.reset_peak_memory_stats()
        times, host = measure(bench, case)
        median, spread, reps = summarize_times(times)
        row.update(time_us=f"{median:.5g}", spread_pct=f"{spread:.2f}", host_us=f"{host:.4g}", reps=reps)
        row["flag"] = flag_point(median, spread, roof)
        if point.op == "train_step" and bench.cuda:
            row["memory_gib"] = f"{bench.torch.cuda.max_memory_allocated() / 2**30:.4f}"
    except Exception as error:  # any failure of one point must leave the others
        failure = (type(error).__name__ + ": " + str(error)).splitlines()[0][:200]
    if failure:
        row.update(flag="failed", error=failure)
        bench.free_memory(everything=True)
        if bench.cuda:
            bench.torch.cuda.synchronize()  # a broken device raises here and ends the run; the file can be continued
    return row


def read_done_keys(path: Path) -> set[tuple[str, ...]]:
    """Points a file already holds, with their device, but for failed ones; a file of anything else is left as it is."""
    text = path.read_bytes() if path.exists() else b""
    head = text.partition(b"\n")[0].decode("utf-8", "replace").strip()
    started = b"\n" not in text and ",".join(COLUMNS).startswith(head)  # killed within the header, or an empty file
    if not started and head.split(",") != COLUMNS:
        raise SystemExit("kernels: " + str(path) + " is not a file of kernel samples; choose another name")
    if text and not text.endswith(b"\n"):  # the run was killed within a row
        path.write_bytes(text[: text.rfind(b"\n") + 1])
    if started:
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["flag"] != "failed"]
    names = ("device", "dtype", "op", "pass", "mode", *DIMS)
    return {(*(row[name] or "" for name in names), row["bytes"] if row["op"] == "copy" else "") for row in rows}


class ProgressLine:
    """A line on stderr that is redrawn on a terminal, and printed every ten seconds elsewhere."""

    def __init__(self, budget: float, points: int) -> None:
        self.began, self.budget, self.points, self.shown, self.done = time.monotonic(), budget, points, -math.inf, 0

    def measure_elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def show(self, point: KernelPoint | None = None) -> None:
        live, now = sys.stderr.isatty(), self.measure_elapsed_s()
        if point and now - self.shown < (0.2 if live else 10):
            return
        self.shown = now
        part = min(1.0, max(now / self.budget, self.done / max(1, self.points))) if point else 1.0
        what = " ".join((point.op, point.dtype, point.what, point.mode)) if point else "done"
        line = "[{:<24}] {:3.0f} %  {} of {} points  {:.0f} of {:.0f} s  {:<36}".format(
            "#" * int(24 * part), 100 * part, self.done, self.points, now, self.budget, what
        )
        print("\r" + line if live else line, end="" if live and point else "\n", file=sys.stderr, flush=True)


def run(bench: Bench, phases: dict[str, list[KernelPoint]], budget: float, path: Path) -> None:
    """Measure phase after phase, each to its share of the budget, then the kernels that are left."""
    done = read_done_keys(path)
    remaining = {
        name: [point for point in points if (bench.name, *point.key) not in done] for name, points in phases.items()
    }
    progress, clocks, compiling = ProgressLine(budget, sum(map(len, remaining.values()))), Clocks(bench), 25.0
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        if file.tell() == 0:
            writer.writeheader()
        for name in ("kernels", "blocks", "compiled", "kernels"):
            end = budget * PHASE_ENDS[name] if remaining["compiled"] or remaining["blocks"] else budget
            while remaining[name]:
                fresh = name == "compiled" and bench.last_model[0] != (remaining[name][0].mode, remaining[name][0].dims)
                if progress.measure_elapsed_s() + (compiling if fresh and bench.cuda else 0) >= end:
                    break
                point, began = remaining[name].pop(0), time.monotonic()
                progress.show(point)
                row = sample(bench, point)
                compiling = max(compiling, time.monotonic() - began) if name == "compiled" else compiling
                writer.writerow({**row, "sm_mhz": clocks.sm, "power_w": clocks.power})
                file.flush()
                progress.done += 1
                if "error" in row:
                    print("\nfailed:", *point.key[:4], *point.dims, row["error"], file=sys.stderr)
            if name == "compiled":
                remaining["blocks"], remaining["compiled"] = [], []
            bench.free_memory(everything=True)
    progress.show()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="CSV to write, or to continue")
    parser.add_argument(
        "--budget", type=parse_duration, default=600.0, help="time to spend: 90s, 10m, 1h (default 10m)"
    )
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1, or cpu (tiny shapes: tries the code)")
    parser.add_argument("--parts", type=int, default=1, help="how many shards the points are dealt into")
    parser.add_argument("--part", type=int, default=1, help="which shard to measure, 1 to PARTS")
    parser.add_argument("--dtypes", default="", help="only these, with commas: " + ",".join(DTYPES))
    parser.add_argument("--ops", default="", help="only these operators, with commas: matmul,attention,...")
    parser.add_argument("--plan", action="store_true", help="print the points instead of measuring them")
    arguments = parser.parse_args(argv)
    tiny = arguments.device == "cpu"
    for name, text, allowed in (("--dtypes", arguments.dtypes, DTYPES), ("--ops", arguments.ops, list_operators())):
        for choice in filter(None, text.split(",")):
            if choice not in allowed:
                parser.error(name + ": '" + choice + "' is not one of " + ", ".join(allowed))
    if not 1 <= arguments.part <= arguments.parts:
        parser.error("--part " + str(arguments.part) + " must be 1 to --parts " + str(arguments.parts))
    if not arguments.plan and arguments.output is None:
        parser.error("-o FILE is needed")
    bench = None if arguments.plan else Bench(arguments.device)
    selected = {
        name: text.split(",") if text else None for name, text in (("dtype", arguments.dtypes), ("op", arguments.ops))
    }
    phases = {
        name: [
            point
            for point in points
            if point.assign_shard(arguments.parts) == arguments.part
            and point.op in (selected["op"] or list_operators())
            and point.dtype in (selected["dtype"] or DTYPES)
            and (bench is None or point.dtype in bench.dtypes)
        ]
        for name, points in plan(tiny, bench is None or bench.grouped, bench is None or bench.flash).items()
    }
    if bench is None:
        for point in (point for points in phases.values() for point in points):
            print(*point.key[:4], *(f"{name}={value}" for name, value in point.dims))
        return 0
    if not any(phases.values()):
        parser.error(f"no point of --ops, --dtypes and --part is left that {bench.name} can run")
    run(bench, phases, arguments.budget, arguments.output)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nkernels: stopped; the same command continues the file")
    except BrokenPipeError:  # --plan | head
        sys.stderr.close()
