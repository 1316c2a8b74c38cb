"""The application: routes, page, error handlers and middleware put together, and the thread that drives tasks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from crosszone import __version__
from crosszone.errors import CrossZoneError, InputError, MachineError, StoreError
from crosszone.run.engine import Engine
from crosszone.run.service import Service
from crosszone.store import open_store
from crosszone.web.answers import answer_error, answer_http_error, answer_validation_error
from crosszone.web.jobs import preload_data
from crosszone.web.openapi import build_operation_id, complete_description
from crosszone.web.page import STATIC, PageFiles
from crosszone.web.routes import ROUTERS, build_api_router
from crosszone.web.scenarios import ExampleLibrary, ScenarioReader
from crosszone.web.security import SecurityMiddleware
from crosszone.web.state import AppState
from crosszone.web.tokens import TokenAuth
from crosszone.web.workers import Workers

__all__ = ["STATIC", "create_app"]


def create_app(
    file: str | Path | None = None,
    *,
    auth: TokenAuth | None = None,
    store: str | None = None,
    workers: int | None = None,
    drive: bool = True,
) -> FastAPI:
    """The application: `file` is a scenario to open in place of the first example, `auth` asks for a token.

    `store` is where things are saved (a file or a URL; none: the user's data folder), `workers` how many processes do
    long work (none: one a core). They start and end with the application, and so does the thread that drives training
    tasks, unless `drive` is false: then another process does.
    """
    examples = ExampleLibrary(Path(file).absolute() if file is not None else None)
    open_tables = open_store(store)
    state = AppState(
        examples=examples,
        reader=ScenarioReader(examples.base),
        store=open_tables,
        workers=Workers(workers),
        service=Service(open_tables),
        auth=auth,
    )
    driver = TaskDriver(state.service.get_engine()) if drive else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.workers.warm_up()
        preload = asyncio.create_task(asyncio.to_thread(preload_data))
        if driver is not None:
            driver.start()
        try:
            yield
        finally:
            await preload
            if driver is not None:
                await asyncio.to_thread(driver.close)
            state.workers.close()
            state.uploads.close()
            state.store.close()

    app = FastAPI(
        title="CrossZone",
        version=__version__,
        description="Plan, predict and start LLM training on GPUs that do not all sit in one place.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # the usual documentation pages load scripts from elsewhere
        redoc_url=None,
        generate_unique_id_function=build_operation_id,
        lifespan=lifespan,
    )
    app.state.crosszone = state
    app.include_router(build_api_router())
    app.router.default = PageFiles()  # what no route takes, so that a wrong method stays a 405
    for kind in (InputError, StoreError, MachineError):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)  # the page is compressed beforehand
    app.add_middleware(SecurityMiddleware, auth=auth)
    complete_description(app, ROUTERS)
    return app


log = logging.getLogger("crosszone.web")
# How long the end waits for steps that are under way; one that is cut off is done again by whoever comes next.
JOIN_S = 5.0
RETRY_S = 2.0  # Pause after the store could not be reached


class TaskDriver:
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
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._engine.run_until(self._stop)
            except CrossZoneError as error:
                log.error("tasks are not driven for now: %s", error)
                self._stop.wait(RETRY_S)
