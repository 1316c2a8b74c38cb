"""Calibration files: uploaded, fitted, looked at beside a prediction, kept as results; scenarios as workbooks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query
from pydantic import Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from crosszone.calibrate.sheet import build_workbook, export_result
from crosszone.calibrate.sheet.workbook import read_example
from crosszone.errors import InputError
from crosszone.inputs.scenario import Loaded
from crosszone.store import Result, ResultRow
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import SCENARIO_EXAMPLE, ApiRoute, FileBody, ScenarioBody, document_example
from crosszone.web.calibrate_examples import BENCHMARK, COLLECTIVES, LOG, SAMPLES
from crosszone.web.calibrate_found import FitFound, LinksFound, RunFound
from crosszone.web.calibrate_jobs import (
    build_result_job,
    build_workbook_job,
    calibrate_log_job,
    fit_collectives_job,
    fit_samples_job,
    inspect_run_job,
)
from crosszone.web.events import JOB_RESPONSES, finish_job, run_job
from crosszone.web.language import Language
from crosszone.web.refusals import map_store_errors, refuse
from crosszone.web.routes.results import read_saved_scenario
from crosszone.web.saved import Id, build_attachment_header
from crosszone.web.scenarios import TEXT
from crosszone.web.security import MAX_DRAINED
from crosszone.web.state import AppState, State
from crosszone.web.uploads import LONGEST_NAME, MOST_BYTES, UploadedFile, open_source
from crosszone.web.workers import Job

router = APIRouter(prefix="/calibrate", tags=["calibrate"], route_class=ApiRoute)
# What every route answers that does a job on an uploaded file.
FILE_JOB_RESPONSES = {**JOB_RESPONSES, **document_errors(404)}

UPLOAD_TYPE = "application/octet-stream"
WORKBOOK_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_UPLOAD = {
    "required": True,
    "description": f"The file as it is, at most {MOST_BYTES // 2**20} MiB; .gz may stay packed.",
    "content": {UPLOAD_TYPE: {"schema": {"type": "string", "format": "binary", "minLength": 1}}},
}
_WORKBOOK = {
    "content": {WORKBOOK_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    "description": "The workbook.",
}


class SamplesBody(FileBody):
    """Kernels that were measured, and on which GPU."""

    correction: bool = Field(
        default=False, description="Also fit small corrections to the forms: slower, and only its errors are told."
    )
    gpu: str | None = Field(
        default=None, max_length=100, description="Catalogue name of the GPU; none: the one that the file names."
    )


class RunFileBody(FileBody, ScenarioBody):
    """A file of a run, and the scenario it is of where that is known."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.file is None) == (self.content is None):
            raise ValueError("file, content")
        if self.text is not None and self.scenario is not None:
            raise ValueError("text, scenario")
        if self.way is not None and not self.has_scenario:
            raise ValueError("text, scenario")
        return self


class LogBody(RunFileBody):
    """A log, and the scenario it is of."""

    @model_validator(mode="after")
    def _check_scenario(self) -> Self:
        if not self.has_scenario:
            raise ValueError("text, scenario")
        return self


class TraceFileBody(RunFileBody):
    """A trace, which of its iterations to look at, and optionally the scenario it is compared with."""

    iteration: str = Field(default="best", max_length=20, description="Which one: first, last, best, or its number.")


class ImportResultBody(TraceFileBody):
    """A file to keep as a result."""

    what: Literal["trace", "sheet"] = Field(default="trace", description="What kind of file it is.")
    note: str = Field(default="", max_length=20_000, description="What to remember of it.")


@router.post("/files", status_code=201, response_model=UploadedFile, openapi_extra={"requestBody": _UPLOAD})
async def upload_file(
    request: Request,
    state: State,
    name: Annotated[str, Query(max_length=LONGEST_NAME, description="What the file is called.")] = "file",
) -> Response:
    """Hand in a log, a trace, samples or a workbook; what it is, the routes that read it say."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != UPLOAD_TYPE:
        await _drain_body(request)
        raise refuse(415, "not_binary_type", field="Content-Type", value=media_type)
    try:
        upload = await state.uploads.keep(request.stream(), name)
    except ClientDisconnect:  # nobody is there to read an answer
        return Response(status_code=400)
    return Json(upload, status_code=201)


@router.delete("/files/{id}", status_code=204, responses=document_errors(404))
def drop_file(id: Id, state: State) -> Response:
    """Forget a file that was handed in."""
    with map_store_errors():
        state.uploads.drop(id)
    return Response(status_code=204)


@router.post(
    "/samples",
    response_model=FitFound,
    responses=FILE_JOB_RESPONSES,
    openapi_extra=document_example({"content": SAMPLES}),
)
async def fit_samples(body: SamplesBody, request: Request, state: State, language: Language) -> Response:
    """Fit kernel samples of one GPU: errors of every operator, and a profile to keep."""
    options = {"gpu": body.gpu, "correction": body.correction}
    return await _run_file_job(request, state, body, fit_samples_job, options, language)


@router.post(
    "/collectives",
    response_model=LinksFound,
    responses=FILE_JOB_RESPONSES,
    openapi_extra=document_example({"content": COLLECTIVES, **SCENARIO_EXAMPLE}),
)
async def fit_collectives(body: RunFileBody, request: Request, state: State, language: Language) -> Response:
    """Fit latency and rate of links to timed collectives; with a scenario, put them in place of typed ones."""
    scenario = None
    if body.has_scenario:
        await run_in_threadpool(state.reader.read, body)  # refuses one that is wrong, before any work is done
        text = await run_in_threadpool(state.reader.format_text, body)
        scenario = (text, str(state.reader.base / TEXT))
    return await _run_file_job(request, state, body, fit_collectives_job, scenario, language)


@router.post(
    "/logs",
    response_model=FitFound,
    responses=FILE_JOB_RESPONSES,
    openapi_extra=document_example({"content": LOG, **SCENARIO_EXAMPLE}),
)
async def calibrate_from_log(body: LogBody, request: Request, state: State, language: Language) -> Response:
    """Calibrate from the log of one run of a scenario: what moves, what stays unknown, the run to do next."""
    loaded = await run_in_threadpool(state.reader.read, body)
    return await _run_file_job(request, state, body, calibrate_log_job, loaded, language)


@router.post(
    "/traces",
    response_model=RunFound,
    responses=FILE_JOB_RESPONSES,
    openapi_extra=document_example({"content": BENCHMARK, "iteration": "best"}),
)
async def inspect_trace(body: TraceFileBody, request: Request, state: State, language: Language) -> Response:
    """Look at a trace: our own, benchmark.csv, our metrics or a profiler's; one iteration beside a prediction."""
    loaded = await _read_scenario(state, body)
    return await _run_file_job(request, state, body, inspect_run_job, "trace", body.iteration, loaded, language)


@router.post(
    "/sheet",
    response_model=RunFound,
    responses=FILE_JOB_RESPONSES,
    openapi_extra=document_example({"file": "id of /calibrate/files"}),
)
async def inspect_workbook(body: RunFileBody, request: Request, state: State, language: Language) -> Response:
    """Evaluate an edited workbook: what its formulas come to, as a step with a timeline."""
    loaded = await _read_scenario(state, body)
    return await _run_file_job(request, state, body, inspect_run_job, "sheet", "best", loaded, language)


@router.post(
    "/sheet/download",
    response_class=Response,
    responses={200: _WORKBOOK, **document_errors(409)},
    openapi_extra=document_example(SCENARIO_EXAMPLE),
)
async def download_workbook(body: ScenarioBody, request: Request, state: State, language: Language) -> Response:
    """Give the workbook of a scenario with a strategy: the formulas of its prediction live in the cells."""
    loaded = await run_in_threadpool(state.reader.read, body)
    workbook = await finish_job(request, state.workers, build_workbook_job, loaded, language)
    headers = build_attachment_header(loaded.scenario.name or "crosszone", "xlsx", "sheet")
    return Response(workbook, media_type=WORKBOOK_TYPE, headers=headers)


@router.get("/sheet", response_class=Response, responses={200: _WORKBOOK})
def download_example_workbook(language: Language) -> Response:
    """Give the workbook of an example: drop-downs, named cells, every formula editable."""
    workbook = build_workbook(read_example(), language)
    headers = build_attachment_header("crosszone sheet", "xlsx", "sheet")
    return Response(workbook, media_type=WORKBOOK_TYPE, headers=headers)


@router.get(
    "/sheet/results/{id}", response_class=Response, responses={200: _WORKBOOK, **document_errors(404, 409, 503)}
)
def download_result_workbook(id: Id, state: State, language: Language) -> Response:
    """Give a saved result as a workbook: with formulas where it is a prediction that they cover, else as values."""
    with map_store_errors():
        result = state.store.results.get(id)
    return _export_result(state, result, language)


@router.post(
    "/results",
    status_code=201,
    response_model=ResultRow,
    responses=document_errors(404, 409, 503),
    openapi_extra=document_example({"content": BENCHMARK, "name": "benchmark.csv", "iteration": "best"}),
)
async def import_result(body: ImportResultBody, request: Request, state: State, language: Language) -> Response:
    """Keep a trace or a workbook as a result; one with rows that are wrong is refused, and nothing is kept."""
    loaded = await _read_scenario(state, body)
    about: dict[str, Any] = {"name": body.name, "note": body.note}
    if loaded is not None:
        about["scenario"] = await run_in_threadpool(state.reader.format_text, body)
    with open_source(state.uploads, body) as source:
        arguments = (source, body.what, body.iteration, loaded, about, language)
        fields = await finish_job(request, state.workers, build_result_job, *arguments)

    def save() -> Json:
        with map_store_errors():
            result = state.store.results.add(**json.loads(fields))
        return Json(result.model_dump(include=set(ResultRow.model_fields)), status_code=201)

    return await run_in_threadpool(save)


async def _drain_body(request: Request) -> None:
    """Read and drop what of a refused body is on its way, so that the sender sees the answer and not a broken pipe."""
    size = 0
    with suppress(ClientDisconnect):
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_DRAINED:
                return


async def _run_file_job(request: Request, state: AppState, body: FileBody, job: Job, *arguments: Any) -> Response:
    """The answer of long work on the file of a request; the file is kept until all of it is sent."""
    stack = ExitStack()
    try:
        source = await run_in_threadpool(stack.enter_context, open_source(state.uploads, body))
        answer = await run_job(request, state.workers, job, source, *arguments)
    except BaseException:
        stack.close()
        raise
    if not isinstance(answer, StreamingResponse):
        stack.close()
        return answer
    answer.body_iterator = _close_after(answer.body_iterator, stack)
    return answer


async def _close_after(parts: Any, stack: ExitStack) -> AsyncIterator[Any]:
    with stack:
        async for part in parts:
            yield part


async def _read_scenario(state: AppState, body: RunFileBody) -> Loaded | None:
    return await run_in_threadpool(state.reader.read, body) if body.has_scenario else None


def _export_result(state: AppState, result: Result, language: str) -> Response:
    """The workbook of a saved result; 409 where today's version cannot read its scenario."""
    loaded = None
    try:
        if result.kind == "predicted" and result.scenario is not None:
            loaded = state.reader.read(read_saved_scenario(result))
        workbook, _ = export_result(result, loaded, language)
    except InputError:
        raise refuse(409, "saved_older", field="id", value=result.name) from None
    headers = build_attachment_header(result.name, "xlsx", "result")
    return Response(workbook, media_type=WORKBOOK_TYPE, headers=headers)
