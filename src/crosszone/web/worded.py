"""Worded: notices as they are stored, in no language yet, told in the language of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crosszone.store.tasks import Event, notice_of


def worded(kept: Mapping[str, Any] | None, language: str) -> dict[str, Any] | None:
    """A stored notice in the form every surface sends; None: there is none."""
    if kept is None:
        return None
    return notice_of(kept).as_dict(language)


def worded_event(event: Event, language: str) -> dict[str, Any]:
    """An event whose notice, if it has one, is told in a language."""
    plain = event.model_dump(mode="json")
    if "notice" in plain["about"]:
        plain["about"] = {**plain["about"], "notice": worded(plain["about"]["notice"], language)}
    return plain
