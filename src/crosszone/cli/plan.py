"""`crosszone plan`: the best ways to train a scenario on its cluster, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import ForceFileOption, JsonOption, PinnedArgument, require_choice
from crosszone.cli.output import (
    check_not_existing,
    get_language,
    get_text,
    open_console,
    open_progress_bar,
    print_json,
    print_line,
    print_sections,
    write_file,
)
from crosszone.errors import InputError, InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.inputs.scenario import Loaded
    from crosszone.plan.plan import Plan, Plans

OPTIONS = ("objective", "top")  # What the search may refuse that is not in the file
LOCAL = "L"  # Stands before the rank of a plan with local updates


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Which plan the user asks about: a place among the synchronous plans or among those with local updates."""

    number: int
    local: bool

    @classmethod
    def read(cls, text: str) -> Rank:
        """`3`, or `L1` for the first plan with local updates; the best plan itself is no answer."""
        local = text[:1].upper() == LOCAL
        digits = text[1:] if local else text
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
        if number < (1 if local else 2):
            raise InvalidError(Notice(code="rank_malformed", field="--why", value=text))
        return cls(number=number, local=local)

    def select(self, plans: Plans) -> Plan:
        """That plan of the answer."""
        ranked = plans.local_updates if self.local else plans.plans
        if self.number > len(ranked):
            value = f"{LOCAL if self.local else ''}{self.number}"
            params = {"plans": len(plans.plans), "local": len(plans.local_updates)}
            raise InvalidError(Notice(code="rank_unknown", field="--why", value=value, params=params))
        return ranked[self.number - 1]


def plan(
    file: PinnedArgument,
    objective: Annotated[str, typer.Option(help="What to rank by: time, cost, memory or energy.")] = "time",
    top: Annotated[int, typer.Option(metavar="N", help="Plans to show.")] = 5,
    pin: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Keep part of the strategy, e.g. tp=8; may be given several times."),
    ] = None,
    front: Annotated[bool, typer.Option("--front", help="Also show what fewer GPUs cost: time against $.")] = False,
    why: Annotated[
        str | None, typer.Option(metavar="RANK", help="Say what makes that plan differ from the best: 2, 3, ... or L1.")
    ] = None,
    crossover: Annotated[
        bool, typer.Option("--crossover", help="Also find the rate between zones at which local updates win or lose.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End the search after that; the answer then says so.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the scenario with the best plan there.")
    ] = None,
    force: ForceFileOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest, cheapest, leanest or thriftiest way to train: strategy, placement, numbers and reasons.

    Example: crosszone plan examples/three-cities.yaml --pin tp=8 -o best.yaml
    """
    _check(objective, top, budget)
    rank = None if why is None else Rank.read(why)
    if output is not None:
        check_not_existing(Path(output), force)
    pins = pin or []
    loaded = _read(file, pins)
    scenario = loaded.scenario
    # the plan that is asked about must be among those that the search keeps
    count = top if rank is None else max(top, rank.number)
    options = {"objective": objective, "top": count, "front": front, "budget_s": budget, "crossover": crossover}
    plans = _search(loaded, pins, why=None if rank is None else rank.select, **options)
    from crosszone.plan.planner import select_best

    if output is not None:
        from crosszone.plan.plan import apply_plan

        write_file(Path(output), apply_plan(scenario, select_best(plans)).to_yaml(), force)
    if as_json:
        print_json(plans.model_dump(mode="json"))
        return

    from crosszone.views.plan import build_comparison_section, build_crossover_section, build_plan_sections

    text = get_text()
    sections = build_plan_sections(plans, text, open_console().width, front=front)
    if rank is not None and plans.why is not None:
        sections.append(build_comparison_section(plans.why, select_best(plans), rank.select(plans), text))
    if crossover:
        sections.append(build_crossover_section(plans.crossover, text))
    print_sections(sections)
    if output is not None:
        print_line("written", output=output)


def _check(objective: str, top: int, budget: float | None) -> None:
    from crosszone.plan.plan import OBJECTIVES

    require_choice("--objective", objective, OBJECTIVES)
    if top < 1:
        raise InvalidError(Notice(code="must_be_at_least", field="--top", value=top, params={"limit": 1}))
    if budget is not None and not budget > 0:
        raise InvalidError(Notice(code="must_be_more_than", field="--budget", value=budget, params={"limit": 0}))


def _read(file: str, pins: Sequence[str]) -> Loaded:
    """The scenario with the pins in its strategy; an error in a pin names that pin."""
    from crosszone.inputs.document import read_document
    from crosszone.inputs.scenario import read_scenario, upgrade_fields
    from crosszone.plan.planner import merge_pins

    document = read_document(file)
    if not pins or not isinstance(document.value, Mapping):
        return read_scenario(document)
    fields, notices = upgrade_fields(document)  # an older file has its degrees elsewhere
    # pins go in before the file is checked: they may complete a strategy that is not legal alone
    merged = replace(document, value=merge_pins(fields, pins))
    try:
        loaded = read_scenario(merged)
    except InputError as error:
        raise type(error)(*(_place_at_pin(notice, pins) for notice in error.notices)) from None
    return loaded._replace(notices=[*map(document.place_notice, notices), *loaded.notices])


def _place_at_pin(notice: Notice, pins: Sequence[str]) -> Notice:
    """The notice at the pin it is about, if it is about one: the line of the file would mislead."""
    for pin in pins:
        field = f"strategy.{pin.partition('=')[0].strip()}"
        if notice.field == field or notice.field.startswith((f"{field}.", f"{field}[")):
            return notice.with_place(f"--pin {pin}", None)
    return notice


def _place_at_option(notice: Notice) -> Notice:
    """The notice at the option of this command that it is about, if it is about one: no line of the file has it."""
    return notice.with_place(f"--{notice.field}", None) if notice.field in OPTIONS else notice


def _search(loaded: Loaded, pins: Sequence[str], **options: Any) -> Plans:
    from crosszone.plan.planner import plan_loaded

    try:
        with open_progress_bar() as progress:
            return plan_loaded(loaded, get_language(), progress=progress, **options)
    except InputError as error:
        raise type(error)(
            *(loaded.document.place_notice(_place_at_pin(_place_at_option(notice), pins)) for notice in error.notices)
        ) from None
