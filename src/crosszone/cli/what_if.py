"""`crosszone what-if`: fields changed or switches turned, and what becomes of the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption, ScenarioArgument
from crosszone.cli.output import get_language, get_text, print_json, print_sections
from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor


def show_what_if(
    file: ScenarioArgument,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field, e.g. job.global_batch=2048; repeatable."),
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option(
            "--switch", metavar="NAME=VALUE", help="Turn a switch, e.g. compression=bf16 or bucket=best; repeatable."
        ),
    ] = None,
    switches: Annotated[bool, typer.Option("--switches", help="List the switches, and how they stand.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict the scenario with some fields changed, beside the prediction without: the difference by part.

    Example: crosszone what-if examples/two-zones-7b.yaml --set "cluster.links[0].gbps=40" --switch local_steps=100
    """
    from crosszone.analyse.fields import read_changes
    from crosszone.analyse.switches import read_switch
    from crosszone.analyse.what_if import what_if as compare
    from crosszone.inputs.scenario import read_scenario
    from crosszone.predict.answer import answer

    loaded = read_scenario(file)
    if switches:
        _print_switches(answer(loaded, get_language()).predictor, as_json)
        return
    if not changes and not switch:
        raise InvalidError(Notice(code="nothing_changed", field="--set"))
    fields = read_changes(changes or [])
    switched = [read_switch(text) for text in switch or []]
    before = answer(loaded, get_language())
    comparison = compare(
        loaded.scenario, fields, switched, base=before.predictor, before=before.prediction, language=get_language()
    )
    if as_json:
        print_json(comparison.model_dump(mode="json"))
        return

    from crosszone.views.what_if import build_what_if_sections

    print_sections(build_what_if_sections(comparison, get_text()))


def _print_switches(predictor: Predictor, as_json: bool) -> None:
    from crosszone.analyse.switches import list_switches
    from crosszone.views.what_if import build_switches_section

    switches = [switch.model_dump(mode="json") for switch in list_switches(predictor, get_language())]
    if as_json:
        print_json(switches)
    else:
        print_sections([build_switches_section(switches, get_text())])
