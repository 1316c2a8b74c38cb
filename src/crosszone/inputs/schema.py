"""Versioned JSON Schemas of the inputs, and a table of every key.

`plan/schema.py` adds those of the answers and writes all: `python -m crosszone.plan.schema docs`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from crosszone.inputs.cluster import Cluster
from crosszone.inputs.document import dump_json
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.job import Job
from crosszone.inputs.model import Model
from crosszone.inputs.placement import Placement
from crosszone.inputs.python_source import parse_source
from crosszone.inputs.region import Region
from crosszone.inputs.scenario import VERSION, Scenario
from crosszone.inputs.software import YEARS_UNTIL_USUAL, format_release, load_software_rules
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value

DIALECT = "https://json-schema.org/draft/2020-12/schema"

ROOTS: dict[str, type[Value]] = {
    "scenario": Scenario,
    "model": Model,
    "job": Job,
    "cluster": Cluster,
    "strategy": Strategy,
    "placement": Placement,
    "gpu": Gpu,
    "region": Region,
}


def build_json_schema(name: str, roots: Mapping[str, type[Value]] = ROOTS) -> dict[str, Any]:
    """The JSON Schema of one kind of value; what each key means is the docstring that follows its field."""
    schema = roots[name].model_json_schema(mode="validation")
    classes = {cls.__name__: cls for cls in _collect_classes(roots[name])}
    for title, definition in {roots[name].__name__: schema, **schema.get("$defs", {})}.items():
        for key, meaning in _read_field_docstrings(classes[title]).items():
            if key in definition.get("properties", {}):
                definition["properties"][key]["description"] = meaning
    return {"$schema": DIALECT, "$id": f"crosszone:schema/{name}.v{VERSION}", **schema}


def _collect_classes(root: type[Value]) -> set[type[Value]]:
    """A class and all classes of values inside it."""
    classes: set[type[Value]] = set()

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, Value) and annotation not in classes:
            classes.add(annotation)
            for field in annotation.model_fields.values():
                visit(field.annotation)
        for inner in get_args(annotation):
            visit(inner)

    visit(root)
    return classes


@cache
def _read_field_docstrings(cls: type[Value]) -> dict[str, str]:
    """The docstring after each field of a class. Read here and not by pydantic, which would do it at every start."""
    meanings: dict[str, str] = {}
    # the fields of a base class first: a derived class may explain one anew
    for base in reversed([b for b in cls.__mro__ if issubclass(b, Value) and b is not Value]):
        tree = parse_source(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, after in pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
                text = ast.literal_eval(after.value) if isinstance(after.value, ast.Constant) else None
                if isinstance(text, str):
                    meanings[field.target.id] = inspect.cleandoc(text)
    return meanings


def format_file_name(name: str) -> str:
    """Name of a schema's file."""
    return f"{name}.v{VERSION}.json"


def format_key_tables() -> str:
    """Every key of a scenario with type, default and meaning, as Markdown."""
    schema = build_json_schema("scenario")
    lines = [
        "# Every key of a scenario",
        "",
        "Made by `python -m crosszone.plan.schema docs`; do not edit. Rates are one-directional; memory is GiB;",
        "times are seconds unless the name says ms. The same in machine-readable form: [schema/](schema/).",
        "",
    ]
    return "\n".join([*lines, *format_tables(schema, "Scenario"), *_format_software_defaults()])


def _format_software_defaults() -> list[str]:
    """What is taken for options that are not given, by framework and release, as lines of Markdown."""
    rules = load_software_rules()
    releases = "; ".join(f"{name} {format_release(release)}" for name, release in rules["releases"].items())
    lines = [
        "## Usual software",
        "",
        "What a scenario does not state of its software, in [Software](#software), [Strategy](#strategy) or",
        "[Communication](#communication), follows its framework and the release of the software. Rows add to those",
        "above them: first those of every framework, then those of the scenario's, each from its release on. A stack",
        "that is named (`job.stack`) comes before them, and what is stated before both. Options that need others",
        "(`overlap_tensor`: sequence parallelism; `overlap_parameters`: ZeRO) are on only with them. Attention",
        f"is flash in any case where sequences are longer than {rules['longest_unfused']} tokens.",
        "",
        f"A release that is not stated is the usual one of the GPU's architecture: {releases}; else that of",
        f"{YEARS_UNTIL_USUAL:g} years after the GPU came out.",
        "",
        "| framework | from release | GPUs | sets |",
        "|---|---|---|---|",
    ]
    for framework, eras in rules["defaults"].items():
        for era in eras:
            since = format_release(era["from"]) if era["from"] else "any"
            gpus = ", ".join(era.get("on", ["any"]))
            settings = {key: value for key, value in era.items() if key not in ("from", "on")}
            sets = ", ".join(f"`{key}: {dump_json(value).strip()}`" for key, value in settings.items()).replace('"', "")
            lines.append(f"| {'every' if framework == 'common' else framework} | {since} | {gpus} | {sets} |")
    return [*lines, ""]


def format_tables(schema: dict[str, Any], root: str) -> list[str]:
    """A table for a schema and each of its definitions, as lines of Markdown."""
    lines: list[str] = []
    definitions = {root: schema, **schema["$defs"]}
    for title in _sort_definitions(definitions):
        definition = definitions[title]
        required = set(definition.get("required", ()))
        lines += [f"## {title}", "", _format_sentence(definition.get("description", "")), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for key, field in definition.get("properties", {}).items():
            default = "**required**" if key in required else _format_default(field)
            lines.append(
                f"| `{key}` | {_format_type(field)} | {default} | {_format_sentence(field.get('description', ''))} |"
            )
        lines.append("")
    return lines


def _sort_definitions(definitions: dict[str, Any]) -> list[str]:
    """The definitions in the order in which their first references stand."""
    order: list[str] = []

    def visit(title: str) -> None:
        if title in order:
            return
        order.append(title)
        for field in definitions[title].get("properties", {}).values():
            for inner in _collect_references(field):
                visit(inner)

    visit(next(iter(definitions)))
    return order


def _collect_references(field: Any) -> list[str]:
    if isinstance(field, dict):
        names = [field["$ref"].rsplit("/", 1)[-1]] if "$ref" in field else []
        return names + [name for inner in field.values() for name in _collect_references(inner)]
    if isinstance(field, list):
        return [name for inner in field for name in _collect_references(inner)]
    return []


def _format_type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        title = field["$ref"].rsplit("/", 1)[-1]
        return f"[{title}](#{title.lower()})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " \\| ".join(f"`{choice}`" for choice in field["enum"])
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_format_type(choice) for choice in field["anyOf"]))
    if field.get("type") == "array":
        items = field.get("items") or (field.get("prefixItems") or [{}])[0]
        return f"list of {_format_type(items)}"
    return _format_bounds(field)


def _format_bounds(field: dict[str, Any]) -> str:
    type_names = {"integer": "whole", "number": "number", "boolean": "true/false", "string": "text", "null": "null"}
    text = type_names.get(str(field.get("type")), "mapping")
    limits = []
    for key, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")):
        # larger limits only keep numbers finite (value.py): nobody needs to read them
        if key in field and abs(field[key]) < 1e17:
            limits.append(f"{sign} {field[key]:g}" if field[key] < 1e6 else f"{sign} {field[key]:,.0f}")
    return f"{text} {', '.join(limits)}".strip()


def _format_default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return "follows"
    value = field["default"]
    if isinstance(value, dict):
        return "its defaults"
    text = dump_json(value).strip()
    return f"`{text}`"


def _format_sentence(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).replace("|", "\\|")


def write_schemas(folder: Path, roots: Mapping[str, type[Value]] = ROOTS) -> list[Path]:
    """Write all schemas and the key tables under a folder."""
    (folder / "schema").mkdir(parents=True, exist_ok=True)
    written = []
    for name in roots:
        path = folder / "schema" / format_file_name(name)
        path.write_text(dump_json(build_json_schema(name, roots)), encoding="utf-8")
        written.append(path)
    tables = folder / "scenario-keys.md"
    tables.write_text(format_key_tables(), encoding="utf-8")
    return [*written, tables]
