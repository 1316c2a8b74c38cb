"""`crosszone analyse`: where the bytes of a step go, what would help, what it costs, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption, PlannedArgument, require_choice
from crosszone.cli.output import get_language, get_text, open_console, open_progress_bar, print_json, print_sections

if TYPE_CHECKING:
    from crosszone.analyse.answer import Part

PARTS_HELP = "traffic, suggestions, bill, rating, front, drill, marginal"


def analyse(
    file: PlannedArgument,
    part: Annotated[
        list[str] | None, typer.Option(metavar="PART", help=f"Only this: {PARTS_HELP}; may be given several times.")
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

    from crosszone.views.analysis import build_analysis_sections

    width = open_console().width
    print_sections(
        build_analysis_sections(prediction_answer.prediction, analysis, get_text(), width, formulas=formulas)
    )


def _choose_parts(part: list[str] | None, everything: bool) -> tuple[Part, ...]:
    from crosszone.analyse.answer import PARTS, QUICK

    for name in part or []:
        require_choice("--part", name, PARTS)
    return PARTS if everything else tuple(name for name in PARTS if name in part) if part else QUICK
