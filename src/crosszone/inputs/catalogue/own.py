"""The user's own GPUs, models and regions: one YAML file an entry under `$CROSSZONE_HOME/catalogue/<kind>/`.

The fields of an own entry as a form asks for them: path, kind, limits and choices, read from the values' types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.catalogue.entries import (
    OWN_SOURCE,
    Catalogue,
    Entry,
    Kind,
    ModelEntry,
    catalogue,
    find_home,
    normalize_name,
    read_entries,
)
from crosszone.inputs.document import Document, dump_yaml, read_document, replace_file
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.model import Model
from crosszone.inputs.region import Region
from crosszone.inputs.value import Value

_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,99}")


def add_entries(kind: Kind, source: str | Path | Document, *, replace: bool = False) -> list[Entry]:
    """Check the entries of a file and save them; nothing is written unless all of them are valid."""
    document = source if isinstance(source, Document) else read_document(source)
    current = catalogue()
    entries = [_set_own_source(entry) for entry in read_entries(kind, document, current.apply_like)]
    if not entries:
        raise InvalidError(document.place_notice(Notice(code="nothing_to_add")))
    spelled: dict[str, str] = {}
    for entry in entries:
        conflict = find_name_conflict(kind, entry, current, spelled, replace=replace)
        if conflict is not None:
            raise InvalidError(document.place_notice(conflict))
    return [_write_entry(kind, entry, current) for entry in entries]


def _set_own_source(entry: Entry) -> Entry:
    """The entry with the user as the source of what names none."""
    if isinstance(entry, Gpu):
        return entry.replace(sources={"default": OWN_SOURCE, **entry.sources})
    return entry if entry.source else entry.replace(source=OWN_SOURCE)


def remove_entry(kind: Kind, name: str) -> str:
    """Remove one of the user's entries (or a file of that name that cannot be read); returns its name."""
    current = catalogue()
    broken = find_home() / "catalogue" / kind / f"{normalize_name(name)}.yaml"
    if current.find_name(kind, name) is None and _FILE_NAME.fullmatch(normalize_name(name)) and broken.is_file():
        _rewrite_file(broken, {})
        return normalize_name(name)
    entry = current.entry(kind, name)
    if not current.is_own(kind, entry.name):
        raise InvalidError(Notice(code="not_own", value=entry.name))
    path = current.find_own_file(kind, entry.name)
    _rewrite_file(path, {key: fields for key, fields in read_document(path).value.items() if key != entry.name})
    return entry.name


def _rewrite_file(path: Path, entries: dict[str, Any]) -> None:
    """Write a file of entries; without any, remove it."""
    try:
        if entries:
            replace_file(path, dump_yaml(entries))
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise build_unwritable_error(path, error) from None


def build_start_fields(entry: Entry) -> dict[str, Any]:
    """The fields of an entry to begin an own one with: without its aliases, notes and sources."""
    left_out = {"aliases", "notes", "published", "publisher", "stands_for_size"}
    return {
        k: v
        for k, v in build_entry_fields(entry).items()
        if k not in left_out and not k.endswith(("source", "sources"))
    }


def build_entry_fields(entry: Entry) -> dict[str, Any]:
    """The fields of an entry as its file holds them, without its name."""
    fields = {key: value for key, value in entry.to_plain().items() if key not in ("name", "model")}
    if isinstance(entry, ModelEntry):
        architecture = entry.model.to_plain()
        fields["architecture"] = {key: value for key, value in architecture.items() if key != "name"}
    return fields


def find_name_conflict(
    kind: Kind, entry: Entry, current: Catalogue, spelled: dict[str, str], *, replace: bool
) -> Notice | None:
    """The reason why the entry's names cannot be used, or None; adds the names to those of its file, `spelled`."""
    if not _FILE_NAME.fullmatch(entry.name):
        legal = re.sub(r"[^a-z0-9.+-]+", "-", normalize_name(entry.name)).strip("-.+") or "my-entry"
        return Notice(code="own_name", field=entry.name, value=entry.name, params={"legal": legal})
    for spelling in (entry.name, *entry.aliases):
        owner = current.find_name(kind, spelling)
        same = owner == entry.name and current.is_own(kind, entry.name)
        if same and not replace:
            return Notice(code="own_exists", field=entry.name, value=entry.name)
        if (owner is not None and not same) or normalize_name(spelling) in spelled:
            params = {"taken": owner or spelled[normalize_name(spelling)]}
            return Notice(code="name_taken", field=entry.name, value=spelling, params=params)
        spelled[normalize_name(spelling)] = entry.name
    return None


def _write_entry(kind: Kind, entry: Entry, current: Catalogue) -> Entry:
    """Save an entry in a file of its own, or in the file that already holds it, beside the other entries there."""
    folder, others = find_home() / "catalogue" / kind, {}
    path = folder / f"{entry.name}.yaml"
    if current.is_own(kind, entry.name):
        path = current.find_own_file(kind, entry.name)
        others = read_document(path).value
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise build_unwritable_error(folder, error) from None
    _rewrite_file(path, {**others, entry.name: build_entry_fields(entry)})
    return entry


def build_unwritable_error(path: Path, error: OSError) -> InputError:
    """The error for a folder of the user's that cannot be written."""
    return InputError(Notice(code="home_unwritable", value=str(path), params={"reason": error.strerror or str(error)}))


FieldKind = Literal["number", "count", "text", "names", "flag", "choice", "choices"]
_VALUES: dict[Kind, type[Value]] = {"gpus": Gpu, "models": ModelEntry, "regions": Region}
# Not asked for in the form: entered elsewhere, or set by the program (the source of an own entry is its user).
_LEFT_OUT = ("name", "model", "sources", "source", "carbon_source", "egress_source", "stands_for_size")


class FormField(Value):
    """One field of the form."""

    path: str
    """As in the entry's file, e.g. link.domain."""
    kind: FieldKind
    """number, count (a whole number), text, names (several), flag, choice or choices (several of them)."""
    required: bool
    """It must be given; inside a group that may be left out: when anything of the group is given."""
    group: str
    """What it belongs to, e.g. link; empty: the entry itself."""
    optional_group: bool = False
    """All of the group may be left out."""
    choices: tuple[str, ...] = ()
    """What a choice may be."""
    least: float | None = None
    """Smallest number, or what it must be more than."""
    most: float | None = None
    """Largest number."""
    default: Any = None
    """What holds when it is left out, where that is known beforehand."""


@cache
def build_form_fields(kind: Kind) -> tuple[FormField, ...]:
    """The fields of an own entry of a kind, in the order of its file."""
    fields = list(_list_fields(_VALUES[kind].model_json_schema()))
    if kind == "models":
        fields += _list_fields(Model.model_json_schema(), "architecture")
    return tuple(fields)


def _list_fields(
    schema: dict[str, Any], group: str = "", definitions: dict[str, Any] | None = None, *, optional: bool = False
) -> Iterator[FormField]:
    definitions_by_name = definitions if definitions is not None else schema.get("$defs", {})
    for name, schema_of_key in schema["properties"].items():
        if name in _LEFT_OUT and "." not in group:
            continue
        path = f"{group}.{name}" if group else name
        shape, left_out = _resolve_shape(schema_of_key, definitions_by_name)
        if "properties" in shape:
            may_be_omitted = left_out or "default" in schema_of_key
            yield from _list_fields(shape, path, definitions_by_name, optional=may_be_omitted)
            continue
        yield FormField(
            path=path,
            group=group,
            optional_group=optional,
            required=name in schema.get("required", ()),
            kind=_find_field_kind(shape),
            choices=tuple(shape.get("enum") or shape.get("items", {}).get("enum", ())),
            least=shape.get("minimum", shape.get("exclusiveMinimum")),
            most=shape.get("maximum"),
            default=schema_of_key.get("default"),
        )


def _resolve_shape(field_schema: dict[str, Any], definitions: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What a field holds, and whether it may be null."""
    choices = [option for option in field_schema.get("anyOf", [field_schema]) if option.get("type") != "null"]
    shape = choices[0]
    if "$ref" in shape:
        shape = definitions[shape["$ref"].rpartition("/")[2]]
    return shape, len(field_schema.get("anyOf", [field_schema])) > len(choices)


def _find_field_kind(shape: dict[str, Any]) -> FieldKind:
    if shape.get("type") == "array":
        return "choices" if "enum" in shape["items"] else "names"
    if "enum" in shape:
        return "choice"
    kinds: dict[str, FieldKind] = {"number": "number", "integer": "count", "boolean": "flag", "string": "text"}
    return kinds[shape["type"]]
