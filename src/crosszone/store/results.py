"""Saved results of any kind: predicted, taken from a sheet, or measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crosszone.analyse.outcome import KINDS, Kind
from crosszone.errors import UnknownNameError
from crosszone.inputs.value import Value
from crosszone.store.table import Kept
from crosszone.store.tables import RESULTS
from crosszone.store.text import MAX_NOTE, as_json, checked_name, checked_text

_JSON = ("way", "headline", "document", "timeline")


__all__ = ["KINDS", "Kind", "Result", "ResultRow", "Results"]


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


class Results(Kept[ResultRow, Result]):
    """All saved results."""

    table, row, whole = RESULTS, ResultRow, Result

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
        own = {"name": checked_name(name), "note": checked_text(note, "note", MAX_NOTE)}
        return self._insert(own | _numbers(kind, document, headline, scenario, way, timeline))

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
        numbers = _numbers(kind, document, headline, scenario, None, None)
        try:
            self.get(id)
        except UnknownNameError:
            own = {"id": id, "name": checked_name(name), "note": checked_text(note, "note", MAX_NOTE)}
            return self._insert(own | numbers)
        return self._update(id, numbers)

    def change(self, id: str, *, name: str | None = None, note: str | None = None) -> Result:
        """Give it another name, another note, or both."""
        fields = {"name": checked_name(name)} if name is not None else {}
        if note is not None:
            fields["note"] = checked_text(note, "note", MAX_NOTE)
        return self._update(id, fields)

    def _read(self, form: type[Value], columns: Mapping[Any, Any]) -> Any:
        plain = {key: json.loads(value) if key in _JSON and value else value for key, value in columns.items()}
        return form(**plain)


def _numbers(
    kind: Kind,
    document: Mapping[str, Any],
    headline: Mapping[str, Any],
    scenario: str | None,
    way: Mapping[str, Any] | None,
    timeline: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a result says, as columns."""
    return {
        "kind": kind,
        "scenario": None if scenario is None else checked_text(scenario, "scenario"),
        "way": None if way is None else as_json(way, "way"),
        "headline": as_json(headline, "headline"),
        "document": as_json(document, "document"),
        "timeline": None if timeline is None else as_json(timeline, "timeline"),
    }
