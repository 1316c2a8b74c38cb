"""How quickly a what-if is answered, and how far published results over wide-area links are met.

`python benchmarks/communication.py [FOLDER]` takes cross_zone_runs.csv and crosszone_rig.csv of the folder, prints the
figures and updates RESULTS.md. CPU times, best of many; scenarios are already read.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "studies"))  # the package `published` lies there

from published.table import predict_published

from crosszone import measured
from crosszone.analyse.communication import build_communication_report
from crosszone.analyse.suggest import find_suggestions
from crosszone.analyse.what_if import what_if
from crosszone.calibrate.published import PublishedResult, compare_cells
from crosszone.calibrate.testbed import build_transfer_report
from crosszone.inputs.scenario import load_scenario
from crosszone.predict.predict import build_prediction, build_predictor
from prediction import measure_cpu_s
from results import write_section

ROOT = Path(__file__).resolve().parents[1]
CHANGES: dict[str, dict[str, Any]] = {
    "a rate": {"cluster.links[*].gbps": 25.0},
    "a batch": {"job.global_batch": 2048},
    "a degree": {"strategy.pp": 2, "strategy.dp": 8},
}


def measure_speed() -> list[str]:
    """Rows of times."""
    scenario = load_scenario(ROOT / "examples" / "three-cities.yaml")
    base = build_predictor(scenario)
    before = build_prediction(base)
    rows = []
    for name, change in CHANGES.items():
        seconds = measure_cpu_s(partial(what_if, scenario, change, base=base, before=before))
        rows.append((f"what-if: {name}, three cities", seconds))
    rows.append(("what-if: both sides predicted", measure_cpu_s(lambda: what_if(scenario, CHANGES["a rate"]))))
    turned = [("compression", "bf16")]
    rows.append(("what-if: a switch", measure_cpu_s(lambda: what_if(scenario, turn=turned, base=base, before=before))))
    rows.append(("communication report", measure_cpu_s(lambda: build_communication_report(base, before), 11)))
    rows.append(("suggestions, every switch", measure_cpu_s(lambda: find_suggestions(scenario, base=base), 5)))
    return [f"| {name} | {seconds * 1e3:.1f} |" for name, seconds in rows]


def score_published(folder: Path) -> list[str]:
    """Rows of errors by publication."""
    families: dict[str, list[PublishedResult]] = {}
    for result in predict_published(folder / "cross_zone_runs.csv"):
        families.setdefault(result.family, []).append(result)
    rows = []
    for family, results in families.items():
        errors = [abs(result.error_pct) for result in results if result.error_pct is not None]
        if not errors:
            continue
        cells = [f"{np.median(errors):.1f}", f"{np.mean(errors):.1f}", f"{np.mean(np.array(errors) <= 15) * 100:.0f}"]
        note = ""
        if family == "streaming-diloco":
            grid = compare_cells(results)
            note = f"{grid.within_one_step} of {grid.cells} rates within one step of the paper's grid"
        if family == "intellect-1":
            table = [result for result in results if "utilisation" in result.case and result.predicted is not None]
            note = f"utilisation within {max(abs(result.predicted - result.published) for result in table):.2f} points"  # type: ignore[operator]
        rows.append(f"| {family} | {len(results)} | {len(errors)} | {' | '.join(cells)} | {note} |")
    return rows


def score_testbed(folder: Path) -> list[str]:
    """Rows of errors on the testbed of emulated zones."""
    report = build_transfer_report(folder / "crosszone_rig.csv")
    rows = []
    for op in ("all_reduce", "p2p_one_way", "flat_ring", "hier_shard", "many_groups"):
        summary = report.summarize_op(op)
        if summary.median_best_pct is not None and summary.median_median_pct is not None:
            rows.append(f"| {op} | {summary.rows} | {summary.median_best_pct:.1f} | {summary.median_median_pct:.1f} |")
    for result in report.results:
        if result.row.op.startswith(("ddp_", "localsgd")) and result.error_median_pct is not None:
            best = "-" if result.error_best_pct is None else f"{result.error_best_pct:+.1f}"
            rows.append(f"| {result.row.op} | 1 | {best} | {result.error_median_pct:+.1f} |")
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=measured.FOLDER,
        help="Folder with cross_zone_runs.csv and crosszone_rig.csv.",
    )
    folder = parser.parse_args().folder
    text = [
        f"`.venv/bin/python benchmarks/communication.py`, one of {os.cpu_count()} cores.",
        "",
        "| answer | CPU ms |",
        "|---|---|",
        *measure_speed(),
    ]
    text += [
        "",
        "Published by others, predicted with the models here (errors are |predicted / published - 1|):",
        "",
        "| publication | figures | predicted | median % | mean % | within 15 % | |",
        "|---|---|---|---|---|---|---|",
        *score_published(folder),
        "",
        "Measured between emulated zones (Gloo over TCP; DDP rows with their sign):",
        "",
        "| operation | rows | against the best run % | against the median run % |",
        "|---|---|---|---|",
        *score_testbed(folder),
    ]
    write_section("Communication", "\n".join(text))


if __name__ == "__main__":
    main()
