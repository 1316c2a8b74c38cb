"""`crosszone deploy`: a plan as files that start it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crosszone.cli.options import JsonOption, PlannedArgument
from crosszone.cli.output import get_language, get_text, open_progress_bar, print_json, print_sections
from crosszone.errors import InvalidError, Notice


def deploy(
    file: PlannedArgument,
    framework: Annotated[
        str | None, typer.Option(help="ddp, fsdp, deepspeed, megatron, horovod or torchft; default: the plan's own.")
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="nodes (by hand), ssh, slurm, kubernetes, pytorchjob, skypilot or ray.")
    ] = "nodes",
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="DIR", help="Write the bundle there.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="port, data, image, user, training.lr, partitions.ZONE, ..."),
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Leave addresses to be filled in; the scripts refuse to run until then.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier bundle in DIR.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the files that start a plan: configuration, trainer, the command of every node, a check, a README.

    Without -o nothing is written: the commands of every node are shown (a dry run).

    Example: crosszone deploy examples/two-nodes.yaml --framework fsdp --launcher ssh -o bundle
    """
    from crosszone.deploy.deploy import build_bundle
    from crosszone.deploy.settings import LaunchSettings
    from crosszone.inputs.scenario import read_scenario

    folder = None if output is None else Path(output)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise InvalidError(Notice(code="output_exists", value=str(folder)))
    chosen = LaunchSettings().apply_assignments(settings or [])
    loaded = read_scenario(file)
    with open_progress_bar() as progress:
        bundle = build_bundle(
            loaded,
            get_language(),
            framework=framework,
            launcher=launcher,
            settings=chosen,
            template=template,
            progress=progress,
        )
    if folder is not None:
        bundle.write(folder, force=force)
    if as_json:
        print_json(bundle.model_dump(mode="json"))
    else:
        from crosszone.views.bundle import build_bundle_section

        print_sections([build_bundle_section(bundle, output, get_text())])
