"""`crosszone calibrate trace`: a measured run from its files: iterations, how steady they are, and their phases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.files import refuse_to_overwrite, write_file
from crosszone.cli.kept import StoreOption, opened
from crosszone.cli.output import console, language, print_json, print_notices, said, table
from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.calibrate.imported import ImportedRun
    from crosszone.predict.predictor import Predictor

PIPELINE = ("warm_up", "steady", "cool_down", "tail")
MOST_ROWS = 20  # Iterations shown in the terminal; --json has all


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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Read a measured run: its iterations, how steady they are, and the phases of one of them.

    Example: crosszone calibrate trace rank0.pt.trace.json.gz --iteration best --scenario examples/three-cities.yaml
    """
    from crosszone.calibrate.kineto_events import parse_group_assignments
    from crosszone.calibrate.trace_files import AUTO, FORMATS, collect_degrees, read_run
    from crosszone.calibrate.user_files import build_choice_error
    from crosszone.cli.progress import progress_bar

    if form not in (AUTO, *FORMATS):
        raise build_choice_error("--format", form, (AUTO, *FORMATS))
    if output is not None:
        refuse_to_overwrite(Path(output), force)

    ways = parse_group_assignments(group)
    predictor = None if scenario is None else _predictor(scenario)
    with progress_bar() as progress:
        found = read_run(
            files,
            form,
            iteration=iteration,
            skip=skip,
            groups=ways,
            degrees=None if predictor is None else collect_degrees(predictor.strategy),
            progress=progress,
        )
    beside = None
    if predictor is not None:
        beside, differs = _difference(predictor, found, iteration)
        found = found.model_copy(update={"notices": (*differs, *found.notices)})
    if output is not None and found.timeline is not None:
        import json

        write_file(Path(output), json.dumps(found.timeline), force)
    saved = None
    if save is not None:
        found, saved = _saved(found, iteration, save, scenario, store, skip_bad)
    if as_json:
        print_json(_document(found, iteration, beside, saved))
        return
    _print(found, iteration, beside)
    if saved is not None:
        console().print(said("trace_saved", name=save, id=saved), soft_wrap=True)
    if output is not None:
        console().print(said("written", output=output), soft_wrap=True)


def _predictor(scenario: str) -> Predictor:
    from crosszone.inputs.scenario import read_scenario
    from crosszone.predict.answer import predictor_of

    return predictor_of(read_scenario(scenario))


def _difference(predictor: Predictor, found: ImportedRun, iteration: str) -> tuple[dict[str, Any], list[Notice]]:
    """The predicted step beside the measured one, phase by phase and kind by kind [S15], and where the runs differ."""
    from crosszone.calibrate.imported import check_same_run, compare_with_prediction

    measured, _ = found.read_timelines().timeline(found.get_step(iteration).step)
    predicted = predictor.timeline(language())
    compared = compare_with_prediction(predicted, measured, pipeline=predictor.strategy.pp > 1 and _pipelined(found))
    return compared, check_same_run(found, predictor, measured, predicted)


def _pipelined(found: ImportedRun) -> bool:
    """The run has a pipeline: it says so, its phases are of one, or it has several stages."""
    stages = found.meta.get("pp") or found.meta.get("pipeline_group")
    if isinstance(stages, int):
        return stages > 1
    if not set(found.steps[0].phases_s) <= set(PIPELINE):
        return bool({"warm_up", "pipeline"} & set(found.steps[0].phases_s))
    lanes = (found.timeline or {}).get("lanes", ())
    return len([lane for lane in lanes if lane.get("group") == "stages"]) > 1


def _saved(
    found: ImportedRun, iteration: str, name: str, scenario: str | None, store: str | None, skip_bad: bool
) -> tuple[ImportedRun, str]:
    """Keep it among the saved results; what of it is told, and its id."""
    from crosszone.store.table import MAX_DOCUMENT

    if found.bad_rows and not skip_bad:
        told = [notice for notice in found.notices if notice.level == "warning"]
        raise InvalidError(Notice(code="trace_not_saved", value=name, params={"count": found.bad_rows}), *told)
    text = None if scenario is None or scenario == "-" else Path(scenario).read_text("utf-8")
    short = found.trim_timeline(found.get_step(iteration).step, MAX_DOCUMENT)
    with opened(store) as kept:
        added = kept.results.add(**short.to_result(name=name, scenario=text)).id
    return found.model_copy(update={"notices": short.notices}), added


def _document(found: ImportedRun, iteration: str, beside: dict[str, Any] | None, saved: str | None) -> dict[str, Any]:
    plain = found.model_dump(mode="json", exclude={"timeline", "notices"})
    told = [notice.as_dict(language()) for notice in found.notices]
    own = {"iteration": found.get_step(iteration).model_dump(mode="json"), "difference": beside, "saved": saved}
    return {**plain, **own, "notices": told}


def _print(found: ImportedRun, iteration: str, beside: dict[str, Any] | None) -> None:
    terminal = console()
    terminal.print(said("trace_title", name=found.name, count=found.statistics.count), soft_wrap=True)
    device = found.meta.get("device")
    if device:
        terminal.print(said("trace_device", device=device), soft_wrap=True)
    rows = table(said("trace_iterations"), [("trace_iteration", "right"), ("trace_seconds", "right")])
    for one in found.steps[:MOST_ROWS]:
        rows.add_row(str(one.step), _ms(one.seconds))
    terminal.print(rows)
    if len(found.steps) > MOST_ROWS:
        terminal.print(said("trace_more", count=len(found.steps) - MOST_ROWS), soft_wrap=True)
    s = found.statistics
    steady = table(said("trace_steady"), [(f"trace_{key}", "right") for key in ("min", "max", "mean", "std", "to_min")])
    steady.add_row(_ms(s.min_s), _ms(s.max_s), _ms(s.mean_s), _ms(s.std_s), f"{s.mean_to_min_pct:.2f} %")
    terminal.print(steady)
    terminal.print(said("trace_best", step=s.best_step), soft_wrap=True)
    if _pipelined(found) or not set(found.get_step(iteration).phases_s) <= set(PIPELINE):
        _print_phases(found, iteration)
    if found.timeline is not None and set(found.get_step(iteration).phases_s) <= set(PIPELINE):
        _print_kinds(found, iteration)
    if beside is not None:
        _print_beside(beside)
    print_notices((notice.as_dict(language()) for notice in found.notices), stderr=True)


def _print_phases(found: ImportedRun, iteration: str) -> None:
    one = found.get_step(iteration)
    messages = found.meta.get("messages_s") or {}
    columns = [("trace_phase", "left"), ("trace_seconds", "right"), ("share", "right")]
    if messages:
        columns.append(("trace_with_overlap", "right"))
    shown = table(said("trace_phases", step=one.step), columns)
    for phase, seconds in one.phases_s.items():
        cells = [said(f"trace_phase_{phase}"), _ms(seconds), f"{100 * seconds / one.seconds:.1f} %"]
        if messages:
            cells.append(_ms(messages[phase]) if phase in messages else "")
        shown.add_row(*cells)
    for phase, seconds in messages.items():
        if phase not in one.phases_s and seconds:
            shown.add_row(said(f"trace_phase_{phase}"), _ms(0.0), "0.0 %", _ms(seconds))
    console().print(shown)


def _print_kinds(found: ImportedRun, iteration: str) -> None:
    """What the average stage does, by kind, for formats whose phases are those of a pipeline."""
    from crosszone.schedule.timeline import list_lane_totals

    timeline, _ = found.read_timelines().timeline(found.get_step(iteration).step)
    shown = table(said("trace_kinds"), [("trace_part", "left"), ("trace_seconds", "right"), ("share", "right")])
    for row in list_lane_totals(timeline):
        shown.add_row(said(f"trace_kind_{row['kind']}"), _ms(row["seconds"]), f"{100 * row['share']:.1f} %")
    console().print(shown)


def _print_beside(beside: dict[str, Any]) -> None:
    columns = [("trace_part", "left"), ("kind_predicted", "right"), ("kind_measured", "right"), ("trace_off", "right")]
    shown = table(said("trace_beside"), columns)
    parts = [("trace_part_step", beside["step"])]
    parts += [(f"trace_phase_{row['part']}", row) for row in beside["phases"]]
    parts += [(f"trace_kind_{row['part']}", row) for row in beside["kinds"]]
    for key, row in parts:
        off = row["difference_pct"]
        cells = (_ms(row["predicted_s"]), _ms(row["measured_s"]), "-" if off is None else f"{off:+.1f} %")
        shown.add_row(said(key), *cells)
    console().print(shown)


def _ms(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds >= 10 else f"{seconds * 1e3:,.3f} ms"
