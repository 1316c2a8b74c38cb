"""`crosszone calibrate`: measure, fit, import, compare; and own profiles: `profiles`, `use` and `forget`."""

from __future__ import annotations

from typing import Annotated

import typer

from crosszone.cli import calibrate_fit, calibrate_measure, calibrate_runs, calibrate_sheet
from crosszone.cli.options import JsonOption
from crosszone.cli.output import get_text, print_blocks, print_json, print_line, print_outcome, print_sections

app = typer.Typer(
    help="Measure kernels and links, fit profiles to them, learn from logs, import traces and sheets.",
    no_args_is_help=True,
)


Name = Annotated[str, typer.Argument(help="Name of an own profile.")]


def predict_with_profile(name: str) -> None:
    """Predict with an own profile in this process."""
    from crosszone.cost.own_profiles import NONE, load, override_default, use_shipped

    if name == NONE:
        use_shipped()
    else:
        override_default(load(name))


def show_profiles(
    name: Annotated[str | None, typer.Argument(help="Show one with all its values.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List own profiles, or show one.

    Example: crosszone calibrate profiles
    """
    from crosszone.cost.own_profiles import get_default, list_saved, load

    listed = list_saved() if name is None else [load(name)]
    default_name = get_default()
    if as_json:
        print_json({"default": default_name, "profiles": [profile.model_dump(mode="json") for profile in listed]})
        return
    if not listed:
        print_line("own_profiles_none", wraps=True)
        return

    from crosszone.views.calibration import build_own_profile_section, build_own_profiles_table

    if name is None:
        print_blocks(build_own_profiles_table(listed, default_name, get_text()))
    else:
        print_sections([build_own_profile_section(listed[0], get_text())])


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
    key = "own_profile_in_use" if chosen else "own_profile_none_in_use"
    print_outcome(as_json, {"default": chosen}, key, name=chosen, wraps=True)


def remove_profile(name: Name, as_json: JsonOption = False) -> None:
    """Delete an own profile; where it was in use, the shipped values are used again.

    Example: crosszone calibrate forget my-cluster
    """
    from crosszone.cost import own_profiles

    own_profiles.remove(name)
    document = {"forgotten": name, "default": own_profiles.get_default()}
    print_outcome(as_json, document, "own_profile_forgotten", name=name, wraps=True)


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
