"""What is done with environments: import, probe, measure, make a cluster of them, choose some for a task."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import dump_yaml, parse_document
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.inputs.value import Name, Value
from crosszone.run.chosen import Chosen
from crosszone.run.imports import kubernetes, slurm
from crosszone.run.imports.listed import listed
from crosszone.run.imports.registering import registered
from crosszone.run.imports.ssh_config import ssh_hosts
from crosszone.run.request import MOST_NODES, TaskRequest
from crosszone.store.registered import Entry
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import read_value, value_documented
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.routes.environments import EXAMPLE
from crosszone.web.saved import Id, kept
from crosszone.web.scenarios import TEXT
from crosszone.web.state import State

Format = Literal["yaml", "ssh_config", "slurm", "kubernetes"]
MOST_TEXT = 1_000_000
MOST_HOSTS = 500  # Hosts of an ssh config: ssh is asked about each of them
# Lines of an ssh config that read other files or run commands.
_TYPED = re.compile(r"""[\s"']*(include|match)\b""", re.IGNORECASE)
_IMPORTED = """\
environments:
- {id: env-003, name: llm-training, zone: shenzhen-c, region: cn-shenzhen, address: 192.168.2.20, gpu: a100, gpus: 4}
- {id: env-005, name: nlp-research, zone: shanghai-a, region: cn-shanghai, address: 192.168.3.30, gpu: a100, gpus: 8}
"""


class ImportBody(Value):
    """Environments from elsewhere."""

    format: Format
    """What lists them: a YAML list, an ssh config, sinfo of Slurm, or kubectl."""
    text: Annotated[str, Field(max_length=MOST_TEXT)] | None = None
    """What it says; null (Slurm and Kubernetes): the server asks the cluster itself."""
    zone: Name | None = None
    """Zone of the hosts of an ssh config."""


class ImportedBody(Value):
    """What became of an import."""

    added: tuple[str, ...]
    """Ids of new environments."""
    changed: tuple[str, ...]
    """Ids of environments that were known and got the fields that were read."""
    notices: tuple[dict[str, Any], ...]
    """What to know about it."""


class MeasureBody(Value):
    """Two environments."""

    first: Name
    """Environment that sends first, by id."""
    second: Name
    """Environment that receives first, by id."""


class ClusterBody(Value):
    """Environments that make up a cluster."""

    nodeIds: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MOST_NODES)]
    """Their ids, the master first."""


class ClusterText(Value):
    """A cluster, as a scenario has it."""

    cluster: dict[str, Any]
    """Zones with their nodes, and the links that were measured."""
    text: str
    """The same as YAML."""


def routes(state: State) -> APIRouter:
    """All of that."""
    router = APIRouter(prefix="/environments", tags=["environments"])
    store, service = state.store, state.service

    @router.post(
        "/import",
        response_model=ImportedBody,
        responses=errors_documented(400, 403, 409, 413, 415, 424, 503),
        openapi_extra=value_documented(ImportBody, {"format": "yaml", "text": _IMPORTED}),
    )
    async def imported(request: Request, language: Language) -> Response:
        """Register environments that a list, an ssh config, Slurm or Kubernetes names; known ones are changed."""
        del language
        body = await read_value(request, ImportBody)

        def work() -> Json:
            found = _READERS[body.format](body)
            with kept():
                added, changed = registered(store.environments, found)
            return Json({"added": added, "changed": changed, "notices": []})

        return await run_in_threadpool(work)

    @router.post(
        "/measure",
        response_model=Entry[MeasuredLink],
        responses=errors_documented(400, 403, 404, 413, 415, 424, 503),
        openapi_extra=value_documented(MeasureBody, {"first": "env-001", "second": "env-003"}),
    )
    async def measure(request: Request, language: Language) -> Response:
        """Measure round-trip time and rates between two environments, some seconds each way."""
        del language
        body = await read_value(request, MeasureBody)
        if body.first == body.second:
            raise refused(422, "measure_same", field="second", value=body.second)

        def work() -> Json:
            with kept():
                return Json(service.measure(body.first, body.second).model_dump(mode="json"))

        return await run_in_threadpool(work)

    @router.post(
        "/cluster",
        response_model=ClusterText,
        responses=errors_documented(400, 403, 404, 413, 415, 503),
        openapi_extra=value_documented(ClusterBody, {"nodeIds": [EXAMPLE["id"]]}),
    )
    async def cluster(request: Request, language: Language) -> Response:
        """Give environments with their measured links as the cluster of a scenario."""
        del language
        body = await read_value(request, ClusterBody)

        def work() -> Json:
            with kept():
                made = service.cluster(body.nodeIds)
            return Json({"cluster": made, "text": dump_yaml({"cluster": made})})

        return await run_in_threadpool(work)

    @router.post(
        "/selection",
        response_model=Chosen,
        responses=errors_documented(400, 403, 413, 415, 503),
        openapi_extra=value_documented(
            TaskRequest, {"modelId": "llama-2-7b", "distributedConfig": {"nodeIds": [EXAMPLE["id"]]}}
        ),
    )
    async def chosen(request: Request, language: Language) -> Response:
        """Tell what chosen environments have together, their master, and what to expect of a task on them."""
        body = await read_value(request, TaskRequest)

        def work() -> Json:
            return Json(service.choose(body, language).model_dump(mode="json"))

        return await run_in_threadpool(work)

    @router.post("/{id}/probe", response_model=Entry[Environment], responses=errors_documented(403, 404, 424, 503))
    def probe(id: Id, language: Language) -> Json:
        """Ask an environment's machine what it is, and keep what it says; one out of reach is marked so."""
        del language
        with kept():
            return Json(service.probe(id).model_dump(mode="json"))

    return router


def _of_yaml(body: ImportBody) -> dict[str, Environment]:
    return listed(parse_document(_text(body), TEXT))


def _of_ssh_config(body: ImportBody) -> dict[str, Environment]:
    """The hosts of a text; what would run commands or read other files on this machine is refused."""
    text = _text(body)
    if body.zone is None:
        raise InvalidError(Notice(code="missing_key", field="zone", params={"key": "zone"}))
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        found = _TYPED.match(line)
        if found:
            raise InvalidError(Notice(code="ssh_config_line", field="text", value=found[1], params={"line": number}))
    hosts = sum(len(line.split()) - 1 for line in lines if line.split()[:1] and line.split()[0].lower()[:4] == "host")
    if hosts > MOST_HOSTS:
        raise InvalidError(Notice(code="ssh_config_hosts", field="text", value=hosts, params={"limit": MOST_HOSTS}))
    with tempfile.TemporaryDirectory(prefix="crosszone-") as folder:
        file = Path(folder) / "ssh_config"
        file.write_bytes(text.encode("utf-8", "replace"))
        return ssh_hosts(file, zone=body.zone)


def _of_slurm(body: ImportBody) -> dict[str, Environment]:
    return slurm.slurm_nodes() if body.text is None else _printed(slurm.nodes_in, body.text, slurm.WORDS[0])


def _of_kubernetes(body: ImportBody) -> dict[str, Environment]:
    if body.text is None:
        return kubernetes.kubernetes_nodes()
    return _printed(lambda text: kubernetes.nodes_in(from_json(text)), body.text, " ".join(kubernetes.WORDS))


_READERS: dict[Format, Callable[[ImportBody], dict[str, Environment]]] = {
    "yaml": _of_yaml,
    "ssh_config": _of_ssh_config,
    "slurm": _of_slurm,
    "kubernetes": _of_kubernetes,
}


def _printed(read: Callable[[str], dict[str, Environment]], text: str, command: str) -> dict[str, Environment]:
    """What a command printed elsewhere; anything else is refused as a whole."""
    try:
        return read(text)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        raise InvalidError(Notice(code="import_unreadable", field="text", params={"command": command})) from None


def _text(body: ImportBody) -> str:
    if body.text is None:
        raise InvalidError(Notice(code="missing_key", field="text", params={"key": "text"}))
    return body.text
