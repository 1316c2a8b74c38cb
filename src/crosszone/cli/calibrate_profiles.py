"""`crosszone calibrate profiles | use | forget`: own profiles, and the one that predictions use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.output import amount, console, print_json, said, table

if TYPE_CHECKING:
    from crosszone.cost.own_profiles import OwnProfile

Name = Annotated[str, typer.Argument(help="Name of an own profile.")]


def lay(name: str) -> None:
    """Predict with an own profile in this process."""
    from crosszone.cost.own_profiles import NONE, give, load, use_shipped

    if name == NONE:
        use_shipped()
    else:
        give(load(name))


def profiles(
    name: Annotated[str | None, typer.Argument(help="Show one with all its values.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """List own profiles, or show one.

    Example: crosszone calibrate profiles
    """
    from crosszone.cost.own_profiles import default, load, saved

    found = saved() if name is None else [load(name)]
    used = default()
    if as_json:
        print_json({"default": used, "profiles": [one.model_dump(mode="json") for one in found]})
        return
    if not found:
        console().print(said("own_profiles_none"))
        return
    if name is None:
        columns = (("own_profile", "left"), ("own_profile_used", "left"), ("coefficients", "right"), ("source", "left"))
        made = table(said("own_profiles_title"), columns)
        for one in found:
            made.add_row(one.name, said("yes") if one.name == used else "", amount(_count(one)), one.source)
        console().print(made)
        return
    _print_one(found[0])


def use(
    name: Annotated[str, typer.Argument(help="Name of an own profile, or `none` for the shipped values alone.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Predict with an own profile from now on: on the command line, in the API and on the page.

    Example: crosszone calibrate use my-cluster
    """
    from crosszone.cost import own_profiles

    chosen = None if name == own_profiles.NONE else name
    own_profiles.use(chosen)
    if as_json:
        print_json({"default": chosen})
    else:
        console().print(said("own_profile_in_use", name=chosen) if chosen else said("own_profile_none_in_use"))


def forget(
    name: Name, as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False
) -> None:
    """Delete an own profile; where it was in use, the shipped values are used again.

    Example: crosszone calibrate forget my-cluster
    """
    from crosszone.cost import own_profiles

    own_profiles.remove(name)
    if as_json:
        print_json({"forgotten": name, "default": own_profiles.default()})
    else:
        console().print(said("own_profile_forgotten", name=name))


def _count(one: OwnProfile) -> int:
    return sum(len(fields) for homes in (one.gpus, one.stacks) for fields in homes.values())


def _print_one(one: OwnProfile) -> None:
    columns = (
        ("home", "left"),
        ("coefficient", "left"),
        ("value", "right"),
        ("error_pct", "right"),
        ("origin", "left"),
    )
    made = table(f"{one.name}: {one.source} ({one.created})", columns)
    homes: list[tuple[str, dict[str, Any]]] = [*one.gpus.items(), *one.stacks.items()]
    for home, fields in homes:
        for field, value in fields.items():
            made.add_row(home, field, amount(value.value, 4), amount(100 * value.error, 2), value.origin)
    if _count(one) or not one.collectives:
        console().print(made)
    if one.collectives:
        layout = (("op", "left"), ("gpu", "left"), ("links_layout", "left"), ("links_sizes", "right"))
        figures = (("links_latency", "right"), ("links_rate", "right"), ("error_pct", "right"), ("origin", "left"))
        made = table(said("links_fits"), (*layout, *figures))
        for timed in one.collectives:
            sizes = f"{timed.low_bytes / 1e6:.4g} - {timed.high_bytes / 1e6:.4g} MB"
            numbers = (amount(x, 4) for x in (timed.latency_us, timed.gb_per_s, timed.error_pct))
            made.add_row(timed.op, timed.gpu, f"{timed.nodes} x {timed.gpus_per_node}", sizes, *numbers, timed.origin)
        console().print(made)
    for note in one.notes:
        console().print(note, soft_wrap=True)
