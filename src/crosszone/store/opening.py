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
from crosszone.store.address import format_address, parse_address, wrap_error
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
        return format_address(self._engine.url)

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
CONNECT_S = 5  # The driver would wait for minutes on a host that drops packets
# Key of the lock under which one server at a time changes the schema of a PostgreSQL database.
_LOCK_KEY = 0x63726F7373


def open_store(url: str | None = None) -> Store:
    """The store of a file or database; it is made, or brought up to date, when it is not yet.

    url: a path, `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/DATABASE`; none: `crosszone.db` in the user's
    folder. `InvalidError` when it is none of these, `StoreError` when the database cannot be used.
    """
    address = parse_address(url)
    if url is None:
        _make_folder(Path(str(address.database)).parent)
    try:
        engine = _create_engine(address)
    except ImportError as error:
        raise wrap_error(error, address) from None
    try:
        if engine.dialect.name == "sqlite":
            _enable_write_ahead(engine)
        with engine.execution_options(crosszone_begin="BEGIN IMMEDIATE").begin() as connection:
            _apply_revisions(connection)
    except SQLAlchemyError as error:
        engine.dispose()
        raise wrap_error(error, address, opening=True) from None
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


def _create_engine(address: URL) -> Engine:
    if address.get_backend_name() == "sqlite":
        engine = create_engine(address)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    # Pre-ping: a server that was started again has closed our connections, which shows only when one is used.
    options = {"connect_timeout": str(CONNECT_S), **address.query}
    return create_engine(address.set(query=options), pool_pre_ping=True)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Settings of each connection; transactions begin where we say, which the driver would leave to its own guess."""
    connection.isolation_level = None
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        # SQLite checks foreign keys only for connections that ask for it.
        cursor.execute("PRAGMA foreign_keys = ON")
        # With a write-ahead log this cannot harm the file: a power cut costs at most the newest commits.
        cursor.execute("PRAGMA synchronous = NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("crosszone_begin", "BEGIN"))


def _enable_write_ahead(engine: Engine) -> None:
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
            store_error = wrap_error(error, engine.url)
            if store_error.notices[0].code != "store_busy" or time.monotonic() > end:
                raise store_error from None
        time.sleep(0.05)


def _apply_revisions(connection: Connection) -> None:
    """Run the revisions that the database lacks; another server that opens it now waits until they are done."""
    # Imported here: only what opens a store waits for alembic.
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    config = Config()
    # Alembic reads its options with a ConfigParser, for which a percent sign begins a variable.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    _check_tables_ours(connection)
    revision_id = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    if revision_id == script.get_current_head():
        return
    if revision_id is not None and revision_id not in {revision.revision for revision in script.walk_revisions()}:
        address = format_address(connection.engine.url)
        raise StoreError(Notice(code="store_newer", value=address, params={"found": revision_id}))
    command.upgrade(config, "head")


def _check_tables_ours(connection: Connection) -> None:
    """Refuse a database of another program: in a SQLite file any tables, in PostgreSQL tables of our names."""
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE in tables:
        return
    foreign_tables = tables if connection.dialect.name == "sqlite" else tables & set(METADATA.tables)
    if foreign_tables:
        address = format_address(connection.engine.url)
        raise StoreError(Notice(code="store_foreign", value=address, params={"tables": sorted(foreign_tables)[:5]}))
