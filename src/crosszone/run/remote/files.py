"""Files: the bundle that is put into a node's folder, logs and metrics that are read, data that training needs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

from crosszone.run.remote.common import RemoteError, expand_path
from crosszone.run.remote.supervisor import STARTING_FILE, STATE_FILE, is_supervised, read_state

MAX_READ_BYTES = 4 * 1024 * 1024  # Bytes one request may read
BLOCK = 256 * 1024  # Bytes hashed at once


def put_bundle(folder: str, payload: bytes, checksum: str) -> dict[str, Any]:
    """Unpack a bundle into folder/bundle, unless this very one is there; results of earlier starts stay."""
    root = expand_path(folder)
    installed = root / "bundle"
    checksum_file = root / "bundle.sha256"
    if checksum_file.exists() and checksum_file.read_text() == checksum and installed.is_dir():
        return {"put": False}
    if hashlib.sha256(payload).hexdigest() != checksum:
        raise RemoteError("agent_torn", folder=str(root))
    fresh = root / "bundle.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
        for member in archive:
            target = (fresh / member.name).resolve()
            # extractall(filter="data") would do this too, but it is newer than Python 3.8.
            if not member.isfile() or fresh.resolve() not in target.parents:
                raise RemoteError("agent_path", path=member.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(member)
            target.write_bytes(source.read() if source else b"")
            target.chmod(0o700 if member.mode & 0o100 else 0o600)
    if (installed / "out").is_dir():
        os.replace(installed / "out", fresh / "out")
    shutil.rmtree(installed, ignore_errors=True)
    os.replace(fresh, installed)
    checksum_file.write_text(checksum)
    return {"put": True}


def resolve_inside(folder: str, name: str) -> Path:
    """A file of a folder; a name that leads out of it is refused."""
    root = expand_path(folder).resolve()
    path = (root / name).resolve()
    if root not in path.parents:
        raise RemoteError("agent_path", path=name)
    return path


def read_bytes(
    folder: str, name: str, offset: int = 0, max_bytes: int = MAX_READ_BYTES
) -> tuple[dict[str, Any], bytes]:
    """Bytes of a file from an offset on; where they were dropped, from where they begin again."""
    path = resolve_inside(folder, name)
    if not path.is_file():
        return {"size": 0, "offset": 0}, b""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = max(0, size + offset) if offset < 0 else min(offset, size)
        # `trim_logs` punches holes: skip one rather than send its zeros. ENXIO: nothing but a hole follows.
        with contextlib.suppress(OSError):
            offset = min(size, file.seek(offset, os.SEEK_DATA))
        file.seek(offset)
        return {"size": size, "offset": offset}, file.read(min(max_bytes, MAX_READ_BYTES))


def delete_folder(folder: str, expected_name: str) -> dict[str, Any]:
    """Delete a folder of a task: only one with this name that holds our files, and never under a running supervisor."""
    root = expand_path(folder)
    if not root.exists():
        return {"cleaned": False}
    if root.name != expected_name or not any(
        (root / name).exists() for name in (STATE_FILE, STARTING_FILE, "bundle.sha256")
    ):
        raise RemoteError("agent_not_ours", folder=str(root))
    if is_supervised(root):
        raise RemoteError("agent_busy", folder=str(root), token=read_state(root).get("token"))
    shutil.rmtree(root)
    if expected_name.startswith("node-"):
        with contextlib.suppress(OSError):
            root.parent.rmdir()  # the task's own, once its last node is gone
    return {"cleaned": True}


def describe_path(path: str) -> dict[str, Any]:
    """Whether a file or folder is there, and its size in bytes."""
    location = expand_path(path)
    if not location.exists():
        return {"there": False, "bytes": 0}
    files = [location] if location.is_file() else [file for file in location.rglob("*") if file.is_file()]
    return {
        "there": True,
        "bytes": sum(file.stat().st_size for file in files),
        "readable": os.access(location, os.R_OK),
    }


def compute_digest(path: str) -> dict[str, Any]:
    """Size and SHA-256 of a file, or of the names and checksums of a folder's files, in the order of their names."""
    location = expand_path(path)
    if location.is_file():
        return {"there": True, "bytes": location.stat().st_size, "sha256": hash_file(location)}
    if not location.is_dir():
        return {"there": False, "bytes": 0, "sha256": None}
    files = sorted(file for file in location.rglob("*") if file.is_file())
    combined = hashlib.sha256()
    for file in files:
        combined.update(
            f"{hash_file(file)}  {file.relative_to(location).as_posix()}\n".encode("utf-8", "surrogateescape")
        )
    return {"there": True, "bytes": sum(file.stat().st_size for file in files), "sha256": combined.hexdigest()}


def hash_file(path: Path) -> str:
    """SHA-256 of a file, read block by block: a checkpoint need not fit into memory."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(BLOCK)
            if not block:
                return digest.hexdigest()
            digest.update(block)
