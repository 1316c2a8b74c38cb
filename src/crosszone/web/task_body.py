"""Task body: a task as the API shows it: worded, with its plan boiled down to what a person looks at."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from crosszone.predict.prediction import Triple
from crosszone.store.tasks import Event, Task, TaskRow
from crosszone.store.tasks import State as TaskState
from crosszone.web.answers import NoticeBody
from crosszone.web.language import worded


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


def task_entry(task: TaskRow, language: str) -> dict[str, Any]:
    """A task as a list shows it."""
    plain = task.model_dump(mode="json", include=set(TaskEntry.model_fields))
    return {**plain, "notice": worded(task.notice, language)}


def task_body(task: Task, events: Sequence[Event], language: str) -> dict[str, Any]:
    """A task with everything there is to see."""
    plan = task.plan or {}
    predicted = plan.get("prediction") or {}
    prediction = _prediction(predicted)
    return {
        **task_entry(task, language),
        "driven": task.driver is not None and task.driven_until > time.time(),
        "framework": (plan.get("bundle") or {}).get("framework"),
        "strategy": predicted.get("strategy"),
        "scenario": plan.get("scenario"),
        "prediction": prediction,
        "slowdown": plan.get("slowdown"),
        "nodes": _nodes(plan, task.progress),
        "checks": [worded(event.about["notice"], language) for event in _checks(events)],
        "measured": _measured(task.progress, prediction),
    }


def _prediction(predicted: Mapping[str, Any]) -> dict[str, Any] | None:
    if "step_time_s" not in predicted:
        return None
    return {
        "step_time_s": predicted["step_time_s"],
        "tokens_per_s": predicted["tokens_per_s"],
        "parts": predicted.get("breakdown_s") or {},
        "memory_gib": (predicted.get("memory_gib") or {}).get("peak"),
        "bottleneck": predicted.get("bottleneck"),
    }


def _nodes(plan: Mapping[str, Any], progress: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The nodes of the plan as they were last seen; the first is where ranks meet."""
    seen = {node["number"]: node for node in progress.get("nodes", ())}
    commands = {node["number"]: node["commands"] for node in (plan.get("bundle") or {}).get("nodes", ())}
    environments = plan.get("environments") or {}
    found = []
    for node in plan.get("nodes", ()):
        number, id = node["number"], node["environment"]
        environment, sight = environments.get(id) or {}, seen.get(number) or {}
        found.append(
            {
                "number": number,
                "environment": id,
                "name": environment.get("name") or id,
                "zone": environment.get("zone"),
                "address": node["address"],
                "master": number == 0,
                "ranks": list(node["ranks"]),
                "commands": list(commands.get(number, ())),
                "state": sight.get("state", "none"),
                "code": sight.get("code"),
            }
        )
    return found


def _checks(events: Sequence[Event]) -> list[Event]:
    """What checks found since the task was created or resumed last."""
    begun = max((event.number for event in events if event.kind == "resume"), default=0)
    return [event for event in events if event.number > begun and event.kind == "check" and event.about.get("notice")]


def _measured(progress: Mapping[str, Any], prediction: Mapping[str, Any] | None) -> dict[str, Any] | None:
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
