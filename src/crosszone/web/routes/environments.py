"""Environments: machines that can train; listed with filters, added, changed, removed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from crosszone.inputs.environment import Environment, MeasuredLink, Status
from crosszone.inputs.value import Value
from crosszone.run.registry import Sort, forget, sifted
from crosszone.store.registered import Entry
from crosszone.web.answers import Json, errors_documented
from crosszone.web.language import Language
from crosszone.web.registered import Entries, NewId, registry_routes
from crosszone.web.state import State

Order = Literal["asc", "desc"]
Wanted = Annotated[str, Query(max_length=100)]
EXAMPLE: dict[str, Any] = {
    "id": "env-001",
    "name": "pytorch-dev-env",
    "type": "jupyter",
    "status": "running",
    "zone": "beijing-a",
    "region": "cn-beijing",
    "address": "192.168.1.10",
    "gpu": "a100-80gb-sxm",
    "gpus": 2,
    "cpus": 16,
    "memory_gb": 128,
}


class NewEnvironment(Environment):
    """An environment to register."""

    id: NewId | None = None
    """What to ask for it by; null: an id is made."""


class EnvironmentList(Value):
    """Environments that were asked for, and what all of them can be filtered by."""

    entries: tuple[Entry[Environment], ...]
    """Those that match, sorted."""
    zones: tuple[str, ...]
    """Zones of all environments."""
    gpus: tuple[str, ...]
    """GPU kinds of all environments."""
    types: tuple[str, ...]
    """Types of all environments."""
    statuses: tuple[str, ...]
    """Statuses of all environments."""


def routes(state: State) -> APIRouter:
    """List, add, show, change and remove environments; list the links between them."""
    router = APIRouter(prefix="/environments", tags=["environments"])
    store = state.store

    @router.get("", response_model=EnvironmentList, responses=errors_documented(503))
    def listed(
        language: Language,
        zone: Annotated[list[Wanted] | None, Query(max_length=100, description="Only of these zones.")] = None,
        gpu: Annotated[list[Wanted] | None, Query(max_length=100, description="Only with these GPU kinds.")] = None,
        status: Annotated[list[Status] | None, Query(max_length=10, description="Only with these statuses.")] = None,
        type: Annotated[list[Wanted] | None, Query(max_length=100, description="Only of these types.")] = None,
        sort: Annotated[Sort | None, Query(description="Sort by; none: as they were registered.")] = None,
        order: Annotated[Order, Query(description="Ascending or descending; what is not known comes last.")] = "asc",
    ) -> Json:
        """List environments, filtered and sorted."""
        del language
        every = store.environments.all()
        wanted: dict[str, Collection[str]] = {
            "zone": zone or [],
            "gpu": gpu or [],
            "status": status or [],
            "type": type or [],
        }
        answer = EnvironmentList(
            entries=tuple(sifted(every, wanted, sort=sort, descending=order == "desc")),
            zones=_named(one.value.zone for one in every),
            gpus=_named(one.value.gpu for one in every),
            types=_named(one.value.type for one in every),
            statuses=_named(one.value.status for one in every),
        )
        return Json(answer.model_dump(mode="json"))

    @router.get("/links", response_model=Entries[MeasuredLink], responses=errors_documented(503))
    def links(language: Language) -> Json:
        """List the links that were measured between environments."""
        del language
        return Json(Entries[MeasuredLink](entries=store.measured_links.all()).model_dump(mode="json"))

    registry_routes(
        router,
        store.environments,
        Environment,
        NewEnvironment,
        EXAMPLE,
        "an environment",
        forget=lambda id: forget(store, [id]),
    )
    return router


def _named(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value is not None}))
