"""`crosszone analyse`: where the bytes of a step go, what would help, what it costs, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import (
    get_language,
    get_text,
    open_console,
    open_progress_bar,
    print_json,
    print_sections,
)
from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.analyse.answer import Analysis, Part
    from crosszone.predict.prediction import Prediction
    from crosszone.views.document import Section

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
    print_sections(_list_sections(prediction_answer.prediction, analysis, formulas))


def _choose_parts(part: list[str] | None, everything: bool) -> tuple[Part, ...]:
    from crosszone.analyse.answer import PARTS, QUICK

    for name in part or []:
        if name not in PARTS:
            from crosszone.inputs.value import nearest

            params = {"allowed": list(PARTS), "nearest": nearest(name, PARTS)}
            raise InvalidError(Notice(code="not_one_of", field="--part", value=name, params=params))
    return PARTS if everything else tuple(name for name in PARTS if name in part) if part else QUICK


def _list_sections(prediction: Prediction, analysis: Analysis, formulas: bool) -> list[Section]:
    from crosszone.views import economy
    from crosszone.views.communication import build_suggestion_sections, list_communication_blocks
    from crosszone.views.document import Section
    from crosszone.views.prediction import build_head_section, list_answer_facts

    text = get_text()
    sections = [build_head_section(prediction, text, list_answer_facts(prediction, text)[:3])]
    if analysis.traffic is not None:
        blocks = list_communication_blocks(analysis.traffic, text, formulas=formulas)
        sections.append(Section(title="", blocks=blocks))
    if analysis.suggestions is not None:
        sections += build_suggestion_sections(analysis.suggestions, text, open_console().width)
    sections += [economy.build_bill_section(analysis.bill, text)] if analysis.bill is not None else []
    sections += [economy.build_rating_section(analysis.rating, text)] if analysis.rating is not None else []
    sections += [economy.build_front_section(analysis.front, text)] if analysis.front is not None else []
    sections += [economy.build_drill_section(analysis.drill, text)] if analysis.drill is not None else []
    sections += [economy.build_marginal_section(analysis.marginal, text)] if analysis.marginal is not None else []
    # the bill repeats what the prediction warns of; a sentence is shown once
    shown_messages = {notice["message"] for notice in analysis.bill.warnings} if analysis.bill is not None else set()
    warnings = [
        notice
        for notice in prediction.warnings
        if notice["level"] != "note" and notice["message"] not in shown_messages
    ]
    return [*sections, Section(title="", blocks=(text.list_remarks(warnings),))]
