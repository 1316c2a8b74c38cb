"""`crosszone calibrate log`: learn from the log of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.output import amount, console, language, print_json, print_notices, said, table
from crosszone.cli.progress import progress_bar

if TYPE_CHECKING:
    from crosszone.calibrate.single_run import SingleRunCalibration

IN_TABLES = ("log_moved", "log_next_run")  # What the tables say already
Columns = Sequence[tuple[str, str]]
MOST_RUNS = 5  # Next runs shown in the terminal; --json has all


def log(
    file: Annotated[
        Path, typer.Argument(metavar="LOG", help="Log or profiler trace of a run, or a folder of our metrics.")
    ],
    scenario: Annotated[str, typer.Option(help="Scenario of that run, with its strategy.")],
    form: Annotated[
        str,
        typer.Option("--format", help="auto, megatron, deepspeed, torchtitan, hf-trainer, crosszone or kineto."),
    ] = "auto",
    save: Annotated[str | None, typer.Option(metavar="NAME", help="Keep what was learned as an own profile.")] = None,
    use: Annotated[bool, typer.Option("--use", help="Predict with it from now on.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a profile of that name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Fit the few coefficients that explain one run; say what stays unknown and which short run to do next.

    Example: crosszone calibrate log train.log --scenario run.yaml --save my-cluster --use
    """
    from crosszone.calibrate.single_run import calibrate_single_run
    from crosszone.cost import own_profiles
    from crosszone.errors import InvalidError, Notice
    from crosszone.inputs.scenario import load_scenario

    if use and save is None:
        raise InvalidError(Notice(code="log_use_unsaved", field="--use"))
    if save is not None:
        own_profiles.check_free(save, replace=force)
    given = load_scenario(scenario)
    with progress_bar() as advance:
        found = calibrate_single_run(file, given, form=form, name=save, progress=advance)
    if save is not None:
        own_profiles.save(found.profile, replace=force)
        if use:
            own_profiles.use(save)
    if as_json:
        print_json({**found.as_dict(language()), "saved": save, "used": use})
        return
    _print(found)
    if save is not None:
        console().print(said("log_saved", name=save), soft_wrap=True)


def _print(found: SingleRunCalibration) -> None:
    columns: Columns = (
        ("part", "left"),
        ("log_before_s", "right"),
        ("log_measured_s", "right"),
        ("log_after_s", "right"),
    )
    made = table(said("log_title", format=found.format), columns)
    for part, measured in found.measured_s.items():
        cells = (found.before_s[part], measured, found.after_s[part])
        made.add_row(said(f"log_part_{part}"), *(amount(one, 4) for one in cells))
    console().print(made)
    if found.moved:
        columns = (
            ("log_coefficient", "left"),
            ("log_kept_with", "left"),
            ("log_from", "right"),
            ("log_to", "right"),
            ("log_error_before_pct", "right"),
            ("log_error_after_pct", "right"),
        )
        made = table(said("log_moved_title"), columns)
        for one in found.moved:
            numbers = (one.before, one.after, one.error_before_pct, one.error_after_pct)
            name = one.field + (said("log_limit_mark") if one.at_limit else "")
            made.add_row(name, one.kept_with, *(amount(n, 3) for n in numbers))
        console().print(made)
    if found.next_runs:
        columns = (
            ("log_run", "left"),
            ("log_step_s", "right"),
            ("log_pair_before_pct", "right"),
            ("log_pair_after_pct", "right"),
        )
        made = table(said("log_next_title"), columns)
        for run in found.next_runs[:MOST_RUNS]:
            made.add_row(run.name, *(amount(n, 3) for n in (run.step_s, run.sd_before_pct, run.sd_after_pct)))
        console().print(made)
    print_notices([notice.as_dict(language()) for notice in found.notices if notice.code not in IN_TABLES])
