"""Training tasks: create, list, look at, stop, resume and delete them; and a task as the API shows it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from crosszone.predict.prediction import Triple
from crosszone.run.request import TaskRequest, describe_created
from crosszone.store.tasks import Event, Task, TaskRow, Tasks
from crosszone.store.tasks import State as TaskState
from crosszone.text import label
from crosszone.web.answers import Json, NoticeBody, document_errors
from crosszone.web.body import ApiRoute, document_example
from crosszone.web.language import Language, localize_notice
from crosszone.web.refusals import map_store_errors
from crosszone.web.saved import Before, Id, Limit
from crosszone.web.state import AppState, State

router = APIRouter(prefix="/training-tasks", tags=["training-tasks"], route_class=ApiRoute)

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
PAGE_ROWS = 500  # Rows that are read at once to find those of a state
MOST_EVENTS = 2000  # Events of a task that are looked at for what its checks found


class TaskEntry(BaseModel):
    """What a list shows of a task."""

    id: str = Field(description="What it is asked for by.")
    name: str = Field(description="What the user calls it.")
    state: TaskState = Field(description="How far it is.")
    created: str = Field(description="When it was created, in UTC.")
    changed: str = Field(description="When its state changed last, in UTC.")
    attempt: int = Field(description="How many times it was started or resumed, from 1.")
    restarts: int = Field(description="How many times the group started again in this attempt.")
    stop_asked: bool = Field(description="It is to stop.")
    request: dict[str, Any] = Field(description="What was asked for.")
    progress: dict[str, Any] = Field(description="Step, loss, rates and nodes as last seen.")
    notice: NoticeBody | None = Field(description="Why it is where it is; null: there is nothing to say.")


class TaskPrediction(BaseModel):
    """What is expected of a task."""

    step_time_s: Triple = Field(description="Seconds of a step.")
    tokens_per_s: Triple = Field(description="Tokens a second of all ranks.")
    parts: dict[str, float] = Field(description="Seconds of the expected step by part; they add up to it.")
    memory_gib: Triple | None = Field(description="Peak of the fullest GPU; null: not known.")
    bottleneck: str | None = Field(description="Class with the largest share of the step.")


class TaskNode(BaseModel):
    """One node of a task."""

    number: int = Field(description="Counts from 0, in rank order.")
    environment: str = Field(description="Environment it runs in, by id.")
    name: str = Field(description="What that environment is called.")
    zone: str | None = Field(description="Zone it stands in.")
    address: str | None = Field(description="Its address; null: its scheduler finds it.")
    master: bool = Field(description="Ranks meet here.")
    ranks: list[str] = Field(description="Its ranks, first-last.")
    commands: list[str] = Field(description="What is started there.")
    state: str = Field(description="none, starting, running, ended, lost, unreachable.")
    code: int | None = Field(description="Exit status; null: it has not ended.")


class TaskMeasured(BaseModel):
    """What a task shows, beside what was predicted of it."""

    step: int = Field(description="Last step that was measured.")
    step_s: float = Field(description="Median seconds of the last steps.")
    tokens_per_s: float | None = Field(description="Tokens a second of the last step.")
    loss: float | None = Field(description="Loss of the last step.")
    first_loss: float | None = Field(description="Loss of the first step.")
    over_predicted: float | None = Field(description="Measured over expected seconds of a step; null: no prediction.")
    in_band: bool | None = Field(description="The measured step lies within the predicted band; null: no prediction.")


class TaskBody(TaskEntry):
    """A task with everything there is to see."""

    driven: bool = Field(description="Somebody drives it now; a live task that nobody drives waits for a server.")
    framework: str | None = Field(description="Framework that was given or planned; null: not planned yet.")
    strategy: dict[str, Any] | None = Field(description="Strategy that was given or planned; null: not planned yet.")
    scenario: str | None = Field(description="The scenario it became, as text; null: not planned yet.")
    prediction: TaskPrediction | None = Field(description="What is expected; null: not planned yet.")
    slowdown: float | None = Field(description="Step over the step of the same nodes in one zone; null: it is one.")
    nodes: list[TaskNode] = Field(description="Where it runs.")
    checks: list[NoticeBody] = Field(description="What the checks of this attempt found.")
    measured: TaskMeasured | None = Field(description="What it shows; null: no step was made yet.")


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


@router.post(
    "",
    response_model=CreatedBody,
    responses=document_errors(409, 503),
    openapi_extra=document_example(EXAMPLE),
)
def create_task(
    body: TaskRequest,
    state: State,
    language: Language,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=200, description="The same key and body make one task, however often."),
    ] = None,
) -> Json:
    """Create a task; it starts as soon as its checks pass."""
    with map_store_errors(unknown=422):  # a name that is not known stands in the body, not in the address
        task, resolved, _ = state.service.create(body, key=idempotency_key)
    return Json(describe_created(resolved, task.id, task.state, label("task_created", language)))


@router.get("", response_model=TaskList, responses=document_errors(503))
def list_tasks(
    app_state: State,
    language: Language,
    limit: Limit = 50,
    before: Before = None,
    state: Annotated[list[TaskState] | None, Query(max_length=20, description="Only of these states.")] = None,
) -> Json:
    """List tasks, newest first."""
    rows, next_before, total = _read_page(app_state.store.tasks, limit, before, frozenset(state or ()))
    entries = [build_task_entry(row, language) for row in rows]
    return Json({"entries": entries, "before": next_before, "total": total})


@router.get("/{id}", response_model=TaskBody, responses=document_errors(404, 503))
def show_task(id: Id, state: State, language: Language) -> Json:
    """Show a task: its state, nodes, checks, progress, and what was predicted beside what is measured."""
    with map_store_errors():
        return _answer_task(state, state.store.tasks.get(id), language)


@router.post("/{id}/stop", response_model=TaskBody, responses=document_errors(404, 409, 503))
def stop_task(id: Id, state: State, language: Language) -> Json:
    """Ask a task to stop: every rank on every node ends; one that is at an end stays as it is."""
    with map_store_errors():
        return _answer_task(state, state.service.stop(id), language)


@router.post("/{id}/resume", response_model=TaskBody, responses=document_errors(404, 409, 503))
def resume_task(id: Id, state: State, language: Language) -> Json:
    """Start a task again from its last checkpoint."""
    with map_store_errors():
        return _answer_task(state, state.service.resume(id), language)


@router.delete("/{id}", status_code=204, responses=document_errors(404, 409, 424, 503))
def delete_task(id: Id, state: State) -> Response:
    """Delete a task that is at an end, and its folders on its machines."""
    with map_store_errors():
        state.service.remove(id)
    return Response(status_code=204)


def _answer_task(state: AppState, task: Task, language: str) -> Json:
    return Json(build_task_body(task, state.store.tasks.list_events(task.id, limit=MOST_EVENTS), language))


def _read_page(
    tasks: Tasks, limit: int, before: str | None, states: frozenset[str]
) -> tuple[list[TaskRow], str | None, int]:
    """A page of the tasks of some states (none: any): the rows, where to go on, and how many there are in all."""
    if not states:
        page = tasks.page(limit=limit, before=before)
        return list(page.rows), page.before, page.total
    matching: list[TaskRow] = []
    while True:
        page = tasks.page(limit=PAGE_ROWS, before=before)
        for row in page.rows:
            if row.state in states:
                if len(matching) == limit:
                    # in the form of the store's own `before`: the next page goes on behind the last row of this one
                    return matching, f"{matching[-1].created}~{matching[-1].id}", page.total
                matching.append(row)
        if page.before is None:
            return matching, None, page.total
        before = page.before


def build_task_entry(task: TaskRow, language: str) -> dict[str, Any]:
    """A task as a list shows it."""
    plain = task.model_dump(mode="json", include=set(TaskEntry.model_fields))
    return {**plain, "notice": localize_notice(task.notice, language)}


def build_task_body(task: Task, events: Sequence[Event], language: str) -> dict[str, Any]:
    """A task with everything there is to see."""
    plan = task.plan or {}
    predicted = plan.get("prediction") or {}
    prediction = _build_prediction(predicted)
    return {
        **build_task_entry(task, language),
        "driven": task.driver is not None and task.driven_until > time.time(),
        "framework": (plan.get("bundle") or {}).get("framework"),
        "strategy": predicted.get("strategy"),
        "scenario": plan.get("scenario"),
        "prediction": prediction,
        "slowdown": plan.get("slowdown"),
        "nodes": _build_nodes(plan, task.progress),
        "checks": [localize_notice(event.about["notice"], language) for event in _select_check_events(events)],
        "measured": _build_measured(task.progress, prediction),
    }


def _build_prediction(predicted: Mapping[str, Any]) -> dict[str, Any] | None:
    if "step_time_s" not in predicted:
        return None
    return {
        "step_time_s": predicted["step_time_s"],
        "tokens_per_s": predicted["tokens_per_s"],
        "parts": predicted.get("breakdown_s") or {},
        "memory_gib": (predicted.get("memory_gib") or {}).get("peak"),
        "bottleneck": predicted.get("bottleneck"),
    }


def _build_nodes(plan: Mapping[str, Any], progress: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The nodes of the plan as they were last seen; the first is where ranks meet."""
    statuses = {node["number"]: node for node in progress.get("nodes", ())}
    commands = {node["number"]: node["commands"] for node in (plan.get("bundle") or {}).get("nodes", ())}
    environments = plan.get("environments") or {}
    nodes = []
    for node in plan.get("nodes", ()):
        number, id = node["number"], node["environment"]
        environment, status = environments.get(id) or {}, statuses.get(number) or {}
        nodes.append(
            {
                "number": number,
                "environment": id,
                "name": environment.get("name") or id,
                "zone": environment.get("zone"),
                "address": node["address"],
                "master": number == 0,
                "ranks": list(node["ranks"]),
                "commands": list(commands.get(number, ())),
                "state": status.get("state", "none"),
                "code": status.get("code"),
            }
        )
    return nodes


def _select_check_events(events: Sequence[Event]) -> list[Event]:
    """What checks found since the task was created or resumed last."""
    resumed = max((event.number for event in events if event.kind == "resume"), default=0)
    return [event for event in events if event.number > resumed and event.kind == "check" and event.about.get("notice")]


def _build_measured(progress: Mapping[str, Any], prediction: Mapping[str, Any] | None) -> dict[str, Any] | None:
    step_s = progress.get("step_s")
    if step_s is None or progress.get("step") is None:
        return None
    figures = {key: progress.get(key) for key in ("step", "step_s", "tokens_per_s", "loss", "first_loss")}
    if prediction is None:
        return {**figures, "over_predicted": None, "in_band": None}
    band = prediction["step_time_s"]
    return {
        **figures,
        "over_predicted": step_s / band["expected"] if band["expected"] > 0 else None,
        "in_band": band["low"] <= step_s <= band["high"],
    }
