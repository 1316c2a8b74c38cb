"""How quickly steps are simulated; `python benchmarks/simulation.py` prints milliseconds and updates RESULTS.md.

Making a shape is timed with empty caches, evaluating one with warm ones; medians of several runs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosszone.schedule.closed_form import bound_makespan_s
from crosszone.schedule.orders import build_orders, count_in_flight
from crosszone.schedule.shape import build_dependency_graph
from crosszone.schedule.simulation import simulate
from crosszone.schedule.step_times import simulate_step_times
from results import write_section

RUNS = 11
SIZES = [
    ("1f1b", 8, 64, 1),
    ("interleaved", 8, 64, 2),
    ("zero-bubble", 8, 64, 1),
    ("zbv", 8, 64, 2),
    ("dualpipev", 8, 64, 2),
    ("delay-aware", 8, 64, 1),
    ("1f1b", 64, 512, 1),
]
TIMES: dict[str, Any] = {
    "backward_s": 1.1,
    "weight_s": 0.9,
    "send_forward_s": 0.1,
    "send_backward_s": 0.1,
    "latency_forward_s": 0.2,
}


def reset_caches() -> None:
    """Empty the caches of orders and shapes."""
    for cached in (build_orders, build_dependency_graph, count_in_flight):
        cached.cache_clear()


def measure_median_ms(work: Callable[[], object], before: Callable[[], None] = lambda: None, runs: int = RUNS) -> float:
    """Median milliseconds of `work`, after one run to warm up; `before` is not timed."""
    times = []
    for run in range(runs + 1):
        before()
        start = time.perf_counter()
        work()
        if run:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def draw_forward_times(stages: int, chunks: int, steps: int = 1) -> NDArray[np.float64]:
    """Forward times of stages that differ by up to a tenth."""
    return np.random.default_rng(1).uniform(1, 1.1, (steps, stages, chunks))


def list_rows() -> list[str]:
    """Lines of the table."""
    lines = []
    for schedule, stages, micro_batches, chunks in SIZES:
        size: dict[str, Any] = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks}
        forward = draw_forward_times(stages, chunks)[0]

        def run(
            schedule: str = schedule, size: dict[str, Any] = size, forward: NDArray[np.float64] = forward
        ) -> object:
            return simulate(schedule, **size, forward_s=forward, **TIMES).makespan_s

        def build_graph(schedule: str = schedule, m: int = micro_batches, p: int = stages, v: int = chunks) -> object:
            return build_dependency_graph(schedule, p, m, v)

        build_ms = "-" if schedule == "delay-aware" else f"{measure_median_ms(build_graph, reset_caches, 5):.1f}"
        name = f"{schedule}, {stages} stages x {micro_batches} micro-batches" + (f" x {chunks}" if chunks > 1 else "")
        lines.append(f"| {name} | {build_ms} | {measure_median_ms(run):.2f} |")
    for steps in (64, 1024):
        forward = draw_forward_times(8, 1, steps)

        def simulate_batch(forward: NDArray[np.float64] = forward) -> object:
            return simulate("1f1b", stages=8, micro_batches=64, forward_s=forward, **TIMES).makespan_s

        def bound(forward: NDArray[np.float64] = forward) -> object:
            return bound_makespan_s("1f1b", stages=8, micro_batches=64, forward_s=forward, **TIMES)

        lines.append(f"| 1f1b, 8 x 64, each of {steps} at once | - | {measure_median_ms(simulate_batch) / steps:.3f} |")
        lines.append(
            f"| closed form, 1f1b, 8 x 64, each of {steps} at once | - | {measure_median_ms(bound) / steps:.4f} |"
        )

    def simulate_long_step() -> object:
        return simulate_step_times(
            "1f1b", stages=8, micro_batches=4096, forward_s=draw_forward_times(8, 1)[0], **TIMES
        ).makespan_s

    cold_ms = measure_median_ms(simulate_long_step, reset_caches, 5)
    lines.append(f"| 1f1b, 8 x 4096, rounds repeated | {cold_ms:.1f} | {measure_median_ms(simulate_long_step):.2f} |")
    return lines


def main() -> None:
    """Measure all cases and put the table into RESULTS.md."""
    load = os.getloadavg()[0]
    head = f"`python benchmarks/simulation.py`, {os.cpu_count()} cores, median of {RUNS}; sends are simulated too."
    note = f"Wall time; load average at the start: {load:.1f} (above 1, other work slowed this down)."
    table = "\n".join(["| step | shape made, ms | evaluated, ms |", "|---|---|---|", *list_rows()])
    write_section("Simulation of a step", f"{head}\n{note}\n\n{table}")


if __name__ == "__main__":
    main()
