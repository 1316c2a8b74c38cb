"""Opening a store: connections, and the schema brought to the newest revision.

Store: everything that is saved.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from crosszone.errors import Notice, StoreError
from crosszone.store.address import address_of, failure, shown
from crosszone.store.registered import Datasets, Environments, MeasuredLinks, TrainingModels
from crosszone.store.saved import Bundles, Results, Scenarios
from crosszone.store.table import Access
from crosszone.store.tables import METADATA, VERSION_TABLE
from crosszone.store.tasks import Tasks


class Store:
    """Everything of one database; any thread may use it."""

    def __init__(self, engine: Engine) -> None:
        access = Access(engine)
        self.scenarios = Scenarios(access)
        self.results = Results(access)
        self.bundles = Bundles(access)
        self.environments = Environments(access)
        self.datasets = Datasets(access)
        self.training_models = TrainingModels(access)
        self.measured_links = MeasuredLinks(access)
        self.tasks = Tasks(access)
        self._engine = engine

    @property
    def address(self) -> str:
        """Where the things are kept, without a password."""
        return shown(self._engine.url)

    def close(self) -> None:
        """Give the connections back; the store cannot be used afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_MS = 5_000  # How long a writer waits for its turn
CONNECT_S = 5
# Key of the lock under which one server at a time changes the schema of a PostgreSQL database.
_LOCK = 0x63726F7373


def open_store(url: str | None = None) -> Store:
    """The store of a file or database; it is made, or brought up to date, when it is not yet.

    url: a path, `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/DATABASE`; none: `crosszone.db` in the user's
    folder. `InvalidError` when it is none of these, `StoreError` when the database cannot be used.
    """
    address = address_of(url)
    if url is None:
        _make_folder(Path(str(address.database)).parent)
    try:
        engine = _engine(address)
    except ImportError as error:
        raise failure(error, address) from None
    try:
        if engine.dialect.name == "sqlite":
            _write_ahead(engine)
        with engine.execution_options(crosszone_begin="BEGIN IMMEDIATE").begin() as connection:
            _bring_up_to_date(connection)
    except SQLAlchemyError as error:
        engine.dispose()
        raise failure(error, address, opening=True) from None
    except StoreError:
        engine.dispose()
        raise
    return Store(engine)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        params = {"reason": error.strerror or str(error)}
        raise StoreError(Notice(code="store_unwritable", value=str(folder), params=params)) from None


def _engine(address: URL) -> Engine:
    if address.get_backend_name() == "sqlite":
        engine = create_engine(address)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    options = {"connect_timeout": str(CONNECT_S), **address.query}
    return create_engine(address.set(query=options), pool_pre_ping=True)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Settings of each connection; transactions begin where we say, which the driver would leave to its own guess."""
    connection.isolation_level = None
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA synchronous = NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("crosszone_begin", "BEGIN"))


def _write_ahead(engine: Engine) -> None:
    """Readers and the writer stay out of each other's way; kept in the file.

    The change is refused at once, without waiting, while another server makes it: so it is tried again.
    """
    end = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            with closing(engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.Error as error:
            told = failure(error, engine.url)
            if told.notices[0].code != "store_busy" or time.monotonic() > end:
                raise told from None
        time.sleep(0.05)


def _bring_up_to_date(connection: Connection) -> None:
    """Run the revisions that the database lacks; another server that opens it now waits until they are done."""
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    _check_own(connection)
    now = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    if now == script.get_current_head():
        return
    if now is not None and now not in {revision.revision for revision in script.walk_revisions()}:
        where = shown(connection.engine.url)
        raise StoreError(Notice(code="store_newer", value=where, params={"found": now}))
    command.upgrade(config, "head")


def _check_own(connection: Connection) -> None:
    """Refuse a database of another program: in a SQLite file any tables, in PostgreSQL tables of our names."""
    found = set(inspect(connection).get_table_names())
    if VERSION_TABLE in found:
        return
    others = found if connection.dialect.name == "sqlite" else found & set(METADATA.tables)
    if others:
        where = shown(connection.engine.url)
        raise StoreError(Notice(code="store_foreign", value=where, params={"tables": sorted(others)[:5]}))
