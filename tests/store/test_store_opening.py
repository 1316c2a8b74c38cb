"""Opening: by default, by path and by URL; old databases are brought up to date, unusable ones are told apart."""

import re
import sqlite3
import sys

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from crosszone.errors import InvalidError, StoreError
from crosszone.store import open_store
from crosszone.store.address import parse_address
from crosszone.store.tables import METADATA, VERSION_TABLE


def told(url):
    """The notice that opening it gives; never with the password, in either language."""
    with pytest.raises((StoreError, InvalidError)) as caught:
        open_store(url)
    notice = caught.value.notices[0]
    for language in ("en", "zh"):
        text = notice.message(language) + notice.hint(language)
        assert "secret-word" not in text
        assert "secret-word" not in str(notice.as_dict(language))
        assert notice.hint(language)
    return notice


def engine_of(url):
    return sa.create_engine(parse_address(url), poolclass=sa.NullPool)


def test_by_default_the_file_lies_in_the_users_folder(home):
    with open_store() as store:
        store.scenarios.add(name="x", text="x")
        assert store.address == str(home / "crosszone.db")
    assert (home / "crosszone.db").is_file()


def test_a_file_is_named_by_its_path_or_as_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store("a b%20.db") as store:
        saved = store.scenarios.add(name="x", text="x")
    with open_store(f"sqlite:///{tmp_path}/a b%2520.db") as again:
        assert again.scenarios.get(saved.id) == saved


def test_sqlite_writes_ahead_waits_five_seconds_and_keeps_foreign_keys(tmp_path):
    with open_store(str(tmp_path / "a.db")) as store, store._engine.connect() as connection:
        addresses = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "busy_timeout", "foreign_keys", "synchronous")
        }
    assert addresses == {"journal_mode": "wal", "busy_timeout": 5000, "foreign_keys": 1, "synchronous": 1}


def test_a_database_of_the_first_revision_is_brought_up_to_date_with_its_rows(url):
    from crosszone.store.migrations.versions import r0001_scenarios

    with engine_of(url).begin() as connection:
        from alembic.operations import Operations

        with Operations.context(MigrationContext.configure(connection)):
            r0001_scenarios.upgrade()
        connection.execute(sa.text(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(sa.text(f"INSERT INTO {VERSION_TABLE} VALUES ('0001')"))
        row = {
            "id": "old",
            "name": "旧",
            "text": "x",
            "created": "2026-01-01T00:00:00.000000+00:00",
            "changed": "2026-01-01T00:00:00.000000+00:00",
        }
        connection.execute(
            sa.text(
                "INSERT INTO scenarios (id, name, text, created, changed) VALUES (:id, :name, :text, :created, :changed)"
            ),
            row,
        )
    with open_store(url) as store:
        assert store.scenarios.get("old").name == "旧"
        assert store.results.page().total == 0
        store.results.add(kind="sheet", name="new", document={}, headline={})


def test_the_revisions_make_the_tables_the_code_reads(store):
    with store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_a_newer_database_is_left_as_it_is(url):
    open_store(url).close()
    with engine_of(url).begin() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    notice = told(url)
    assert (notice.code, notice.params["found"]) == ("store_newer", "9999")


def test_a_database_of_another_program_is_left_as_it_is(url):
    with engine_of(url).begin() as connection:
        connection.execute(sa.text("CREATE TABLE results (a INTEGER)"))
    assert told(url).code == "store_foreign"
    with engine_of(url).connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["results"]


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("dear diary " * 100)
    notice = told(str(file))
    assert (notice.code, notice.value) == ("store_not_database", str(file))
    assert file.read_text() == "dear diary " * 100


@pytest.mark.parametrize("path", ["no/such/folder/a.db", "."])
def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert told(path).code == "store_unwritable"


def test_a_users_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CROSSZONE_HOME", str(tmp_path / "file" / "home"))
    assert told(None).code == "store_unwritable"


@pytest.mark.parametrize("wrong", ["", "  ", "a\0b", "mysql://u:secret-word@h/d", "sqlite://", "sqlite:///", "://", "http://x",
                                   "postgresql://u:secret-word@h:port/d", "sqlite+aiosqlite:///x"])  # fmt: skip
def test_what_is_no_address_is_refused(wrong):
    assert told(wrong).code == "store_url"


def test_a_server_that_does_not_answer_is_named():
    notice = told("postgresql://me:secret-word@127.0.0.1:1/plans")
    assert (notice.code, notice.value) == ("store_unreachable", "postgresql://me@127.0.0.1:1/plans")


def test_a_password_in_the_options_is_not_shown_either():
    notice = told("postgresql://127.0.0.1:1/plans?user=me&password=secret-word")
    assert (notice.code, notice.value) == ("store_unreachable", "postgresql://127.0.0.1:1/plans")


def test_options_that_postgresql_does_not_know_are_told_not_shown():
    assert told("postgresql://me@127.0.0.1:1/plans?colour=secret-word").code in ("store_unreachable", "store_failed")


def test_a_database_the_server_does_not_have_is_named(postgres_server):
    notice = told(f"{postgres_server}/nowhere")
    assert notice.code == "store_unreachable"
    assert re.search("nowhere", notice.params["reason"])


def test_a_missing_driver_is_named_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    notice = told("postgresql://me:secret-word@127.0.0.1/plans")
    assert notice.code == "store_driver"
    assert "crosszone install postgres" in notice.hint("en")


def test_a_file_another_process_holds_is_told_after_a_while(tmp_path, monkeypatch):
    from crosszone.store import opening

    path = tmp_path / "held.db"
    monkeypatch.setattr(opening, "BUSY_MS", 100)
    with open_store(str(path)) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError) as caught:
            store.scenarios.add(name="x", text="x")
        assert caught.value.notices[0].code == "store_busy"
        holder.close()
        assert store.scenarios.add(name="x", text="x").name == "x"
