"""Files that a verb writes: whole or not at all, and never over another one unless told."""

from __future__ import annotations

import os
from pathlib import Path

from crosszone.errors import InputError, InvalidError, Notice


def refuse_to_overwrite(path: Path, force: bool) -> None:
    """Refuse a file that exists already, unless told to overwrite it; ask before long work."""
    if path.exists() and not force:
        raise InvalidError(Notice(code="output_exists", value=str(path)))


def write_file(path: Path, text: str, force: bool) -> None:
    """Write a text as `write_bytes` does."""
    write_bytes(path, text.encode(), force)


def write_bytes(path: Path, content: bytes, force: bool) -> None:
    """Write a file whole or not at all; what is no plain file (a pipe, a device) is written as it is."""
    try:
        refuse_to_overwrite(path, force)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        target = path.resolve()
        half = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            half.write_bytes(content)
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        params = {"reason": error.strerror or str(error)}
        raise InputError(Notice(code="output_unwritable", value=str(path), params=params)) from None
