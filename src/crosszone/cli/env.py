"""`crosszone env`: machines that can train: registered, asked what they are, measured, and made a cluster of.

crosszone env add here --zone beijing-a --runner local --python /opt/torch/bin/python
crosszone env probe --all
crosszone env list --zone beijing-a --sort gpus
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import (
    ForceFileOption,
    JsonOption,
    SetOption,
    StoreOption,
    drop_missing,
    open_database,
    open_service,
    parse_assignments,
    require_choice,
)
from crosszone.cli.output import (
    get_text,
    localize,
    open_console,
    open_progress_bar,
    print_blocks,
    print_json,
    print_line,
    print_notices,
    print_outcome,
    print_sections,
    write_file,
)
from crosszone.errors import InvalidError, MachineError, Notice

if TYPE_CHECKING:
    from crosszone.inputs.environment import Environment
    from crosszone.inputs.value import Value
    from crosszone.store.registered import Entry
    from crosszone.views.document import Block

app = typer.Typer(help="Machines that can train: register, probe, measure, list them.", no_args_is_help=True)

FORMATS = ("yaml", "ssh_config", "slurm", "kubernetes")
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The environment's id.")]


@app.command("list")
def list_environments(
    zone: Annotated[str | None, typer.Option(help="Only of this zone.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Only with this GPU kind; cpu: those without.")] = None,
    status: Annotated[str | None, typer.Option(help="Only running, stopped, unreachable or unknown ones.")] = None,
    type: Annotated[str | None, typer.Option(help="Only of this type: jupyter, custom, slurm, ...")] = None,
    sort: Annotated[str | None, typer.Option(help="name, gpus or uptime; default: as registered.")] = None,
    descending: Annotated[bool, typer.Option("--desc", help="Largest or last first.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List environments, filtered and sorted, and what the listed ones have together.

    Example: crosszone env list --gpu a100-80gb-sxm --sort gpus --desc
    """
    from typing import cast, get_args

    from crosszone.inputs.environment import build_selection
    from crosszone.run.environments import Sort, filter_environments

    require_choice("--sort", sort, get_args(Sort))
    with open_database(store) as database:
        registered = database.environments.all()
    options = {"zone": zone, "gpu": gpu, "status": status, "type": type}
    filters = {field: [word] for field, word in options.items() if word is not None}
    entries = filter_environments(registered, filters, sort=cast("Sort | None", sort), descending=descending)
    selected = build_selection(entry.value for entry in entries)
    if as_json:
        print_json({"entries": _encode_all(entries), "selection": selected.model_dump(mode="json")})
        return

    from crosszone.views.environments import build_environments_section

    width = open_console().width
    print_sections([build_environments_section(entries, selected, len(registered), get_text(), width)])


@app.command()
def add(
    id: IdArgument,
    zone: Annotated[str, typer.Option(help="Availability zone: environments of one zone are near each other.")],
    name: Annotated[str | None, typer.Option(help="What to call it; default: its id.")] = None,
    runner: Annotated[str | None, typer.Option(help="ssh (default), local, slurm, kubernetes or ray.")] = None,
    address: Annotated[str | None, typer.Option(help="Address by which the others reach it.")] = None,
    type: Annotated[str | None, typer.Option(help="jupyter, custom, or your platform's word.")] = None,
    region: Annotated[str | None, typer.Option(help="Region of the zone, by its name in the catalogue.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU kind; `probe` finds it out.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs; none: it computes on the CPU.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="CPU cores.")] = None,
    memory_gb: Annotated[float | None, typer.Option(help="Memory of the machine, GB.")] = None,
    python: Annotated[str | None, typer.Option(help="Python there that has the framework.")] = None,
    workdir: Annotated[str | None, typer.Option(help="Folder there for the folders of tasks.")] = None,
    ssh_user: Annotated[str | None, typer.Option(help="User for ssh; default: ssh's own choice.")] = None,
    ssh_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of sshd.")] = None,
    ssh_key: Annotated[str | None, typer.Option(help="File of the private key on this machine.")] = None,
    settings: SetOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register an environment by hand.

    Example: crosszone env add gpu-1 --zone beijing-a --address 10.0.1.7 --ssh-user ml --gpu a100-80gb-sxm --gpus 8
    """
    from crosszone.inputs.environment import Environment
    from crosszone.inputs.value import parse

    fields = drop_missing(
        {
            "zone": zone, "runner": runner, "address": address, "type": type, "region": region, "gpu": gpu,
            "gpus": gpus, "cpus": cpus, "memory_gb": memory_gb, "python": python, "workdir": workdir,
            "ssh_user": ssh_user, "ssh_port": ssh_port, "ssh_key": ssh_key,
        }
    )  # fmt: skip
    value = parse(Environment, {"name": name or id, **fields, **parse_assignments(settings)})
    with open_database(store) as database:
        entry = database.environments.add(value, id=id)
    print_outcome(as_json, entry.model_dump(mode="json"), "env_added", id=id)


@app.command("change")
def update(
    id: IdArgument,
    fields: Annotated[list[str], typer.Argument(metavar="FIELD=VALUE...", help="zone=beijing-b gpus=8 python=null")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change some fields of an environment; the others stay. `crosszone env show ID` lists them.

    Example: crosszone env change gpu-1 python=/opt/train/bin/python nic_gbps=200
    """
    from crosszone.inputs.environment import Environment
    from crosszone.inputs.value import parse

    with open_database(store) as database:
        plain = {**database.environments.get(id).value.to_plain(), **parse_assignments(fields, "FIELD=VALUE")}
        entry = database.environments.change(id, parse(Environment, plain))
    print_outcome(as_json, entry.model_dump(mode="json"), "env_changed", id=id)


@app.command()
def show(
    id: IdArgument,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="As a file that `env import` reads.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one environment: its fields, what the last probe found, and its measured links.

    Example: crosszone env show gpu-1 --yaml > gpu-1.yaml
    """
    from crosszone.inputs.document import dump_yaml

    with open_database(store) as database:
        entry = database.environments.get(id)
        links = [
            measured.value
            for measured in database.measured_links.all()
            if id in (measured.value.first, measured.value.second)
        ]
    if as_json:
        print_json({**entry.model_dump(mode="json"), "links": _encode_all(links)})
    elif as_yaml:
        # facts are what a probe saw: a file that is imported elsewhere must not claim them
        fields = {key: value for key, value in entry.value.to_plain().items() if key != "facts"}
        typer.echo(dump_yaml({"environments": [{"id": entry.id, **fields}]}), nl=False)
    else:
        from crosszone.views.environments import build_environment_section

        print_sections([build_environment_section(entry, links, get_text())])


@app.command()
def remove(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Environments to forget.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget environments and their measured links; nothing happens on their machines.

    Example: crosszone env remove gpu-1
    """
    from crosszone.run.environments import remove_environments

    with open_database(store) as database:
        remove_environments(database, list(dict.fromkeys(ids)))
    if as_json:
        print_json({"removed": ids})
    else:
        for id in ids:
            print_line("env_removed", id=id)


@app.command("import")
def import_(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="What to read (-: standard input); without: Slurm or Kubernetes is asked."),
    ] = None,
    format: Annotated[str, typer.Option(help=f"{', '.join(FORMATS)}.")] = "yaml",
    zone: Annotated[str | None, typer.Option(help="Zone of the hosts of an ssh config.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register environments from a YAML list, an ssh config, a Slurm cluster (sinfo) or a Kubernetes one (kubectl).

    An id that is known already gets the fields that are read; its others stay.

    Example: crosszone env import ~/.ssh/config --format ssh_config --zone beijing-a
    """
    from crosszone.run.imports import register_environments

    require_choice("--format", format, FORMATS)
    environments = read_import(file, format, zone)
    with open_database(store) as database:
        added, changed = register_environments(database.environments, environments)
    if as_json:
        print_json({"added": added, "changed": changed})
        return
    for key, ids in (("env_added", added), ("env_changed", changed)):
        for id in ids:
            print_line(key, id=id)
    if not environments:
        print_line("env_import_none")


@app.command()
def probe(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Environments to ask.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Every one that can be asked: here and over ssh.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask machines what they have (GPUs, cores, memory, versions) and keep it; one out of reach is marked so.

    Example: crosszone env probe gpu-1 gpu-2
    """
    with open_service(store) as service:
        chosen = _choose_ids(service.store.environments.all(), ids, all)
        probed, failures = _ask_each("probing", [(id,) for id in chosen], service.probe)

    from crosszone.views.environments import build_probed_section

    blocks = build_probed_section(probed, get_text()).blocks
    _print_answers("entries", probed, blocks, failures, as_json)


@app.command()
def measure(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Every pair of these is measured.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Every pair of those in different zones.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the link between environments: round-trip time and rate both ways, some seconds a pair.

    Example: crosszone env measure gpu-1 gpu-2
    """
    with open_service(store) as service:
        environments = {entry.id: entry.value for entry in service.store.environments.all()}
        chosen = _choose_ids(service.store.environments.all(), ids, all)
        pairs = list_pairs({id: environments[id] for id in chosen}, across=all)
        measured, failures = _ask_each("measuring", pairs, service.measure)

    from crosszone.views.environments import build_measured_links

    links = [entry.value for entry in measured]
    _print_answers("links", links, [build_measured_links(links, get_text())], failures, as_json)


@app.command("links")
def list_links(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the links that were measured between environments.

    Example: crosszone env links
    """
    with open_database(store) as database:
        measured = [link.value for link in database.measured_links.all()]
    if as_json:
        print_json({"links": _encode_all(measured)})
    else:
        from crosszone.views.environments import build_measured_links

        print_blocks(build_measured_links(measured, get_text()))


@app.command("cluster")
def print_cluster(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Environments, the master first.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="File to write; default: standard output.")
    ] = None,
    force: ForceFileOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print environments with their measured links as the cluster of a scenario, for `plan`, `predict` and `sweep`.

    Example: crosszone env cluster gpu-1 gpu-2 -o cluster.yaml, then `cluster: {file: cluster.yaml}` in a scenario
    """
    from crosszone.inputs.document import dump_yaml

    with open_service(store) as service:
        for id in ids:
            service.store.environments.get(id)
        fields = service.build_cluster(ids)
    text = dump_yaml({"cluster": fields})
    if output is not None:
        write_file(Path(output), text, force)
    if as_json:
        print_json({"cluster": fields})
    elif output is not None:
        print_line("written", output=output)
    else:
        typer.echo(text, nl=False)


def _choose_ids(entries: Sequence[Entry[Environment]], ids: list[str] | None, every: bool) -> list[str]:
    """The ids that are meant; `--all` leaves those out that only a scheduler reaches."""
    environments = {entry.id: entry.value for entry in entries}
    if every:
        # a scheduler grants nodes for a job, so there is no machine to ask before one runs
        return [id for id, environment in environments.items() if environment.runner in ("local", "ssh")]
    known = {"known": list(environments)[:20]}
    if not ids:
        raise InvalidError(Notice(code="env_none_named", params=known))
    for id in ids:
        if id not in environments:
            raise InvalidError(Notice(code="task_unknown", field="ID", value=id, params=known))
    return list(dict.fromkeys(ids))


def _encode_all(values: Iterable[Value]) -> list[dict[str, Any]]:
    return [value.model_dump(mode="json") for value in values]


def _ask_each(
    what: str, questions: Sequence[tuple[str, ...]], ask: Callable[..., Any]
) -> tuple[list[Any], list[Notice]]:
    """What machines answer to one question after the other, and why some did not."""
    answers: list[Any] = []
    failures: list[Notice] = []
    with open_progress_bar() as advance:
        for done, question in enumerate(questions):
            if advance:
                advance(what, done, len(questions))
            try:
                answers.append(ask(*question))
            except MachineError as error:
                # one machine out of reach must not hide what the others said
                failures += error.notices
    return answers, failures


def _print_answers(
    key: str, answers: Sequence[Value], blocks: Sequence[Block], failures: Sequence[Notice], as_json: bool
) -> None:
    """What machines answered and why some did not, which is exit status 1."""
    if as_json:
        print_json({key: _encode_all(answers), "errors": localize(failures)})
    else:
        print_blocks(*blocks)
        print_notices(localize(failures), stderr=True)
    if failures:
        raise typer.Exit(1)


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
