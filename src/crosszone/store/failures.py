"""What goes wrong with a database, told as a notice that names the remedy and never a password."""

from __future__ import annotations

import sqlite3

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, NoSuchModuleError

from crosszone.errors import Notice, StoreError
from crosszone.store.address import shown, without_password

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
    reason = " ".join(without_password(str(cause), url).split()) or type(cause).__name__
    return StoreError(Notice(code=code, value=shown(url), params={"reason": reason}))
