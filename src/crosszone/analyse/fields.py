"""Fields of a scenario, named by path and changed: what every what-if, switch and sweep is made of.

    change_scenario(scenario, {"job.global_batch": 2048})
    change_scenario(scenario, {"cluster.links[beijing-a,shanghai-a].gbps": 40, "strategy.local_update.steps": 100})

A path goes through keys with dots and through lists with brackets: a number, a zone's name, two zones' names for the
link between them, or * for all. What a path leads through is made where it is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import Document, parse_scalar
from crosszone.inputs.scenario import Loaded, Scenario, read_scenario

# Keys that may hold the name of a catalogue entry; a field of it is changed in a copy.
BY_NAME = ("model", "gpu", "region")
ALL = "*"
_STEP = re.compile(r"(?P<key>[^.\[\]]+)|\[(?P<entry>[^\[\]]+)\]")
_PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[[^\[\]]+\])*")

Step = tuple[str, bool]  # Key or entry, and whether it is an entry of a list


def change_scenario(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """The scenario with fields changed, checked as a file would be; an `InputError` names what is wrong."""
    return read_changed(scenario, changes).scenario


def read_changed(scenario: Scenario, changes: Mapping[str, Any]) -> Loaded:
    """Like `change_scenario`, with the notices that reading the scenario gave."""
    return read_scenario(Document(change_fields(scenario.to_fields(), changes)))


def change_fields(value: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of a scenario with the fields at some paths set."""
    fields_now: Any = dict(value)
    for path, new in changes.items():
        fields_now = _set(fields_now, split_path(path), new, _Place(path, fields_now))
    fields: dict[str, Any] = fields_now
    return fields


def read_change(text: str) -> tuple[str, Any]:
    """Path and value of `PATH=VALUE`; a value may be a list with commas in brackets."""
    path, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise InvalidError(Notice(code="change_malformed", field="--set", value=text))
    split_path(path)
    if value.startswith("[") and value.endswith("]"):
        inner = value[1:-1].strip()
        return path, [parse_scalar(item.strip()) for item in inner.split(",")] if inner else []
    return path, parse_scalar(value)


def read_changes(texts: Iterable[str]) -> dict[str, Any]:
    """The changes of several such texts; a path may be given once."""
    changes: dict[str, Any] = {}
    for text in texts:
        path, value = read_change(text)
        if path in changes:
            raise InvalidError(Notice(code="change_twice", field="--set", value=path))
        changes[path] = value
    return changes


def split_path(path: str) -> list[Step]:
    """The steps of a path."""
    if not _PATH.fullmatch(path):
        raise InvalidError(Notice(code="path_malformed", field="--set", value=path))
    return [(match["entry"] or match["key"], match["entry"] is not None) for match in _STEP.finditer(path)]


class _Place:
    """A position in the scenario, on the way along a path."""

    def __init__(self, path: str, root: Mapping[str, Any], at: tuple[str, ...] = ()):
        self.path, self.root, self.at = path, root, at

    def descend(self, step: str) -> _Place:
        return _Place(self.path, self.root, (*self.at, step))

    @property
    def key(self) -> str:
        """The last key."""
        return self.at[-1] if self.at else ""

    def make_error(self, code: str, value: Any, **params: Any) -> InvalidError:
        return InvalidError(Notice(code=code, field=self.path, value=value, params=params))


def _set(value: Any, steps: list[Step], new: Any, place: _Place) -> Any:
    """A copy of the value in which the steps lead to `new`."""
    if not steps:
        return new
    (step, is_entry), remaining = steps[0], steps[1:]
    if is_entry:
        return _set_entry(value, step, remaining, new, place)
    if isinstance(value, str) and place.key in BY_NAME:
        value = {"like": value}
    if value is not None and not isinstance(value, Mapping):
        raise place.make_error("path_no_mapping", step, at=".".join(place.at))
    fields = dict(value or {})
    fields[step] = _set(fields.get(step), remaining, new, place.descend(step))
    return fields


def _set_entry(value: Any, entry: str, remaining: list[Step], new: Any, place: _Place) -> Any:
    """The list with one of its entries, or all, changed."""
    if value is not None and not isinstance(value, list | tuple):
        raise place.make_error("path_no_list", entry, at=".".join(place.at))
    items = list(value or [])

    def change(item: Any, steps: list[Step] = remaining) -> Any:
        return _set(item, steps, new, _Place(place.path, place.root, (*place.at[:-1], entry)))

    if place.at == ("cluster", "links") and not entry.isdigit():
        return _set_links(items, entry, remaining, change, place)
    if entry == ALL:
        return [change(item) for item in items]
    if entry.isdigit() and int(entry) < len(items):
        at = int(entry)
        return [change(item) if number == at else item for number, item in enumerate(items)]
    names = [item.get("name") for item in items if isinstance(item, Mapping)]
    # digits are always a place, also where a zone is called so
    if not entry.isdigit() and entry in names:
        at = names.index(entry)
        return [change(item) if number == at else item for number, item in enumerate(items)]
    choices = [name for name in names if name] or list(range(len(items)))
    raise place.make_error("path_no_entry", entry, at=".".join(place.at), known=choices, count=len(items))


def _set_links(
    items: list[Any], entry: str, remaining: list[Step], change: Callable[..., Any], place: _Place
) -> list[Any]:
    """The links with that between two zones changed, or all of them; one that is not listed is added."""
    zones = place.root["cluster"].get("zones")
    zone_names = (
        [zone.get("name") for zone in zones if isinstance(zone, Mapping)] if isinstance(zones, list | tuple) else []
    )
    names = [name for name in zone_names if isinstance(name, str)]
    if entry == ALL:
        pairs = list(combinations(names, 2))
    else:
        pair = tuple(name.strip() for name in entry.split(","))
        if len(pair) != 2 or not set(pair) <= set(names) or pair[0] == pair[1]:
            raise place.make_error("path_no_link", entry, known=names)
        pairs = [(pair[0], pair[1])]
    new_items = list(items)
    for pair in pairs:
        at = next((i for i, link in enumerate(new_items) if _list_ends(link) == set(pair)), None)
        if at is None:
            new_items.append(change({"between": list(pair)}))
            continue
        link = new_items[at]
        is_reversed = list(link["between"]) != list(pair)
        new_items[at] = change(link, _reverse_steps(remaining, link) if is_reversed and entry != ALL else remaining)
    return new_items


def _list_ends(link: Any) -> set[str]:
    """The zones that a link joins; empty where its `between` is malformed."""
    between = link.get("between") if isinstance(link, Mapping) else None
    return {name for name in between if isinstance(name, str)} if isinstance(between, list | tuple) else set()


def _reverse_steps(remaining: list[Step], link: Mapping[str, Any]) -> list[Step]:
    """The steps on a link that is named from its other end: `KEY_back` in place of `KEY` where the link has it."""
    back = f"{remaining[0][0]}_back" if remaining else ""
    return [(back, False), *remaining[1:]] if link.get(back) is not None else remaining
