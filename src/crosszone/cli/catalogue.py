"""`crosszone catalogue`: GPUs, models, regions and measured links, and the user's own entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import build_table, get_language, label, open_console, print_json
from crosszone.errors import InvalidError, Notice
from crosszone.text.figures import format_amount, format_billions

if TYPE_CHECKING:
    from crosszone.inputs.catalogue.entries import Entry, Kind
    from crosszone.inputs.gpu import Gpu
    from crosszone.inputs.region import Region

app = typer.Typer(
    help="GPUs, models, regions and links CrossZone knows, each figure with its source.", no_args_is_help=True
)

NameArgument = Annotated[str | None, typer.Argument(help="A name or alias; left out: all of them.")]
YamlOption = Annotated[bool, typer.Option("--yaml", help="The entry as a catalogue file: a start for your own.")]
FilterOption = Annotated[str, typer.Option("--filter", help="Only entries whose name holds this.")]


@app.command("gpus")
def show_gpus(
    name: NameArgument = None, as_json: JsonOption = False, as_yaml: YamlOption = False, only: FilterOption = ""
) -> None:
    """List GPU kinds, or show one with all its figures and their sources.

    Example: crosszone catalogue gpus h100-80gb-sxm
    """
    from crosszone.inputs.catalogue import catalogue

    if name is not None:
        _show_entry("gpus", catalogue().gpu(name), as_json, as_yaml)
        return
    kinds: list[Gpu] = [g for g in catalogue().entries("gpus") if only.lower() in g.name]  # type: ignore[misc]
    if as_json or as_yaml:
        _print_all("gpus", kinds, as_json)
        return
    columns = ["name", "year", "peak_bf16", "peak_fp8", "memory_gib", "memory_bw", "fast_link", "tdp_w", "usd_hour"]
    rows = build_table(
        label("gpus_title", count=len(kinds)),
        [(c, "left" if c == "name" else "right") for c in columns],
        caption=label("gpus_caption"),
    )
    for gpu in kinds:
        peak = gpu.dense_tflops.bf16 or gpu.dense_tflops.fp16
        link = gpu.link.gb_per_s_both_ways if gpu.link else None
        rows.add_row(
            gpu.name,
            str(gpu.year or "-"),
            format_amount(peak) + ("" if gpu.dense_tflops.bf16 else "*"),
            format_amount(gpu.dense_tflops.fp8),
            format_amount(gpu.memory_gib),
            format_amount(gpu.memory_gb_per_s),
            format_amount(link),
            format_amount(gpu.tdp_w),
            format_amount(gpu.usd_per_hour),
        )
    open_console().print(rows)


@app.command("models")
def show_models(
    name: NameArgument = None, as_json: JsonOption = False, as_yaml: YamlOption = False, only: FilterOption = ""
) -> None:
    """List models, or show one with its parameters by part.

    Example: crosszone catalogue models mixtral-8x7b
    """
    from crosszone.inputs.catalogue import ModelEntry, catalogue
    from crosszone.inputs.parameters import parameters

    if name is not None:
        _show_entry("models", catalogue().entry("models", name), as_json, as_yaml)
        return
    entries = [m for m in catalogue().entries("models") if isinstance(m, ModelEntry) and only.lower() in m.name]
    if as_json or as_yaml:
        _print_all("models", entries, as_json)
        return
    columns = ["name", "parameters", "active", "layers", "hidden", "heads", "ffn", "vocab", "experts"]
    rows = build_table(
        label("models_title", count=len(entries)), [(c, "left" if c == "name" else "right") for c in columns]
    )
    for entry in entries:
        model, counted = entry.model, parameters(entry.model)
        heads = f"{model.heads}" if model.kv_heads == model.heads else f"{model.heads}/{model.kv_heads}"
        experts = f"{model.moe.experts} top {model.moe.top_k}, {model.moe.ffn_hidden} wide" if model.moe else "-"
        active = format_billions(counted.active) if model.moe else "-"
        rows.add_row(
            entry.name,
            format_billions(counted.total),
            active,
            format_amount(model.layers),
            format_amount(model.hidden),
            heads,
            format_amount(model.ffn_hidden),
            format_amount(model.vocab),
            experts,
        )
    open_console().print(rows)


@app.command("regions")
def show_regions(
    name: NameArgument = None, as_json: JsonOption = False, as_yaml: YamlOption = False, only: FilterOption = ""
) -> None:
    """List regions, or show one with what was measured from it.

    Example: crosszone catalogue regions cn-beijing
    """
    from crosszone.inputs.catalogue import catalogue

    if name is not None:
        _show_entry("regions", catalogue().region(name), as_json, as_yaml)
        return
    places: list[Region] = [r for r in catalogue().entries("regions") if only.lower() in r.name]  # type: ignore[misc]
    if as_json or as_yaml:
        _print_all("regions", places, as_json)
        return
    left_aligned = ("name", "provider", "place")
    columns = [*left_aligned, "lat", "lon", "carbon", "egress"]
    rows = build_table(
        label("regions_title", count=len(places)), [(c, "left" if c in left_aligned else "right") for c in columns]
    )
    for region in places:
        rows.add_row(
            region.name,
            region.provider,
            _choose_place_name(region),
            f"{region.lat:.2f}",
            f"{region.lon:.2f}",
            format_amount(region.carbon_g_per_kwh),
            format_amount(region.egress_usd_per_gb),
        )
    open_console().print(rows)


@app.command("links")
def show_links(as_json: JsonOption = False, only: FilterOption = "") -> None:
    """List what was measured between regions.

    Example: crosszone catalogue links --filter us-east-1
    """
    from crosszone.inputs.catalogue import catalogue

    pairs = [p for p in catalogue().list_measured_pairs() if any(only.lower() in end for end in p.between)]
    if as_json:
        print_json([pair.to_plain() for pair in pairs])
        return
    columns = ["between", "rtt_ms", "gbps", "flow_gbps", "flows", "source"]
    left_aligned = ("between", "source")
    rows = build_table(
        label("links_title", count=len(pairs)), [(c, "left" if c in left_aligned else "right") for c in columns]
    )
    for pair in pairs:
        rows.add_row(
            " - ".join(pair.between),
            format_amount(pair.rtt_ms),
            format_amount(pair.gbps),
            format_amount(pair.flow_gbps),
            format_amount(pair.flows),
            ", ".join(pair.source),
        )
    open_console().print(rows)


@app.command()
def add(
    kind: Annotated[str, typer.Argument(help="gpus, models or regions.")],
    file: Annotated[str, typer.Argument(help="YAML file that maps names to entries; - for standard input.")],
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite your own entry of that name.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep entries of your own, under $CROSSZONE_HOME (default ~/.crosszone).

    Example: crosszone catalogue gpus a100-80gb-sxm --yaml > my.yaml, edit the name and figures, then
    crosszone catalogue add gpus my.yaml
    """
    from crosszone.inputs.catalogue.own import add_entries

    added = add_entries(_find_kind(kind), file, replace=replace)
    if as_json:
        print_json({"added": [entry.name for entry in added]})
        return
    for entry in added:
        open_console().print(label("added", name=entry.name, kind=kind), soft_wrap=True)


@app.command()
def remove(
    kind: Annotated[str, typer.Argument(help="gpus, models or regions.")],
    name: Annotated[str, typer.Argument(help="Name of your own entry.")],
    as_json: JsonOption = False,
) -> None:
    """Forget one of your own entries.

    Example: crosszone catalogue remove gpus my-gpu
    """
    from crosszone.inputs.catalogue.own import remove_entry

    gone = remove_entry(_find_kind(kind), name)
    if as_json:
        print_json({"removed": [gone]})
    else:
        open_console().print(label("removed", name=gone, kind=kind), soft_wrap=True)


def _find_kind(word: str) -> Kind:
    from crosszone.inputs.catalogue import KINDS

    for kind in KINDS:
        if word.lower() in (kind, kind.removesuffix("s")):
            return kind
    raise InvalidError(Notice(code="kind_unknown", value=word, params={"allowed": list(KINDS)}))


def _show_entry(kind: Kind, entry: Entry, as_json: bool, as_yaml: bool) -> None:
    from crosszone.inputs.catalogue.describe import describe_entry
    from crosszone.inputs.catalogue.own import build_start_fields
    from crosszone.inputs.document import dump_yaml

    if as_json:
        print_json(describe_entry(kind, entry))
    elif as_yaml:
        typer.echo(dump_yaml({entry.name: build_start_fields(entry)}), nl=False)
    else:
        _print_entry(kind, entry)


def _print_all(kind: Kind, entries: Sequence[Entry], as_json: bool) -> None:
    """All entries for programs, or as a catalogue file."""
    from crosszone.inputs.catalogue.describe import describe_entry
    from crosszone.inputs.catalogue.own import build_start_fields
    from crosszone.inputs.document import dump_yaml

    if as_json:
        print_json([describe_entry(kind, entry) for entry in entries])
    else:
        typer.echo(dump_yaml({entry.name: build_start_fields(entry) for entry in entries}), nl=False)


def _print_entry(kind: Kind, entry: Entry) -> None:
    """Every figure of an entry with its source, and the sources in full."""
    from crosszone.inputs.catalogue import catalogue
    from crosszone.inputs.catalogue.describe import describe_entry, list_figures

    rows = build_table(entry.name, [("figure", "left"), ("value", "left"), ("source", "left")])
    if entry.aliases:
        rows.add_row("aliases", ", ".join(entry.aliases), "")
    entry_figures = list_figures(kind, entry)
    for figure in entry_figures:
        origin = f" ({figure['origin']})" if "origin" in figure else ""
        rows.add_row(figure["figure"], _format_cell(figure["value"]) + origin, figure["source"] or "")
    terminal = open_console()
    terminal.print(rows)
    if kind == "models":
        terminal.print(build_parts_table(describe_entry(kind, entry)["parameters"]))
    if kind == "regions":
        _print_pairs(entry.name)
    if getattr(entry, "notes", ""):
        terminal.print(getattr(entry, "notes", ""), soft_wrap=True)
    # figures share sources: each is written out once, in the order of the rows
    for source in dict.fromkeys(figure["source"] for figure in entry_figures if figure["source"]):
        about = catalogue().sources.get(source, {})
        details = ", ".join(str(about[key]) for key in ("publisher", "year", "url") if about.get(key))
        terminal.print(f"[{source}] {about.get('title', '')} {details}", style="dim", soft_wrap=True)


def build_parts_table(counted: dict[str, Any]) -> Any:
    """Parameters by part with their share; the parts add up to the total."""
    rows = build_table(label("parts_title"), [("part", "left"), ("parameters", "right"), ("share", "right")])
    for part, count in counted["parts"].items():
        if count:
            rows.add_row(label(f"part_{part}"), f"{count:,}", f"{100 * count / counted['total']:.2f} %")
    rows.add_section()
    rows.add_row(label("total"), f"{counted['total']:,}", "100 %")
    if counted["active"] != counted["total"]:
        rows.add_row(label("active"), f"{counted['active']:,}", f"{100 * counted['active'] / counted['total']:.2f} %")
    return rows


def _print_pairs(region: str) -> None:
    from crosszone.inputs.catalogue import catalogue

    pairs = [p for p in catalogue().list_measured_pairs() if region in p.between]
    if not pairs:
        return
    rows = build_table(
        label("links_title", count=len(pairs)),
        [("to", "left"), ("rtt_ms", "right"), ("gbps", "right"), ("flow_gbps", "right"), ("source", "left")],
    )
    for pair in pairs:
        other = pair.between[1] if pair.between[0] == region else pair.between[0]
        rows.add_row(
            other,
            format_amount(pair.rtt_ms),
            format_amount(pair.gbps),
            format_amount(pair.flow_gbps),
            ", ".join(pair.source),
        )
    open_console().print(rows)


def _format_cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(inner) for inner in value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choose_place_name(region: Region) -> str:
    return region.place_zh if get_language() == "zh" and region.place_zh else region.place
