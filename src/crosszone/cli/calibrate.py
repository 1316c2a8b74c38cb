"""`crosszone calibrate`: measure, fit, import, compare; and own profiles: `profiles`, `use` and `forget`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli import calibrate_fit, calibrate_measure, calibrate_runs, calibrate_sheet
from crosszone.cli.options import JsonOption
from crosszone.cli.output import build_table, label, open_console, print_json
from crosszone.text.figures import format_amount

if TYPE_CHECKING:
    from crosszone.cost.own_profiles import OwnProfile


app = typer.Typer(
    help="Measure kernels and links, fit profiles to them, learn from logs, import traces and sheets.",
    no_args_is_help=True,
)


Name = Annotated[str, typer.Argument(help="Name of an own profile.")]


def predict_with_profile(name: str) -> None:
    """Predict with an own profile in this process."""
    from crosszone.cost.own_profiles import NONE, give, load, use_shipped

    if name == NONE:
        use_shipped()
    else:
        give(load(name))


def show_profiles(
    name: Annotated[str | None, typer.Argument(help="Show one with all its values.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List own profiles, or show one.

    Example: crosszone calibrate profiles
    """
    from crosszone.cost.own_profiles import default, load, saved

    listed = saved() if name is None else [load(name)]
    default_name = default()
    if as_json:
        print_json({"default": default_name, "profiles": [profile.model_dump(mode="json") for profile in listed]})
        return
    if not listed:
        open_console().print(label("own_profiles_none"))
        return
    if name is None:
        columns = (("own_profile", "left"), ("own_profile_used", "left"), ("coefficients", "right"), ("source", "left"))
        rows = build_table(label("own_profiles_title"), columns)
        for profile in listed:
            rows.add_row(
                profile.name,
                label("yes") if profile.name == default_name else "",
                format_amount(_count_coefficients(profile)),
                profile.source,
            )
        open_console().print(rows)
        return
    _print_own_profile(listed[0])


def select_profile(
    name: Annotated[str, typer.Argument(help="Name of an own profile, or `none` for the shipped values alone.")],
    as_json: JsonOption = False,
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
        open_console().print(label("own_profile_in_use", name=chosen) if chosen else label("own_profile_none_in_use"))


def remove_profile(name: Name, as_json: JsonOption = False) -> None:
    """Delete an own profile; where it was in use, the shipped values are used again.

    Example: crosszone calibrate forget my-cluster
    """
    from crosszone.cost import own_profiles

    own_profiles.remove(name)
    if as_json:
        print_json({"forgotten": name, "default": own_profiles.default()})
    else:
        open_console().print(label("own_profile_forgotten", name=name))


def _count_coefficients(profile: OwnProfile) -> int:
    return sum(len(fields) for scope in (profile.gpus, profile.stacks) for fields in scope.values())


def _print_own_profile(profile: OwnProfile) -> None:
    columns = (
        ("home", "left"),
        ("coefficient", "left"),
        ("value", "right"),
        ("error_pct", "right"),
        ("origin", "left"),
    )
    rows = build_table(f"{profile.name}: {profile.source} ({profile.created})", columns)
    scopes: list[tuple[str, dict[str, Any]]] = [*profile.gpus.items(), *profile.stacks.items()]
    for scope, fields in scopes:
        for field, value in fields.items():
            rows.add_row(scope, field, format_amount(value.value, 4), format_amount(100 * value.error, 2), value.origin)
    if _count_coefficients(profile) or not profile.collectives:
        open_console().print(rows)
    if profile.collectives:
        layout = (("op", "left"), ("gpu", "left"), ("links_layout", "left"), ("links_sizes", "right"))
        figures = (("links_latency", "right"), ("links_rate", "right"), ("error_pct", "right"), ("origin", "left"))
        rows = build_table(label("links_fits"), (*layout, *figures))
        for timed in profile.collectives:
            sizes = f"{timed.low_bytes / 1e6:.4g} - {timed.high_bytes / 1e6:.4g} MB"
            numbers = (format_amount(x, 4) for x in (timed.latency_us, timed.gb_per_s, timed.error_pct))
            rows.add_row(timed.op, timed.gpu, f"{timed.nodes} x {timed.gpus_per_node}", sizes, *numbers, timed.origin)
        open_console().print(rows)
    for note in profile.notes:
        open_console().print(note, soft_wrap=True)


app.command("profiles")(show_profiles)
app.command("use")(select_profile)
app.command("forget")(remove_profile)
app.command("collectives")(calibrate_measure.measure_collectives)
app.command("links")(calibrate_measure.measure_links)
app.command("kernels")(calibrate_measure.measure_kernels)
app.command("fit")(calibrate_fit.fit)
app.command("operator")(calibrate_fit.predict_operator)
app.command("trace")(calibrate_runs.trace)
app.command("log")(calibrate_runs.log)
app.command("jobs")(calibrate_fit.fit_jobs)
app.add_typer(calibrate_sheet.app, name="sheet")
