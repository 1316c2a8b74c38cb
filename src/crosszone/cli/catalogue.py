"""`crosszone catalogue`: GPUs, models, regions and measured links, and the user's own entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption
from crosszone.cli.output import get_text, print_blocks, print_json, print_line, print_outcome, print_sections
from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.inputs.catalogue.entries import Kind

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
    _show("gpus", name, as_json, as_yaml, only)


@app.command("models")
def show_models(
    name: NameArgument = None, as_json: JsonOption = False, as_yaml: YamlOption = False, only: FilterOption = ""
) -> None:
    """List models, or show one with its parameters by part.

    Example: crosszone catalogue models mixtral-8x7b
    """
    _show("models", name, as_json, as_yaml, only)


@app.command("regions")
def show_regions(
    name: NameArgument = None, as_json: JsonOption = False, as_yaml: YamlOption = False, only: FilterOption = ""
) -> None:
    """List regions, or show one with what was measured from it.

    Example: crosszone catalogue regions cn-beijing
    """
    _show("regions", name, as_json, as_yaml, only)


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

    from crosszone.views.catalogue import build_pairs_table

    print_blocks(build_pairs_table(pairs, get_text()))


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
        print_line("added", name=entry.name, kind=kind)


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
    print_outcome(as_json, {"removed": [gone]}, "removed", name=gone, kind=kind)


def _find_kind(word: str) -> Kind:
    from crosszone.inputs.catalogue import KINDS

    for kind in KINDS:
        if word.lower() in (kind, kind.removesuffix("s")):
            return kind
    raise InvalidError(Notice(code="kind_unknown", value=word, params={"allowed": list(KINDS)}))


def _show(kind: Kind, name: str | None, as_json: bool, as_yaml: bool, only: str) -> None:
    """One entry with its figures, or a table of those whose name holds `only`; for programs, or as a catalogue file."""
    from crosszone.inputs.catalogue import catalogue
    from crosszone.inputs.catalogue.describe import describe_entry
    from crosszone.inputs.catalogue.own import build_start_fields
    from crosszone.inputs.document import dump_yaml

    if name is None:
        entries = [entry for entry in catalogue().entries(kind) if only.lower() in entry.name]
    else:
        entries = [catalogue().entry(kind, name)]
    if as_json:
        described = [describe_entry(kind, entry) for entry in entries]
        print_json(described if name is None else described[0])
    elif as_yaml:
        typer.echo(dump_yaml({entry.name: build_start_fields(entry) for entry in entries}), nl=False)
    else:
        from crosszone.views.catalogue import build_entries_table, build_entry_section

        if name is None:
            print_blocks(build_entries_table(kind, entries, get_text()))
        else:
            print_sections([build_entry_section(kind, entries[0], get_text())])
