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

from crosszone.analyse.fields import scenario_with
from crosszone.analyse.sweep import Sweep, sweep
from crosszone.inputs.scenario import Scenario, load_scenario
from crosszone.plan.planner import plan
from results import write_section
from search import row, yardstick_ms

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


def swept(free: bool) -> dict[str, Any]:
    """One sweep, and what some of its cells take alone."""
    scenario = load_scenario(EXAMPLE)
    start = time.perf_counter()
    found = sweep(scenario, *AXES, free=free)
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    given = {key: getattr(scenario, key) for key in scenario.model_fields_set - {"strategy"}}
    alone_s = alone(Scenario(**given) if free else scenario, found)
    kinds = Counter(cell.kind for cell in found.cells)
    return {
        "wall_s": wall,
        "cpu_s": used.ru_utime + used.ru_stime,
        "cells": len(found.cells),
        "alone_s": alone_s,
        "kinds": ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
        "flips": len(found.flips),
    }


def alone(scenario: Scenario, found: Sweep) -> float:
    """CPU seconds of planning a cell by itself, the mean of some; an error where one says something else."""
    some = found.cells[:: max(1, len(found.cells) // ALONE)]
    start = time.process_time()
    for cell in some:
        best = plan(scenario_with(scenario, {GBPS: cell.x, RTT: cell.y}), top=1)
        told = [cell.synchronous, *([cell.local_update] if cell.local_update else [])]
        steps = [one.prediction.step_time_s for one in (best.plans[0], *best.local_updates[:1])]
        if [one and one.step_time_s for one in told] != steps:
            raise SystemExit(f"the cell at {cell.x} Gbit/s and {cell.y} ms differs from its plan")
    return (time.process_time() - start) / len(some)


def measured(case: str) -> dict[str, Any]:
    """The quickest of several processes that run a case."""
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    while len(found) < RUNS and (not found or time.monotonic() - began < ENOUGH_S):
        done = subprocess.run(
            [sys.executable, __file__, "--case", case],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        found.append(json.loads(done.stdout))
    return {**min(found, key=lambda one: one["wall_s"]), "runs": len(found)}


def main() -> None:
    """Measure all cases and put the table into RESULTS.md; or run one case and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES)
    case = parser.parse_args().case
    if case is not None:
        before, found = yardstick_ms(), swept(CASES[case])
        print(json.dumps({**found, "yardstick_ms": (before + yardstick_ms()) / 2}))
        return
    columns = ("target s", "wall s", "CPU s of all workers", "CPU s of a cell", "alone", "yardstick ms", "runs", "best")
    rows = [row("20 x 20 cells, `sweep()`", *columns), "|---" * 9 + "|"]
    for name in CASES:
        one = measured(name)
        each = one["cpu_s"] / one["cells"]
        figures = (f"{one['wall_s']:.1f}", f"{one['cpu_s']:.1f}", f"{each:.3f}", f"{one['alone_s']:.3f}")
        rows.append(row(name, TARGET_S, *figures, f"{one['yardstick_ms']:.0f}", one["runs"], one["kinds"]))
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
