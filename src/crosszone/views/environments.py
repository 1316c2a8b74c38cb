"""Registered environments, datasets and models as sections: lists of them, and one in full."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crosszone.text.figures import format_amount, format_digits
from crosszone.views.answer_text import AnswerText
from crosszone.views.document import Block, Cell, ColoredText, Fact, Facts, Mark, Paragraph, Section

if TYPE_CHECKING:
    from crosszone.inputs.dataset import Dataset, TrainingModel
    from crosszone.inputs.environment import Environment, MeasuredLink, Selection
    from crosszone.store.registered import Entry

WIDE = 110  # Columns of a terminal that has room for name, runner and address
_COLORS = {"running": "green", "unreachable": "red"}
_MARKS: dict[str, Mark] = {"stopped": "faint", "unknown": "faint"}


def build_environments_section(
    entries: Sequence[Entry[Environment]], selection: Selection, registered: int, text: AnswerText, width: int
) -> Section:
    """A table of environments, and what they have together; `registered` counts all, also those filtered out."""
    if not entries:
        nothing = text.label("env_none_match", count=registered) if registered else text.label("env_none")
        return Section(blocks=(Paragraph(text=nothing),))
    wide = width >= WIDE
    columns = "env_id env_status zone env_type gpus >env_cores >env_memory >env_uptime"
    columns += " env_runner deploy_address" if wide else ""
    rows: list[tuple[Cell, ...]] = []
    for entry in entries:
        environment = entry.value
        status = ColoredText(
            text=text.label(f"env_status_{environment.status}"),
            color=_COLORS.get(environment.status, ""),
            mark=_MARKS.get(environment.status, ""),
        )
        rows.append(
            (
                entry.id if environment.name == entry.id else f"{entry.id}\n  {environment.name}",
                status,
                environment.zone,
                environment.type,
                describe_gpus(environment),
                format_amount(environment.cpus),
                format_amount(environment.memory_gb),
                _format_uptime(environment, text),
                *([environment.runner, environment.address or "-"] if wide else []),
            )
        )
    title = text.label("env_title", shown=len(entries), known=registered)
    # ids stay on one line, to be copied
    table = text.build_titled_table(columns, rows, title, uncut=[0])
    together = text.build_fact("env_together", summarize_selection(selection, text), mark="strong")
    return Section(blocks=(table, Facts(facts=(together,))))


def summarize_selection(selection: Selection, text: AnswerText) -> str:
    """Nodes, GPUs and their kinds, cores, memory and zones in one line."""
    kinds = f" ({text.join(selection.gpu_kinds)})" if selection.gpu_kinds else ""
    return text.label(
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


def _format_uptime(environment: Environment, text: AnswerText) -> str:
    """Since when it runs, in days and hours."""
    if environment.since is None:
        return "-"
    seconds = max(0.0, time.time() - environment.since)
    hours, minutes = int(seconds // 3600), int(seconds // 60 % 60)
    if hours >= 24:
        return text.label("env_days", days=hours // 24, hours=hours % 24)
    return text.label("env_hours", hours=hours, minutes=minutes)


def build_environment_section(entry: Entry[Environment], links: Sequence[MeasuredLink], text: AnswerText) -> Section:
    """Fields of one environment, what the last probe found, and its links."""
    environment = entry.value
    fields = {key: value for key, value in environment.to_plain().items() if key not in ("name", "facts", "since")}
    facts = [Fact(heading=key, text=str(value)) for key, value in fields.items() if value is not None]
    facts.append(text.build_fact("env_uptime", _format_uptime(environment, text)))
    facts += _list_probed_facts(environment.facts, text) if environment.facts is not None else []
    blocks: list[Block] = [Facts(facts=tuple(facts))]
    if environment.facts is None:
        blocks.append(text.build_line("env_not_probed", id=entry.id, mark="faint"))
    if links:
        blocks.append(build_measured_links(links, text))
    return Section(title=f"{environment.name} ({entry.id})", blocks=tuple(blocks))


def _list_probed_facts(facts: Mapping[str, Any], text: AnswerText) -> list[Fact]:
    """What a probe found, without what it did not find."""
    software = {key: value for key, value in facts.get("software", {}).items() if value is not None}
    gpus = text.join(f"{gpu['name']} {format_amount(gpu['memory_gib'])} GiB" for gpu in facts.get("gpus", []))
    lines = {
        "env_host": f"{facts.get('host')}, {facts.get('system')}",
        "gpus": gpus or facts.get("gpu_problem") or text.label("env_no_gpus"),
        "env_driver": str(facts.get("driver") or "-"),
        "env_software": text.join(f"{key} {value}" for key, value in software.items()),
        "env_disk": text.label("unit_gib", value=format_amount(facts.get("disk_free_gib"))),
        "env_interfaces": text.join(f"{key} {value}" for key, value in facts.get("interfaces", {}).items()),
    }
    return [Fact(heading=text.label(key), text=line) for key, line in lines.items() if line]


def build_probed_section(entries: Sequence[Entry[Environment]], text: AnswerText) -> Section:
    """What machines said of themselves, a row each; nothing where none answered."""
    rows = []
    for entry in entries:
        environment, software = entry.value, (entry.value.facts or {}).get("software", {})
        versions = text.join(f"{key} {software[key]}" for key in ("python", "torch", "cuda") if software.get(key))
        missing = software.get("missing") or ("" if "torch" in software else text.label("env_no_torch"))
        rows.append(
            (
                entry.id,
                describe_gpus(environment),
                format_amount(environment.cpus),
                format_amount(environment.memory_gb),
                text.join(filter(None, (versions, missing))),
            )
        )
    columns = "env_id gpus >env_cores >env_memory env_software"
    table = text.build_titled_table(columns, rows, text.label("env_probed"))
    return Section(blocks=(table,) if rows else ())


def build_measured_links(links: Sequence[MeasuredLink], text: AnswerText) -> Block:
    """Measured links, a row each, or that there are none."""
    if not links:
        return text.build_line("env_no_links")
    rows = [
        (
            f"{link.first} - {link.second}",
            format_digits(link.rtt_ms, 3),
            f"{format_digits(link.rtt_ms_least, 3)} - {format_digits(link.rtt_ms_most, 3)}",
            *("-" if rate is None else format_digits(rate) for rate in (link.gbps, link.gbps_back)),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(link.measured)),
        )
        for link in links
    ]
    columns = "between >rtt_ms >env_rtt_range >gbps >report_back env_when"
    return text.build_titled_table(columns, rows, text.label("env_links_title", count=len(links)))


def build_datasets(entries: Sequence[Entry[Dataset]], title: str, text: AnswerText) -> Block:
    """Versions of datasets, a row each."""
    rows = [
        (
            entry.id,
            version.id,
            version.path or text.label("dataset_synthetic"),
            format_amount(version.bytes),
            "-" if version.sha256 is None else version.sha256[:12],
        )
        for entry in entries
        for version in entry.value.versions
    ]
    return text.build_titled_table("env_id dataset_version dataset_path >dataset_bytes dataset_checksum", rows, title)


def build_dataset_blocks(entry: Entry[Dataset], text: AnswerText) -> list[Block]:
    """One dataset: its versions, what it holds, and their checksums in full."""
    dataset = entry.value
    blocks = [build_datasets([entry], f"{dataset.name} ({entry.id})", text)]
    blocks += [Paragraph(text=dataset.about)] if dataset.about else []
    return blocks + [
        Paragraph(text=f"{version.id}  sha256 {version.sha256}", mark="faint")
        for version in dataset.versions
        if version.sha256
    ]


def build_models(entries: Sequence[Entry[TrainingModel]], title: str, text: AnswerText) -> Block:
    """Models that tasks train, a row each."""
    rows = [
        (
            entry.id,
            entry.value.model if isinstance(entry.value.model, str) else text.label("model_own"),
            entry.value.weights or text.label("model_scratch"),
            format_amount(entry.value.bytes),
        )
        for entry in entries
    ]
    return text.build_titled_table("env_id report_model_name model_weights >dataset_bytes", rows, title)
