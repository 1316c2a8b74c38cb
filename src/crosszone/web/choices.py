"""Choices: what a bundle can be asked for, told as a form asks for it: frameworks, launchers, settings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from crosszone.deploy.frameworks import FRAMEWORKS
from crosszone.deploy.launchers import LAUNCHERS, load_launcher
from crosszone.deploy.settings import LaunchSettings
from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.schema import json_schema
from crosszone.inputs.value import Value
from crosszone.text import render_sentence

SettingKind = Literal["number", "count", "text", "flag", "zones"]
_GROUPS = {
    "network": ("port", "user", "ssh_port"),
    "folders": ("data", "tokenizer", "init_from", "workdir", "python"),
    "launcher": (
        "image", "claim", "infra", "namespace", "service_account", "zone_labels", "partitions", "account",
        "time_limit", "gres",
    ),
}  # fmt: skip
_OF_LAUNCHERS = {
    "image": ("kubernetes", "pytorchjob", "skypilot"),
    "claim": ("kubernetes", "pytorchjob"),
    "infra": ("skypilot",),
    "namespace": ("kubernetes", "pytorchjob"),
    "service_account": ("kubernetes", "pytorchjob"),
    "zone_labels": ("kubernetes", "pytorchjob"),
    "partitions": ("slurm",),
    "account": ("slurm",),
    "time_limit": ("slurm",),
    "gres": ("slurm",),
}


class FrameworkChoice(Value):
    """A framework a bundle can be made for."""

    name: str
    """As requests name it."""
    title: str
    """What it is called."""
    about: str
    """What it does, in a sentence."""


class LauncherChoice(FrameworkChoice):
    """Something that starts the nodes."""

    needs_addresses: bool
    """It cannot find the nodes by itself: the scenario must tell their addresses."""


class SettingChoice(Value):
    """One setting."""

    name: str
    """Its path, e.g. training.lr."""
    title: str
    """What a form calls it."""
    meaning: str
    """What it does."""
    kind: SettingKind
    """number, count (a whole number), text, flag, or zones (a text for each zone)."""
    group: str
    """What it belongs to: network, folders, launcher or training."""
    launchers: tuple[str, ...]
    """Launchers that read it; empty: all."""
    default: Any
    """What holds when it is not given; null: nothing."""
    least: float | None
    """Smallest number, or what it must be more than."""
    most: float | None
    """Largest number."""


class Choices(Value):
    """Everything that can be chosen; which of them a plan allows, only a preview tells."""

    frameworks: tuple[FrameworkChoice, ...]
    """In the order of the command line."""
    launchers: tuple[LauncherChoice, ...]
    """In the order of the command line."""
    settings: tuple[SettingChoice, ...]
    """In the order of their groups."""


@cache
def choices(language: str) -> Choices:
    """All choices, told in a language."""
    titles = {name: one.title for name, one in frameworks().items()}
    return Choices(
        frameworks=tuple(
            FrameworkChoice(name=name, title=titles.get(name, name), about=_told("framework", name, "about", language))
            for name in FRAMEWORKS
        ),
        launchers=tuple(
            LauncherChoice(
                name=name,
                title=_told("launcher", name, "title", language),
                about=_told("launcher", name, "about", language),
                needs_addresses=load_launcher(name).needs_addresses,
            )
            for name in LAUNCHERS
        ),
        settings=tuple(sorted(_settings(language), key=lambda one: [*_GROUPS, "training"].index(one.group))),
    )


def _told(group: str, code: str, part: str, language: str) -> str:
    return render_sentence(group, code, part, language, {})


def _settings(language: str) -> Iterator[SettingChoice]:
    schema = json_schema("launch", {"launch": LaunchSettings})
    inner = schema["$defs"]["Training"]["properties"]
    fields = {key: said for key, said in schema["properties"].items() if key != "training"}
    fields |= {f"training.{key}": said for key, said in inner.items()}
    for name, said in fields.items():
        shape = next(one for one in said.get("anyOf", [said]) if one.get("type") != "null")
        code = name.removeprefix("training.")
        yield SettingChoice(
            name=name,
            title=_told("setting", code, "title", language),
            meaning=_told("setting", code, "meaning", language),
            kind=_kind(shape),
            group=next((group for group, names in _GROUPS.items() if name in names), "training"),
            launchers=_OF_LAUNCHERS.get(name, ()),
            default=said.get("default"),
            least=shape.get("minimum", shape.get("exclusiveMinimum")),
            most=shape.get("maximum"),
        )


def _kind(shape: dict[str, Any]) -> SettingKind:
    kinds: dict[str, SettingKind] = {
        "number": "number", "integer": "count", "boolean": "flag", "string": "text", "object": "zones",
    }  # fmt: skip
    return kinds[shape["type"]]
