"""`crosszone scenario`: check, show and convert scenario files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crosszone.cli.options import JsonOption, require_choice
from crosszone.cli.output import (
    get_language,
    get_text,
    localize,
    print_json,
    print_line,
    print_notices,
    print_outcome,
    print_sections,
    write_file,
)

app = typer.Typer(help="One file that says what to train, where, and perhaps how.", no_args_is_help=True)

PARTS = ("scenario", "cluster", "model", "job", "strategy")

FileArgument = Annotated[str, typer.Argument(help="Scenario file (YAML or JSON); - for standard input.")]


@app.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a scenario: every error with line, field, limit and remedy; warnings on what was assumed.

    Example: crosszone scenario check examples/three-cities.yaml
    """
    description = _describe(file)
    legal, notices = description["legal"], description["notices"]
    if as_json:
        print_json({"valid": legal, "notices": notices})
    else:
        print_notices(notices, stderr=not legal)
        if legal:
            print_line("scenario_good", name=description["scenario"].get("name", file))
    if not legal:
        raise typer.Exit(2)


@app.command()
def show(file: FileArgument, as_json: JsonOption = False) -> None:
    """Show what follows from a scenario: parameters, tokens, zones, links with their origin, ranks and idle GPUs.

    Example: crosszone scenario show examples/fourteen-gpus.yaml
    """
    description = _describe(file)
    if as_json:
        print_json(description)
    else:
        from crosszone.views.catalogue import build_scenario_section

        print_sections([build_scenario_section(description, get_text())])
        print_notices(description["notices"])
    if not description["legal"]:
        raise typer.Exit(2)


@app.command()
def convert(
    file: FileArgument,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File to write; default: standard output.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="yaml or json; default: by the output's name, else yaml.")] = None,
    part: Annotated[str, typer.Option(help=f"What to write: {', '.join(PARTS)}.")] = "scenario",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a scenario in today's form: older versions upgraded, sizes, configs and included files resolved.

    Example: crosszone scenario convert old-request.json -o scenario.yaml
    """
    from crosszone.inputs.document import dump_json, dump_yaml
    from crosszone.inputs.scenario import read_scenario

    require_choice("--part", part, PARTS)
    form = to or ("json" if as_json or (output or "").endswith(".json") else "yaml")
    require_choice("--to", form, ("yaml", "json"))
    scenario, notices, _ = read_scenario(file)
    scenario_fields = scenario.to_fields()
    fields = scenario_fields if part == "scenario" else {part: scenario_fields.get(part)}
    text = dump_json(fields) if form == "json" else dump_yaml(fields)
    localized = localize(notices)
    # standard output is the converted file, which may go into a pipe
    if not as_json:
        print_notices(localized, stderr=True)
    if output is None or output == "-":
        typer.echo(text, nl=False)
        return
    write_file(Path(output), text, force)
    print_outcome(as_json, {"written": output, "notices": localized}, "written", output=output)


def _describe(file: str) -> dict[str, Any]:
    from crosszone.inputs.scenario import read_scenario
    from crosszone.inputs.summary import describe

    return describe(read_scenario(file), get_language())
