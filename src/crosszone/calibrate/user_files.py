"""Files that a user gives: read in chunks, checked, and their wrong rows reported.

    for chunk in iterate_chunks(file, "rank0.json.gz"): ...     # expanded; what grows without end is refused

Text: an empty file, a binary one and one in another encoding are refused by name.

    check_head(data[:65536], "train.log")     # what was read already
    check_text(Path("samples.csv"))           # the whole file; `FileError` names the line that is no UTF-8

Tables: a CSV text by its columns; a header without the needed ones is refused.

    with open_table(io.StringIO(text), "runs.csv", ("id", "gpu")) as reader:
        for cells in reader: ...

Wrong rows of a table: what is wrong with many rows in the same way is said once, with how many there are.

    row_notices = RowNotices(limit=10)
    row_notices.add(notice)                    # for every wrong row
    row_notices.build_notices()                # the first row of each mistake, and how many more rows have it
"""

from __future__ import annotations

import csv
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from crosszone.errors import FileError, InputError, Notice

HEAD_BYTES = 2**16  # Bytes by which a text is told from a binary file
CHUNK_BYTES = 2**20  # Read at once
MAX_BYTES = 16 * 2**30  # Of a trace, expanded
MAX_RATIO = 400  # How many times a compressed file may grow: profiler traces grow 10 to 40 times
FREE_BYTES = 64 * 2**20  # Expanded bytes below which the ratio does not matter
MOST_ODD_SHARE = 0.05  # Share of characters that are no text beyond which a file is binary
LOG_CONTROLS = frozenset("\t\r\n\f\b\x1b")  # Control characters that logs have


def check_head(head: bytes, name: str) -> None:
    """Refuse a file that is empty or binary, by how it begins."""
    if not head.strip() and len(head) < HEAD_BYTES:
        raise FileError(Notice(code="file_empty", value=name, file=name))
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileError(Notice(code="file_not_utf8", value=name, file=name))
    text = head[:HEAD_BYTES].decode("utf-8", "replace")
    odd_count = sum(character == "\ufffd" or (character < " " and character not in LOG_CONTROLS) for character in text)
    if odd_count > MOST_ODD_SHARE * len(text) + 1:
        raise FileError(Notice(code="file_binary", value=name, file=name))


def check_text(path: Path) -> None:
    """Refuse a file that is not UTF-8 text; one that cannot be read is left to its reader."""
    try:
        with path.open("rb") as file:
            check_head(file.read(HEAD_BYTES), str(path))
            file.seek(0)
            for line, text in enumerate(file, 1):
                try:
                    text.decode("utf-8")
                except UnicodeDecodeError:
                    name = str(path)
                    raise FileError(Notice(code="file_not_utf8", value=name, file=name, line=line)) from None
    except OSError:
        return


@contextmanager
def open_table(lines: Iterable[str], name: str, needed: Sequence[str]) -> Iterator[csv.DictReader[str]]:
    """A reader of rows by column; `InputError` where columns are missing, `FileError` where the text is no CSV."""
    reader = csv.DictReader(lines)
    try:
        columns = [(column or "").strip() for column in reader.fieldnames or ()]
        missing = [column for column in needed if column not in columns]
        if missing:
            raise build_columns_error(name, missing)
        reader.fieldnames = columns
        yield reader
    except csv.Error as error:
        raise FileError(Notice(code="runs_not_csv", value=name, params={"reason": str(error)}, file=name)) from None


def build_columns_error(name: str, missing: Sequence[str]) -> InputError:
    """What to raise for a table without some columns."""
    return InputError(Notice(code="runs_columns", value=name, params={"missing": missing}, file=name, line=1))


def build_unreadable_error(path: Path, error: Exception) -> FileError:
    """What to raise for a file that the system does not let be read."""
    reason = getattr(error, "strerror", None) or str(error)
    return FileError(Notice(code="file_unreadable", value=str(path), params={"reason": reason}, file=str(path)))


def iterate_chunks(
    file: BinaryIO, name: str = "<file>", *, limit_bytes: int = MAX_BYTES, progress: Callable[[int], None] | None = None
) -> Iterator[bytes]:
    """The bytes of a file, expanded where it is compressed; `FileError` beyond the limits.

    `progress` gets the number of bytes of the file that have been read.
    """
    plain = _read_chunks(file, progress)
    first = next(plain, b"")
    if not first.startswith(b"\x1f\x8b"):  # the magic number of gzip
        total = 0
        for chunk in chain((first,), plain):
            total += len(chunk)
            if total > limit_bytes:
                raise _build_size_error(name, limit_bytes)
            yield chunk
        return
    packed_total = expanded_total = 0
    inflater = zlib.decompressobj(wbits=31)  # 31: a window of 2^15 bytes and the header of gzip
    for packed in chain((first,), plain):
        packed_total += len(packed)
        remaining = packed
        while remaining:
            try:
                chunk = inflater.decompress(remaining, CHUNK_BYTES)
            except zlib.error as error:
                params: dict[str, Any] = {"reason": str(error)}
                raise FileError(Notice(code="kineto_not_gzip", value=name, params=params, file=name)) from None
            remaining = inflater.unconsumed_tail
            if inflater.eof:  # another member may follow
                remaining, inflater = inflater.unused_data, zlib.decompressobj(wbits=31)
            expanded_total += len(chunk)
            if expanded_total > limit_bytes:
                raise _build_size_error(name, limit_bytes)
            used = packed_total - len(remaining)
            if expanded_total > FREE_BYTES and expanded_total > MAX_RATIO * used:
                params = {"times": expanded_total // max(1, used), "limit": MAX_RATIO}
                raise FileError(Notice(code="kineto_bomb", value=name, params=params, file=name))
            if chunk:
                yield chunk


def _read_chunks(file: BinaryIO, progress: Callable[[int], None] | None) -> Iterator[bytes]:
    done = 0
    while chunk := file.read(CHUNK_BYTES):
        done += len(chunk)
        yield chunk
        if progress is not None:
            progress(done)


def _build_size_error(name: str, limit_bytes: int) -> FileError:
    params = {"limit_mib": limit_bytes // 2**20}
    return FileError(Notice(code="trace_too_large", value=name, params=params, file=name))


ROW_PARAMS = ("row", "line")  # Parameters that differ from row to row


@dataclasses.dataclass
class RowNotices:
    """Mistakes of rows in the order of the file, equal ones together."""

    limit: int
    """Different mistakes that are reported."""
    first_by_key: dict[Any, Notice] = dataclasses.field(default_factory=dict)
    repeats: dict[Any, int] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.first_by_key)

    def add(self, notice: Notice) -> None:
        """One more row is wrong."""
        params = tuple((key, str(value)) for key, value in notice.params.items() if key not in ROW_PARAMS)
        key = (notice.code, notice.field, str(notice.value), notice.file, params)
        if key in self.first_by_key:
            self.repeats[key] += 1
        elif len(self.first_by_key) < self.limit:
            self.first_by_key[key], self.repeats[key] = notice, 0

    def build_notices(self, *, at_least: bool = False) -> list[Notice]:
        """What to say; `at_least`: rows after these were not looked at."""
        notices = []
        for key, notice in self.first_by_key.items():
            notices.append(notice)
            if self.repeats[key]:
                code = "rows_alike_at_least" if at_least else "rows_alike"
                notices.append(Notice(code=code, value=self.repeats[key], level=notice.level, file=notice.file))
        return notices


def merge_notices(notices: Iterable[Notice], limit: int, *, at_least: bool = False) -> list[Notice]:
    """The same notices, equal ones once."""
    row_notices = RowNotices(limit=limit)
    for notice in notices:
        row_notices.add(notice)
    return row_notices.build_notices(at_least=at_least)
