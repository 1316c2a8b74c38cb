"""`crosszone report`: a scenario with its plan as a document to hand on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from crosszone.cli.options import JsonOption, PlannedArgument, require_choice
from crosszone.cli.output import check_not_existing, get_language, open_progress_bar, print_json, print_line, write_file

if TYPE_CHECKING:
    from crosszone.views.report import Form


def write_report(
    file: PlannedArgument,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT", help="Write it there: OUT.md or OUT.html.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="md or html; default: by the ending of OUT, else md.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a report: inputs, plan, numbers with ranges, where the time goes, reasons, suggestions and warnings.

    Example: crosszone report examples/three-cities.yaml -o three-cities.html
    """
    chosen = _choose_form(form, output)
    if output is not None:
        check_not_existing(Path(output), force)

    from crosszone.inputs.scenario import read_scenario
    from crosszone.views.report import render_report

    loaded = read_scenario(file)
    with open_progress_bar() as progress:
        text = render_report(loaded, get_language(), form=chosen, progress=progress)
    if output is not None:
        write_file(Path(output), text, force)
    if as_json:
        print_json({"format": chosen, "text": text})
    elif output is not None:
        print_line("written", output=output)
    else:
        typer.echo(text, nl=False)


def _choose_form(form_option: str | None, output: str | None) -> Form:
    """The form of --format, else that of the output file's ending."""
    from crosszone.views.report import FORMS

    require_choice("--format", form_option, FORMS)
    page = output is not None and Path(output).suffix.lower() in (".html", ".htm")
    return cast("Form", form_option or ("html" if page else "md"))
