"""Text that can be kept: bounded, and of characters that every database takes."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from crosszone.errors import InvalidError, Notice

MAX_NAME = 200
MAX_NOTE = 10_000
MAX_DOCUMENT = 4 * 1024 * 1024
"""Bytes of a scenario, a document or a timeline."""
_UNSEEN = {"Cc", "Cs", "Zl", "Zp"}
"""Control characters, halves of a pair, breaks of lines."""


def checked_name(name: str) -> str:
    """A name without blanks around it; `InvalidError` when it cannot be one."""
    kept = name.strip()
    if not 1 <= len(kept) <= MAX_NAME or any(unicodedata.category(c) in _UNSEEN for c in kept):
        raise InvalidError(Notice(code="saved_name", field="name", value=name, params={"limit": MAX_NAME}))
    return kept


def checked_text(text: str, field: str, limit: int = MAX_DOCUMENT) -> str:
    """Text of at most `limit` bytes; `InvalidError` for what a database cannot keep."""
    for place, character in enumerate(text):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            params = {"character": f"U+{ord(character):04X}", "place": place + 1}
            raise InvalidError(Notice(code="text_unstorable", field=field, params=params))
    return _bounded(text, field, limit)


def as_json(document: Any, field: str) -> str:
    """A document as JSON in ASCII, so that no database minds its characters."""
    return _bounded(json.dumps(document, allow_nan=False, separators=(",", ":")), field, MAX_DOCUMENT)


def _bounded(text: str, field: str, limit: int) -> str:
    size = len(text.encode())
    if size > limit:
        raise InvalidError(Notice(code="saved_too_large", field=field, value=size, params={"limit": limit}))
    return text
