"""Table: rows with an id and a time, listed newest first, in pages; and the way to the database that all share.

Text that can be kept: bounded, and of characters that every database takes.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from string import ascii_letters, digits
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy
from sqlalchemy import Connection, Engine, func, select, tuple_
from sqlalchemy.exc import SQLAlchemyError

from crosszone.errors import InvalidError, Notice, UnknownNameError
from crosszone.inputs.value import Value
from crosszone.store.address import failure

MAX_ROWS = 10_000
MAX_PAGE = 500
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CURSOR = re.compile(r"([0-9T:.+-]{20,32})~([A-Za-z0-9_-]{1,64})")

Row = TypeVar("Row", bound=Value)
Whole = TypeVar("Whole", bound=Value)


class Page(Value, Generic[Row]):
    """Some of the rows, newest first."""

    rows: tuple[Row, ...]
    """The rows."""
    before: str | None
    """Ask for the rows before this one to go on; null: these were the last."""
    total: int
    """All rows there are."""


class Access:
    """Transactions on one database; what goes wrong in them is told as a notice."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writing = engine.execution_options(crosszone_begin="BEGIN IMMEDIATE")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads."""
        with self._told(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes; in SQLite it waits its turn at once, which a reader turned writer cannot."""
        with self._told(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise failure(error, self._engine.url) from None


def new_id() -> str:
    """An id that nobody can guess; letters and digits, so that no command line takes it for an option."""
    return "".join(secrets.choice(ascii_letters + digits) for _ in range(16))


class Kept(Generic[Row, Whole]):
    """The rows of one table: `page`, `add`, `get`, `change`, `remove`."""

    table: ClassVar[sqlalchemy.Table]
    row: ClassVar[type[Value]]
    """What a list shows of it."""
    whole: ClassVar[type[Value]]
    """All of it."""

    def __init__(self, access: Access, most: int = MAX_ROWS) -> None:
        self._access = access
        self.most = most

    def page(self, *, limit: int = 50, before: str | None = None) -> Page[Row]:
        """At most `limit` rows, newest first, from where `before` says; `InvalidError` when it says nothing."""
        columns = [self.table.c[name] for name in self.row.model_fields]
        place = tuple_(self.table.c.created, self.table.c.id)
        query = select(*columns).order_by(self.table.c.created.desc(), self.table.c.id.desc())
        if before is not None:
            query = query.where(place < tuple_(*_cursor(before)))
        with self._access.reading() as connection:
            found = connection.execute(query.limit(min(limit, MAX_PAGE) + 1)).mappings().all()
            total = connection.execute(select(func.count()).select_from(self.table)).scalar_one()
        rows = [self._read(self.row, one) for one in found[: min(limit, MAX_PAGE)]]
        more = len(found) > len(rows) and rows
        last = found[len(rows) - 1] if more else None
        return Page(rows=tuple(rows), before=f"{last['created']}~{last['id']}" if last else None, total=total)

    def get(self, id: str) -> Whole:
        """One row with everything it holds; `UnknownNameError` when there is none."""
        with self._access.reading() as connection:
            return self._found(connection, id)

    def remove(self, id: str) -> None:
        """Forget one row; `UnknownNameError` when there is none."""
        with self._access.writing() as connection:
            gone = connection.execute(self.table.delete().where(self.table.c.id == _checked(id))).rowcount
        if not gone:
            raise _missing(id)

    def _insert(self, fields: Mapping[str, Any]) -> Whole:
        made = {"id": new_id(), "created": now(), **fields}
        with self._access.writing() as connection:
            count = connection.execute(select(func.count()).select_from(self.table)).scalar_one()
            if count >= self.most:
                raise InvalidError(Notice(code="store_full", value=count, params={"limit": self.most}))
            connection.execute(self.table.insert().values(made))
            return self._found(connection, made["id"])

    def _update(self, id: str, fields: Mapping[str, Any]) -> Whole:
        with self._access.writing() as connection:
            if fields:
                connection.execute(self.table.update().where(self.table.c.id == _checked(id)).values(fields))
            return self._found(connection, id)

    def _found(self, connection: Connection, id: str) -> Whole:
        query = select(self.table).where(self.table.c.id == _checked(id))
        found = connection.execute(query).mappings().one_or_none()
        if found is None:
            raise _missing(id)
        whole: Whole = self._read(self.whole, found)
        return whole

    def _read(self, form: type[Value], columns: Mapping[Any, Any]) -> Any:
        """A row of the database as a value."""
        return form(**columns)


def now() -> str:
    """The time in UTC, of equal length always, so that its text sorts as it does."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _checked(id: str) -> str:
    """The id, if it can be one: others never reach the database, which may refuse their characters."""
    if not _ID.fullmatch(id):
        raise _missing(id)
    return id


def _missing(id: str) -> UnknownNameError:
    return UnknownNameError(Notice(code="saved_missing", field="id", value=id))


def _cursor(text: str) -> tuple[str, str]:
    found = _CURSOR.fullmatch(text)
    if not found:
        raise InvalidError(Notice(code="not_a_place", field="before", value=text))
    return found[1], found[2]


MAX_NAME = 200
MAX_NOTE = 10_000
MAX_DOCUMENT = 4 * 1024 * 1024  # Bytes of a scenario, a document or a timeline
_UNSEEN = {"Cc", "Cs", "Zl", "Zp"}  # Control characters, halves of a pair, breaks of lines


def checked_name(name: str) -> str:
    """A name without blanks around it; `InvalidError` when it cannot be one."""
    kept = name.strip()
    if not 1 <= len(kept) <= MAX_NAME or any(unicodedata.category(c) in _UNSEEN for c in kept):
        raise InvalidError(Notice(code="saved_name", field="name", value=name, params={"limit": MAX_NAME}))
    return kept


def checked_text(text: str, field: str, limit: int = MAX_DOCUMENT) -> str:
    """Text of at most `limit` bytes; `InvalidError` for what a database cannot keep."""
    for place, character in enumerate(text):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            params = {"character": f"U+{ord(character):04X}", "place": place + 1}
            raise InvalidError(Notice(code="text_unstorable", field=field, params=params))
    return _bounded(text, field, limit)


def as_json(document: Any, field: str) -> str:
    """A document as JSON in ASCII, so that no database minds its characters."""
    return _bounded(json.dumps(document, allow_nan=False, separators=(",", ":")), field, MAX_DOCUMENT)


def _bounded(text: str, field: str, limit: int) -> str:
    size = len(text.encode())
    if size > limit:
        raise InvalidError(Notice(code="saved_too_large", field=field, value=size, params={"limit": limit}))
    return text
