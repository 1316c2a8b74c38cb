"""Environments in the terminal: as tables, and as other programs list them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crosszone.cli.output import Line, build_table, join_words, label, open_console, print_lines
from crosszone.errors import InvalidError, Notice
from crosszone.text.figures import format_amount, format_digits

if TYPE_CHECKING:
    from crosszone.inputs.environment import Environment, MeasuredLink, Selection
    from crosszone.store.registered import Entry

WIDE = 110  # Columns of a terminal that has room for name, runner and address
_STYLES = {"running": "green", "unreachable": "red", "stopped": "dim", "unknown": "dim"}


def _compute_uptime_s(environment: Environment) -> float | None:
    return None if environment.since is None else max(0.0, time.time() - environment.since)


def print_environments(entries: Sequence[Entry[Environment]], selection: Selection, registered_count: int) -> None:
    """A table of them, and what they have together."""
    terminal = open_console()
    if not entries:
        terminal.print(
            label("env_none_match", count=registered_count) if registered_count else label("env_none"), soft_wrap=True
        )
        return
    wide = terminal.width >= WIDE
    columns = [("env_id", "left"), ("env_status", "left"), ("zone", "left"), ("env_type", "left")]
    columns += [("gpus", "left"), ("env_cores", "right"), ("env_memory", "right"), ("env_uptime", "right")]
    columns += [("env_runner", "left"), ("deploy_address", "left")] if wide else []
    rows = build_table(label("env_title", shown=len(entries), known=registered_count), columns)
    rows.columns[0].no_wrap = True  # to be copied
    for entry in entries:
        environment = entry.value
        name = entry.id if environment.name == entry.id else f"{entry.id}\n  {environment.name}"
        cells: list[Any] = [
            name,
            _render_status(environment),
            environment.zone,
            environment.type,
            describe_gpus(environment),
            format_amount(environment.cpus),
        ]
        cells += [
            format_amount(environment.memory_gb),
            format_uptime(environment),
            *([environment.runner, environment.address or "-"] if wide else []),
        ]
        rows.add_row(*cells)
    terminal.print(rows)
    print_lines((label("env_together"), summarize_selection(selection), "bold"))


def summarize_selection(selection: Selection) -> str:
    """Nodes, GPUs and their kinds, cores, memory and zones in one line."""
    kinds = f" ({join_words(selection.gpu_kinds)})" if selection.gpu_kinds else ""
    return label(
        "env_summed",
        nodes=selection.nodes,
        gpus=f"{selection.gpus}{kinds}",
        cpus=format_amount(selection.cpus),
        memory=format_amount(selection.memory_gb),
        zones=len(selection.zones),
    )


def describe_gpus(environment: Environment) -> str:
    """`2 x a100-80gb-sxm`, or the CPU."""
    return f"{environment.gpus} x {environment.gpu or '?'}" if environment.gpus else "CPU"


def format_uptime(environment: Environment) -> str:
    """Since when it runs, in days and hours."""
    seconds = _compute_uptime_s(environment)
    if seconds is None:
        return "-"
    hours, minutes = int(seconds // 3600), int(seconds // 60 % 60)
    if hours >= 24:
        return label("env_days", days=hours // 24, hours=hours % 24)
    return label("env_hours", hours=hours, minutes=minutes)


def _render_status(environment: Environment) -> Any:
    from rich.text import Text

    return Text(label(f"env_status_{environment.status}"), style=_STYLES[environment.status])


def print_environment(entry: Entry[Environment], links: Sequence[MeasuredLink]) -> None:
    """Its fields, what the last probe found, and its links."""
    environment = entry.value
    open_console().print(f"{environment.name} ({entry.id})", style="bold")
    fields = {key: value for key, value in environment.to_plain().items() if key not in ("name", "facts", "since")}
    lines: list[Line] = [(key, str(value), "") for key, value in fields.items() if value is not None]
    lines.append((label("env_uptime"), format_uptime(environment), ""))
    if environment.facts is not None:
        lines += list_facts(environment.facts)
    print_lines(*lines)
    if environment.facts is None:
        open_console().print(label("env_not_probed", id=entry.id), style="dim", soft_wrap=True)
    if links:
        print_links(links)


def list_facts(facts: Mapping[str, Any]) -> list[Line]:
    """What a probe found, in lines."""
    software = {key: value for key, value in facts.get("software", {}).items() if value is not None}
    gpus = [f"{gpu['name']} {format_amount(gpu['memory_gib'])} GiB" for gpu in facts.get("gpus", [])]
    lines = [
        (label("env_host"), f"{facts.get('host')}, {facts.get('system')}", ""),
        (label("gpus"), join_words(gpus) or facts.get("gpu_problem") or label("env_no_gpus"), ""),
        (label("env_driver"), str(facts.get("driver") or "-"), ""),
        (label("env_software"), join_words(f"{key} {value}" for key, value in software.items()), ""),
        (label("env_disk"), label("unit_gib", value=format_amount(facts.get("disk_free_gib"))), ""),
        (
            label("env_interfaces"),
            join_words(f"{key} {value}" for key, value in facts.get("interfaces", {}).items()),
            "",
        ),
    ]
    return [line for line in lines if line[1]]


def print_probed(entries: Sequence[Entry[Environment]]) -> None:
    """What machines said of themselves, a row each."""
    if not entries:
        return
    columns = (("env_id", "left"), ("gpus", "left"), ("env_cores", "right"), ("env_memory", "right"))
    rows = build_table(label("env_probed"), [*columns, ("env_software", "left")])
    for entry in entries:
        environment, software = entry.value, (entry.value.facts or {}).get("software", {})
        versions = join_words(f"{key} {software[key]}" for key in ("python", "torch", "cuda") if software.get(key))
        missing = software.get("missing") or ("" if "torch" in software else label("env_no_torch"))
        versions_or_problem = join_words(word for word in (versions, missing) if word)
        rows.add_row(
            entry.id,
            describe_gpus(environment),
            format_amount(environment.cpus),
            format_amount(environment.memory_gb),
            versions_or_problem,
        )
    open_console().print(rows)


def print_links(links: Sequence[MeasuredLink]) -> None:
    """Measured links, a row each."""
    if not links:
        open_console().print(label("env_no_links"), soft_wrap=True)
        return
    columns = [("between", "left"), ("rtt_ms", "right"), ("env_rtt_range", "right"), ("gbps", "right")]
    rows = build_table(
        label("env_links_title", count=len(links)), [*columns, ("report_back", "right"), ("env_when", "left")]
    )
    for link in links:
        rates = ["-" if rate is None else format_digits(rate) for rate in (link.gbps, link.gbps_back)]
        lowest, highest = format_digits(link.rtt_ms_least, 3), format_digits(link.rtt_ms_most, 3)
        measured_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(link.measured))
        rows.add_row(
            f"{link.first} - {link.second}", format_digits(link.rtt_ms, 3), f"{lowest} - {highest}", *rates, measured_at
        )
    open_console().print(rows)


def list_pairs(chosen: Mapping[str, Environment], *, across: bool) -> list[tuple[str, str]]:
    """Pairs to measure; `across`: only of different zones, where anything is to be learnt."""
    if len(chosen) < 2:
        raise InvalidError(Notice(code="env_two_needed", value=len(chosen)))
    return [
        (first, second)
        for first, second in combinations(chosen, 2)
        if not across or chosen[first].zone != chosen[second].zone
    ]


def read_import(file: str | None, format: str, zone: str | None) -> dict[str, Environment]:
    """Environments that a file or a scheduler lists, by name."""
    import json

    from crosszone.inputs.document import read_document, read_text
    from crosszone.run import imports

    if file is None and format in ("yaml", "ssh_config"):
        raise InvalidError(Notice(code="env_import_file", field="--format", value=format))
    if format == "ssh_config" and zone is None:
        raise InvalidError(Notice(code="env_import_zone", field="--zone"))
    if format == "slurm":
        environments = imports.read_slurm_nodes() if file is None else imports.parse_slurm_nodes(read_text(file))
    elif format == "kubernetes" and file is None:
        environments = imports.read_kubernetes_nodes()
    elif format == "kubernetes":
        try:
            environments = imports.parse_kubernetes_nodes(json.loads(read_text(str(file))))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidError(Notice(code="env_import_nodes", value=file)) from None
    elif format == "ssh_config":
        environments = imports.read_ssh_hosts(Path(str(file)).expanduser(), zone=str(zone))
    else:
        environments = imports.read_environment_list(read_document(str(file)))
    return environments
