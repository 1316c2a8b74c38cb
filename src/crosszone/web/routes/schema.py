"""What may be said in a scenario: every key with its type, limits, default and meaning."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Path

from crosszone.inputs.schema import json_schema
from crosszone.plan.schema import ROOTS
from crosszone.web.answers import errors_documented
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.state import State


def routes(state: State) -> APIRouter:
    """Read the JSON Schemas."""
    del state
    router = APIRouter(prefix="/schema", tags=["schema"])

    @router.get("/{name}", responses=errors_documented(404))
    def schema(
        name: Annotated[str, Path(max_length=50, description="scenario, model, job, cluster, strategy, ...")],
        language: Language,
    ) -> dict[str, Any]:
        """Give the JSON Schema of one kind of input or answer, made from the code that reads or writes it."""
        del language
        if name not in ROOTS:
            raise refused(404, "schema_unknown", value=name, allowed=", ".join(ROOTS))
        return _schema(name)

    return router


@cache
def _schema(name: str) -> dict[str, Any]:
    return json_schema(name, ROOTS)
