"""Saved scenarios (the text as it was written), bundles (the files that start a plan) and results of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crosszone.analyse.outcome import Kind
from crosszone.deploy.bundle import Bundle
from crosszone.errors import InvalidError, Notice, UnknownNameError
from crosszone.inputs.value import Value
from crosszone.store.table import MAX_NOTE, SavedTable, check_name, check_text, format_now, pack_json
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
    packed_columns = ("bundle",)
    max_rows = MAX_BUNDLES

    def add(self, *, name: str, bundle: Bundle) -> SavedBundle:
        """Save a bundle; `InvalidError` when it cannot be kept."""
        # `replace`: half a surrogate pair must not end the count with an error.
        size = sum(len(file.text.encode("utf-8", "replace")) for file in bundle.files)
        _check_bundle_size(size, MAX_BUNDLE_BYTES)
        packed = pack_json(bundle.model_dump(mode="json"))
        _check_bundle_size(len(packed), MAX_PACKED_BYTES)
        # Columns of their own, so that a list need not unpack the bundle.
        copied = {key: getattr(bundle, key) for key in ("framework", "launcher", "template", "world_size")}
        derived = {"name": check_name(name), "nodes": len(bundle.nodes), "bytes": size, "bundle": packed}
        return self._insert({**copied, **derived})


def _check_bundle_size(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidError(Notice(code="saved_too_large", field="bundle", value=size, params={"limit": limit}))


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
    json_columns = ("way", "headline", "document", "timeline")

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
        texts = {"name": check_name(name), "note": check_text(note, "note", MAX_NOTE)}
        fields = {"kind": kind, "scenario": _check_scenario(scenario), "way": way, "timeline": timeline}
        return self._insert(texts | self._encode({**fields, "headline": headline, "document": document}))

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
        fields = {"kind": kind, "scenario": _check_scenario(scenario), "way": None, "timeline": None}
        columns = self._encode({**fields, "headline": headline, "document": document})
        try:
            self.get(id)
        except UnknownNameError:
            texts = {"name": check_name(name), "note": check_text(note, "note", MAX_NOTE)}
            return self._insert({"id": id, **texts, **columns})
        return self._update(id, columns)

    def change(self, id: str, *, name: str | None = None, note: str | None = None) -> Result:
        """Give it another name, another note, or both."""
        fields = {"name": check_name(name)} if name is not None else {}
        if note is not None:
            fields["note"] = check_text(note, "note", MAX_NOTE)
        return self._update(id, fields)


def _check_scenario(text: str | None) -> str | None:
    return None if text is None else check_text(text, "scenario")
