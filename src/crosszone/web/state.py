"""State: what the routes of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crosszone.web.scenarios import Reader, Shelf
from crosszone.web.uploads import Uploads
from crosszone.web.workers import Workers

if TYPE_CHECKING:
    from crosszone.run.service import Service
    from crosszone.store import Store


@dataclass(frozen=True, kw_only=True)
class State:
    """The scenarios that can be opened, how scenarios of requests are read, what is saved, and who does long work."""

    shelf: Shelf
    reader: Reader
    store: Store
    workers: Workers
    service: Service
    """Machines and tasks."""
    uploads: Uploads = field(default_factory=Uploads)
    """Files handed in to be looked at."""
