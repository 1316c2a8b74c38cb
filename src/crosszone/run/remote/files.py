"""Files of a node's folder: the bundle that is put there, logs and metrics that are read, and the end of it all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

from crosszone.run.remote.place import place
from crosszone.run.remote.refusal import Refusal
from crosszone.run.remote.supervisor import STARTING, STATE, is_supervised, read_state

READ_MOST = 4 * 1024 * 1024  # Bytes one request may read


def put(folder: str, payload: bytes, manifest: str) -> dict[str, Any]:
    """Unpack a bundle into folder/bundle, unless this very one is there; results of earlier starts stay."""
    root = place(folder)
    there = root / "bundle"
    mark = root / "bundle.sha256"
    if mark.exists() and mark.read_text() == manifest and there.is_dir():
        return {"put": False}
    if hashlib.sha256(payload).hexdigest() != manifest:
        raise Refusal("agent_torn", folder=str(root))
    fresh = root / "bundle.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
        for member in archive:
            target = (fresh / member.name).resolve()
            if not member.isfile() or fresh.resolve() not in target.parents:
                raise Refusal("agent_path", path=member.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            held = archive.extractfile(member)
            target.write_bytes(held.read() if held else b"")
            target.chmod(0o700 if member.mode & 0o100 else 0o600)
    if (there / "out").is_dir():
        os.replace(there / "out", fresh / "out")
    shutil.rmtree(there, ignore_errors=True)
    os.replace(fresh, there)
    mark.write_text(manifest)
    return {"put": True}


def within(folder: str, name: str) -> Path:
    """A file of a folder; a name that leads out of it is refused."""
    root = place(folder).resolve()
    path = (root / name).resolve()
    if root not in path.parents:
        raise Refusal("agent_path", path=name)
    return path


def read(folder: str, name: str, offset: int = 0, most: int = READ_MOST) -> tuple[dict[str, Any], bytes]:
    """Bytes of a file from an offset on; where they were dropped, from where they begin again."""
    path = within(folder, name)
    if not path.is_file():
        return {"size": 0, "offset": 0}, b""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = max(0, size + offset) if offset < 0 else min(offset, size)
        with contextlib.suppress(OSError):
            offset = min(size, file.seek(offset, os.SEEK_DATA))
        file.seek(offset)
        return {"size": size, "offset": offset}, file.read(min(most, READ_MOST))


def clean(folder: str, marked: str) -> dict[str, Any]:
    """Delete a folder of a task; only one that holds its mark, and never under a running supervisor."""
    root = place(folder)
    if not root.exists():
        return {"cleaned": False}
    if root.name != marked or not any((root / name).exists() for name in (STATE, STARTING, "bundle.sha256")):
        raise Refusal("agent_not_ours", folder=str(root))
    if is_supervised(root):
        raise Refusal("agent_busy", folder=str(root), token=read_state(root).get("token"))
    shutil.rmtree(root)
    if marked.startswith("node-"):
        with contextlib.suppress(OSError):
            root.parent.rmdir()  # the task's own, once its last node is gone
    return {"cleaned": True}
