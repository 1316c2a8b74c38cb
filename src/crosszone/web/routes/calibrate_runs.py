"""Runs brought in: traces and workbooks looked at, kept as results, and scenarios handed out as workbooks."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.errors import InputError
from crosszone.inputs.scenario import Loaded
from crosszone.store import Result, ResultRow
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, ScenarioBody, Way, body_documented, read_body
from crosszone.web.calibrate_body import ImportBody, RunFileBody, TraceFileBody
from crosszone.web.calibrate_examples import BENCHMARK
from crosszone.web.calibrate_found import RunFound
from crosszone.web.calibrate_jobs import kept_job, run_job, sheet_job
from crosszone.web.events import STREAMED, finished
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.saved import Id, attachment, kept, text_of
from crosszone.web.state import State
from crosszone.web.uploads import answered_from, given

BOOK = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_BOOK = {"content": {BOOK: {"schema": {"type": "string", "format": "binary"}}}, "description": "The workbook."}


def routes(state: State) -> APIRouter:
    """Bring runs in, and hand workbooks out."""
    router = APIRouter(prefix="/calibrate", tags=["calibrate"])

    async def read(body: ScenarioBody) -> Loaded | None:
        known = body.text is not None or body.scenario is not None
        return await run_in_threadpool(state.reader.read, body) if known else None

    @router.post(
        "/traces",
        response_model=RunFound,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 404, 409, 413, 415, 429)},
        openapi_extra=body_documented(TraceFileBody, {"content": BENCHMARK, "iteration": "best"}),
    )
    async def traces(request: Request, language: Language) -> Response:
        """Look at a trace: our own, benchmark.csv, our metrics or a profiler's; one iteration beside a prediction."""
        body = await read_body(request, TraceFileBody)
        loaded = await read(body)
        return await answered_from(request, state, body, run_job, "trace", body.iteration, loaded, language)

    @router.post(
        "/sheet",
        response_model=RunFound,
        responses={200: {"content": STREAMED}, **errors_documented(400, 403, 404, 409, 413, 415, 429)},
        openapi_extra=body_documented(RunFileBody, {"file": "id of /calibrate/files"}),
    )
    async def sheet(request: Request, language: Language) -> Response:
        """Evaluate an edited workbook: what its formulas come to, as a step with a timeline."""
        body = await read_body(request, RunFileBody)
        loaded = await read(body)
        return await answered_from(request, state, body, run_job, "sheet", "best", loaded, language)

    @router.post(
        "/sheet/download",
        response_class=Response,
        responses={200: _BOOK, **errors_documented(400, 403, 409, 413, 415, 429)},
        openapi_extra=body_documented(ScenarioBody, EXAMPLE),
    )
    async def download(request: Request, language: Language) -> Response:
        """Give the workbook of a scenario with a strategy: the formulas of its prediction live in the cells."""
        body = await read_body(request, ScenarioBody)
        loaded = await run_in_threadpool(state.reader.read, body)
        data = await finished(request, state.workers, sheet_job, loaded, language)
        headers = attachment(loaded.scenario.name or "crosszone", "xlsx", "sheet")
        return Response(data, media_type=BOOK, headers=headers)

    @router.get("/sheet", response_class=Response, responses={200: _BOOK, **errors_documented()})
    def template(language: Language) -> Response:
        """Give the workbook of an example: drop-downs, named cells, every formula editable."""
        from crosszone.calibrate.sheet import build_workbook
        from crosszone.calibrate.sheet.workbook import read_example

        data = build_workbook(read_example(), language)
        return Response(data, media_type=BOOK, headers=attachment("crosszone sheet", "xlsx", "sheet"))

    @router.get(
        "/sheet/results/{id}", response_class=Response, responses={200: _BOOK, **errors_documented(404, 409, 503)}
    )
    def export(id: Id, language: Language) -> Response:
        """Give a saved result as a workbook: with formulas where it is a prediction that they cover, else as values."""
        with kept():
            found = state.store.results.get(id)
        return _exported(state, found, language)

    @router.post(
        "/results",
        status_code=201,
        response_model=ResultRow,
        responses=errors_documented(400, 403, 404, 409, 413, 415, 429, 503),
        openapi_extra=body_documented(ImportBody, {"content": BENCHMARK, "name": "benchmark.csv", "iteration": "best"}),
    )
    async def save(request: Request, language: Language) -> Response:
        """Keep a trace or a workbook as a result; one with rows that are wrong is refused, and nothing is kept."""
        body = await read_body(request, ImportBody)
        loaded = await read(body)
        about: dict[str, Any] = {"name": body.name, "note": body.note}
        if loaded is not None:
            about["scenario"] = await run_in_threadpool(text_of, body, state.reader)
        with given(state.uploads, body) as source:
            arguments = (source, body.what, body.iteration, loaded, about, language)
            done = await finished(request, state.workers, kept_job, *arguments)

        def work() -> Json:
            with kept():
                added = state.store.results.add(**json.loads(done))
            return Json(added.model_dump(include=set(ResultRow.model_fields)), status_code=201)

        return await run_in_threadpool(work)

    return router


def _exported(state: State, result: Result, language: str) -> Response:
    """The workbook of a saved result; 409 where today's version cannot read its scenario."""
    from crosszone.calibrate.sheet import export_result

    loaded = None
    try:
        if result.kind == "predicted" and result.scenario is not None:
            way = None if result.way is None else Way(**result.way)
            loaded = state.reader.read(ScenarioBody(text=result.scenario, way=way))
        data, _ = export_result(result, loaded, language)
    except InputError:
        raise refused(409, "saved_older", field="id", value=result.name) from None
    return Response(data, media_type=BOOK, headers=attachment(result.name, "xlsx", "result"))
