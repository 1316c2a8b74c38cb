"""The application: routes, page and guard put together."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from crosszone import __version__
from crosszone.errors import InputError, Notice
from crosszone.web.answers import error_answer, input_error_answer
from crosszone.web.api import api_routes
from crosszone.web.examples import Shelf
from crosszone.web.security import Guard

STATIC = Path(__file__).parent / "static"


def create_app(file: str | Path | None = None) -> FastAPI:
    """The application; `file` is a scenario to open in place of the first example."""
    app = FastAPI(
        title="CrossZone",
        version=__version__,
        description="Plan, predict and start LLM training on GPUs that do not all sit in one place.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # the usual documentation pages load scripts from elsewhere
        redoc_url=None,
    )
    app.include_router(api_routes(Shelf(Path(file).absolute() if file is not None else None)))
    app.router.default = _Page(directory=STATIC, html=True)  # what no route takes, so that a wrong method stays a 405
    app.add_exception_handler(InputError, _input_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_middleware(GZipMiddleware, minimum_size=1000)
    app.add_middleware(Guard)
    return app


class _Page(StaticFiles):
    """The files of the page, and nothing but them."""

    def lookup_path(self, path: str) -> tuple[str, object | None]:  # type: ignore[override]
        """Find a file; a path the file system refuses is a file that is not there."""
        try:
            return super().lookup_path(path)
        except (OSError, ValueError):
            return "", None


def _input_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, InputError)
    return input_error_answer(request, error)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "request_refused")
    notice = Notice(code=code, value=request.url.path, params={"method": request.method, "status": status})
    return error_answer(request, status, [notice])


def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    notices = [
        Notice(code="not_valid", field=".".join(str(step) for step in detail["loc"]), value=detail.get("input"))
        for detail in error.errors()
    ]
    return error_answer(request, 422, notices)


mimetypes.add_type("text/javascript", ".js")
