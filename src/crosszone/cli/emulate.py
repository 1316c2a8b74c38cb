"""`crosszone emulate`: a scenario run between emulated zones on this machine, measured against its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import (
    build_table,
    get_language,
    label,
    open_console,
    open_progress_bar,
    print_json,
    print_notices,
)
from crosszone.text.figures import format_amount, format_digits

if TYPE_CHECKING:
    from crosszone.run.emulate.emulation import EmulationResult


def emulate(
    file: Annotated[str, typer.Argument(help="Scenario file; without a strategy its best plan. - for standard input.")],
    steps: Annotated[int, typer.Option(help="Steps to run; the first three do not count.", min=1, max=10_000)] = 20,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Replace model and batch by tiny ones: seconds, not hours.")
    ] = False,
    framework: Annotated[str | None, typer.Option(help="ddp, fsdp or deepspeed; default: the plan's own.")] = None,
    nodes_per_zone: Annotated[int, typer.Option(help="Nodes of each zone, one CPU process each.", min=1, max=8)] = 1,
    python: Annotated[str | None, typer.Option(metavar="PATH", help="Python with torch; default: this one.")] = None,
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
        _print_run(run)


def _print_run(run: EmulationResult) -> None:
    """The table of parts, the links, what came out, and everything that is not as in the scenario."""
    terminal = open_console()
    counts = {"framework": run.framework, "nodes": len(run.nodes), "steps": run.counted}
    columns = (("emulate_part", "left"), ("emulate_predicted", "right"), ("emulate_range", "right"))
    parts = build_table(
        label("emulate_head", **counts), [*columns, ("emulate_measured", "right"), ("emulate_ratio", "right")]
    )
    for part in (*run.parts, run.step):
        ratio = "-" if part.ratio is None else f"{part.ratio:.2f}"
        measured = "-" if part.measured_s is None else _format_ms(part.measured_s)
        band = f"{_format_ms(part.low_s)} - {_format_ms(part.high_s)}"
        parts.add_row(label(f"twin_part_{part.name}"), _format_ms(part.predicted_s), band, measured, ratio)
    terminal.print(parts)
    keys = ("emulate_link", "emulate_rate", "emulate_rtt", "emulate_sent_predicted", "emulate_sent")
    links = build_table(label("emulate_links"), [(key, "left" if key == "emulate_link" else "right") for key in keys])
    for link in run.links:
        sent = "-" if link.bytes_per_step is None else _format_mb(link.bytes_per_step)
        rates = (
            f"{format_digits(link.gbps * 1e3)}",
            f"{format_digits(link.rtt_ms)}",
            _format_mb(link.predicted_bytes_per_step),
            sent,
        )
        links.add_row(f"{link.sender} > {link.receiver}", *rates)
    if run.links:
        terminal.print(links)
    if run.tokens_per_s is not None:
        terminal.print(label("emulate_rate_line", tokens=format_amount(run.tokens_per_s)))
    if run.first_loss is not None and run.last_loss is not None:
        terminal.print(label("emulate_loss_line", first=f"{run.first_loss:.3f}", last=f"{run.last_loss:.3f}"))
    if run.kept is not None:
        terminal.print(label("emulate_kept", folder=run.kept), soft_wrap=True)
    print_notices(run.notices)


def _format_ms(seconds: float) -> str:
    return format_digits(seconds * 1e3)


def _format_mb(size: float) -> str:
    return format_digits(size / 1e6)
