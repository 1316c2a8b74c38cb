"""Address: where the saved things are kept, as the user writes it: a file, or a database by its URL.

Errors of a database become notices that name the remedy and never a password.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from crosszone.errors import InvalidError, Notice, StoreError
from crosszone.extras import format_install_command
from crosszone.inputs.catalogue.entries import find_home

FILE_NAME = "crosszone.db"  # Name of the database in the user's folder
_POSTGRES_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")


def parse_address(text: str | None) -> URL:
    """The database of a path, a `sqlite:///` or a `postgresql://` URL; without one, that of the user's folder."""
    if text is None:
        return _make_file_url(find_home() / FILE_NAME)
    scheme, is_url, remainder = text.partition("://")
    if not is_url:
        if not text.strip() or "\0" in text:
            _refuse(text)
        return _make_file_url(Path(text).expanduser())
    if scheme == "sqlite":
        path = unquote(remainder.removeprefix("/"))
        if not remainder.startswith("/") or not path or path.strip("\0") != path:
            _refuse(scheme)
        return _make_file_url(Path(path))
    if scheme not in _POSTGRES_SCHEMES:
        _refuse(scheme)
    try:
        # Whatever the spelling of the scheme: psycopg 3 is the driver that `format_install_command` names.
        return make_url(f"postgresql+psycopg://{remainder}")
    except (ArgumentError, ValueError):
        _refuse(scheme)  # the rest may hold a password


def format_address(url: URL) -> str:
    """The address as it may be printed: without password, and without options, which can hold one too."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{user}{url.host or _get_option(url, 'host') or 'localhost'}{port}/{url.database or ''}"


def strip_password(reason: str, url: URL) -> str:
    """What a driver says, with asterisks in place of the password."""
    for secret in (str(url.password or ""), _get_option(url, "password")):
        if secret:
            reason = reason.replace(secret, "***")
    return reason


def _get_option(url: URL, name: str) -> str:
    value = url.query.get(name, "")
    return value if isinstance(value, str) else " ".join(value)


def _make_file_url(path: Path) -> URL:
    return URL.create("sqlite+pysqlite", database=str(path.absolute()))


def _refuse(value: str) -> NoReturn:
    raise InvalidError(Notice(code="store_url", value=value))


_SQLITE_CODES = {
    sqlite3.SQLITE_NOTADB: "store_not_database",
    sqlite3.SQLITE_CORRUPT: "store_not_database",
    sqlite3.SQLITE_CANTOPEN: "store_unwritable",
    sqlite3.SQLITE_READONLY: "store_unwritable",
    sqlite3.SQLITE_PERM: "store_unwritable",
    sqlite3.SQLITE_BUSY: "store_busy",
    sqlite3.SQLITE_LOCKED: "store_busy",
}


def wrap_error(error: Exception, url: URL, *, opening: bool = False) -> StoreError:
    """The error to raise for what a driver reports; `opening`: no connection was had before."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    code = "store_failed"
    if isinstance(cause, sqlite3.Error):
        # The low byte of an extended code is the general one, such as CANTOPEN of CANTOPEN_ISDIR.
        code = _SQLITE_CODES.get((getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF, "store_failed")
    elif isinstance(cause, ImportError | NoSuchModuleError):
        code = "store_driver"
    elif opening and url.get_backend_name() != "sqlite":
        code = "store_unreachable"
    command = format_install_command("postgres")
    reason = " ".join(strip_password(str(cause), url).split()) or type(cause).__name__
    return StoreError(Notice(code=code, value=format_address(url), params={"reason": reason, "command": command}))
