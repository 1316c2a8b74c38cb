"""Table: rows with an id and a time, listed newest first, in pages; and the way to the database that all share.

Text that can be kept: bounded, and of characters that every database takes.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
import zlib
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
from crosszone.store.address import wrap_error

MAX_ROWS = 10_000
MAX_PAGE = 500
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CURSOR = re.compile(r"([0-9T:.+-]{20,32})~([A-Za-z0-9_-]{1,64})")

Row = TypeVar("Row", bound=Value)
FullRecord = TypeVar("FullRecord", bound=Value)


class Page(Value, Generic[Row]):
    """Some of the rows, newest first."""

    rows: tuple[Row, ...]
    """The rows."""
    before: str | None
    """Ask for the rows before this one to go on; null: these were the last."""
    total: int
    """All rows there are."""


class Access:
    """Transactions on one database; a driver's error becomes a `StoreError` with a notice."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writing = engine.execution_options(crosszone_begin="BEGIN IMMEDIATE")

    @contextmanager
    def begin_read(self) -> Iterator[Connection]:
        """A transaction that only reads."""
        with self._translate_errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def begin_write(self) -> Iterator[Connection]:
        """A transaction that writes; in SQLite it waits its turn at once, which a reader turned writer cannot."""
        with self._translate_errors(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise wrap_error(error, self._engine.url) from None


def make_id() -> str:
    """An id that nobody can guess; letters and digits, so that no command line takes it for an option."""
    return "".join(secrets.choice(ascii_letters + digits) for _ in range(16))


class SavedTable(Generic[Row, FullRecord]):
    """The rows of one table: `page`, `add`, `get`, `change`, `remove`."""

    table: ClassVar[sqlalchemy.Table]
    row_type: ClassVar[type[Value]]
    """What a list shows of it."""
    record_type: ClassVar[type[Value]]
    """All of it."""
    json_columns: ClassVar[tuple[str, ...]] = ()
    """Columns that hold JSON."""
    packed_columns: ClassVar[tuple[str, ...]] = ()
    """Columns that hold compressed JSON."""
    max_rows = MAX_ROWS

    def __init__(self, access: Access) -> None:
        self._access = access

    def page(self, *, limit: int = 50, before: str | None = None) -> Page[Row]:
        """At most `limit` rows, newest first, from where `before` says; `InvalidError` when it says nothing."""
        columns = [self.table.c[name] for name in self.row_type.model_fields]
        # The id breaks ties: rows of one microsecond are neither repeated nor left out by the next page.
        position = tuple_(self.table.c.created, self.table.c.id)
        query = select(*columns).order_by(self.table.c.created.desc(), self.table.c.id.desc())
        if before is not None:
            query = query.where(position < tuple_(*_parse_cursor(before)))
        with self._access.begin_read() as connection:
            # One more than was asked for: where it exists, there is another page.
            rows = connection.execute(query.limit(min(limit, MAX_PAGE) + 1)).mappings().all()
            total = connection.execute(select(func.count()).select_from(self.table)).scalar_one()
        page_rows = [self._read(self.row_type, row) for row in rows[: min(limit, MAX_PAGE)]]
        has_more = len(rows) > len(page_rows) and page_rows
        last = rows[len(page_rows) - 1] if has_more else None
        return Page(rows=tuple(page_rows), before=f"{last['created']}~{last['id']}" if last else None, total=total)

    def get(self, id: str) -> FullRecord:
        """One row with everything it holds; `UnknownNameError` when there is none."""
        with self._access.begin_read() as connection:
            return self._fetch(connection, id)

    def remove(self, id: str) -> None:
        """Forget one row; `UnknownNameError` when there is none."""
        with self._access.begin_write() as connection:
            deleted_rows = connection.execute(self.table.delete().where(self.table.c.id == _check_id(id))).rowcount
        if not deleted_rows:
            raise _make_missing_error(id)

    def _insert(self, fields: Mapping[str, Any]) -> FullRecord:
        columns = {"id": make_id(), "created": format_now(), **fields}
        with self._access.begin_write() as connection:
            count = connection.execute(select(func.count()).select_from(self.table)).scalar_one()
            if count >= self.max_rows:
                raise InvalidError(Notice(code="store_full", value=count, params={"limit": self.max_rows}))
            connection.execute(self.table.insert().values(columns))
            return self._fetch(connection, columns["id"])

    def _update(self, id: str, fields: Mapping[str, Any]) -> FullRecord:
        with self._access.begin_write() as connection:
            if fields:
                connection.execute(self.table.update().where(self.table.c.id == _check_id(id)).values(fields))
            return self._fetch(connection, id)

    def _fetch(self, connection: Connection, id: str) -> FullRecord:
        query = select(self.table).where(self.table.c.id == _check_id(id))
        row = connection.execute(query).mappings().one_or_none()
        if row is None:
            raise _make_missing_error(id)
        record: FullRecord = self._read(self.record_type, row)
        return record

    def _encode(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Values as their columns hold them; `InvalidError` when one is too large."""
        columns = dict(fields)
        for name in self.json_columns:
            if columns.get(name) is not None:
                columns[name] = encode_json(columns[name], name)
        for name in self.packed_columns:
            if columns.get(name) is not None:
                columns[name] = pack_json(columns[name])
        return columns

    def _read(self, result_type: type[Value], columns: Mapping[Any, Any]) -> Any:
        """A row of the database as a value."""
        fields = dict(columns)
        for name in self.json_columns:
            if fields.get(name):
                fields[name] = json.loads(fields[name])
        for name in self.packed_columns:
            if fields.get(name):
                fields[name] = json.loads(zlib.decompress(fields[name]))
        return result_type(**fields)


def format_now() -> str:
    """The time in UTC, of equal length always, so that its text sorts as it does."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _check_id(id: str) -> str:
    """The id, if it can be one: others never reach the database, which may refuse their characters."""
    if not _ID.fullmatch(id):
        raise _make_missing_error(id)
    return id


def _make_missing_error(id: str) -> UnknownNameError:
    return UnknownNameError(Notice(code="saved_missing", field="id", value=id))


def _parse_cursor(text: str) -> tuple[str, str]:
    match = _CURSOR.fullmatch(text)
    if not match:
        raise InvalidError(Notice(code="not_a_place", field="before", value=text))
    return match[1], match[2]


MAX_NAME = 200
MAX_NOTE = 10_000
MAX_DOCUMENT = 4 * 1024 * 1024  # Bytes of a scenario, a document or a timeline
_INVISIBLE = {"Cc", "Cs", "Zl", "Zp"}  # Control characters, halves of a pair, breaks of lines


def check_name(name: str) -> str:
    """A name without blanks around it; `InvalidError` when it cannot be one."""
    stripped = name.strip()
    if not 1 <= len(stripped) <= MAX_NAME or any(unicodedata.category(c) in _INVISIBLE for c in stripped):
        raise InvalidError(Notice(code="saved_name", field="name", value=name, params={"limit": MAX_NAME}))
    return stripped


def check_text(text: str, field: str, limit: int = MAX_DOCUMENT) -> str:
    """Text of at most `limit` bytes; `InvalidError` for what a database cannot keep."""
    for place, character in enumerate(text):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            params = {"character": f"U+{ord(character):04X}", "place": place + 1}
            raise InvalidError(Notice(code="text_unstorable", field=field, params=params))
    return _check_size(text, field, limit)


def encode_json(document: Any, field: str) -> str:
    """A document as JSON in ASCII, so that no database minds its characters."""
    return _check_size(json.dumps(document, allow_nan=False, separators=(",", ":")), field, MAX_DOCUMENT)


def pack_json(document: Any) -> bytes:
    """A document as compressed JSON, for the scripts of many nodes, which are nearly alike."""
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode())


def _check_size(text: str, field: str, limit: int) -> str:
    size = len(text.encode())
    if size > limit:
        raise InvalidError(Notice(code="saved_too_large", field=field, value=size, params={"limit": limit}))
    return text
