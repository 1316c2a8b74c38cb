"""Opening: a workbook from bytes, with everything refused that is none, hides behind a password, or would not fit.

The sizes inside the archive are looked at before anything is unpacked; macros and links to other files are refused,
for what they would bring is not in the file.
"""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any

from crosszone.errors import FileError, Notice

if TYPE_CHECKING:
    from openpyxl import Workbook  # type: ignore[import-untyped]

MOST_BYTES = 16 * 2**20
"""Size of the file."""
MOST_UNPACKED = 48 * 2**20
"""Size of all its parts, unpacked."""
MOST_RATIO = 200
"""Size of a part over what it takes in the archive; a workbook's text shrinks by 10 to 50."""
MOST_PARTS = 1000
SMALL = 2**20
"""Parts up to this size may shrink by any ratio: a blank sheet is all zeros and commas."""
OLD = b"\xd0\xcf\x11\xe0"
"""Beginning of an old .xls, and of a workbook behind a password."""
MARKS = (b"<!DOCTYPE", b"<!ENTITY")
"""How a part of a workbook would define entities."""
CHUNK = 2**16
"""Bytes of a part that are looked at together."""
PASSWORD = "EncryptedPackage".encode("utf-16-le")


def opened(data: bytes, file: str, *, values: bool = False) -> Workbook:
    """The workbook; `values`: what a spreadsheet program has computed in place of the formulas."""
    from openpyxl import load_workbook

    _check(data, file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts of Excel that are left out: pictures, extensions of drop-downs
            return load_workbook(io.BytesIO(data), data_only=values, read_only=values, keep_links=False)
    except Exception as error:  # whatever an XML reader says of a broken file
        raise _refused("sheet_broken", file, reason=type(error).__name__) from None


def _check(data: bytes, file: str) -> None:
    if len(data) > MOST_BYTES:
        raise _refused("sheet_too_large", file, size=round(len(data) / 2**20, 1), limit=MOST_BYTES // 2**20)
    if data.startswith(OLD):
        raise _refused("sheet_password" if PASSWORD in data else "sheet_old", file)
    if not data:
        raise _refused("file_empty", file)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
            _check_parts(parts, file)
            _check_texts(archive, parts, file)
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, RuntimeError, ValueError, zlib.error):
        raise _refused("sheet_not_xlsx", file) from None


def _check_parts(parts: list[zipfile.ZipInfo], file: str) -> None:
    size = sum(part.file_size for part in parts)
    if size > MOST_UNPACKED or len(parts) > MOST_PARTS:
        raise _refused("sheet_bomb", file, size=round(size / 2**20, 1), parts=len(parts), limit=MOST_UNPACKED // 2**20)
    for part in parts:
        if part.file_size > SMALL and part.file_size > MOST_RATIO * max(1, part.compress_size):
            raise _refused(
                "sheet_bomb", file, size=round(size / 2**20, 1), parts=len(parts), limit=MOST_UNPACKED // 2**20
            )
        if part.flag_bits & 1:
            raise _refused("sheet_password", file)
    names = {part.filename for part in parts}
    if "xl/workbook.xml" not in names:
        raise _refused("sheet_not_xlsx", file)
    if any(name.lower().endswith("vbaproject.bin") or name.startswith("xl/macrosheets/") for name in names):
        raise _refused("sheet_macros", file)
    if any(name.startswith(("xl/externalLinks/", "xl/connections", "xl/queryTables/")) for name in names):
        raise _refused("sheet_links", file)


def _check_texts(archive: zipfile.ZipFile, parts: list[zipfile.ZipInfo], file: str) -> None:
    """No part, whatever it is called, may define entities: they are how a small XML file grows without end."""
    for part in parts:
        with archive.open(part) as text:
            if _defines_entities(text):
                raise _refused("sheet_broken", file, reason=f"DOCTYPE, {part.filename}")


def _defines_entities(text: IO[bytes]) -> bool:
    """A text has a DOCTYPE or an ENTITY anywhere, also where two chunks meet, also with two bytes a letter."""
    end = b""
    while chunk := text.read(CHUNK):
        here = end + chunk.replace(b"\0", b"")
        if any(mark in here for mark in MARKS):
            return True
        end = here[-max(map(len, MARKS)) + 1 :]
    return False


def _refused(code: str, file: str, **params: Any) -> FileError:
    return FileError(Notice(code=code, value=file, params=params, file=file))
