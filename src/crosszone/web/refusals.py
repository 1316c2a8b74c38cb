"""Refusals of the server: an HTTP status and a notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crosszone.errors import InvalidError, Notice, RequestError, UnknownNameError

# Refusals of the store that are about what it holds, not about what was asked: they answer 409.
_CONFLICTS = (
    "store_full", "registered_twice", "environment_in_use", "idempotency_other", "task_live", "task_not_resumable",
    "task_not_planned",
)  # fmt: skip


def refuse(status: int, code: str, *, field: str = "", value: Any = None, **params: Any) -> RequestError:
    """An error to raise for a request that cannot be answered."""
    return RequestError(status, Notice(code=code, field=field, value=value, params=params))


@contextmanager
def map_store_errors(unknown: int = 404) -> Iterator[None]:
    """Give the store's refusals a status: what is not there 404 (of a body: 422), no room or a conflict 409.

    Put it around the call of the store alone: an unknown name inside a scenario is 422, not 404.
    """
    try:
        yield
    except UnknownNameError as error:
        raise RequestError(unknown, *error.notices) from None
    except InvalidError as error:
        if error.notices[0].code in _CONFLICTS:
            raise RequestError(409, *error.notices) from None
        raise
