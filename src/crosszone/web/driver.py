"""Driver: the thread in which a server drives training tasks; it ends with the server, the tasks go on without it.

with Driver(service.engine()):
    ...
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from crosszone.errors import CrossZoneError
from crosszone.run.engine import Engine

log = logging.getLogger("crosszone.web")
# How long the end waits for steps that are under way; one that is cut off is done again by whoever comes next.
END_S = 5.0
AGAIN_S = 2.0  # Pause after the store could not be reached


class Driver:
    """Drives all live tasks between `start` and `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Begin nothing more, and wait a little for what is under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(END_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._engine.run_until(self._stop)
            except CrossZoneError as error:
                log.error("tasks are not driven for now: %s", error)
                self._stop.wait(AGAIN_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
