"""Datasets: what tasks train on, in versions; and whether a version is where it should be."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.inputs.dataset import Dataset
from crosszone.inputs.value import Name, Value
from crosszone.store.registered import Entry
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import read_value, value_documented
from crosszone.web.language import Language
from crosszone.web.registered import Entries, NewId, registry_routes
from crosszone.web.saved import Id, kept
from crosszone.web.state import State

EXAMPLE: dict[str, Any] = {
    "id": "dataset-001",
    "name": "pile",
    "versions": [{"id": "version-001", "path": "/data/pile.bin"}],
}


class NewDataset(Dataset):
    """A dataset to register."""

    id: NewId | None = None
    """What to ask for it by; null: an id is made."""


class CheckBody(Value):
    """Where to look."""

    environment: Name
    """Environment, by id, on whose machine the version lies."""


def routes(state: State) -> APIRouter:
    """List, add, show, change, remove and check datasets."""
    router = APIRouter(prefix="/datasets", tags=["datasets"])
    datasets = state.store.datasets

    @router.get("", response_model=Entries[Dataset], responses=errors_documented(503))
    def listed(language: Language) -> Json:
        """List datasets with their versions."""
        del language
        return Json(Entries[Dataset](entries=datasets.all()).model_dump(mode="json"))

    registry_routes(router, datasets, Dataset, NewDataset, EXAMPLE, "a dataset")

    @router.post(
        "/{id}/versions/{version}/check",
        response_model=Entry[Dataset],
        responses=errors_documented(400, 403, 404, 413, 415, 424, 503),
        openapi_extra=value_documented(CheckBody, {"environment": "env-001"}),
    )
    async def check(
        id: Id,
        version: Annotated[str, Path(min_length=1, max_length=200, description="Version, by id.")],
        request: Request,
        language: Language,
    ) -> Response:
        """Look at a version on an environment's machine, and keep its size and checksum."""
        del language
        body = await read_value(request, CheckBody)

        def work() -> Json:
            with kept():
                found = state.service.check_dataset(id, version, body.environment)
            return Json(found.model_dump(mode="json"))

        return await run_in_threadpool(work)

    return router
