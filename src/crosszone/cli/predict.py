"""`crosszone predict`: step time, speed, memory, cost and where the time goes, for a scenario with a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption, ScenarioArgument, require_choice
from crosszone.cli.output import (
    check_not_existing,
    get_language,
    get_text,
    open_console,
    print_json,
    print_line,
    print_sections,
    write_file,
)

if TYPE_CHECKING:
    from crosszone.predict.answer import PredictionAnswer

FORMATS = ("perfetto", "crosszone")


def predict(
    file: ScenarioArgument,
    as_json: JsonOption = False,
    trace: Annotated[str | None, typer.Option(metavar="OUT.json", help="Write the timeline of a step there.")] = None,
    trace_format: Annotated[
        str, typer.Option(help="perfetto (for ui.perfetto.dev) or crosszone (as measured traces are kept).")
    ] = FORMATS[0],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the trace.")] = False,
) -> None:
    """Predict a step: its time with a range, speed, memory by stage, communication by link, days, $ and kWh.

    Example: crosszone predict examples/three-cities.yaml --trace step.json
    """
    require_choice("--trace-format", trace_format, FORMATS)
    if trace is not None:
        check_not_existing(Path(trace), force)

    # imported here: numpy and pydantic take longer than a refusal of an option
    from crosszone.inputs.scenario import read_scenario
    from crosszone.predict.answer import answer

    prediction_answer = answer(read_scenario(file), get_language())
    if trace is not None:
        write_file(Path(trace), _render_trace(prediction_answer, trace_format), force)
    if as_json:
        print_json(prediction_answer.prediction.model_dump(mode="json"))
        return

    from crosszone.views.prediction import build_prediction_sections

    print_sections(build_prediction_sections(prediction_answer, get_text(), open_console().width))
    if trace is not None:
        print_line("written", output=trace)


def _render_trace(prediction_answer: PredictionAnswer, form: str) -> str:
    """The timeline of the step as the text of a file."""
    from crosszone.schedule.trace import format_perfetto_json

    timeline = prediction_answer.predictor.timeline().to_trace(
        prediction_answer.prediction.name, framework=prediction_answer.prediction.framework
    )
    return format_perfetto_json(timeline) if form == "perfetto" else timeline.to_json()
