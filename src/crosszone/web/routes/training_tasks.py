"""Training tasks: create, list, look at, stop, resume and delete them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.run.request import TaskRequest, created
from crosszone.store.tasks import State as TaskState
from crosszone.store.tasks import Task, TaskRow, Tasks
from crosszone.text import label
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import read_value, value_documented
from crosszone.web.language import Language
from crosszone.web.saved import Before, Id, Limit, kept
from crosszone.web.state import State
from crosszone.web.task_body import TaskBody, TaskEntry, task_body, task_entry

EXAMPLE: dict[str, Any] = {
    "taskName": "gpt3-pretraining",
    "datasetId": "dataset-001",
    "datasetVersionId": "version-001",
    "modelId": "model-001",
    "launchMode": "existing",
    "distributedConfig": {
        "enabled": True,
        "nodeIds": ["env-001", "env-003", "env-005"],
        "masterNode": "env-001",
        "framework": "deepspeed",
        "strategy": {"dataParallel": 14, "pipelineParallel": 1, "tensorParallel": 1},
    },
}
STRIDE = 500  # Rows that are read at once to find those of a state


class DistributedInfo(BaseModel):
    """Where the task runs."""

    nodeCount: int = Field(description="Environments.")
    totalGpus: int = Field(description="GPUs of all of them.")
    masterNode: str | None = Field(description="Environment at which ranks meet.")
    framework: str | None = Field(description="Framework, as it was asked for; null: it is planned.")


class CreatedData(BaseModel):
    """The task that was created."""

    taskId: str = Field(description="What to ask for it by.")
    status: TaskState = Field(description="How far it is.")
    distributedInfo: DistributedInfo = Field(description="Where it runs.")


class CreatedBody(BaseModel):
    """The answer to a task that was taken."""

    code: int = Field(description="200.")
    message: str = Field(description="What happened, in the language of the request.")
    data: CreatedData = Field(description="The task.")


class TaskList(BaseModel):
    """Some of the tasks, newest first."""

    entries: list[TaskEntry] = Field(description="The tasks.")
    before: str | None = Field(description="Ask for those before this one to go on; null: these were the last.")
    total: int = Field(description="All tasks there are, of any state.")


def routes(state: State) -> APIRouter:
    """All of that."""
    router = APIRouter(prefix="/training-tasks", tags=["training-tasks"])
    tasks, service = state.store.tasks, state.service

    @router.post(
        "",
        response_model=CreatedBody,
        responses=errors_documented(400, 403, 409, 413, 415, 503),
        openapi_extra=value_documented(TaskRequest, EXAMPLE),
    )
    async def create(
        request: Request,
        language: Language,
        idempotency_key: Annotated[
            str | None,
            Header(min_length=1, max_length=200, description="The same key and body make one task, however often."),
        ] = None,
    ) -> Response:
        """Create a task; it starts as soon as its checks pass."""
        asked_for = await read_value(request, TaskRequest)

        def work() -> Json:
            with kept(unknown=422):
                task, asked, _ = service.create(asked_for, key=idempotency_key)
            return Json(created(asked, task.id, task.state, label("task_created", language)))

        return await run_in_threadpool(work)

    @router.get("", response_model=TaskList, responses=errors_documented(503))
    def listed(
        language: Language,
        limit: Limit = 50,
        before: Before = None,
        state: Annotated[list[TaskState] | None, Query(max_length=20, description="Only of these states.")] = None,
    ) -> Json:
        """List tasks, newest first."""
        rows, further, total = _page(tasks, limit, before, frozenset(state or ()))
        return Json({"entries": [task_entry(row, language) for row in rows], "before": further, "total": total})

    @router.get("/{id}", response_model=TaskBody, responses=errors_documented(404, 503))
    def one(id: Id, language: Language) -> Json:
        """Show a task: its state, nodes, checks, progress, and what was predicted beside what is measured."""
        with kept():
            return _shown(tasks.get(id), language)

    @router.post("/{id}/stop", response_model=TaskBody, responses=errors_documented(403, 404, 409, 503))
    def stop(id: Id, language: Language) -> Json:
        """Ask a task to stop: every rank on every node ends; one that is at an end stays as it is."""
        with kept():
            return _shown(service.stop(id), language)

    @router.post("/{id}/resume", response_model=TaskBody, responses=errors_documented(403, 404, 409, 503))
    def resume(id: Id, language: Language) -> Json:
        """Start a task again from its last checkpoint."""
        with kept():
            return _shown(service.resume(id), language)

    @router.delete(
        "/{id}", status_code=204, response_class=Response, responses=errors_documented(403, 404, 409, 424, 503)
    )
    def delete(id: Id, language: Language) -> Response:
        """Delete a task that is at an end, and its folders on its machines."""
        del language
        with kept():
            service.remove(id)
        return Response(status_code=204)

    def _shown(task: Task, language: str) -> Json:
        return Json(task_body(task, tasks.events(task.id, limit=2000), language))

    return router


def _page(
    tasks: Tasks, limit: int, before: str | None, states: frozenset[str]
) -> tuple[list[TaskRow], str | None, int]:
    """A page of the tasks of some states (none: any): the rows, where to go on, and how many there are in all."""
    if not states:
        page = tasks.page(limit=limit, before=before)
        return list(page.rows), page.before, page.total
    found: list[TaskRow] = []
    while True:
        page = tasks.page(limit=STRIDE, before=before)
        for row in page.rows:
            if row.state in states:
                if len(found) == limit:
                    return found, f"{found[-1].created}~{found[-1].id}", page.total
                found.append(row)
        if page.before is None:
            return found, None, page.total
        before = page.before
