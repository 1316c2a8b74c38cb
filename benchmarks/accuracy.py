"""How accurate predictions are; `python benchmarks/accuracy.py` prints the tables and updates RESULTS.md.

Runs are those that come with the program (or of the folder given). First contact comes first: each run entered as a
user would. With --quick nothing is fitted: predictions of rows left out of a fit are those of benchmarks/left_out.csv,
and only their ranges are computed anew. With --fits only the verdicts on memory are counted, with --contact only first
contact and src/crosszone/measured/accuracy_summary.json are written.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "studies"))  # refit.py and uncertainty.py lie there

from refit import fit_stacks
from uncertainty import pair_strategies, score_chances

import crosszone
from crosszone import measured
from crosszone.calibrate.accuracy import (
    MIN_LARGE_GROUP,
    Accuracy,
    RankedRun,
    ScoredRow,
    build_scored_row,
    build_setup_key,
    build_strategy_key,
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
from crosszone.calibrate.first_contact import (
    NOMINAL_PCT,
    RANGE_PCT,
    SAMPLE_STEP,
    AccuracyReading,
    AccuracySummary,
    ErrorGroup,
    ReadingKind,
    build_reading,
    predict_sample,
    write_summary,
)
from crosszone.calibrate.fit import CrossValidation, read_doubtful_reasons, read_priors, select_usable_runs
from crosszone.calibrate.fits import predict_memories, read_configurations, score_fits
from crosszone.calibrate.predicted import predict_runs, predict_runs_s
from crosszone.calibrate.runs import MeasuredRun, read_runs
from crosszone.calibrate.stability import read_stability_table
from crosszone.calibrate.testbed import build_transfer_report
from crosszone.cost.coefficients import COMMON, read_pair_spread
from crosszone.cost.memory import read_memory_profiles
from crosszone.cost.operator_profile import list_sampled_gpus, load_operator_profile
from crosszone.cost.own_profiles import load_cluster_profile
from crosszone.cost.profile import Profiles
from crosszone.predict.fits import Verdict
from crosszone.predict.prediction import Memory
from left_out import KINDS, NEW, USER, LeftOut, MeasuredFiles, fit_left_out, read_left_out
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
CONTACT = {
    "rows": "rows",
    "mean %": "mean_pct",
    "median %": "median_pct",
    "within 10 %": "within_10_pct",
    "bias %": "bias_pct",
    "in band %": "inside_pct",
    "width %": "width_pct",
}
READINGS: dict[ReadingKind, str] = {
    "first_contact": "first contact",
    "first_contact_left_out": "first contact, source left out of the fit",
    "new_sources": "new sources, software stated, all left out of the fit",
    "left_out": "software stated, source left out of the fit",
    "fitted": "software stated, rows of the fit",
}
KNOWLEDGE = {
    "dense": "dense models",
    "moe": "mixtures of experts",
    "software_stated": "software stated",
    "software_assumed": "software not stated",
    "complete": "everything stated",
    "incomplete": "something assumed",
}
SWEEP_FILE, SWEEP_GPUS = "ultrascale_sweep.csv", 256  # larger groups ran ten times slow on that cluster
AT_BOUND = 0.01  # Distance of a logarithm from its bound below which a value counts as at the bound

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
    names = ("measured_runs_2.csv", "measured_runs_vtrain_single.csv", "measured_runs_h200.csv")
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


def build_readings(files: MeasuredFiles, left_out: LeftOut, profiles: Profiles) -> list[AccuracyReading]:
    """The same rows predicted in every manner, the one that counts most first."""
    rows: dict[ReadingKind, tuple[Sequence[ScoredRow], Sequence[MeasuredRun]]] = {
        "first_contact": (score_usable_runs(files.by_user, profiles), files.by_user)
    }
    keys: dict[ReadingKind, tuple[str, str]] = {
        "first_contact_left_out": ("source", USER),
        "new_sources": (NEW, "stated"),
        "left_out": ("source", "stated"),
    }
    for kind, key in keys.items():
        if key in left_out.validations:
            validation = left_out.validations[key]
            rows[kind] = validation.rows, validation.runs
    rows["fitted"] = score_usable_runs(files.stated, profiles), files.stated
    return [build_reading(kind, *of_kind, profiles) for kind, of_kind in rows.items()]


def score_usable_runs(runs: Sequence[MeasuredRun], profiles: Profiles) -> list[ScoredRow]:
    """Runs with their predictions and ranges, as `crosszone accuracy` scores them."""
    p = predict_runs(runs, profiles)
    ranges = zip(runs, p.step_s, p.low_s, p.high_s, strict=True)
    return [build_scored_row(run, float(step_s), float(low_s), float(high_s)) for run, step_s, low_s, high_s in ranges]


def format_readings(readings: Sequence[AccuracyReading]) -> list[str]:
    """Errors of every manner side by side, and how reliable the range is in each."""
    lines: list[tuple[str, Mapping[str, Any]]] = []
    for reading in readings:
        lines.append((f"**{READINGS[reading.kind]}**", reading.total.model_dump()))
        if reading.kind != "new_sources":
            lines += [
                (f"{READINGS[reading.kind]}: {KNOWLEDGE[group.name]}", group.model_dump())
                for group in reading.by_knowledge
                if group.name in ("dense", "moe")
            ]
    text = format_table("how runs are entered", CONTACT, lines)
    columns = {f"{nominal:.0f} % range holds %": str(nominal) for nominal in NOMINAL_PCT}
    coverage = (
        (READINGS[reading.kind], {str(part.nominal_pct): part.inside_pct for part in reading.coverage})
        for reading in readings
    )
    return text + format_table("range, scaled from 80 %", columns, coverage)


def format_reading(reading: AccuracyReading) -> list[str]:
    """Errors of one manner: by what was known, by GPU, by source."""
    text = _format_groups("known", reading.by_knowledge, reading.total)
    text += _format_groups("GPU family", reading.by_gpu)
    return text + _format_groups("source", reading.by_source)


def _format_groups(heading: str, groups: Sequence[ErrorGroup], total: ErrorGroup | None = None) -> list[str]:
    lines = [("**all**", total.model_dump())] if total else []
    lines += [(KNOWLEDGE.get(group.name, group.name), group.model_dump()) for group in groups]
    return format_table(heading, CONTACT, lines)


def build_summary(readings: Sequence[AccuracyReading], files: MeasuredFiles, profiles: Profiles) -> AccuracySummary:
    """What the page and the API show of them."""
    return AccuracySummary(
        release=crosszone.__version__,
        range_pct=RANGE_PCT,
        readings=tuple(readings),
        sample=predict_sample(files.by_user[::SAMPLE_STEP], profiles),
    )


def score_first_contact(files: MeasuredFiles, left_out: LeftOut, profiles: Profiles) -> None:
    """Write the sections on first contact, and the figures that the page shows."""
    readings = build_readings(files, left_out, profiles)
    write_summary(build_summary(readings, files, profiles))
    by_kind = {reading.kind: reading for reading in readings}
    command = "`python benchmarks/accuracy.py`"
    head = [
        f"{command}: runs of measured_runs.csv and measured_runs_2.csv entered as a user would: model, job, cluster "
        "and degrees, nothing of the source. Doubtful rows, duplicates and mixed GPU kinds are left out. `in band`: "
        "share of runs inside the range that is to hold 80 %; `width`: median of (high - low) / predicted.",
        "",
    ]
    text = [*head, *format_readings(readings), *format_reading(by_kind["first_contact"])]
    write_section("First contact", "\n".join(text))
    titles: dict[ReadingKind, str] = {
        "first_contact_left_out": "First contact, source left out",
        "new_sources": "New sources left out",
    }
    for kind, title in titles.items():
        if kind in by_kind:
            write_section(title, "\n".join([f"{command}: {READINGS[kind]}.", "", *format_reading(by_kind[kind])]))


def score_sweep(data: Path, profiles: Profiles) -> list[str]:
    """One stack over many strategies: with the shipped coefficients, and fitted on half of the groups."""
    runs = [
        run for run in select_usable_runs(read_runs(data / SWEEP_FILE)[0], {}) if run.case.cluster.gpus <= SWEEP_GPUS
    ]
    group_of = [(run.case.model.name, run.case.cluster.gpus) for run in runs]
    # by name: neighbouring groups (one model on 8 and on 16 GPUs) fall into different halves
    groups = {group: number % 2 for number, group in enumerate(sorted(set(group_of)))}
    half = np.array([groups[group] for group in group_of])
    predicted_s = {"shipped coefficients": predict_runs_s(runs, profiles)}
    across = np.empty(len(runs))
    for side in (0, 1):
        fitted_to = [runs[i] for i in np.flatnonzero(half == side)]
        scored = [runs[i] for i in np.flatnonzero(half != side)]
        stacks = {run.stack for run in runs if run.stack}
        across[half != side] = predict_runs_s(
            scored, profiles.with_values(fit_stacks(fitted_to, profiles, stacks).values)
        )
    predicted_s["stack fitted on the other half of the groups"] = across
    lines = []
    for name, seconds in predicted_s.items():
        error = 100.0 * (seconds / np.array([run.step_time_s for run in runs]) - 1.0)
        ranking = score_ranking(
            RankedRun(build_setup_key(run), build_strategy_key(run), float(run.step_time_s or 0.0), float(seconds[i]))
            for i, run in enumerate(runs)
        )
        scores = {
            "rows": len(runs),
            "groups": ranking.groups,
            "mean": float(np.abs(error).mean()),
            "median": float(np.median(np.abs(error))),
            "bias": float(error.mean()),
            "regret": _format_three_digits(ranking.mean_regret),
            "right": ranking.pairs_right_pct,
        }
        lines.append((name, scores))
    columns = {
        "rows": "rows",
        "groups": "groups",
        "mean %": "mean",
        "median %": "median",
        "bias %": "bias",
        "mean regret": "regret",
        "pairs in order %": "right",
    }
    head = [
        f"`python benchmarks/accuracy.py`: {SWEEP_FILE} up to {SWEEP_GPUS} GPUs without doubtful rows. A group: equal "
        "model and GPUs.",
        "",
    ]
    return [*head, *format_table("sweep", columns, lines)]


def format_coefficients(profiles: Profiles) -> list[str]:
    """How many coefficients there are, by home, and each with its prior."""
    priors = read_priors()
    counts: dict[str, Counter[str]] = {}
    lines = []
    for at, (home, field) in enumerate(profiles.names):
        kind = "common" if home == COMMON else home.split()[0]
        count = counts.setdefault(kind, Counter())
        fitted = not profiles.fixed[at]
        prior = priors.get(field)
        value = float(profiles.values[at])
        bounds = (prior.lower, prior.upper) if prior else ()
        is_at_bound = fitted and any(abs(np.log(max(value, 1e-12) / bound)) < AT_BOUND for bound in bounds)
        count.update(all=1, fitted=int(fitted), at_bound=int(is_at_bound))
        if fitted:
            cells = {
                "home": home,
                "value": f"{value:.4g}",
                "error": f"{100.0 * float(profiles.errors[at]):.0f}",
                "prior": f"{prior.value:.4g}" if prior else "-",
                "bounds": f"{prior.lower:g} - {prior.upper:g}" if prior else "-",
                "at_bound": "yes" if is_at_bound else "",
            }
            lines.append((field, cells))
    homes = Counter("common" if home == COMMON else home.split()[0] for home in {home for home, _ in profiles.names})
    columns = {"homes": "homes", "values": "all", "fitted": "fitted", "at a bound": "at_bound"}
    text = ["`python benchmarks/accuracy.py`: " + count_coefficients(profiles), ""]
    text += format_table("home", columns, ((kind, {**c, "homes": homes[kind]}) for kind, c in counts.items()))
    columns = {"home": "home", "prior": "prior", "value": "value", "error %": "error", "bounds": "bounds"}
    return text + format_table("coefficient", {**columns, "at a bound": "at_bound"}, lines)


def format_validations(validations: Sequence[CrossValidation]) -> list[str]:
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
    return [*text, "Every fit starts from the priors (`python benchmarks/left_out.py`)."]


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
    parser.add_argument("--quick", action="store_true", help="fit nothing: take the predictions in left_out.csv")
    parser.add_argument("--fits", action="store_true", help="only the verdicts on memory")
    parser.add_argument("--contact", action="store_true", help="only first contact and accuracy_summary.json")
    arguments = parser.parse_args()
    profiles = Profiles.load_shipped()
    files = MeasuredFiles(arguments.data)
    if not (arguments.quick or arguments.fits or arguments.contact):
        fit_left_out(KINDS, files, profiles)
    if not arguments.fits:
        left_out = read_left_out(files)
        score_first_contact(files, left_out, profiles)
    if arguments.contact:
        return
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
    heading = ["`python benchmarks/accuracy.py`", ""]
    write_section("Accuracy on runs left out of the fit", "\n".join([*heading, *format_validations(left_out.stated)]))
    write_section(
        "Chance that the faster plan is faster", "\n".join([*heading, *score_stated_chances(left_out.stated)])
    )
    write_section("Accuracy on a sweep", "\n".join(score_sweep(arguments.data, profiles)))
    write_section("Coefficients", "\n".join(format_coefficients(profiles)))


if __name__ == "__main__":
    main()
