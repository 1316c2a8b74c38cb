"""Training frameworks: the five a task can be asked for, and whether each can be used."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from crosszone.inputs.environment import Environment
from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.value import Value
from crosszone.text import render_sentence
from crosszone.web.answers import Json, errors_documented
from crosszone.web.language import Language
from crosszone.web.state import State

# What a task calls each framework.
NAMES = {
    "pytorch-ddp": "ddp",
    "pytorch-fsdp": "fsdp",
    "deepspeed": "deepspeed",
    "horovod": "horovod",
    "megatron-lm": "megatron",
}


class TrainingFramework(Value):
    """One framework."""

    name: str
    """As a task names it."""
    framework: str
    """As a scenario names it."""
    title: str
    """What it is called."""
    kind: str
    """What it does, in two or three words."""
    about: str
    """What it does, in a sentence."""
    available: bool
    """It can be used."""
    reason: str | None
    """Why it cannot; null: it can."""


def routes(state: State) -> APIRouter:
    """List them."""
    router = APIRouter(prefix="/training-frameworks", tags=["training-tasks"])

    @router.get("", response_model=list[TrainingFramework], responses=errors_documented(503))
    def listed(language: Language) -> Json:
        """List the frameworks of tasks; one that no environment can run says why."""
        environments = [entry.value for entry in state.store.environments.all()]
        return Json([_told(name, environments, language).model_dump() for name in NAMES])

    return router


def _told(name: str, environments: Sequence[Environment], language: str) -> TrainingFramework:
    framework = NAMES[name]
    reason = None
    if framework == "horovod" and not any(map(_has_horovod, environments)):
        reason = render_sentence("framework", framework, "missing", language, {})
    return TrainingFramework(
        name=name,
        framework=framework,
        title=frameworks()[framework].title,
        kind=render_sentence("framework", framework, "kind", language, {}),
        about=render_sentence("framework", framework, "about", language, {}),
        available=reason is None,
        reason=reason,
    )


def _has_horovod(environment: Environment) -> bool:
    """The last probe found it: no release of it builds with the PyTorch of today, so it is not taken for granted."""
    software = (environment.facts or {}).get("software")
    return isinstance(software, dict) and bool(software.get("horovod"))
