"""Saved scenarios: the text as it was written, under a name."""

from __future__ import annotations

from crosszone.inputs.value import Value
from crosszone.store.table import Kept, now
from crosszone.store.tables import SCENARIOS
from crosszone.store.text import checked_name, checked_text


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


class Scenarios(Kept[ScenarioRow, SavedScenario]):
    """All saved scenarios."""

    table, row, whole = SCENARIOS, ScenarioRow, SavedScenario

    def add(self, *, name: str, text: str) -> SavedScenario:
        """Save a scenario; `InvalidError` when name or text cannot be kept."""
        fields = {"name": checked_name(name), "text": checked_text(text, "text")}
        return self._insert({**fields, "changed": now()})

    def change(self, id: str, *, name: str | None = None, text: str | None = None) -> SavedScenario:
        """Give it another name, another text, or both."""
        fields = {"name": checked_name(name)} if name is not None else {}
        if text is not None:
            fields["text"] = checked_text(text, "text")
        return self._update(id, {**fields, "changed": now()} if fields else {})
