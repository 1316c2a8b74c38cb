"""Files that a user uploads to be read: kept on disk for an hour and never longer than the server runs.

    upload = await uploads.keep(request.stream(), "trace.json.gz")
    uploads.find_path(upload.id)           # where it lies; `UnknownNameError` once it is gone

Workers read logs, traces and workbooks from here, so that a large one is sent once however often it is looked at. A
short text may come within the request itself; it becomes a file for as long as it is read.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import monotonic

from crosszone.errors import Notice, UnknownNameError
from crosszone.inputs.value import Value
from crosszone.web.body import FileBody
from crosszone.web.refusals import map_store_errors, refuse

MOST_BYTES = 512 * 1024 * 1024  # Of one file
# Of all files, also those still being sent: the oldest are dropped first, then new ones are refused.
MOST_KEPT = 2 * 1024 * 1024 * 1024
MOST_FILES = 200
KEPT_S = 3600.0  # Seconds after which a file that nobody asked for is dropped
UPLOAD_S = 600.0  # Seconds until all of a file is there
LONGEST_NAME = 200
PACKED = ".gz"
_UNSAFE_CHARACTERS = re.compile(r"[\x00-\x1f\x7f/\\]|[\ud800-\udfff]")


class UploadedFile(Value):
    """A file that was handed in."""

    id: str
    """What requests call it."""
    name: str
    """What the user calls it."""
    bytes: int
    """Its size."""


@dataclass(eq=False)
class Uploads:
    """All uploaded files, in a folder of their own that is made for the first one."""

    most_bytes: int = MOST_BYTES
    most_kept: int = MOST_KEPT
    _files: dict[str, tuple[UploadedFile, float]] = field(default_factory=dict)
    _arriving: dict[str, int] = field(default_factory=dict)
    """Bytes on disk of files that are still being sent."""
    _folder: Path | None = None
    _lock: Lock = field(default_factory=Lock)

    async def keep(self, body: AsyncIterator[bytes], name: str) -> UploadedFile:
        """Write a body to disk as it comes.

        413 when it is too large, 408 when it is too slow, 422 when it is empty, 429 when too much comes at once.
        """
        id = secrets.token_urlsafe(12).replace("-", "a").replace("_", "b")
        shown_name = _UNSAFE_CHARACTERS.sub(" ", name)[-LONGEST_NAME:].strip() or "file"
        upload = UploadedFile(id=id, name=shown_name, bytes=0)
        path = self._make_folder() / _name_on_disk(upload)
        try:
            async with asyncio.timeout(UPLOAD_S):
                size = await self._write(body, id, path)
            if not size:
                raise refuse(422, "upload_empty", field="file", value=name)
        except BaseException as error:
            path.unlink(missing_ok=True)
            self._release(id)
            if isinstance(error, TimeoutError):
                raise refuse(408, "body_slow", seconds=int(UPLOAD_S)) from None
            raise
        upload = upload.replace(bytes=size)
        with self._lock:
            self._arriving.pop(id, None)
            self._files[id] = (upload, monotonic())
        self._sweep()
        return upload

    def get(self, id: str) -> UploadedFile:
        """The name and size of a file, which is kept for another hour from now on."""
        self._sweep()
        with self._lock:
            if id not in self._files:
                raise UnknownNameError(Notice(code="upload_unknown", field="file", value=id))
            upload = self._files[id][0]
            self._files[id] = (upload, monotonic())
        return upload

    def find_path(self, id: str) -> Path:
        """Where a file lies."""
        return self._make_folder() / _name_on_disk(self.get(id))

    def drop(self, id: str) -> None:
        """Forget a file; `UnknownNameError` when there is none."""
        path = self.find_path(id)
        with self._lock:
            self._files.pop(id, None)
        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Forget all files."""
        with self._lock:
            self._files.clear()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _write(self, body: AsyncIterator[bytes], id: str, path: Path) -> int:
        size, has_room = 0, True
        with path.open("wb") as file:
            async for part in body:
                size += len(part)
                if size > 2 * self.most_bytes:  # reading more only to answer 413 is not worth it
                    break
                if has_room and (size > self.most_bytes or not self._reserve(id, size)):
                    has_room = False
                    file.truncate(0)
                    self._release(id)
                elif has_room:
                    await asyncio.to_thread(file.write, part) if len(part) > 1 << 20 else file.write(part)
        if size > self.most_bytes:
            raise refuse(413, "upload_too_large", field="file", value=size, limit_mib=self.most_bytes // 2**20)
        if not has_room:
            raise refuse(429, "uploads_too_much", field="file", value=size, limit_mib=self.most_kept // 2**20)
        return size

    def _reserve(self, id: str, size: int) -> bool:
        """Count what has arrived of a file; False where all files that are arriving are too much."""
        with self._lock:
            self._arriving[id] = size
            arriving = sum(self._arriving.values())
            is_over = arriving + sum(upload.bytes for upload, _ in self._files.values()) > self.most_kept
        if is_over:
            self._sweep()
        return arriving <= self.most_kept

    def _release(self, id: str) -> None:
        with self._lock:
            self._arriving.pop(id, None)

    def _make_folder(self) -> Path:
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="crosszone-uploads-"))
            return self._folder

    def _sweep(self) -> None:
        """Drop what is old, and the oldest of what is too much."""
        with self._lock:
            rows = sorted(self._files.values(), key=lambda row: row[1])
            total = sum(upload.bytes for upload, _ in rows) + sum(self._arriving.values())
            expired = list[UploadedFile]()
            for upload, asked_at in rows:
                too_much = total > self.most_kept or len(rows) - len(expired) > MOST_FILES
                if too_much or monotonic() - asked_at > KEPT_S:
                    expired.append(upload)
                    total -= upload.bytes
            for upload in expired:
                del self._files[upload.id]
            folder = self._folder
        for upload in expired:
            if folder is not None:
                (folder / _name_on_disk(upload)).unlink(missing_ok=True)


def _name_on_disk(upload: UploadedFile) -> str:
    """What a file is called on disk: packed ones keep their ending, by which readers know them."""
    return upload.id + (PACKED if upload.name.lower().endswith(PACKED) else "")


TEXT_NAME = "text"


@dataclass(frozen=True)
class SourceFile:
    """Where a file lies while it is read, and what the user calls it."""

    path: str
    name: str


@contextmanager
def open_source(uploads: Uploads, body: FileBody) -> Iterator[SourceFile]:
    """The file of a request; 404 where it is gone. A text within the request is a file until the block ends."""
    if body.file is not None:
        with map_store_errors():
            upload, path = uploads.get(body.file), uploads.find_path(body.file)
        yield SourceFile(str(path), body.name or upload.name)
        return
    with TemporaryDirectory(prefix="crosszone-text-") as folder:
        path = Path(folder) / TEXT_NAME
        path.write_bytes((body.content or "").encode("utf-8", "replace"))
        yield SourceFile(str(path), (body.name or TEXT_NAME)[:LONGEST_NAME])
