"""What the routes of one server share, as a dependency of FastAPI: `def handler(state: State)`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends
from starlette.requests import Request

from crosszone.web.scenarios import ExampleLibrary, ScenarioReader
from crosszone.web.tokens import TokenAuth
from crosszone.web.uploads import Uploads
from crosszone.web.workers import Workers

if TYPE_CHECKING:
    from crosszone.run.service import Service
    from crosszone.store import Store


MOST_REPORTS = 8  # Parts and all of it in two languages, with two profiles


@dataclass(eq=False)
class ReportCache:
    """Reports of accuracy as they were sent, the oldest dropped first; a key says what the report depends on."""

    _answers: dict[Hashable, bytes] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def get(self, key: Hashable) -> bytes | None:
        """The answer; None: there is none."""
        with self._lock:
            return self._answers.get(key)

    def put(self, key: Hashable, answer: bytes) -> None:
        """Keep an answer."""
        with self._lock:
            while len(self._answers) >= MOST_REPORTS:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = answer


@dataclass(frozen=True, kw_only=True)
class AppState:
    """The scenarios that can be opened, how scenarios of requests are read, what is saved, and who does long work."""

    examples: ExampleLibrary
    reader: ScenarioReader
    store: Store
    workers: Workers
    service: Service
    """Machines and tasks."""
    auth: TokenAuth | None = None
    """Asks for the token; None: the server answers this machine alone and asks for none."""
    uploads: Uploads = field(default_factory=Uploads)
    """Files that users handed in to be read."""
    accuracy_reports: ReportCache = field(default_factory=ReportCache)


async def get_state(request: Request) -> AppState:
    """The state of the application that answers this request."""
    # async although it awaits nothing: FastAPI would call a plain function in its thread pool, at each request
    state: AppState = request.app.state.crosszone
    return state


State = Annotated[AppState, Depends(get_state)]
