"""`crosszone calibrate jobs`: learn what a cluster's software adds from jobs that were timed part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crosszone.cli.output import amount, console, print_json, said, table


def jobs(
    file: Annotated[Path, typer.Argument(metavar="RUNS", help="Jobs timed part by part (CSV).")],
    cluster: Annotated[str | None, typer.Option(help="Only jobs of this cluster, where a file has several.")] = None,
    save: Annotated[str | None, typer.Option(metavar="NAME", help="Keep what was learned as an own profile.")] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add it to the own profile of that name, and fit beside it.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a profile of that name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Fit launches, unfused kernels, optimizer and stragglers of the software to jobs timed part by part.

    Kernels and links are not touched: `calibrate fit` and `calibrate links` tell them. Each set-up is also predicted by
    a fit that has not seen it.

    Example: crosszone calibrate jobs runs.csv --cluster perlmutter --save perlmutter --add
    """
    from crosszone.calibrate.components import predict_components
    from crosszone.calibrate.components_fit import fit_cluster, select_fastest
    from crosszone.calibrate.components_read import read_components
    from crosszone.calibrate.user_files import build_choice_error
    from crosszone.cost import own_profiles
    from crosszone.cost.profile import Profiles
    from crosszone.errors import InvalidError, Notice

    if add and save is None:
        raise InvalidError(Notice(code="own_profile_add_unsaved", field="--add"))
    if save is not None:
        own_profiles.check_free(save, replace=force or add)
    runs, skipped = read_components(file)
    names = list(dict.fromkeys(run.cluster for run in runs))
    if cluster is not None and cluster not in names:
        raise build_choice_error("--cluster", cluster, names)
    if cluster is None and len(names) > 1:
        raise InvalidError(Notice(code="links_several_clusters", field="--cluster", params={"names": names}))
    runs = [run for run in runs if cluster in (None, run.cluster)]
    if not runs:
        raise InvalidError(Notice(code="jobs_none", value=str(file), params={"skipped": len(skipped)}))
    name = save or own_profiles.UNNAMED
    # what the profile says of kernels and links already is what the software's share is fitted beside
    known = own_profiles.named(name) if add and own_profiles.is_kept(name) else None
    profiles = Profiles.load() if known is None else Profiles.shipped().with_own(known)
    found = fit_cluster(runs, profiles, name=name, source=f"jobs: {file.name}")
    made = found.profile
    after = profiles.with_own(made)
    left = {one.run.id: one.error_pct for one in found.left_out}
    rows: list[dict[str, Any]] = [
        {
            "id": run.id,
            "measured_s": run.step_s,
            "before_s": predict_components(run, profiles).step,
            "after_s": predict_components(run, after).step,
            "left_out_error_pct": left.get(run.id),
        }
        for run in select_fastest(runs)
    ]
    if save is not None:
        own_profiles.save(made, replace=force, add=add)
    if as_json:
        values = {key: one.to_plain() for key, one in next(iter(made.stacks.values())).items()}
        print_json(
            {"coefficients": values, "rows": rows, "skipped": len(skipped), "scores": made.scores, "saved": save}
        )
        return
    seconds = (("log_measured_s", "right"), ("log_before_s", "right"), ("log_after_s", "right"))
    shown = table(said("jobs_title"), (("jobs_job", "left"), *seconds, ("jobs_left_out", "right")))
    for row in rows:
        error = left.get(row["id"])
        times = (amount(row[key], 4) for key in ("measured_s", "before_s", "after_s"))
        shown.add_row(row["id"], *times, "-" if error is None else f"{error:+.1f} %")
    console().print(shown)
    shown = table(said("jobs_coefficients"), (("coefficient", "left"), ("value", "right"), ("error_pct", "right")))
    for key, one in next(iter(made.stacks.values())).items():
        shown.add_row(key, amount(one.value, 4), amount(100 * one.error, 2))
    console().print(shown)
    if save is not None:
        console().print(said("log_saved", name=save), soft_wrap=True)
