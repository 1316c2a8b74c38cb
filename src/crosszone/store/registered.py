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
from crosszone.store.table import SavedTable, encode_json, format_now
from crosszone.store.tables import DATASETS, ENVIRONMENTS, MEASURED_LINKS, TRAINING_MODELS

# No dot: the nodes that a scheduler is asked for have ids of their source, a dot and a number (`run/request.py`).
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RegisteredValue = TypeVar("RegisteredValue", bound=Value)


class Entry(Value, Generic[RegisteredValue]):
    """One registered thing."""

    id: str
    """What it is asked for by."""
    created: str
    """When it was registered, in UTC."""
    changed: str
    """When it was changed last, in UTC."""
    value: RegisteredValue
    """What it is."""


class Registry(SavedTable[Entry[RegisteredValue], Entry[RegisteredValue]], Generic[RegisteredValue]):
    """All things of one kind."""

    value_type: ClassVar[type[Value]]
    """What an entry holds."""

    def add(self, value: RegisteredValue, *, id: str | None = None) -> Entry[RegisteredValue]:
        """Register a thing; `InvalidError` when its id is taken or cannot be one."""
        fields: dict[str, Any] = {"changed": format_now(), "value": encode_json(value.to_plain(), "value")}
        if id is not None:
            if not _ID.fullmatch(id):
                raise InvalidError(Notice(code="registered_id", field="id", value=id))
            fields["id"] = id
            if self._has_id(id):
                raise InvalidError(Notice(code="registered_twice", field="id", value=id))
        return self._insert(fields)

    def change(self, id: str, value: RegisteredValue) -> Entry[RegisteredValue]:
        """Put another value under an id; `UnknownNameError` when there is none."""
        return self._update(id, {"changed": format_now(), "value": encode_json(value.to_plain(), "value")})

    def put(self, id: str, value: RegisteredValue) -> Entry[RegisteredValue]:
        """Register a thing under an id, or change what is there."""
        return self.change(id, value) if self._has_id(id) else self.add(value, id=id)

    def all(self) -> tuple[Entry[RegisteredValue], ...]:
        """Every entry, in the order in which they were registered."""
        query = select(self.table).order_by(self.table.c.created, self.table.c.id)
        with self._access.begin_read() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(self._read(self.record_type, row) for row in rows)

    def _has_id(self, id: str) -> bool:
        with self._access.begin_read() as connection:
            return connection.execute(select(self.table.c.id).where(self.table.c.id == id)).first() is not None

    def _read(self, result_type: type[Value], columns: Mapping[Any, Any]) -> Any:
        plain = dict(columns)
        value = parse(self.value_type, json.loads(plain["value"]))
        return result_type(**{**plain, "value": value})


class Environments(Registry[Environment]):
    """Machines that can train."""

    table, row_type, record_type, value_type = ENVIRONMENTS, Entry[Environment], Entry[Environment], Environment


class Datasets(Registry[Dataset]):
    """What can be trained on."""

    table, row_type, record_type, value_type = DATASETS, Entry[Dataset], Entry[Dataset], Dataset


class TrainingModels(Registry[TrainingModel]):
    """What can be trained."""

    table, row_type, record_type, value_type = (
        TRAINING_MODELS,
        Entry[TrainingModel],
        Entry[TrainingModel],
        TrainingModel,
    )


class MeasuredLinks(Registry[MeasuredLink]):
    """Links between environments, as they were measured."""

    table, row_type, record_type, value_type = MEASURED_LINKS, Entry[MeasuredLink], Entry[MeasuredLink], MeasuredLink
