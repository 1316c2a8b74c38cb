"""`crosszone calibrate trace` and `log`: a measured run from its files, and what the log of one run teaches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import ForceProfileOption, JsonOption, SaveOption, StoreOption, open_database, require_choice
from crosszone.cli.output import (
    check_not_existing,
    get_language,
    get_text,
    localize,
    open_progress_bar,
    print_json,
    print_line,
    print_notices,
    print_sections,
    write_file,
)
from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.calibrate.imported import ImportedRun
    from crosszone.predict.predictor import Predictor


def trace(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="The trace; several: one for each stage (metrics) or rank (kineto); or the folder of one run.",
        ),
    ],
    form: Annotated[
        str, typer.Option("--format", help="auto, benchmark, trace, metrics or kineto (PyTorch profiler).")
    ] = "auto",
    iteration: Annotated[str, typer.Option(metavar="WHICH", help="first, last, best or a number.")] = "best",
    skip: Annotated[int, typer.Option(metavar="N", help="Leave out the first N: a run needs to warm up.")] = 0,
    scenario: Annotated[
        str | None, typer.Option(metavar="FILE", help="Scenario with a strategy: its predicted step beside it.")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=WAY", help="Process group of a profiler trace: tp, pp, dp, cp, ep; repeatable."),
    ] = None,
    save: Annotated[str | None, typer.Option(metavar="NAME", help="Keep it as a measured result.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Save although rows were left out.")] = False,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT.json", help="Write it as our own trace there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT.json.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a measured run: its iterations, how steady they are, and the phases of one of them.

    Example: crosszone calibrate trace rank0.pt.trace.json.gz --iteration best --scenario examples/three-cities.yaml
    """
    from crosszone.calibrate.kineto_events import parse_group_assignments
    from crosszone.calibrate.trace_files import AUTO, FORMATS, collect_degrees, read_run

    require_choice("--format", form, (AUTO, *FORMATS))
    if output is not None:
        check_not_existing(Path(output), force)

    group_kinds = parse_group_assignments(group)
    predictor = None if scenario is None else _build_predictor(scenario)
    with open_progress_bar() as progress:
        run = read_run(
            files,
            form,
            iteration=iteration,
            skip=skip,
            groups=group_kinds,
            degrees=None if predictor is None else collect_degrees(predictor.strategy),
            progress=progress,
        )
    difference = None
    if predictor is not None:
        difference, differs = _compare_with_prediction(predictor, run, iteration)
        run = run.model_copy(update={"notices": (*differs, *run.notices)})
    if output is not None and run.timeline is not None:
        import json

        write_file(Path(output), json.dumps(run.timeline), force)
    saved = None
    if save is not None:
        run, saved = _save_run(run, iteration, save, scenario, store, skip_bad)
    if as_json:
        plain = run.model_dump(mode="json", exclude={"timeline", "notices"})
        step = run.get_step(iteration).model_dump(mode="json")
        results = {"iteration": step, "difference": difference, "saved": saved, "notices": localize(run.notices)}
        print_json({**plain, **results})
        return

    from crosszone.views.calibration import build_run_section

    print_sections([build_run_section(run, iteration, difference, get_text())])
    print_notices(localize(run.notices), stderr=True)
    if saved is not None:
        print_line("trace_saved", name=save, id=saved)
    if output is not None:
        print_line("written", output=output)


def _build_predictor(scenario: str) -> Predictor:
    from crosszone.inputs.scenario import read_scenario
    from crosszone.predict.answer import build_predictor_from

    return build_predictor_from(read_scenario(scenario))


def _compare_with_prediction(
    predictor: Predictor, run: ImportedRun, iteration: str
) -> tuple[dict[str, Any], list[Notice]]:
    """The predicted step beside the measured one, phase by phase and kind by kind [S15], and where the runs differ."""
    from crosszone.calibrate.imported import check_same_run, compare_with_prediction
    from crosszone.views.calibration import has_pipeline

    measured, _ = run.read_timelines().timeline(run.get_step(iteration).step)
    predicted = predictor.timeline(get_language())
    compared = compare_with_prediction(predicted, measured, pipeline=predictor.strategy.pp > 1 and has_pipeline(run))
    return compared, check_same_run(run, predictor, measured, predicted)


def _save_run(
    run: ImportedRun, iteration: str, name: str, scenario: str | None, store: str | None, skip_bad: bool
) -> tuple[ImportedRun, str]:
    """Keep it among the saved results; what of it is told, and its id."""
    from crosszone.store.table import MAX_DOCUMENT

    # a saved result is compared with others later, when nobody remembers which rows it lacks
    if run.bad_rows and not skip_bad:
        warnings = [notice for notice in run.notices if notice.level == "warning"]
        raise InvalidError(Notice(code="trace_not_saved", value=name, params={"count": run.bad_rows}), *warnings)
    text = None if scenario is None or scenario == "-" else Path(scenario).read_text("utf-8")
    # a profiler's timeline of a whole run may be larger than a document of the store
    shortened = run.trim_timeline(run.get_step(iteration).step, MAX_DOCUMENT)
    with open_database(store) as database:
        added = database.results.add(**shortened.to_result(name=name, scenario=text)).id
    return run.model_copy(update={"notices": shortened.notices}), added


# --- log

IN_TABLES = ("log_moved", "log_next_run")  # What the tables say already


def log(
    file: Annotated[
        Path, typer.Argument(metavar="LOG", help="Log or profiler trace of a run, or a folder of our metrics.")
    ],
    scenario: Annotated[str, typer.Option(help="Scenario of that run, with its strategy.")],
    form: Annotated[
        str, typer.Option("--format", help="auto, megatron, deepspeed, torchtitan, hf-trainer, crosszone or kineto.")
    ] = "auto",
    save: SaveOption = None,
    use: Annotated[bool, typer.Option("--use", help="Predict with it from now on.")] = False,
    force: ForceProfileOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit the few coefficients that explain one run; say what stays unknown and which short run to do next.

    Example: crosszone calibrate log train.log --scenario run.yaml --save my-cluster --use
    """
    from crosszone.calibrate.single_run import calibrate_single_run
    from crosszone.cost import own_profiles
    from crosszone.inputs.scenario import load_scenario

    if use and save is None:
        raise InvalidError(Notice(code="log_use_unsaved", field="--use"))
    if save is not None:
        own_profiles.check_free(save, replace=force)
    loaded = load_scenario(scenario)
    with open_progress_bar() as advance:
        calibration = calibrate_single_run(file, loaded, form=form, name=save, progress=advance)
    if save is not None:
        own_profiles.save(calibration.profile, replace=force)
        if use:
            own_profiles.use(save)
    if as_json:
        print_json({**calibration.as_dict(get_language()), "saved": save, "used": use})
        return

    from crosszone.views.calibration import build_single_run_section

    print_sections([build_single_run_section(calibration, get_text())])
    print_notices(localize(notice for notice in calibration.notices if notice.code not in IN_TABLES))
    if save is not None:
        print_line("log_saved", name=save)
