"""The catalogue: GPUs, models, regions and measured links with their sources, and the user's own entries.

Own entries are files under `$CROSSZONE_HOME/catalogue`: the page, the API and the command line read and write the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.errors import InputError, Notice, RequestError, UnknownNameError
from crosszone.inputs.catalogue import KINDS, catalogue
from crosszone.inputs.catalogue.describe import USUAL_LENGTH, describe_entry, figures
from crosszone.inputs.catalogue.entries import Entry, Kind
from crosszone.inputs.catalogue.own import FormField, add_entries, entry_fields, form_of, remove_entry, start_fields
from crosszone.inputs.document import Document, parse_document
from crosszone.inputs.hf_config import model_from_hf_config
from crosszone.inputs.summary import describe_model
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.state import State

Name = Annotated[str, Path(min_length=1, max_length=200, description="A name or alias.")]
_HF_EXAMPLE = (
    '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, '
    '"intermediate_size": 11008, "vocab_size": 32000}'
)
KindName = Annotated[str, Path(max_length=50, description="gpus, models or regions.")]
TAKEN = ("own_exists", "name_taken")  # Refusals of a name that something else goes by

_FIELDS = Field(description="The fields of the entry, as its file has them.")
_writing = Lock()  # Whether a name is free is looked up before it is taken


class ReplacementBody(BaseModel):
    """An own entry without its name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    fields: dict[str, Any] = _FIELDS


class NewEntryBody(ReplacementBody):
    """A new entry."""

    name: str = Field(min_length=1, max_length=100, description="Lower-case letters, digits, dots, plus and hyphens.")


class HfConfigBody(BaseModel):
    """A Hugging Face `config.json`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(max_length=1_000_000, description="The text of the file.")
    name: str | None = Field(default=None, min_length=1, max_length=100, description="Name; none: its family's.")


class StartBody(BaseModel):
    """The fields of an entry, to change it or to start another one from."""

    name: str
    own: bool = Field(description="It can be changed; else its fields are a start for an own entry.")
    fields: dict[str, Any] = _FIELDS


class ImportedBody(BaseModel):
    """A model as a configuration describes it."""

    name: str
    fields: dict[str, Any] = _FIELDS
    parameters: dict[str, Any] = Field(description="Parameters by part, in all, and active ones.")


class GoneBody(BaseModel):
    """What was removed."""

    removed: str


def routes(state: State) -> APIRouter:
    """Read the catalogue, and keep own entries."""
    del state
    router = APIRouter(prefix="/catalogue", tags=["catalogue"])

    @router.get("/links", responses=errors_documented())
    def links() -> list[dict[str, Any]]:
        """List what was measured between regions."""
        return [pair.to_plain() for pair in catalogue().measured_pairs()]

    @router.get("/sources", responses=errors_documented())
    def sources() -> dict[str, dict[str, Any]]:
        """List the citations that figures name by id."""
        return catalogue().sources

    @router.get("/forms/{kind}", responses=errors_documented(404))
    def form(kind: KindName, language: Language) -> list[FormField]:
        """List the fields of an own entry: how a form asks for them."""
        del language
        return list(form_of(known_kind(kind)))

    @router.post(
        "/models/hf",
        response_model=ImportedBody,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(HfConfigBody, {"text": _HF_EXAMPLE}),
    )
    async def imported(request: Request, language: Language) -> Json:
        """Read a Hugging Face `config.json` as the fields of a model; nothing is kept."""
        del language
        body = await read_body(request, HfConfigBody)
        return Json(await run_in_threadpool(_imported, body))

    @router.get("/{kind}", responses=errors_documented(404))
    def entries(kind: KindName, language: Language) -> list[dict[str, Any]]:
        """List all GPUs, models or regions with everything that follows from their figures."""
        del language
        known = known_kind(kind)
        return [describe_entry(known, entry) for entry in catalogue().entries(known)]

    @router.post(
        "/{kind}",
        status_code=201,
        responses=errors_documented(400, 403, 404, 409, 413, 415),
        openapi_extra=body_documented(
            NewEntryBody,
            {"name": "my-gpu", "fields": {"dense_tflops": {"bf16": 300}, "memory_gib": 64, "memory_gb_per_s": 2000}},
        ),
    )
    async def add(kind: KindName, request: Request, language: Language) -> Response:
        """Keep a new entry of the user's; it is there at once for the page, the API and the command line."""
        del language
        known = known_kind(kind)
        body = await read_body(request, NewEntryBody)
        made = await run_in_threadpool(_kept, known, body.name, body.fields, replaces=False)
        return Json(_shown(known, made), status_code=201)

    @router.get("/{kind}/{name:path}/fields", response_model=StartBody, responses=errors_documented(404))
    def fields(kind: KindName, name: Name, language: Language) -> dict[str, Any]:
        """Give the fields of an entry: all of an own one, to change it; else those to start an own one from."""
        del language
        known = known_kind(kind)
        found = _found(known, name)
        own = catalogue().is_own(known, found.name)
        return {"name": found.name, "own": own, "fields": entry_fields(found) if own else start_fields(found)}

    @router.get("/{kind}/{name:path}", responses=errors_documented(404))
    def entry(kind: KindName, name: Name, language: Language) -> dict[str, Any]:
        """Show one entry, by name or alias, with the source of each figure."""
        del language
        known = known_kind(kind)
        return _shown(known, _found(known, name))

    @router.put(
        "/{kind}/{name:path}",
        responses=errors_documented(400, 403, 404, 405, 409, 413, 415),
        openapi_extra=body_documented(
            ReplacementBody,
            {"fields": {"dense_tflops": {"bf16": 300}, "memory_gib": 64, "memory_gb_per_s": 2000, "usd_per_hour": 0}},
        ),
    )
    async def change(kind: KindName, name: Name, request: Request, language: Language) -> Response:
        """Put other fields in place of an own entry's."""
        del language
        known = known_kind(kind)
        body = await read_body(request, ReplacementBody)
        made = await run_in_threadpool(_kept, known, _own(known, name).name, body.fields, replaces=True)
        return Json(_shown(known, made))

    @router.delete("/{kind}/{name:path}", response_model=GoneBody, responses=errors_documented(403, 404, 405))
    def remove(kind: KindName, name: Name, language: Language) -> dict[str, Any]:
        """Forget an own entry."""
        del language
        known = known_kind(kind)
        with _refusals(name), _writing:
            return {"removed": remove_entry(known, name)}

    return router


def known_kind(word: str) -> Kind:
    """The kind of that name; 404 names those there are."""
    for kind in KINDS:
        if kind == word:
            return kind
    raise refused(404, "kind_unknown", value=word, allowed=", ".join([*KINDS, "links"]))


def _found(kind: Kind, name: str) -> Entry:
    with _refusals(name):
        return catalogue().entry(kind, name)


def _own(kind: Kind, name: str) -> Entry:
    found = _found(kind, name)
    if not catalogue().is_own(kind, found.name):
        raise refused(403, "not_own", field="name", value=found.name)
    return found


def _shown(kind: Kind, entry: Entry) -> dict[str, Any]:
    return {**describe_entry(kind, entry), "figures": figures(kind, entry)}


def _kept(kind: Kind, name: str, fields: dict[str, Any], *, replaces: bool) -> Entry:
    with _refusals(name), _writing:
        return add_entries(kind, Document({name: fields}), replace=replaces)[0]


def _imported(body: HfConfigBody) -> dict[str, Any]:
    config = parse_document(body.text, "config.json")
    model = model_from_hf_config(config.value, body.name)
    described = describe_model(model, model.max_seq_len or USUAL_LENGTH)
    architecture = {key: value for key, value in model.to_plain().items() if key != "name"}
    return {
        "name": model.name,
        "fields": {"architecture": architecture},
        "parameters": described["parameters"],
    }


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    """Errors of own entries as those of a request: its status, and fields as the entry itself has them."""
    try:
        yield
    except UnknownNameError as error:
        unknown = all(not notice.field for notice in error.notices)
        raise RequestError(404 if unknown else 422, *(_within(notice, name) for notice in error.notices)) from None
    except InputError as error:
        codes = {notice.code for notice in error.notices}
        status = 409 if codes & {*TAKEN} else 403 if "not_own" in codes else 422
        raise RequestError(status, *(_within(notice, name) for notice in error.notices)) from None


def _within(notice: Notice, name: str) -> Notice:
    """The notice with its field as the entry's own form has it: `memory_gib`, not `my-gpu.memory_gib`."""
    if notice.field in ("", name):
        return replace(notice, field="name")
    return replace(notice, field=notice.field.removeprefix(f"{name}."))
