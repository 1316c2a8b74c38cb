"""Registered things: environments, datasets, models and measured links, each under an id that its owner may choose."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import select

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.dataset import Dataset, TrainingModel
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.inputs.value import Value, parse
from crosszone.store.table import Kept, as_json, now
from crosszone.store.tables import DATASETS, ENVIRONMENTS, MEASURED_LINKS, TRAINING_MODELS

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
Held = TypeVar("Held", bound=Value)


class Entry(Value, Generic[Held]):
    """One registered thing."""

    id: str
    """What it is asked for by."""
    created: str
    """When it was registered, in UTC."""
    changed: str
    """When it was changed last, in UTC."""
    value: Held
    """What it is."""


class Registry(Kept[Entry[Held], Entry[Held]], Generic[Held]):
    """All things of one kind."""

    form: ClassVar[type[Value]]
    """What an entry holds."""

    def add(self, value: Held, *, id: str | None = None) -> Entry[Held]:
        """Register a thing; `InvalidError` when its id is taken or cannot be one."""
        fields: dict[str, Any] = {"changed": now(), "value": as_json(value.to_plain(), "value")}
        if id is not None:
            if not _ID.fullmatch(id):
                raise InvalidError(Notice(code="registered_id", field="id", value=id))
            fields["id"] = id
            if self._is_there(id):
                raise InvalidError(Notice(code="registered_twice", field="id", value=id))
        return self._insert(fields)

    def change(self, id: str, value: Held) -> Entry[Held]:
        """Put another value under an id; `UnknownNameError` when there is none."""
        return self._update(id, {"changed": now(), "value": as_json(value.to_plain(), "value")})

    def put(self, id: str, value: Held) -> Entry[Held]:
        """Register a thing under an id, or change what is there."""
        return self.change(id, value) if self._is_there(id) else self.add(value, id=id)

    def all(self) -> tuple[Entry[Held], ...]:
        """Every entry, in the order in which they were registered."""
        query = select(self.table).order_by(self.table.c.created, self.table.c.id)
        with self._access.reading() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(self._read(self.whole, row) for row in rows)

    def _is_there(self, id: str) -> bool:
        with self._access.reading() as connection:
            return connection.execute(select(self.table.c.id).where(self.table.c.id == id)).first() is not None

    def _read(self, form: type[Value], columns: Mapping[Any, Any]) -> Any:
        plain = dict(columns)
        held = parse(self.form, json.loads(plain["value"]))
        return form(**{**plain, "value": held})


class Environments(Registry[Environment]):
    """Machines that can train."""

    table, row, whole, form = ENVIRONMENTS, Entry[Environment], Entry[Environment], Environment


class Datasets(Registry[Dataset]):
    """What can be trained on."""

    table, row, whole, form = DATASETS, Entry[Dataset], Entry[Dataset], Dataset


class TrainingModels(Registry[TrainingModel]):
    """What can be trained."""

    table, row, whole, form = TRAINING_MODELS, Entry[TrainingModel], Entry[TrainingModel], TrainingModel


class MeasuredLinks(Registry[MeasuredLink]):
    """Links between environments, as they were measured."""

    table, row, whole, form = MEASURED_LINKS, Entry[MeasuredLink], Entry[MeasuredLink], MeasuredLink
