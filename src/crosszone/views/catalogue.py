"""Entries of the catalogue, and what a scenario makes of them, as sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.catalogue.describe import describe_entry, list_figures
from crosszone.inputs.parameters import parameters
from crosszone.text.figures import format_amount, format_billions
from crosszone.views.answer_text import AnswerText
from crosszone.views.document import Block, Paragraph, Section, Table

if TYPE_CHECKING:
    from crosszone.inputs.catalogue import ModelEntry
    from crosszone.inputs.catalogue.entries import Entry, Kind
    from crosszone.inputs.gpu import Gpu
    from crosszone.inputs.region import MeasuredPair, Region

MOST_ROWS = 60  # Rows of a scenario's tables that a terminal shows; --json has all


def build_entries_table(kind: Kind, entries: Sequence[Entry], text: AnswerText) -> Table:
    """Entries of one kind, a row each."""
    build_table: Any = {"gpus": _build_gpus_table, "models": _build_models_table, "regions": _build_regions_table}[kind]
    table: Table = build_table(entries, text)
    return table


def _build_gpus_table(gpus: Sequence[Gpu], text: AnswerText) -> Table:
    """GPU kinds; a peak of FP16 is marked where there is none of BF16."""
    rows = []
    for gpu in gpus:
        peak = format_amount(gpu.dense_tflops.bf16 or gpu.dense_tflops.fp16) + ("" if gpu.dense_tflops.bf16 else "*")
        link = gpu.link.gb_per_s_both_ways if gpu.link else None
        amounts = (gpu.dense_tflops.fp8, gpu.memory_gib, gpu.memory_gb_per_s, link, gpu.tdp_w, gpu.usd_per_hour)
        rows.append((gpu.name, str(gpu.year or "-"), peak, *map(format_amount, amounts)))
    columns = "name >year >peak_bf16 >peak_fp8 >memory_gib >memory_bw >fast_link >tdp_w >usd_hour"
    title = text.label("gpus_title", count=len(gpus))
    return text.build_titled_table(columns, rows, title, caption=text.label("gpus_caption"))


def _build_models_table(entries: Sequence[ModelEntry], text: AnswerText) -> Table:
    """Models with their sizes."""
    rows = []
    for entry in entries:
        model, counted = entry.model, parameters(entry.model)
        rows.append(
            (
                entry.name,
                format_billions(counted.total),
                format_billions(counted.active) if model.moe else "-",
                format_amount(model.layers),
                format_amount(model.hidden),
                f"{model.heads}" if model.kv_heads == model.heads else f"{model.heads}/{model.kv_heads}",
                format_amount(model.ffn_hidden),
                format_amount(model.vocab),
                f"{model.moe.experts} top {model.moe.top_k}, {model.moe.ffn_hidden} wide" if model.moe else "-",
            )
        )
    columns = "name >parameters >active >layers >hidden >heads >ffn >vocab >experts"
    return text.build_titled_table(columns, rows, text.label("models_title", count=len(entries)))


def _build_regions_table(regions: Sequence[Region], text: AnswerText) -> Table:
    """Regions with place, carbon and price of egress."""
    rows = [
        (
            region.name,
            region.provider,
            region.place_zh if text.language == "zh" and region.place_zh else region.place,
            f"{region.lat:.2f}",
            f"{region.lon:.2f}",
            format_amount(region.carbon_g_per_kwh),
            format_amount(region.egress_usd_per_gb),
        )
        for region in regions
    ]
    columns = "name provider place >lat >lon >carbon >egress"
    return text.build_titled_table(columns, rows, text.label("regions_title", count=len(regions)))


def build_pairs_table(pairs: Sequence[MeasuredPair], text: AnswerText) -> Table:
    """What was measured between regions."""
    rows = [
        (
            " - ".join(pair.between),
            *map(format_amount, (pair.rtt_ms, pair.gbps, pair.flow_gbps, pair.flows)),
            ", ".join(pair.source),
        )
        for pair in pairs
    ]
    columns = "between >rtt_ms >gbps >flow_gbps >flows source"
    return text.build_titled_table(columns, rows, text.label("links_title", count=len(pairs)))


def _build_region_pairs_table(region: str, pairs: Sequence[MeasuredPair], text: AnswerText) -> Table:
    """What was measured from one region."""
    rows = [
        (
            pair.between[1] if pair.between[0] == region else pair.between[0],
            *map(format_amount, (pair.rtt_ms, pair.gbps, pair.flow_gbps)),
            ", ".join(pair.source),
        )
        for pair in pairs
    ]
    columns = "to >rtt_ms >gbps >flow_gbps source"
    return text.build_titled_table(columns, rows, text.label("links_title", count=len(pairs)))


def build_entry_section(kind: Kind, entry: Entry, text: AnswerText) -> Section:
    """Every figure of an entry with its source, and the sources in full."""
    entry_figures = list_figures(kind, entry)
    rows = [("aliases", ", ".join(entry.aliases), "")] if entry.aliases else []
    for figure in entry_figures:
        origin = f" ({figure['origin']})" if "origin" in figure else ""
        rows.append((figure["figure"], _format_cell(figure["value"]) + origin, figure["source"] or ""))
    blocks: list[Block] = [text.build_titled_table("figure value source", rows, entry.name)]
    if kind == "models":
        blocks.append(build_parts_table(describe_entry(kind, entry)["parameters"], text))
    pairs = (
        [pair for pair in catalogue().list_measured_pairs() if entry.name in pair.between] if kind == "regions" else []
    )
    if pairs:
        blocks.append(_build_region_pairs_table(entry.name, pairs, text))
    if getattr(entry, "notes", ""):
        blocks.append(Paragraph(text=getattr(entry, "notes", "")))
    # figures share sources: each is written out once, in the order of the rows
    for source in dict.fromkeys(figure["source"] for figure in entry_figures if figure["source"]):
        about = catalogue().sources.get(source, {})
        details = ", ".join(str(about[key]) for key in ("publisher", "year", "url") if about.get(key))
        blocks.append(Paragraph(text=f"[{source}] {about.get('title', '')} {details}", mark="faint"))
    return Section(blocks=tuple(blocks))


def _format_cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(inner) for inner in value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def build_parts_table(counted: dict[str, Any], text: AnswerText) -> Table:
    """Parameters by part with their share; the parts add up to the total."""

    def format_share(count: int) -> str:
        return f"{100 * count / counted['total']:.2f} %"

    rows = [
        (text.label(f"part_{part}"), f"{count:,}", format_share(count))
        for part, count in counted["parts"].items()
        if count
    ]
    total = [(text.label("total"), f"{counted['total']:,}", "100 %")]
    if counted["active"] != counted["total"]:
        total.append((text.label("active"), f"{counted['active']:,}", format_share(counted["active"])))
    return text.build_titled_table("part >parameters >share", rows, text.label("parts_title"), total=total)


# --- what follows from a scenario


def build_scenario_section(description: dict[str, Any], text: AnswerText) -> Section:
    """A described scenario: model, job, zones, links and strategy."""
    model, cluster = description["model"], description["cluster"]
    blocks: list[Block] = [
        Paragraph(text=description["scenario"].get("name", ""), mark="strong", wraps=True),
        Paragraph(text=_describe_model(model, text)),
        Paragraph(text=_describe_job(description["job"], text)),
        build_parts_table(model["parameters"], text),
        _build_zones_table(cluster, text),
    ]
    if cluster["links"]:
        blocks.append(_build_links_table(cluster, text))
    if description["strategy"]:
        blocks += _list_strategy_lines(description["strategy"], text)
    return Section(blocks=tuple(blocks))


def _describe_model(model: dict[str, Any], text: AnswerText) -> str:
    return text.label(
        "model_line",
        name=model["name"],
        total=format_billions(model["parameters"]["total"]),
        layers=model["layers"],
        hidden=model["hidden"],
        attention=model["attention"].upper(),
        tflop=f"{model['training_flops_per_token'] / 1e12:.4g}",
    )


def _describe_job(job: dict[str, Any], text: AnswerText) -> str:
    line = text.label(
        "job_line",
        seq=format_amount(job["seq_len"]),
        batch=format_amount(job["global_batch"]),
        tokens=format_amount(job["tokens_per_step"]),
        precision=job["precision"],
        optimizer=job["optimizer"],
        state=format_amount(job["state_bytes_per_parameter"]["total"]),
        framework="" if job["state_framework"] == "any" else f", {job['state_framework']}",
    )
    if not job["steps"]:
        return line
    return line + text.label("run_line", tokens=format_amount(job["total_tokens"]), steps=format_amount(job["steps"]))


def _build_zones_table(cluster: dict[str, Any], text: AnswerText) -> Table:
    """A row for each group of nodes; what is the zone's own stands in the first of its rows."""
    rows = []
    for zone in cluster["zones"]:
        for index, group in enumerate(zone["groups"]):
            first = index == 0
            rows.append(
                (
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
            )
    columns = "zone region nodes >gpus >memory_gib fast_link >nic_node >usd_hour >carbon"
    title = text.label("zones_title", gpus=format_amount(cluster["gpus"]), nodes=format_amount(cluster["nodes"]))
    return text.build_titled_table(columns, rows, title, terminal_rows=MOST_ROWS)


def _build_links_table(cluster: dict[str, Any], text: AnswerText) -> Table:
    """A row for each pair of zones, each figure with its origin."""
    rows = []
    for link in cluster["links"]:
        rtt, origins = link["rtt_ms"], link["origins"]
        rates = [format_amount(link["gbps"])]
        rates += [] if link["gbps"] == link["gbps_back"] else [format_amount(link["gbps_back"])]
        rows.append(
            (
                " - ".join(link["between"]),
                " / ".join(rates),
                text.label(f"origin_{origins['gbps']}"),
                format_amount(rtt["expected"]),
                "" if rtt["low"] == rtt["high"] else f"{rtt['low']:.4g} - {rtt['high']:.4g}",
                text.label(f"origin_{origins['rtt_ms']}"),
                format_amount(link["km"] and round(link["km"])),
                format_amount(link["floor_ms"], 3),
                format_amount(link["usd_per_gb"]),
            )
        )
    columns = "between >gbps origin >rtt_ms >band origin >km >floor_ms >usd_gb"
    return text.build_titled_table(columns, rows, text.label("links_heading"), terminal_rows=MOST_ROWS)


def _list_strategy_lines(strategy: dict[str, Any], text: AnswerText) -> list[Block]:
    """Degrees, the frameworks that can run them, and where the ranks lie."""
    settled = strategy["settled"]
    keys = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "interleave", "zero")
    degrees = "  ".join(f"{key} {settled[key]}" for key in keys if settled[key] is not None)
    counts = {"ranks": format_amount(strategy["ranks"]), "m": format_amount(strategy["micro_batches"])}
    lines = [text.label("strategy_line", degrees=degrees, **counts)]
    if strategy["frameworks"]:
        lines.append(text.label("frameworks_line", names=", ".join(strategy["frameworks"])))
    placed = strategy["placement"]["blocks"] if strategy["placement"] else []
    lines += [text.label("block_line", **{"group": 0, "first": 0, **block}) for block in placed[:MOST_ROWS]]
    blocks: list[Block] = [Paragraph(text=line) for line in lines]
    more = text.count_more(len(placed), MOST_ROWS)
    return [*blocks, Paragraph(text=more, wraps=True)] if more else blocks
