"""The routes under `/api/v1`, one file a noun: each calls the function the command line calls."""

from __future__ import annotations

from fastapi import APIRouter

from crosszone.web.routes import (
    analyse,
    bundles,
    catalogue,
    compare,
    edit,
    examples,
    explain,
    places,
    plan,
    predict,
    profiles,
    radar,
    ranks,
    report,
    results,
    saved,
    scenarios,
    schema,
    sweep,
    text,
    timeline,
    what_if,
    work,
)
from crosszone.web.state import State

NOUNS = (
    analyse,
    bundles,
    catalogue,
    compare,
    edit,
    examples,
    explain,
    places,
    plan,
    predict,
    profiles,
    radar,
    ranks,
    report,
    results,
    saved,
    scenarios,
    schema,
    sweep,
    text,
    timeline,
    what_if,
    work,
)


def api_routes(state: State) -> APIRouter:
    """All of them."""
    router = APIRouter(prefix="/api/v1")
    for noun in NOUNS:
        router.include_router(noun.routes(state))
    return router
