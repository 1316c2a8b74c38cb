"""Refusals of the server: an HTTP status and a notice."""

from __future__ import annotations

from typing import Any

from crosszone.errors import Notice, RequestError


def refused(status: int, code: str, *, field: str = "", value: Any = None, **params: Any) -> RequestError:
    """An error to raise for a request that cannot be answered."""
    return RequestError(status, Notice(code=code, field=field, value=value, params=params))
