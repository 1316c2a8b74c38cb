"""Kept notices: a notice as it is stored with a task, in no language yet, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crosszone.errors import Notice


def kept(notice: Notice) -> dict[str, Any]:
    """A notice as plain values."""
    plain = {"code": notice.code, "field": notice.field, "value": notice.value, "level": notice.level}
    return {**plain, "params": dict(notice.params)}


def notice_of(plain: Mapping[str, Any]) -> Notice:
    """The notice that was kept."""
    return Notice(**{key: plain[key] for key in ("code", "field", "value", "level", "params") if key in plain})
