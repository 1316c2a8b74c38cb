"""What-ifs: fields changed or switches turned, and what becomes of the prediction."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.analyse.compare import Compared, Row, compare
from crosszone.analyse.outcome import outcome_of
from crosszone.analyse.what_if import Available, WhatIf, available, changed_scenario, turned_changes, what_if
from crosszone.predict.answer import answer
from crosszone.predict.predict import predictor
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import EXAMPLE, WhatIfBody, body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.state import State

_AVAILABLE: TypeAdapter[Any] = TypeAdapter(tuple[Available, ...])


class Answer(WhatIf):
    """A what-if with its figures side by side."""

    figures: tuple[Row, ...]
    """Every figure before and after: its value, and how it differs."""


def routes(state: State) -> APIRouter:
    """Ask what if."""
    router = APIRouter(prefix="/what-if", tags=["what-if"])

    @router.post(
        "",
        response_model=Answer,
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(WhatIfBody, {**EXAMPLE, "changes": {"job.global_batch": 2048}}),
    )
    async def changed(request: Request, language: Language) -> Response:
        """Predict a scenario with some fields changed and switches turned, beside the prediction without."""
        body = await read_body(request, WhatIfBody)

        def work() -> Json:
            loaded = state.reader.read(body)
            before = answer(loaded, language)
            found = what_if(
                loaded.scenario,
                body.changes,
                list(body.switches.items()),
                base=before.predictor,
                before=before.prediction,
                language=language,
            )
            sides = [Compared("", "predicted", outcome_of(one)) for one in (found.before, found.after)]
            figures = [row.model_dump(mode="json") for row in compare(sides, language).figures]
            return Json({**found.model_dump(mode="json"), "figures": figures})

        return await run_in_threadpool(work)

    @router.post(
        "/switches",
        response_model=tuple[Available, ...],
        responses=errors_documented(400, 403, 413, 415),
        openapi_extra=body_documented(WhatIfBody, EXAMPLE),
    )
    async def switches(request: Request, language: Language) -> Response:
        """List the switches as they stand, what each takes, and what it cannot be turned to here.

        With changes and switches: as they stand once those are made.
        """
        body = await read_body(request, WhatIfBody)

        def work() -> Json:
            scenario = state.reader.read(body).scenario
            own = state.reader.read(body.model_copy(update={"way": None})).document.value.get("strategy")
            now = predictor(scenario)
            if body.changes or body.switches:
                fields = turned_changes(scenario, body.changes, list(body.switches.items()), now)
                scenario = changed_scenario(scenario, fields, now)
                now = predictor(scenario)
            found = available(scenario, now, own or {}, language)
            return Json(_AVAILABLE.dump_python(found, mode="json"))

        return await run_in_threadpool(work)

    return router
