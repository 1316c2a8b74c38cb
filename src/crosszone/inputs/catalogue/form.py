"""The fields of an own entry as a form asks for them: path, kind, limits and choices, read from the values' types."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from crosszone.inputs.catalogue.entry import Kind, ModelEntry
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.model import Model
from crosszone.inputs.region import Region
from crosszone.inputs.value import Value

FieldKind = Literal["number", "count", "text", "names", "flag", "choice", "choices"]
_VALUES: dict[Kind, type[Value]] = {"gpus": Gpu, "models": ModelEntry, "regions": Region}
_LEFT_OUT = ("name", "model", "sources", "source", "carbon_source", "egress_source", "stands_for_size")
"""Given apart, or not the user's to say: an own entry's source is its owner."""


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
def form_of(kind: Kind) -> tuple[FormField, ...]:
    """The fields of an own entry of a kind, in the order of its file."""
    fields = list(_fields(_VALUES[kind].model_json_schema()))
    if kind == "models":
        fields += _fields(Model.model_json_schema(), "architecture")
    return tuple(fields)


def _fields(
    schema: dict[str, Any], group: str = "", definitions: dict[str, Any] | None = None, *, optional: bool = False
) -> Iterator[FormField]:
    known = definitions if definitions is not None else schema.get("$defs", {})
    for name, said in schema["properties"].items():
        if name in _LEFT_OUT and "." not in group:
            continue
        path = f"{group}.{name}" if group else name
        shape, left_out = _shape(said, known)
        if "properties" in shape:
            whole = left_out or "default" in said
            yield from _fields(shape, path, known, optional=whole)
            continue
        yield FormField(
            path=path,
            group=group,
            optional_group=optional,
            required=name in schema.get("required", ()),
            kind=_kind(shape),
            choices=tuple(shape.get("enum") or shape.get("items", {}).get("enum", ())),
            least=shape.get("minimum", shape.get("exclusiveMinimum")),
            most=shape.get("maximum"),
            default=said.get("default"),
        )


def _shape(said: dict[str, Any], known: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What a field holds, and whether it may be null."""
    choices = [one for one in said.get("anyOf", [said]) if one.get("type") != "null"]
    shape = choices[0]
    if "$ref" in shape:
        shape = known[shape["$ref"].rpartition("/")[2]]
    return shape, len(said.get("anyOf", [said])) > len(choices)


def _kind(shape: dict[str, Any]) -> FieldKind:
    if shape.get("type") == "array":
        return "choices" if "enum" in shape["items"] else "names"
    if "enum" in shape:
        return "choice"
    kinds: dict[str, FieldKind] = {"number": "number", "integer": "count", "boolean": "flag", "string": "text"}
    return kinds[shape["type"]]
