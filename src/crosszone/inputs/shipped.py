"""YAML files that come with the program: parsed once, then read from JSON in the user's cache folder.

Parsing the catalogue's YAML took longer than most answers. What was parsed is kept under `$XDG_CACHE_HOME/crosszone`
(`~/.cache/crosszone`) together with a digest of the text it was parsed from: a changed file is parsed anew, and a
folder that cannot be written costs time, nothing else.
"""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

from crosszone.inputs.document import Document, parse_document, replace_file

# Raise it when `parse_document` reads the same text differently: what older programs kept is then parsed anew.
_FORMAT = 1


def read_shipped(package: str, path: str) -> Document:
    """Read a YAML file of a package by its path there; lines are known only when it had to be parsed."""
    content = files(package).joinpath(*path.split("/")).read_bytes()
    digest = blake2b(content, digest_size=16, salt=_FORMAT.to_bytes(2, "big")).hexdigest()
    cached = _find_cache_file(f"{package}.{path.replace('/', '.')}.json")
    if cached is None:
        return parse_document(content.decode("utf-8"), path)
    try:
        entry = json.loads(cached.read_bytes())
        if entry["digest"] == digest:
            return Document(entry["value"], path)
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or one that was cut off
        pass
    document = parse_document(content.decode("utf-8"), path)
    _write_cache(cached, {"digest": digest, "value": document.value})
    return document


def _find_cache_file(name: str) -> Path | None:
    try:
        folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return Path(folder, "crosszone", name)


def _write_cache(file: Path, entry: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(entry, ensure_ascii=False, separators=(",", ":")))
    except OSError:  # the next program parses the YAML again
        pass
