"""`crosszone what-if`: fields changed or switches turned, and what becomes of the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import build_table, get_language, label, open_console, print_json, print_notices
from crosszone.errors import InvalidError, Notice
from crosszone.text.figures import format_digits, format_percent, format_signed

if TYPE_CHECKING:
    from crosszone.analyse.what_if import WhatIf
    from crosszone.predict.prediction import Prediction

SMALL = 1e-4  # Share of the step below which the change of a part is not shown


def show_what_if(
    file: Annotated[str, typer.Argument(help="Scenario file with a strategy; - for standard input.")],
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
    else:
        _print(comparison)


def _print(comparison: WhatIf) -> None:
    terminal = open_console()
    terminal.print(comparison.before.name, style="bold")
    for path, value in comparison.changes.items():
        terminal.print(f"  {path} = {format_scalar(value)}", style="dim", soft_wrap=True)
    terminal.print(_build_figures_table(comparison))
    terminal.print(_build_parts_table(comparison))
    for switch in comparison.switches:
        option = switch.option or label("suggest_no_option")
        terminal.print(
            f"{switch.name}: {format_setting(switch.before)} -> {format_setting(switch.after)}   {option}",
            soft_wrap=True,
        )
        terminal.print(f"    {switch.convergence}", style="dim", soft_wrap=True)
        if switch.source:
            terminal.print(f"    {label('what_if_source', source=switch.source)}", style="dim", soft_wrap=True)
    print_notices(comparison.notices)
    print_notices(notice for notice in comparison.after.warnings if notice["level"] == "warning")


def format_setting(value: Any) -> str:
    """How a switch stands, as one would type it."""
    words = {True: "on", False: "off", None: "-"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def format_scalar(value: Any) -> str:
    """A value as it stands in a file."""
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _build_figures_table(comparison: WhatIf) -> Any:
    """What matters most, before and after."""
    from crosszone.analyse.what_if import between_zones, exposed_s

    columns = [("figure", "left"), ("what_if_before", "right"), ("what_if_after", "right"), ("what_if_change", "right")]
    rows = build_table(label("what_if_title"), columns)

    def add_row(key: str, value: Any, factor: float = 1.0) -> None:
        first, second = value(comparison.before), value(comparison.after)
        if first is None or second is None:
            return
        change = f"{format_signed(100 * (second / first - 1), 3)} %" if first else format_signed(factor * second)
        rows.add_row(label(key), format_digits(factor * first), format_digits(factor * second), change)

    def get_days(p: Prediction) -> float | None:
        return None if p.run.days is None else p.run.days.expected

    def get_usd(p: Prediction) -> float | None:
        return None if p.run.usd is None else p.run.usd.expected

    add_row("what_if_step", lambda p: p.step_time_s.expected)
    add_row("what_if_speed", lambda p: p.tokens_per_s.expected)
    add_row("what_if_mfu", lambda p: p.mfu.expected, 100)
    add_row("what_if_memory", lambda p: p.memory_gib.peak.expected)
    fits = [
        label("yes") if prediction.memory_gib.fits else label("no")
        for prediction in (comparison.before, comparison.after)
    ]
    rows.add_row(label("what_if_fits"), *fits, "", style="" if comparison.after.memory_gib.fits else "red")
    add_row("what_if_exposed", exposed_s)
    add_row("what_if_zones", between_zones, 1e-9)
    add_row("what_if_days", get_days)
    add_row("what_if_usd", get_usd)
    return rows


def _build_parts_table(comparison: WhatIf) -> Any:
    """The waterfall: every part of the step that differs, the largest first."""
    rows = build_table(label("what_if_parts"), [("step_part", "left"), ("time_s", "right"), ("share_pct", "right")])
    step = comparison.before.step_time_s.expected
    for part in comparison.difference.parts:
        if abs(part.seconds) >= SMALL * step:
            rows.add_row(label(f"step_{part.name}"), format_signed(part.seconds), format_percent(part.seconds / step))
    rows.add_section()
    rows.add_row(
        label("total"), format_signed(comparison.difference.step_s), format_percent(comparison.difference.step_s / step)
    )
    return rows


def _print_switches(predictor: Any, as_json: bool) -> None:
    """Every switch: what it takes, how it stands, and what that is in the framework's words."""
    from crosszone.analyse.switches import listed as list_switches

    listed = [switch.model_dump(mode="json") for switch in list_switches(predictor, get_language())]
    if as_json:
        print_json(listed)
        return
    columns = [("suggest_switch", "left"), ("switch_takes", "left"), ("switch_now", "left"), ("suggest_option", "left")]
    rows = build_table(label("switches_title"), columns)
    for row in listed:
        takes = " | ".join(row["takes"]) if isinstance(row["takes"], list) else label(f"takes_{row['takes']}")
        setting = format_setting(row["now"])
        rows.add_row(f"{row['name']}\n{row['title']}", takes, setting, row["option"] or label("suggest_no_option"))
    open_console().print(rows)
