"""Saved scenarios: the text as it was written, under a name.

Saved bundles: the files that start a plan, kept as they were made.

Saved results of any kind: predicted, taken from a sheet, or measured.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from crosszone.analyse.outcome import KINDS, Kind
from crosszone.deploy.bundle import Bundle
from crosszone.errors import InvalidError, Notice, UnknownNameError
from crosszone.inputs.value import Value
from crosszone.store.table import MAX_NOTE, Access, SavedTable, check_name, check_text, encode_json, format_now
from crosszone.store.tables import BUNDLES, RESULTS, SCENARIOS


class ScenarioRow(Value):
    """What a list shows of a saved scenario."""

    id: str
    """What it is asked for by."""
    name: str
    """What the user calls it."""
    created: str
    """When it was saved first, in UTC."""
    changed: str
    """When it was changed last, in UTC."""


class SavedScenario(ScenarioRow):
    """A saved scenario."""

    text: str
    """The scenario as YAML or JSON text."""


class Scenarios(SavedTable[ScenarioRow, SavedScenario]):
    """All saved scenarios."""

    table, row_type, record_type = SCENARIOS, ScenarioRow, SavedScenario

    def add(self, *, name: str, text: str) -> SavedScenario:
        """Save a scenario; `InvalidError` when name or text cannot be kept."""
        fields = {"name": check_name(name), "text": check_text(text, "text")}
        return self._insert({**fields, "changed": format_now()})

    def change(self, id: str, *, name: str | None = None, text: str | None = None) -> SavedScenario:
        """Give it another name, another text, or both."""
        fields = {"name": check_name(name)} if name is not None else {}
        if text is not None:
            fields["text"] = check_text(text, "text")
        return self._update(id, {**fields, "changed": format_now()} if fields else {})


MAX_BUNDLES = 1000
MAX_BUNDLE_BYTES = 64 * 1024 * 1024  # Bytes of a bundle's files
# Bytes that it takes in the database: the scripts of thousands of nodes are nearly alike, so they are packed well.
MAX_PACKED_BYTES = 8 * 1024 * 1024


class BundleRow(Value):
    """What a list shows of a saved bundle."""

    id: str
    """What it is asked for by."""
    name: str
    """What the user calls it."""
    framework: str
    """Framework it is made for."""
    launcher: str
    """What starts the nodes."""
    template: bool
    """Addresses are still to be filled in."""
    world_size: int
    """Ranks."""
    nodes: int
    """How many nodes take part."""
    created: str
    """When it was saved, in UTC."""
    bytes: int
    """Size of its files."""


class SavedBundle(BundleRow):
    """A saved bundle."""

    bundle: Bundle
    """All of it."""


class Bundles(SavedTable[BundleRow, SavedBundle]):
    """All saved bundles."""

    table, row_type, record_type = BUNDLES, BundleRow, SavedBundle

    def __init__(self, access: Access, max_rows: int = MAX_BUNDLES) -> None:
        super().__init__(access, max_rows)

    def add(self, *, name: str, bundle: Bundle) -> SavedBundle:
        """Save a bundle; `InvalidError` when it cannot be kept."""
        # `replace`: half a surrogate pair must not end the count with an error.
        size = sum(len(file.text.encode("utf-8", "replace")) for file in bundle.files)
        _check_bundle_size(size, MAX_BUNDLE_BYTES)
        packed = zlib.compress(json.dumps(bundle.model_dump(mode="json"), separators=(",", ":")).encode())
        _check_bundle_size(len(packed), MAX_PACKED_BYTES)
        # Columns of their own, so that a list need not unpack the bundle.
        copied = {key: getattr(bundle, key) for key in ("framework", "launcher", "template", "world_size")}
        derived = {"name": check_name(name), "nodes": len(bundle.nodes), "bytes": size, "bundle": packed}
        return self._insert({**copied, **derived})

    def _read(self, result_type: type[Value], columns: Mapping[Any, Any]) -> Any:
        plain = dict(columns)
        if "bundle" in plain:
            plain["bundle"] = json.loads(zlib.decompress(plain["bundle"]))
        return result_type(**plain)


def _check_bundle_size(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidError(Notice(code="saved_too_large", field="bundle", value=size, params={"limit": limit}))


_JSON_COLUMNS = ("way", "headline", "document", "timeline")


class ResultRow(Value):
    """What a list shows of a saved result."""

    id: str
    """What it is asked for by."""
    kind: Kind
    """Where its numbers come from."""
    name: str
    """What the user calls it."""
    note: str
    """What the user wants to remember of it."""
    created: str
    """When it was saved, in UTC."""
    headline: dict[str, Any]
    """Its main figures."""


class Result(ResultRow):
    """A saved result."""

    scenario: str | None
    """Text of the scenario it is of; null: not known."""
    way: dict[str, Any] | None
    """Framework, strategy and placement put over the scenario's own; null: the scenario's own."""
    document: dict[str, Any]
    """All its numbers: of a predicted one, a Prediction; of a run of a task, also `run`: what else was measured."""
    timeline: dict[str, Any] | None
    """Its trace; null: it has none."""


class Results(SavedTable[ResultRow, Result]):
    """All saved results."""

    table, row_type, record_type = RESULTS, ResultRow, Result

    def add(
        self,
        *,
        kind: Kind,
        name: str,
        document: Mapping[str, Any],
        headline: Mapping[str, Any],
        scenario: str | None = None,
        way: Mapping[str, Any] | None = None,
        timeline: Mapping[str, Any] | None = None,
        note: str = "",
    ) -> Result:
        """Save a result; `InvalidError` when a part of it cannot be kept."""
        names = {"name": check_name(name), "note": check_text(note, "note", MAX_NOTE)}
        return self._insert(names | _encode_columns(kind, document, headline, scenario, way, timeline))

    def put(
        self,
        id: str,
        *,
        kind: Kind,
        name: str,
        document: Mapping[str, Any],
        headline: Mapping[str, Any],
        scenario: str | None = None,
        note: str = "",
    ) -> Result:
        """Save a result under an id, or newer numbers of the one that is there; its name and note stay as they are."""
        columns = _encode_columns(kind, document, headline, scenario, None, None)
        try:
            self.get(id)
        except UnknownNameError:
            names = {"id": id, "name": check_name(name), "note": check_text(note, "note", MAX_NOTE)}
            return self._insert(names | columns)
        return self._update(id, columns)

    def change(self, id: str, *, name: str | None = None, note: str | None = None) -> Result:
        """Give it another name, another note, or both."""
        fields = {"name": check_name(name)} if name is not None else {}
        if note is not None:
            fields["note"] = check_text(note, "note", MAX_NOTE)
        return self._update(id, fields)

    def _read(self, result_type: type[Value], columns: Mapping[Any, Any]) -> Any:
        plain = {key: json.loads(value) if key in _JSON_COLUMNS and value else value for key, value in columns.items()}
        return result_type(**plain)


def _encode_columns(
    kind: Kind,
    document: Mapping[str, Any],
    headline: Mapping[str, Any],
    scenario: str | None,
    override: Mapping[str, Any] | None,
    timeline: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a result says, as columns."""
    return {
        "kind": kind,
        "scenario": None if scenario is None else check_text(scenario, "scenario"),
        "way": None if override is None else encode_json(override, "way"),
        "headline": encode_json(headline, "headline"),
        "document": encode_json(document, "document"),
        "timeline": None if timeline is None else encode_json(timeline, "timeline"),
    }


__all__ = ["KINDS", "Kind", "Result", "ResultRow", "Results"]
