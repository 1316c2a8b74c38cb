"""Saved bundles: the files that start a plan, kept as they were made."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from crosszone.deploy.bundle import Bundle
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.value import Value
from crosszone.store.table import Access, Kept
from crosszone.store.tables import BUNDLES
from crosszone.store.text import checked_name

MOST_BUNDLES = 1000
MAX_BUNDLE = 64 * 1024 * 1024
"""Bytes of a bundle's files."""
MAX_KEPT = 8 * 1024 * 1024
"""Bytes that it takes in the database: the scripts of thousands of nodes are nearly alike, so they are packed well."""


class BundleRow(Value):
    """What a list shows of a saved bundle."""

    id: str
    """What it is asked for by."""
    name: str
    """What the user calls it."""
    framework: str
    """Framework it is made for."""
    launcher: str
    """What starts the nodes."""
    template: bool
    """Addresses are still to be filled in."""
    world_size: int
    """Ranks."""
    nodes: int
    """How many nodes take part."""
    created: str
    """When it was saved, in UTC."""
    bytes: int
    """Size of its files."""


class SavedBundle(BundleRow):
    """A saved bundle."""

    bundle: Bundle
    """All of it."""


class Bundles(Kept[BundleRow, SavedBundle]):
    """All saved bundles."""

    table, row, whole = BUNDLES, BundleRow, SavedBundle

    def __init__(self, access: Access, most: int = MOST_BUNDLES) -> None:
        super().__init__(access, most)

    def add(self, *, name: str, bundle: Bundle) -> SavedBundle:
        """Save a bundle; `InvalidError` when it cannot be kept."""
        size = sum(len(one.text.encode("utf-8", "replace")) for one in bundle.files)
        _bounded(size, MAX_BUNDLE)
        packed = zlib.compress(json.dumps(bundle.model_dump(mode="json"), separators=(",", ":")).encode())
        _bounded(len(packed), MAX_KEPT)
        about = {key: getattr(bundle, key) for key in ("framework", "launcher", "template", "world_size")}
        kept = {"name": checked_name(name), "nodes": len(bundle.nodes), "bytes": size, "bundle": packed}
        return self._insert({**about, **kept})

    def _read(self, form: type[Value], columns: Mapping[Any, Any]) -> Any:
        plain = dict(columns)
        if "bundle" in plain:
            plain["bundle"] = json.loads(zlib.decompress(plain["bundle"]))
        return form(**plain)


def _bounded(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidError(Notice(code="saved_too_large", field="bundle", value=size, params={"limit": limit}))
