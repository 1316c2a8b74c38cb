"""What routes of saved things have in common: pages, ids, and refusals of the store as HTTP statuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import quote

from fastapi import Path, Query

from crosszone.errors import InvalidError, RequestError, UnknownNameError
from crosszone.inputs.document import dump_yaml
from crosszone.store import MAX_PAGE
from crosszone.web.body import ScenarioBody
from crosszone.web.scenarios import Reader

Id = Annotated[str, Path(min_length=1, max_length=200, description="As the list tells it.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most rows to answer.")]
Before = Annotated[str | None, Query(max_length=200, description="`before` of the page that came last: go on there.")]
MOST_NAME = 1000  # Characters of a name that are read at all; the store says how many it keeps
# Refusals for what is there, not for what was asked.
_CLASHES = (
    "store_full", "registered_twice", "environment_in_use", "idempotency_other", "task_live", "task_not_resumable",
    "task_not_planned",
)  # fmt: skip


@contextmanager
def kept(unknown: int = 404) -> Iterator[None]:
    """Around the store alone: what is not there is 404 (of a body: 422), no room or a clash with what is there 409."""
    try:
        yield
    except UnknownNameError as error:
        raise RequestError(unknown, *error.notices) from None
    except InvalidError as error:
        if error.notices[0].code in _CLASHES:
            raise RequestError(409, *error.notices) from None
        raise


def attachment(name: str, ending: str, otherwise: str) -> dict[str, str]:
    """The header that has an answer saved as a file: plain letters for old clients, the whole name for others."""
    plain = f"{slug(name, otherwise)}.{ending}"
    whole = quote(re.sub(r"[\s/\\:]+", "-", name).encode("utf-8", "replace"), safe="")
    return {"Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{whole}.{ending}"}


def slug(name: str, otherwise: str) -> str:
    """The plain letters of a name, for files and folders; `otherwise` where it has none."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or otherwise


def text_of(body: ScenarioBody, reader: Reader) -> str:
    """The scenario of a request as text: as it was written, unless a way is put over it."""
    if body.way is not None:
        return dump_yaml(dict(reader.read(body).document.value))
    return body.text if body.text is not None else dump_yaml(body.scenario)
