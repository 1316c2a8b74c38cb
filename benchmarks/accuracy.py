"""How accurate predictions are; `python benchmarks/accuracy.py` prints the tables and updates RESULTS.md.

Runs are those that come with the program (or of the folder given). With --quick the cross-validation, which takes
minutes, is left out and its last section kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "studies"))  # uncertainty.py lies there

from uncertainty import pair_strategies, score_chances

from crosszone import measured
from crosszone.calibrate.accuracy import (
    MIN_LARGE_GROUP,
    Accuracy,
    RankedRun,
    score_ranking,
    score_runs,
    summarize_errors,
)
from crosszone.calibrate.components import (
    ComponentScores,
    build_component_table,
    build_job_column,
    compute_iteration_shares,
    read_components,
    score_components,
)
from crosszone.calibrate.components_read import STACK
from crosszone.calibrate.fit import FOLDS, CrossValidation, cross_validate, doubtful_of, training, usable
from crosszone.calibrate.runs import read_runs
from crosszone.calibrate.stability import read_stability_table
from crosszone.calibrate.testbed import build_transfer_report
from crosszone.cost.coefficients import pair_spread
from crosszone.cost.memory import memory_profiles
from crosszone.cost.operator_profile import operator_profile, operator_profiles
from crosszone.cost.own_profiles import load_cluster_profile
from crosszone.cost.profile import Profiles
from results import write_section

COLUMNS = {
    "rows": "scored",
    "mean %": "mape_pct",
    "median %": "median_ape_pct",
    "within 10 %": "within_10_pct",
    "within 20 %": "within_20_pct",
    "bias %": "bias_pct",
    "in band %": "band_coverage_pct",
}
MEMORY = {
    "rows": "memory_rows",
    "mean %": "memory_mape_pct",
    "median %": "memory_median_ape_pct",
    "lowest %": "memory_lowest_pct",
}
RANKING = {
    "groups": "groups",
    "strategies": "strategies",
    "mean regret": "mean_regret",
    "largest": "max_regret",
    "rank correlation": "spearman",
}
PLANNED = ("bigscience-bloom", "internevo", "vtrain-multi", "megatron-sc21", "simumax-b200")
"""Sources that tried many strategies on one cluster, as a planner does."""
LEFT_OUT = {
    "source": "whole sources",
    "model": "whole models",
    "gpu": "whole GPU families",
    "row": "single rows",
}


CHANCE_KINDS = ("source", "row")
"""What is left out where chances are scored: nothing of the source seen, and all but the row."""


def table(first: str, columns: Mapping[str, str], lines: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Lines of a Markdown table."""
    found = [f"| {first} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, values in lines:
        found.append(f"| {name} | {' | '.join(cell(values.get(key)) for key in columns.values())} |")
    return [*found, ""]


def cell(value: Any) -> str:
    """A number for a table."""
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def counted(profiles: Profiles) -> str:
    """How many coefficients there are."""
    memory = memory_profiles()
    more = len(memory["common"]) + sum(isinstance(e, dict) for s in memory["stacks"].values() for e in s.values())
    fitted = int((~profiles.fixed).sum())
    return (
        f"{len(profiles.names)} coefficients of time ({fitted} fitted, the others measured, published or assumed), "
        f"{more} of memory."
    )


def fitted(data: Path, profiles: Profiles) -> list[str]:
    """Errors on the rows that were fitted to, and on other files."""
    main = data / "measured_runs.csv"
    found = score_runs(main, profiles, doubtful_of(main, None))
    names = ("measured_runs_vtrain_single.csv", "measured_runs_h200.csv")
    others = {name: score_runs(data / name, profiles) for name in names}
    lines = [
        ("**all**", found.summary),
        *((f"{name} rows", values) for name, values in found.subsets.items()),
        ("doubtful rows, apart", found.doubtful),
        *((name, other.summary) for name, other in others.items()),
    ]
    text = table("rows of measured_runs.csv and other files", COLUMNS, lines)
    text += table("source", COLUMNS, ((one["source"], one) for one in found.by_source))
    rank = found.ranking
    text += [
        f"Ranking: {rank.groups} groups of {rank.strategies} strategies that differ in nothing else: mean regret "
        f"{rank.mean_regret:.4f}, largest {rank.max_regret:.3f}; of {rank.pairs} pairs more than 5 % apart "
        f"{rank.pairs_right_pct:.0f} % in the right order; mean rank correlation {rank.spearman:.2f}.",
        "",
    ]
    text += choices(found)
    return text + memory(found, others["measured_runs_h200.csv"])


def choices(found: Accuracy) -> list[str]:
    """How well the best of several measured strategies is chosen, by source; then of many."""
    outcomes: dict[str, list[RankedRun]] = {}
    for row in found.rows:
        if row.counts and row.measured_s and row.predicted_s:
            one = RankedRun(row.setup, row.strategy, row.measured_s, row.predicted_s)
            outcomes.setdefault(row.source, []).append(one)
    planned = [one for name in PLANNED for one in outcomes.get(name, [])]
    parts = {"**all**": [one for rows in outcomes.values() for one in rows], "the planned ones": planned, **outcomes}
    text = [f"Planned ones: {', '.join(PLANNED)}, whose runs try many strategies on one cluster.", ""]
    for least in (2, MIN_LARGE_GROUP):
        ranked = ((name, score_ranking(rows, least)) for name, rows in parts.items())
        lines = [
            (name, {key: _close(value) for key, value in asdict(one).items()}) for name, one in ranked if one.groups
        ]
        text += table(f"ranking, groups of {least} strategies and more", RANKING, lines)
    return text


def _close(value: float | None) -> float | str | None:
    """Regrets and correlations differ in the third digit."""
    return f"{value:.3f}" if isinstance(value, float) else value


def memory(found: Accuracy, h200: Accuracy) -> list[str]:
    """Errors of peak memory."""
    lines = [("**all**", found.summary), *((one["source"], one) for one in found.by_source), ("h200-hf", h200.summary)]
    return table("memory, source", MEMORY, ((name, one) for name, one in lines if one["memory_rows"]))


def left_out(data: Path, profiles: Profiles) -> list[CrossValidation]:
    """Rows predicted by fits that have not seen them."""
    main = data / "measured_runs.csv"
    rows = training(usable(read_runs(main)[0], doubtful_of(main, None)))
    return [one for kind in FOLDS if (one := cross_validate(rows, profiles, kind)) is not None]


def validated(found: Sequence[CrossValidation], seconds: float) -> list[str]:
    """Errors and coverage of rows that the fit has not seen."""
    columns = {"fits": "folds", **COLUMNS}
    text = table("left out of the fit", columns, [(LEFT_OUT[one.kind], one.as_dict()) for one in found])
    text += table("left out, and what was known", COLUMNS, (line for one in found for line in _known(one)))
    by_source = {one.kind: {s["source"]: s["mape_pct"] for s in one.as_dict()["by_source"]} for one in found}
    names = list(by_source["source"])
    each = [(name, {str(kind): by_source[kind][name] for kind in by_source}) for name in names]
    text += table("mean % by source, left out:", {LEFT_OUT[kind]: kind for kind in by_source}, each)
    return [*text, f"Every fit starts from the priors; all of them took {seconds:.0f} s."]


def chances(found: Sequence[CrossValidation]) -> list[str]:
    """Stated chances that one strategy beats another of the same set-up, and how often it did."""
    columns = {
        "pairs": "pairs",
        "mean stated %": "stated_pct",
        "really faster %": "right_pct",
        "the same, 2 / n a pair": "weighted_pct",
    }
    text = []
    for one in found:
        if one.kind in CHANCE_KINDS:
            pairs = pair_strategies(one)
            lines = score_chances(pairs, pair_spread()).items()
            count = f"{len(pairs.weight)} pairs of {pairs.setups} set-ups"
            text += [f"{count}, left out of the fit: {LEFT_OUT[one.kind]}.", ""]
            text += table("stated chance of the one predicted faster", columns, lines)
    return [*text, f"Spread of a pair: {pair_spread()}, found from the same pairs left out by whole sources."]


def _known(one: CrossValidation) -> Sequence[tuple[str, Any]]:
    """Scores by whether another part has rows of the stack and the GPU family, and of rows with experts."""
    both = one.stack_known & one.gpu_known
    masks = {
        "stack and GPU known": both,
        "stack unknown": ~one.stack_known & one.gpu_known,
        "GPU unknown": one.stack_known & ~one.gpu_known,
        "both unknown": ~one.stack_known & ~one.gpu_known,
    }
    lines = [
        (f"{LEFT_OUT[one.kind]}: {name}", summarize_errors([row for row, on in zip(one.rows, mask, strict=True) if on]))
        for name, mask in masks.items()
        if mask.any()
    ]
    return [
        *lines,
        (f"{LEFT_OUT[one.kind]}: models with experts", summarize_errors([row for row in one.rows if row.moe])),
    ]


def parts(data: Path, profiles: Profiles) -> list[str]:
    """Errors of the parts of jobs that were timed, and of transfers between emulated zones."""
    runs, skipped = read_components(data / "gpumodeling25" / "runs.csv")
    jobs = score_components(runs, profiles, skipped)
    text = clusters(jobs) + components(jobs) + shared(jobs)
    columns = {"jobs": "jobs", "mean %": "mape_pct", "median, signed %": "median_error_pct"}
    text += table("part of GPT-NeoX jobs (gpumodeling25)", columns, ((one["part"], one) for one in jobs.by_part))
    text += steady(data / "gpumodeling25" / "iterations.csv", jobs)
    report = build_transfer_report(data / "crosszone_rig.csv")
    operations = sorted({one.row.op for one in report.results if one.predicted is not None})
    columns = {
        "rows": "rows",
        "predicted": "predicted",
        "median %, best run": "median_best_pct",
        "90 %, best run": "p90_best_pct",
    }
    return text + table("transfer (crosszone_rig.csv)", columns, ((op, vars(report.of(op))) for op in operations))


def clusters(jobs: ComponentScores) -> list[str]:
    """Errors of the iteration by cluster: over all jobs, over the fastest of each set-up, and without each set-up."""
    columns = {
        "jobs": "scored",
        "mean %": "mape_pct",
        "no prediction below %": "floor_pct",
        "set-ups": "setups",
        "fastest job of each, mean %": "setups_mape_pct",
        "the same, left out of its constants, mean %": "left_out_pct",
    }
    lines = []
    for one in jobs.by_source:
        known = load_cluster_profile(one["source"])
        lines.append((one["source"], {**one, "left_out_pct": known and known.scores["jobs"][STACK]["left_out_pct"]}))
    return table("iteration of GPT-NeoX jobs, by cluster", columns, lines)


def components(jobs: ComponentScores) -> list[str]:
    """Signed errors by component and job, and mean absolute ones by cluster."""
    found = build_component_table(jobs, "en")
    heads = [f"{job.cluster} {job.name}{'' if job.fastest else ' (slower)'}" for job in found.jobs]
    heads += [f"{cluster} mean abs, {which}" for cluster in found.clusters for which in ("all", "fastest")]
    text = [f"| component, signed % | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for row in found.rows:
        errors = ["-" if error is None else f"{error:+.1f}" for error in row.errors_pct]
        means = [row.means[cluster] for cluster in found.clusters]
        errors += [cell(x) for one in means for x in (one.all_pct, one.fastest_pct)]
        text.append(f"| {row.name} | {' | '.join(errors)} |")
    return [*text, ""]


def shared(jobs: ComponentScores) -> list[str]:
    """What iterations are made of, measured and predicted."""
    lines = []
    found = compute_iteration_shares(jobs, "en")
    for one in found:
        for kind, values in (("measured", one.measured_pct), ("predicted", one.predicted_pct)):
            if values and one.job.fastest:
                lines.append((f"{one.job.cluster} {one.job.name}, {kind}", values))
    names = {name: part for part, name in found[0].names.items()}
    return table("share of the iteration, %", names, lines)


def steady(path: Path, jobs: ComponentScores) -> list[str]:
    """How steady the iterations of each job were, over its fastest one (`crosszone accuracy` has the seconds)."""
    names = {scored.run.id: build_job_column(scored) for scored in jobs.runs}
    columns = {"iterations": "count", "mean to min %": "mean", "deviation to min %": "std", "max to min %": "max"}
    lines = []
    for one in read_stability_table(path):
        found, job = one.stability, names.get(one.id)
        over = {
            "count": found.count,
            "mean": found.mean_to_min_pct,
            "std": 100 * found.std_s / found.min_s,
            "max": 100 * (found.max_s / found.min_s - 1),
        }
        told = f"{job.cluster} {job.name}{'' if job.fastest else ' (slower)'}" if job else one.id
        lines.append((told, over))
    return table("stability of iterations", columns, lines)


def operators() -> list[str]:
    """Errors of the shipped operator profiles by GPU and family of operators."""
    columns = {"samples": "samples", "random folds %": "error_pct", "unseen sizes %": "unseen_pct"}
    text: list[str] = []
    for gpu in operator_profiles():
        profile = operator_profile(gpu)
        if profile is not None:
            lines = profile.summary().items()
            text += table(gpu, columns, ((name, {**one, "samples": int(one["samples"])}) for name, one in lines))
    return text


def main() -> None:
    """Score everything and put the tables into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=measured.FOLDER)
    parser.add_argument("--quick", action="store_true", help="leave out the cross-validation")
    given = parser.parse_args()
    profiles = Profiles.shipped()
    head = ["`python benchmarks/accuracy.py`: errors are |predicted / measured - 1|. " + counted(profiles), ""]
    write_section("Accuracy", "\n".join([*head, *fitted(given.data, profiles)]))
    write_section("Accuracy by part", "\n".join(["`python benchmarks/accuracy.py`", "", *parts(given.data, profiles)]))
    if fits := operators():
        head = ["`python benchmarks/accuracy.py`: mean error of fitted operator times, by family.", ""]
        write_section("Operators", "\n".join([*head, *fits]))
    if not given.quick:
        start = time.perf_counter()
        found = left_out(given.data, profiles)
        said = ["`python benchmarks/accuracy.py`", ""]
        text = [*said, *validated(found, time.perf_counter() - start)]
        write_section("Accuracy on runs left out of the fit", "\n".join(text))
        write_section("Chance that the faster plan is faster", "\n".join([*said, *chances(found)]))


if __name__ == "__main__":
    main()
