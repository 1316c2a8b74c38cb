"""Whether the search misses anything: every strategy of small random spaces is simulated and compared with its answer.

`python benchmarks/brute_force.py --scenarios 200` prints how many agree and the largest regret, and updates RESULTS.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from results import write_section

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from plan.exhaustive import TOP, compared, small_problem  # type: ignore[import-not-found]


def main() -> None:
    """Compare as many scenarios as asked for and put the figures into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=50)
    parser.add_argument("--most", type=int, default=2000, help="strategies of a scenario at most")
    parser.add_argument("--first", type=int, default=1000, help="number of the first scenario")
    arguments = parser.parse_args()
    start = time.monotonic()
    agreed = best = strategies = feasible = simulated = 0
    regret, missed = 0.0, []
    for seed in range(arguments.first, arguments.first + arguments.scenarios):
        comparison = compared(small_problem(seed, arguments.most))
        agreed += comparison.agrees
        best += comparison.regret <= 1e-9
        regret = max(regret, comparison.regret)
        strategies, feasible = strategies + comparison.strategies, feasible + comparison.feasible
        simulated += comparison.simulated
        if not comparison.agrees:
            missed.append(seed)
            print(f"scenario {seed}: search {comparison.searched}, all {comparison.exhaustive}", file=sys.stderr)
    rows = {
        "scenarios (random clusters of at most 16 GPUs in two zones)": arguments.scenarios,
        "the best strategy is found": best,
        f"the best {TOP} families have the same step times": agreed,
        "largest regret": f"{regret:.2e}",
        "strategies": strategies,
        "feasible ones, all simulated": feasible,
        "simulated by the search": simulated,
    }
    table = "\n".join(["| what | figure |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows.items())])
    command = f"`python benchmarks/brute_force.py --scenarios {arguments.scenarios} --most {arguments.most}`"
    write_section("Brute force", f"{command}, {time.monotonic() - start:.0f} s.\n\n{table}")


if __name__ == "__main__":
    main()
