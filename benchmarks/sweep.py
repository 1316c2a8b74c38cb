"""How quickly sweeps are done; `python benchmarks/sweep.py` prints the figures and updates RESULTS.md.

Every cell of 20 x 20 is planned anew, synchronous plans and local updates, as `plan(scenario, top=1)` does it. Wall
time from the call to the answer, processes started included: the quickest of several runs, each in a process of its
own, with the CPU time of its workers and a fixed piece of work timed beside it, for other work on the machine slows
both.
`--case NAME` runs one case once; some cells of each are then planned alone, and must say the same.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from crosszone.analyse.fields import change_scenario
from crosszone.analyse.sweep import Sweep, sweep
from crosszone.inputs.scenario import Scenario, load_scenario
from crosszone.plan.planner import plan
from results import write_section
from search import format_row, measure_yardstick_ms

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "three-cities.yaml"
GBPS, RTT = "cluster.links[*].gbps", "cluster.links[*].rtt_ms"
AXES = (f"{GBPS}=1:100:log20", f"{RTT}=5:80:20")
CASES = {"its strategy pinned": False, "nothing pinned": True}
"""Whether the scenario's strategy is left out."""
RUNS, ENOUGH_S = 3, 120.0
"""Runs of a case, and seconds after which it is not run again."""
TARGET_S = 20
ALONE = 12
"""Cells that are planned alone."""


def run_sweep(free: bool) -> dict[str, Any]:
    """One sweep, and what some of its cells take alone."""
    scenario = load_scenario(EXAMPLE)
    start = time.perf_counter()
    answer = sweep(scenario, *AXES, free=free)
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    fields = {key: getattr(scenario, key) for key in scenario.model_fields_set - {"strategy"}}
    alone_s = measure_cells_alone(Scenario(**fields) if free else scenario, answer)
    kinds = Counter(cell.kind for cell in answer.cells)
    return {
        "wall_s": wall,
        "cpu_s": used.ru_utime + used.ru_stime,
        "cells": len(answer.cells),
        "alone_s": alone_s,
        "kinds": ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
        "flips": len(answer.flips),
    }


def measure_cells_alone(scenario: Scenario, answer: Sweep) -> float:
    """CPU seconds of planning a cell by itself, the mean of some; an error where one says something else."""
    cells = answer.cells[:: max(1, len(answer.cells) // ALONE)]
    start = time.process_time()
    for cell in cells:
        best = plan(change_scenario(scenario, {GBPS: cell.x, RTT: cell.y}), top=1)
        cell_plans = [cell.synchronous, *([cell.local_update] if cell.local_update else [])]
        steps = [best_plan.prediction.step_time_s for best_plan in (best.plans[0], *best.local_updates[:1])]
        if [cell_plan and cell_plan.step_time_s for cell_plan in cell_plans] != steps:
            raise SystemExit(f"the cell at {cell.x} Gbit/s and {cell.y} ms differs from its plan")
    return (time.process_time() - start) / len(cells)


def measure_case(case: str) -> dict[str, Any]:
    """The quickest of several processes that run a case."""
    runs: list[dict[str, Any]] = []
    began = time.monotonic()
    while len(runs) < RUNS and (not runs or time.monotonic() - began < ENOUGH_S):
        done = subprocess.run(
            [sys.executable, __file__, "--case", case],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        runs.append(json.loads(done.stdout))
    return {**min(runs, key=lambda run: run["wall_s"]), "runs": len(runs)}


def main() -> None:
    """Measure all cases and put the table into RESULTS.md; or run one case and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES)
    case = parser.parse_args().case
    if case is not None:
        before, swept = measure_yardstick_ms(), run_sweep(CASES[case])
        print(json.dumps({**swept, "yardstick_ms": (before + measure_yardstick_ms()) / 2}))
        return
    columns = ("target s", "wall s", "CPU s of all workers", "CPU s of a cell", "alone", "yardstick ms", "runs", "best")
    rows = [format_row("20 x 20 cells, `sweep()`", *columns), "|---" * 9 + "|"]
    for name in CASES:
        measurement = measure_case(name)
        cell_cpu_s = measurement["cpu_s"] / measurement["cells"]
        figures = (
            f"{measurement['wall_s']:.1f}",
            f"{measurement['cpu_s']:.1f}",
            f"{cell_cpu_s:.3f}",
            f"{measurement['alone_s']:.3f}",
        )
        rows.append(
            format_row(
                name,
                TARGET_S,
                *figures,
                f"{measurement['yardstick_ms']:.0f}",
                measurement["runs"],
                measurement["kinds"],
            )
        )
    head = (
        f"`python benchmarks/sweep.py`, {os.cpu_count()} cores, the quickest of up to {RUNS} runs: "
        f"`examples/three-cities.yaml`, x `{AXES[0]}`, y `{AXES[1]}`, every cell planned anew (best synchronous plan "
        "and best local updates). "
        f"*Alone*: CPU s of `plan(top=1)` of a cell by itself, the mean of {ALONE}, which must say the same. "
        "The yardstick is that of the search above."
    )
    write_section("Sweep", "\n".join([head, "", *rows]))


if __name__ == "__main__":
    main()
