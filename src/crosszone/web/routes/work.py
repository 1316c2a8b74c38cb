"""Long work that is being done."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from crosszone.web.answers import errors_documented
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.state import State


def routes(state: State) -> APIRouter:
    """Stop it."""
    router = APIRouter(prefix="/work", tags=["work"])

    @router.delete("/{id}", status_code=204, response_class=Response, responses=errors_documented(403, 404))
    def cancel(
        id: Annotated[str, Path(max_length=100, description="As `started` told it.")], language: Language
    ) -> Response:
        """Stop a piece of work; its stream ends with an error that says so."""
        del language
        if not state.workers.cancel(id):
            raise refused(404, "work_unknown", value=id)
        return Response(status_code=204)

    return router
