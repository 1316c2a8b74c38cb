"""How accurate predictions are; `python benchmarks/accuracy.py` prints the tables and updates RESULTS.md.

Runs are those that come with the program (or of the folder given). With --quick the cross-validation, which takes
minutes, is left out and its last section kept; with --fits only the verdicts on memory are counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np

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
    score_components,
)
from crosszone.calibrate.components_read import STACK, read_components
from crosszone.calibrate.fit import (
    FOLDS,
    CrossValidation,
    build_training_rows,
    cross_validate,
    read_doubtful_reasons,
    select_usable_runs,
)
from crosszone.calibrate.fits import predict_memories, read_configurations, score_fits
from crosszone.calibrate.predicted import predict_runs
from crosszone.calibrate.runs import MeasuredRun, read_runs
from crosszone.calibrate.stability import read_stability_table
from crosszone.calibrate.testbed import build_transfer_report
from crosszone.cost.coefficients import read_pair_spread
from crosszone.cost.memory import read_memory_profiles
from crosszone.cost.operator_profile import list_sampled_gpus, load_operator_profile
from crosszone.cost.own_profiles import load_cluster_profile
from crosszone.cost.profile import Profiles
from crosszone.predict.fits import Verdict
from crosszone.predict.prediction import Memory
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
PEAK_FILES = ("measured_runs.csv", "measured_runs_2.csv", "measured_runs_h200.csv", "ultrascale_sweep.csv")
PEAKS = {"rows": "rows", "mean %": "mean", "median %": "median", "lowest %": "lowest", "more than 5 % low, %": "low"}
FITS_BINS = (0.0, 0.1, 0.3, 0.5, 0.75, 0.9, 1.01)
LEFT_OUT = {
    "source": "whole sources",
    "model": "whole models",
    "gpu": "whole GPU families",
    "row": "single rows",
}


CHANCE_KINDS = ("source", "row")
"""What is left out where chances are scored: nothing of the source seen, and all but the row."""


def format_table(first: str, columns: Mapping[str, str], rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [f"| {first} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, values in rows:
        lines.append(f"| {name} | {' | '.join(format_cell(values.get(key)) for key in columns.values())} |")
    return [*lines, ""]


def format_cell(value: Any) -> str:
    """A number for a table."""
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def count_coefficients(profiles: Profiles) -> str:
    """How many coefficients there are."""
    memory = read_memory_profiles()
    more = len(memory["common"]) + sum(isinstance(e, dict) for s in memory["stacks"].values() for e in s.values())
    fitted = int((~profiles.fixed).sum())
    return (
        f"{len(profiles.names)} coefficients of time ({fitted} fitted, the others measured, published or assumed), "
        f"{more} of memory."
    )


def score_fitted_rows(data: Path, profiles: Profiles) -> list[str]:
    """Errors on the rows that were fitted to, and on other files."""
    main = data / "measured_runs.csv"
    accuracy = score_runs(main, profiles, read_doubtful_reasons(main, None))
    names = ("measured_runs_vtrain_single.csv", "measured_runs_h200.csv")
    accuracy_by_file = {name: score_runs(data / name, profiles) for name in names}
    lines = [
        ("**all**", accuracy.summary),
        *((f"{name} rows", values) for name, values in accuracy.subsets.items()),
        ("doubtful rows, apart", accuracy.doubtful),
        *((name, file_accuracy.summary) for name, file_accuracy in accuracy_by_file.items()),
    ]
    text = format_table("rows of measured_runs.csv and other files", COLUMNS, lines)
    text += format_table("source", COLUMNS, ((source["source"], source) for source in accuracy.by_source))
    rank = accuracy.ranking
    text += [
        f"Ranking: {rank.groups} groups of {rank.strategies} strategies that differ in nothing else: mean regret "
        f"{rank.mean_regret:.4f}, largest {rank.max_regret:.3f}; of {rank.pairs} pairs more than 5 % apart "
        f"{rank.pairs_right_pct:.0f} % in the right order; mean rank correlation {rank.spearman:.2f}.",
        "",
    ]
    text += rank_choices(accuracy)
    return text + format_memory(accuracy, accuracy_by_file["measured_runs_h200.csv"])


def rank_choices(accuracy: Accuracy) -> list[str]:
    """How well the best of several measured strategies is chosen, by source; then of many."""
    outcomes: dict[str, list[RankedRun]] = {}
    for row in accuracy.rows:
        if row.counts and row.measured_s and row.predicted_s:
            outcome = RankedRun(row.setup, row.strategy, row.measured_s, row.predicted_s)
            outcomes.setdefault(row.source, []).append(outcome)
    planned = [outcome for name in PLANNED for outcome in outcomes.get(name, [])]
    parts = {
        "**all**": [outcome for rows in outcomes.values() for outcome in rows],
        "the planned ones": planned,
        **outcomes,
    }
    text = [f"Planned ones: {', '.join(PLANNED)}, whose runs try many strategies on one cluster.", ""]
    for least in (2, MIN_LARGE_GROUP):
        ranked = ((name, score_ranking(rows, least)) for name, rows in parts.items())
        lines = [
            (name, {key: _format_three_digits(value) for key, value in asdict(ranking).items()})
            for name, ranking in ranked
            if ranking.groups
        ]
        text += format_table(f"ranking, groups of {least} strategies and more", RANKING, lines)
    return text


def _format_three_digits(value: float | None) -> float | str | None:
    """Regrets and correlations differ in the third digit."""
    return f"{value:.3f}" if isinstance(value, float) else value


def format_memory(accuracy: Accuracy, h200: Accuracy) -> list[str]:
    """Errors of peak memory."""
    lines = [
        ("**all**", accuracy.summary),
        *((values["source"], values) for values in accuracy.by_source),
        ("h200-hf", h200.summary),
    ]
    return format_table("memory, source", MEMORY, ((name, values) for name, values in lines if values["memory_rows"]))


def validate_left_out(data: Path, profiles: Profiles) -> list[CrossValidation]:
    """Rows predicted by fits that have not seen them."""
    main = data / "measured_runs.csv"
    rows = build_training_rows(select_usable_runs(read_runs(main)[0], read_doubtful_reasons(main, None)))
    return [validation for kind in FOLDS if (validation := cross_validate(rows, profiles, kind)) is not None]


def format_validations(validations: Sequence[CrossValidation], seconds: float) -> list[str]:
    """Errors and coverage of rows that the fit has not seen."""
    columns = {"fits": "folds", **COLUMNS}
    text = format_table(
        "left out of the fit",
        columns,
        [(LEFT_OUT[validation.kind], validation.as_dict()) for validation in validations],
    )
    text += format_table(
        "left out, and what was known",
        COLUMNS,
        (line for validation in validations for line in _score_by_known_parts(validation)),
    )
    by_source = {
        validation.kind: {s["source"]: s["mape_pct"] for s in validation.as_dict()["by_source"]}
        for validation in validations
    }
    names = list(by_source["source"])
    lines = [(name, {str(kind): by_source[kind][name] for kind in by_source}) for name in names]
    text += format_table("mean % by source, left out:", {LEFT_OUT[kind]: kind for kind in by_source}, lines)
    return [*text, f"Every fit starts from the priors; all of them took {seconds:.0f} s."]


def score_stated_chances(validations: Sequence[CrossValidation]) -> list[str]:
    """Stated chances that one strategy beats another of the same set-up, and how often it did."""
    columns = {
        "pairs": "pairs",
        "mean stated %": "stated_pct",
        "really faster %": "right_pct",
        "the same, 2 / n a pair": "weighted_pct",
    }
    text = []
    for validation in validations:
        if validation.kind in CHANCE_KINDS:
            pairs = pair_strategies(validation)
            lines = score_chances(pairs, read_pair_spread()).items()
            count = f"{len(pairs.weight)} pairs of {pairs.setups} set-ups"
            text += [f"{count}, left out of the fit: {LEFT_OUT[validation.kind]}.", ""]
            text += format_table("stated chance of the one predicted faster", columns, lines)
    return [*text, f"Spread of a pair: {read_pair_spread()}, found from the same pairs left out by whole sources."]


def _score_by_known_parts(validation: CrossValidation) -> Sequence[tuple[str, Any]]:
    """Scores by whether another part has rows of the stack and the GPU family, and of rows with experts."""
    both = validation.stack_known & validation.gpu_known
    masks = {
        "stack and GPU known": both,
        "stack unknown": ~validation.stack_known & validation.gpu_known,
        "GPU unknown": validation.stack_known & ~validation.gpu_known,
        "both unknown": ~validation.stack_known & ~validation.gpu_known,
    }
    lines = [
        (
            f"{LEFT_OUT[validation.kind]}: {name}",
            summarize_errors([row for row, on in zip(validation.rows, mask, strict=True) if on]),
        )
        for name, mask in masks.items()
        if mask.any()
    ]
    return [
        *lines,
        (
            f"{LEFT_OUT[validation.kind]}: models with experts",
            summarize_errors([row for row in validation.rows if row.moe]),
        ),
    ]


def score_parts(data: Path, profiles: Profiles) -> list[str]:
    """Errors of the parts of jobs that were timed, and of transfers between emulated zones."""
    runs, skipped = read_components(data / "gpumodeling25" / "runs.csv")
    jobs = score_components(runs, profiles, skipped)
    text = format_clusters(jobs) + format_components(jobs) + format_shares(jobs)
    columns = {"jobs": "jobs", "mean %": "mape_pct", "median, signed %": "median_error_pct"}
    text += format_table(
        "part of GPT-NeoX jobs (gpumodeling25)", columns, ((part["part"], part) for part in jobs.by_part)
    )
    text += format_stability(data / "gpumodeling25" / "iterations.csv", jobs)
    report = build_transfer_report(data / "crosszone_rig.csv")
    operations = sorted({result.row.op for result in report.results if result.predicted is not None})
    columns = {
        "rows": "rows",
        "predicted": "predicted",
        "median %, best run": "median_best_pct",
        "90 %, best run": "p90_best_pct",
    }
    return text + format_table(
        "transfer (crosszone_rig.csv)", columns, ((op, vars(report.summarize_op(op))) for op in operations)
    )


def format_clusters(jobs: ComponentScores) -> list[str]:
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
    for cluster in jobs.by_source:
        profile = load_cluster_profile(cluster["source"])
        lines.append(
            (cluster["source"], {**cluster, "left_out_pct": profile and profile.scores["jobs"][STACK]["left_out_pct"]})
        )
    return format_table("iteration of GPT-NeoX jobs, by cluster", columns, lines)


def format_components(jobs: ComponentScores) -> list[str]:
    """Signed errors by component and job, and mean absolute ones by cluster."""
    table = build_component_table(jobs, "en")
    heads = [f"{job.cluster} {job.name}{'' if job.fastest else ' (slower)'}" for job in table.jobs]
    heads += [f"{cluster} mean abs, {which}" for cluster in table.clusters for which in ("all", "fastest")]
    text = [f"| component, signed % | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for row in table.rows:
        errors = ["-" if error is None else f"{error:+.1f}" for error in row.errors_pct]
        means = [row.means[cluster] for cluster in table.clusters]
        errors += [format_cell(x) for mean in means for x in (mean.all_pct, mean.fastest_pct)]
        text.append(f"| {row.name} | {' | '.join(errors)} |")
    return [*text, ""]


def format_shares(jobs: ComponentScores) -> list[str]:
    """What iterations are made of, measured and predicted."""
    lines = []
    job_shares = compute_iteration_shares(jobs, "en")
    for job_share in job_shares:
        for kind, values in (("measured", job_share.measured_pct), ("predicted", job_share.predicted_pct)):
            if values and job_share.job.fastest:
                lines.append((f"{job_share.job.cluster} {job_share.job.name}, {kind}", values))
    names = {name: part for part, name in job_shares[0].names.items()}
    return format_table("share of the iteration, %", names, lines)


def format_stability(path: Path, jobs: ComponentScores) -> list[str]:
    """How steady the iterations of each job were, over its fastest one (`crosszone accuracy` has the seconds)."""
    names = {scored.run.id: build_job_column(scored) for scored in jobs.runs}
    columns = {"iterations": "count", "mean to min %": "mean", "deviation to min %": "std", "max to min %": "max"}
    lines = []
    for job_stability in read_stability_table(path):
        stability, job = job_stability.stability, names.get(job_stability.id)
        over = {
            "count": stability.count,
            "mean": stability.mean_to_min_pct,
            "std": 100 * stability.std_s / stability.min_s,
            "max": 100 * (stability.max_s / stability.min_s - 1),
        }
        name = f"{job.cluster} {job.name}{'' if job.fastest else ' (slower)'}" if job else job_stability.id
        lines.append((name, over))
    return format_table("stability of iterations", columns, lines)


def score_verdicts(data: Path, profiles: Profiles) -> list[str]:
    """Does it fit? Verdicts on configurations that ran and that crashed, and errors of the peaks of every file."""
    files = {"ran": data / "ultrascale_sweep.csv", "crashed": data / "ultrascale_crashed.csv"}
    rows = {name: read_configurations(path) for name, path in files.items()}
    memories = {
        name: predict_memories([row for row in entries if isinstance(row, MeasuredRun)], profiles)
        for name, entries in rows.items()
    }
    counts = [(name, _count_verdicts(memories[name], len(entries))) for name, entries in rows.items()]
    columns = {name: name for name in ("rows", "yes", "tight", "no", "no %")}
    text = ["All rows of ultrascale_sweep.csv (ran) and ultrascale_crashed.csv (crashed; a few for other reasons).", ""]
    text += format_table("configurations that", columns, counts)
    text += format_table(
        "stated probability that it fits", {"configurations": "rows", "ran %": "ran"}, _bin_probabilities(memories)
    )
    groups = score_fits(rows["ran"], rows["crashed"], profiles).groups.items()
    columns = {"ran": "ran", "called no": "ran_flagged", "crashed": "crashed", "foreseen": "crashed_flagged"}
    text += format_table("model and GPUs", columns, ((f"{m}, {g}", scored.as_dict()) for (m, g), scored in groups))
    return text + format_table("peak memory, file", PEAKS, _score_peaks(data, profiles))


def _count_verdicts(memories: Sequence[Memory | None], rows: int) -> dict[str, float]:
    verdicts = Counter(memory.verdict for memory in memories if memory)
    by_verdict = {name: verdicts[name] for name in get_args(Verdict)}
    return {"rows": rows, **by_verdict, "no %": 100.0 * verdicts["no"] / rows}


def _bin_probabilities(
    memories: Mapping[str, Sequence[Memory | None]],
) -> Iterable[tuple[str, dict[str, float | None]]]:
    stated = {name: np.array([m.fits_probability for m in predicted if m]) for name, predicted in memories.items()}
    for low, high in pairwise(FITS_BINS):
        inside = {name: int(((low <= p) & (p < high)).sum()) for name, p in stated.items()}
        total = sum(inside.values())
        share = {"rows": total, "ran": 100.0 * inside["ran"] / total if total else None}
        yield f"{100 * low:.0f}-{min(100 * high, 100):.0f} %", share


def _score_peaks(data: Path, profiles: Profiles) -> Iterable[tuple[str, dict[str, float]]]:
    left_out = set(read_doubtful_reasons(data / "measured_runs.csv", None))
    for name in PEAK_FILES:
        runs = [run for run in read_runs(data / name)[0] if run.memory_gib and run.id not in left_out]
        measured_gib = np.array([run.memory_gib for run in runs if run.duplicate_of is None])
        predicted = predict_runs([run for run in runs if run.duplicate_of is None], profiles).memory_gib
        error = 100.0 * (predicted / measured_gib - 1.0)
        yield (
            name,
            {
                "rows": len(error),
                "mean": float(np.abs(error).mean()),
                "median": float(np.median(np.abs(error))),
                "lowest": float(error.min()),
                "low": 100.0 * float((error < -5.0).mean()),
            },
        )


def format_operators() -> list[str]:
    """Errors of the shipped operator profiles by GPU and family of operators."""
    columns = {"samples": "samples", "random folds %": "error_pct", "unseen sizes %": "unseen_pct"}
    text: list[str] = []
    for gpu in list_sampled_gpus():
        profile = load_operator_profile(gpu)
        if profile is not None:
            lines = profile.summarize().items()
            text += format_table(
                gpu, columns, ((name, {**errors, "samples": int(errors["samples"])}) for name, errors in lines)
            )
    return text


def main() -> None:
    """Score everything and put the tables into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=measured.FOLDER)
    parser.add_argument("--quick", action="store_true", help="leave out the cross-validation")
    parser.add_argument("--fits", action="store_true", help="only the verdicts on memory")
    arguments = parser.parse_args()
    profiles = Profiles.load_shipped()
    verdicts = ["`python benchmarks/accuracy.py --fits`", "", *score_verdicts(arguments.data, profiles)]
    write_section("Does it fit?", "\n".join(verdicts))
    if arguments.fits:
        return
    head = [
        "`python benchmarks/accuracy.py`: errors are |predicted / measured - 1|. " + count_coefficients(profiles),
        "",
    ]
    write_section("Accuracy", "\n".join([*head, *score_fitted_rows(arguments.data, profiles)]))
    write_section(
        "Accuracy by part", "\n".join(["`python benchmarks/accuracy.py`", "", *score_parts(arguments.data, profiles)])
    )
    if fits := format_operators():
        head = ["`python benchmarks/accuracy.py`: mean error of fitted operator times, by family.", ""]
        write_section("Operators", "\n".join([*head, *fits]))
    if not arguments.quick:
        start = time.perf_counter()
        validations = validate_left_out(arguments.data, profiles)
        heading = ["`python benchmarks/accuracy.py`", ""]
        text = [*heading, *format_validations(validations, time.perf_counter() - start)]
        write_section("Accuracy on runs left out of the fit", "\n".join(text))
        write_section(
            "Chance that the faster plan is faster", "\n".join([*heading, *score_stated_chances(validations)])
        )


if __name__ == "__main__":
    main()
