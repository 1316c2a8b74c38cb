"""Entries of the catalogue: what one is, and how a file of them is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, Strict

from crosszone.errors import FileError, InputError, InvalidError, Notice
from crosszone.inputs.document import Document
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.model import Model
from crosszone.inputs.region import Region
from crosszone.inputs.value import Flag, Name, NotNegative, Positive, Prose, Value, parse

Kind: TypeAlias = Literal["gpus", "models", "regions"]
KINDS: tuple[Kind, ...] = ("gpus", "models", "regions")


class Published(Value):
    """Parameter counts as published, in 1e9."""

    total_b: Positive
    active_b: Positive | None = None


class ModelEntry(Value):
    """A model with where it comes from."""

    name: Name
    aliases: tuple[Name, ...] = ()
    family: Prose = ""
    publisher: Prose = ""
    year: Annotated[int, Strict(), Field(ge=1900, le=2100)] | None = None
    published: Published | None = None
    source: Name | None = None
    notes: Prose = ""
    stands_for_size: Flag = False
    model: Model


class FailureRate(Value):
    """How often a GPU kind interrupts a run."""

    failures_per_1000_gpu_days: NotNegative
    origin: Literal["measured", "derived", "assumed"]
    source: Name
    note: str = ""


Entry: TypeAlias = Gpu | ModelEntry | Region


def normal(name: str) -> str:
    """A name as it is compared: lower case, spaces and underscores as hyphens."""
    return re.sub(r"[\s_]+", "-", name.strip().lower())


Based: TypeAlias = Callable[[Kind, dict[str, Any]], dict[str, Any]]
"""Puts the fields of an entry on top of the entry it is `like`."""


def read_entries(kind: Kind, document: Document, based: Based) -> list[Entry]:
    """The entries of one catalogue file: a mapping of names to their fields."""
    if not isinstance(document.value, dict):
        raise FileError(Notice(code="catalogue_not_mapping", file=document.file, line=1))
    entries: list[Entry] = []
    for name, fields in document.value.items():
        if not isinstance(fields, dict):
            raise InvalidError(document.placed(Notice(code="catalogue_not_mapping", field=name, value=fields)))
        try:
            entries.append(_entry(kind, name, fields, document, based))
        except InputError as error:
            raise type(error)(*map(document.placed, error.notices)) from None
    return entries


def _entry(kind: Kind, name: str, fields: dict[str, Any], document: Document, based: Based) -> Entry:
    def whole(part: dict[str, Any], at: str) -> dict[str, Any]:
        try:
            return {**based(kind, part), "name": name}
        except InputError as error:
            raise type(error)(*(replace(n, field=f"{at}.like") for n in error.notices)) from None

    if kind == "gpus":
        return parse(Gpu, whole(fields, name), document, at=(name,))
    if kind == "regions":
        return parse(Region, whole(fields, name), document, at=(name,))
    nested = "architecture" in fields
    about = {key: value for key, value in fields.items() if key in ModelEntry.model_fields or nested}
    architecture = about.pop("architecture", None) if nested else {k: v for k, v in fields.items() if k not in about}
    at = (name, "architecture") if nested else (name,)
    if not isinstance(architecture, dict):
        raise InvalidError(Notice(code="must_be_mapping", field=".".join(at), value=architecture))
    model = parse(Model, whole(architecture, ".".join(at)), document, at=at)
    return parse(ModelEntry, {**about, "name": name, "model": model}, document, at=(name,))
