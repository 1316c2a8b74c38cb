"""The routes under `/api/v1`, one file a subject: each calls the function the command line calls."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from crosszone.web.language import read_language
from crosszone.web.openapi import ANY_REQUEST, PREFIX
from crosszone.web.routes import (
    analyse,
    answers,
    bundles,
    calibrate,
    calibrate_accuracy,
    calibrate_profiles,
    catalogue,
    environments,
    meta,
    plan,
    predict,
    ranks,
    results,
    scenarios,
    timeline,
    training_inputs,
    training_logs,
    training_tasks,
)
from crosszone.web.security import session_router

ROUTERS = (
    session_router,
    analyse.router,
    answers.router,
    bundles.router,
    calibrate.router,
    calibrate_accuracy.router,
    calibrate_profiles.router,
    catalogue.router,
    catalogue.profiles_router,
    environments.router,
    meta.router,
    plan.router,
    predict.router,
    ranks.router,
    results.router,
    scenarios.examples_router,
    scenarios.router,
    timeline.router,
    training_inputs.datasets_router,
    training_inputs.models_router,
    training_inputs.router,
    training_logs.router,
    training_tasks.router,
)


def build_api_router() -> APIRouter:
    """All routes; each of them takes `?lang=`, since each may refuse in words."""
    api = APIRouter(prefix=PREFIX, dependencies=[Depends(read_language)], responses=ANY_REQUEST)
    for router in ROUTERS:
        api.include_router(router)
    return api
