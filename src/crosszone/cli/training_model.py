"""`crosszone model`: what tasks train: a model of the catalogue or of a file, and weights to begin with.

crosszone model add my-7b --model llama-2-7b --weights /models/my-7b
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import JsonOption, StoreOption, drop_missing, open_database
from crosszone.cli.output import build_table, label, open_console, print_json
from crosszone.text.figures import format_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crosszone.inputs.dataset import TrainingModel
    from crosszone.store.registered import Entry

app = typer.Typer(help="What tasks train; a task may name one of `catalogue models` as well.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The model's id.")]


@app.command("list")
def list_models(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the models that were registered; `crosszone catalogue models` lists those that need not be.

    Example: crosszone model list
    """
    with open_database(store) as database:
        entries = database.training_models.all()
    if as_json:
        print_json({"entries": [entry.model_dump(mode="json") for entry in entries]})
    elif entries:
        _print(label("model_title", count=len(entries)), entries)
    else:
        open_console().print(label("model_none"), soft_wrap=True)


@app.command()
def add(
    id: IdArgument,
    model: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A name in the catalogue, or a YAML file with the model's fields.")
    ],
    weights: Annotated[
        str | None, typer.Option(metavar="DIR", help="Weights to begin with, as the machines see them; none: scratch.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call it; default: its id.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a model that tasks train.

    Example: crosszone model add my-7b --model llama-2-7b --weights /models/my-7b
    """
    from crosszone.inputs.dataset import TrainingModel

    fields = drop_missing({"name": name or id, "model": _read(model), "weights": weights})
    with open_database(store) as database:
        entry = database.training_models.add(TrainingModel(**fields), id=id)
    if as_json:
        print_json(entry.model_dump(mode="json"))
    else:
        open_console().print(label("model_added", id=id), soft_wrap=True)


@app.command()
def show(id: IdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show one model.

    Example: crosszone model show my-7b
    """
    with open_database(store) as database:
        entry = database.training_models.get(id)
    if as_json:
        print_json(entry.model_dump(mode="json"))
        return
    _print(f"{entry.value.name} ({id})", [entry])
    if isinstance(entry.value.model, dict):
        from crosszone.inputs.document import dump_yaml

        typer.echo(dump_yaml({"model": entry.value.model}), nl=False)


@app.command()
def remove(id: IdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Forget a model; its weights stay where they are.

    Example: crosszone model remove my-7b
    """
    with open_database(store) as database:
        database.training_models.remove(id)
    if as_json:
        print_json({"removed": [id]})
    else:
        open_console().print(label("model_removed", id=id), soft_wrap=True)


def _read(model: str) -> str | dict[str, Any]:
    """A name that the catalogue knows, or what a file holds: a model's fields, or a Hugging Face config."""
    from crosszone.inputs.catalogue import catalogue
    from crosszone.inputs.document import read_document
    from crosszone.inputs.hf_config import read_hf_config
    from crosszone.inputs.model import Model
    from crosszone.inputs.value import parse

    if not model.endswith((".yaml", ".yml", ".json")):
        catalogue().model(model)
        return model
    document = read_document(model)
    if isinstance(document.value, dict) and "model_type" in document.value:
        return read_hf_config(model).to_plain()
    at = ("model",) if isinstance(document.value, dict) and "model" in document.value else ()
    fields = document.value["model"] if at else document.value
    parse(Model, catalogue().resolve("models", fields), document, at=at)
    return fields if isinstance(fields, str) else dict(fields)


def _print(title: str, entries: Sequence[Entry[TrainingModel]]) -> None:
    columns = [("env_id", "left"), ("report_model_name", "left"), ("model_weights", "left"), ("dataset_bytes", "right")]
    rows = build_table(title, columns)
    for entry in entries:
        model = entry.value
        model_name = model.model if isinstance(model.model, str) else label("model_own")
        rows.add_row(entry.id, model_name, model.weights or label("model_scratch"), format_amount(model.bytes))
    open_console().print(rows)
