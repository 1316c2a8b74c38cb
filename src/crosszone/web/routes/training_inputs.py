"""What training tasks are made of: datasets in versions, models with or without weights, and frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path

from crosszone.inputs.dataset import Dataset, TrainingModel
from crosszone.inputs.environment import Environment
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.value import Name, Value
from crosszone.store.registered import Entry
from crosszone.text import render_sentence
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import ApiRoute, document_example
from crosszone.web.language import Language
from crosszone.web.refusals import map_store_errors
from crosszone.web.saved import Entries, Id, NewId, add_registry_routes
from crosszone.web.state import State

router = APIRouter(route_class=ApiRoute)
datasets_router = APIRouter(prefix="/datasets", tags=["datasets"], route_class=ApiRoute)
models_router = APIRouter(prefix="/training-models", tags=["training-models"], route_class=ApiRoute)

DATASET_EXAMPLE: dict[str, Any] = {
    "id": "dataset-001",
    "name": "pile",
    "versions": [{"id": "version-001", "path": "/data/pile.bin"}],
}
MODEL_EXAMPLE: dict[str, Any] = {"id": "model-001", "name": "Llama 2 7B", "model": "llama-2-7b"}
# What a task calls each framework.
FRAMEWORK_NAMES = {
    "pytorch-ddp": "ddp",
    "pytorch-fsdp": "fsdp",
    "deepspeed": "deepspeed",
    "horovod": "horovod",
    "megatron-lm": "megatron",
}


class NewDataset(Dataset):
    """A dataset to register."""

    id: NewId | None = None
    """What to ask for it by; null: an id is made."""


class CheckBody(Value):
    """Where to look."""

    environment: Name
    """Environment, by id, on whose machine the version lies."""


class NewTrainingModel(TrainingModel):
    """A model to register."""

    id: NewId | None = None
    """What to ask for it by; null: an id is made."""


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


@datasets_router.get("", response_model=Entries[Dataset], responses=document_errors(503))
def list_datasets(state: State) -> Json:
    """List datasets with their versions."""
    return Json(Entries[Dataset](entries=state.store.datasets.all()))


add_registry_routes(
    datasets_router, lambda state: state.store.datasets, Dataset, NewDataset, DATASET_EXAMPLE, "a dataset"
)


@datasets_router.post(
    "/{id}/versions/{version}/check",
    response_model=Entry[Dataset],
    responses=document_errors(404, 424, 503),
    openapi_extra=document_example({"environment": "env-001"}),
)
def check_dataset(
    id: Id,
    version: Annotated[str, Path(min_length=1, max_length=200, description="Version, by id.")],
    body: CheckBody,
    state: State,
) -> Json:
    """Look at a version on an environment's machine, and keep its size and checksum."""
    with map_store_errors():
        entry = state.service.check_dataset(id, version, body.environment)
    return Json(entry)


@models_router.get("", response_model=Entries[TrainingModel], responses=document_errors(503))
def list_training_models(state: State) -> Json:
    """List models that tasks train."""
    return Json(Entries[TrainingModel](entries=state.store.training_models.all()))


add_registry_routes(
    models_router, lambda state: state.store.training_models, TrainingModel, NewTrainingModel, MODEL_EXAMPLE, "a model"
)


@router.get(
    "/training-frameworks",
    tags=["training-tasks"],
    response_model=list[TrainingFramework],
    responses=document_errors(503),
)
def list_training_frameworks(state: State, language: Language) -> Json:
    """List the frameworks of tasks; one that no environment can run says why."""
    environments = [entry.value for entry in state.store.environments.all()]
    return Json([_describe_framework(name, environments, language) for name in FRAMEWORK_NAMES])


def _describe_framework(name: str, environments: Sequence[Environment], language: str) -> TrainingFramework:
    framework = FRAMEWORK_NAMES[name]
    reason = None
    if framework == "horovod" and not any(map(_has_horovod, environments)):
        reason = render_sentence("framework", framework, "missing", language, {})
    return TrainingFramework(
        name=name,
        framework=framework,
        title=load_frameworks()[framework].title,
        kind=render_sentence("framework", framework, "kind", language, {}),
        about=render_sentence("framework", framework, "about", language, {}),
        available=reason is None,
        reason=reason,
    )


def _has_horovod(environment: Environment) -> bool:
    """The last probe found it: no release of it builds with the PyTorch of today, so it is not taken for granted."""
    software = (environment.facts or {}).get("software")
    return isinstance(software, dict) and bool(software.get("horovod"))
