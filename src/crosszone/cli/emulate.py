"""`crosszone emulate`: a scenario run between emulated zones on this machine, measured against its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crosszone.cli.options import JsonOption, PlannedArgument, PythonOption
from crosszone.cli.output import get_language, get_text, open_progress_bar, print_json, print_sections


def emulate(
    file: PlannedArgument,
    steps: Annotated[int, typer.Option(help="Steps to run; the first three do not count.", min=1, max=10_000)] = 20,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Replace model and batch by tiny ones: seconds, not hours.")
    ] = False,
    framework: Annotated[str | None, typer.Option(help="ddp, fsdp or deepspeed; default: the plan's own.")] = None,
    nodes_per_zone: Annotated[int, typer.Option(help="Nodes of each zone, one CPU process each.", min=1, max=8)] = 1,
    python: PythonOption = None,
    keep: Annotated[
        str | None, typer.Option(metavar="DIR", help="Keep bundle, logs and metrics of every node there.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scenario between its zones on this machine, and print what was measured beside what was predicted.

    Every zone gets nodes of its own (Linux namespaces), every link its delay, rate and loss. The bundle is the one that
    `deploy` makes; each node is one process on the CPU. Needs root, /dev/net/tun, a C compiler, and torch.

    Example: sudo crosszone emulate examples/two-zones-7b.yaml --tiny --framework ddp
    """
    from crosszone.inputs.scenario import read_scenario
    from crosszone.run.emulate.emulation import run_emulation

    loaded = read_scenario(file)
    with open_progress_bar() as progress:
        run = run_emulation(
            loaded,
            get_language(),
            steps=steps,
            tiny=tiny,
            framework=framework,
            nodes_per_zone=nodes_per_zone,
            python=str(Path(python).absolute()) if python and "/" in python else python,
            keep=None if keep is None else Path(keep).absolute(),
            progress=progress,
        )
    if as_json:
        print_json(run.model_dump(mode="json"))
    else:
        from crosszone.views.bundle import build_emulation_section

        print_sections([build_emulation_section(run, get_text())])
