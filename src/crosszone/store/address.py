"""Address: where the saved things are kept, as the user writes it: a file, or a database by its URL.

What goes wrong with a database, told as a notice that names the remedy and never a password.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from crosszone.errors import InvalidError, Notice, StoreError
from crosszone.extras import install_command
from crosszone.inputs.catalogue.entries import home

FILE = "crosszone.db"  # Name of the database in the user's folder
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")


def address_of(asked: str | None) -> URL:
    """The database of a path, a `sqlite:///` or a `postgresql://` URL; without one, that of the user's folder."""
    if asked is None:
        return _file(home() / FILE)
    scheme, is_url, rest = asked.partition("://")
    if not is_url:
        return _file(Path(asked).expanduser()) if asked.strip() and "\0" not in asked else _refuse(asked)
    if scheme == "sqlite":
        path = unquote(rest.removeprefix("/"))
        return _file(Path(path)) if rest.startswith("/") and path.strip("\0") == path != "" else _refuse(scheme)
    if scheme not in _POSTGRES:
        return _refuse(scheme)
    try:
        return make_url(f"postgresql+psycopg://{rest}")
    except (ArgumentError, ValueError):
        return _refuse(scheme)  # the rest may hold a password


def shown(url: URL) -> str:
    """The address as it may be printed: without password, and without options, which can hold one too."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{user}{url.host or _option(url, 'host') or 'localhost'}{port}/{url.database or ''}"


def without_password(reason: str, url: URL) -> str:
    """What a driver says, with the password blotted out."""
    for secret in (str(url.password or ""), _option(url, "password")):
        if secret:
            reason = reason.replace(secret, "***")
    return reason


def _option(url: URL, name: str) -> str:
    value = url.query.get(name, "")
    return value if isinstance(value, str) else " ".join(value)


def _file(path: Path) -> URL:
    return URL.create("sqlite+pysqlite", database=str(path.absolute()))


def _refuse(value: str) -> URL:
    raise InvalidError(Notice(code="store_url", value=value))


_SQLITE = {
    sqlite3.SQLITE_NOTADB: "store_not_database",
    sqlite3.SQLITE_CORRUPT: "store_not_database",
    sqlite3.SQLITE_CANTOPEN: "store_unwritable",
    sqlite3.SQLITE_READONLY: "store_unwritable",
    sqlite3.SQLITE_PERM: "store_unwritable",
    sqlite3.SQLITE_BUSY: "store_busy",
    sqlite3.SQLITE_LOCKED: "store_busy",
}


def failure(error: Exception, url: URL, *, opening: bool = False) -> StoreError:
    """The error to raise for what a driver reports; `opening`: no connection was had before."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    code = "store_failed"
    if isinstance(cause, sqlite3.Error):
        code = _SQLITE.get((getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF, "store_failed")
    elif isinstance(cause, ImportError | NoSuchModuleError):
        code = "store_driver"
    elif opening and url.get_backend_name() != "sqlite":
        code = "store_unreachable"
    command = install_command("postgres")
    reason = " ".join(without_password(str(cause), url).split()) or type(cause).__name__
    return StoreError(Notice(code=code, value=shown(url), params={"reason": reason, "command": command}))
