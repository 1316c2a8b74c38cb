"""`crosszone analyse`: where the bytes of a step go, what would help, what it costs, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import get_language, label, open_console, print_json, print_lines, print_notices, progress_bar
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
    asked = _parts(part, everything)

    from crosszone.analyse.answer import answer
    from crosszone.inputs.scenario import read_scenario

    with progress_bar() as progress:
        found, analysis = answer(
            read_scenario(file),
            get_language(),
            parts=asked,
            plans=plans or everything,
            zone_failures_per_year=zone_failures,
            checkpoint_zone=checkpoint_zone,
            progress=progress,
        )
    if as_json:
        print_json(analysis.to_asked())
        return
    _print(found, analysis, formulas)


def _parts(part: list[str] | None, everything: bool) -> tuple[Part, ...]:
    from crosszone.analyse.answer import PARTS, QUICK

    for one in part or []:
        if one not in PARTS:
            from crosszone.inputs.value import nearest

            params = {"allowed": list(PARTS), "nearest": nearest(one, PARTS)}
            raise InvalidError(Notice(code="not_one_of", field="--part", value=one, params=params))
    return PARTS if everything else tuple(one for one in PARTS if one in part) if part else QUICK


def _print(found: PredictionAnswer, analysis: Analysis, formulas: bool) -> None:
    from crosszone.cli import economy, traffic
    from crosszone.cli.prediction import answer_lines, split

    terminal = open_console()
    terminal.print(found.prediction.name, style="bold")
    terminal.print(split(found.prediction), style="dim")
    print_lines(*answer_lines(found.prediction)[:3])
    if analysis.traffic is not None:
        traffic.print_report(analysis.traffic, formulas=formulas)
    if analysis.suggestions is not None:
        traffic.print_suggestions(analysis.suggestions)
    for name in ("bill", "rating", "front", "drill", "marginal"):
        part = getattr(analysis, name)
        if part is not None:
            terminal.print(label(f"{name}_title"), style="bold")
            getattr(economy, f"print_{name}")(part)
    told = {notice["message"] for notice in analysis.bill.warnings} if analysis.bill is not None else set()
    warnings = [notice for notice in found.prediction.warnings if notice["level"] != "note"]
    print_notices(notice for notice in warnings if notice["message"] not in told)
