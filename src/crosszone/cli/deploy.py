"""`crosszone deploy`: a plan as files that start it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import build_table, get_language, label, open_console, open_progress_bar, print_json
from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.deploy.bundle import Bundle

MOST_NODES = 8  # Nodes whose commands are printed; the others stand in the files


def deploy(
    file: Annotated[str, typer.Argument(help="Scenario file; without a strategy its best plan. - for standard input.")],
    framework: Annotated[
        str | None,
        typer.Option(help="ddp, fsdp, deepspeed, megatron, horovod or torchft; default: the plan's own."),
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
        _print_bundle(bundle, output)


def _print_bundle(bundle: Bundle, output: str | None) -> None:
    """The commands of the first nodes, and where the files are."""
    from rich.markup import escape

    from crosszone.deploy.deploy import name_framework

    terminal = open_console()
    head = label(
        "deploy_head", framework=name_framework(bundle.framework), launcher=bundle.launcher, ranks=bundle.world_size
    )
    columns = ("deploy_node", "deploy_zone", "deploy_address", "deploy_ranks", "deploy_command")
    table = build_table(head, [(key, "left") for key in columns])
    for node in bundle.nodes[:MOST_NODES]:
        ranks, commands = ", ".join(node.ranks), "\n".join(node.commands)
        table.add_row(*map(escape, (node.script, node.zone, node.address or "-", ranks, commands)))
    terminal.print(table)
    if len(bundle.nodes) > MOST_NODES:
        terminal.print(label("deploy_more", more=len(bundle.nodes) - MOST_NODES))
    for line in bundle.how:
        terminal.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)
    if output is not None:
        terminal.print(label("deploy_written", output=output, files=len(bundle.files)), soft_wrap=True)
    else:
        terminal.print(label("deploy_dry", files=len(bundle.files)), soft_wrap=True)
