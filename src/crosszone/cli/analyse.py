"""`crosszone analyse`: where the bytes of a step go, what would help, what it costs, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import (
    get_language,
    label,
    open_console,
    open_progress_bar,
    print_json,
    print_lines,
    print_notices,
)
from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.analyse.answer import Analysis, Part
    from crosszone.predict.answer import PredictionAnswer

PARTS_HELP = "traffic, suggestions, bill, rating, front, drill, marginal"


def analyse(
    file: Annotated[str, typer.Argument(help="Scenario file; without a strategy its best plan. - for standard input.")],
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help=f"Only this: {PARTS_HELP}; may be given several times."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every part, also those that plan anew (seconds).")] = False,
    formulas: Annotated[
        bool, typer.Option("--formulas", help="Also the formula of each row with its numbers.")
    ] = False,
    plans: Annotated[bool, typer.Option("--plans", help="Also suggest other plans (a second).")] = False,
    zone_failures: Annotated[
        float, typer.Option("--zone-failures-per-year", metavar="N", help="How often a zone is lost, for the drill.")
    ] = 0.0,
    checkpoint_zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="The only zone that keeps checkpoints, for the drill.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say where communication goes by kind and link, what would hide it, the bill, and the slow runs of twenty.

    Example: crosszone analyse examples/three-cities.yaml --plans
    """
    parts = _choose_parts(part, everything)

    from crosszone.analyse.answer import answer
    from crosszone.inputs.scenario import read_scenario

    with open_progress_bar() as progress:
        prediction_answer, analysis = answer(
            read_scenario(file),
            get_language(),
            parts=parts,
            plans=plans or everything,
            zone_failures_per_year=zone_failures,
            checkpoint_zone=checkpoint_zone,
            progress=progress,
        )
    if as_json:
        print_json(analysis.to_asked())
        return
    _print(prediction_answer, analysis, formulas)


def _choose_parts(part: list[str] | None, everything: bool) -> tuple[Part, ...]:
    from crosszone.analyse.answer import PARTS, QUICK

    for name in part or []:
        if name not in PARTS:
            from crosszone.inputs.value import nearest

            params = {"allowed": list(PARTS), "nearest": nearest(name, PARTS)}
            raise InvalidError(Notice(code="not_one_of", field="--part", value=name, params=params))
    return PARTS if everything else tuple(name for name in PARTS if name in part) if part else QUICK


def _print(prediction_answer: PredictionAnswer, analysis: Analysis, formulas: bool) -> None:
    from crosszone.cli import economy, traffic
    from crosszone.cli.prediction import format_split, list_answer_lines

    terminal = open_console()
    terminal.print(prediction_answer.prediction.name, style="bold")
    terminal.print(format_split(prediction_answer.prediction), style="dim")
    print_lines(*list_answer_lines(prediction_answer.prediction)[:3])
    if analysis.traffic is not None:
        traffic.print_report(analysis.traffic, formulas=formulas)
    if analysis.suggestions is not None:
        traffic.print_suggestions(analysis.suggestions)
    for name in ("bill", "rating", "front", "drill", "marginal"):
        part = getattr(analysis, name)
        if part is not None:
            terminal.print(label(f"{name}_title"), style="bold")
            getattr(economy, f"print_{name}")(part)
    bill_messages = {notice["message"] for notice in analysis.bill.warnings} if analysis.bill is not None else set()
    warnings = [notice for notice in prediction_answer.prediction.warnings if notice["level"] != "note"]
    print_notices(notice for notice in warnings if notice["message"] not in bill_messages)
