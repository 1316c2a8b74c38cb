"""The catalogue: GPUs, models, regions and measured links with their sources, own entries, and cost profiles.

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

from crosszone.cost.description import (
    ProfileDescription,
    ProfileSummary,
    get_profile_description,
    list_profile_descriptions,
)
from crosszone.errors import InputError, Notice, RequestError, UnknownNameError
from crosszone.inputs.catalogue import KINDS, catalogue
from crosszone.inputs.catalogue.describe import USUAL_LENGTH, describe_entry, list_figures
from crosszone.inputs.catalogue.entries import Entry, Kind
from crosszone.inputs.catalogue.own import (
    FormField,
    add_entries,
    build_entry_fields,
    build_form_fields,
    build_start_fields,
    remove_entry,
)
from crosszone.inputs.document import Document, parse_document
from crosszone.inputs.hf_config import parse_hf_config
from crosszone.inputs.summary import describe_model
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import ApiRoute, document_example
from crosszone.web.refusals import refuse

router = APIRouter(prefix="/catalogue", tags=["catalogue"], route_class=ApiRoute)
profiles_router = APIRouter(prefix="/profiles", tags=["profiles"], route_class=ApiRoute)

EntryName = Annotated[str, Path(min_length=1, max_length=200, description="A name or alias.")]
_HF_EXAMPLE = (
    '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, '
    '"intermediate_size": 11008, "vocab_size": 32000}'
)
KindName = Annotated[str, Path(max_length=50, description="gpus, models or regions.")]
TAKEN_CODES = ("own_exists", "name_taken")  # Refusals of a name that something else goes by

_FIELDS = Field(description="The fields of the entry, as its file has them.")
_write_lock = Lock()  # Whether a name is free is looked up before it is taken


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


class EntryFieldsBody(BaseModel):
    """The fields of an entry, to change it or to start another one from."""

    name: str
    own: bool = Field(description="It can be changed; else its fields are a start for an own entry.")
    fields: dict[str, Any] = _FIELDS


class ImportedModelBody(BaseModel):
    """A model as a configuration describes it."""

    name: str
    fields: dict[str, Any] = _FIELDS
    parameters: dict[str, Any] = Field(description="Parameters by part, in all, and active ones.")


class RemovedBody(BaseModel):
    """What was removed."""

    removed: str


@router.get("/links")
def list_links() -> list[dict[str, Any]]:
    """List what was measured between regions."""
    return [pair.to_plain() for pair in catalogue().list_measured_pairs()]


@router.get("/sources")
def list_sources() -> dict[str, dict[str, Any]]:
    """List the citations that figures name by id."""
    return catalogue().sources


@router.get("/forms/{kind}", responses=document_errors(404))
def list_form_fields(kind: KindName) -> list[FormField]:
    """List the fields of an own entry: how a form asks for them."""
    return list(build_form_fields(check_kind(kind)))


@router.post(
    "/models/hf",
    response_model=ImportedModelBody,
    openapi_extra=document_example({"text": _HF_EXAMPLE}),
)
def import_hf_config(body: HfConfigBody) -> Json:
    """Read a Hugging Face `config.json` as the fields of a model; nothing is kept."""
    config = parse_document(body.text, "config.json")
    model = parse_hf_config(config.value, body.name)
    described = describe_model(model, model.max_seq_len or USUAL_LENGTH)
    architecture = {key: value for key, value in model.to_plain().items() if key != "name"}
    return Json({"name": model.name, "fields": {"architecture": architecture}, "parameters": described["parameters"]})


@router.get("/{kind}", responses=document_errors(404))
def list_entries(kind: KindName) -> list[dict[str, Any]]:
    """List all GPUs, models or regions with everything that follows from their figures."""
    checked = check_kind(kind)
    return [describe_entry(checked, entry) for entry in catalogue().entries(checked)]


@router.post(
    "/{kind}",
    status_code=201,
    responses=document_errors(404, 409),
    openapi_extra=document_example(
        {"name": "my-gpu", "fields": {"dense_tflops": {"bf16": 300}, "memory_gib": 64, "memory_gb_per_s": 2000}}
    ),
)
def add_entry(kind: KindName, body: NewEntryBody) -> Json:
    """Keep a new entry of the user's; it is there at once for the page, the API and the command line."""
    checked = check_kind(kind)
    entry = _write_entry(checked, body.name, body.fields, replaces=False)
    return Json(_describe_with_figures(checked, entry), status_code=201)


# Before `/{kind}/{name:path}`, which would take "fields" for the end of a name.
@router.get("/{kind}/{name:path}/fields", response_model=EntryFieldsBody, responses=document_errors(404))
def list_entry_fields(kind: KindName, name: EntryName) -> dict[str, Any]:
    """Give the fields of an entry: all of an own one, to change it; else those to start an own one from."""
    checked = check_kind(kind)
    entry = _find_entry(checked, name)
    is_own = catalogue().is_own(checked, entry.name)
    return {
        "name": entry.name,
        "own": is_own,
        "fields": build_entry_fields(entry) if is_own else build_start_fields(entry),
    }


@router.get("/{kind}/{name:path}", responses=document_errors(404))
def show_entry(kind: KindName, name: EntryName) -> dict[str, Any]:
    """Show one entry, by name or alias, with the source of each figure."""
    checked = check_kind(kind)
    return _describe_with_figures(checked, _find_entry(checked, name))


@router.put(
    "/{kind}/{name:path}",
    responses=document_errors(404, 405, 409),
    openapi_extra=document_example(
        {"fields": {"dense_tflops": {"bf16": 300}, "memory_gib": 64, "memory_gb_per_s": 2000, "usd_per_hour": 0}}
    ),
)
def change_entry(kind: KindName, name: EntryName, body: ReplacementBody) -> Json:
    """Put other fields in place of an own entry's."""
    checked = check_kind(kind)
    entry = _write_entry(checked, _find_own_entry(checked, name).name, body.fields, replaces=True)
    return Json(_describe_with_figures(checked, entry))


@router.delete("/{kind}/{name:path}", response_model=RemovedBody, responses=document_errors(404, 405))
def delete_entry(kind: KindName, name: EntryName) -> dict[str, Any]:
    """Forget an own entry."""
    checked = check_kind(kind)
    with _map_catalogue_errors(name), _write_lock:
        return {"removed": remove_entry(checked, name)}


@profiles_router.get("", response_model=list[ProfileSummary])
def list_profiles() -> tuple[ProfileDescription, ...]:
    """List all: common values, GPU families and software stacks."""
    return list_profile_descriptions()


@profiles_router.get("/{name}", response_model=ProfileDescription, responses=document_errors(404))
def show_profile(
    name: Annotated[str, Path(min_length=1, max_length=200, description="Name of a profile.")],
) -> ProfileDescription:
    """Show one profile with each of its own coefficients."""
    try:
        return get_profile_description(name)
    except UnknownNameError as error:
        raise RequestError(404, *error.notices) from None


def check_kind(name: str) -> Kind:
    """The kind of that name; 404 names those there are."""
    for kind in KINDS:
        if kind == name:
            return kind
    raise refuse(404, "kind_unknown", value=name, allowed=", ".join([*KINDS, "links"]))


def _find_entry(kind: Kind, name: str) -> Entry:
    with _map_catalogue_errors(name):
        return catalogue().entry(kind, name)


def _find_own_entry(kind: Kind, name: str) -> Entry:
    entry = _find_entry(kind, name)
    if not catalogue().is_own(kind, entry.name):
        raise refuse(403, "not_own", field="name", value=entry.name)
    return entry


def _describe_with_figures(kind: Kind, entry: Entry) -> dict[str, Any]:
    return {**describe_entry(kind, entry), "figures": list_figures(kind, entry)}


def _write_entry(kind: Kind, name: str, fields: dict[str, Any], *, replaces: bool) -> Entry:
    with _map_catalogue_errors(name), _write_lock:
        return add_entries(kind, Document({name: fields}), replace=replaces)[0]


@contextmanager
def _map_catalogue_errors(name: str) -> Iterator[None]:
    """Errors of own entries as those of a request: its status, and fields as the entry itself has them."""
    try:
        yield
    except UnknownNameError as error:
        unknown = all(not notice.field for notice in error.notices)
        raise RequestError(404 if unknown else 422, *(_trim_field(notice, name) for notice in error.notices)) from None
    except InputError as error:
        codes = {notice.code for notice in error.notices}
        status = 409 if codes & {*TAKEN_CODES} else 403 if "not_own" in codes else 422
        raise RequestError(status, *(_trim_field(notice, name) for notice in error.notices)) from None


def _trim_field(notice: Notice, name: str) -> Notice:
    """The notice with its field as the entry's own form has it: `memory_gib`, not `my-gpu.memory_gib`."""
    if notice.field in ("", name):
        return replace(notice, field="name")
    return replace(notice, field=notice.field.removeprefix(f"{name}."))
