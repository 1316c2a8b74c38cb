"""`crosszone calibrate trace` and `log`: a measured run from its files, and what the log of one run teaches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import JsonOption, StoreOption, open_database
from crosszone.cli.output import (
    build_table,
    check_not_existing,
    get_language,
    label,
    open_console,
    open_progress_bar,
    print_json,
    print_notices,
    write_file,
)
from crosszone.errors import InvalidError, Notice, build_choice_error
from crosszone.text.figures import format_amount

if TYPE_CHECKING:
    from crosszone.calibrate.imported import ImportedRun
    from crosszone.calibrate.single_run import SingleRunCalibration
    from crosszone.predict.predictor import Predictor


PIPELINE_PHASES = ("warm_up", "steady", "cool_down", "tail")
MOST_ITERATIONS = 20  # Iterations shown in the terminal; --json has all


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

    if form not in (AUTO, *FORMATS):
        raise build_choice_error("--format", form, (AUTO, *FORMATS))
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
        print_json(_build_trace_answer(run, iteration, difference, saved))
        return
    _print_run(run, iteration, difference)
    if saved is not None:
        open_console().print(label("trace_saved", name=save, id=saved), soft_wrap=True)
    if output is not None:
        open_console().print(label("written", output=output), soft_wrap=True)


def _build_predictor(scenario: str) -> Predictor:
    from crosszone.inputs.scenario import read_scenario
    from crosszone.predict.answer import build_predictor_from

    return build_predictor_from(read_scenario(scenario))


def _compare_with_prediction(
    predictor: Predictor, run: ImportedRun, iteration: str
) -> tuple[dict[str, Any], list[Notice]]:
    """The predicted step beside the measured one, phase by phase and kind by kind [S15], and where the runs differ."""
    from crosszone.calibrate.imported import check_same_run, compare_with_prediction

    measured, _ = run.read_timelines().timeline(run.get_step(iteration).step)
    predicted = predictor.timeline(get_language())
    compared = compare_with_prediction(predicted, measured, pipeline=predictor.strategy.pp > 1 and _has_pipeline(run))
    return compared, check_same_run(run, predictor, measured, predicted)


def _has_pipeline(run: ImportedRun) -> bool:
    """The run has a pipeline: it says so, its phases are of one, or it has several stages."""
    stages = run.meta.get("pp") or run.meta.get("pipeline_group")
    if isinstance(stages, int):
        return stages > 1
    if not set(run.steps[0].phases_s) <= set(PIPELINE_PHASES):
        return bool({"warm_up", "pipeline"} & set(run.steps[0].phases_s))
    lanes = (run.timeline or {}).get("lanes", ())
    return len([lane for lane in lanes if lane.get("group") == "stages"]) > 1


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


def _build_trace_answer(
    run: ImportedRun, iteration: str, difference: dict[str, Any] | None, saved: str | None
) -> dict[str, Any]:
    plain = run.model_dump(mode="json", exclude={"timeline", "notices"})
    notices = [notice.as_dict(get_language()) for notice in run.notices]
    chosen = {"iteration": run.get_step(iteration).model_dump(mode="json"), "difference": difference, "saved": saved}
    return {**plain, **chosen, "notices": notices}


def _print_run(run: ImportedRun, iteration: str, difference: dict[str, Any] | None) -> None:
    terminal = open_console()
    terminal.print(label("trace_title", name=run.name, count=run.statistics.count), soft_wrap=True)
    device = run.meta.get("device")
    if device:
        terminal.print(label("trace_device", device=device), soft_wrap=True)
    rows = build_table(label("trace_iterations"), [("trace_iteration", "right"), ("trace_seconds", "right")])
    for step in run.steps[:MOST_ITERATIONS]:
        rows.add_row(str(step.step), _format_seconds(step.seconds))
    terminal.print(rows)
    if len(run.steps) > MOST_ITERATIONS:
        terminal.print(label("trace_more", count=len(run.steps) - MOST_ITERATIONS), soft_wrap=True)
    statistics = run.statistics
    steady = build_table(
        label("trace_steady"), [(f"trace_{key}", "right") for key in ("min", "max", "mean", "std", "to_min")]
    )
    steady.add_row(
        _format_seconds(statistics.min_s),
        _format_seconds(statistics.max_s),
        _format_seconds(statistics.mean_s),
        _format_seconds(statistics.std_s),
        f"{statistics.mean_to_min_pct:.2f} %",
    )
    terminal.print(steady)
    terminal.print(label("trace_best", step=statistics.best_step), soft_wrap=True)
    if _has_pipeline(run) or not set(run.get_step(iteration).phases_s) <= set(PIPELINE_PHASES):
        _print_phases(run, iteration)
    if run.timeline is not None and set(run.get_step(iteration).phases_s) <= set(PIPELINE_PHASES):
        _print_kinds(run, iteration)
    if difference is not None:
        _print_difference(difference)
    print_notices((notice.as_dict(get_language()) for notice in run.notices), stderr=True)


def _print_phases(run: ImportedRun, iteration: str) -> None:
    step = run.get_step(iteration)
    messages = run.meta.get("messages_s") or {}
    columns = [("trace_phase", "left"), ("trace_seconds", "right"), ("share", "right")]
    if messages:
        columns.append(("trace_with_overlap", "right"))
    rows = build_table(label("trace_phases", step=step.step), columns)
    for phase, seconds in step.phases_s.items():
        cells = [label(f"trace_phase_{phase}"), _format_seconds(seconds), f"{100 * seconds / step.seconds:.1f} %"]
        if messages:
            cells.append(_format_seconds(messages[phase]) if phase in messages else "")
        rows.add_row(*cells)
    for phase, seconds in messages.items():
        if phase not in step.phases_s and seconds:
            rows.add_row(label(f"trace_phase_{phase}"), _format_seconds(0.0), "0.0 %", _format_seconds(seconds))
    open_console().print(rows)


def _print_kinds(run: ImportedRun, iteration: str) -> None:
    """What the average stage does, by kind, for formats whose phases are those of a pipeline."""
    from crosszone.schedule.timeline import list_lane_totals

    timeline, _ = run.read_timelines().timeline(run.get_step(iteration).step)
    rows = build_table(label("trace_kinds"), [("trace_part", "left"), ("trace_seconds", "right"), ("share", "right")])
    for row in list_lane_totals(timeline):
        rows.add_row(label(f"trace_kind_{row['kind']}"), _format_seconds(row["seconds"]), f"{100 * row['share']:.1f} %")
    open_console().print(rows)


def _print_difference(difference: dict[str, Any]) -> None:
    columns = [("trace_part", "left"), ("kind_predicted", "right"), ("kind_measured", "right"), ("trace_off", "right")]
    rows = build_table(label("trace_beside"), columns)
    parts = [("trace_part_step", difference["step"])]
    parts += [(f"trace_phase_{row['part']}", row) for row in difference["phases"]]
    parts += [(f"trace_kind_{row['part']}", row) for row in difference["kinds"]]
    for key, row in parts:
        off = row["difference_pct"]
        cells = (
            _format_seconds(row["predicted_s"]),
            _format_seconds(row["measured_s"]),
            "-" if off is None else f"{off:+.1f} %",
        )
        rows.add_row(label(key), *cells)
    open_console().print(rows)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds >= 10 else f"{seconds * 1e3:,.3f} ms"


# --- log

IN_TABLES = ("log_moved", "log_next_run")  # What the tables say already
Columns = Sequence[tuple[str, str]]
MOST_NEXT_RUNS = 5  # Next runs shown in the terminal; --json has all


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
    as_json: JsonOption = False,
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
    _print_single_run(calibration)
    if save is not None:
        open_console().print(label("log_saved", name=save), soft_wrap=True)


def _print_single_run(calibration: SingleRunCalibration) -> None:
    columns: Columns = (
        ("part", "left"),
        ("log_before_s", "right"),
        ("log_measured_s", "right"),
        ("log_after_s", "right"),
    )
    rows = build_table(label("log_title", format=calibration.format), columns)
    for part, measured in calibration.measured_s.items():
        cells = (calibration.before_s[part], measured, calibration.after_s[part])
        rows.add_row(label(f"log_part_{part}"), *(format_amount(item, 4) for item in cells))
    open_console().print(rows)
    if calibration.moved:
        columns = (
            ("log_coefficient", "left"),
            ("log_kept_with", "left"),
            ("log_from", "right"),
            ("log_to", "right"),
            ("log_error_before_pct", "right"),
            ("log_error_after_pct", "right"),
        )
        rows = build_table(label("log_moved_title"), columns)
        for item in calibration.moved:
            numbers = (item.before, item.after, item.error_before_pct, item.error_after_pct)
            name = item.field + (label("log_limit_mark") if item.at_limit else "")
            rows.add_row(name, item.kept_with, *(format_amount(n, 3) for n in numbers))
        open_console().print(rows)
    if calibration.next_runs:
        columns = (
            ("log_run", "left"),
            ("log_step_s", "right"),
            ("log_pair_before_pct", "right"),
            ("log_pair_after_pct", "right"),
        )
        rows = build_table(label("log_next_title"), columns)
        for run in calibration.next_runs[:MOST_NEXT_RUNS]:
            rows.add_row(run.name, *(format_amount(n, 3) for n in (run.step_s, run.sd_before_pct, run.sd_after_pct)))
        open_console().print(rows)
    print_notices([notice.as_dict(get_language()) for notice in calibration.notices if notice.code not in IN_TABLES])
