"""`crosszone scenario`: check, show and convert scenario files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from crosszone.cli.options import JsonOption, require_choice
from crosszone.cli.output import build_table, get_language, label, open_console, print_json, print_notices
from crosszone.errors import InputError, InvalidError, Notice
from crosszone.text.figures import format_amount, format_billions

app = typer.Typer(help="One file that says what to train, where, and perhaps how.", no_args_is_help=True)

PARTS = ("scenario", "cluster", "model", "job", "strategy")
MOST_ROWS = 60  # Rows of a table shown in the terminal; --json has all

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
            open_console().print(label("scenario_good", name=description["scenario"].get("name", file)), soft_wrap=True)
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
        _print(description)
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
    localized = [notice.as_dict(get_language()) for notice in notices]
    # standard output is the converted file, which may go into a pipe
    if not as_json:
        print_notices(localized, stderr=True)
    if output is None or output == "-":
        typer.echo(text, nl=False)
        return
    _write(Path(output), text, force)
    if as_json:
        print_json({"written": output, "notices": localized})
    else:
        open_console().print(label("written", output=output), soft_wrap=True)


def _write(path: Path, text: str, force: bool) -> None:
    try:
        if path.exists() and not force:
            raise InvalidError(Notice(code="output_exists", value=str(path)))
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        params = {"reason": error.strerror or str(error)}
        raise InputError(Notice(code="output_unwritable", value=str(path), params=params)) from None


def _describe(file: str) -> dict[str, Any]:
    from crosszone.inputs.scenario import read_scenario
    from crosszone.inputs.summary import describe

    return describe(read_scenario(file), get_language())


def _print(description: dict[str, Any]) -> None:
    from crosszone.cli.catalogue import build_parts_table

    terminal = open_console()
    model, job, cluster = description["model"], description["job"], description["cluster"]
    terminal.print(description["scenario"].get("name", ""), style="bold")
    terminal.print(
        label(
            "model_line",
            name=model["name"],
            total=format_billions(model["parameters"]["total"]),
            layers=model["layers"],
            hidden=model["hidden"],
            attention=model["attention"].upper(),
            tflop=f"{model['training_flops_per_token'] / 1e12:.4g}",
        ),
        soft_wrap=True,
    )
    run = (
        label("run_line", tokens=format_amount(job["total_tokens"]), steps=format_amount(job["steps"]))
        if job["steps"]
        else ""
    )
    terminal.print(
        label(
            "job_line",
            seq=format_amount(job["seq_len"]),
            batch=format_amount(job["global_batch"]),
            tokens=format_amount(job["tokens_per_step"]),
            precision=job["precision"],
            optimizer=job["optimizer"],
            state=format_amount(job["state_bytes_per_parameter"]["total"]),
            framework="" if job["state_framework"] == "any" else f", {job['state_framework']}",
        )
        + run,
        soft_wrap=True,
    )
    terminal.print(build_parts_table(model["parameters"]))
    terminal.print(_build_zones_table(cluster))
    _print_rest(sum(len(zone["groups"]) for zone in cluster["zones"]))
    if cluster["links"]:
        terminal.print(_build_links_table(cluster))
        _print_rest(len(cluster["links"]))
    if description["strategy"]:
        _print_strategy(description["strategy"])


def _print_rest(count: int) -> None:
    if count > MOST_ROWS:
        open_console().print(label("rows_more", count=format_amount(count - MOST_ROWS)))


def _build_zones_table(cluster: dict[str, Any]) -> Any:
    columns = [
        ("zone", "left"),
        ("region", "left"),
        ("nodes", "left"),
        ("gpus", "right"),
        ("memory_gib", "right"),
        ("fast_link", "left"),
        ("nic_node", "right"),
        ("usd_hour", "right"),
        ("carbon", "right"),
    ]
    rows = build_table(
        label("zones_title", gpus=format_amount(cluster["gpus"]), nodes=format_amount(cluster["nodes"])), columns
    )
    groups = ((zone, index, group) for zone in cluster["zones"] for index, group in enumerate(zone["groups"]))
    for zone, index, group in islice(groups, MOST_ROWS):
        first = index == 0
        rows.add_row(
            zone["name"] if first else "",
            (zone["region"] or "-") if first else "",
            f"{group['count']} x {group['gpus']} {group['gpu']}",
            format_amount(group["count"] * group["gpus"]),
            format_amount(zone["memory_gib"]) if first else "",
            f"{group['link']}, {group['domain']}",
            format_amount(group["nic_gbps_node"]),
            format_amount(group["usd_per_gpu_hour"]),
            format_amount(zone["carbon_g_per_kwh"]) if first else "",
        )
    return rows


def _build_links_table(cluster: dict[str, Any]) -> Any:
    columns = [
        ("between", "left"),
        ("gbps", "right"),
        ("origin", "left"),
        ("rtt_ms", "right"),
        ("band", "right"),
        ("origin", "left"),
        ("km", "right"),
        ("floor_ms", "right"),
        ("usd_gb", "right"),
    ]
    rows = build_table(label("links_heading"), columns)
    for link in cluster["links"][:MOST_ROWS]:
        rtt, origins = link["rtt_ms"], link["origins"]
        band = "" if rtt["low"] == rtt["high"] else f"{rtt['low']:.4g} - {rtt['high']:.4g}"
        both = link["gbps"] == link["gbps_back"]
        rate = (
            format_amount(link["gbps"])
            if both
            else f"{format_amount(link['gbps'])} / {format_amount(link['gbps_back'])}"
        )
        rows.add_row(
            " - ".join(link["between"]),
            rate,
            label(f"origin_{origins['gbps']}"),
            format_amount(rtt["expected"]),
            band,
            label(f"origin_{origins['rtt_ms']}"),
            format_amount(link["km"] and round(link["km"])),
            format_amount(link["floor_ms"], 3),
            format_amount(link["usd_per_gb"]),
        )
    return rows


def _print_strategy(strategy: dict[str, Any]) -> None:
    def print_line(key: str, **params: Any) -> None:
        open_console().print(label(key, **params), soft_wrap=True)

    settled = strategy["settled"]
    keys = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "interleave", "zero")
    degrees = "  ".join(f"{key} {settled[key]}" for key in keys if settled[key] is not None)
    print_line(
        "strategy_line",
        degrees=degrees,
        ranks=format_amount(strategy["ranks"]),
        m=format_amount(strategy["micro_batches"]),
    )
    if strategy["frameworks"]:
        print_line("frameworks_line", names=", ".join(strategy["frameworks"]))
    blocks = strategy["placement"]["blocks"] if strategy["placement"] else []
    for block in blocks[:MOST_ROWS]:
        print_line("block_line", **{"group": 0, "first": 0, **block})
    _print_rest(len(blocks))
