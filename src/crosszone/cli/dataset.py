"""`crosszone dataset` and `crosszone model`: what tasks train on, in versions, and what they train.

crosszone dataset add wiki --version v1 --path /data/wiki.bin
crosszone dataset check wiki v1 --env gpu-1
crosszone model add my-7b --model llama-2-7b --weights /models/my-7b
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import JsonOption, StoreOption, drop_missing, open_database, open_service
from crosszone.cli.output import get_text, label, print_blocks, print_json, print_line, print_outcome
from crosszone.errors import Notice, UnknownNameError

if TYPE_CHECKING:
    from crosszone.inputs.dataset import Dataset
    from crosszone.store.registered import Entry
    from crosszone.views.document import Block

app = typer.Typer(help="What tasks train on, in versions.", no_args_is_help=True)

DatasetIdArgument = Annotated[str, typer.Argument(metavar="ID", help="The dataset's id.")]


@app.command("list")
def list_datasets(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List datasets and their versions.

    Example: crosszone dataset list
    """
    with open_database(store) as database:
        entries = database.datasets.all()

    from crosszone.views.environments import build_datasets

    _print_entries(entries, "dataset", build_datasets, as_json)


def _print_entries(entries: Sequence[Entry[Any]], noun: str, build: Callable[..., Block], as_json: bool) -> None:
    """Registered things of one kind: a document, a table, or that there are none."""
    if as_json:
        print_json({"entries": [entry.model_dump(mode="json") for entry in entries]})
    elif entries:
        print_blocks(build(entries, label(f"{noun}_title", count=len(entries)), get_text()))
    else:
        print_line(f"{noun}_none")


@app.command()
def add(
    id: DatasetIdArgument,
    version: Annotated[str, typer.Option(help="What a task asks for it by.")],
    path: Annotated[
        str | None,
        typer.Option(help="Token file (.bin), text file or folder, as the machines see it; none: synthetic tokens."),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="tokenizer.json, for text.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call the dataset; default: its id.")] = None,
    about: Annotated[str | None, typer.Option(help="What it holds.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a dataset, or one more version of one that is known.

    Example: crosszone dataset add wiki --version v1 --path /data/wiki.bin
    """
    from crosszone.inputs.dataset import Dataset, DatasetVersion

    dataset_version = DatasetVersion(**drop_missing({"id": version, "path": path, "tokenizer": tokenizer}))
    with open_database(store) as database:
        registered = {entry.id: entry.value for entry in database.datasets.all()}.get(id)
        if registered is None:
            fields = drop_missing({"name": name or id, "about": about})
            entry = database.datasets.add(Dataset(**fields, versions=(dataset_version,)), id=id)
        else:
            changes = drop_missing({"name": name, "about": about})
            entry = database.datasets.change(
                id, registered.replace(versions=(*registered.versions, dataset_version), **changes)
            )
    print_outcome(as_json, entry.model_dump(mode="json"), "dataset_added", id=id, version=version)


@app.command()
def show(id: DatasetIdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show one dataset with its versions, sizes and checksums.

    Example: crosszone dataset show wiki
    """
    with open_database(store) as database:
        entry = database.datasets.get(id)
    if as_json:
        print_json(entry.model_dump(mode="json"))
        return

    from crosszone.views.environments import build_dataset_blocks

    print_blocks(*build_dataset_blocks(entry, get_text()))


@app.command()
def remove(
    id: DatasetIdArgument,
    version: Annotated[str | None, typer.Option(help="Only this version; with the last one goes the dataset.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a dataset or one of its versions; its files stay where they are.

    Example: crosszone dataset remove wiki --version v1
    """
    with open_database(store) as database:
        dataset = database.datasets.get(id).value
        remaining = [item for item in dataset.versions if version is not None and item.id != version]
        if version is not None:
            _require_version(dataset, version)
        if remaining:
            database.datasets.change(id, dataset.replace(versions=tuple(remaining)))
        else:
            database.datasets.remove(id)
    gone = id if version is None else f"{id} {version}"
    print_outcome(as_json, {"removed": [gone]}, "dataset_removed", id=gone)


@app.command()
def check(
    id: DatasetIdArgument,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Its version.")],
    env: Annotated[str, typer.Option("--env", metavar="ID", help="Environment whose machine looks at it.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at a version's files on a machine, and keep their size and checksum.

    Example: crosszone dataset check wiki v1 --env gpu-1
    """
    with open_service(store) as service:
        _require_version(service.store.datasets.get(id).value, version)
        entry = service.check_dataset(id, version, env)
    if as_json:
        print_json(entry.model_dump(mode="json"))
    else:
        from crosszone.views.environments import build_datasets

        print_blocks(build_datasets([entry], f"{entry.value.name} ({id})", get_text()))


def _require_version(dataset: Dataset, version: str) -> None:
    if dataset.find_version(version) is None:
        params = {"known": [dataset_version.id for dataset_version in dataset.versions]}
        raise UnknownNameError(Notice(code="task_unknown", field="VERSION", value=version, params=params))


# --- models that tasks train

model_app = typer.Typer(
    help="What tasks train; a task may name one of `catalogue models` as well.", no_args_is_help=True
)

ModelIdArgument = Annotated[str, typer.Argument(metavar="ID", help="The model's id.")]


@model_app.command("list")
def list_models(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the models that were registered; `crosszone catalogue models` lists those that need not be.

    Example: crosszone model list
    """
    with open_database(store) as database:
        entries = database.training_models.all()

    from crosszone.views.environments import build_models

    _print_entries(entries, "model", build_models, as_json)


@model_app.command("add")
def add_model(
    id: ModelIdArgument,
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

    fields = drop_missing({"name": name or id, "model": _read_model(model), "weights": weights})
    with open_database(store) as database:
        entry = database.training_models.add(TrainingModel(**fields), id=id)
    print_outcome(as_json, entry.model_dump(mode="json"), "model_added", id=id)


@model_app.command("show")
def show_model(id: ModelIdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show one model.

    Example: crosszone model show my-7b
    """
    with open_database(store) as database:
        entry = database.training_models.get(id)
    if as_json:
        print_json(entry.model_dump(mode="json"))
        return

    from crosszone.views.environments import build_models

    print_blocks(build_models([entry], f"{entry.value.name} ({id})", get_text()))
    if isinstance(entry.value.model, dict):
        from crosszone.inputs.document import dump_yaml

        typer.echo(dump_yaml({"model": entry.value.model}), nl=False)


@model_app.command("remove")
def remove_model(id: ModelIdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Forget a model; its weights stay where they are.

    Example: crosszone model remove my-7b
    """
    with open_database(store) as database:
        database.training_models.remove(id)
    print_outcome(as_json, {"removed": [id]}, "model_removed", id=id)


def _read_model(model: str) -> str | dict[str, Any]:
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
    # a scenario's model section and a bare mapping of fields are both called a model file
    at = ("model",) if isinstance(document.value, dict) and "model" in document.value else ()
    fields = document.value["model"] if at else document.value
    parse(Model, catalogue().resolve("models", fields), document, at=at)
    return fields if isinstance(fields, str) else dict(fields)
