"""Training models: what tasks train, each a model of the catalogue or its fields, with or without weights."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from crosszone.inputs.dataset import TrainingModel
from crosszone.web.answers import Json, errors_documented
from crosszone.web.language import Language
from crosszone.web.registered import Entries, NewId, registry_routes
from crosszone.web.state import State

EXAMPLE: dict[str, Any] = {"id": "model-001", "name": "Llama 2 7B", "model": "llama-2-7b"}


class NewTrainingModel(TrainingModel):
    """A model to register."""

    id: NewId | None = None
    """What to ask for it by; null: an id is made."""


def routes(state: State) -> APIRouter:
    """List, add, show, change and remove models."""
    router = APIRouter(prefix="/training-models", tags=["training-models"])
    models = state.store.training_models

    @router.get("", response_model=Entries[TrainingModel], responses=errors_documented(503))
    def listed(language: Language) -> Json:
        """List models that tasks train."""
        del language
        return Json(Entries[TrainingModel](entries=models.all()).model_dump(mode="json"))

    registry_routes(router, models, TrainingModel, NewTrainingModel, EXAMPLE, "a model")
    return router
