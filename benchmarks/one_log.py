"""One log: calibrate on one row of a source that no fit has seen, predict its other rows; every row in turn.

    python benchmarks/one_log.py [DATA] [--only vTrain BLOOM InternEvo]

The profiles are fitted anew without the source. `named`: the software's stack is known (what it fuses, what it
overlaps), not its coefficients; `default`: the newcomer's case, the default stack of its framework.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

import numpy as np

from crosszone import measured
from crosszone.calibrate.fit import Fit, doubtful_of, refit, training, usable
from crosszone.calibrate.one_log_runs import Choice, each_row
from crosszone.calibrate.runs import Run, read_runs
from crosszone.cost.profile import Profiles
from results import RESULTS, write_section

TITLE = "Calibrated from one log"
SOURCES = {
    "vTrain": ("vtrain-multi", ("vtrain-multi", "vtrain-single")),
    "BLOOM": ("bigscience-bloom", ("bigscience-bloom",)),
    "InternEvo": ("internevo", ("internevo",)),
    "SimuMax": ("simumax-b200", ("simumax-b200",)),
    "Sailor": ("sailor", ("sailor",)),
    "SC21": ("megatron-sc21", ("megatron-sc21",)),
    "MegaScale": ("megascale-2024", ("megascale-2024",)),
    "torchtitan": ("torchtitan", ("torchtitan",)),
}
"""Rows to calibrate on, and sources that the fit must not see."""


def without(runs: Sequence[Run], also: Sequence[Run], left_out: Sequence[str]) -> Fit:
    """A fit of all rows but those of some sources."""
    rows = training([r for r in runs if r.source not in left_out], [r for r in also if r.source not in left_out])
    return refit(rows, Profiles.shipped())


def with_stack(runs: Sequence[Run], profiles: Profiles, *, named: bool) -> list[Run]:
    """The runs with the stack that they are of, or with the one a newcomer gets: their framework's default."""
    return list(runs) if named else [run.with_stack(profiles.stack_of(run.framework)) for run in runs]


def kept(name: str) -> list[str]:
    """The rows of a source as the table has them."""
    text = RESULTS.read_text(encoding="utf-8").partition(f"## {TITLE}\n")[2].partition("\n## ")[0]
    return [row for row in text.splitlines() if row.startswith(f"| {name} |")]


def line(name: str, stack: str, found: Sequence[Choice]) -> str:
    """One row of the table."""
    better = 100.0 * mean(one.after_pct < one.before_pct for one in found)
    near = [one for one in found if one.near_after_pct is not None]
    cells = (
        f"{mean(one.before_pct for one in found):.1f}",
        f"{mean(one.after_pct for one in found):.1f}",
        f"{median(one.after_pct for one in found):.1f}",
        f"{mean(one.scaled_pct for one in found):.1f}",
        f"{better:.0f}",
        f"{mean(one.near_before_pct or 0.0 for one in near):.1f}" if near else "",
        f"{mean(one.near_after_pct or 0.0 for one in near):.1f}" if near else "",
        f"{mean(one.own_before_pct for one in found):.1f}",
        f"{mean(one.own_after_pct for one in found):.1f}",
        f"{max(one.own_after_pct for one in found):.1f}",
    )
    return f"| {name} | {stack} | {len(found)} | " + " | ".join(cells) + " |"


def main() -> None:
    """Calibrate on every row and put the table into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=measured.FOLDER)
    parser.add_argument("--only", nargs="*", choices=SOURCES, default=list(SOURCES), help="keep the others' old rows")
    given = parser.parse_args()
    doubtful = doubtful_of(given.data / "measured_runs.csv", None)
    runs, also = (
        usable(read_runs(given.data / name)[0], doubtful)
        for name in ("measured_runs.csv", "measured_runs_vtrain_single.csv")
    )
    shipped = Profiles.shipped()
    lines = []
    for name, (source, left_out) in SOURCES.items():
        if name not in given.only:
            lines += kept(name)
            continue
        fitted = without(runs, also, left_out)
        profiles = shipped.with_values(fitted.values)
        errors = np.where(shipped.fixed, shipped.errors, fitted.error)
        own = [run for run in runs if run.source == source]
        for stack in ("named", "default"):
            found = each_row(with_stack(own, profiles, named=stack == "named"), profiles, errors)
            lines.append(line(name, stack, found))
            print(lines[-1], flush=True)
    head = [
        "`python benchmarks/one_log.py`: profiles fitted without the source; one of its rows taken as the log of",
        "a run, the others predicted before and after; mean over every choice of the one row. Errors are",
        "|predicted / measured - 1| of the step, %. `named`: the stack is known, its coefficients are not;",
        "`default`: the default stack of the framework.",
        "",
        "| source | stack | rows | others before | others after, mean | median choice | total scaled instead "
        "| choices that improve, % | same model and GPUs before | after | the row before | the row after | worst |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    write_section(TITLE, "\n".join([*head, *lines]))


if __name__ == "__main__":
    main()
