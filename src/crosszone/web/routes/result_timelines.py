"""Timelines of saved results: what was predicted is drawn anew, what was measured or from a sheet as it was kept."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from crosszone.calibrate.stability import resolve_iteration
from crosszone.errors import InputError
from crosszone.predict.answer import predictor_of
from crosszone.schedule.measured import read_measured
from crosszone.schedule.timeline import Timeline, build_view
from crosszone.store import Result
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import ScenarioBody, Way
from crosszone.web.language import Language
from crosszone.web.refusals import refused
from crosszone.web.routes.timeline import StepsBody, ViewBody
from crosszone.web.saved import Id, kept
from crosszone.web.state import State

MOST_DRAWN = 4_000  # Spans of one result beside others
Iteration = Annotated[
    str, Query(max_length=20, description="Of a run of several steps: first, last, best, or its number.")
]


class ResultTimelineBody(ViewBody):
    """One step of a saved result to draw beside others."""

    name: str
    kind: str = Field(description="predicted, sheet or measured.")
    step: int | None = Field(description="Number of the step that is drawn; null: it was predicted.")
    steps: StepsBody | None = Field(description="All steps of the run; null: it was predicted.")


def routes(state: State) -> APIRouter:
    """Draw saved results."""
    router = APIRouter(prefix="/results", tags=["results"])

    @router.get("/{id}/timeline", response_model=ResultTimelineBody, responses=errors_documented(404, 409, 503))
    def drawn(id: Id, language: Language, iteration: Iteration = "best") -> Json:
        """Draw one step of a saved result; 404 where nothing is known of what happened within its step."""
        with kept():
            found = state.store.results.get(id)
        timeline, about = _predicted(state, found, language) if found.kind == "predicted" else _kept(found, iteration)
        view = build_view(timeline, max_spans=MOST_DRAWN)
        return Json({**view, "micro_batch": None, "name": found.name, "kind": found.kind, **about})

    return router


def _predicted(state: State, result: Result, language: str) -> tuple[Timeline, dict[str, Any]]:
    """The step of a saved prediction, from its scenario; 409 where today's version cannot predict it any more."""
    if result.scenario is None:
        raise refused(404, "result_no_timeline", field="id", value=result.name)
    way = None if result.way is None else Way(**result.way)
    try:
        timeline = predictor_of(state.reader.read(ScenarioBody(text=result.scenario, way=way))).timeline(language)
    except InputError:
        raise refused(409, "saved_older", field="id", value=result.name) from None
    return timeline, {"step": None, "steps": None}


def _kept(result: Result, iteration: str) -> tuple[Timeline, dict[str, Any]]:
    """A step of the trace that was kept."""
    trace = (result.timeline or {}).get("trace")
    if trace is None:
        raise refused(404, "result_no_timeline", field="id", value=result.name)
    run = read_measured(trace if isinstance(trace, str) else json.dumps(trace))
    seconds = {one.step: one.end_s - one.start_s for one in run.steps}
    number = resolve_iteration(iteration, seconds)
    steps = {"step": list(seconds), "seconds": list(seconds.values())}
    return run.timeline(number)[0], {"step": number, "steps": steps}
