"""`crosszone analyse`: where the bytes of a step go, what would help, what it costs, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.output import console, language, print_json, print_notices, said
from crosszone.cli.progress import progress_bar
from crosszone.errors import InputError, InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.inputs.scenario import Loaded
    from crosszone.predict.answer import Answer

PARTS = ("traffic", "suggestions", "bill", "rating", "front", "drill", "marginal")
QUICK = PARTS[:4]
"""Parts that need no planning."""


def analyse(
    file: Annotated[str, typer.Argument(help="Scenario file; without a strategy its best plan. - for standard input.")],
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help=f"Only this: {', '.join(PARTS)}; may be given several times."),
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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Say where communication goes by kind and link, what would hide it, the bill, and the slow runs of twenty.

    Example: crosszone analyse examples/three-cities.yaml --plans
    """
    asked = _parts(part, everything)
    read, planned, found = _answer(file)
    scenario, predictor = planned.scenario, found.predictor
    results: dict[str, Any] = {}
    with progress_bar() as progress:
        if "traffic" in asked:
            from crosszone.analyse.report import communication_report

            results["traffic"] = communication_report(predictor, found.prediction)
        if "suggestions" in asked:
            from crosszone.analyse.suggest import suggestions

            results["suggestions"] = suggestions(
                scenario, base=predictor, plans=plans or everything, language=language()
            )
        if "bill" in asked:
            from crosszone.analyse.bill import bill

            results["bill"] = bill(predictor, language=language())
        if "rating" in asked:
            from crosszone.analyse.rating import rating

            results["rating"] = rating(predictor, language=language())
        if "front" in asked:
            from crosszone.analyse.bill import trades
            from crosszone.plan.planner import plan

            priced = plan(read.scenario, top=1, front=True, local_updates=False, progress=progress)
            results["front"] = trades(read.scenario, priced.front, language=language())
        if "drill" in asked:
            from crosszone.analyse.drill import drill

            results["drill"] = drill(
                read.scenario,
                zone_failures_per_year=zone_failures,
                checkpoint_zone=checkpoint_zone,
                progress=progress,
                language=language(),
            )
        if "marginal" in asked:
            from crosszone.analyse.marginal import marginal

            results["marginal"] = marginal(read.scenario, progress=progress, language=language())
    if as_json:
        whole = {"prediction": found.prediction, **results}
        print_json({name: _plain(value) for name, value in whole.items()})
        return
    _print(found, results, formulas)


def _plain(value: Any) -> Any:
    """A value, or several, as JSON has it."""
    return [_plain(one) for one in value] if isinstance(value, tuple) else value.model_dump(mode="json")


def _parts(part: list[str] | None, everything: bool) -> tuple[str, ...]:
    for one in part or []:
        if one not in PARTS:
            from crosszone.inputs.value import nearest

            params = {"allowed": list(PARTS), "nearest": nearest(one, PARTS)}
            raise InvalidError(Notice(code="not_one_of", field="--part", value=one, params=params))
    return PARTS if everything else tuple(one for one in PARTS if one in part) if part else QUICK


def _answer(file: str) -> tuple[Loaded, Loaded, Answer]:
    """The file as it is, with its best plan filled in where it has no strategy, and the prediction of that."""
    from crosszone.inputs.scenario import read_scenario
    from crosszone.predict.answer import answer

    loaded = read_scenario(file)
    if loaded.scenario.strategy is not None:
        return loaded, loaded, answer(loaded, language())
    from crosszone.cli.plan import best_of
    from crosszone.plan.plan import filled
    from crosszone.plan.planner import plan

    try:
        with progress_bar() as progress:
            best = best_of(plan(loaded.scenario, top=1, progress=progress, language=language()))
    except InputError as error:
        raise type(error)(*map(loaded.document.placed, error.notices)) from None
    planned = loaded._replace(scenario=filled(loaded.scenario, best))
    return loaded, planned, answer(planned, language())


def _print(found: Answer, results: dict[str, Any], formulas: bool) -> None:
    from crosszone.cli import economy, traffic
    from crosszone.cli.figures import print_lines
    from crosszone.cli.prediction import answer_lines, split

    terminal = console()
    terminal.print(found.prediction.name, style="bold")
    terminal.print(split(found.prediction), style="dim")
    print_lines(*answer_lines(found.prediction)[:3])
    if "traffic" in results:
        traffic.print_report(results["traffic"], formulas=formulas)
    if "suggestions" in results:
        traffic.print_suggestions(results["suggestions"])
    for name in PARTS[2:]:
        if name in results:
            terminal.print(said(f"{name}_title"), style="bold")
            getattr(economy, f"print_{name}")(results[name])
    told = {notice["message"] for notice in results["bill"].warnings} if "bill" in results else set()
    warnings = [notice for notice in found.prediction.warnings if notice["level"] != "note"]
    print_notices(notice for notice in warnings if notice["message"] not in told)
