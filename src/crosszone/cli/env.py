"""`crosszone env`: machines that can train: registered, asked what they are, measured, and made a cluster of.

crosszone env add here --zone beijing-a --runner local --python /opt/torch/bin/python
crosszone env probe --all
crosszone env list --zone beijing-a --sort gpus
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import (
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
    Line,
    build_table,
    get_language,
    join_words,
    label,
    open_console,
    open_progress_bar,
    print_json,
    print_lines,
    print_notices,
    write_file,
)
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.text.figures import format_amount, format_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crosszone.inputs.environment import Environment, MeasuredLink, Selection
    from crosszone.store.registered import Entry

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
    together = build_selection(entry.value for entry in entries)
    if as_json:
        print_json(
            {"entries": [_dump_entry(entry) for entry in entries], "selection": together.model_dump(mode="json")}
        )
    else:
        print_environments(entries, together, len(registered))


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
    _print_outcome("env_added", entry, as_json)


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
    _print_outcome("env_changed", entry, as_json)


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
        print_json({**_dump_entry(entry), "links": [measured.model_dump(mode="json") for measured in links]})
    elif as_yaml:
        # facts are what a probe saw: a file that is imported elsewhere must not claim them
        fields = {key: value for key, value in entry.value.to_plain().items() if key != "facts"}
        typer.echo(dump_yaml({"environments": [{"id": entry.id, **fields}]}), nl=False)
    else:
        print_environment(entry, links)


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
            open_console().print(label("env_removed", id=id), soft_wrap=True)


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
            open_console().print(label(key, id=id), soft_wrap=True)
    if not environments:
        open_console().print(label("env_import_none"), soft_wrap=True)


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
    probed: list[Entry[Environment]] = []
    failures: list[Notice] = []
    with open_service(store) as service, open_progress_bar() as advance:
        chosen = _choose_ids(service.store.environments.all(), ids, all)
        for done, id in enumerate(chosen):
            if advance:
                advance("probing", done, len(chosen))
            try:
                probed.append(service.probe(id))
            except MachineError as error:
                # one machine out of reach must not hide what the others said
                failures += error.notices
    if as_json:
        print_json({"entries": [_dump_entry(entry) for entry in probed], "errors": _localize(failures)})
    else:
        print_probed(probed)
        print_notices(_localize(failures), stderr=True)
    if failures:
        raise typer.Exit(1)


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
    measured: list[MeasuredLink] = []
    failures: list[Notice] = []
    with open_service(store) as service, open_progress_bar() as advance:
        chosen = {entry.id: entry.value for entry in service.store.environments.all()}
        pairs = list_pairs(
            {id: chosen[id] for id in _choose_ids(service.store.environments.all(), ids, all)}, across=all
        )
        for done, (first, second) in enumerate(pairs):
            if advance:
                advance("measuring", done, len(pairs))
            try:
                measured.append(service.measure(first, second).value)
            except MachineError as error:
                failures += error.notices
    if as_json:
        print_json({"links": [link.model_dump(mode="json") for link in measured], "errors": _localize(failures)})
    else:
        print_links(measured)
        print_notices(_localize(failures), stderr=True)
    if failures:
        raise typer.Exit(1)


@app.command("links")
def list_links(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the links that were measured between environments.

    Example: crosszone env links
    """
    with open_database(store) as database:
        measured = [link.value for link in database.measured_links.all()]
    if as_json:
        print_json({"links": [link.model_dump(mode="json") for link in measured]})
    else:
        print_links(measured)


@app.command("cluster")
def print_cluster(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Environments, the master first.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="File to write; default: standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
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
        open_console().print(label("written", output=output), soft_wrap=True)
    else:
        typer.echo(text, nl=False)


def _choose_ids(entries: Sequence[Entry[Environment]], ids: list[str] | None, every: bool) -> list[str]:
    """The ids that are meant; `--all` leaves those out that only a scheduler reaches."""
    environments = {entry.id: entry.value for entry in entries}
    if every:
        # a scheduler grants nodes for a job, so there is no machine to ask before one runs
        return [id for id, environment in environments.items() if environment.runner in ("local", "ssh")]
    if not ids:
        raise InvalidError(Notice(code="env_none_named", params={"known": list(environments)[:20]}))
    for id in ids:
        if id not in environments:
            raise InvalidError(
                Notice(code="task_unknown", field="ID", value=id, params={"known": list(environments)[:20]})
            )
    return list(dict.fromkeys(ids))


def _dump_entry(entry: Entry[Environment]) -> dict[str, Any]:
    return entry.model_dump(mode="json")


def _localize(notices: Sequence[Notice]) -> list[dict[str, Any]]:
    return [notice.as_dict(get_language()) for notice in notices]


def _print_outcome(key: str, entry: Entry[Environment], as_json: bool) -> None:
    if as_json:
        print_json(_dump_entry(entry))
    else:
        open_console().print(label(key, id=entry.id), soft_wrap=True)


# --- tables

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
