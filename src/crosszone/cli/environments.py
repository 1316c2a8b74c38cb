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


def _uptime_s(one: Environment) -> float | None:
    return None if one.since is None else max(0.0, time.time() - one.since)


def print_environments(found: Sequence[Entry[Environment]], together: Selection, known: int) -> None:
    """A table of them, and what they have together."""
    terminal = open_console()
    if not found:
        terminal.print(label("env_none_match", count=known) if known else label("env_none"), soft_wrap=True)
        return
    wide = terminal.width >= WIDE
    columns = [("env_id", "left"), ("env_status", "left"), ("zone", "left"), ("env_type", "left")]
    columns += [("gpus", "left"), ("env_cores", "right"), ("env_memory", "right"), ("env_uptime", "right")]
    columns += [("env_runner", "left"), ("deploy_address", "left")] if wide else []
    rows = build_table(label("env_title", shown=len(found), known=known), columns)
    rows.columns[0].no_wrap = True  # to be copied
    for entry in found:
        one = entry.value
        name = entry.id if one.name == entry.id else f"{entry.id}\n  {one.name}"
        cells: list[Any] = [name, _status(one), one.zone, one.type, gpus_of(one), format_amount(one.cpus)]
        cells += [format_amount(one.memory_gb), uptime(one), *([one.runner, one.address or "-"] if wide else [])]
        rows.add_row(*cells)
    terminal.print(rows)
    print_lines((label("env_together"), summed(together), "bold"))


def summed(together: Selection) -> str:
    """Nodes, GPUs and their kinds, cores, memory and zones in one line."""
    kinds = f" ({join_words(together.gpu_kinds)})" if together.gpu_kinds else ""
    return label(
        "env_summed",
        nodes=together.nodes,
        gpus=f"{together.gpus}{kinds}",
        cpus=format_amount(together.cpus),
        memory=format_amount(together.memory_gb),
        zones=len(together.zones),
    )


def gpus_of(one: Environment) -> str:
    """`2 x a100-80gb-sxm`, or the CPU."""
    return f"{one.gpus} x {one.gpu or '?'}" if one.gpus else "CPU"


def uptime(one: Environment) -> str:
    """Since when it runs, in days and hours."""
    seconds = _uptime_s(one)
    if seconds is None:
        return "-"
    hours, minutes = int(seconds // 3600), int(seconds // 60 % 60)
    if hours >= 24:
        return label("env_days", days=hours // 24, hours=hours % 24)
    return label("env_hours", hours=hours, minutes=minutes)


def _status(one: Environment) -> Any:
    from rich.text import Text

    return Text(label(f"env_status_{one.status}"), style=_STYLES[one.status])


def print_environment(entry: Entry[Environment], found: Sequence[MeasuredLink]) -> None:
    """Its fields, what the last probe found, and its links."""
    one = entry.value
    open_console().print(f"{one.name} ({entry.id})", style="bold")
    shown = {key: value for key, value in one.to_plain().items() if key not in ("name", "facts", "since")}
    lines: list[Line] = [(key, str(value), "") for key, value in shown.items() if value is not None]
    lines.append((label("env_uptime"), uptime(one), ""))
    if one.facts is not None:
        lines += facts_of(one.facts)
    print_lines(*lines)
    if one.facts is None:
        open_console().print(label("env_not_probed", id=entry.id), style="dim", soft_wrap=True)
    if found:
        print_links(found)


def facts_of(facts: Mapping[str, Any]) -> list[Line]:
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


def print_probed(found: Sequence[Entry[Environment]]) -> None:
    """What machines said of themselves, a row each."""
    if not found:
        return
    columns = (("env_id", "left"), ("gpus", "left"), ("env_cores", "right"), ("env_memory", "right"))
    rows = build_table(label("env_probed"), [*columns, ("env_software", "left")])
    for entry in found:
        one, software = entry.value, (entry.value.facts or {}).get("software", {})
        versions = join_words(f"{key} {software[key]}" for key in ("python", "torch", "cuda") if software.get(key))
        missing = software.get("missing") or ("" if "torch" in software else label("env_no_torch"))
        said_of = join_words(word for word in (versions, missing) if word)
        rows.add_row(entry.id, gpus_of(one), format_amount(one.cpus), format_amount(one.memory_gb), said_of)
    open_console().print(rows)


def print_links(found: Sequence[MeasuredLink]) -> None:
    """Measured links, a row each."""
    if not found:
        open_console().print(label("env_no_links"), soft_wrap=True)
        return
    columns = [("between", "left"), ("rtt_ms", "right"), ("env_rtt_range", "right"), ("gbps", "right")]
    rows = build_table(
        label("env_links_title", count=len(found)), [*columns, ("report_back", "right"), ("env_when", "left")]
    )
    for one in found:
        rates = ["-" if rate is None else format_digits(rate) for rate in (one.gbps, one.gbps_back)]
        least, most = format_digits(one.rtt_ms_least, 3), format_digits(one.rtt_ms_most, 3)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.measured))
        rows.add_row(f"{one.first} - {one.second}", format_digits(one.rtt_ms, 3), f"{least} - {most}", *rates, when)
    open_console().print(rows)


def pairs_of(chosen: Mapping[str, Environment], *, across: bool) -> list[tuple[str, str]]:
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
        found = imports.read_slurm_nodes() if file is None else imports.parse_slurm_nodes(read_text(file))
    elif format == "kubernetes" and file is None:
        found = imports.read_kubernetes_nodes()
    elif format == "kubernetes":
        try:
            found = imports.parse_kubernetes_nodes(json.loads(read_text(str(file))))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidError(Notice(code="env_import_nodes", value=file)) from None
    elif format == "ssh_config":
        found = imports.read_ssh_hosts(Path(str(file)).expanduser(), zone=str(zone))
    else:
        found = imports.read_environment_list(read_document(str(file)))
    return found
