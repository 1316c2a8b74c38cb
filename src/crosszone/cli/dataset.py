"""`crosszone dataset`: what tasks train on, in versions.

crosszone dataset add wiki --version v1 --path /data/wiki.bin
crosszone dataset check wiki v1 --env gpu-1
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crosszone.cli.options import JsonOption, StoreOption, drop_missing, open_database, open_service
from crosszone.cli.output import build_table, label, open_console, print_json
from crosszone.errors import Notice, UnknownNameError
from crosszone.text.figures import format_amount

if TYPE_CHECKING:
    from crosszone.inputs.dataset import Dataset
    from crosszone.store.registered import Entry

app = typer.Typer(help="What tasks train on, in versions.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The dataset's id.")]


@app.command("list")
def list_datasets(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List datasets and their versions.

    Example: crosszone dataset list
    """
    with open_database(store) as database:
        entries = database.datasets.all()
    if as_json:
        print_json({"entries": [entry.model_dump(mode="json") for entry in entries]})
    elif entries:
        _print(label("dataset_title", count=len(entries)), entries)
    else:
        open_console().print(label("dataset_none"), soft_wrap=True)


@app.command()
def add(
    id: IdArgument,
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
    if as_json:
        print_json(entry.model_dump(mode="json"))
    else:
        open_console().print(label("dataset_added", id=id, version=version), soft_wrap=True)


@app.command()
def show(id: IdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show one dataset with its versions, sizes and checksums.

    Example: crosszone dataset show wiki
    """
    with open_database(store) as database:
        entry = database.datasets.get(id)
    if as_json:
        print_json(entry.model_dump(mode="json"))
        return
    _print(f"{entry.value.name} ({id})", [entry])
    if entry.value.about:
        open_console().print(entry.value.about, soft_wrap=True)
    for dataset_version in entry.value.versions:
        if dataset_version.sha256:
            open_console().print(f"{dataset_version.id}  sha256 {dataset_version.sha256}", style="dim", soft_wrap=True)


@app.command()
def remove(
    id: IdArgument,
    version: Annotated[str | None, typer.Option(help="Only this version; with the last one goes the dataset.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a dataset or one of its versions; its files stay where they are.

    Example: crosszone dataset remove wiki --version v1
    """
    with open_database(store) as database:
        dataset = database.datasets.get(id).value
        remaining = [
            dataset_version
            for dataset_version in dataset.versions
            if version is not None and dataset_version.id != version
        ]
        if version is not None:
            _require_version(dataset, version)
        if remaining:
            database.datasets.change(id, dataset.replace(versions=tuple(remaining)))
        else:
            database.datasets.remove(id)
    gone = id if version is None else f"{id} {version}"
    if as_json:
        print_json({"removed": [gone]})
    else:
        open_console().print(label("dataset_removed", id=gone), soft_wrap=True)


@app.command()
def check(
    id: IdArgument,
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
        _print(f"{entry.value.name} ({id})", [entry])


def _require_version(dataset: Dataset, version: str) -> None:
    if dataset.version(version) is None:
        params = {"known": [dataset_version.id for dataset_version in dataset.versions]}
        raise UnknownNameError(Notice(code="task_unknown", field="VERSION", value=version, params=params))


def _print(title: str, entries: list[Entry[Dataset]] | tuple[Entry[Dataset], ...]) -> None:
    columns = [("env_id", "left"), ("dataset_version", "left"), ("dataset_path", "left"), ("dataset_bytes", "right")]
    rows = build_table(title, [*columns, ("dataset_checksum", "left")])
    for entry in entries:
        for dataset_version in entry.value.versions:
            path = dataset_version.path or label("dataset_synthetic")
            checksum = "-" if dataset_version.sha256 is None else dataset_version.sha256[:12]
            rows.add_row(entry.id, dataset_version.id, path, format_amount(dataset_version.bytes), checksum)
    open_console().print(rows)
