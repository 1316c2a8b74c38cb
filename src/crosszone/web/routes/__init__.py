"""The routes under `/api/v1`, one file a noun: each calls the function the command line calls."""

from __future__ import annotations

from fastapi import APIRouter

from crosszone.web.routes import (
    analyse,
    bundles,
    calibrate_accuracy,
    calibrate_files,
    calibrate_fits,
    calibrate_profiles,
    calibrate_runs,
    catalogue,
    compare,
    datasets,
    edit,
    environment_work,
    environments,
    examples,
    explain,
    places,
    plan,
    predict,
    profiles,
    radar,
    ranks,
    report,
    result_timelines,
    results,
    saved,
    scenarios,
    schema,
    sweep,
    text,
    timeline,
    training_frameworks,
    training_logs,
    training_models,
    training_tasks,
    what_if,
    work,
)
from crosszone.web.state import State

NOUNS = (
    analyse,
    bundles,
    calibrate_accuracy,
    calibrate_files,
    calibrate_fits,
    calibrate_profiles,
    calibrate_runs,
    catalogue,
    compare,
    datasets,
    edit,
    environments,  # its words in place of an id come first
    environment_work,
    examples,
    explain,
    places,
    plan,
    predict,
    profiles,
    radar,
    ranks,
    report,
    result_timelines,
    results,
    saved,
    scenarios,
    schema,
    sweep,
    text,
    timeline,
    training_frameworks,
    training_models,
    training_tasks,
    training_logs,
    what_if,
    work,
)


def api_routes(state: State) -> APIRouter:
    """All of them."""
    router = APIRouter(prefix="/api/v1")
    for noun in NOUNS:
        router.include_router(noun.routes(state))
    return router
