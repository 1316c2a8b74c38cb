"""Environments: machines that can train; listed, registered, imported, probed, measured, and chosen for a task."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from pydantic_core import from_json

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import dump_yaml, parse_document
from crosszone.inputs.environment import Environment, MeasuredLink, Status
from crosszone.inputs.value import Name, Value
from crosszone.run import imports
from crosszone.run.environments import Sort, filter_environments, remove_environments
from crosszone.run.request import MAX_NODES, TaskRequest
from crosszone.run.work import TaskPreview
from crosszone.store.registered import Entry
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import ApiRoute, document_example
from crosszone.web.language import Language
from crosszone.web.refusals import map_store_errors, refuse
from crosszone.web.saved import Entries, Id, NewId, add_registry_routes
from crosszone.web.scenarios import TEXT
from crosszone.web.state import State

router = APIRouter(prefix="/environments", tags=["environments"], route_class=ApiRoute)

Order = Literal["asc", "desc"]
FilterText = Annotated[str, Query(max_length=100)]
ImportFormat = Literal["yaml", "ssh_config", "slurm", "kubernetes"]
MOST_TEXT = 1_000_000
MOST_HOSTS = 500  # Hosts of an ssh config: ssh is asked about each of them
# Lines of an ssh config that read other files or run commands.
_UNSAFE_LINE = re.compile(r"""[\s"']*(include|match)\b""", re.IGNORECASE)
_IMPORT_EXAMPLE = """\
environments:
- {id: env-003, name: llm-training, zone: shenzhen-c, region: cn-shenzhen, address: 192.168.2.20, gpu: a100, gpus: 4}
- {id: env-005, name: nlp-research, zone: shanghai-a, region: cn-shanghai, address: 192.168.3.30, gpu: a100, gpus: 8}
"""
EXAMPLE: dict[str, Any] = {
    "id": "env-001",
    "name": "pytorch-dev-env",
    "type": "jupyter",
    "status": "running",
    "zone": "beijing-a",
    "region": "cn-beijing",
    "address": "192.168.1.10",
    "gpu": "a100-80gb-sxm",
    "gpus": 2,
    "cpus": 16,
    "memory_gb": 128,
}


class NewEnvironment(Environment):
    """An environment to register."""

    id: NewId | None = None
    """What to ask for it by; null: an id is made."""


class EnvironmentList(Value):
    """Environments that were asked for, and what all of them can be filtered by."""

    entries: tuple[Entry[Environment], ...]
    """Those that match, sorted."""
    zones: tuple[str, ...]
    """Zones of all environments."""
    gpus: tuple[str, ...]
    """GPU kinds of all environments."""
    types: tuple[str, ...]
    """Types of all environments."""
    statuses: tuple[str, ...]
    """Statuses of all environments."""


class ImportEnvironmentsBody(Value):
    """Environments from elsewhere."""

    format: ImportFormat
    """What lists them: a YAML list, an ssh config, sinfo of Slurm, or kubectl."""
    text: Annotated[str, Field(max_length=MOST_TEXT)] | None = None
    """What it says; null (Slurm and Kubernetes): the server asks the cluster itself."""
    zone: Name | None = None
    """Zone of the hosts of an ssh config."""


class ImportedEnvironmentsBody(Value):
    """What became of an import."""

    added: tuple[str, ...]
    """Ids of new environments."""
    changed: tuple[str, ...]
    """Ids of environments that were known and got the fields that were read."""
    notices: tuple[dict[str, Any], ...]
    """What to know about it."""


class MeasureLinkBody(Value):
    """Two environments."""

    first: Name
    """Environment that sends first, by id."""
    second: Name
    """Environment that receives first, by id."""


class ClusterBody(Value):
    """Environments that make up a cluster."""

    nodeIds: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_NODES)]
    """Their ids, the master first."""


class ClusterTextBody(Value):
    """A cluster, as a scenario has it."""

    cluster: dict[str, Any]
    """Zones with their nodes, and the links that were measured."""
    text: str
    """The same as YAML."""


@router.get("", response_model=EnvironmentList, responses=document_errors(503))
def list_environments(
    state: State,
    zone: Annotated[list[FilterText] | None, Query(max_length=100, description="Only of these zones.")] = None,
    gpu: Annotated[list[FilterText] | None, Query(max_length=100, description="Only with these GPU kinds.")] = None,
    status: Annotated[list[Status] | None, Query(max_length=10, description="Only with these statuses.")] = None,
    type: Annotated[list[FilterText] | None, Query(max_length=100, description="Only of these types.")] = None,
    sort: Annotated[Sort | None, Query(description="Sort by; none: as they were registered.")] = None,
    order: Annotated[Order, Query(description="Ascending or descending; what is not known comes last.")] = "asc",
) -> Json:
    """List environments, filtered and sorted."""
    entries = state.store.environments.all()
    filters: dict[str, Collection[str]] = {
        "zone": zone or [],
        "gpu": gpu or [],
        "status": status or [],
        "type": type or [],
    }
    # What can be filtered by is listed of all of them, so that a filter can be taken back.
    answer = EnvironmentList(
        entries=tuple(filter_environments(entries, filters, sort=sort, descending=order == "desc")),
        zones=_list_distinct(entry.value.zone for entry in entries),
        gpus=_list_distinct(entry.value.gpu for entry in entries),
        types=_list_distinct(entry.value.type for entry in entries),
        statuses=_list_distinct(entry.value.status for entry in entries),
    )
    return Json(answer)


# Before the routes of the registry: `/environments/{id}` would take "links" for an id.
@router.get("/links", response_model=Entries[MeasuredLink], responses=document_errors(503))
def list_links(state: State) -> Json:
    """List the links that were measured between environments."""
    return Json(Entries[MeasuredLink](entries=state.store.measured_links.all()))


add_registry_routes(
    router,
    lambda state: state.store.environments,
    Environment,
    NewEnvironment,
    EXAMPLE,
    "an environment",
    # not the registry alone: its measured links go with it, and one that a live task uses stays
    forget=lambda state, id: remove_environments(state.store, [id]),
)


@router.post(
    "/import",
    response_model=ImportedEnvironmentsBody,
    responses=document_errors(409, 424, 503),
    openapi_extra=document_example({"format": "yaml", "text": _IMPORT_EXAMPLE}),
)
def import_environments(body: ImportEnvironmentsBody, state: State) -> Json:
    """Register environments that a list, an ssh config, Slurm or Kubernetes names; known ones are changed."""
    environments = _READERS[body.format](body)
    with map_store_errors():
        added, changed = imports.register_environments(state.store.environments, environments)
    return Json({"added": added, "changed": changed, "notices": []})


@router.post(
    "/measure",
    response_model=Entry[MeasuredLink],
    responses=document_errors(404, 424, 503),
    openapi_extra=document_example({"first": "env-001", "second": "env-003"}),
)
def measure_link(body: MeasureLinkBody, state: State) -> Json:
    """Measure round-trip time and rates between two environments, some seconds each way."""
    if body.first == body.second:
        raise refuse(422, "measure_same", field="second", value=body.second)
    with map_store_errors():
        return Json(state.service.measure(body.first, body.second))


@router.post(
    "/cluster",
    response_model=ClusterTextBody,
    responses=document_errors(404, 503),
    openapi_extra=document_example({"nodeIds": [EXAMPLE["id"]]}),
)
def build_cluster(body: ClusterBody, state: State) -> Json:
    """Give environments with their measured links as the cluster of a scenario."""
    with map_store_errors():
        cluster = state.service.build_cluster(body.nodeIds)
    return Json({"cluster": cluster, "text": dump_yaml({"cluster": cluster})})


@router.post(
    "/selection",
    response_model=TaskPreview,
    responses=document_errors(503),
    openapi_extra=document_example({"modelId": "llama-2-7b", "distributedConfig": {"nodeIds": [EXAMPLE["id"]]}}),
)
def describe_selection(body: TaskRequest, state: State, language: Language) -> Json:
    """Tell what chosen environments have together, their master, and what to expect of a task on them."""
    return Json(state.service.choose(body, language))


@router.post("/{id}/probe", response_model=Entry[Environment], responses=document_errors(404, 424, 503))
def probe_environment(id: Id, state: State) -> Json:
    """Ask an environment's machine what it is, and keep what it says; one out of reach is marked so."""
    with map_store_errors():
        return Json(state.service.probe(id))


def _list_distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value is not None}))


def _read_yaml(body: ImportEnvironmentsBody) -> dict[str, Environment]:
    return imports.read_environment_list(parse_document(_require_text(body), TEXT))


def _read_ssh_config(body: ImportEnvironmentsBody) -> dict[str, Environment]:
    """The hosts of a text; what would run commands or read other files on this machine is refused."""
    text = _require_text(body)
    if body.zone is None:
        raise InvalidError(Notice(code="missing_key", field="zone", params={"key": "zone"}))
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        unsafe = _UNSAFE_LINE.match(line)
        if unsafe:
            raise InvalidError(Notice(code="ssh_config_line", field="text", value=unsafe[1], params={"line": number}))
    hosts = sum(len(line.split()) - 1 for line in lines if line.split()[:1] and line.split()[0].lower()[:4] == "host")
    if hosts > MOST_HOSTS:
        raise InvalidError(Notice(code="ssh_config_hosts", field="text", value=hosts, params={"limit": MOST_HOSTS}))
    with tempfile.TemporaryDirectory(prefix="crosszone-") as folder:
        file = Path(folder) / "ssh_config"
        file.write_bytes(text.encode("utf-8", "replace"))
        return imports.read_ssh_hosts(file, zone=body.zone)


def _read_slurm(body: ImportEnvironmentsBody) -> dict[str, Environment]:
    if body.text is None:
        return imports.read_slurm_nodes()
    return _read_printed(imports.parse_slurm_nodes, body.text, imports.SINFO_COMMAND[0])


def _read_kubernetes(body: ImportEnvironmentsBody) -> dict[str, Environment]:
    if body.text is None:
        return imports.read_kubernetes_nodes()
    return _read_printed(
        lambda text: imports.parse_kubernetes_nodes(from_json(text)), body.text, " ".join(imports.KUBECTL_COMMAND)
    )


_READERS: dict[ImportFormat, Callable[[ImportEnvironmentsBody], dict[str, Environment]]] = {
    "yaml": _read_yaml,
    "ssh_config": _read_ssh_config,
    "slurm": _read_slurm,
    "kubernetes": _read_kubernetes,
}


def _read_printed(read: Callable[[str], dict[str, Environment]], text: str, command: str) -> dict[str, Environment]:
    """What a command printed elsewhere; anything else is refused as a whole."""
    try:
        return read(text)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        raise InvalidError(Notice(code="import_unreadable", field="text", params={"command": command})) from None


def _require_text(body: ImportEnvironmentsBody) -> str:
    if body.text is None:
        raise InvalidError(Notice(code="missing_key", field="text", params={"key": "text"}))
    return body.text
