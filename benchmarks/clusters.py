"""Profiles of clusters that others measured: `python benchmarks/clusters.py` fits them and scores their jobs.

Kernels, collectives and jobs of Perlmutter and Vista (measured/gpumodeling25) become profiles of the same kind that
`crosszone calibrate fit|links|jobs --save NAME --add` makes; `cost/profiles/clusters` holds them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crosszone import measured
from crosszone.calibrate.collective_apply import build_collective_profile, measure_collectives
from crosszone.calibrate.collective_fit import read_collectives
from crosszone.calibrate.components import score_components
from crosszone.calibrate.components_fit import fit_cluster, select_fastest
from crosszone.calibrate.components_read import ComponentRun, read_components
from crosszone.calibrate.operator_fit import read_samples
from crosszone.calibrate.operator_profiles import NEOX_STACKS, find_coefficients
from crosszone.cost import own_profiles
from crosszone.cost.own_profiles import OwnProfile, join_profiles
from crosszone.cost.profile import Profiles
from crosszone.inputs.catalogue import catalogue
from results import write_section

SHIPPED = Path(own_profiles.__file__).parent / "profiles" / "clusters"
CREATED = "2026-11-18"
SOURCE = "GPUModeling25 (arXiv 2509.22832, Littlesnakess/GPUModeling25 at 990e847)"
CLUSTERS = {
    "perlmutter": ("a100-80gb-sxm", "operators_A100.csv"),
    "vista": ("gh200-96gb", "operators_GH200.csv"),
}
HEAD = (
    "# What was measured of the cluster {name}: kernels, collectives (quiet timings), what its jobs show of GPT-NeoX.\n"
    "# Made by `python benchmarks/clusters.py` from measured/gpumodeling25; the same kind of file as an own profile.\n"
)


def fit_kernels_and_links(name: str, folder: Path) -> OwnProfile:
    """What was timed alone on a cluster: kernels and collectives."""
    gpu, table = CLUSTERS[name]
    kernels = find_coefficients(read_samples([folder / table]), catalogue().gpu(gpu)).values
    kernels.pop("optimizer_traffic", None)  # of the software: the jobs tell it
    of_kernels = OwnProfile(
        name=name,
        source=f"{SOURCE}: operators, collectives, jobs",
        created=CREATED,
        gpus={gpu: kernels},
        for_stacks=NEOX_STACKS,
    )
    rows = read_collectives(folder / "collectives.csv", cluster=name).rows
    timed = build_collective_profile(name, measure_collectives(rows, gpu=gpu).collectives, of_kernels.source)
    return join_profiles(of_kernels, timed)


def select_jobs(runs: list[ComponentRun], cluster: str) -> list[ComponentRun]:
    """The jobs of one cluster."""
    return [run for run in runs if run.cluster == cluster]


def main() -> None:
    """Fit both, write them where asked, and put the table of their jobs into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the shipped profiles anew")
    arguments = parser.parse_args()
    folder = measured.FOLDER / "gpumodeling25"
    runs, _ = read_components(folder / "runs.csv")
    without: dict[str, float] = {}
    for name in CLUSTERS:
        alone = fit_kernels_and_links(name, folder)
        profiles = Profiles.load_shipped().with_own(alone)
        software = fit_cluster(select_jobs(runs, name), profiles, name=name, source=alone.source)
        without |= {left_out.run.id: left_out.error_pct for left_out in software.left_out}
        if arguments.write:
            profile = join_profiles(alone, software.profile).model_copy(update={"created": CREATED})
            (SHIPPED / f"{name}.yaml").write_text(HEAD.format(name=name) + own_profiles.format_text(profile), "utf-8")
    scored = {scored_job.run.id: scored_job for scored_job in score_components(runs, Profiles.load_shipped()).runs}
    lines = [
        "`python benchmarks/clusters.py`: jobs of GPUModeling25 by `predict` with the profile of their cluster, against"
        " their fastest iteration; *left out*: what the software adds was fitted without that set-up.",
        "",
        "| cluster | job | measured s | predicted s | error % | left out % |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        scored_job, s = scored[run.id], run.case.strategy
        name = f"{run.case.model.name} {s.pp}-{s.tp}-{run.case.dp}" + ("" if scored_job.fastest else " (slower job)")
        apart = f"{without[run.id]:+.1f}" if run.id in without else "-"
        seconds = f"{run.step_s:.2f} | {scored_job.step.predicted_s:.2f}"
        lines.append(f"| {run.cluster} | {name} | {seconds} | {scored_job.step.error_pct:+.1f} | {apart} |")
    for cluster in CLUSTERS:
        jobs = [run for run in select_fastest(runs) if run.cluster == cluster]
        fitted_pct = sum(abs(scored[run.id].step.error_pct) for run in jobs) / len(jobs)
        left_out_pct = sum(abs(without[run.id]) for run in jobs) / len(jobs)
        means = f"{fitted_pct:.1f} | {left_out_pct:.1f}"
        lines.append(f"| **{cluster}** | mean of the fastest job of {len(jobs)} set-ups | | | {means} |")
    write_section("Clusters measured by others", "\n".join(lines))


if __name__ == "__main__":
    main()
