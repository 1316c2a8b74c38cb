"""How quickly the command line answers; `python benchmarks/startup.py` prints medians and updates RESULTS.md.

Times are wall and CPU seconds of whole processes, median of several starts after one to warm the file cache.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from pathlib import Path

from results import write_section

ROOT = Path(__file__).resolve().parents[1]
STARTS = 11
CASES = {
    "`./crosszone --help`": ["--help"],
    "`./crosszone catalogue gpus`": ["catalogue", "gpus"],
    "`./crosszone scenario check examples/three-cities.yaml`": ["scenario", "check", "examples/three-cities.yaml"],
    "`./crosszone predict examples/three-cities.yaml`": ["predict", "examples/three-cities.yaml"],
    "`./crosszone scenario show examples/four-zones-405b.yaml`": ["scenario", "show", "examples/four-zones-405b.yaml"],
}


def measure(arguments: list[str]) -> tuple[float, float]:
    """Median wall and CPU seconds of one command."""
    walls, cpus = [], []
    for start in range(STARTS + 1):
        before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([ROOT / "crosszone", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if start:
            walls.append(time.perf_counter() - before)
            cpus.append(after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime)
    return statistics.median(walls), statistics.median(cpus)


def main() -> None:
    """Measure all cases and put the table into RESULTS.md."""
    head = f"`python benchmarks/startup.py`, {os.cpu_count()} cores, second start, median of {STARTS}."
    lines = ["| command | wall s | CPU s |", "|---|---|---|"]
    for name, arguments in CASES.items():
        wall, cpu = measure(arguments)
        lines.append(f"| {name} | {wall:.2f} | {cpu:.2f} |")
    write_section("Start of the command line", head + "\n\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
